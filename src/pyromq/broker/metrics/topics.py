"""Messages in and out, by topic and group, and messages that failed.

Counters come from the statistics (`services.stats`), which a send or a pull updates anyway. Only
topics and groups that exist have series.

`collect` runs in slices on the loop, so it walks over copies of the tables' keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from pyromq.broker.metrics.names import NOT_FROM_PRODUCERS, boolean, is_system, message_type
from pyromq.broker.parts import BrokerParts
from pyromq.broker.services import stats
from pyromq.metrics.family import Source, counter, gauge, histogram
from pyromq.metrics.page import Page, Steps, escaped, label_text
from pyromq.protocol.names import RETRY_TOPIC_PREFIX, TRANSACTION_HALF_TOPIC

_IN: Final = ("topic", "message_type", "is_system")
_OUT: Final = ("consumer_group", "topic", "is_retry", "is_system")
#: Series between two points where other work may run.
STEP: Final = 32

MESSAGES_IN: Final = counter(
    "rocketmq_messages_in_total",
    "Messages stored in a topic since the start, without retry and dead-letter topics.",
    _IN,
    Source.ROCKETMQ,
)
THROUGHPUT_IN: Final = counter(
    "rocketmq_throughput_in_total",
    "Bytes of records stored in a topic since the start.",
    _IN,
    Source.ROCKETMQ,
)
MESSAGE_SIZE: Final = histogram(
    "rocketmq_message_size_bytes",
    "Sizes of the records stored in a topic since the start, in bytes.",
    _IN,
    Source.ROCKETMQ,
)
MESSAGES_OUT: Final = counter(
    "rocketmq_messages_out_total",
    "Messages of a topic that pulls of a group returned since the start.",
    _OUT,
    Source.ROCKETMQ,
)
THROUGHPUT_OUT: Final = counter(
    "rocketmq_throughput_out_total",
    "Bytes of records of a topic that pulls of a group returned since the start.",
    _OUT,
    Source.ROCKETMQ,
)
DEAD_LETTERS: Final = counter(
    "rocketmq_send_to_dlq_messages_total",
    "Messages of a topic that became dead letters of a group since the start.",
    ("consumer_group", "topic", "is_system"),
    Source.ROCKETMQ,
)
COMMITS: Final = counter(
    "rocketmq_commit_messages_total",
    "Transactional messages of a topic that were committed since the start.",
    ("topic",),
    Source.ROCKETMQ,
)
ROLLBACKS: Final = counter(
    "rocketmq_rollback_messages_total",
    "Transactional messages of a topic that were rolled back since the start.",
    ("topic",),
    Source.ROCKETMQ,
)
HALVES: Final = gauge(
    "rocketmq_half_messages",
    "Transactions between the oldest open one and the newest. Half messages of all topics share a "
    "queue, so there is one number.",
    ("topic",),
    Source.ROCKETMQ,
)
ORPHANS: Final = gauge(
    "pyromq_half_messages_without_producer",
    "Open transactions that no connected producer can be asked about, in the last check.",
)
SENT_BACK: Final = counter(
    "pyromq_sent_back_messages_total",
    "Messages of a topic that consumers of a group sent back for a retry since the start.",
    ("consumer_group", "topic"),
)
REFUSED_PUTS: Final = counter(
    "pyromq_refused_puts_total",
    "Puts that the store refused since the start, for lack of room or because they were too large.",
)

FAMILIES: Final = (
    MESSAGES_IN,
    THROUGHPUT_IN,
    MESSAGE_SIZE,
    MESSAGES_OUT,
    THROUGHPUT_OUT,
    DEAD_LETTERS,
    COMMITS,
    ROLLBACKS,
    HALVES,
    ORPHANS,
    SENT_BACK,
    REFUSED_PUTS,
)


class TopicMetrics:
    """The traffic of a broker."""

    def __init__(self, parts: BrokerParts, *, orphans: Callable[[], int]) -> None:
        """`orphans` returns the open transactions without a producer."""
        self._stats = parts.stats
        self._store = parts.store
        self._tables = parts.tables
        self._orphans = orphans

    def collect(self, page: Page) -> Steps:
        """Write the families of this module."""
        yield from self._incoming(page)
        yield from self._outgoing(page)
        self._failures(page)
        self._transactions(page)
        yield None

    def _incoming(self, page: Page) -> Iterator[None]:
        messages, sizes = page.block(MESSAGES_IN), page.block(THROUGHPUT_IN)
        buckets = page.block(MESSAGE_SIZE)
        nums = self._stats.counters(stats.TOPIC_PUT_NUMS)
        size = self._stats.counters(stats.TOPIC_PUT_SIZE)
        histograms = self._stats.record_sizes
        topics = self._tables.topics
        for position, topic in enumerate(list(topics.names())):
            if not position % STEP:
                yield None
            if topic.startswith(NOT_FROM_PRODUCERS) or topic not in topics:
                continue
            kind = message_type(topic, is_ordered=topics.is_order_topic(topic))
            labels = (
                f',topic="{escaped(topic)}",message_type="{kind}"'
                f',is_system="{boolean(is_system(topic))}"'
            )
            item = nums.get(topic)
            messages.add(labels, 0 if item is None else item.value)
            item = size.get(topic)
            sizes.add(labels, 0 if item is None else item.value)
            if topic in histograms:
                buckets.add_histogram(labels, histograms[topic])
        page.close(messages, sizes, buckets)

    def _outgoing(self, page: Page) -> Iterator[None]:
        messages, sizes = page.block(MESSAGES_OUT), page.block(THROUGHPUT_OUT)
        nums = self._stats.counters(stats.GROUP_GET_NUMS)
        size = self._stats.counters(stats.GROUP_GET_SIZE)
        for position, key in enumerate(list(nums)):
            if not position % STEP:
                yield None
            topic, _, group = key.partition("@")
            if key not in nums or not self._exist(topic, group):
                continue
            labels = out_labels(group, topic)
            messages.add(labels, nums[key].value)
            sizes.add(labels, size[key].value)
        page.close(messages, sizes)

    def _failures(self, page: Page) -> None:
        page.add(
            DEAD_LETTERS,
            *(
                (
                    label_text(
                        consumer_group=group,
                        topic=topic,
                        is_system=boolean(is_system(topic, group)),
                    ),
                    count,
                )
                for (group, topic), count in self._stats.dead_letters.items()
                if self._exist(topic, group)
            ),
        )
        rows = []
        for key, item in self._stats.counters(stats.SNDBCK_PUT_NUMS).items():
            topic, _, group = key.partition("@")
            if self._exist(topic, group):
                rows.append((label_text(consumer_group=group, topic=topic), item.value))
        page.add(SENT_BACK, *rows)
        page.add(REFUSED_PUTS, ("", self._stats.refused_puts))

    def _transactions(self, page: Page) -> None:
        for family, counts in ((COMMITS, self._stats.commits), (ROLLBACKS, self._stats.rollbacks)):
            page.add(
                family,
                *(
                    (label_text(topic=topic), count)
                    for topic, count in counts.items()
                    if topic in self._tables.topics
                ),
            )
        end = self._store.max_offset(TRANSACTION_HALF_TOPIC, 0)
        open_halves = max(0, end - self._tables.transactions.half_offset)
        page.add(HALVES, (label_text(topic=TRANSACTION_HALF_TOPIC), open_halves))
        page.add(ORPHANS, ("", self._orphans()))

    def _exist(self, topic: str, group: str) -> bool:
        tables = self._tables
        return topic in tables.topics and (
            group in tables.groups or tables.consumers.find(group) is not None
        )


def out_labels(group: str, topic: str) -> str:
    """Return the labels of a group in a topic."""
    return (
        f',consumer_group="{escaped(group)}",topic="{escaped(topic)}"'
        f',is_retry="{boolean(topic.startswith(RETRY_TOPIC_PREFIX))}"'
        f',is_system="{boolean(is_system(topic, group))}"'
    )
