"""The case `delay`: measure how late delayed messages reach a waiting consumer.

One connection sends 2,000 messages per second with delay level 1 (1 s), evenly; another keeps a
pull waiting on each queue, as RocketMQ's consumer does. A message carries the time of its send.
Its lateness is the time of receipt minus that minus one second, so it includes the time of the
send. The first seconds do not count, so that Java compiles the path. The run fails unless every
accepted message arrives exactly once and none early; refused sends are counted. Called by
bench/__main__.py.
"""

from __future__ import annotations

import gc
import os
import select
import shutil
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson
from rich.console import Console

from bench.frames import OPAQUE_BASE, PULL_MESSAGE, PULL_SIZE, QUEUES, SEND_MESSAGE_V2, command
from bench.process import cpu_seconds
from bench.servers import Server, ServerError, create_topic, wait_for_first_send

RATE = 2_000
SECONDS = 20.0
QUICK_SECONDS = 5.0
#: Maximum ratio of pyromq's lateness to Java's, for median and p99.
BOUND = 0.5

_LEAD_IN_SECONDS = 5.0
_DELAY_NS = 1_000_000_000
#: Store timestamps are whole milliseconds, rounded down.
_EARLY_MS = 1.0
_TOPIC = "BenchmarkDelay"
_STEP_SECONDS = 0.001
_PATIENCE_SECONDS = 15.0
_RECEIVE_BUFFER = 1 << 20
_SYSTEM_BUSY = 2
_WAIT_AND_SUBSCRIPTION = 0x6
_PREFIX = struct.Struct(">II")
#: Number, and nanoseconds since 1970.
_STAMP = struct.Struct(">QQ")
_PADDING = bytes(128 - _STAMP.size)
#: A record begins with its size; with hosts of IPv4, its body begins there.
_SIZE = struct.Struct(">I")
_BODY_AT = 88

#: Figures of one server in one round.
Figures = dict[str, float]


def measure_delay(
    servers: Sequence[Server], data: Path, seconds: float, rounds: int, console: Console
) -> tuple[str, bool]:
    """Measure each server in turn; return a table and whether the bounds are met."""
    figures: dict[str, list[Figures]] = {server.name: [] for server in servers}
    for number in range(rounds):
        for server in servers:
            console.print(f"round {number + 1} of {rounds}: {server.name}")
            figures[server.name].append(_measure(server, data, seconds))
    medians = {
        name: {figure: median(each[figure] for each in rounds_of) for figure in rounds_of[0]}
        for name, rounds_of in figures.items()
    }
    return render(medians, seconds)


def _measure(server: Server, data: Path, seconds: float) -> Figures:
    directory = data / f"{server.name}-{os.getpid()}"
    try:
        pid = server.start(directory)
        wait_for_first_send(server, pid)
        create_topic(server.port, _TOPIC)
        return run("127.0.0.1", server.port, pid, seconds)
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
        os.sync()  # the next server must not pay for this one's dirty pages


def run(host: str, port: int, pid: int, seconds: float) -> Figures:
    """Send and receive; return the lateness of all messages after the lead-in."""
    first = int(RATE * _LEAD_IN_SECONDS)
    total = first + int(RATE * seconds)
    sender, receiver = _Sender(host, port), _Receiver(host, port, total)
    poll = select.epoll(2)
    by_descriptor: dict[int, _Side] = {side.socket.fileno(): side for side in (sender, receiver)}
    gc.disable()  # a pause here would count as the server's
    try:
        for descriptor in by_descriptor:
            poll.register(descriptor, select.EPOLLIN)
        before = cpu_seconds(pid)
        own = time.process_time()
        began = time.perf_counter()
        deadline = began + total / RATE + _PATIENCE_SECONDS
        while receiver.count + len(sender.refused) < total:
            now = time.perf_counter()
            if now > deadline:
                missing = total - receiver.count - len(sender.refused)
                raise ServerError(f"{missing} of {total} messages never arrived")
            sender.send_up_to(min(total, int((now - began) * RATE) + 1))
            for descriptor, _ in poll.poll(_STEP_SECONDS):
                by_descriptor[descriptor].receive()
        taken = time.perf_counter() - began
        cpu = cpu_seconds(pid) - before
        own = time.process_time() - own
    finally:
        gc.enable()
        poll.close()
        sender.socket.close()
        receiver.socket.close()
    if receiver.came.max() > 1:
        raise ServerError(f"{np.count_nonzero(receiver.came > 1)} messages arrived more than once")
    measured = np.delete(receiver.late, [*range(first), *sender.refused]) / 1e6
    if measured.min() < -_EARLY_MS:
        raise ServerError(f"a message arrived {-measured.min():.1f} ms early")
    p50, p99, worst = np.percentile(measured, (50, 99, 100)).tolist()
    return {
        "p50_ms": p50,
        "p99_ms": p99,
        "worst_ms": worst,
        "cpu_us": cpu / total * 1e6,
        "server_cores": cpu / taken,
        "load_cores": own / taken,
        "refused": len(sender.refused),
    }


class _Side:
    """A connection that splits received bytes into responses."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._arrived = b""

    def receive(self) -> None:
        """Read available bytes and handle every complete response."""
        data = self.socket.recv(_RECEIVE_BUFFER)
        now = time.time_ns()
        if not data:
            raise ServerError("the server closed the connection")
        data = self._arrived + data
        position = 0
        while position + _PREFIX.size <= len(data):
            total, header_length = _PREFIX.unpack_from(data, position)
            end = position + 4 + total
            if end > len(data):
                break
            body = position + _PREFIX.size + (header_length & 0xFFFFFF)
            self.take(orjson.loads(data[position + _PREFIX.size : body]), data[body:end], now)
            position = end
        self._arrived = data[position:]

    def take(self, header: dict[str, Any], body: bytes, now: int) -> None:
        """Handle a response."""
        raise NotImplementedError


class _Sender(_Side):
    """Sends delayed messages; keeps the numbers of those refused as busy."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.refused: list[int] = []
        self._sent = 0

    def send_up_to(self, number: int) -> None:
        """Send all unsent messages up to this number."""
        if number > self._sent:
            self.socket.sendall(b"".join(map(delayed_send, range(self._sent, number))))
            self._sent = number

    def take(self, header: dict[str, Any], body: bytes, now: int) -> None:
        """Handle the response to a send."""
        del body, now
        if header["code"] == _SYSTEM_BUSY:
            self.refused.append(header["opaque"] - OPAQUE_BASE)
        elif header["code"] != 0:
            raise ServerError(f"the server refused a send: {header}")


class _Receiver(_Side):
    """Keeps a pull waiting on each queue and the lateness of each message in nanoseconds."""

    def __init__(self, host: str, port: int, total: int) -> None:
        super().__init__(host, port)
        self.late = np.zeros(total, dtype=np.int64)
        self.came = np.zeros(total, dtype=np.int64)
        self.count = 0
        for queue in range(QUEUES):
            self.socket.sendall(waiting_pull(queue, 0))

    def take(self, header: dict[str, Any], body: bytes, now: int) -> None:
        """Handle messages or a poll timeout; pull again in both cases."""
        position = 0
        while position < len(body):
            (size,) = _SIZE.unpack_from(body, position)
            number, sent = _STAMP.unpack_from(body, position + _BODY_AT)
            self.late[number] = now - sent - _DELAY_NS
            self.came[number] += 1
            self.count += 1
            position += size
        fields = header.get("extFields")
        if not fields:
            raise ServerError(f"the server refused a pull: {header}")
        self.socket.sendall(
            waiting_pull(header["opaque"] - OPAQUE_BASE, int(fields["nextBeginOffset"]))
        )


def delayed_send(number: int) -> bytes:
    """Build a message of delay level 1, stamped with its number and the time."""
    now = time.time_ns()
    fields = {
        "a": "BenchmarkDelayProducer",
        "b": _TOPIC,
        "c": "TBW102",
        "d": str(QUEUES),
        "e": str(number % QUEUES),
        "f": "0",
        "g": str(now // 1_000_000),
        "h": "0",
        "i": f"UNIQ_KEY\x017F0000010000000000000000{number:08X}\x02WAIT\x01true\x02"
        "DELAY\x011\x02TAGS\x01TagA",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    return command(
        SEND_MESSAGE_V2, fields, _STAMP.pack(number, now) + _PADDING, OPAQUE_BASE + number
    )


def waiting_pull(queue: int, offset: int) -> bytes:
    """Build a pull that waits up to 15 s for the next message of a queue."""
    fields = {
        "consumerGroup": "BenchmarkDelayConsumer",
        "topic": _TOPIC,
        "queueId": str(queue),
        "queueOffset": str(offset),
        "maxMsgNums": str(PULL_SIZE),
        "sysFlag": str(_WAIT_AND_SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return command(PULL_MESSAGE, fields, b"", OPAQUE_BASE + queue)


def render(medians: dict[str, Figures], seconds: float) -> tuple[str, bool]:
    """Return the figures as text, and whether the bounds are met."""
    lines = [
        f"lateness at a waiting consumer, {RATE:,} delayed messages/s of 1 s, {seconds:g} s",
        f"{'':32}" + "".join(f"{name:>12}" for name in medians),
    ]
    for figure, label in (
        ("p50_ms", "lateness, median, ms"),
        ("p99_ms", "lateness, p99, ms"),
        ("worst_ms", "lateness, worst, ms"),
        ("cpu_us", "server CPU µs per message"),
        ("server_cores", "cores the server used"),
        ("load_cores", "cores the load generator used"),
        ("refused", "sends refused as busy"),
    ):
        values = "".join(f"{figures[figure]:12,.2f}" for figures in medians.values())
        lines.append(f"{label:32}{values}")
    kept = True
    if {"java", "pyromq"} <= medians.keys():
        ratios = {
            name: medians["pyromq"][figure] / medians["java"][figure]
            for name, figure in (("median", "p50_ms"), ("p99", "p99_ms"))
        }
        kept = all(ratio <= BOUND for ratio in ratios.values())
        told = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        lines.append(
            f"ratio to Java: {told} (bound: at most {BOUND:g}, {'kept' if kept else 'MISSED'})"
        )
    return "\n".join(lines) + "\n", kept
