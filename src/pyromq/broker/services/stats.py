"""What a broker counts: messages put and pulled, by topic, queue and group, over time.

Statistics have RocketMQ's names and keys:

| statistic | key | counts |
| --- | --- | --- |
| TOPIC_PUT_NUMS, _SIZE | topic | messages that its queues got, bytes of their records |
| QUEUE_PUT_NUMS, _SIZE | topic@queue | the same of one queue |
| BROKER_PUT_NUMS | cluster | the same of all |
| GROUP_GET_NUMS, _SIZE | topic@group | messages that pulls carried, bytes |
| QUEUE_GET_NUMS, _SIZE | topic@queue@group | the same of one queue |
| GROUP_GET_LATENCY | queue@topic@group | pulls; to copy their messages takes 0 ms |
| BROKER_GET_NUMS | cluster | messages of all pulls |
| SNDBCK_PUT_NUMS | topic@group | messages that consumers sent back |

A message counts where it is put. A delayed one is put twice: under SCHEDULE_TOPIC_XXXX when
it is sent, in its own topic when it is due; a transactional one under the half topic and,
when it is committed, in its own topic.

Differences from RocketMQ: it counts what its handlers put, so commits of transactions, their
op messages and dead letters are missing there, and here they are not. It counts a batch as
one time, here each message is one: averages per time are averages per message. The
COMMERCIAL_* and *_FROM_DISK_* statistics exist, as there, and nothing adds to them;
GROUP_GET_FALL_* can be asked for neither there nor here.

Puts cost nothing: each second `sample` counts what the queues got (`store.growth`), and
only queues that got something are looked at; very many of them every ten seconds. Pulls
add to one small list each. What is asked for in between is counted first (`count`).

All on the loop; `sample` lets others run while it counts many queues.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from datetime import date
from typing import Final, NamedTuple

from pyromq.broker.services.stats_items import DAY, HOUR, MINUTE, Snapshot, StatsItems
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

#: Every statistic that can be asked for.
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

#: How often `sample` is to be called.
SAMPLE_SECONDS: Final = 1.0
#: More queues than these are counted only as often as the shortest span needs it.
_FEW_QUEUES: Final = 512
_MANY_QUEUES_MS: Final = 10_000
#: So many queues are counted before the loop gets its turn.
_QUEUES_AT_ONCE: Final = 32
#: So many messages more take as long as one queue more.
_MESSAGES_LIKE_A_QUEUE: Final = 512
#: Rates go back so far, in seconds.
_LONGEST_RATE: Final = 600
_MINUTE_MS: Final = 60_000


class Totals(NamedTuple):
    """Everything since the start; of pulls, those that found something and those that did not."""

    puts: int = 0
    put_bytes: int = 0
    found: int = 0
    missed: int = 0
    #: Messages that pulls carried.
    transferred: int = 0


class PutTimes(NamedTuple):
    """How long the puts of one minute took; all those of a chunk take the same time."""

    #: Messages whose chunk was stored within a millisecond.
    quick: int = 0
    #: Milliseconds of each slower chunk, in order.
    slow: tuple[int, ...] = ()

    def percentile(self, part: float) -> float:
        """The time in milliseconds within which this part of them was stored."""
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
        #: By group, topic and queue: messages, bytes, pulls.
        self._pulls: dict[tuple[str, str, int], list[int]] = {}
        self._puts = self._put_bytes = self._found = self._transferred = 0
        #: Pulls that found nothing: whoever answers or parks one adds to it.
        self.missed = 0
        self._rates = deque([(now, Totals())], maxlen=_LONGEST_RATE + 1)
        self._day = today()
        self._this_morning = self._yesterday_morning = Totals()
        self._counted_at = now
        self._minute_began = now
        self._minute_began_with = 0
        self._slow: list[int] = []
        #: Of the last whole minute.
        self.put_times = PutTimes()
        #: The longest that a chunk took, in milliseconds.
        self.slowest_put = 0

    def pulled(self, group: str, topic: str, queue_id: int, count: int, size: int) -> None:
        """A pull was answered with messages."""
        try:
            totals = self._pulls[group, topic, queue_id]
        except KeyError:
            totals = self._pulls[group, topic, queue_id] = [0, 0, 0]
        totals[0] += count
        totals[1] += size
        totals[2] += 1

    def sent_back(self, group: str, topic: str) -> None:
        """A consumer sent back a message of this topic."""
        self._items.add(SNDBCK_PUT_NUMS, f"{topic}@{group}", 1)

    async def sample(self) -> None:
        """Each second: count, and take the samples that are due."""
        now = self._monotonic_ms()
        if len(self._growth) <= _FEW_QUEUES or now - self._counted_at >= _MANY_QUEUES_MS:
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
        """Bring all counters up to now."""
        self._counted_at = self._monotonic_ms()
        self._count_pulls()
        add = self._items.add
        work = 0
        for topic, queue_id, messages, size in self._growth.take():
            add(TOPIC_PUT_NUMS, topic, messages, messages)
            add(TOPIC_PUT_SIZE, topic, size, messages)
            key = f"{topic}@{queue_id}"
            add(QUEUE_PUT_NUMS, key, messages, messages)
            add(QUEUE_PUT_SIZE, key, size, messages)
            add(BROKER_PUT_NUMS, self._cluster, messages, 0)
            self._puts += messages
            self._put_bytes += size
            work += 1 + messages // _MESSAGES_LIKE_A_QUEUE
            if work >= _QUEUES_AT_ONCE:
                work = 0
                await asyncio.sleep(0)
        slow, self._growth.slow_seals = self._growth.slow_seals, []
        self._slow += slow
        self.slowest_put = max(self.slowest_put, *slow, 0)

    def _count_pulls(self) -> None:
        pulls, self._pulls = self._pulls, {}
        add = self._items.add
        for (group, topic, queue_id), (count, size, times) in pulls.items():
            add(GROUP_GET_NUMS, f"{topic}@{group}", count, times)
            add(GROUP_GET_SIZE, f"{topic}@{group}", size, times)
            add(QUEUE_GET_NUMS, f"{topic}@{queue_id}@{group}", count, times)
            add(QUEUE_GET_SIZE, f"{topic}@{queue_id}@{group}", size, times)
            add(GROUP_GET_LATENCY, f"{queue_id}@{topic}@{group}", 0, times)
            add(BROKER_GET_NUMS, self._cluster, count, 0)
            self._found += times
            self._transferred += count

    # Asking

    def view(self, name: str, key: str) -> BrokerStatsData | None:
        """One statistic over a minute, an hour and a day; None when nothing was counted."""
        item = self._items.find(name, key)
        if item is None:
            return None
        spans = (self._items.snapshot(item, span) for span in (MINUTE, HOUR, DAY))
        return BrokerStatsData(*map(_as_body, spans))

    def group_get_tps(self, group: str, topic: str) -> float:
        """Messages of a topic that a group pulled per second, over the last minute."""
        item = self._items.find(GROUP_GET_NUMS, f"{topic}@{group}")
        return self._items.snapshot(item, MINUTE).tps if item is not None else 0.0

    @property
    def totals(self) -> Totals:
        """Everything since the start, up to the last count."""
        return Totals(self._puts, self._put_bytes, self._found, self.missed, self._transferred)

    @property
    def refused_puts(self) -> int:
        """Puts since the start that the store did not take."""
        return self._growth.refused_puts

    @property
    def this_morning(self) -> Totals:
        """The totals when this day began; nothing, when the broker has started today."""
        return self._this_morning

    @property
    def yesterday_morning(self) -> Totals:
        """The totals when the day before began."""
        return self._yesterday_morning

    def rates(self, number: Callable[[Totals], int]) -> tuple[float, ...]:
        """What a number grew by per second, over the last 10, 60 and 600 seconds.

        Of a broker that runs for a shorter time, over that.
        """
        return tuple(self._rate(number, seconds) for seconds in (10, 60, _LONGEST_RATE))

    def _rate(self, number: Callable[[Totals], int], seconds: int) -> float:
        ended, last = self._rates[-1]
        begun, first = self._rates[-min(seconds + 1, len(self._rates))]
        return (number(last) - number(first)) * 1000 / (ended - begun) if ended > begun else 0.0

    # Forgetting

    def topic_deleted(self, topic: str) -> None:
        """Forget what was counted for a topic."""
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
        """Forget what was counted for a group."""
        for name in (
            QUEUE_GET_NUMS,
            QUEUE_GET_SIZE,
            GROUP_GET_NUMS,
            GROUP_GET_SIZE,
            GROUP_GET_LATENCY,
            SNDBCK_PUT_NUMS,
        ):
            self._items.remove_if(name, lambda key: key.endswith(f"@{group}"))


def _as_body(snapshot: Snapshot) -> BrokerStatsItem:
    return BrokerStatsItem(snapshot.sum, snapshot.tps, snapshot.average)
