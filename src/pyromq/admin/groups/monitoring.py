"""Rounds of monitoring, as `mqadmin startMonitoring` makes them: lags, members, lost messages.

A round examines each group that has a retry topic. In the topic OFFSET_MOVED_EVENT Java's brokers
report consumers whose offset was no longer in the queue; each round returns the new reports. Runs
on the event loop of the `Admin`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.admin.errors import AdminError, NotFoundError, UnknownTopicError
from pyromq.admin.groups.groups import Groups, GroupStatus, QueueProgress
from pyromq.admin.queue_reader import QueueReader
from pyromq.admin.session import AdminSession
from pyromq.protocol.names import OFFSET_MOVED_TOPIC, RETRY_TOPIC_PREFIX
from pyromq.protocol.wire.bodies import MessageQueue


@dataclass(frozen=True, slots=True)
class Undone:
    """The lag of a group in one topic."""

    group: str
    topic: str
    total: int
    #: The largest lag in one queue.
    single_queue: int
    #: The largest time between the last message of a queue and the last one consumed.
    delay_ms: int


@dataclass(frozen=True, slots=True)
class OffsetMoved:
    """A broker's report about messages that a consumer asked for after they were deleted."""

    timestamp: int
    broker_name: str
    #: JSON, as the broker wrote it.
    event: str


@dataclass(frozen=True, slots=True)
class MonitorRound:
    """The findings of one round."""

    undone: tuple[Undone, ...]
    #: States of the groups that are online.
    groups: tuple[GroupStatus, ...]
    moved: tuple[OffsetMoved, ...]
    #: Problems by group that could not be examined.
    failures: dict[str, str]


class Monitor:
    """Examines a cluster round by round."""

    def __init__(self, session: AdminSession) -> None:
        self._session = session
        self._groups = Groups(session)
        self._reader = QueueReader(session)
        #: The offset of the next event in each queue.
        self._next_event: dict[MessageQueue, int] = {}

    async def examine(self) -> MonitorRound:
        """Examine all groups once."""
        undone: list[Undone] = []
        states: list[GroupStatus] = []
        failures: dict[str, str] = {}
        for topic in sorted(await self._session.topic_names()):
            if not topic.startswith(RETRY_TOPIC_PREFIX):
                continue
            group = topic.removeprefix(RETRY_TOPIC_PREFIX)
            try:
                states.append(await self._groups.status(group))
                undone += await self._undone(group)
            except NotFoundError:
                continue  # offline, or it has not consumed anything
            except AdminError as error:
                failures[group] = str(error)
        return MonitorRound(tuple(undone), tuple(states), tuple(await self._moved()), failures)

    async def _undone(self, group: str) -> list[Undone]:
        progress = await self._groups.progress(group)
        by_topic: dict[str, list[QueueProgress]] = {}
        for each in progress.queues:
            by_topic.setdefault(each.queue.topic, []).append(each)
        return [
            Undone(
                group,
                topic,
                sum(max(0, each.diff) for each in queues),
                max(0, *(each.diff for each in queues)),
                max([await self._delay(each) for each in queues], default=0),
            )
            for topic, queues in by_topic.items()
        ]

    async def _delay(self, each: QueueProgress) -> int:
        """Return the milliseconds between the last message of a queue and the last consumed."""
        if each.last_timestamp <= 0:
            return 0
        try:
            masters = await self._session.masters_of_topic(each.queue.topic)
            address = masters[each.queue.broker_name]
            end = await self._reader.max_offset(address, each.queue)
            if end <= 0:
                return 0
            pulled = await self._reader.pull(address, each.queue, end - 1, 1)
        except (AdminError, KeyError):
            return 0
        if not pulled.messages:
            return 0
        return max(0, pulled.messages[0].store_timestamp - each.last_timestamp)

    async def _moved(self) -> list[OffsetMoved]:
        """Return the events since the last round; the first one only notes where they end."""
        try:
            masters = await self._session.masters_of_topic(OFFSET_MOVED_TOPIC)
        except UnknownTopicError:
            return []
        found = []
        for name, address in masters.items():
            queue = MessageQueue(OFFSET_MOVED_TOPIC, name, 0)
            end = await self._reader.max_offset(address, queue)
            begin = self._next_event.setdefault(queue, end)
            async for pulled in self._reader.batches(address, queue, begin, end):
                found += [
                    OffsetMoved(
                        each.store_timestamp, name, each.body.decode(errors="replace").strip()
                    )
                    for each in pulled.messages
                ]
            self._next_event[queue] = end
        return found
