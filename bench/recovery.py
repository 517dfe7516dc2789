"""The case `recovery`: measure how fast a killed broker's log is checked and dispatched.

pyromq writes a store once, without a broker, and leaves it as a kill would: with the abort file
and without a checkpoint, so that recovery must check everything. Each server starts on a copy, in
turn, without consume queues and key index. The recovery time comes from the servers' own logs; the
whole start up to the first accepted send is measured as well. Java builds its key index during
recovery, pyromq after its first responses, so the time until every key is indexed is a figure as
well, counted from the same moment. Called by bench/__main__.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console

from bench.cases import RECOVERY
from bench.report import Rounds
from bench.servers import JavaServer, Server, ServerError, indexed_keys, wait_for_first_send
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.message_id import encode_host
from pyromq.store.config import MessageStoreConfig
from pyromq.store.message_store import MessageStore

DEFAULT_SIZE = 4 * 1024**3
QUICK_SIZE = 512 * 1024**2

_BODY_SIZE = 1024
_TOPICS = 4
_QUEUES_PER_TOPIC = 4
_MESSAGES_PER_CHUNK = 64
KEYS_PER_MESSAGE = 2
_INDEX_LIMIT_SECONDS = 300.0


def measure_recovery(
    servers: Sequence[Server], data: Path, size: int, rounds: int, console: Console
) -> Rounds:
    """Time each server's start on the same killed store; return all figures."""
    written = data / f"recovery-{os.getpid()}"
    figures: dict[str, list[dict[str, float]]] = {server.name: [] for server in servers}
    try:
        console.print(f"writing a log of {size / 1e6:,.0f} MB")
        messages, size = write_killed_store(written, size)
        for _ in range(rounds):
            for server in servers:
                measured = _measure(server, written, messages, size)
                figures[server.name].append(measured)
                console.print(
                    f"  {server.name:7} {measured['rate']:,.0f} MB/s, up to the last key "
                    f"{measured['indexed_rate']:,.0f} MB/s"
                )
    finally:
        shutil.rmtree(written, ignore_errors=True)
    return {RECOVERY: figures}


def write_killed_store(root: Path, size: int) -> tuple[int, int]:
    """Write a store with a log of at least `size` bytes; return its messages and bytes."""
    config = MessageStoreConfig(store_path_root_dir=str(root), message_index_enable=False)
    store = MessageStore(config, encode_host("127.0.0.1", 10911))
    store.start()
    count = fill(store, size)
    written = store.max_physical_offset
    store.stop()
    (root / "checkpoint").unlink()
    (root / "abort").touch()
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    return count, written


def fill(store: MessageStore, size: int, count: int = 0) -> int:
    """Append messages until the log has `size` bytes; return `count` plus their number.

    The keys of a message contain its number, from `count` on.
    """
    body = os.urandom(_BODY_SIZE)
    host = encode_host("127.0.0.1", 40404)
    tags_code = java_hash("TagA")
    now = int(time.time() * 1000)
    queues = [
        store.queue(f"BenchmarkRecovery{topic}", queue_id)
        for topic in range(_TOPICS)
        for queue_id in range(_QUEUES_PER_TOPIC)
    ]
    while store.max_physical_offset < size:
        for _ in range(_MESSAGES_PER_CHUNK):
            properties = (
                b"KEYS\x01key-%d\x02UNIQ_KEY\x017F000001000018B4AAC2%012X"
                b"\x02WAIT\x01true\x02TAGS\x01TagA" % (count, count)
            )
            queue = queues[count % len(queues)]
            store.put(queue, body, properties, tags_code, 0, 0, now, host, 0)
            count += 1
        store.seal()
    return count


def _measure(server: Server, written: Path, messages: int, size: int) -> dict[str, float]:
    data = written.with_name(f"{written.name}-{server.name}")
    # Java's store is the data directory itself, pyromq's a directory below it.
    store = data if isinstance(server, JavaServer) else data / "store"
    try:
        copy_store(written, store)
        os.sync()  # neither server must pay for the copy
        began = time.perf_counter()
        pid = server.start(data)
        wait_for_first_send(server, pid)
        started = time.perf_counter() - began
        _wait_for_keys(server, messages * KEYS_PER_MESSAGE)
        indexed = time.perf_counter() - began
        recovery = _seconds_in_log(server)
        # Java does no indexing between recovery and its first response.
        complete = recovery + (0.0 if isinstance(server, JavaServer) else indexed - started)
        return {
            "recovery_s": recovery,
            "rate": size / 1e6 / recovery,
            "indexed_s": complete,
            "indexed_rate": size / 1e6 / complete,
            "first_send_s": started,
        }
    finally:
        server.stop()
        shutil.rmtree(data, ignore_errors=True)
        os.sync()


def copy_store(written: Path, store: Path) -> None:
    """Copy a store, with the holes of the killed broker's last segment."""
    store.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-r", "--sparse=always", written, store], check=True)


def _wait_for_keys(server: Server, keys: int) -> None:
    deadline = time.monotonic() + _INDEX_LIMIT_SECONDS
    while (found := indexed_keys(server.store)) < keys:
        if time.monotonic() > deadline:
            raise ServerError(f"{server.name}: the key index holds {found} keys of {keys}")
        time.sleep(0.01)


def _seconds_in_log(server: Server) -> float:
    """Return the recovery time from the server's log."""
    text = server.log()
    if not isinstance(server, JavaServer):
        found = re.search(r"recovered in ([0-9.]+) s", text)
        if found:
            return float(found[1])
    else:
        begin = re.search(r"^(\S+ \S+) .* last shutdown abnormally", text, re.MULTILINE)
        end = re.search(r"^(\S+ \S+) .* load over", text, re.MULTILINE)
        if begin and end:
            times = [datetime.strptime(line[1], "%Y-%m-%d %H:%M:%S,%f") for line in (begin, end)]
            return (times[1] - times[0]).total_seconds()
    raise ServerError(f"{server.name}: no recovery time in its log:\n{text[-2000:]}")
