"""Progress of groups and ages of messages, for the consoles.

GET_CONSUME_STATS, GET_BROKER_CONSUME_STATS, QUERY_CONSUME_TIME_SPAN and GET_TOPIC_STATS_INFO.
Tables and consume queues are read on the loop, a few dozen queues per iteration. The admin lane
reads store timestamps, whose records may be on disk, and encodes the responses.

Different from RocketMQ: the delay of a group that has read nothing of a queue is the age of the
queue's oldest message, not the time since 1970.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from pyromq.acl import classification as access
from pyromq.broker.parts import BrokerParts
from pyromq.broker.routes import Route, Routes
from pyromq.broker.services.flow_control import Admission
from pyromq.broker.state.connections import ClientConnection
from pyromq.protocol.java.wire_types import INT64
from pyromq.protocol.wire.bodies import Body, MessageQueue, TopicConfig
from pyromq.protocol.wire.bodies_admin import (
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    TopicOffset,
    TopicStatsTable,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.headers_admin import (
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
)

#: Queues per loop iteration.
_MAX_QUEUES_PER_ITERATION: Final = 64


class _Read(NamedTuple):
    """A queue as a group has read it; `last_read` is the physical offset of that message."""

    queue: MessageQueue
    end: int
    reached: int
    last_read: int | None


class _TopicRead(NamedTuple):
    """A topic as a group has read it."""

    group: str
    queues: list[_Read]
    tps: float


class ConsumeStatsHandlers:
    """Reports the progress of groups."""

    def __init__(self, parts: BrokerParts) -> None:
        self._config = parts.config
        self._store = parts.store
        self._topics = parts.tables.topics
        self._groups = parts.tables.groups
        self._consumers = parts.tables.consumers
        self._offsets = parts.tables.offsets
        self._stats = parts.stats
        self._lane = parts.lanes.admin
        self._broker_address = parts.address
        self._now = parts.clock
        self._steps = 0
        self._scans = Admission()

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(
                RequestCode.GET_CONSUME_STATS,
                access.ADMIN,
                self._scans.of(self.consume_stats),
                is_query=True,
            ),
            Route(
                RequestCode.GET_BROKER_CONSUME_STATS,
                access.ADMIN,
                self._scans.of(self.broker_consume_stats),
                is_query=True,
            ),
            Route(
                RequestCode.QUERY_CONSUME_TIME_SPAN,
                access.ADMIN,
                self._scans.of(self.consume_time_span),
                is_query=True,
            ),
            Route(
                RequestCode.GET_TOPIC_STATS_INFO,
                access.ADMIN,
                self._scans.of(self.topic_stats),
                is_query=True,
            ),
        )

    async def consume_stats(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_CONSUME_STATS: return the progress of a group in one topic, or in all its topics."""
        header = GetConsumeStatsRequestHeader.decode(request.ext_fields)
        topic = (header.topic or "").strip()
        topics = [topic] if topic else sorted(self._offsets.topics_of(header.consumer_group))
        await self._stats.count()
        read = [
            part
            for each in topics
            if (config := self._topics.get(each)) is not None
            and (part := await self._read(header.consumer_group, config, config.read_queue_nums))
        ]

        def answer() -> Body:
            whole = ConsumeStats()
            for part in read:
                one = self._with_times(part)
                whole.offset_table |= one.offset_table
                whole.consume_tps += one.consume_tps
            return whole

        return await self._encoded(request, answer)

    async def broker_consume_stats(
        self, _: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """GET_BROKER_CONSUME_STATS: return the progress of all groups in all their topics."""
        is_order = GetConsumeStatsInBrokerHeader.decode(request.ext_fields).is_order
        pairs = self._offsets.pairs()
        topics_of = await self._lane.run(lambda: _by_group(pairs))
        await self._stats.count()
        groups = list(self._groups.snapshot().subscription_group_table)
        read: list[_TopicRead] = []
        for group in groups:
            for topic in topics_of.get(group, ()):
                config = self._topics.get(topic)
                if config is None or (is_order and not config.order):
                    continue
                part = await self._read(group, config, config.write_queue_nums)
                if part is not None:
                    read.append(part)

        def answer() -> Body:
            found: dict[str, list[ConsumeStats]] = {group: [] for group in groups}
            for part in read:
                found[part.group].append(self._with_times(part))
            total = sum(each.total_diff() for stats in found.values() for each in stats)
            by_group = [{group: stats} for group, stats in found.items()]
            return ConsumeStatsList(by_group, self._broker_address, min(total, INT64.high))

        return await self._encoded(request, answer)

    async def consume_time_span(
        self, _: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """QUERY_CONSUME_TIME_SPAN: return the age of the messages that a group reads of a topic."""
        header = QueryConsumeTimeSpanRequestHeader.decode(request.ext_fields)
        config = self._known_topic(header.topic)
        places = []
        for queue_id in range(config.write_queue_nums):
            await self._yield_to_loop()
            end = self._store.max_offset(header.topic, queue_id)
            start = self._store.min_offset(header.topic, queue_id) or 0
            reached = self._offsets.query(header.group, header.topic, queue_id) or 0
            offsets = (start, end - 1, reached - 1 if reached else start, max(start, reached))
            places.append([self._place(header.topic, queue_id, offset) for offset in offsets])
        now = self._now()

        def answer() -> Body:
            spans = []
            for queue_id, queue_places in enumerate(places):
                first, last, read, following = map(self._time, queue_places)
                queue = self._queue(header.topic, queue_id)
                delay = now - following if queue_places[3] is not None else 0
                spans.append(QueueTimeSpan(queue, first, last, read, delay))
            return QueryConsumeTimeSpanBody(spans)

        return await self._encoded(request, answer)

    async def topic_stats(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_TOPIC_STATS_INFO: return first and next offset of a topic's queues."""
        topic = GetTopicStatsInfoRequestHeader.decode(request.ext_fields).topic
        config = self._known_topic(topic)
        found = []
        for queue_id in range(config.write_queue_nums):
            await self._yield_to_loop()
            start = self._store.min_offset(topic, queue_id) or 0
            end = self._store.max_offset(topic, queue_id)
            found.append((start, end, self._place(topic, queue_id, end - 1)))

        def answer() -> Body:
            table = {
                self._queue(topic, queue_id): TopicOffset(
                    start, end, self._time(place) if end else 0
                )
                for queue_id, (start, end, place) in enumerate(found)
            }
            return TopicStatsTable(table)

        return await self._encoded(request, answer)

    def _known_topic(self, name: str) -> TopicConfig:
        config = self._topics.get(name)
        if config is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return config

    async def _read(self, group: str, config: TopicConfig, queue_count: int) -> _TopicRead | None:
        """Return what a group has read of a topic; None if it is online and not subscribed."""
        topic = config.topic_name
        members = self._consumers.find(group)
        if members is not None and members.subscriptions and topic not in members.subscriptions:
            return None
        queues = []
        for queue_id in range(queue_count):
            await self._yield_to_loop()
            reached = max(0, self._offsets.query(group, topic, queue_id) or 0)
            queues.append(
                _Read(
                    self._queue(topic, queue_id),
                    self._store.max_offset(topic, queue_id),
                    reached,
                    self._place(topic, queue_id, reached - 1),
                )
            )
        return _TopicRead(group, queues, self._stats.group_get_tps(group, topic))

    async def _yield_to_loop(self) -> None:
        self._steps += 1
        if self._steps % _MAX_QUEUES_PER_ITERATION == 0:
            await asyncio.sleep(0)

    def _place(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the physical offset of a message, or None if it does not exist."""
        queue = self._store.find_queue(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.next_offset:
            return None
        entry = queue.entry(offset)
        return None if entry is None else entry.physical_offset

    # On the lane

    def _with_times(self, part: _TopicRead) -> ConsumeStats:
        return ConsumeStats(
            {
                read.queue: OffsetWrapper(
                    read.end, read.reached, max(0, self._time(read.last_read))
                )
                for read in part.queues
            },
            part.tps,
        )

    def _time(self, place: int | None) -> int:
        time = None if place is None else self._store.store_time(place)
        return -1 if time is None else time

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._config.broker_name, queue_id)

    async def _encoded(
        self, request: RemotingCommand, answer: Callable[[], Body]
    ) -> RemotingCommand:
        return request.answer(body=await self._lane.run(lambda: answer().encode()))


def _by_group(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the topics in which each group has offsets."""
    topics_of: dict[str, list[str]] = {}
    for topic, group in pairs:
        topics_of.setdefault(group, []).append(topic)
    return topics_of
