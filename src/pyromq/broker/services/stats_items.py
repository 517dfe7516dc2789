"""Counters with the totals of their last minute, hour and day.

A counter (`StatsItem`) sums a value and counts the additions. Like RocketMQ's StatsItem it is
sampled every 10 seconds for the minute (6 samples), every 10 minutes for the hour (6) and every
hour for the day (24); a `Snapshot` is the difference between the first and the last sample of a
span. As in RocketMQ a counter starts at 0 one period before its first sample.

RocketMQ samples every counter each time. Here only counters that have changed are sampled, and
idle ones cost nothing: their value at any tick is that of the latest sample before it.

Pure: the clock is a parameter. Used by `services.stats`, on the loop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Final, NamedTuple

_tick_of = itemgetter(0)


class Snapshot(NamedTuple):
    """The total of a counter within a span."""

    sum: int = 0
    #: Per second.
    tps: float = 0.0
    #: `sum` per addition.
    average: float = 0.0
    times: int = 0


class StatsItem:
    """One counter and its samples per span: tick, value, times."""

    __slots__ = ("samples", "times", "value", "waiting")

    def __init__(self) -> None:
        self.value = 0
        self.times = 0
        #: A bit for each span that will sample it.
        self.waiting = 0
        self.samples: tuple[list[tuple[int, int, int]], ...] = tuple([] for _ in _SPANS)


#: Milliseconds between two samples, and samples per span.
_SPANS: Final = ((10_000, 6), (600_000, 6), (3_600_000, 24))
MINUTE, HOUR, DAY = range(len(_SPANS))
_ALL_WAIT: Final = (1 << len(_SPANS)) - 1
#: Samples between two yields to the loop.
_SAMPLES_PER_YIELD: Final = 256


class StatsItems:
    """All counters, by statistic and key."""

    def __init__(self, names: tuple[str, ...], now_ms: int) -> None:
        self._tables: dict[str, dict[str, StatsItem]] = {name: {} for name in names}
        self._spans = [_Span(number, *span, now_ms) for number, span in enumerate(_SPANS)]

    def add(self, name: str, key: str, value: int, times: int = 1) -> None:
        """Add to a counter, which is created if necessary."""
        table = self._tables[name]
        item = table.get(key)
        if item is None:
            item = table[key] = StatsItem()
        item.value += value
        item.times += times
        if item.waiting != _ALL_WAIT:
            for span in self._spans:
                span.note(item)

    def find(self, name: str, key: str) -> StatsItem | None:
        """Return a counter, or None."""
        return self._tables.get(name, {}).get(key)

    def table(self, name: str) -> Mapping[str, StatsItem]:
        """Return the counters of a statistic by key."""
        return self._tables[name]

    def snapshot(self, item: StatsItem, span: int) -> Snapshot:
        """Return a counter's last MINUTE, HOUR or DAY, up to the latest sample."""
        return self._spans[span].snapshot(item)

    def remove(self, name: str, key: str) -> None:
        """Forget a counter."""
        self._tables[name].pop(key, None)

    def remove_if(self, name: str, unwanted: Callable[[str], bool]) -> None:
        """Forget the counters of a statistic with unwanted keys."""
        for key in [key for key in self._tables[name] if unwanted(key)]:
            self.remove(name, key)

    def sample(self, now_ms: int) -> Iterator[None]:
        """Take the samples that are due; yields where other work may run."""
        for span in self._spans:
            yield from span.sample(now_ms)


class _Span:
    """The ticks of one span and the counters that changed since the last one."""

    def __init__(self, number: int, period_ms: int, length: int, now_ms: int) -> None:
        self._number = number
        self._bit = 1 << number
        self._period_ms = period_ms
        self._length = length
        self._tick = 0
        #: Times of the last `length` ticks and the one before them.
        self._times = deque([now_ms], maxlen=length + 1)
        self._changed: list[StatsItem] = []

    def note(self, item: StatsItem) -> None:
        """Sample a counter at the next tick."""
        if not item.waiting & self._bit:
            item.waiting |= self._bit
            self._changed.append(item)

    def sample(self, now_ms: int) -> Iterator[None]:
        """Sample the changed counters if a tick is due."""
        if now_ms - self._times[-1] < self._period_ms:
            return
        self._tick += 1
        self._times.append(now_ms)
        oldest = self._tick - self._length
        changed, self._changed = self._changed, []
        for count, item in enumerate(changed, 1):
            samples = item.samples[self._number]
            if not samples:
                samples.append((self._tick - 1, 0, 0))
            samples.append((self._tick, item.value, item.times))
            item.waiting &= ~self._bit
            # Keep the last sample before the span: it is the value at its beginning.
            passed = bisect_right(samples, oldest, key=_tick_of) - 1
            if passed > 0:
                del samples[:passed]
            if count % _SAMPLES_PER_YIELD == 0:
                yield

    def snapshot(self, item: StatsItem) -> Snapshot:
        """Return the difference over the span."""
        samples = item.samples[self._number]
        if not samples:
            return Snapshot()
        first_tick = max(self._tick - self._length, samples[0][0])
        first = samples[bisect_right(samples, first_tick, key=_tick_of) - 1]
        last = samples[-1]
        value, times = last[1] - first[1], last[2] - first[2]
        elapsed = self._times[-1] - self._times[first_tick - self._tick - 1]
        return Snapshot(
            value,
            value * 1000 / elapsed if elapsed > 0 else 0.0,
            value / times if times else 0.0,
            times,
        )
