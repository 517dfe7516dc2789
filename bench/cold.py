"""The case `cold`: measure how much a consumer of old messages slows down producers.

pyromq writes a store with a backlog once, without a broker, in segments so small that a start
examines only the last ones. Each server starts on a copy, in turn. One connection sends with 16
in flight, first alone, then while another pulls the whole backlog, after the kernel was asked to
drop its pages. The bound limits the ratio of the two p99 for pyromq; the table also shows Java's,
and how much of the backlog was still in memory, since the kernel may keep pages.

Called by bench/__main__.py. The load runs in its own process (`python -m bench.cold '<json>'`),
with one thread for both connections, so that server and load have a core each on two cores.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import orjson
from rich.console import Console

from bench.answers import LoadError
from bench.frames import PULL_SIZE, QUEUES, pull_ring, send_ring
from bench.generator import Client, drive
from bench.process import cpu_seconds, own_cpu, wait_until_resting
from bench.servers import JavaServer, Server, ServerError, create_topic, wait_for_first_send
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.message_id import encode_host
from pyromq.store.config import MessageStoreConfig
from pyromq.store.message_store import MessageStore

DEFAULT_SIZE = 1024**3
QUICK_SIZE = 512 * 1024**2
#: Maximum p99 of sends during cold reads, divided by the p99 without.
BOUND = 3.0
#: Settings of both servers.
SETTINGS = {"mappedFileSizeCommitLog": str(64 * 1024**2)}

_BACKLOG_TOPIC = "BenchmarkBacklog"
_SEND_TOPIC = "BenchmarkColdSend"
_BODY_SIZE = 1024
_SENDS_IN_FLIGHT = 16
#: One per queue, as a consumer has.
_PULLS_IN_FLIGHT = QUEUES
_RING_FRAMES = 4096
_LEAD_IN = 60_000
_IDLE_SENDS = 60_000
_STALL_SECONDS = 30.0
_PAGE = 4096

#: Figures of one server in one round.
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class ColdOrder:
    """The order for the load's process."""

    port: int
    server_pid: int
    store: str
    stored_per_queue: int


def measure_cold(
    servers: Sequence[Server], data: Path, size: int, rounds: int, console: Console
) -> tuple[str, bool]:
    """Run each server on the same backlog; return a table and whether the bound is met."""
    written = data / f"cold-{os.getpid()}"
    try:
        console.print(f"writing a backlog of {size / 1e6:,.0f} MB")
        stored = write_backlog(written, size)
        figures: dict[str, list[Figures]] = {server.name: [] for server in servers}
        for number in range(rounds):
            for server in servers:
                console.print(f"round {number + 1} of {rounds}: {server.name}")
                figures[server.name].append(_measure(server, written, stored))
    finally:
        shutil.rmtree(written, ignore_errors=True)
    medians = {
        name: {figure: median(each[figure] for each in rounds_of) for figure in rounds_of[0]}
        for name, rounds_of in figures.items()
    }
    return render(medians, size)


def write_backlog(root: Path, size: int) -> int:
    """Write a store with a log of at least `size` bytes; return the messages per queue."""
    config = MessageStoreConfig.load({**SETTINGS, "storePathRootDir": str(root)})[0]
    store = MessageStore(config, encode_host("127.0.0.1", 10911))
    store.start()
    body = os.urandom(_BODY_SIZE)
    host = encode_host("127.0.0.1", 40404)
    tags_code = java_hash("TagA")
    now = int(time.time() * 1000)
    queues = [store.queue(_BACKLOG_TOPIC, queue_id) for queue_id in range(QUEUES)]
    stored = 0
    while store.max_physical_offset < size:
        for _ in range(PULL_SIZE):
            for queue in queues:
                store.put(queue, body, b"TAGS\x01TagA", tags_code, 0, 0, now, host, 0)
        store.seal()
        stored += PULL_SIZE
    while store.dispatch_behind:  # otherwise each start would read the log to build the index
        time.sleep(0.01)
    store.stop()
    return stored


def render(medians: dict[str, Figures], size: int) -> tuple[str, bool]:
    """Return the figures as text, and whether the bound is met."""
    lines = [
        f"sends of 1 KiB, 1 x {_SENDS_IN_FLIGHT} in flight, beside pulls of {size / 1e6:,.0f} MB",
        f"{'':40}" + "".join(f"{name:>12}" for name in medians),
    ]
    for figure, label in (
        ("idle_p50_ms", "p50 alone, ms"),
        ("idle_p99_ms", "p99 alone, ms"),
        ("cold_p50_ms", "p50 during pulls, ms"),
        ("cold_p99_ms", "p99 during pulls, ms"),
        ("cold_max_ms", "longest during pulls, ms"),
        ("ratio", "ratio of p99"),
        ("idle_rate", "sends/s alone"),
        ("cold_rate", "sends/s during pulls"),
        ("pull_mb", "pulled, MB/s"),
        ("resident", "backlog in memory before, %"),
        ("idle_cpu_us", "server CPU µs per send, alone"),
        ("idle_cores", "cores the server used, alone"),
        ("cold_cores", "cores the server used during pulls"),
        ("load_cores", "cores the load generator used"),
    ):
        values = "".join(f"{figures[figure]:12,.3f}" for figures in medians.values())
        lines.append(f"{label:40}{values}")
    kept = True
    if "pyromq" in medians:
        ratio = medians["pyromq"]["ratio"]
        kept = ratio <= BOUND
        lines.append(
            f"pyromq's ratio {ratio:.2f} (bound: at most {BOUND:g}, {'kept' if kept else 'MISSED'})"
        )
    return "\n".join(lines) + "\n", kept


def _measure(server: Server, written: Path, stored: int) -> Figures:
    data = written.with_name(f"{written.name}-{server.name}")
    # Java's store is the data directory itself, pyromq's a directory below it.
    store = data if isinstance(server, JavaServer) else data / "store"
    try:
        shutil.copytree(written, store)
        os.sync()
        _drop_pages(store)
        pid = server.start(data)
        wait_for_first_send(server, pid)
        for topic in (_BACKLOG_TOPIC, _SEND_TOPIC):
            create_topic(server.port, topic)
        order = ColdOrder(server.port, pid, str(store), stored)
        done = subprocess.run(
            [sys.executable, "-m", "bench.cold", orjson.dumps(asdict(order)).decode()],
            stdout=subprocess.PIPE,
            check=False,
        )
        if done.returncode != 0:
            raise ServerError("case cold failed: see the load generator's error above")
        figures: Figures = orjson.loads(done.stdout)
        return figures
    finally:
        server.stop()
        shutil.rmtree(data, ignore_errors=True)
        os.sync()


# The load's process


def main() -> None:
    """Run the order given on the command line."""
    order = ColdOrder(**orjson.loads(sys.argv[1]))
    gc.disable()  # nothing here creates cycles, and a pause would count as the server's
    try:
        figures = run(order)
    except (LoadError, OSError) as error:
        sys.exit(f"cold against port {order.port}: {error}")
    sys.stdout.write(orjson.dumps(figures).decode() + "\n")


def run(order: ColdOrder) -> Figures:
    """Send alone, then during the pulls."""
    sends = send_ring(_SEND_TOPIC, _RING_FRAMES, _BODY_SIZE, 0, int(time.time() * 1000))
    pulls = pull_ring(_BACKLOG_TOPIC, 0, 1, order.stored_per_queue)
    pid = order.server_pid
    with (
        socket.create_connection(("127.0.0.1", order.port)) as sending,
        socket.create_connection(("127.0.0.1", order.port)) as pulling,
    ):
        sender = Client(sending, sends, _SENDS_IN_FLIGHT)
        puller = Client(pulling, pulls, _PULLS_IN_FLIGHT)
        drive([sender], _LEAD_IN)
        sender.forget_times()
        before = wait_until_resting(pid)
        began = time.perf_counter()
        drive([sender], _IDLE_SENDS)
        idle_seconds = time.perf_counter() - began
        idle_busy = cpu_seconds(pid) - before
        idle_cpu = wait_until_resting(pid) - before
        idle = sender.latencies()[0] / 1e6
        sender.forget_times()
        files = _backlog_files(Path(order.store))
        _drop_pages(Path(order.store))
        resident = _resident_share(files)
        before, load_before = cpu_seconds(pid), own_cpu()
        began = time.perf_counter()
        drive_beside(sender, puller, pulls.frames)
        seconds = time.perf_counter() - began
        load_cpu = own_cpu() - load_before
        busy = cpu_seconds(pid) - before
        cold = sender.latencies()[0] / 1e6
        puller.latencies()  # fails unless every pull returned all its messages
    idle_p50, idle_p99 = np.percentile(idle, (50, 99)).tolist()
    cold_p50, cold_p99 = np.percentile(cold, (50, 99)).tolist()
    return {
        "idle_p50_ms": idle_p50,
        "idle_p99_ms": idle_p99,
        "cold_p50_ms": cold_p50,
        "cold_p99_ms": cold_p99,
        "cold_max_ms": float(cold.max()),
        "ratio": cold_p99 / idle_p99,
        "idle_rate": _IDLE_SENDS / idle_seconds,
        "cold_rate": cold.size / seconds,
        "pull_mb": pulls.frames * PULL_SIZE * _BODY_SIZE / 1e6 / seconds,
        "resident": resident * 100,
        "idle_cpu_us": idle_cpu / _IDLE_SENDS * 1e6,
        "idle_cores": idle_busy / idle_seconds,
        "cold_cores": busy / seconds,
        "load_cores": load_cpu / seconds,
    }


def drive_beside(sender: Client, puller: Client, pulls: int) -> None:
    """Send until all pulls are answered; return when the sends are answered as well."""
    to_pull = pulls - puller.fill(pulls)
    to_answer = pulls
    sends_out = sender.fill(_RING_FRAMES)
    with select.epoll(2) as poll:
        by_descriptor = {client.socket.fileno(): client for client in (sender, puller)}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.EPOLLIN)
        while to_answer or sends_out:
            ready = poll.poll(_STALL_SECONDS)
            if not ready:
                raise LoadError(
                    f"no response within {_STALL_SECONDS:g} s, {to_answer} pulls missing"
                )
            for descriptor, _ in ready:
                client = by_descriptor[descriptor]
                answers = client.receive()
                if client is puller:
                    to_answer -= answers
                    to_pull -= client.fill(to_pull)
                else:
                    sends_out -= answers
                    if to_answer:
                        sends_out += client.fill(_RING_FRAMES)


def _backlog_files(store: Path) -> list[Path]:
    """Return the segments that a start does not examine: all but the last of the backlog."""
    return sorted((store / "commitlog").glob("[0-9]" * 20))[:4]


def _drop_pages(store: Path) -> None:
    """Drop a store's files from the page cache; mapped pages stay."""
    for path in sorted(store.rglob("[0-9]" * 20)):
        descriptor = os.open(path, os.O_RDWR)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _resident_share(files: Sequence[Path]) -> float:
    """Return the fraction of the files that is in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    pages = resident = 0
    for path in files:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            count = -(-len(mapped) // _PAGE)
            found = ctypes.create_string_buffer(count)
            anchor = ctypes.c_char.from_buffer(mapped)
            address = ctypes.c_void_p(ctypes.addressof(anchor))
            refused = libc.mincore(address, ctypes.c_size_t(len(mapped)), found)
            del anchor
            if refused:
                raise OSError(ctypes.get_errno(), "mincore", str(path))
            pages += count
            resident += sum(page & 1 for page in found.raw[:count])
    return resident / pages if pages else 0.0


if __name__ == "__main__":
    main()
