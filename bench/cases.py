"""The cases and the bounds that their results must meet.

Pure data, read by most modules of the benchmark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

JAVA, PYROMQ, PURE, BASE, NATS, KAFKA = "java", "pyromq", "pure", "base", "nats", "kafka"
#: Acknowledges without storing: shows what the load generator can do.
ACK = "ack"
#: Systems under test, in the order of a round.
CONTENDERS = (JAVA, PYROMQ, PURE, BASE, NATS, KAFKA, ACK)
#: The contenders that speak RocketMQ's protocol.
ROCKETMQ = (JAVA, PYROMQ, PURE, BASE)

WARM_TOPIC = "BenchmarkWarm"


class Kind(StrEnum):
    """The kind of requests a case sends."""

    SEND = "send"
    BINARY = "binary"  # sends whose header has the binary encoding instead of JSON
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
    contenders: tuple[str, ...] = ROCKETMQ
    is_sync: bool = False  # runs on servers with flushDiskType=SYNC_FLUSH
    is_tls: bool = False  # runs over TLS
    is_replicated: bool = False  # runs on pairs or groups, and every response must be a success


_SEND, _PULL = Kind.SEND, Kind.PULL

#: Fills the topic of the pulls. Java compiles the common paths meanwhile.
FILL = Case("fill", "fill", _SEND, WARM_TOPIC, 128, 4, 64, 1.0, CONTENDERS)

#: Pulls read the same messages repeatedly, so each case can run alone. The first pull case has one
#: request in flight per connection, the second one per queue, as a RocketMQ consumer has: 8 queues
#: on 4 connections make 2 each.
THROUGHPUT = (
    Case(
        "send128",
        "send 128 B, 4 x 64 in flight",
        _SEND,
        "BenchmarkSend128",
        128,
        4,
        64,
        1.0,
        CONTENDERS,
    ),
    Case(
        "send1k",
        "send 1 KiB, 4 x 64 in flight",
        _SEND,
        "BenchmarkSend1k",
        1024,
        4,
        64,
        0.5,
        CONTENDERS,
    ),
    Case(
        "binary",
        "send 128 B with a binary header, 4 x 64 in flight",
        Kind.BINARY,
        "BenchmarkBinary",
        128,
        4,
        64,
        1.0,
    ),
    Case(
        "batch",
        "batch 32 x 128 B, 4 x 8 in flight",
        Kind.BATCH,
        "BenchmarkBatch",
        128,
        4,
        8,
        2.0,
        (*ROCKETMQ, ACK),
    ),
    Case(
        "pull",
        "pull 32 at a time, 4 x 1 in flight",
        _PULL,
        WARM_TOPIC,
        128,
        4,
        1,
        2.0,
        (*ROCKETMQ, KAFKA),
    ),
    Case("pull2", "pull 32 at a time, 4 x 2 in flight", _PULL, WARM_TOPIC, 128, 4, 2, 4.0),
    Case(
        "one",
        "send 128 B, 1 in flight",
        _SEND,
        "BenchmarkOne",
        128,
        1,
        1,
        0.04,
        (*ROCKETMQ, NATS),
    ),
    Case(
        "send64k",
        "send 64 KiB, 4 x 8 in flight",
        _SEND,
        "BenchmarkSend64k",
        64 * 1024,
        4,
        8,
        0.02,
        (*ROCKETMQ, NATS),
    ),
    Case(
        "send1m",
        "send 1 MiB, 4 x 2 in flight",
        _SEND,
        "BenchmarkSend1m",
        1024 * 1024,
        4,
        2,
        0.001,
    ),
    Case(
        "sync",
        "send 1 KiB with SYNC_FLUSH, 4 x 64 in flight",
        _SEND,
        "BenchmarkSync",
        1024,
        4,
        64,
        0.2,
        is_sync=True,
    ),
    Case(
        "tls",
        "send 128 B over TLS, 4 x 64 in flight",
        _SEND,
        "BenchmarkTls",
        128,
        4,
        64,
        0.5,
        is_tls=True,
    ),
    Case(
        "tlspull",
        "pull 32 at a time over TLS, 4 x 1 in flight",
        _PULL,
        WARM_TOPIC,
        128,
        4,
        1,
        1.0,
        is_tls=True,
    ),
)

#: Not part of THROUGHPUT: a run of it starts a master and a replica of each contender.
REPLICATED = Case(
    "replication",
    "send 128 B with SYNC_MASTER and a replica, 4 x 64 in flight",
    _SEND,
    "BenchmarkReplicated",
    128,
    4,
    64,
    0.5,
    is_replicated=True,
)

#: As REPLICATED, with a raft group of three nodes.
RAFT = Case(
    "raft",
    "send 128 B to a raft group of three, 4 x 64 in flight",
    _SEND,
    "BenchmarkRaft",
    128,
    4,
    64,
    0.2,
    is_replicated=True,
)

#: The only figure of a round with a response that was not a success.
INVALID = "invalid"

#: Figures of a case and how to print them, by the name of the figure.
Figures = dict[str, tuple[str, str]]

LOAD_FIGURES: Figures = {
    "cpu_us": ("server CPU µs per message", "{:.2f}"),
    "rate": ("messages/s", "{:,.0f}"),
    "p50_ms": ("p50 ms", "{:.3f}"),
    "p99_ms": ("p99 ms", "{:.3f}"),
    "p999_ms": ("p99.9 ms", "{:.3f}"),
    "rss_mib": ("server RSS MiB", "{:,.0f}"),
    "server_cores": ("cores the server used", "{:.2f}"),
    "load_cores": ("cores the load generator used", "{:.2f}"),
    "load_us": ("generator CPU µs per message", "{:.2f}"),
    "slices": ("slices of warm-up", "{:.0f}"),
}
_REPLICATED_FIGURES: Figures = LOAD_FIGURES | {
    "cpu_us": ("CPU of master and replica, µs per message", "{:.2f}"),
    "rss_mib": ("RSS of master and replica, MiB", "{:,.0f}"),
    "server_cores": ("cores that both used", "{:.2f}"),
}
_CATCH_UP_FIGURES: Figures = {
    "rate": ("log received and dispatched, MB/s", "{:,.0f}"),
    "catch_up_s": ("first received byte to the end, s", "{:.2f}"),
    "cpu_s": ("CPU of master and replica, s", "{:.2f}"),
    "wait_s": ("start of the replica to its first byte, s", "{:.2f}"),
}
_RAFT_FIGURES: Figures = LOAD_FIGURES | {
    "cpu_us": ("CPU of all three nodes, µs per message", "{:.2f}"),
    "rss_mib": ("RSS of all three, MiB", "{:,.0f}"),
    "server_cores": ("cores that all three used", "{:.2f}"),
}
_FAIL_OVER_FIGURES: Figures = {
    "fail_over_s": ("kill to the first accepted send, s", "{:.2f}"),
    "route_s": ("kill to the NameServer's new route, s", "{:.2f}"),
}
_START_FIGURES: Figures = {
    "startup_s": ("start to first accepted send, s", "{:.3f}"),
    "rest_mib": ("server RSS at rest, MiB", "{:,.1f}"),
    "anonymous_mib": ("  anonymous", "{:,.1f}"),
}
_RECOVERY_FIGURES: Figures = {
    "recovery_s": ("recovery, s", "{:.2f}"),
    "rate": ("recovery, MB/s", "{:,.0f}"),
    "indexed_s": ("until every key is indexed, s", "{:.2f}"),
    "indexed_rate": ("until every key is indexed, MB/s", "{:,.0f}"),
    "first_send_s": ("start to first accepted send, s", "{:.2f}"),
}
_CLIENT_FIGURES: Figures = {
    "rate": ("messages/s", "{:,.0f}"),
    "cpu_us": ("client CPU µs per message", "{:.2f}"),
    "rss_mib": ("client RSS MiB", "{:,.0f}"),
    "start_s": ("process start to first message, s", "{:.2f}"),
    "broker_us": ("broker CPU µs per message", "{:.2f}"),
}


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report: a case and its figures."""

    name: str
    title: str
    figures: Figures = field(hash=False)


#: Clients, recovery, catching up and fail-over have their own modules; these are their names in a
#: report.
START, RECOVERY, CATCH_UP, FAIL_OVER = "start", "recovery", "catchup", "failover"
CLIENT_TITLES = {
    "client-send": "client: async single sends, 256 in flight",
    "client-accumulate": "client: sends through the accumulator",
    "client-push": "client: push consumption, one message per call",
    "client-lists": "client: push consumption, lists",
}
SECTIONS = (
    *(Section(case.name, case.title, LOAD_FIGURES) for case in THROUGHPUT),
    Section(REPLICATED.name, REPLICATED.title, _REPLICATED_FIGURES),
    Section(CATCH_UP, "replica that catches up", _CATCH_UP_FIGURES),
    Section(RAFT.name, RAFT.title, _RAFT_FIGURES),
    Section(FAIL_OVER, "kill of a raft group's leader", _FAIL_OVER_FIGURES),
    Section(START, "start on an empty store", _START_FIGURES),
    Section(RECOVERY, "recovery after a kill", _RECOVERY_FIGURES),
    *(Section(name, title, _CLIENT_FIGURES) for name, title in CLIENT_TITLES.items()),
)


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit on the ratio of one contender's figure to another's."""

    case: str
    figure: str
    limit: float
    at_most: bool = True
    subject: str = PYROMQ
    reference: str = JAVA
    reference_case: str = ""  # "" means the same case

    def kept(self, ratio: float) -> bool:
        """Return whether a ratio meets the bound."""
        return ratio <= self.limit if self.at_most else ratio >= self.limit

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.limit:g} x {self.reference}"


BOUNDS = (
    Bound("send128", "cpu_us", 0.2),
    Bound("send128", "cpu_us", 0.6, reference=NATS),
    Bound("send128", "rate", 1.8, at_most=False),
    Bound("send128", "p99_ms", 0.3),
    Bound("send1k", "cpu_us", 0.2),
    Bound("send1k", "rate", 1.5, at_most=False),
    Bound("binary", "cpu_us", 0.2),
    Bound("batch", "cpu_us", 0.4),
    Bound("batch", "rate", 1.2, at_most=False),
    Bound("pull", "cpu_us", 0.15),
    Bound("pull2", "cpu_us", 0.3),
    Bound("one", "p50_ms", 0.4),
    Bound("sync", "cpu_us", 0.3),
    Bound("sync", "rate", 1.5, at_most=False),
    Bound("sync", "p99_ms", 0.8),
    Bound("sync", "p999_ms", 1.0),
    Bound("tls", "cpu_us", 0.8),
    Bound("tlspull", "cpu_us", 0.8),
    Bound(REPLICATED.name, "rate", 1.0, at_most=False),
    Bound(REPLICATED.name, "p99_ms", 1.0),
    Bound(REPLICATED.name, "cpu_us", 0.7),
    Bound(CATCH_UP, "rate", 2.0, at_most=False),
    Bound(RAFT.name, "rate", 1.5, at_most=False),
    Bound(RAFT.name, "cpu_us", 0.6),
    Bound(FAIL_OVER, "fail_over_s", 1.0),
    Bound(RECOVERY, "rate", 3.0, at_most=False),
    Bound(RECOVERY, "indexed_rate", 3.0, at_most=False),
    Bound("client-send", "rate", 1.2, at_most=False),
    Bound("client-accumulate", "rate", 4.0, at_most=False, reference_case="client-send"),
    Bound("client-push", "rate", 1.5, at_most=False),
    Bound("client-lists", "rate", 3.0, at_most=False, reference_case="client-push"),
    Bound(START, "startup_s", 1.05, reference=BASE),
    Bound(START, "rest_mib", 1.05, reference=BASE),
    Bound("send128", "cpu_us", 0.45, subject=PURE),
    Bound("send1k", "cpu_us", 0.5, subject=PURE),
    Bound("batch", "cpu_us", 1.0, subject=PURE),
    Bound("binary", "cpu_us", 0.7, subject=PURE),
)
