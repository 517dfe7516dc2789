"""The cases `raft` and `failover`: groups of three nodes under load, and the kill of a leader.

A group is a contender like any other (`Group`): bench/compare.py sends to its leader, in turn with
the other groups, and measures all three brokers together. Each group has its NameServer in a
process of its own, which is not measured. A response says that a quorum has the message; a round
with any other response is invalid.

Fail-over: under a light load, the leader is killed with SIGKILL. The clock runs from the kill until
one of the others accepts a send. Then the killed node comes back and catches up, before the next
turn. All timers have their defaults. Called by bench/__main__.py.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from bench.cases import FAIL_OVER, JAVA, PYROMQ
from bench.frames import send_ring
from bench.recovery import KEYS_PER_MESSAGE
from bench.replication import NameServer, as_server_errors, fetch_java, java_name_server
from bench.report import Rounds
from bench.servers import JAVA_OPTIONS, REPOSITORY, Server, ServerError, exchange, wait_for_keys
from tests.support.apache_rocketmq import cluster_info, free_port
from tests.support.java_pair import JavaNode, Node, NodeSettings
from tests.support.replication_nodes import PyromqNode, name_server, pyromq_environment

NODES = 3
#: Three JVMs with the heap of the other cases would not fit beside the page cache.
GROUP_JAVA_OPTIONS = (
    *(each for each in JAVA_OPTIONS if not each.startswith("-Xm")),
    "-Xms2g",
    "-Xmx2g",
    "-Xmn1g",
)
_PROBE_TOPIC = "BenchmarkProbe"
_PROBE_CONNECTION = 98  # no load generator's: keys must be unique
_BROKER_NAME = "group"
_ELECTION_SECONDS = 90.0
_PAUSE_SECONDS = 0.005
_ANSWER_SECONDS = 3.0
#: Of light load before each kill.
_LOAD_SECONDS = 2.0


class Group(Server):
    """A NameServer and three brokers of one raft group."""

    def __init__(
        self,
        name: str,
        make_node: Callable[[NodeSettings], Node],
        run_name_server: NameServer,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name)
        self._make_node = make_node
        self._run_name_server = run_name_server
        self._prepare = prepare
        self._running = ExitStack()
        self._nodes: list[Node] = []
        self._probes = 0

    def prepare(self) -> None:
        """Install the brokers."""
        self._prepare()

    def start(self, data: Path) -> int:
        """Start all processes; return the pid of one broker."""
        peers = ";".join(f"n{number}-127.0.0.1:{free_port()}" for number in range(NODES))
        with as_server_errors():
            self.namesrv = self._running.enter_context(self._run_name_server())
            for number in range(NODES):
                settings = NodeSettings(
                    data / f"n{number}",
                    self.namesrv,
                    broker_name=_BROKER_NAME,
                    properties=node_properties(number, peers),
                    patient=False,
                    small_files=False,
                )
                self._nodes.append(self._make_node(settings))
                self._nodes[-1].start(wait=False)
        pid, *others = [node.pid for node in self._nodes if node.pid is not None]
        self.replica_pids = tuple(others)
        return pid

    def wait_until_ready(self, pid: int) -> None:  # noqa: ARG002 - any node may lead
        """Wait until all nodes are registered and one accepts a send."""
        with as_server_errors():
            for node in self._nodes:
                node.wait_ready()
        self.find_leader()

    def find_leader(self) -> Node:
        """Wait until a node accepts a send; loads go there from now on."""
        leader, _ = self._first_to_accept([node for node in self._nodes if node.runs])
        self.port, self.store = leader.port, leader.store
        return leader

    def _first_to_accept(self, nodes: Sequence[Node]) -> tuple[Node, float]:
        """Send to each node in turn until one accepts; return it, and the time."""
        deadline = time.monotonic() + _ELECTION_SECONDS
        last = "nothing was sent"
        while time.monotonic() < deadline:
            for node in nodes:
                try:
                    answer = self._probe(node)
                except OSError as error:
                    last = str(error)
                    continue
                if answer["code"] == 0:
                    return node, time.perf_counter()
                last = f"{answer.get('code')} {answer.get('remark')}"
            time.sleep(_PAUSE_SECONDS)
        raise ServerError(
            f"{self.name}: no node accepted a send within {_ELECTION_SECONDS:g} s; last: {last}\n"
            f"{self.output()}"
        )

    def _probe(self, node: Node) -> dict[str, object]:
        frame = send_ring(_PROBE_TOPIC, 1, 128, _PROBE_CONNECTION, int(time.time() * 1000)).data
        answer = exchange(node.port, bytes(frame), _ANSWER_SECONDS)
        self._probes += answer["code"] == 0
        return answer

    def stored(self, topic: str) -> int:
        """Return the number of messages in all consume queues of a topic on the leader."""
        self.find_leader()
        return super().stored(topic)

    def check(self, sent: int) -> None:
        """Check that all brokers have all messages, and their keys."""
        with as_server_errors():
            end = self.find_leader().log_end()
            for node in self._nodes:
                node.wait_for_log_end(end)
        # A send that was refused for want of time may be stored all the same.
        for node in self._nodes:
            keys = (sent + self._probes) * KEYS_PER_MESSAGE
            wait_for_keys(f"{self.name}, {node}", node.store, keys)

    def fail_over(self) -> dict[str, float]:
        """Kill the leader under a light load; return how long no send was accepted."""
        leader = self.find_leader()
        others = [node for node in self._nodes if node is not leader]
        with as_server_errors():
            end = leader.log_end()
            for node in others:
                node.wait_for_log_end(end)
        until = time.monotonic() + _LOAD_SECONDS
        while time.monotonic() < until:
            self._probe(leader)
            time.sleep(_PAUSE_SECONDS)
        killed_at = time.perf_counter()
        leader.kill()
        successor, accepted_at = self._first_to_accept(others)
        while master_address(cluster_info(self.namesrv)) != successor.address:
            if time.perf_counter() - killed_at > _ELECTION_SECONDS:
                raise ServerError(f"{self.name}: the NameServer does not know {successor}")
            time.sleep(_PAUSE_SECONDS)
        known_at = time.perf_counter()
        with as_server_errors():
            leader.start()
            leader.wait_for_log_end(successor.log_end())
        return {"fail_over_s": accepted_at - killed_at, "route_s": known_at - killed_at}

    def output(self) -> str:
        """Return the end of all logs."""
        return "\n".join(f"{node}:\n{node.log()[-2000:]}" for node in self._nodes)

    def stop(self) -> None:
        """Stop all processes."""
        try:
            with as_server_errors():
                for node in self._nodes:
                    node.stop()
        finally:
            for node in self._nodes:
                node.kill()
            self._nodes.clear()
            self._probes = 0
            self.replica_pids = ()
            self._running.close()


def node_properties(number: int, peers: str) -> dict[str, str]:
    """Return the settings that make a broker the node `number` of a group."""
    return {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": _BROKER_NAME,
        "dLegerPeers": peers,
        "dLegerSelfId": f"n{number}",
    }


def master_address(answer: bytes) -> str | None:
    """Return the address of the broker with id 0 in a NameServer's cluster info.

    Java's NameServer writes numbers as keys, which is not JSON.
    """
    found = re.search(rb'\b"?0"?:"([^"]+)"', answer)
    return found[1].decode() if found else None


def java_group() -> Group:
    """Return Apache RocketMQ's group."""
    node = partial(JavaNode, jvm_options=GROUP_JAVA_OPTIONS, log_level="WARN")
    return Group(JAVA, node, java_name_server, fetch_java)


def pyromq_group(*, name: str = PYROMQ, tree: Path = REPOSITORY, is_pure: bool = False) -> Group:
    """Return a group of pyromq, of this tree or another one."""
    environment: Mapping[str, str] = pyromq_environment(tree, is_pure=is_pure)
    node = partial(PyromqNode, tree=tree, is_pure=is_pure)
    return Group(name, node, lambda: name_server(environment))


def measure_fail_overs(groups: Sequence[Group], data: Path, count: int, console: Console) -> Rounds:
    """Kill each group's leader in turn, `count` times; return all figures."""
    figures: dict[str, list[dict[str, float]]] = {group.name: [] for group in groups}
    console.print("kills of the leader")
    with ExitStack() as stack:
        for group in groups:
            stack.enter_context(_running(group, data / f"raft-{group.name}-{os.getpid()}"))
        for _ in range(count):
            for group in groups:
                measured = group.fail_over()
                figures[group.name].append(measured)
                console.print(
                    f"  {group.name:7} {measured['fail_over_s']:.2f} s to the first accepted "
                    f"send, {measured['route_s']:.2f} s to the new route"
                )
    return {FAIL_OVER: figures}


@contextmanager
def _running(group: Group, data: Path) -> Iterator[None]:
    try:
        pid = group.start(data)
        group.wait_until_ready(pid)
        yield
    finally:
        try:
            group.stop()
        finally:
            shutil.rmtree(data, ignore_errors=True)
