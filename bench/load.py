"""The load generator: runs one case against one server, in its own process.

`python -m bench.load '<json of LoadOrder>'`, started by bench/__main__.py, prints one line of
JSON. One thread, raw sockets, one epoll: each wake-up reads everything that arrived on a socket in
one call, counts the responses, and writes as many new requests in one call. A response costs one
step over its length prefix and one match of a compiled expression; times are kept per chunk and
converted to latencies afterwards, so that the generator stays well below one core.

Invariants:
1. A connection never has more than `in_flight` unanswered requests.
2. Every response must be a success and every pull must return the full number of messages,
   otherwise the run fails with the response's header. Only "busy", a broker's flow control, lets
   the run continue: it is counted and reported, and its messages do not count for the rate.
3. A latency starts just before the write that contains the request and ends just after the read
   of the chunk that completed its response.
"""

from __future__ import annotations

import gc
import re
import resource
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import orjson

from bench.cases import CASES, SYNC, WARM_UP, Case, Kind
from bench.frames import (
    OPAQUE_BASE,
    PULL_SIZE,
    Ring,
    batch_ring,
    pull_ring,
    send_ring,
)
from bench.process import cpu_seconds, wait_until_resting

_SEND_RING_FRAMES = 16_384
_BATCH_RING_FRAMES = 1_024
_RECEIVE_BUFFER = 1 << 20
_STALL_SECONDS = 30.0
_SYSTEM_BUSY = 2
_OPAQUE = re.compile(rb'"opaque":(\d+)')
_NEXT_OFFSET = re.compile(rb'"nextBeginOffset":"(\d+)"')
_PREFIX = struct.Struct(">II")


class LoadError(RuntimeError):
    """A response was not a success, or did not arrive."""


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """The order for the load's process: case, server, amounts."""

    case: str
    host: str
    port: int
    server_pid: int
    messages: int
    lead_in: int  # unmeasured messages of the same kind, sent first
    stored_per_queue: int = 0  # for pulls: messages per queue of the topic


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The figures of a case, in the units of their names."""

    messages: int  # accepted
    refused: int
    refused_in_lead_in: int
    seconds: float
    rate: float
    cpu_us: float  # of the server, per message, until it rested
    cpu_us_until_last_answer: float
    server_cores: float
    load_cores: float
    answers_per_read: float
    p50_ms: float
    p99_ms: float
    p999_ms: float


def main() -> None:
    """Run the order given on the command line."""
    order = LoadOrder(**orjson.loads(sys.argv[1]))
    gc.disable()  # nothing here creates cycles, and a pause would count as the server's
    try:
        result = run(order)
    except (LoadError, OSError) as error:
        sys.exit(f"{order.case} against port {order.port}: {error}")
    sys.stdout.write(orjson.dumps(asdict(result)).decode() + "\n")


def run(order: LoadOrder) -> LoadResult:
    """Connect, run the lead-in, measure, wait until the server is idle."""
    case = next(case for case in (WARM_UP, *CASES, SYNC) if case.name == order.case)
    with ExitStack() as connections:
        clients = []
        for number in range(case.connections):
            connection = socket.create_connection((order.host, order.port))
            connections.enter_context(connection)
            clients.append(Client(connection, _ring(case, number, order), case.in_flight))
        return _measure(clients, order)


def _measure(clients: Sequence[Client], order: LoadOrder) -> LoadResult:
    per_frame = clients[0].ring.messages_per_frame
    drive(clients, order.lead_in // per_frame)
    refused_before = sum(client.refused for client in clients) * per_frame
    for client in clients:
        client.forget_times()
    wait_until_resting(order.server_pid)
    server_before = cpu_seconds(order.server_pid)
    load_before = own_cpu()
    began = time.perf_counter()
    frames = order.messages // per_frame
    drive(clients, frames)
    seconds = time.perf_counter() - began
    load_cpu = own_cpu() - load_before
    server_busy = cpu_seconds(order.server_pid) - server_before
    server_cpu = wait_until_resting(order.server_pid) - server_before
    measured = np.concatenate([client.latencies() for client in clients]) / 1e6
    refused = sum(client.refused for client in clients) * per_frame
    messages = frames * per_frame - refused
    if not messages:
        raise LoadError("the server refused every request as busy")
    reads = sum(len(client.answered) for client in clients)
    p50, p99, p999 = np.percentile(measured, (50, 99, 99.9)).tolist()
    return LoadResult(
        messages=messages,
        refused=refused,
        refused_in_lead_in=refused_before,
        seconds=seconds,
        rate=messages / seconds,
        cpu_us=server_cpu / messages * 1e6,
        cpu_us_until_last_answer=server_busy / messages * 1e6,
        server_cores=server_busy / seconds,
        load_cores=load_cpu / seconds,
        answers_per_read=frames / reads,
        p50_ms=p50,
        p99_ms=p99,
        p999_ms=p999,
    )


def _ring(case: Case, connection: int, order: LoadOrder) -> Ring:
    born = int(time.time() * 1000)
    match case.kind:
        case Kind.SEND:
            return send_ring(case.topic, _SEND_RING_FRAMES, case.body_size, connection, born)
        case Kind.BATCH:
            return batch_ring(case.topic, _BATCH_RING_FRAMES, case.body_size, connection, born)
        case Kind.PULL:
            return pull_ring(case.topic, connection, case.connections, order.stored_per_queue)


def drive(clients: Sequence[Client], frames: int) -> None:
    """Send `frames` requests over all clients; return when all are answered."""
    poll = select.epoll(len(clients))
    by_descriptor = {client.socket.fileno(): client for client in clients}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    to_send = to_answer = frames
    for client in clients:
        to_send -= client.fill(to_send)
    with poll:
        while to_answer:
            ready = poll.poll(_STALL_SECONDS)
            if not ready:
                raise LoadError(f"no response within {_STALL_SECONDS:g} s, {to_answer} missing")
            for descriptor, _ in ready:
                client = by_descriptor[descriptor]
                to_answer -= client.receive()
                if to_send:
                    to_send -= client.fill(to_send)


class Client:
    """A connection: its ring, its position, and the times of its writes and reads."""

    def __init__(self, connection: socket.socket, ring: Ring, in_flight: int) -> None:
        self.ring = ring
        self.socket = connection
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.socket.setblocking(False)
        #: (time in ns, number of requests), (time in ns, opaques as text), in order.
        self.sent: list[tuple[int, int]] = []
        self.answered: list[tuple[int, list[bytes]]] = []
        self.refused = 0
        self._next_offsets: list[bytes] = []
        self._first_slot = 0
        self._slot = 0
        self._lap = 0
        self._free = in_flight
        self._starts: list[int] = ring.starts.tolist()
        self._requests = memoryview(ring.data)
        self._buffer = bytearray(_RECEIVE_BUFFER)
        self._view = memoryview(self._buffer)
        self._filled = 0
        ring.start_lap(0)

    def forget_times(self) -> None:
        """Start measuring."""
        self.sent.clear()
        self.answered.clear()
        self.refused = 0
        self._next_offsets.clear()
        self._first_slot = self._slot

    def fill(self, available: int) -> int:
        """Send as many requests as available and allowed in flight; return their number."""
        wanted = min(self._free, available)
        left = wanted
        while left:
            slot = self._slot
            count = min(left, self.ring.frames - slot)
            self.sent.append((time.perf_counter_ns(), count))
            self._write(self._requests[self._starts[slot] : self._starts[slot + count]])
            left -= count
            self._slot = slot + count
            if self._slot == self.ring.frames:
                self._slot = 0
                self._lap += 1
                self.ring.start_lap(self._lap)
        self._free -= wanted
        return wanted

    def receive(self) -> int:
        """Read available bytes; return the number of completed responses."""
        count = self.socket.recv_into(self._view[self._filled :])
        now = time.perf_counter_ns()
        if count == 0:
            raise LoadError("the server closed the connection")
        end = self._filled + count
        position = 0
        heads = []
        while position + 8 <= end:
            total, header = _PREFIX.unpack_from(self._buffer, position)
            following = position + 4 + total
            if following > end:
                if 4 + total > _RECEIVE_BUFFER:
                    raise LoadError(f"a response of {total} bytes is larger than any expected")
                break
            heads.append(self._view[position + 8 : position + 8 + header])
            position = following
        if heads:
            self._count(now, heads)
        self._filled = end - position
        if position and self._filled:
            self._buffer[: self._filled] = self._buffer[position:end]
        return len(heads)

    def _count(self, now: int, heads: list[memoryview]) -> None:
        joined = b"".join(heads)
        opaques = _OPAQUE.findall(joined)
        if len(opaques) != len(heads) or joined.count(b'"code":0,') != len(heads):
            opaques, busy = _read_slowly(heads)
            self.refused += busy
        if self.ring.next_offsets is not None:
            self._next_offsets += _NEXT_OFFSET.findall(joined)
        self.answered.append((now, opaques))
        self._free += len(heads)

    def _write(self, data: memoryview) -> None:
        while data:
            try:
                data = data[self.socket.send(data) :]
            except BlockingIOError:
                select.select((), (self.socket,), (), _STALL_SECONDS)

    def latencies(self) -> npt.NDArray[np.int64]:
        """Return the latency of each request since `forget_times`, in nanoseconds."""
        slots = np.fromiter(
            (int(opaque) for _, opaques in self.answered for opaque in opaques), dtype=np.int64
        )
        slots -= OPAQUE_BASE
        if self.ring.next_offsets is not None:
            said = np.fromiter((int(offset) for offset in self._next_offsets), dtype=np.int64)
            if not np.array_equal(said, self.ring.next_offsets[slots]):
                raise LoadError(f"pulls did not each bring {PULL_SIZE} messages")
        return latencies(
            self.sent,
            [(now, len(opaques)) for now, opaques in self.answered],
            slots,
            self._first_slot,
            self.ring.frames,
        )


def latencies(
    sent: Sequence[tuple[int, int]],
    answered: Sequence[tuple[int, int]],
    slots: npt.NDArray[np.int64],
    first_slot: int,
    frames: int,
) -> npt.NDArray[np.int64]:
    """Match responses with requests and subtract their times.

    `sent` and `answered` are (time, number) in order. Requests use the slots of a ring of `frames`
    in order from `first_slot`; responses arrive in the order of `slots`. A slot is reused only
    after its response, so its n-th response belongs to its n-th request.
    """
    if len(slots) == 0:
        return np.zeros(0, dtype=np.int64)
    sent_at = np.repeat(*np.array(sent, dtype=np.int64).T)
    answered_at = np.repeat(*np.array(answered, dtype=np.int64).T)
    distance = (slots - first_slot) % frames
    order = np.argsort(distance, kind="stable")
    grouped = distance[order]
    group_starts = np.flatnonzero(np.diff(grouped, prepend=-1))
    group_sizes = np.diff(group_starts, append=len(grouped))
    occurrence = np.arange(len(grouped)) - np.repeat(group_starts, group_sizes)
    request = grouped + occurrence * frames
    result: npt.NDArray[np.int64] = answered_at[order] - sent_at[request]
    return result


def _read_slowly(heads: Sequence[memoryview]) -> tuple[list[bytes], int]:
    """Parse headers that the fast expressions do not match: another layout, or a refusal.

    Returns their opaques and the number of "busy" responses.
    """
    opaques = []
    busy = 0
    for head in heads:
        header = orjson.loads(head)
        if header["code"] == _SYSTEM_BUSY:
            busy += 1
        elif header["code"] != 0:
            raise LoadError(f"the server refused a request: {bytes(head).decode()}")
        opaques.append(str(header["opaque"]).encode())
    return opaques, busy


def own_cpu() -> float:
    """Return user and system time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
