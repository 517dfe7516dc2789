"""The case `acl`: what access control costs, per message, in CPU of the server.

Each system runs twice, without and with access control; both runs get the same signed requests, so
that only the check differs. Single sends of 128 B on 4 connections with 64 in flight, then pulls of
32. The bound limits the ratio of the two for pyromq; the table also shows Java's.

Requests are signed once, before the clock starts, so all laps of a ring have the same keys. Nothing
of pyromq is imported. Called by bench/__main__.py.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import orjson
from rich.console import Console

from bench.frames import (
    OPAQUE_BASE,
    PULL_MESSAGE,
    PULL_SIZE,
    QUEUES,
    SEND_MESSAGE_V2,
    UPDATE_AND_CREATE_TOPIC,
    Ring,
    command,
    create_topic_fields,
    make_ring,
    pull_fields,
    pull_places,
    send_fields,
)
from bench.generator import Client
from bench.load import LoadOrder, SocketLoad, measure
from bench.servers import JavaServer, PyromqServer, Server, ServerError

#: Maximum CPU per message with access control, divided by that without.
BOUND = 1.15
ACCESS_KEY, SECRET_KEY = "benchmark_key", "benchmark_secret"
ACCOUNTS = f"accounts:\n- {{accessKey: {ACCESS_KEY}, secretKey: {SECRET_KEY}, admin: true}}\n"

_TOPIC = "BenchmarkAcl"
_BODY_SIZE = 128
_CONNECTIONS, _IN_FLIGHT = 4, 64
_RING_FRAMES = 4096
_START_SECONDS = 90.0

#: CPU microseconds per message, by case.
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class _Contender:
    name: str
    is_checked: bool
    make: Callable[[Path], Server]


def measure_acl(
    data: Path, messages: int, rounds: int, console: Console, *, with_java: bool
) -> tuple[str, bool]:
    """Run every system with and without access control; return a table and whether it is met."""
    figures: dict[tuple[str, bool], list[Figures]] = {}
    for number in range(rounds):
        for contender in _contenders(with_java=with_java):
            how = "with" if contender.is_checked else "without"
            console.print(f"round {number + 1} of {rounds}: {contender.name} {how} access control")
            found = _measure(contender, data / "acl", messages)
            figures.setdefault((contender.name, contender.is_checked), []).append(found)
    medians = {
        key: {case: median(each[case] for each in of_rounds) for case in of_rounds[0]}
        for key, of_rounds in figures.items()
    }
    return render(medians)


def render(medians: dict[tuple[str, bool], Figures]) -> tuple[str, bool]:
    """Return the table, and whether pyromq meets the bound in every case."""
    lines = [
        "| system | case | without, µs | with access control, µs | ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    is_met = True
    for name in dict.fromkeys(system for system, _ in medians):
        plain, checked = medians[name, False], medians[name, True]
        for case in plain:
            ratio = checked[case] / plain[case]
            is_met &= name != "pyromq" or ratio <= BOUND
            lines.append(
                f"| {name} | {case} | {plain[case]:.2f} | {checked[case]:.2f} | {ratio:.2f} |"
            )
    lines.append(f"\npyromq: at most {BOUND:.2f}: {'met' if is_met else 'MISSED'}")
    return "\n".join(lines), is_met


def _contenders(*, with_java: bool) -> list[_Contender]:
    def pyromq(is_checked: bool) -> Callable[[Path], Server]:
        def make(home: Path) -> Server:
            settings = {
                "aclEnable": "true",
                "rocketmqHome": str(home),
                "replicationAccessKey": ACCESS_KEY,
                "replicationSecretKey": SECRET_KEY,
            }
            return PyromqServer(settings if is_checked else {})

        return make

    def java(is_checked: bool) -> Callable[[Path], Server]:
        settings = {"aclEnable": "true"} if is_checked else {}
        files = {"conf/plain_acl.yml": ACCOUNTS}
        return lambda _: JavaServer(settings=settings, files=files)

    found = [_Contender("pyromq", each, pyromq(each)) for each in (False, True)]
    if with_java:
        found += [_Contender("java", each, java(each)) for each in (False, True)]
    return found


def _measure(contender: _Contender, data: Path, messages: int) -> Figures:
    shutil.rmtree(data, ignore_errors=True)
    home = data / "home"
    (home / "conf").mkdir(parents=True)
    file = home / "conf" / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    file.chmod(0o600)
    server = contender.make(home)
    try:
        pid = server.start(data / "data")
        _create_topic(server)
        born = int(time.time() * 1000)
        sends = [_send_ring(number, born) for number in range(_CONNECTIONS)]
        figures = {"send 128 B": _run(server.port, pid, sends, _IN_FLIGHT, messages)}
        stored = messages // QUEUES // PULL_SIZE * PULL_SIZE
        pulls = [_pull_ring(number, stored) for number in range(_CONNECTIONS)]
        figures["pull 32"] = _run(server.port, pid, pulls, 2, 2 * messages)
    finally:
        server.stop()
        shutil.rmtree(data, ignore_errors=True)
    return figures


def _run(port: int, pid: int, rings: Sequence[Ring], in_flight: int, messages: int) -> float:
    with ExitStack() as stack:
        clients = [Client(stack.enter_context(_connected(port)), ring, in_flight) for ring in rings]
        order = LoadOrder("acl", "any", port, pid, messages, max_slices=12)
        return measure(SocketLoad(clients), order).cpu_us


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port))


def _send_ring(connection: int, born: int) -> Ring:
    ring = make_ring(
        [
            _signed(SEND_MESSAGE_V2, fields, body, OPAQUE_BASE + slot)
            for slot, (fields, body) in enumerate(
                send_fields(_TOPIC, _RING_FRAMES, _BODY_SIZE, connection, born)
            )
        ],
        1,
    )
    ring.lap_columns = ()  # another key would need another signature
    return ring


def _pull_ring(connection: int, stored: int) -> Ring:
    places = pull_places(connection, _CONNECTIONS, stored)
    frames = [
        _signed(PULL_MESSAGE, pull_fields(_TOPIC, queue, offset), b"", OPAQUE_BASE + slot)
        for slot, (queue, offset) in enumerate(places)
    ]
    ring = make_ring(frames, PULL_SIZE)
    ring.next_offsets = np.array([offset + PULL_SIZE for _, offset in places], dtype=np.int64)
    return ring


def _signed(code: int, fields: dict[str, str], body: bytes, opaque: int) -> bytes:
    fields = {**fields, "AccessKey": ACCESS_KEY}
    content = "".join(fields[name] for name in sorted(fields)).encode() + body
    digest = hmac.new(SECRET_KEY.encode(), content, hashlib.sha1).digest()
    return command(code, {**fields, "Signature": base64.b64encode(digest).decode()}, body, opaque)


def _create_topic(server: Server) -> None:
    """Create the topic as soon as the server answers."""
    request = _signed(UPDATE_AND_CREATE_TOPIC, create_topic_fields(_TOPIC), b"", OPAQUE_BASE)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            if _ask(server.port, request)["code"] == 0:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise ServerError(f"{server.name} did not start:\n{server.output()}")


def _ask(port: int, request: bytes) -> dict[str, int]:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        reader = connection.makefile("rb")
        _, length = struct.unpack(">II", reader.read(8))
        header: dict[str, int] = orjson.loads(reader.read(length))
        return header
