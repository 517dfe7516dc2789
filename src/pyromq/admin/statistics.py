"""Statistics: message counts and rates of topics and groups, and lags of a broker's groups.

The figures are the brokers' own. Runs on the event loop of the `Admin`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from pyromq.admin.errors import AdminError, NotFoundError, RefusedError
from pyromq.admin.session import Area, Progress, masters_of
from pyromq.admin.topics import Topics
from pyromq.protocol.names import DEAD_LETTER_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, retry_topic
from pyromq.protocol.wire.bodies import MASTER_ID, MessageQueue
from pyromq.protocol.wire.bodies_admin import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeStats,
    ConsumeStatsList,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.headers_admin import (
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)

#: Statistics of RocketMQ's brokers, by the topic.
TOPIC_PUT_COUNT: Final = "TOPIC_PUT_NUMS"
#: By `topic@group`.
GROUP_GET_COUNT: Final = "GROUP_GET_NUMS"
#: Brokers count the lags of all groups for this request.
_ALL_GROUPS_SECONDS: Final = 50.0


@dataclass(frozen=True, slots=True)
class Period:
    """A statistic over one period: the sum, the rate per second, the average per call."""

    sum: int
    tps: float
    average: float


@dataclass(frozen=True, slots=True)
class Statistic:
    """A statistic over the last minute, hour and day."""

    minute: Period
    hour: Period
    day: Period

    @property
    def last_day(self) -> int:
        """Return the sum of the longest period that has been counted yet."""
        return self.day.sum or self.hour.sum or self.minute.sum


@dataclass(frozen=True, slots=True)
class TopicStatistics:
    """Messages of a topic and, if it has one, of a group that consumes it."""

    topic: str
    #: None if no group consumes the topic.
    group: str | None
    #: Messages that the group has not consumed.
    lag: int
    #: Messages per second, over the last minute.
    in_tps: float
    out_tps: float | None
    #: Messages of the last day.
    in_last_day: int
    out_last_day: int | None


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a group is behind in one queue."""

    group: str
    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    #: When the last consumed message was stored, in milliseconds since the epoch.
    last_consumed: int

    @property
    def lag(self) -> int:
        """Return the number of messages that the group has not consumed; negative if it reset."""
        return self.broker_offset - self.consumer_offset


@dataclass(frozen=True, slots=True)
class BrokerLags:
    """The lags of all groups at one broker."""

    broker: str
    queues: tuple[QueueLag, ...]
    total: int


class Statistics(Area):
    """Statistics of brokers, topics and groups."""

    async def view(self, broker: str, name: str, key: str) -> Statistic:
        """Return one statistic of the broker at an address, such as TOPIC_PUT_NUMS of a topic.

        Raises NotFoundError if the broker has not counted it.
        """
        header = ViewBrokerStatsDataRequestHeader(name, key)
        try:
            data = await self._session.fetch(
                BrokerStatsData, broker, RequestCode.VIEW_BROKER_STATS_DATA, header
            )
        except RefusedError as error:
            if error.code == ResponseCode.SYSTEM_ERROR and "not exist" in error.remark:
                raise NotFoundError(f"{broker} has no statistic {name} of {key!r}") from error
            raise
        return Statistic(*map(_period, (data.stats_minute, data.stats_hour, data.stats_day)))

    async def topics(
        self,
        topic: str | None = None,
        *,
        active_only: bool = False,
        on_progress: Progress | None = None,
    ) -> list[TopicStatistics]:
        """Return the statistics of one topic or of all, with a row for each group.

        `active_only` leaves out those without messages during the last day. Topics of retries and
        dead letters are left out.
        """
        names = await self._session.topic_names()
        if topic is not None:
            if topic not in names:
                raise await self._session.unknown_topic(topic)
            names = {topic}

        async def look(name: str) -> list[TopicStatistics]:
            try:
                return await self._topic(name)
            except AdminError:
                if topic is not None:
                    raise
                return []  # its brokers are down

        prefixes = (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX)
        wanted = sorted(name for name in names if not name.startswith(prefixes))
        found = await self._session.for_all(wanted, look, on_progress)
        return [
            row
            for rows in found
            for row in rows
            if not active_only or row.in_last_day or row.out_last_day
        ]

    async def broker_lags(
        self, broker: str, *, order: bool = False, request_timeout: float = _ALL_GROUPS_SECONDS
    ) -> BrokerLags:
        """Return the lags of all groups at the broker at an address.

        `order` reads only topics with an order configuration.
        """
        stats = await self._session.fetch(
            ConsumeStatsList,
            broker,
            RequestCode.GET_BROKER_CONSUME_STATS,
            GetConsumeStatsInBrokerHeader(order),
            request_timeout=request_timeout,
        )
        queues = tuple(
            QueueLag(group, queue, each.broker_offset, each.consumer_offset, each.last_timestamp)
            for by_group in stats.consume_stats_list
            for group, tables in sorted(by_group.items())
            for table in tables
            for queue, each in sorted(table.offset_table.items())
        )
        return BrokerLags(broker, queues, stats.total_diff)

    # Helpers, in call order

    async def _topic(self, topic: str) -> list[TopicStatistics]:
        route = await self._session.route(topic)
        masters = [
            each.broker_addrs[MASTER_ID]
            for each in route.broker_datas
            if MASTER_ID in each.broker_addrs
        ]
        in_tps, incoming = await self._sum(masters, TOPIC_PUT_COUNT, topic)
        groups = await Topics(self._session).groups_at(topic, masters_of(route).values())
        if not groups:
            return [TopicStatistics(topic, None, 0, in_tps, None, incoming, None)]
        rows = []
        for group in groups:
            out_tps, outgoing = await self._sum(masters, GROUP_GET_COUNT, f"{topic}@{group}")
            lag = await self._lag(topic, group)
            rows.append(TopicStatistics(topic, group, lag, in_tps, out_tps, incoming, outgoing))
        return rows

    async def _sum(self, masters: list[str], name: str, key: str) -> tuple[float, int]:
        """Return rate and count over all masters; those without the statistic count as 0."""
        outcomes = await asyncio.gather(
            *(self.view(address, name, key) for address in masters), return_exceptions=True
        )
        found = [each for each in outcomes if isinstance(each, Statistic)]
        return sum(each.minute.tps for each in found), sum(each.last_day for each in found)

    async def _lag(self, topic: str, group: str) -> int:
        """Return a group's lag in a topic; 0 if it is not known, as mqadmin prints it."""
        try:
            masters = await self._session.masters_of_topic(retry_topic(group))
            header = GetConsumeStatsRequestHeader(group, topic)
            tables = await self._session.on_each(
                f"reading the offsets of group {group!r}",
                masters.values(),
                lambda address: self._session.fetch(
                    ConsumeStats, address, RequestCode.GET_CONSUME_STATS, header
                ),
            )
        except AdminError:
            return 0
        total = sum(
            each.broker_offset - each.consumer_offset
            for table in tables.values()
            for each in table.offset_table.values()
        )
        return max(0, total)


def _period(item: BrokerStatsItem) -> Period:
    return Period(item.sum, item.tps, item.avgpt)
