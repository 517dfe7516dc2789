"""The case `load`: measure a broker with thousands of topics, groups and connections.

A NameServer and a broker start as separate processes, the broker on tables with 10,000 topics and
2,000 groups. 5,000 clients connect and send a heartbeat. The case then queries routes, repeats
heartbeats and sends to topics in turn: first with nothing else in flight, then while a topic
changes every second, which makes the broker register and save all topics. Measures pyromq only:
the bounds are absolute. Called by bench/__main__.py.
"""

from __future__ import annotations

import itertools
import os
import resource
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from bench.process import memory_mib
from bench.servers import ServerError
from pyromq.protocol.wire.bodies import (
    ConsumerData,
    DataVersion,
    HeartbeatData,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import FrameReader, RemotingCommand
from pyromq.protocol.wire.headers import CreateTopicRequestHeader, GetRouteInfoRequestHeader
from tests.support.apache_rocketmq import ChildProcess, free_port

#: Bounds: KiB per idle connection, and p99 of sends during registrations divided by idle p99.
CONNECTION_KIB = 20.0
STALL = 3.0

_QUEUES = 4
_SENDERS = 8
_TOPICS_SENT_TO = 200
_CHANGE_SECONDS = 1.0
_TIMEOUT_SECONDS = 60.0
_STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Size:
    """The amounts of a run."""

    topics: int
    groups: int
    connections: int
    seconds: float


FULL = Size(10_000, 2_000, 5_000, 10.0)
QUICK = Size(2_000, 400, 1_000, 3.0)


def measure_load(data: Path, size: Size, console: Console) -> tuple[str, bool]:
    """Measure once; return a table and whether the bounds are met."""
    root = data / f"load-{os.getpid()}"
    try:
        write_tables(root / "store" / "config", size)
        figures = _measure(root, size, console)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    rows = [f"{name:<60} {value:>12}" for name, value in figures.rows()]
    verdicts = [
        (figures.introduced_kib, CONNECTION_KIB, "KiB per idle connection"),
        (figures.stall, STALL, "p99 of sends during registrations, divided by idle p99"),
    ]
    missed = [
        f"MISSED  {what}: {value:.2f}, bound {bound:g}"
        for value, bound, what in verdicts
        if value > bound
    ]
    title = f"{size.topics:,} topics, {size.groups:,} groups, {size.connections:,} connections"
    return "\n".join([title, *rows, *missed]) + "\n", not missed


@dataclass(slots=True)
class Figures:
    """The figures of a run."""

    start_seconds: float = 0.0
    rss_mib: float = 0.0
    connection_kib: float = 0.0
    introduced_kib: float = 0.0
    heartbeats: float = 0.0
    routes: float = 0.0
    idle_rate: float = 0.0
    idle_p50_ms: float = 0.0
    idle_p99_ms: float = 0.0
    busy_rate: float = 0.0
    busy_p50_ms: float = 0.0
    busy_p99_ms: float = 0.0
    registrations: int = 0
    refused: int = 0
    stop_seconds: float = 0.0

    @property
    def stall(self) -> float:
        """Return the factor by which registrations slow sends down."""
        return self.busy_p99_ms / self.idle_p99_ms

    def rows(self) -> Iterator[tuple[str, str]]:
        """Return names and formatted values."""
        yield "start to first accepted send, s", f"{self.start_seconds:.2f}"
        yield "RSS of the broker before the clients, MiB", f"{self.rss_mib:.1f}"
        yield "KiB per connection", f"{self.connection_kib:.1f}"
        yield "KiB per connection after its heartbeat", f"{self.introduced_kib:.1f}"
        yield "heartbeats/s", f"{self.heartbeats:,.0f}"
        yield "route queries/s at the NameServer", f"{self.routes:,.0f}"
        yield (
            "idle: sends/s, p50 ms, p99 ms",
            (f"{self.idle_rate:,.0f} {self.idle_p50_ms:.2f} {self.idle_p99_ms:.2f}"),
        )
        yield (
            f"{self.registrations} registrations: sends/s, p50 ms, p99 ms",
            (f"{self.busy_rate:,.0f} {self.busy_p50_ms:.2f} {self.busy_p99_ms:.2f}"),
        )
        yield "  p99 divided by idle p99", f"{self.stall:.2f}"
        yield "sends refused as busy", f"{self.refused:,}"
        yield "clean stop, s", f"{self.stop_seconds:.2f}"


def write_tables(directory: Path, size: Size) -> None:
    """Write the tables of a broker with a long history."""
    directory.mkdir(parents=True)
    version = DataVersion(int(time.time() * 1000), 1)
    topics = {name: TopicConfig(name, _QUEUES, _QUEUES) for name in topic_names(size)}
    groups = {name: SubscriptionGroupConfig(name) for name in group_names(size)}
    (directory / "topics.json").write_bytes(TopicConfigSerializeWrapper(topics, version).encode())
    (directory / "subscriptionGroup.json").write_bytes(
        SubscriptionGroupWrapper(groups, version).encode()
    )


def topic_names(size: Size) -> list[str]:
    """Return names of realistic length."""
    return [f"orders-of-department-{number:05d}" for number in range(size.topics)]


def group_names(size: Size) -> list[str]:
    """Return the names of existing groups."""
    return [f"consumers-of-department-{number:05d}" for number in range(size.groups)]


def _measure(root: Path, size: Size, console: Console) -> Figures:
    figures = Figures()
    allow_connections(size.connections)
    with ExitStack() as running:
        namesrv_port = running.enter_context(_namesrv(root))
        console.print("starting")
        began = time.perf_counter()
        port, pid, broker = running.enter_context(_broker(root, namesrv_port))
        topics = topic_names(size)
        with closing(_Client(port, wait=True)) as first:
            first.ask(_send(topics[0], 0))
        figures.start_seconds = time.perf_counter() - began
        figures.rss_mib = _settled_rss(pid)
        console.print("connecting")
        groups = group_names(size)
        heartbeats = [
            _heartbeat(number, groups[number % len(groups)], topics[number % len(groups)])
            for number in range(size.connections)
        ]
        clients: list[_Client] = []
        half = size.connections // 2

        def connect(count: int) -> float:
            clients.extend(running.enter_context(closing(_Client(port))) for _ in range(count))
            clients[-1].ask(_send(topics[0], 0))  # accepted, so all earlier connections are as well
            return _settled_rss(pid)

        # The first half may reuse memory freed by the start: count the second half only.
        connect(half)
        _ask_all(clients, heartbeats[:half])
        before = _settled_rss(pid)
        figures.connection_kib = (connect(half) - before) * 1024 / half
        _ask_all(clients[half:], heartbeats[half:])
        figures.introduced_kib = (_settled_rss(pid) - before) * 1024 / half
        console.print("heartbeats and routes")
        began = time.perf_counter()
        _ask_all(clients, heartbeats)
        figures.heartbeats = len(clients) / (time.perf_counter() - began)
        with closing(_Client(namesrv_port)) as asker:
            began = time.perf_counter()
            for topic in topics:
                asker.ask(_route(topic))
            figures.routes = len(topics) / (time.perf_counter() - began)
        console.print("sending")
        senders = clients[:_SENDERS]
        for topic in topics[:_TOPICS_SENT_TO]:  # the first message of a queue creates its file
            senders[0].ask(_send(topic, 1))
        _drive(senders, topics, size.seconds / 5, None)
        idle = _drive(senders, topics, size.seconds, None)
        busy = _drive(senders, topics, size.seconds, clients[-1])
        figures.registrations = busy.changes
        figures.refused = idle.refused + busy.refused
        figures.idle_rate = len(idle.latencies) / size.seconds
        figures.busy_rate = len(busy.latencies) / size.seconds
        figures.idle_p50_ms, figures.idle_p99_ms = np.percentile(idle.latencies, (50, 99)).tolist()
        figures.busy_p50_ms, figures.busy_p99_ms = np.percentile(busy.latencies, (50, 99)).tolist()
        console.print("stopping")
        began = time.perf_counter()
        if not broker.end(signal.SIGTERM, _STOP_SECONDS):
            raise ServerError(f"the broker did not stop within {_STOP_SECONDS:g} s")
        figures.stop_seconds = time.perf_counter() - began
    return figures


def allow_connections(count: int) -> None:
    """Raise the open-file limit; raise ServerError if the hard limit is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # The broker needs as many descriptors, plus one per queue in use.
    if hard < 2 * count + 1000:
        raise ServerError(f"`ulimit -Hn` is {hard}, the case needs {2 * count + 1000}")


# Servers


@contextmanager
def _namesrv(root: Path) -> Iterator[int]:
    port = free_port()
    settings = root / "namesrv.properties"
    settings.write_text(f"kvConfigPath={root}/kvConfig.json\n")
    command = [_pyromq(), "namesrv", "-c", str(settings), "--port", str(port)]
    process = ChildProcess("namesrv", command, root / "namesrv-output.log")
    try:
        with closing(_Client(port, wait=True)):
            yield port
    finally:
        process.end(signal.SIGTERM, _STOP_SECONDS)


@contextmanager
def _broker(root: Path, namesrv_port: int) -> Iterator[tuple[int, int, ChildProcess]]:
    port = free_port(-2, 1)
    settings = root / "broker.properties"
    settings.write_text(
        f"storePathRootDir={root}/store\nlistenPort={port}\nbrokerIP1=127.0.0.1\n"
        f"namesrvAddr=127.0.0.1:{namesrv_port}\n"
    )
    command = [_pyromq(), "broker", "-c", str(settings), "--log-dir", str(root / "logs")]
    process = ChildProcess("broker", command, root / "broker-output.log")
    try:
        yield port, process.process.pid, process
    finally:
        process.end(signal.SIGTERM, _STOP_SECONDS)


def _pyromq() -> str:
    return str(Path(sys.executable).parent / "pyromq")


def _settled_rss(pid: int) -> float:
    """Return the broker's anonymous memory once it is stable."""
    before = -1.0
    while True:
        now = memory_mib(pid)["anonymous_mib"]
        if abs(now - before) < 0.25:
            return now
        before = now
        time.sleep(0.5)


# Clients


class _Client:
    """A connection with one request at a time."""

    def __init__(self, port: int, *, wait: bool = False) -> None:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", port), _TIMEOUT_SECONDS)
                break
            except ConnectionRefusedError:
                if not wait or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = FrameReader()

    def ask(self, request: bytes) -> None:
        """Send a request until the broker is not busy."""
        self.socket.sendall(request)
        while not self.answer():
            self.socket.sendall(request)

    def answer(self) -> bool:
        """Wait for the next response, which must be a success; return False if it is "busy"."""
        while True:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ServerError("the server closed the connection")
            for command in self._frames.feed(data):
                if command.is_response:
                    if command.code not in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY):
                        raise ServerError(f"response code {command.code}: {command.remark}")
                    return command.code == ResponseCode.SUCCESS

    def close(self) -> None:
        self.socket.close()


def _ask_all(clients: Sequence[_Client], requests: Sequence[bytes]) -> None:
    for client, request in zip(clients, requests, strict=True):
        client.socket.sendall(request)
    for client in clients:
        client.answer()


class _Sent(NamedTuple):
    """The result of sending for a while."""

    latencies: list[float]  # in milliseconds
    refused: int
    changes: int


def _drive(
    senders: Sequence[_Client], topics: Sequence[str], seconds: float, changer: _Client | None
) -> _Sent:
    """Send for a while, one in flight per connection; with `changer`, change a topic at times."""
    poll = select.epoll()
    by_descriptor = {client.socket.fileno(): client for client in senders}
    frames = itertools.cycle([_send(topic, 1) for topic in topics[:_TOPICS_SENT_TO]])
    begun: dict[int, float] = {}
    latencies: list[float] = []
    changes = refused = 0
    change_pending = False
    now = time.perf_counter()
    end, next_change = now + seconds, now
    with poll:
        for descriptor, client in by_descriptor.items():
            poll.register(descriptor, select.EPOLLIN)
            begun[descriptor] = time.perf_counter()
            client.socket.sendall(next(frames))
        if changer is not None:
            poll.register(changer.socket.fileno(), select.EPOLLIN)
        while begun or change_pending:
            for descriptor, _ in poll.poll(_TIMEOUT_SECONDS):
                if changer is not None and descriptor == changer.socket.fileno():
                    changer.answer()
                    changes += 1
                    change_pending = False
                    continue
                client = by_descriptor[descriptor]
                refused += not client.answer()
                now = time.perf_counter()
                latencies.append((now - begun.pop(descriptor)) * 1000)
                if now < end:
                    begun[descriptor] = time.perf_counter()
                    client.socket.sendall(next(frames))
            now = time.perf_counter()
            if changer is not None and next_change <= now < end and not change_pending:
                next_change = now + _CHANGE_SECONDS
                change_pending = True
                changer.socket.sendall(_change(topics[-1], 8 + changes % 8))
    return _Sent(latencies, refused, changes)


# Requests


def _send(topic: str, queue_id: int) -> bytes:
    fields = {
        "a": "load",
        "b": topic,
        "c": "TBW102",
        "d": str(_QUEUES),
        "e": str(queue_id),
        "f": "0",
        "g": str(int(time.time() * 1000)),
        "h": "0",
        "i": "TAGS\x01load",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext_fields=fields, body=bytes(128)).encode()


def _heartbeat(number: int, group: str, topic: str) -> bytes:
    body = HeartbeatData(
        client_id=f"127.0.0.1@{number}",
        consumer_data_set=[
            ConsumerData(group, subscription_data_set=[SubscriptionData(topic)]),
        ],
    )
    return RemotingCommand(RequestCode.HEART_BEAT, body=body.encode()).encode()


def _route(topic: str) -> bytes:
    fields = GetRouteInfoRequestHeader(topic).encode()
    return RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields=fields).encode()


def _change(topic: str, queues: int) -> bytes:
    fields = CreateTopicRequestHeader(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order=False,
    ).encode()
    return RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields).encode()
