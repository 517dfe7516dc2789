"""What consumer groups want of topics by SQL92 expressions, registered by their heartbeats.

`config/consumerFilter.json` holds the table as RocketMQ's ConsumerFilterManager writes it. A
group's filter lives on for `filterDataCleanTimeSpan` after its last member has left: bit maps
of messages (`bit_map`, called by the store's consume-queue extension) go on counting it, so
that what is stored meanwhile need not be read when it comes back.

Invariants
1. A filter's bits are in the bit map of every message that was stored after `born_time` with
   a bit map at all, if the message is wanted. A changed expression is born anew.
2. A heartbeat with an older version of the subscription changes nothing; one with a newer
   version and an expression that cannot be compiled removes the filter, so that its pulls
   are refused (FILTER_DATA_NOT_EXIST).
3. What a file holds is of groups that have gone: they come back with a heartbeat.

All methods are called on the event loop; none of them waits for the disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyromq.broker.config import BrokerConfig
from pyromq.broker.state.persistence import TableFile
from pyromq.protocol.bodies import Body, SubscriptionData
from pyromq.protocol.filter.bloom import BloomFilter, BloomFilterData
from pyromq.protocol.filter.by_properties import KnownBits, PropertyFilter
from pyromq.protocol.filter.sql import (
    SQL92_EXPRESSION_TYPE,
    SqlError,
    SqlExpression,
    compile_sql,
)
from pyromq.protocol.filter.tags import is_tag_type
from pyromq.protocol.wire_types import Int32, Int64

logger = logging.getLogger(__name__)

#: A group that is loaded counts as gone for so long, in milliseconds, or since it came.
_GONE_BEFORE_START: Final = 30_000


def compile_expression(expression_type: str, text: str | None) -> SqlExpression:
    """The expression of a subscription that is not by tags. Raises SqlError."""
    if expression_type != SQL92_EXPRESSION_TYPE:
        raise SqlError(f"{expression_type!r:.40} is no type of expression: TAG and SQL92 are")
    if not text:
        raise SqlError("the expression is empty")
    return compile_sql(text)


@dataclass(slots=True)
class ConsumerFilter:
    """What one group wants of one topic."""

    group: str
    topic: str
    text: str
    expression_type: str
    client_version: int
    #: Milliseconds; dead since then, if that is not before its birth.
    born_time: int
    dead_time: int
    bits: BloomFilterData
    #: None when the expression, which a file had, cannot be compiled here.
    message_filter: PropertyFilter | None

    @property
    def is_dead(self) -> bool:
        """Whether the group has no members, or does not subscribe to the topic any more."""
        return self.dead_time >= self.born_time


class ConsumerFilterTable:
    """Filters by topic and group; persisted as `consumerFilter.json`."""

    def __init__(
        self,
        config: BrokerConfig,
        directory: Path,
        *,
        now: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._config = config
        self._now = now
        self._bloom = BloomFilter(
            config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
        )
        self._filters: dict[str, dict[str, ConsumerFilter]] = {}
        self._topics_of: dict[str, set[str]] = {}
        self.file = TableFile(directory / "consumerFilter.json", self.snapshot)

    def load(self) -> None:
        """Take the filters of the file. Raises PersistenceError."""
        loaded = self.file.load(ConsumerFilterManagerBody.decode)
        if loaded is None:
            return
        filters = [
            data
            for by_group in loaded.filter_data_by_topic.values()
            for data in by_group.group_filter_data.values()
        ]
        if not all(self._bloom.is_valid(data.bits()) for data in filters):
            logger.warning(
                "%s is of another bloom filter than maxErrorRateOfBloomFilter and "
                "expectConsumerNumUseFilter make: dropped, consumers register again",
                self.file.path,
            )
            return
        for data in filters:
            self._add(self._revived(data))

    def find(self, topic: str, group: str) -> ConsumerFilter | None:
        """The filter that a group has for a topic."""
        by_group = self._filters.get(topic)
        return None if by_group is None else by_group.get(group)

    def message_filter(self, topic: str, group: str) -> PropertyFilter | None:
        """How a group's messages of a topic are filtered; None when it takes all."""
        found = self.find(topic, group)
        return None if found is None else found.message_filter

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Note what a heartbeat of a group's member says; what it does not say is dead."""
        topics = set()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            if not is_tag_type(subscription.expression_type) and subscription.sub_string:
                self._register(group, subscription)
        for topic in self._topics_of.get(group, set()) - topics:
            self._die(self._filters[topic][group])

    def unregister(self, group: str) -> None:
        """The last member of a group has gone."""
        for topic in self._topics_of.get(group, ()):
            self._die(self._filters[topic][group])

    def bit_map(self, topic: str, properties: dict[str, str]) -> bytes | None:
        """The bits of all who want a message; None when nobody filters its topic."""
        by_group = self._filters.get(topic)
        if by_group is None:
            return None
        bit_map = self._bloom.empty_map()
        for consumer in by_group.values():
            wanted = consumer.message_filter
            if wanted is None or wanted.expression.matches(properties):
                self._bloom.add(consumer.bits.positions, bit_map)
        return bytes(bit_map)

    def clean(self) -> None:
        """Forget the filters of those who are gone too long."""
        deadline = self._now() - self._config.filter_data_clean_time_span
        for by_group in list(self._filters.values()):
            for consumer in list(by_group.values()):
                if consumer.is_dead and consumer.dead_time <= deadline:
                    logger.info("filter of a group that is gone: %s dropped", _name(consumer))
                    self._remove(consumer)
                    self.file.save_soon()

    def snapshot(self) -> ConsumerFilterManagerBody:
        """The table as it is now, for its file."""
        return ConsumerFilterManagerBody(
            {
                topic: FilterDataMapByTopic(
                    {group: ConsumerFilterData.of(data) for group, data in by_group.items()}, topic
                )
                for topic, by_group in self._filters.items()
            }
        )

    def _register(self, group: str, subscription: SubscriptionData) -> None:
        known = self.find(subscription.topic, group)
        version = subscription.sub_version
        if known is None:
            self._replace(group, subscription)
            return
        is_same = (
            known.text == subscription.sub_string
            and known.expression_type == subscription.expression_type
        )
        if version > known.client_version and not is_same:
            # New first: an expression that cannot be compiled leaves the group without any.
            self._remove(known)
            self._replace(group, subscription)
            self.file.save_soon()
            return
        if not is_same:
            logger.info(
                "filter of %s: version %d is not newer than %d, ignored: %.200r",
                _name(known),
                version,
                known.client_version,
                subscription.sub_string,
            )
        if version >= known.client_version and (known.is_dead or version > known.client_version):
            known.client_version = version
            known.dead_time = 0
            self.file.save_soon()

    def _replace(self, group: str, subscription: SubscriptionData) -> None:
        topic, text = subscription.topic, subscription.sub_string
        try:
            expression = compile_expression(subscription.expression_type, text)
        except SqlError as error:
            logger.warning("filter of group %s for topic %s refused: %s", group, topic, error)
            return
        born_time = self._now()
        bits = self._bits(topic, group)
        consumer = ConsumerFilter(
            group,
            topic,
            text,
            subscription.expression_type,
            subscription.sub_version,
            born_time,
            0,
            bits,
            PropertyFilter(expression, KnownBits(self._bloom, bits, born_time)),
        )
        self._add(consumer)
        logger.info("filter of %s: %.200r", _name(consumer), text)
        self.file.save_soon()

    def _bits(self, topic: str, group: str) -> BloomFilterData:
        return self._bloom.generate(f"{group}#{topic}")

    def _revived(self, data: ConsumerFilterData) -> ConsumerFilter:
        """A filter out of the file: its group has gone, and may come back."""
        dead_time = data.dead_time or max(self._now() - _GONE_BEFORE_START, data.born_time)
        message_filter = None
        try:
            expression = compile_expression(data.expression_type, data.expression)
        except SqlError as error:
            logger.warning(
                "%s: filter of group %s for topic %s cannot be used: %s",
                self.file.path,
                data.consumer_group,
                data.topic,
                error,
            )
        else:
            known = KnownBits(self._bloom, data.bits(), data.born_time)
            message_filter = PropertyFilter(expression, known)
        return ConsumerFilter(
            data.consumer_group,
            data.topic,
            data.expression,
            data.expression_type,
            data.client_version,
            data.born_time,
            dead_time,
            data.bits(),
            message_filter,
        )

    def _die(self, consumer: ConsumerFilter) -> None:
        if not consumer.is_dead:
            consumer.dead_time = self._now()
            self.file.save_soon()

    def _add(self, consumer: ConsumerFilter) -> None:
        self._filters.setdefault(consumer.topic, {})[consumer.group] = consumer
        self._topics_of.setdefault(consumer.group, set()).add(consumer.topic)

    def _remove(self, consumer: ConsumerFilter) -> None:
        by_group = self._filters[consumer.topic]
        del by_group[consumer.group]
        if not by_group:
            del self._filters[consumer.topic]
        topics = self._topics_of[consumer.group]
        topics.discard(consumer.topic)
        if not topics:
            del self._topics_of[consumer.group]


def _name(consumer: ConsumerFilter) -> str:
    return f"group {consumer.group} for topic {consumer.topic}"


# The file


@dataclass(slots=True)
class BloomFilterDataBody(Body):
    """The bits of one group and topic."""

    bit_pos: list[Int32] = field(default_factory=list)
    bit_num: Int32 = 0


@dataclass(slots=True)
class ConsumerFilterData(Body):
    """One filter."""

    consumer_group: str
    topic: str
    expression: str
    expression_type: str
    born_time: Int64 = 0
    dead_time: Int64 = 0
    client_version: Int64 = 0
    #: Java writes it, and does not read it.
    dead: bool = False
    bloom_filter_data: BloomFilterDataBody = field(default_factory=BloomFilterDataBody)

    @classmethod
    def of(cls, consumer: ConsumerFilter) -> ConsumerFilterData:
        """What the file says of a filter."""
        return cls(
            consumer.group,
            consumer.topic,
            consumer.text,
            consumer.expression_type,
            consumer.born_time,
            consumer.dead_time,
            consumer.client_version,
            consumer.is_dead,
            BloomFilterDataBody(list(consumer.bits.positions), consumer.bits.bit_count),
        )

    def bits(self) -> BloomFilterData:
        """The bits as the bloom filter knows them."""
        data = self.bloom_filter_data
        return BloomFilterData(tuple(data.bit_pos), data.bit_num)


@dataclass(slots=True)
class FilterDataMapByTopic(Body):
    """All filters of one topic."""

    group_filter_data: dict[str, ConsumerFilterData] = field(default_factory=dict)
    topic: str | None = None


@dataclass(slots=True)
class ConsumerFilterManagerBody(Body):
    """The content of config/consumerFilter.json."""

    filter_data_by_topic: dict[str, FilterDataMapByTopic] = field(default_factory=dict)
