"""SQL92 filters of consumer groups, registered by their heartbeats.

`config/consumerFilter.json` holds the table as RocketMQ's ConsumerFilterManager writes it. The
filter of a group outlives its last member by `filterDataCleanTimeSpan`: the bit maps of messages
(`bit_map`, called by the store's consume-queue extension) keep including it, so that messages
stored meanwhile need not be read when the group returns.

Invariants
1. The bits of a filter are in the bit map of every matching message that was stored with a bit map
   after `born_time`. A changed expression gets a new `born_time`.
2. A heartbeat with an older version of the subscription changes nothing. One with a newer version
   and an expression that does not compile removes the filter, so that pulls are refused
   (FILTER_DATA_NOT_EXIST).
3. Groups loaded from the file count as gone until their next heartbeat.
4. An expression is compiled on first use, by a pull or a message, so a heartbeat with thousands of
   them is cheap. An unused filter is dropped with its group.
5. A replica copies the filters of its master, for groups without members here. They count as gone
   since the last copy. A new one gets a `born_time` after every message that was dispatched here
   without its bits.
6. The table holds at most `maxConsumerFilters` with `maxConsumerFilterBytes` of text. A full table
   drops the filters of groups that have left, and refuses new ones.

Called on the loop, except for `message_filter`, which threads that read for pulls call as well.
Nothing here waits for the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from pyromq.base.clock import Clock, now_ms
from pyromq.broker.config import BrokerConfig
from pyromq.broker.state.capacity import Capacity
from pyromq.broker.state.copied_tables import CopyError, is_usable, parsed
from pyromq.broker.state.persistence import TableFile
from pyromq.protocol.filter.bloom import BloomFilter, BloomFilterData
from pyromq.protocol.filter.by_properties import KnownBits, PropertyFilter
from pyromq.protocol.filter.sql import (
    SQL92_EXPRESSION_TYPE,
    SqlError,
    SqlExpression,
    compile_sql,
)
from pyromq.protocol.filter.tags import is_tag_type
from pyromq.protocol.java.wire_types import Int32, Int64
from pyromq.protocol.wire.bodies import Body, SubscriptionData

logger = logging.getLogger(__name__)

#: Groups loaded from the file count as gone for this long (ms), but not before they first joined.
_GONE_BEFORE_START_MS: Final = 30_000
#: How far the clocks of master and replica may differ (ms): messages carry the master's time.
_MAX_CLOCK_DIFFERENCE_MS: Final = 60_000


def compile_expression(expression_type: str, text: str | None) -> SqlExpression:
    """Compile the expression of a subscription that is not by tags. Raises SqlError."""
    if expression_type != SQL92_EXPRESSION_TYPE:
        raise SqlError(f"unknown expression type {expression_type!r:.40}, use TAG or SQL92")
    if not text:
        raise SqlError("the expression is empty")
    return compile_sql(text)


class ConsumerFilter:
    """The filter of one group for one topic."""

    __slots__ = (
        "_bits",
        "_bloom",
        "_compiled",
        "_message_filter",
        "born_time",
        "client_version",
        "dead_time",
        "expression_type",
        "group",
        "is_loaded",
        "text",
        "topic",
    )

    def __init__(
        self,
        bloom: BloomFilter,
        group: str,
        topic: str,
        text: str,
        expression_type: str,
        client_version: int,
        born_time: int,
    ) -> None:
        self._bloom = bloom
        self.group = group
        self.topic = topic
        self.text = text
        self.expression_type = expression_type
        self.client_version = client_version
        #: Milliseconds since the epoch. A `dead_time` before `born_time` means alive.
        self.born_time = born_time
        self.dead_time = 0
        #: Whether it comes from the file: its group has consumed here before.
        self.is_loaded = False
        self._bits: BloomFilterData | None = None
        self._compiled = False
        self._message_filter: PropertyFilter | None = None

    @property
    def is_dead(self) -> bool:
        """Return whether the group has no members, or no longer subscribes to the topic."""
        return self.dead_time >= self.born_time

    @property
    def is_needed(self) -> bool:
        """Return whether a pull or a message has used it, now or before the last start."""
        return self._compiled or self.is_loaded

    @property
    def is_known_as_wrong(self) -> bool:
        """Return whether the expression is known not to compile."""
        return self._compiled and self._message_filter is None

    @property
    def bits(self) -> BloomFilterData:
        """Return the positions of the group in the bit maps of the topic's messages."""
        if self._bits is None:
            self._bits = self._bloom.generate(f"{self.group}#{self.topic}")
        return self._bits

    @property
    def message_filter(self) -> PropertyFilter | None:
        """Return the compiled expression; None if it does not compile."""
        if not self._compiled:
            try:
                expression = compile_expression(self.expression_type, self.text)
            except SqlError as error:
                logger.warning("filter of %s does not compile: %s", _name(self), error)
            else:
                known = KnownBits(self._bloom, self.bits, self.born_time)
                self._message_filter = PropertyFilter(expression, known)
            self._compiled = True
        return self._message_filter


class ConsumerFilterTable:
    """Filters by topic and group; persisted as `consumerFilter.json`."""

    def __init__(
        self,
        config: BrokerConfig,
        directory: Path,
        *,
        now: Clock = now_ms,
    ) -> None:
        self._config = config
        self._now = now
        self._bloom = BloomFilter(
            config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
        )
        self._filters: dict[str, dict[str, ConsumerFilter]] = {}
        self._count = 0
        self._text_size = 0
        #: Whether there may be filters of groups that have left.
        self._may_have_dead = False
        self._count_capacity = Capacity(
            "SQL92 subscriptions", "maxConsumerFilters", lambda: config.max_consumer_filters
        )
        self._size_capacity = Capacity(
            "bytes of SQL92 expressions",
            "maxConsumerFilterBytes",
            lambda: config.max_consumer_filter_bytes,
        )
        self._topics_of: dict[str, set[str]] = {}
        self.file = TableFile(directory / "consumerFilter.json", self.snapshot)

    def load(self) -> None:
        """Load the file. Raises PersistenceError."""
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
                "%s dropped: its bloom filter does not match maxErrorRateOfBloomFilter and "
                "expectConsumerNumUseFilter; consumers will register again",
                self.file.path,
            )
            return
        for data in filters:
            self._add(self._revived(data))
        self._may_have_dead = bool(filters)

    def find(self, topic: str, group: str) -> ConsumerFilter | None:
        """Return the filter of a group for a topic; None if it has none or it does not compile."""
        found = self._get(topic, group)
        if found is None or (found.message_filter is None and not found.is_loaded):
            return None
        return found

    def message_filter(self, topic: str, group: str) -> PropertyFilter | None:
        """Return the compiled filter of a group for a topic; None if it takes all messages."""
        found = self.find(topic, group)
        return None if found is None else found.message_filter

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Register the subscriptions of a heartbeat; filters for other topics are dead."""
        topics = set()
        noted = _Noted()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            if not is_tag_type(subscription.expression_type) and subscription.sub_string:
                self._register(group, subscription, noted)
        for topic in self._topics_of.get(group, set()) - topics:
            self._die(self._filters[topic][group])
        noted.log(group)
        if noted.new:
            self._count_capacity.note(self._count)
            self._size_capacity.note(self._text_size)

    def unregister(self, group: str) -> None:
        """Mark the filters of a group without members as dead."""
        for topic in list(self._topics_of.get(group, ())):
            self._die(self._filters[topic][group])

    def bit_map(self, topic: str, properties: dict[str, str]) -> bytes | None:
        """Return the bits of all groups that a message matches; None if its topic has no filter."""
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
        """Drop the filters of groups that left more than `filterDataCleanTimeSpan` ago."""
        deadline = self._now() - self._config.filter_data_clean_time_span
        for by_group in list(self._filters.values()):
            for consumer in list(by_group.values()):
                if consumer.is_dead and consumer.dead_time <= deadline:
                    logger.info("filter of absent %s dropped", _name(consumer))
                    self._remove(consumer)
                    self.file.save_soon()

    def take_over(
        self, copy: Sequence[ConsumerFilterData], has_members: Callable[[str], bool]
    ) -> bool:
        """Replace the filters by those of the master; return whether any changed.

        Groups with members here keep theirs, which heartbeats renew. Raises CopyError, and changes
        nothing, if the table would exceed a limit.
        """
        wanted = {
            (data.topic, data.consumer_group): data
            for data in copy
            if not has_members(data.consumer_group)
        }
        unwanted = []
        for by_group in self._filters.values():
            for consumer in by_group.values():
                data = wanted.get((consumer.topic, consumer.group))
                if data is not None and data.is_same(consumer):
                    del wanted[consumer.topic, consumer.group]
                    consumer.client_version = data.client_version
                    consumer.dead_time = max(self._now(), consumer.born_time)
                elif not has_members(consumer.group):
                    unwanted.append(consumer)
        self._refuse_too_many(wanted.values(), unwanted)
        for consumer in unwanted:
            self._remove(consumer)
        for data in wanted.values():
            data.born_time = max(data.born_time, self._now() + _MAX_CLOCK_DIFFERENCE_MS)
            data.dead_time = data.born_time
            self._add(self._revived(data))
        self._may_have_dead = True
        if wanted or unwanted:
            self.file.save_soon()
        return bool(wanted or unwanted)

    def _refuse_too_many(
        self, new: Collection[ConsumerFilterData], gone: Collection[ConsumerFilter]
    ) -> None:
        count = self._count + len(new) - len(gone)
        size = self._text_size + sum(len(data.expression) for data in new)
        size -= sum(len(consumer.text) for consumer in gone)
        config = self._config
        if count > config.max_consumer_filters or size > config.max_consumer_filter_bytes:
            raise CopyError(
                f"{count} SQL92 subscriptions with {size} bytes of expressions, limits "
                f"{config.max_consumer_filters} and {config.max_consumer_filter_bytes}: raise "
                "maxConsumerFilters or maxConsumerFilterBytes of this replica"
            )

    def snapshot(self) -> _FileContent:
        """Return the content of the file."""
        return _FileContent(
            {topic: list(by_group.values()) for topic, by_group in self._filters.items()}
        )

    def _get(self, topic: str, group: str) -> ConsumerFilter | None:
        by_group = self._filters.get(topic)
        return None if by_group is None else by_group.get(group)

    def _register(self, group: str, subscription: SubscriptionData, noted: _Noted) -> None:
        known = self._get(subscription.topic, group)
        version = subscription.sub_version
        if known is None:
            self._replace(group, subscription, noted)
            return
        is_same = (
            known.text == subscription.sub_string
            and known.expression_type == subscription.expression_type
        )
        if not is_same and (version > known.client_version or known.is_known_as_wrong):
            self._remove(known)
            self._replace(group, subscription, noted)
            return
        if not is_same:
            noted.old.append(
                f"topic {known.topic}: version {version} is not newer than {known.client_version}"
            )
        if version >= known.client_version and (known.is_dead or version > known.client_version):
            known.client_version = version
            known.dead_time = 0
            self.file.save_soon()

    def _replace(self, group: str, subscription: SubscriptionData, noted: _Noted) -> None:
        topic, text = subscription.topic, subscription.sub_string
        if subscription.expression_type != SQL92_EXPRESSION_TYPE:
            fault: str | None = f"{subscription.expression_type!r:.40} is not SQL92"
        else:
            fault = self._full(len(text))
            if fault is not None and self._may_have_dead:
                self._drop_dead()
                fault = self._full(len(text))
        if fault is not None:
            noted.refused.append(f"topic {topic:.200}: {fault}")
            return
        self._add(
            ConsumerFilter(
                self._bloom,
                group,
                topic,
                text,
                subscription.expression_type,
                subscription.sub_version,
                self._now(),
            )
        )
        noted.new.append(f"topic {topic:.200}: {text!r:.200}")
        self.file.save_soon()

    def _full(self, size: int) -> str | None:
        """Return why the table takes no filter with `size` characters, or None."""
        # `fault` refuses at the limit: the text may fill it exactly.
        return self._count_capacity.fault(self._count) or self._size_capacity.fault(
            self._text_size + max(0, size - 1)
        )

    def _drop_dead(self) -> None:
        """Drop the filters of groups that have left."""
        self._may_have_dead = False
        for by_group in list(self._filters.values()):
            for consumer in [each for each in by_group.values() if each.is_dead]:
                self._remove(consumer)

    def _revived(self, data: ConsumerFilterData) -> ConsumerFilter:
        """Return a filter from the file, of a group that has left and may return."""
        consumer = ConsumerFilter(
            self._bloom,
            data.consumer_group,
            data.topic,
            data.expression,
            data.expression_type,
            data.client_version,
            data.born_time,
        )
        consumer.dead_time = data.dead_time or max(
            self._now() - _GONE_BEFORE_START_MS, data.born_time
        )
        consumer.is_loaded = True
        return consumer

    def _die(self, consumer: ConsumerFilter) -> None:
        if consumer.is_dead:
            return
        consumer.dead_time = self._now()
        self._may_have_dead = True
        if not consumer.is_needed:
            self._remove(consumer)
        self.file.save_soon()

    def _add(self, consumer: ConsumerFilter) -> None:
        self._count += 1
        self._text_size += len(consumer.text)
        self._filters.setdefault(consumer.topic, {})[consumer.group] = consumer
        self._topics_of.setdefault(consumer.group, set()).add(consumer.topic)

    def _remove(self, consumer: ConsumerFilter) -> None:
        self._count -= 1
        self._text_size -= len(consumer.text)
        by_group = self._filters[consumer.topic]
        del by_group[consumer.group]
        if not by_group:
            del self._filters[consumer.topic]
        topics = self._topics_of[consumer.group]
        topics.discard(consumer.topic)
        if not topics:
            del self._topics_of[consumer.group]


class _Noted:
    """The subscriptions of a heartbeat by outcome: at most three log lines for thousands."""

    __slots__ = ("new", "old", "refused")

    def __init__(self) -> None:
        self.new: list[str] = []
        self.old: list[str] = []
        self.refused: list[str] = []

    def log(self, group: str) -> None:
        for level, verb, items in (
            (logging.INFO, "registered", self.new),
            (logging.INFO, "ignored", self.old),
            (logging.WARNING, "refused", self.refused),
        ):
            if items:
                logger.log(
                    level, "%d filters of group %s %s: %s", len(items), group, verb, items[0]
                )


def _name(consumer: ConsumerFilter) -> str:
    return f"group {consumer.group} for topic {consumer.topic}"


# The file


class _FileContent(NamedTuple):
    """The filters of each topic at one instant; the saving thread encodes them."""

    filters: dict[str, list[ConsumerFilter]]

    def encode(self) -> bytes:
        return ConsumerFilterManagerBody(
            {
                topic: FilterDataMapByTopic(
                    {data.group: ConsumerFilterData.of(data) for data in by_topic}, topic
                )
                for topic, by_topic in self.filters.items()
            }
        ).encode()


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
    #: Java writes it and ignores it.
    dead: bool = False
    bloom_filter_data: BloomFilterDataBody = field(default_factory=BloomFilterDataBody)

    @classmethod
    def of(cls, consumer: ConsumerFilter) -> ConsumerFilterData:
        """Return the entry of a filter in the file."""
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

    def is_same(self, consumer: ConsumerFilter) -> bool:
        """Return whether this is the expression of a filter."""
        return (consumer.text, consumer.expression_type) == (self.expression, self.expression_type)

    def bits(self) -> BloomFilterData:
        """Return the bits in the form of the bloom filter."""
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


def copied_filters(body: bytes) -> list[ConsumerFilterData]:
    """Decode a master's table. Raises ValueError."""
    table = ConsumerFilterManagerBody.from_value(parsed(body, "filterDataByTopic"))
    filters = [
        data
        for by_group in table.filter_data_by_topic.values()
        for data in by_group.group_filter_data.values()
    ]
    for data in filters:
        name = f"filter of group {data.consumer_group!r:.100} for topic {data.topic!r:.100}"
        if not is_usable(data.topic) or not is_usable(data.consumer_group):
            raise CopyError(f"{name}: unusable name")
        if data.expression_type != SQL92_EXPRESSION_TYPE or not data.expression:
            raise CopyError(f"{name}: no SQL92 expression")
    return filters
