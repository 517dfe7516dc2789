"""Figures of a load: what was counted, and what it says as one line, a table or JSON.

A `Recorder` takes what happens (on the event loop of one load), `take` gives it away as a
`Sample`, samples add up to a `Report`. Latencies are kept as counts in buckets that are one
per cent wide, so samples of several processes and of hours of load add up exactly and stay
small. Pure but for the clocks of `Recorder`. Used by `pyromq bench`.
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

#: The first bucket is for everything up to a microsecond, the last one ends after 28 hours.
_LEAST_SECONDS: Final = 1e-6
_GROWTH: Final = math.log(1.01)
_BUCKETS: Final = 2560
_PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9, 99.99)
_MIB: Final = 1024 * 1024
#: Above this share of a core, the load itself may be what was measured.
_BUSY_CORES: Final = 0.9


class Latencies:
    """How often which latency was seen."""

    __slots__ = ("counts", "longest", "total")

    def __init__(self) -> None:
        self.counts: npt.NDArray[np.int64] = np.zeros(_BUCKETS, np.int64)
        self.total = 0.0
        self.longest = 0.0

    @classmethod
    def of(cls, seconds: list[float]) -> Latencies:
        """These, each of which may also be negative where clocks differ: they count as 0."""
        self = cls()
        if seconds:
            values = np.maximum(np.array(seconds), _LEAST_SECONDS)
            buckets = np.ceil(np.log(values / _LEAST_SECONDS) / _GROWTH).astype(np.int64)
            self.counts = np.bincount(np.minimum(buckets, _BUCKETS - 1), minlength=_BUCKETS)
            self.total = float(values.sum())
            self.longest = float(values.max())
        return self

    def add(self, other: Latencies) -> None:
        """Count those, too."""
        self.counts = self.counts + other.counts
        self.total += other.total
        self.longest = max(self.longest, other.longest)

    @property
    def count(self) -> int:
        """How many were seen."""
        return int(self.counts.sum())

    def mean(self) -> float:
        """The mean, in seconds; 0 when none was seen."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """So many per cent were not longer, within one per cent, in seconds."""
        if not self.count:
            return 0.0
        rank = max(1, math.ceil(self.count * percent / 100))
        bucket = int(np.searchsorted(np.cumsum(self.counts), rank))
        return min(_LEAST_SECONDS * math.exp(bucket * _GROWTH), self.longest)


@dataclass(slots=True)
class Sample:
    """What happened since the last one."""

    messages: int = 0
    size: int = 0
    #: Processor time of the process that made the load, in seconds.
    cpu: float = 0.0
    latencies: Latencies = field(default_factory=Latencies)
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, other: Sample) -> None:
        """Count that, too."""
        self.messages += other.messages
        self.size += other.size
        self.cpu += other.cpu
        self.latencies.add(other.latencies)
        self.errors += other.errors


class Recorder:
    """Counts while a load runs; lists, because a load appends tens of thousands a second."""

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0
        self.latencies: list[float] = []
        self.errors: Counter[str] = Counter()
        self._cpu = time.process_time()

    def take(self) -> Sample:
        """What happened since the last call."""
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
    """An interval of the load, for plots: when it ended, rate and latencies in seconds."""

    at: float
    rate: float
    p50: float
    p99: float
    longest: float


class Report:
    """A whole load: its sum, and its course."""

    def __init__(self, title: str, latency_name: str, processes: int) -> None:
        self.title = title
        self.points: list[Point] = []
        self.sum = Sample()
        self.seconds = 0.0
        self.ended_early = False
        self._latency_name = latency_name
        self._processes = processes

    def add(self, sample: Sample, now: float) -> None:
        """What happened until `now`, in seconds since the load began."""
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
        """Messages per second, over all."""
        return self.sum.messages / self.seconds if self.seconds else 0.0

    @property
    def failed(self) -> int:
        """How many messages failed."""
        return self.sum.errors.total()

    def line(self) -> str:
        """How it goes."""
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
        """How it was."""
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
        table.add_row("CPU of the client, µs a message", f"{self._cpu_us():.1f}")
        table.add_row("cores that the client used", f"{self._cores():.2f}")
        if total.errors:
            table.add_section()
            for reason, count in total.errors.most_common():
                table.add_row(f"failed: {reason}", f"{count:,}")
        if self._cores() > _BUSY_CORES * self._processes:
            table.caption = "The client was busy all the time: it may be the limit (--processes)."
        return table

    def json(self) -> dict[str, Any]:
        """The same for programs; times in seconds, latencies in milliseconds."""
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
