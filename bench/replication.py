"""The case `replication`: pairs of a master and a replica under load, and a replica's catching up.

A pair is a contender like any other (`Pair`): bench/compare.py sends to its master, in turn with
the other pairs, and measures both brokers together. Each pair has its NameServer in a process of
its own, which is not measured. The master is a SYNC_MASTER with ASYNC_FLUSH, so a response says
that the replica has the message; a round with any other response is invalid.

Catching up: pyromq writes a log once, without a broker, and a copy is kept of its first bytes. Each
pair gets copies in turn: the master of the whole log, the replica of its begin, because an empty
Java replica would ask for the newest segment only. The clock runs from the replica's first byte
until its log ends where the master's does and all of it is in consume queues and key index. Called
by bench/__main__.py.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from bench.cases import CATCH_UP, JAVA, PYROMQ
from bench.process import cpu_seconds, wait_until_resting
from bench.recovery import KEYS_PER_MESSAGE, copy_store, fill
from bench.report import Rounds
from bench.servers import (
    JAVA_OPTIONS,
    REPOSITORY,
    Server,
    ServerError,
    needing,
    wait_for_keys,
)
from pyromq.protocol.message.message_id import encode_host
from pyromq.store.config import MessageStoreConfig
from pyromq.store.message_store import MessageStore
from tests.support.apache_rocketmq import VERSION, ApacheRocketMQ, ApacheRocketMQError, classpath
from tests.support.java_pair import JavaNode, Node, NodeError, NodeSettings, Role
from tests.support.replication_nodes import PyromqNode, name_server, pyromq_environment

DEFAULT_SIZE = 4 * 1024**3
QUICK_SIZE = 512 * 1024**2
SETTINGS = {"flushDiskType": "ASYNC_FLUSH"}

#: Of the log that the replica has before it catches up.
_BEGIN_SIZE = 1024**2
_POLL_SECONDS = 0.02
_CATCH_UP_LIMIT_SECONDS = 900.0

NameServer = Callable[[], AbstractContextManager[str]]


class Pair(Server):
    """A NameServer, a master and its replica."""

    def __init__(
        self,
        name: str,
        make_node: Callable[[NodeSettings], Node],
        run_name_server: NameServer,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name, SETTINGS)
        self._make_node = make_node
        self._run_name_server = run_name_server
        self._prepare = prepare
        self._running = ExitStack()
        self._nodes: list[Node] = []

    def prepare(self) -> None:
        """Install the brokers."""
        self._prepare()

    def start(self, data: Path) -> int:
        """Start all three processes; return the master's pid."""
        pid = self.start_master(data, Role.SYNC_MASTER)
        self.start_replica(data)
        return pid

    def start_master(self, data: Path, role: Role) -> int:
        """Start NameServer and master, the latter on `data`/master; wait until it is registered."""
        with as_server_errors():
            self.namesrv = self._running.enter_context(self._run_name_server())
            master = self._start_node(data / "master", role)
            master.wait_ready()
        self.port = master.port
        self.store = master.store
        assert master.pid is not None
        return master.pid

    def start_replica(self, data: Path) -> Node:
        """Start the replica on `data`/replica, without waiting."""
        with as_server_errors():
            replica = self._start_node(data / "replica", Role.SLAVE)
        assert replica.pid is not None
        self.replica_pids = (replica.pid,)
        return replica

    def _start_node(self, directory: Path, role: Role) -> Node:
        node = self._make_node(
            NodeSettings(
                directory,
                self.namesrv,
                role,
                properties=self._settings,
                patient=False,
                small_files=False,
            )
        )
        self._nodes.append(node)
        node.start(wait=False)
        return node

    def wait_until_ready(self, pid: int) -> None:
        """Wait until a send succeeds, which the replica must have received."""
        with as_server_errors():
            self._nodes[-1].wait_ready()
        super().wait_until_ready(pid)

    def check(self, sent: int) -> None:
        """Check that both brokers have all messages and their keys."""
        super().check(sent)
        master, replica = self._nodes
        with as_server_errors():
            replica.wait_for_log_end(master.log_end())
        wait_for_keys(f"{self.name}, replica", replica.store, (sent + 1) * KEYS_PER_MESSAGE)

    def output(self) -> str:
        """Return the end of both logs."""
        return "\n".join(f"{node}:\n{node.log()[-2000:]}" for node in self._nodes)

    def stop(self) -> None:
        """Stop the replica, the master and the NameServer."""
        try:
            with as_server_errors():
                for node in reversed(self._nodes):
                    node.stop()
        finally:
            for node in self._nodes:
                node.kill()
            self._nodes.clear()
            self.replica_pids = ()
            self._running.close()


def java_pair() -> Pair:
    """Return Apache RocketMQ's pair, with the settings of the other cases."""
    options = partial(JavaNode, jvm_options=JAVA_OPTIONS, log_level="WARN")
    return Pair(JAVA, options, java_name_server, fetch_java)


def pyromq_pair(*, name: str = PYROMQ, tree: Path = REPOSITORY, is_pure: bool = False) -> Pair:
    """Return a pair of pyromq, of this tree or another one."""
    environment: Mapping[str, str] = pyromq_environment(tree, is_pure=is_pure)
    node = partial(PyromqNode, tree=tree, is_pure=is_pure)
    return Pair(name, node, lambda: name_server(environment))


def fetch_java() -> None:
    """Fetch the jars."""
    with needing("java"):
        for part in ("namesrv", "broker"):
            classpath(f"org.apache.rocketmq:rocketmq-{part}:{VERSION}")


@contextmanager
def java_name_server() -> Iterator[str]:
    """Run Java's NameServer; yield its address."""
    with ApacheRocketMQ(namesrv_only=True) as java:
        yield java.namesrv_address


@contextmanager
def as_server_errors() -> Iterator[None]:
    """Turn the errors of nodes into ServerError."""
    try:
        yield
    except (NodeError, ApacheRocketMQError) as error:
        raise ServerError(str(error)) from error


class Written(NamedTuple):
    """The stores that are copied for each measurement."""

    whole: Path
    begin: Path
    messages: int
    #: Bytes of the whole log, and of its begin.
    size: int
    begin_size: int


def measure_catch_up(
    pairs: Sequence[Pair], data: Path, size: int, rounds: int, console: Console
) -> Rounds:
    """Time how each pair's replica receives the same log; return all figures."""
    directory = data / f"catch-up-{os.getpid()}"
    figures: dict[str, list[dict[str, float]]] = {pair.name: [] for pair in pairs}
    try:
        console.print(f"writing a log of {size / 1e6:,.0f} MB")
        written = write_stores(directory, size)
        for _ in range(rounds):
            for pair in pairs:
                measured = _measure(pair, directory / pair.name, written)
                figures[pair.name].append(measured)
                console.print(
                    f"  {pair.name:7} {measured['rate']:,.0f} MB/s, {measured['cpu_s']:.1f} s of "
                    f"CPU, first byte after {measured['wait_s']:.1f} s"
                )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {CATCH_UP: figures}


def write_stores(directory: Path, size: int) -> Written:
    """Write a store with a log of at least `size` bytes, and a copy of its begin."""
    whole, begin = directory / "whole", directory / "begin"
    config = MessageStoreConfig(store_path_root_dir=str(whole))
    host = encode_host("127.0.0.1", 10911)
    messages = begin_size = log_size = 0
    for end in (_BEGIN_SIZE, size):
        store = MessageStore(config, host)
        store.start()
        messages = fill(store, end, messages)
        log_size = store.max_physical_offset
        store.stop()
        if not begin_size:
            begin_size = log_size
            copy_store(whole, begin)
    return Written(whole, begin, messages, log_size, begin_size)


def _measure(pair: Pair, data: Path, written: Written) -> dict[str, float]:
    try:
        copy_store(written.whole, data / "master" / "store")
        copy_store(written.begin, data / "replica" / "store")
        os.sync()  # neither broker must pay for the copies
        pid = pair.start_master(data, Role.ASYNC_MASTER)
        wait_until_resting(pid)
        started = time.perf_counter()
        replica = pair.start_replica(data)
        assert replica.pid is not None
        began, cpu_before = _wait_for(replica, pid, lambda end, _: end > written.begin_size)
        ended, cpu_after = _wait_for(
            replica, pid, lambda end, behind: end >= written.size and not behind
        )
        wait_for_keys(f"{pair.name}, replica", replica.store, written.messages * KEYS_PER_MESSAGE)
        seconds = ended.at - began.before
        return {
            "rate": (written.size - written.begin_size) / 1e6 / seconds,
            "catch_up_s": seconds,
            "cpu_s": cpu_after - cpu_before,
            "wait_s": began.before - started,
        }
    finally:
        try:
            pair.stop()
        finally:
            shutil.rmtree(data, ignore_errors=True)
        os.sync()


class Moment(NamedTuple):
    """When something was seen, and when it was last seen not to be so."""

    before: float
    at: float


def _wait_for(
    replica: Node, master_pid: int, condition: Callable[[int, int], bool]
) -> tuple[Moment, float]:
    """Ask a replica until its log's end and what is left to dispatch satisfy a condition.

    Returns when that was, and the CPU seconds of both brokers when it was last not so.
    """
    assert replica.pid is not None
    deadline = time.monotonic() + _CATCH_UP_LIMIT_SECONDS
    before, cpu, last = time.perf_counter(), 0.0, "it never answered"
    while time.monotonic() < deadline:
        asked = time.perf_counter()
        used = cpu_seconds(master_pid, replica.pid)
        try:
            table = replica.runtime_info(timeout=5.0)
        except OSError as error:
            last = str(error)
        else:
            last = f"log end {table['commitLogMaxOffset']}, dispatch {table['dispatchBehindBytes']}"
            if condition(int(table["commitLogMaxOffset"]), int(table["dispatchBehindBytes"])):
                return Moment(before, time.perf_counter()), cpu
        if replica.has_ended():
            last = "it has ended"
            break
        before, cpu = asked, used
        time.sleep(_POLL_SECONDS)
    raise ServerError(
        f"{replica} did not catch up, limit {_CATCH_UP_LIMIT_SECONDS:g} s: {last}\n"
        f"{replica.log()[-2000:]}"
    )
