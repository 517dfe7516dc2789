"""QUERY_CONSUMER_OFFSET and UPDATE_CONSUMER_OFFSET: committed offsets of consumer groups.

A commit for an unknown topic or queue is answered with success, as in RocketMQ, but dropped: it
would be kept forever. An offset beyond the end of its queue is kept, as in RocketMQ: the response
to the group's next pull corrects it.

Handlers run on the loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from pyromq.acl import classification as access
from pyromq.broker.routes import Route, Routes
from pyromq.broker.state.connections import ClientConnection
from pyromq.broker.state.groups import GroupTable
from pyromq.broker.state.offsets import ConsumerOffsetTable
from pyromq.broker.state.topics import TopicTable
from pyromq.protocol.names import group_fault, topic_fault
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.headers import (
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)

logger = logging.getLogger(__name__)

#: Seconds between two log lines about dropped commits.
_LOG_INTERVAL_SECONDS: Final = 60.0


class OffsetStore(Protocol):
    """The part of the store that offsets need."""

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        """Return the offset of the oldest message; None for an unknown queue."""

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the next message; 0 for an unknown queue."""

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a message is recent enough to be in memory."""


class OffsetHandlers:
    """Stores and returns committed offsets."""

    def __init__(
        self,
        offsets: ConsumerOffsetTable,
        store: OffsetStore,
        topics: TopicTable,
        groups: GroupTable,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._offsets = offsets
        self._store = store
        self._topics = topics
        self._groups = groups
        self._now = now
        #: Commits dropped since the last log line, and when that was.
        self._dropped = 0
        self._last_line = -_LOG_INTERVAL_SECONDS

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(
                RequestCode.QUERY_CONSUMER_OFFSET,
                access.CONSUMER_OFFSET,
                self.query_consumer_offset,
            ),
            Route(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                access.CONSUMER_OFFSET,
                self.update_consumer_offset,
            ),
        )

    def query_consumer_offset(
        self,
        connection: ClientConnection,  # noqa: ARG002 - every handler has it
        request: RemotingCommand,
    ) -> RemotingCommand:
        """QUERY_CONSUMER_OFFSET: return the offset at which the group resumes.

        A group without a commit starts at 0 in a young queue. In an old queue it gets
        QUERY_NOT_FOUND, and the consumer decides by its own settings.
        """
        header = QueryConsumerOffsetRequestHeader.decode(request.ext_fields)
        offset = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset is None or offset < 0:
            if not self._is_young(header.topic, header.queue_id):
                raise RequestError(
                    ResponseCode.QUERY_NOT_FOUND,
                    f"group {header.consumer_group} has no offset in topic {header.topic} "
                    f"queue {header.queue_id}",
                )
            offset = 0
        return request.answer(ext_fields=QueryConsumerOffsetResponseHeader(offset).encode())

    def update_consumer_offset(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """UPDATE_CONSUMER_OFFSET: commit the offset of a group."""
        header = UpdateConsumerOffsetRequestHeader.decode(request.ext_fields)
        # Names become keys of the table and its file: illegal ones would stay for good.
        fault = topic_fault(header.topic) or group_fault(header.consumer_group)
        if fault is None and (header.queue_id < 0 or header.commit_offset < 0):
            fault = (
                f"queueId {header.queue_id} and commitOffset {header.commit_offset} "
                "must not be negative"
            )
        if fault is None and not self._exists(header.topic, header.queue_id):
            self._drop(connection, header)
            return request.answer()
        if fault is None:
            is_known = header.consumer_group in self._groups
            fault = self._offsets.room_fault(header.consumer_group, header.topic, is_known=is_known)
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, fault)
        self._offsets.commit(
            header.consumer_group,
            header.topic,
            header.queue_id,
            header.commit_offset,
            remote_address=connection.remote_address,
        )
        return request.answer()

    def _exists(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue can have messages; a topic that shrank keeps its old queues."""
        config = self._topics.get(topic)
        return config is not None and (
            queue_id < max(config.read_queue_nums, config.write_queue_nums)
            or self._store.max_offset(topic, queue_id) > 0
        )

    def _drop(
        self, connection: ClientConnection, header: UpdateConsumerOffsetRequestHeader
    ) -> None:
        self._dropped += 1
        now = self._now()
        if now - self._last_line < _LOG_INTERVAL_SECONDS:
            return
        logger.warning(
            "%d commits dropped: unknown topic or queue; the last one: group %s, topic %s "
            "queue %d, from %s",
            self._dropped,
            header.consumer_group,
            header.topic,
            header.queue_id,
            connection.remote_address,
        )
        self._dropped = 0
        self._last_line = now

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Return whether the first message of a queue is still in memory, or yet to come."""
        if self._store.min_offset(topic, queue_id):
            return False
        return self._store.max_offset(topic, queue_id) <= 0 or self._store.is_in_memory(
            topic, queue_id, 0
        )
