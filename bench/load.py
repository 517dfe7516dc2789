"""Runs one case against one server, in its own process, and measures both.

`python -m bench.load '<json of LoadOrder>'`, started by bench/compare.py, prints one line of JSON.
The load is bench/generator.py's closed loops on raw sockets, or Kafka's own client.

Before the clock starts, slices of the same load run until the server's CPU per message has stopped
falling: a JVM compiles and recompiles a path for millions of messages. Every server gets the same
treatment; most need the minimum of slices. After each slice the server becomes idle, so work that
it deferred counts in its slice.
"""

from __future__ import annotations

import gc
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np
import orjson

from bench import nats, tls
from bench.answers import LoadError
from bench.cases import FILL, KAFKA, NATS, RAFT, REPLICATED, THROUGHPUT, Case, Kind
from bench.frames import (
    QUEUES,
    Encoding,
    Ring,
    batch_ring,
    pull_ring,
    send_ring,
)
from bench.generator import Client, drive
from bench.kafka import KafkaLoad
from bench.process import cpu_seconds, own_cpu, wait_until_resting

_SEND_RING_FRAMES = 4_096
_BATCH_RING_FRAMES = 512
_RING_BYTES = 32 * 1024 * 1024  # per connection, for large bodies
_SLICE_SECONDS = 1.0
#: A slice has settled if its CPU per message is this close to the best slice before it.
_SETTLED = (0.97, 1.10)
_SETTLED_SLICES = 3


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """The order for the load's process: case, server, amounts."""

    case: str
    system: str
    port: int
    server_pid: int
    messages: int
    max_slices: int
    first_lap: int = 0  # rounds must not repeat each other's keys
    stored_per_queue: int = 0  # for pulls: messages per queue of the topic
    replica_pids: Sequence[int] = ()  # measured together with the server

    @property
    def pids(self) -> tuple[int, ...]:
        """Return all processes whose CPU counts."""
        return self.server_pid, *self.replica_pids


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The figures of a case, in the units of their names."""

    messages: int  # accepted
    accepted: int  # with the slices before
    refused: int
    slices: int
    settled: float  # 1 if the warm-up ended because the CPU per message had settled, else 0
    seconds: float
    rate: float
    cpu_us: float  # of the server, per message, until it rested
    server_cores: float
    load_cores: float
    load_us: float  # CPU of the load generator, per message
    answers_per_read: float
    p50_ms: float
    p99_ms: float
    p999_ms: float


class Load(Protocol):
    """A closed loop that can be resumed."""

    #: Messages of the smallest amount that can be run.
    unit: int

    def run(self, messages: int) -> None:
        """Send or pull messages; return when all are answered."""

    def forget(self) -> int:
        """Drop all measurements; return the number of messages refused since the last call."""

    def results(self) -> tuple[Sequence[float], int, int]:
        """Return p50, p99 and p99.9 in ms, refused messages, and the number of reads."""

    def cpu(self) -> float:
        """Return the CPU seconds that the load itself has used."""


def main() -> None:
    """Run the order given on the command line."""
    order = LoadOrder(**orjson.loads(sys.argv[1]))
    gc.disable()  # nothing here creates cycles, and a pause would count as the server's
    try:
        result = run(order)
    except (LoadError, OSError) as error:
        sys.exit(f"{order.case} against {order.system} at port {order.port}: {error}")
    sys.stdout.write(orjson.dumps(asdict(result)).decode() + "\n")


def run(order: LoadOrder) -> LoadResult:
    """Connect, warm up, measure, wait until the server is idle."""
    known = (FILL, *THROUGHPUT, REPLICATED, RAFT)
    case = next(case for case in known if case.name == order.case)
    with ExitStack() as stack:
        return measure(_connected(case, order, stack), order)


def measure(load: Load, order: LoadOrder) -> LoadResult:
    """Warm up, then measure."""
    slices, accepted, is_settled = _warm_up(load, order)
    messages = whole(order.messages, load.unit)
    server_before = cpu_seconds(*order.pids)
    load_before = load.cpu()
    began = time.perf_counter()
    load.run(messages)
    seconds = time.perf_counter() - began
    load_cpu = load.cpu() - load_before
    server_busy = cpu_seconds(*order.pids) - server_before
    server_cpu = wait_until_resting(*order.pids) - server_before
    (p50, p99, p999), refused, reads = load.results()
    frames = messages // load.unit
    messages -= refused
    if not messages:
        raise LoadError("the server refused every request as busy")
    return LoadResult(
        messages=messages,
        accepted=accepted + messages,
        refused=refused,
        slices=slices,
        settled=float(is_settled),
        seconds=seconds,
        rate=messages / seconds,
        cpu_us=server_cpu / messages * 1e6,
        server_cores=server_busy / seconds,
        load_cores=load_cpu / seconds,
        load_us=load_cpu / messages * 1e6,
        answers_per_read=frames / reads if reads else 0.0,
        p50_ms=p50,
        p99_ms=p99,
        p999_ms=p999,
    )


def _warm_up(load: Load, order: LoadOrder) -> tuple[int, int, bool]:
    """Run slices until the server's CPU per message has settled, and leave it idle.

    Returns the number of slices, of accepted messages, and whether it settled within the maximum.
    """
    size = whole(order.messages // 20, load.unit)
    accepted = 0
    wait_until_resting(*order.pids)
    costs: list[float] = []
    while len(costs) < order.max_slices and not has_settled(costs):
        before = cpu_seconds(*order.pids)
        began = time.perf_counter()
        load.run(size)
        seconds = time.perf_counter() - began
        done = size - load.forget()
        costs.append((wait_until_resting(*order.pids) - before) / max(1, done))
        accepted += done
        size = whole(min(int(size / seconds * _SLICE_SECONDS), order.messages), load.unit)
    return len(costs), accepted, has_settled(costs)


def has_settled(costs: Sequence[float]) -> bool:
    """Return whether the last slices neither fell below the best before them nor rose above it."""
    if len(costs) <= _SETTLED_SLICES:
        return False
    best = min(costs[:-_SETTLED_SLICES])
    low, high = _SETTLED
    return all(low * best <= cost <= high * best for cost in costs[-_SETTLED_SLICES:])


def whole(messages: int, unit: int) -> int:
    """Round down to whole frames over all queues, to at least one each."""
    size = unit * QUEUES
    return max(1, messages // size) * size


class SocketLoad:
    """Closed loops on raw sockets."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self.unit = clients[0].ring.messages_per_frame
        self._clients = clients

    def run(self, messages: int) -> None:
        """Send requests over all connections."""
        drive(self._clients, messages // self.unit)

    def forget(self) -> int:
        """Check and drop all responses."""
        return sum(client.forget_times() for client in self._clients) * self.unit

    def results(self) -> tuple[Sequence[float], int, int]:
        """Match requests and responses."""
        measured = [client.latencies() for client in self._clients]
        times = np.concatenate([each for each, _ in measured]) / 1e6
        refused = sum(each for _, each in measured) * self.unit
        reads = sum(client.reads for client in self._clients)
        return np.percentile(times, (50, 99, 99.9)).tolist(), refused, reads

    def cpu(self) -> float:
        """Return this process's CPU time."""
        return own_cpu()


def _connected(case: Case, order: LoadOrder, stack: ExitStack) -> Load:
    if order.system == KAFKA:
        kind = "consume" if case.kind is Kind.PULL else "produce"
        return stack.enter_context(KafkaLoad(kind, order.port, case.topic, case.body_size))
    connect: Callable[[int, int], socket.socket]
    connect = nats.connect if order.system == NATS else _connect
    if case.is_tls:
        connect = tls.connect
    clients = []
    for number in range(case.connections):
        connection = stack.enter_context(connect(order.port, number))
        ring = _ring(case, number, order)
        clients.append(Client(connection, ring, case.in_flight, order.first_lap))
    return SocketLoad(clients)


def _connect(port: int, _number: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port))


def _ring(case: Case, connection: int, order: LoadOrder) -> Ring:
    born = int(time.time() * 1000)
    size = case.body_size
    sends = min(_SEND_RING_FRAMES, max(_RING_BYTES // size, case.in_flight))
    if order.system == NATS:
        return nats.publish_ring(case.topic, sends, size, connection)
    match case.kind:
        case Kind.SEND:
            return send_ring(case.topic, sends, size, connection, born)
        case Kind.BINARY:
            return send_ring(case.topic, sends, size, connection, born, Encoding.BINARY)
        case Kind.BATCH:
            return batch_ring(case.topic, _BATCH_RING_FRAMES, size, connection, born)
        case Kind.PULL:
            return pull_ring(case.topic, connection, case.connections, order.stored_per_queue)


if __name__ == "__main__":
    main()
