"""The load generator: closed loops on raw sockets.

One thread, one epoll: each wake-up reads everything that arrived on a socket in one call, counts
the responses, and writes as many new requests in one call. Requests are built in advance, responses
are decoded afterwards (bench/answers.py), and times are kept per read and write and converted to
latencies afterwards, so a request costs well below a microsecond. Used by bench/load.py and
bench/cold.py.

Invariants:
1. A connection never has more than `in_flight` requests without the marker of a response.
2. A latency starts just before the write that contains the request and ends just after the read
   of the chunk that contains the response's opaque.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bench.answers import STALL_SECONDS, LoadError, answers_for
from bench.frames import Ring


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
            ready = poll.poll(STALL_SECONDS)
            if not ready:
                raise LoadError(f"no response within {STALL_SECONDS:g} s, {to_answer} missing")
            for descriptor, _ in ready:
                client = by_descriptor[descriptor]
                to_answer -= client.receive()
                if to_send:
                    to_send -= client.fill(to_send)


class Client:
    """A connection: its ring, its position, and the times of its writes and reads."""

    def __init__(
        self, connection: socket.socket, ring: Ring, in_flight: int, first_lap: int = 0
    ) -> None:
        self.ring = ring
        self.socket = connection
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.socket.setblocking(False)
        self._sent: list[tuple[int, int]] = []  # (time in ns, number of requests), in order
        self._answers = answers_for(ring)
        self._first_slot = 0
        self._slot = 0
        self._lap = first_lap
        self._free = in_flight
        self._starts: list[int] = ring.starts.tolist()
        self._requests = memoryview(ring.data)
        ring.start_lap(first_lap)

    @property
    def reads(self) -> int:
        """Return the number of reads since `forget_times`."""
        return len(self._answers.chunks)

    def forget_times(self) -> int:
        """Start measuring; return the number of refusals until now."""
        refused = self._answers.forget(self.socket)
        self._sent.clear()
        self._first_slot = self._slot
        return refused

    def fill(self, available: int) -> int:
        """Send as many requests as available and allowed in flight; return their number."""
        wanted = self._free if self._free < available else available
        left = wanted
        while left:
            slot = self._slot
            count = min(left, self.ring.frames - slot)
            self._sent.append((time.perf_counter_ns(), count))
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
        """Read available bytes; return the number of responses."""
        count = self._answers.receive(self.socket)
        self._free += count
        return count

    def _write(self, data: memoryview) -> None:
        while data:
            try:
                data = data[self.socket.send(data) :]
            except BlockingIOError:
                if not select.select((), (self.socket,), (), STALL_SECONDS)[1]:
                    raise LoadError(f"the server read nothing for {STALL_SECONDS:g} s") from None

    def latencies(self) -> tuple[npt.NDArray[np.int64], int]:
        """Return the latency of each request since `forget_times`, in ns, and the refusals."""
        slots, refused = self._answers.slots(self.socket)
        measured = latencies(
            self._sent, self._answers.chunks, slots, self._first_slot, self.ring.frames
        )
        return measured, refused


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
    if not len(slots) == len(answered_at) == len(sent_at):
        raise LoadError(
            f"{len(sent_at)} requests, but {len(answered_at)} counted and {len(slots)} decoded "
            "responses"
        )
    distance = (slots - first_slot) % frames
    order = np.argsort(distance, kind="stable")
    grouped = distance[order]
    group_starts = np.flatnonzero(np.diff(grouped, prepend=-1))
    group_sizes = np.diff(group_starts, append=len(grouped))
    occurrence = np.arange(len(grouped)) - np.repeat(group_starts, group_sizes)
    request = grouped + occurrence * frames
    if not np.array_equal(np.sort(request), np.arange(len(request))):
        raise LoadError("a request was answered twice and another one never")
    result: npt.NDArray[np.int64] = answered_at[order] - sent_at[request]
    return result
