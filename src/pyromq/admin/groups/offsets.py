"""Offsets of groups: read, set exactly, move to a time or to the end, and copy.

Each change returns what it changed, queue by queue; with `dry_run` the same without changing it.

A member of an online group keeps its position itself and commits it every few seconds, so an offset
that only the broker knows would be overwritten. A move to a time is therefore handed to the members
(INVOKE_BROKER_TO_RESET_OFFSET), and committed by them. Other changes, and moves of offline groups,
are written to the brokers (UPDATE_CONSUMER_OFFSET), and refused while the group is online unless
the caller insists. Runs on the event loop of the `Admin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyromq.admin.errors import (
    AdminError,
    RefusedError,
    UnknownBrokerError,
    UnreachableError,
    refusal,
)
from pyromq.admin.groups.connections import Connections
from pyromq.admin.groups.groups import unknown_group
from pyromq.admin.queue_reader import QueueReader
from pyromq.admin.session import AdminSession, Area, read_body
from pyromq.protocol.java.wire_types import Int32, Int64
from pyromq.protocol.names import group_fault
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.bodies_admin import (
    ConsumeStats,
    ResetOffsetBody,
    TopicOffset,
    TopicStatsTable,
)
from pyromq.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.header_codec import Header, header_class
from pyromq.protocol.wire.headers import UpdateConsumerOffsetRequestHeader
from pyromq.protocol.wire.headers_admin import (
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    ResetOffsetRequestHeader,
)
from pyromq.remoting.errors import RemotingError

#: In the remark of a broker of 5.x about a reset that no member has taken up yet.
_PENDING_RESET: Final = "previously reset"
#: The time that means the end of each queue.
END: Final = -1


@dataclass(frozen=True, slots=True)
class QueueOffset:
    """The offset of a group in a queue, and the range of the queue."""

    queue: MessageQueue
    #: None if the group has no offset in the queue.
    offset: int | None
    min_offset: int
    #: The offset that the next message will get.
    max_offset: int


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """A change of a group's offset in one queue."""

    queue: MessageQueue
    #: None if the group had no offset in the queue.
    before: int | None
    after: int
    min_offset: int
    max_offset: int
    #: The offset that was asked for, or that the time stands for. `after` differs from it if the
    #: group would have gone forward without `force`.
    wanted: int

    @property
    def skipped(self) -> int:
        """Return how many messages the group will not consume; negative: consume again."""
        return self.after - (self.min_offset if self.before is None else self.before)


@dataclass(frozen=True, slots=True)
class OffsetChanges:
    """The outcome of a change, or with `dry_run` what it would be."""

    group: str
    topic: str
    changes: tuple[OffsetChange, ...]
    #: Whether brokers moved the members of the group; otherwise offsets were written to brokers.
    #: Brokers of 5.x move groups without members, too.
    online: bool
    dry_run: bool


class OnlineGroupError(AdminError):
    """A group is online: its members would overwrite the offsets."""

    def __init__(self, group: str, members: int) -> None:
        super().__init__(
            f"group {group!r} has {members} connected member{'s' if members > 1 else ''}, which "
            "would overwrite these offsets: stop them first, or reset the group by time"
        )
        self.group = group


class Offsets(Area):
    """Offsets of consumer groups."""

    def __init__(self, session: AdminSession) -> None:
        super().__init__(session)
        self._connections = Connections(session)
        self._reader = QueueReader(session)

    async def committed(self, group: str, topic: str) -> list[QueueOffset]:
        """Return a group's offset in each queue of a topic."""
        return [each for broker in await self._brokers(group, topic) for each in broker.queues]

    async def reset_to_time(
        self,
        group: str,
        topic: str,
        timestamp: int,
        *,
        force: bool = True,
        dry_run: bool = False,
        for_cpp: bool = False,
    ) -> OffsetChanges:
        """Move a group to a time (ms since the epoch), or with `END` to the end of each queue.

        Members that are online move by themselves, within seconds. Without `force` a queue is only
        ever moved back. `for_cpp` is for groups of C++ clients, which get the offsets as a list.
        """
        if (fault := group_fault(group)) is not None:
            raise AdminError(fault)
        planned = []
        for broker in await self._brokers(group, topic):
            for each in broker.queues:
                wanted = await self._offset_at(broker.address, each.queue, timestamp)
                planned.append((broker.address, _moved(each, wanted, force=force)))
        online = await self._connections.find_consumers(group) is not None
        if not dry_run:
            try:
                reset = await self._reset_members(group, topic, timestamp, force, for_cpp)
            except RefusedError:
                # Brokers of 4.9 also refuse if an offline group has no offset in a queue.
                if online:
                    raise
                reset = None
            online = reset is not None
            if reset is None:
                await self._write(group, planned)
            else:
                planned = [(address, _with_answer(change, reset)) for address, change in planned]
        return _outcome(group, topic, planned, online=online, dry_run=dry_run)

    async def skip(
        self, group: str, topic: str, *, force: bool = True, dry_run: bool = False
    ) -> OffsetChanges:
        """Move a group to the end of each queue: it will not consume what has accumulated."""
        return await self.reset_to_time(group, topic, END, force=force, dry_run=dry_run)

    async def set_exact(
        self,
        group: str,
        topic: str,
        offsets: Mapping[tuple[str, int], int],
        *,
        even_if_online: bool = False,
        dry_run: bool = False,
    ) -> OffsetChanges:
        """Set exact offsets, by broker name and queue id.

        An offset must be within the range of its queue. Raises OnlineGroupError if the group has
        connected members, unless `even_if_online`.
        """
        if (fault := group_fault(group)) is not None:
            raise AdminError(fault)
        brokers = await self._brokers(group, topic)
        queues = {
            (each.queue.broker_name, each.queue.queue_id): (broker.address, each)
            for broker in brokers
            for each in broker.queues
        }
        planned = []
        for (broker_name, queue_id), offset in sorted(offsets.items()):
            if not any(broker.name == broker_name for broker in brokers):
                raise UnknownBrokerError(broker_name, [broker.name for broker in brokers])
            if (broker_name, queue_id) not in queues:
                raise AdminError(
                    f"topic {topic!r} has no queue {queue_id} at {broker_name}: it has "
                    f"{sum(name == broker_name for name, _ in queues)} queues there"
                )
            address, each = queues[broker_name, queue_id]
            if not each.min_offset <= offset <= each.max_offset:
                raise AdminError(
                    f"offset {offset} is outside of queue {queue_id} at {broker_name}: use "
                    f"{each.min_offset} to {each.max_offset}"
                )
            planned.append((address, _moved(each, offset, force=True)))
        await self._check_offline(group, even_if_online=even_if_online or dry_run)
        if not dry_run:
            await self._write(group, planned)
        return _outcome(group, topic, planned, online=False, dry_run=dry_run)

    async def clone(
        self,
        source: str,
        target: str,
        topic: str,
        *,
        even_if_online: bool = False,
        dry_run: bool = False,
    ) -> OffsetChanges:
        """Give a group the offsets of another one in a topic.

        Raises UnknownGroupError if the source has none, and OnlineGroupError if the target has
        connected members, unless `even_if_online`.
        """
        if (fault := group_fault(target)) is not None:
            raise AdminError(fault)
        sources = {each.queue: each.offset for each in await self.committed(source, topic)}
        if all(offset is None for offset in sources.values()):
            problem = f"has not consumed topic {topic!r}"
            raise await unknown_group(self._session, source, problem)
        planned = [
            (broker.address, _moved(each, offset, force=True))
            for broker in await self._brokers(target, topic)
            for each in broker.queues
            if (offset := sources.get(each.queue)) is not None
        ]
        await self._check_offline(target, even_if_online=even_if_online or dry_run)
        if not dry_run:
            await self._write(target, planned)
        return _outcome(target, topic, planned, online=False, dry_run=dry_run)

    # Helpers, in call order

    async def _brokers(self, group: str, topic: str) -> list[_Broker]:
        """Return the queues of a topic at each broker, with a group's offsets."""
        masters = await self._session.masters_of_topic(topic)

        async def ask(address: str) -> tuple[ConsumeStats, TopicStatsTable]:
            # Of all topics: a broker asked for one reports 0 if the group has not consumed it.
            stats = await self._session.fetch(
                ConsumeStats,
                address,
                RequestCode.GET_CONSUME_STATS,
                GetConsumeStatsRequestHeader(group),
            )
            table = await self._session.fetch(
                TopicStatsTable,
                address,
                RequestCode.GET_TOPIC_STATS_INFO,
                GetTopicStatsInfoRequestHeader(topic),
            )
            return stats, table

        answers = await self._session.on_each(
            f"reading the offsets of topic {topic!r}", masters.values(), ask
        )
        return [
            _broker(name, address, topic, *answers[address]) for name, address in masters.items()
        ]

    async def _offset_at(self, address: str, queue: MessageQueue, timestamp: int) -> int:
        if timestamp == END:
            return await self._reader.max_offset(address, queue)
        return max(0, await self._reader.offset_by_time(address, queue, timestamp))

    async def _reset_members(
        self, group: str, topic: str, timestamp: int, force: bool, for_cpp: bool
    ) -> dict[MessageQueue, int] | None:
        """Tell the members to move; return the offsets, or None if no member is connected."""
        header = ResetOffsetRequestHeader(topic, group, timestamp, force)
        found: dict[MessageQueue, int] = {}
        for address in (await self._session.masters_of_topic(topic)).values():
            answer = await self._ask_reset(address, header, for_cpp=for_cpp)
            if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return None
            found |= read_body(ResetOffsetBody, address, answer).offset_table
        return found

    async def _ask_reset(
        self, address: str, header: ResetOffsetRequestHeader, *, for_cpp: bool
    ) -> RemotingCommand:
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        not_online = ResponseCode.CONSUMER_NOT_ONLINE
        if not for_cpp:
            return await self._session.ask(address, code, header, accept=(not_online,))
        # The broker chooses the form of the offsets by the language of the request.
        request = RemotingCommand(code, ext_fields=header.encode(), language=LanguageCode.CPP)
        seconds = self._session.settings.request_timeout
        try:
            answer = await self._session.client.remoting.request(address, request, seconds)
        except RemotingError as error:
            raise UnreachableError(address, error) from error
        if answer.code not in (ResponseCode.SUCCESS, not_online):
            raise refusal(address, answer.code, answer.remark)
        return answer

    async def _check_offline(self, group: str, *, even_if_online: bool) -> None:
        if even_if_online:
            return
        found = await self._connections.find_consumers(group)
        if found is not None:
            raise OnlineGroupError(group, len(found.clients))

    async def _write(self, group: str, planned: list[tuple[str, OffsetChange]]) -> None:
        """Write offsets to the brokers, in order: a failure says how far it came."""
        for number, (address, change) in enumerate(planned):
            if change.after == change.before:
                continue
            queue = change.queue
            header = UpdateConsumerOffsetRequestHeader(
                group, queue.topic, queue.queue_id, change.after
            )
            try:
                answer = await self._session.ask(
                    address, RequestCode.UPDATE_CONSUMER_OFFSET, header
                )
                if _PENDING_RESET in (answer.remark or ""):
                    # A broker of 5.x ignores an offset while a reset waits for a member.
                    exactly = _ExactReset(
                        queue.topic, group, queue.queue_id, change.after, END, is_force=True
                    )
                    await self._session.ask(
                        address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, exactly
                    )
            except AdminError as error:
                raise AdminError(
                    f"offset of queue {queue.queue_id} at {queue.broker_name} not set, "
                    f"{number} of {len(planned)} queues are done: {error}"
                ) from error


@header_class
class _ExactReset(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET of 5.x; one of 4.9 would ignore the queue and the offset."""

    topic: str
    group: str
    queue_id: Int32
    offset: Int64
    timestamp: Int64
    is_force: bool


@dataclass(frozen=True, slots=True)
class _Broker:
    name: str
    address: str
    queues: list[QueueOffset]


def _broker(
    name: str, address: str, topic: str, stats: ConsumeStats, table: TopicStatsTable
) -> _Broker:
    offsets = {
        queue: each.consumer_offset
        for queue, each in stats.offset_table.items()
        if queue.topic == topic
    }
    return _Broker(
        name,
        address,
        [
            _queue_offset(queue, offsets.get(queue), bounds)
            for queue, bounds in sorted(table.offset_table.items())
        ],
    )


def _queue_offset(queue: MessageQueue, offset: int | None, bounds: TopicOffset) -> QueueOffset:
    return QueueOffset(
        queue,
        None if offset is None or offset < 0 else offset,
        bounds.min_offset,
        bounds.max_offset,
    )


def _moved(each: QueueOffset, wanted: int, *, force: bool) -> OffsetChange:
    """Return the change to an offset; without `force` only ever back."""
    # A group that has not consumed counts as one at the first message, as in Java.
    reached = each.min_offset if each.offset is None else each.offset
    return OffsetChange(
        each.queue,
        each.offset,
        wanted if force or wanted <= reached else reached,
        each.min_offset,
        each.max_offset,
        wanted,
    )


def _with_answer(change: OffsetChange, offsets: Mapping[MessageQueue, int]) -> OffsetChange:
    after = offsets.get(change.queue)
    if after is None:
        return change
    return OffsetChange(
        change.queue, change.before, after, change.min_offset, change.max_offset, change.wanted
    )


def _outcome(
    group: str,
    topic: str,
    planned: list[tuple[str, OffsetChange]],
    *,
    online: bool,
    dry_run: bool,
) -> OffsetChanges:
    changes = tuple(change for _, change in planned)
    return OffsetChanges(group, topic, changes, online, dry_run)
