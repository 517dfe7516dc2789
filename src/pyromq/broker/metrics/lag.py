"""How far consumer groups are behind, in messages and in time.

Every group with committed offsets counts, whether its consumers are online or not: lag matters most
when they are not. Broadcast groups have none, since their members keep their offsets themselves.

The lag of a queue is its end minus the committed offset; its time is the age of the first message
after that offset. What a group has pulled but not committed is in flight, the rest is ready.

Ages: store times are read on the loop if their pages are in memory, and otherwise on a thread, for
at most `_DISK_SECONDS` per scrape. A store time never changes, so those from disk are kept while
their group does not move; the ages of many groups on a slow disk are complete after a few scrapes,
and missing until then. `collect` runs in slices on the loop.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from pyromq.broker.metrics.topics import STEP, out_labels
from pyromq.broker.metrics_settings import EVERY_TOPIC
from pyromq.broker.parts import BrokerParts
from pyromq.metrics.family import Source, gauge
from pyromq.metrics.page import Block, Page, Steps, number
from pyromq.protocol import names
from pyromq.protocol.wire.bodies import MessageModel
from pyromq.store.queues.consume_queue import ConsumeQueue

#: How long a scrape reads store times from disk.
_DISK_SECONDS: Final = 0.5
#: Groups and queues between two points where other work may run.
_WORK_PER_STEP: Final = 2 * STEP
_LABELS: Final = ("consumer_group", "topic", "is_retry", "is_system")

LAG_MESSAGES: Final = gauge(
    "rocketmq_consumer_lag_messages",
    "Messages of a topic that a group has not committed, over all queues of this broker.",
    _LABELS,
    Source.ROCKETMQ,
)
LAG_LATENCY: Final = gauge(
    "rocketmq_consumer_lag_latency_milliseconds",
    "Age of the oldest message of a topic that a group has not committed, in milliseconds.",
    _LABELS,
    Source.ROCKETMQ,
)
INFLIGHT: Final = gauge(
    "rocketmq_consumer_inflight_messages",
    "Messages of a topic that a group has pulled and not committed.",
    _LABELS,
    Source.ROCKETMQ,
)
QUEUEING_LATENCY: Final = gauge(
    "rocketmq_consumer_queueing_latency_milliseconds",
    "Age of the oldest message of a topic that a group has not pulled, in milliseconds.",
    _LABELS,
    Source.ROCKETMQ,
)
READY: Final = gauge(
    "rocketmq_consumer_ready_messages",
    "Messages of a topic that a group has not pulled.",
    _LABELS,
    Source.ROCKETMQ,
)
WORST_LAG: Final = gauge(
    "pyromq_consumer_queue_lag_max_messages",
    "Lag of a group in the queue of a topic where it is largest: one stuck queue shows.",
    _LABELS,
)
WORST_LAG_SECONDS: Final = gauge(
    "pyromq_consumer_queue_lag_max_seconds",
    "Age of the oldest message of a topic that a group has not committed, in seconds.",
    _LABELS,
)
QUEUE_LAG: Final = gauge(
    "pyromq_consumer_queue_lag_messages",
    "Messages of a queue that a group has not committed; for the topics of metricsQueueTopics.",
    (*_LABELS, "queue_id"),
)
QUEUE_LAG_SECONDS: Final = gauge(
    "pyromq_consumer_queue_lag_seconds",
    "Age of the oldest message of a queue that a group has not committed, in seconds; for the "
    "topics of metricsQueueTopics.",
    (*_LABELS, "queue_id"),
)

FAMILIES: Final = (
    LAG_MESSAGES,
    LAG_LATENCY,
    INFLIGHT,
    QUEUEING_LATENCY,
    READY,
    WORST_LAG,
    WORST_LAG_SECONDS,
    QUEUE_LAG,
    QUEUE_LAG_SECONDS,
)

#: A message: its queue and offset.
_Place = tuple[ConsumeQueue, int]


class _QueueLag(NamedTuple):
    queue_id: int
    lag: int
    ready: int
    #: The first message that is not committed, and the first that is not pulled.
    oldest: _Place | None
    unpulled: _Place | None


class LagMetrics:
    """The lag of all groups."""

    def __init__(self, parts: BrokerParts) -> None:
        self._config = parts.config
        self._store = parts.store
        self._tables = parts.tables
        self._stats = parts.stats
        self._now = parts.clock
        #: Store times that were read from disk, of messages that groups wait for.
        self._times: dict[_Place, int] = {}
        #: Topic, group, messages and milliseconds of each group, for rocketmq-exporter's names.
        self.latest: list[tuple[str, str, int, int]] = []

    def collect(self, page: Page) -> Steps:
        """Write the families of this module."""
        # Groups are written as they are met: objects that live until the end of a scrape would
        # make Python's garbage collector hold up the loop.
        blocks = [page.block(family) for family in FAMILIES]
        self.latest = []
        cold: dict[_Place, int] = {}
        late: list[tuple[str, str, list[_QueueLag]]] = []
        work = 0
        for topic, group in self._tables.offsets.pairs():
            if work >= _WORK_PER_STEP:
                work = 0
                yield None
            queues = self._queues(topic, group)
            work += 1
            if queues is None:
                continue
            work += 4 + len(queues)
            times = self._times_of(queues, cold)
            if times is None:
                late.append((topic, group, queues))
            else:
                self._write(blocks, topic, group, queues, times)
        # Known times stay known for groups that do not move.
        self._times = {place: time for place, time in self._times.items() if place in cold}
        if late:
            self._times |= yield lambda: self._read(
                {place: at for place, at in cold.items() if place not in self._times}
            )
        for position, (topic, group, queues) in enumerate(late):
            if not position % STEP:
                yield None
            self._write(blocks, topic, group, queues, self._known(queues))
        page.close(*blocks)

    def _queues(self, topic: str, group: str) -> list[_QueueLag] | None:
        """Return the lag of a group by queue, or None if it has none to show."""
        tables, store = self._tables, self._store
        config = tables.topics.get(topic)
        members = tables.consumers.find(group)
        if (
            config is None
            or (members is not None and members.message_model is MessageModel.BROADCASTING)
            or (members is None and group not in tables.groups and not _is_system(group))
        ):
            return None
        committed = tables.offsets.queues(group, topic)
        pulled_to = self._stats.pulled_to
        found = []
        for queue_id in range(config.read_queue_nums):
            queue = store.find_queue(topic, queue_id)
            if queue is None:
                continue
            offset, end, first = (
                max(0, committed.get(queue_id, 0)),
                queue.next_offset,
                queue.min_offset,
            )
            pulled = min(end, max(offset, pulled_to.get((group, topic, queue_id), 0)))
            oldest, unpulled = max(offset, first), max(pulled, first)
            found.append(
                _QueueLag(
                    queue_id,
                    max(0, end - offset),
                    max(0, end - pulled),
                    (queue, oldest) if oldest < end else None,
                    (queue, unpulled) if unpulled < end else None,
                )
            )
        return found

    def _times_of(
        self, queues: list[_QueueLag], cold: dict[_Place, int]
    ) -> dict[_Place, int] | None:
        """Return the store times of the messages that a group waits for, if all are in memory.

        Otherwise note where those are that are not.
        """
        times: dict[_Place, int] = {}
        is_complete = True
        for queue in queues:
            for place in (queue.oldest, queue.unpulled):
                if place is None or place in times:
                    continue
                entry = place[0].entry(place[1])
                if entry is None:
                    continue
                if self._store.is_cold(entry.physical_offset):
                    cold[place] = entry.physical_offset
                    is_complete = False
                    continue
                stored = self._store.store_time(entry.physical_offset)
                if stored is not None:
                    times[place] = stored
        return times if is_complete else None

    def _known(self, queues: list[_QueueLag]) -> dict[_Place, int]:
        """Return all store times of a group, some of which were read from disk."""
        times = self._times_of(queues, {}) or {}
        for queue in queues:
            for place in (queue.oldest, queue.unpulled):
                if place is not None and place in self._times:
                    times[place] = self._times[place]
        return times

    def _read(self, places: dict[_Place, int]) -> dict[_Place, int]:
        """Read store times from disk, as many as there is time for. On a thread."""
        deadline = time.monotonic() + _DISK_SECONDS
        found = {}
        for place, physical in places.items():
            stored = self._store.store_time(physical)
            if stored is not None:
                found[place] = stored
            if time.monotonic() >= deadline:
                break
        return found

    def _write(
        self,
        blocks: list[Block],
        topic: str,
        group: str,
        queues: list[_QueueLag],
        times: dict[_Place, int],
    ) -> None:
        now = self._now()
        lag, latency, inflight, queueing, ready, most, oldest = blocks[:7]
        labels = out_labels(group, topic)
        total = ready_total = largest = age = queueing_age = 0
        for queue in queues:
            total += queue.lag
            ready_total += queue.ready
            largest = max(largest, queue.lag)
            age = max(age, _age(queue.oldest, times, now))
            queueing_age = max(queueing_age, _age(queue.unpulled, times, now))
        lag.add(labels, total)
        latency.add(labels, age)
        inflight.add(labels, total - ready_total)
        queueing.add(labels, queueing_age)
        ready.add(labels, ready_total)
        most.add(labels, largest)
        oldest.add(labels, number(age / 1000))
        shown = self._config.queue_topics
        if topic in shown or EVERY_TOPIC in shown:
            _write_queues(blocks[7], blocks[8], labels, queues, times, now)
        if self._config.metrics_exporter_names_enable:
            self.latest.append((topic, group, total, age))


def _write_queues(
    messages: Block,
    seconds: Block,
    labels: str,
    queues: list[_QueueLag],
    times: dict[_Place, int],
    now: int,
) -> None:
    for queue in queues:
        own = f'{labels},queue_id="{queue.queue_id}"'
        messages.add(own, queue.lag)
        seconds.add(own, number(_age(queue.oldest, times, now) / 1000))


def _age(place: _Place | None, times: dict[_Place, int], now: int) -> int:
    if place is None:
        return 0
    stored = times.get(place)
    return 0 if stored is None else max(0, now - stored)


def _is_system(group: str) -> bool:
    return names.is_system_group(group)
