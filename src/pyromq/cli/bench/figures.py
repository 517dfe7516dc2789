"""Figures of a load: counters, and reports as one line, a table or JSON.

A `Recorder` counts on the event loop of a load, `take` returns the counts as a `Sample`, and
samples add up to a `Report`. Latencies are counts in buckets 1 % wide, so samples of several
processes and of hours of load add up exactly and stay small. Pure except for the clock of
`Recorder`. Used by `pyromq bench`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from rich.table import Table

#: The first bucket holds everything up to 1 µs; the last one ends at 28 hours.
_MIN_SECONDS: Final = 1e-6
_GROWTH: Final = math.log(1.01)
_BUCKETS: Final = 2560
_PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9, 99.99)
_MIB: Final = 1024 * 1024
#: Above this share of a core per process, the client itself may be the bottleneck.
_BUSY_CORES: Final = 0.9


class Latencies:
    """A histogram of latencies."""

    __slots__ = ("counts", "longest", "total")

    def __init__(self) -> None:
        self.counts: npt.NDArray[np.int64] = np.zeros(_BUCKETS, np.int64)
        self.total = 0.0
        self.longest = 0.0

    @classmethod
    def of(cls, seconds: list[float]) -> Latencies:
        """Count latencies; negative ones, from clocks that differ, count as the minimum."""
        self = cls()
        if seconds:
            values = np.maximum(np.array(seconds), _MIN_SECONDS)
            buckets = np.ceil(np.log(values / _MIN_SECONDS) / _GROWTH).astype(np.int64)
            self.counts = np.bincount(np.minimum(buckets, _BUCKETS - 1), minlength=_BUCKETS)
            self.total = float(values.sum())
            self.longest = float(values.max())
        return self

    def add(self, other: Latencies) -> None:
        """Add another histogram."""
        self.counts = self.counts + other.counts
        self.total += other.total
        self.longest = max(self.longest, other.longest)

    @property
    def count(self) -> int:
        """Return the number of latencies."""
        return int(self.counts.sum())

    def mean(self) -> float:
        """Return the mean in seconds, or 0 without latencies."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """Return a percentile in seconds, accurate to 1 %."""
        if not self.count:
            return 0.0
        rank = max(1, math.ceil(self.count * percent / 100))
        bucket = int(np.searchsorted(np.cumsum(self.counts), rank))
        return min(_MIN_SECONDS * math.exp(bucket * _GROWTH), self.longest)


@dataclass(slots=True)
class Sample:
    """The counts of an interval."""

    messages: int = 0
    size: int = 0
    #: CPU seconds of the process that ran the load.
    cpu: float = 0.0
    latencies: Latencies = field(default_factory=Latencies)
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, other: Sample) -> None:
        """Add another sample."""
        self.messages += other.messages
        self.size += other.size
        self.cpu += other.cpu
        self.latencies.add(other.latencies)
        self.errors += other.errors


class Recorder:
    """Counts while a load runs. Latencies go to a list: appends are cheap at 50,000 per second."""

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0
        self.latencies: list[float] = []
        self.errors: Counter[str] = Counter()
        self._cpu = time.process_time()

    def take(self) -> Sample:
        """Return the counts since the last call and reset them."""
        cpu = time.process_time()
        sample = Sample(
            self.messages,
            self.size,
            cpu - self._cpu,
            Latencies.of(self.latencies),
            self.errors,
        )
        self._cpu = cpu
        self.messages = self.size = 0
        self.latencies.clear()
        self.errors = Counter()
        return sample


@dataclass(frozen=True, slots=True)
class Point:
    """An interval of a load, for plots: its end, its rate, its latencies in seconds."""

    at: float
    rate: float
    p50: float
    p99: float
    longest: float


class Report:
    """The figures of a whole load: totals and a timeline."""

    def __init__(self, title: str, latency_name: str, processes: int) -> None:
        self.title = title
        self.points: list[Point] = []
        self.sum = Sample()
        self.seconds = 0.0
        self.ended_early = False
        self._latency_name = latency_name
        self._processes = processes

    def add(self, sample: Sample, now: float) -> None:
        """Add the sample that ended at `now`, in seconds since the load began."""
        elapsed = now - self.seconds
        self.sum.add(sample)
        self.seconds = now
        if elapsed > 0:
            latencies = sample.latencies
            self.points.append(
                Point(
                    now,
                    sample.messages / elapsed,
                    latencies.percentile(50),
                    latencies.percentile(99),
                    latencies.longest,
                )
            )

    @property
    def rate(self) -> float:
        """Return the mean messages per second."""
        return self.sum.messages / self.seconds if self.seconds else 0.0

    @property
    def failed(self) -> int:
        """Return the number of failed messages."""
        return self.sum.errors.total()

    def line(self) -> str:
        """Return the progress as one line."""
        latencies = self.sum.latencies
        rate = self.points[-1].rate if self.points else 0.0
        text = (
            f"{self.seconds:.0f} s  {self.sum.messages:,} messages  {rate:,.0f}/s now  "
            f"{self.rate:,.0f}/s  p50 {_milliseconds(latencies.percentile(50))}  "
            f"p99 {_milliseconds(latencies.percentile(99))}  "
            f"p99.9 {_milliseconds(latencies.percentile(99.9))}"
        )
        return text + (f"  {self.failed:,} failed" if self.failed else "")

    def table(self) -> Table:
        """Return the totals as a table."""
        total = self.sum
        table = Table(title=self.title, show_header=False, title_justify="left")
        table.add_column()
        table.add_column(justify="right")
        table.add_row("messages", f"{total.messages:,}")
        table.add_row("seconds", f"{self.seconds:.2f}")
        table.add_row("messages/s", f"{self.rate:,.0f}")
        table.add_row("MiB/s", f"{self._mib_per_second():.2f}")
        table.add_section()
        for name, seconds in self._latencies():
            table.add_row(f"{self._latency_name}, {name}", _milliseconds(seconds))
        table.add_section()
        table.add_row("client CPU, µs per message", f"{self._cpu_us():.1f}")
        table.add_row("client cores used", f"{self._cores():.2f}")
        if total.errors:
            table.add_section()
            for reason, count in total.errors.most_common():
                table.add_row(f"failed: {reason}", f"{count:,}")
        if self._cores() > _BUSY_CORES * self._processes:
            table.caption = (
                "The client was busy all the time and may be the bottleneck: try --processes."
            )
        return table

    def json(self) -> dict[str, Any]:
        """Return the totals and the timeline; times in seconds, latencies in milliseconds."""
        return {
            "title": self.title,
            "messages": self.sum.messages,
            "failed": self.failed,
            "errors": dict(self.sum.errors.most_common()),
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(self.rate, 1),
            "mib_per_second": round(self._mib_per_second(), 3),
            "latency": self._latency_name,
            "latency_ms": {name: round(value * 1e3, 3) for name, value in self._latencies()},
            "client_cpu_us": round(self._cpu_us(), 2),
            "client_cores": round(self._cores(), 2),
            "processes": self._processes,
            "ended_early": self.ended_early,
            "course": [
                {
                    "at": round(point.at, 2),
                    "messages_per_second": round(point.rate, 1),
                    "p50_ms": round(point.p50 * 1e3, 3),
                    "p99_ms": round(point.p99 * 1e3, 3),
                    "max_ms": round(point.longest * 1e3, 3),
                }
                for point in self.points
            ],
        }

    def _latencies(self) -> list[tuple[str, float]]:
        latencies = self.sum.latencies
        return [
            ("mean", latencies.mean()),
            *((f"p{percent:g}", latencies.percentile(percent)) for percent in _PERCENTILES),
            ("max", latencies.longest),
        ]

    def _mib_per_second(self) -> float:
        return self.sum.size / _MIB / self.seconds if self.seconds else 0.0

    def _cpu_us(self) -> float:
        return self.sum.cpu / self.sum.messages * 1e6 if self.sum.messages else 0.0

    def _cores(self) -> float:
        return self.sum.cpu / self.seconds if self.seconds else 0.0


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.3g} ms" if seconds < 1 else f"{seconds:,.2f} s"
