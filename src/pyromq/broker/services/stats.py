"""The statistics of a broker: messages put and pulled, by topic, queue and group, over time.

Names and keys are RocketMQ's:

| statistic | key | counts |
| --- | --- | --- |
| TOPIC_PUT_NUMS, _SIZE | topic | messages stored in its queues, bytes of their records |
| QUEUE_PUT_NUMS, _SIZE | topic@queue | the same for one queue |
| BROKER_PUT_NUMS | cluster | the same for all queues |
| GROUP_GET_NUMS, _SIZE | topic@group | messages that pulls returned, bytes |
| QUEUE_GET_NUMS, _SIZE | topic@queue@group | the same for one queue |
| GROUP_GET_LATENCY | queue@topic@group | pulls; copying their messages takes 0 ms |
| BROKER_GET_NUMS | cluster | messages of all pulls |
| SNDBCK_PUT_NUMS | topic@group | messages that consumers sent back |

A message counts where it is stored. A delayed message is stored twice: under SCHEDULE_TOPIC_XXXX
when it is sent, in its own topic when it is due; a transactional one under the half topic and, when
committed, in its own topic.

Differences from RocketMQ: RocketMQ counts the puts of its request handlers, so it misses committed
transactions, their op messages and dead letters. It counts a batch as one addition; here each
message is one, so averages are per message. The COMMERCIAL_* and *_FROM_DISK_* statistics exist and
stay at 0, as in RocketMQ. `services.upkeep.fall_behind` has GROUP_GET_FALL_*.

Puts cost nothing: `sample` counts the growth of the queues (`store.growth`) every second, or every
ten seconds if very many have grown; idle queues are not visited. A pull updates one small list; the
compiled kernel counts its pulls itself and reports them before a count.
Queries call `count` first.

Runs on the loop; `sample` yields while it counts many queues.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Final, NamedTuple

from pyromq.broker.services.stats_items import DAY, HOUR, MINUTE, Snapshot, StatsItem, StatsItems
from pyromq.metrics.histogram import Histogram
from pyromq.protocol.wire.bodies_admin import BrokerStatsData, BrokerStatsItem
from pyromq.store.growth import Growth

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
QUEUE_PUT_NUMS: Final = "QUEUE_PUT_NUMS"
QUEUE_PUT_SIZE: Final = "QUEUE_PUT_SIZE"
QUEUE_GET_NUMS: Final = "QUEUE_GET_NUMS"
QUEUE_GET_SIZE: Final = "QUEUE_GET_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
GROUP_GET_LATENCY: Final = "GROUP_GET_LATENCY"
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"

#: Every statistic that can be queried.
NAMES: Final = (
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    QUEUE_PUT_NUMS,
    QUEUE_PUT_SIZE,
    QUEUE_GET_NUMS,
    QUEUE_GET_SIZE,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    GROUP_GET_LATENCY,
    SNDBCK_PUT_NUMS,
    BROKER_PUT_NUMS,
    BROKER_GET_NUMS,
    "GROUP_GET_FROM_DISK_NUMS",
    "GROUP_GET_FROM_DISK_SIZE",
    "BROKER_GET_FROM_DISK_NUMS",
    "BROKER_GET_FROM_DISK_SIZE",
    "COMMERCIAL_SEND_TIMES",
    "COMMERCIAL_RCV_TIMES",
    "COMMERCIAL_SEND_SIZE",
    "COMMERCIAL_RCV_SIZE",
    "COMMERCIAL_RCV_EPOLLS",
    "COMMERCIAL_SNDBCK_TIMES",
    "COMMERCIAL_PERM_FAILURES",
)

#: Bytes; RocketMQ 5.x' bounds.
SIZE_BOUNDS: Final = (1024.0, 4096.0, 524288.0, 1048576.0, 2097152.0, 4194304.0)
#: Seconds between two calls of `sample`.
SAMPLE_SECONDS: Final = 1.0
#: Up to this many grown queues are counted with each sample, more only at this interval, which is
#: the sampling period of the shortest span.
_MAX_QUEUES_PER_SAMPLE: Final = 512
_MANY_QUEUES_MS: Final = 10_000
#: Queues counted between two yields to the loop.
_QUEUES_PER_YIELD: Final = 32
#: Counting this many messages takes as long as one more queue.
_MESSAGES_LIKE_A_QUEUE: Final = 512
#: The longest period of `rates`, in seconds.
_MAX_RATE_SECONDS: Final = 600
_MINUTE_MS: Final = 60_000


class Totals(NamedTuple):
    """Totals since the start; `found` and `missed` count pulls with and without messages."""

    puts: int = 0
    put_bytes: int = 0
    found: int = 0
    missed: int = 0
    #: Messages that pulls returned.
    transferred: int = 0


class PutTimes(NamedTuple):
    """Put times of one minute; all messages of a chunk take the same time."""

    #: Messages whose chunk was stored within a millisecond.
    quick: int = 0
    #: Milliseconds of each slower chunk, in order.
    slow: tuple[int, ...] = ()

    def percentile(self, part: float) -> float:
        """Return the milliseconds within which this fraction of the messages was stored."""
        rank = int((self.quick + len(self.slow)) * part)
        if rank <= self.quick:
            return rank / self.quick if self.quick else 0.0
        return float(self.slow[rank - self.quick - 1])


class BrokerStats:
    """The statistics of one broker."""

    def __init__(
        self,
        growth: Growth,
        cluster: str,
        *,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        today: Callable[[], date] = date.today,
    ) -> None:
        self._growth = growth
        self._cluster = cluster
        self._monotonic_ms = monotonic_ms
        self._today = today
        now = monotonic_ms()
        self._items = StatsItems(NAMES, now)
        #: By group, topic and queue: messages, bytes, pulls, the offset after the last message.
        self._pulls: dict[tuple[str, str, int], list[int]] = {}
        #: The offset after the last pull that found messages, by group, topic and queue.
        self.pulled_to: dict[tuple[str, str, int], int] = {}
        #: Sizes of records by topic; empty unless `measure_sizes` was called.
        self.record_sizes: dict[str, Histogram] = {}
        #: Called before pulls are counted, for those that were served without `pulled`.
        self.before_count: list[Callable[[], None]] = []
        #: Called with all pulls that are counted.
        self.on_pulls: list[Callable[[Mapping[tuple[str, str, int], Sequence[int]]], None]] = []
        self._puts = self._put_bytes = self._found = self._transferred = 0
        #: Pulls that found nothing; incremented by the pull handler.
        self.missed = 0
        self._rates = deque([(now, Totals())], maxlen=_MAX_RATE_SECONDS + 1)
        self._day = today()
        self._this_morning = self._yesterday_morning = Totals()
        self._counted_at = now
        self._minute_began = now
        self._minute_began_with = 0
        self._slow: list[int] = []
        #: Put times of the last full minute.
        self.put_times = PutTimes()
        #: Dead letters by group and topic, and ends of transactions by topic, since the start.
        self.dead_letters: Counter[tuple[str, str]] = Counter()
        self.commits: Counter[str] = Counter()
        self.rollbacks: Counter[str] = Counter()
        #: The slowest chunk, in milliseconds.
        self.slowest_put = 0
        #: The slowest get of a pull, in milliseconds; raised by the pull handlers.
        self.slowest_get = 0

    def pulled(
        self,
        group: str,
        topic: str,
        queue_id: int,
        count: int,
        size: int,
        times: int = 1,
        next_offset: int = 0,
    ) -> None:
        """Count a pull that was answered with messages, or several together.

        `next_offset` is the queue offset after the last message, if it is known.
        """
        try:
            totals = self._pulls[group, topic, queue_id]
        except KeyError:
            totals = self._pulls[group, topic, queue_id] = [0, 0, 0, 0]
        totals[0] += count
        totals[1] += size
        totals[2] += times
        totals[3] = next_offset

    def sent_back(self, group: str, topic: str) -> None:
        """Count a message of this topic that a consumer sent back."""
        self._items.add(SNDBCK_PUT_NUMS, f"{topic}@{group}", 1)

    def sent_to_dlq(self, group: str, topic: str) -> None:
        """Count a message of this topic that became a dead letter of a group."""
        self.dead_letters[group, topic] += 1

    def transaction_ended(self, topic: str, *, is_commit: bool) -> None:
        """Count a commit or a rollback."""
        (self.commits if is_commit else self.rollbacks)[topic] += 1

    async def sample(self) -> None:
        """Count, and take the samples that are due; called every second."""
        now = self._monotonic_ms()
        few = len(self._growth) <= _MAX_QUEUES_PER_SAMPLE
        if few or now - self._counted_at >= _MANY_QUEUES_MS:
            await self.count()
        else:
            self._count_pulls()
        now = self._monotonic_ms()
        self._rates.append((now, self.totals))
        for _ in self._items.sample(now):
            await asyncio.sleep(0)
        if now - self._minute_began >= _MINUTE_MS:
            quick = max(0, self._puts - self._minute_began_with - len(self._slow))
            self.put_times = PutTimes(quick, tuple(sorted(self._slow)))
            self._slow = []
            self._minute_began, self._minute_began_with = now, self._puts
        today = self._today()
        if today != self._day:
            self._day = today
            self._yesterday_morning, self._this_morning = self._this_morning, self.totals

    async def count(self) -> None:
        """Bring all counters up to date."""
        self._counted_at = self._monotonic_ms()
        self._count_pulls()
        add = self._items.add
        work = 0
        for topic, queue_id, messages, size, buckets in self._growth.take():
            add(TOPIC_PUT_NUMS, topic, messages, messages)
            add(TOPIC_PUT_SIZE, topic, size, messages)
            key = f"{topic}@{queue_id}"
            add(QUEUE_PUT_NUMS, key, messages, messages)
            add(QUEUE_PUT_SIZE, key, size, messages)
            add(BROKER_PUT_NUMS, self._cluster, messages, 0)
            self._puts += messages
            self._put_bytes += size
            if buckets is not None:
                self._note_sizes(topic, buckets, size)
            work += 1 + messages // _MESSAGES_LIKE_A_QUEUE
            if work >= _QUEUES_PER_YIELD:
                work = 0
                await asyncio.sleep(0)
        slow, self._growth.slow_seals = self._growth.slow_seals, []
        self._slow += slow
        self.slowest_put = max(self.slowest_put, *slow, 0)

    def measure_sizes(self) -> None:
        """Count records by their size from now on."""
        self._growth.count_sizes(SIZE_BOUNDS)

    def _note_sizes(self, topic: str, buckets: list[int], size: int) -> None:
        found = self.record_sizes.get(topic)
        if found is None:
            found = self.record_sizes[topic] = Histogram(SIZE_BOUNDS)
        for number, count in enumerate(buckets):
            found.counts[number] += count
        found.sum += size

    def _count_pulls(self) -> None:
        for report in self.before_count:
            report()
        pulls, self._pulls = self._pulls, {}
        for listener in self.on_pulls:
            listener(pulls)
        add = self._items.add
        for (group, topic, queue_id), (count, size, times, next_offset) in pulls.items():
            self.pulled_to[group, topic, queue_id] = next_offset
            add(GROUP_GET_NUMS, f"{topic}@{group}", count, times)
            add(GROUP_GET_SIZE, f"{topic}@{group}", size, times)
            add(QUEUE_GET_NUMS, f"{topic}@{queue_id}@{group}", count, times)
            add(QUEUE_GET_SIZE, f"{topic}@{queue_id}@{group}", size, times)
            add(GROUP_GET_LATENCY, f"{queue_id}@{topic}@{group}", 0, times)
            add(BROKER_GET_NUMS, self._cluster, count, 0)
            self._found += times
            self._transferred += count

    # Queries

    def view(self, name: str, key: str) -> BrokerStatsData | None:
        """Return a statistic over a minute, an hour and a day; None if nothing was counted."""
        item = self._items.find(name, key)
        if item is None:
            return None
        spans = (self._items.snapshot(item, span) for span in (MINUTE, HOUR, DAY))
        return BrokerStatsData(*map(_as_body, spans))

    def counters(self, name: str) -> Mapping[str, StatsItem]:
        """Return the counters of a statistic by key, as a view that changes."""
        return self._items.table(name)

    def minute(self, name: str, key: str) -> Snapshot:
        """Return a statistic over the last minute; zeros if nothing was counted."""
        item = self._items.find(name, key)
        return Snapshot() if item is None else self._items.snapshot(item, MINUTE)

    def group_get_tps(self, group: str, topic: str) -> float:
        """Return the messages per second that a group pulled of a topic in the last minute."""
        item = self._items.find(GROUP_GET_NUMS, f"{topic}@{group}")
        return self._items.snapshot(item, MINUTE).tps if item is not None else 0.0

    @property
    def totals(self) -> Totals:
        """Return the totals since the start, up to the last count."""
        return Totals(self._puts, self._put_bytes, self._found, self.missed, self._transferred)

    @property
    def refused_puts(self) -> int:
        """Return how many puts the store has refused since the start."""
        return self._growth.refused_puts

    @property
    def recent_slowest_put(self) -> int:
        """Return the milliseconds of the slowest chunk of the last one to two minutes."""
        recent = itertools.chain(self._slow, self.put_times.slow[-1:], self._growth.slow_seals)
        return max(recent, default=0)

    @property
    def this_morning(self) -> Totals:
        """Return the totals at the beginning of this day; zeros if the broker started today."""
        return self._this_morning

    @property
    def yesterday_morning(self) -> Totals:
        """Return the totals at the beginning of the previous day."""
        return self._yesterday_morning

    def rates(self, number: Callable[[Totals], int]) -> tuple[float, ...]:
        """Return the growth of a number per second over the last 10, 60 and 600 seconds.

        If the broker has run for less, that is the period.
        """
        return tuple(self._rate(number, seconds) for seconds in (10, 60, _MAX_RATE_SECONDS))

    def _rate(self, number: Callable[[Totals], int], seconds: int) -> float:
        ended, last = self._rates[-1]
        begun, first = self._rates[-min(seconds + 1, len(self._rates))]
        return (number(last) - number(first)) * 1000 / (ended - begun) if ended > begun else 0.0

    # Forgetting

    def topic_deleted(self, topic: str) -> None:
        """Forget the statistics of a topic."""
        self.record_sizes.pop(topic, None)
        self._forget_pulls(lambda key: key[1] == topic)
        self.commits.pop(topic, None)
        self.rollbacks.pop(topic, None)
        items = self._items
        items.remove(TOPIC_PUT_NUMS, topic)
        items.remove(TOPIC_PUT_SIZE, topic)
        for name in (
            QUEUE_PUT_NUMS,
            QUEUE_PUT_SIZE,
            QUEUE_GET_NUMS,
            QUEUE_GET_SIZE,
            GROUP_GET_NUMS,
            GROUP_GET_SIZE,
            SNDBCK_PUT_NUMS,
        ):
            items.remove_if(name, lambda key: key.startswith(f"{topic}@"))
        items.remove_if(GROUP_GET_LATENCY, lambda key: f"@{topic}@" in key)

    def group_deleted(self, group: str) -> None:
        """Forget the statistics of a group."""
        self._forget_pulls(lambda key: key[0] == group)
        for name in (
            QUEUE_GET_NUMS,
            QUEUE_GET_SIZE,
            GROUP_GET_NUMS,
            GROUP_GET_SIZE,
            GROUP_GET_LATENCY,
            SNDBCK_PUT_NUMS,
        ):
            self._items.remove_if(name, lambda key: key.endswith(f"@{group}"))

    def _forget_pulls(self, unwanted: Callable[[tuple[str, str, int]], bool]) -> None:
        self.pulled_to = {
            key: offset for key, offset in self.pulled_to.items() if not unwanted(key)
        }


def _as_body(snapshot: Snapshot) -> BrokerStatsItem:
    return BrokerStatsItem(snapshot.sum, snapshot.tps, snapshot.average)
