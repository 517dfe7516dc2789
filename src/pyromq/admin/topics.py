"""Topics: list and examine them, create, change and delete them.

Changes go to masters; replicas copy them. Runs on the event loop of the `Admin`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.admin.session import Area
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.bodies_admin import TopicStatsTable
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.headers_admin import GetTopicStatsInfoRequestHeader


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The offsets of one queue."""

    queue: MessageQueue
    #: The offset of the oldest message.
    min_offset: int
    #: The offset that the next message will get.
    max_offset: int
    #: When the last message was stored, in milliseconds since the epoch; 0 if there is none.
    last_updated: int


class Topics(Area):
    """Topics of the cluster."""

    async def names(self) -> list[str]:
        """Return the names of all topics, sorted; system, retry and dead-letter topics too."""
        return sorted(await self._session.topic_names())

    async def status(self, topic: str) -> list[QueueStatus]:
        """Return the offsets of a topic's queues, sorted by broker and queue."""
        masters = await self._session.masters_of_topic(topic)
        header = GetTopicStatsInfoRequestHeader(topic)
        tables = await self._session.on_each(
            f"reading the offsets of topic {topic!r}",
            masters.values(),
            lambda address: self._session.fetch(
                TopicStatsTable, address, RequestCode.GET_TOPIC_STATS_INFO, header
            ),
        )
        found = {
            queue: offsets
            for table in tables.values()
            for queue, offsets in table.offset_table.items()
        }
        return [
            QueueStatus(queue, each.min_offset, each.max_offset, each.last_update_timestamp)
            for queue, each in sorted(found.items())
        ]
