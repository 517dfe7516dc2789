"""The cases and the bounds that their results must meet.

Pure data, read by bench/__main__.py, bench/load.py and bench/report.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

WARM_TOPIC = "BenchmarkWarm"


class Kind(StrEnum):
    """The kind of requests a case sends."""

    SEND = "send"
    BATCH = "batch"
    PULL = "pull"


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of load: a closed loop of `in_flight` requests on each of `connections`."""

    name: str
    title: str
    kind: Kind
    topic: str
    body_size: int
    connections: int
    in_flight: int
    #: Messages of this case per message of --messages.
    scale: float


WARM_UP = Case("warm", "warm-up", Kind.SEND, WARM_TOPIC, 128, 4, 64, 1.0)

#: Pulls read the warm-up's messages repeatedly, so each case can run alone. The first pull case
#: has one request in flight per connection, the second one per queue, as a RocketMQ consumer has: 8
#: queues on 4 connections make 2 each.
CASES = (
    Case("send128", "send 128 B, 4 x 64 in flight", Kind.SEND, "BenchmarkSend128", 128, 4, 64, 1.0),
    Case("send1k", "send 1 KiB, 4 x 64 in flight", Kind.SEND, "BenchmarkSend1k", 1024, 4, 64, 0.5),
    Case(
        "batch", "batch 32 x 128 B, 4 x 8 in flight", Kind.BATCH, "BenchmarkBatch", 128, 4, 8, 2.0
    ),
    Case("pull", "pull 32 at a time, 4 x 1 in flight", Kind.PULL, WARM_TOPIC, 128, 4, 1, 2.0),
    Case("pull2", "pull 32 at a time, 4 x 2 in flight", Kind.PULL, WARM_TOPIC, 128, 4, 2, 4.0),
    Case("one", "send 128 B, 1 in flight", Kind.SEND, "BenchmarkOne", 128, 1, 1, 0.04),
)

#: Measured alone, on servers with flushDiskType=SYNC_FLUSH.
SYNC = Case(
    "sync",
    "send 1 KiB with SYNC_FLUSH, 4 x 64 in flight",
    Kind.SEND,
    "BenchmarkSync",
    1024,
    4,
    64,
    0.2,
)


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit on the ratio of pyromq's figure to Java's."""

    case: str  # "" means the whole run
    figure: str
    limit: float
    at_most: bool = True

    def kept(self, ratio: float) -> bool:
        """Return whether a ratio meets the bound."""
        return ratio <= self.limit if self.at_most else ratio >= self.limit


BOUNDS = (
    Bound("send128", "cpu_us", 0.5),
    Bound("send1k", "cpu_us", 0.45),
    Bound("batch", "cpu_us", 0.85),
    Bound("pull", "cpu_us", 0.3),
    Bound("send128", "rate", 1.25, at_most=False),
    Bound("send128", "p99_ms", 0.6),
    Bound("one", "p50_ms", 0.6),
    Bound("send128", "rss_mib", 0.3),
    Bound("", "rss_mib", 0.3),
    Bound("", "startup_s", 0.3),
    Bound("sync", "rate", 1.3, at_most=False),
    Bound("sync", "p99_ms", 1.0),
)
