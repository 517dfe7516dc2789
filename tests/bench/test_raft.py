from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from bench import raft
from bench.cases import FAIL_OVER
from bench.raft import Group, java_group, master_address, measure_fail_overs, pyromq_group
from bench.servers import ServerError
from tests.support.java_pair import Node, NodeSettings

QUIET = Console(quiet=True)


class Nodes:
    """Nodes that never run: the first one alive leads, from the given number of sends on."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.all: list[FakeNode] = []
        self.refusals = 0
        self.log_end = 100

    def make(self, settings: NodeSettings) -> Node:
        self.all.append(FakeNode(settings, self))
        return self.all[-1]

    def leader(self) -> FakeNode:
        return next(node for node in self.all if node.runs)

    def exchange(self, port: int, frame: bytes, timeout: float) -> dict[str, object]:
        assert frame
        assert timeout
        [node] = [each for each in self.all if each.port == port]
        if not node.runs:
            raise ConnectionRefusedError("gone")
        if node is not self.leader():
            return {"code": 14, "remark": "slave"}
        if self.refusals:
            self.refusals -= 1
            return {"code": 1, "remark": "no leader yet"}
        return {"code": 0}


class FakeNode(Node):
    kind = "fake"

    def __init__(self, settings: NodeSettings, nodes: Nodes) -> None:
        super().__init__(settings)
        self.node_id = settings.properties["dLegerSelfId"]
        self._nodes = nodes
        self._pid: int | None = None

    @property
    def pid(self) -> int | None:
        return self._pid

    def has_ended(self) -> bool:
        return False

    def log(self) -> str:
        return f"the log of {self.node_id}"

    def wait_ready(self) -> None:
        self._nodes.events.append(f"{self.node_id} is ready")

    def runtime_info(self, timeout: float = 1.0) -> dict[str, str]:
        return {"commitLogMaxOffset": str(self._nodes.log_end), "dispatchBehindBytes": "0"}

    def _launch(self) -> None:
        self._nodes.events.append(f"start {self.node_id}")
        self._pid = os.getpid()

    def _end(self, how: signal.Signals) -> None:
        self._nodes.events.append(f"{how.name} {self.node_id}")
        self._pid = None

    def _signal(self, how: signal.Signals) -> None:
        assert how is signal.SIGCONT


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    nodes = Nodes()
    monkeypatch.setattr(raft, "exchange", nodes.exchange)
    monkeypatch.setattr(raft, "_LOAD_SECONDS", 0.01)
    monkeypatch.setattr(raft, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(
        raft,
        "cluster_info",
        lambda _: b'{"brokerAddrs":{0:"%s"}}' % nodes.leader().address.encode(),
    )
    return nodes


@pytest.fixture
def group(nodes: Nodes) -> Group:
    @contextmanager
    def run_name_server() -> Iterator[str]:
        nodes.events.append("start NameServer")
        yield "127.0.0.1:1"
        nodes.events.append("stop NameServer")

    return Group("pyromq", nodes.make, run_name_server)


def test_a_group_is_three_nodes_of_the_same_list(
    group: Group, nodes: Nodes, tmp_path: Path
) -> None:
    assert group.start(tmp_path) == os.getpid()
    assert len(group.replica_pids) == 2
    group.wait_until_ready(os.getpid())
    assert (group.port, group.store) == (nodes.all[0].port, tmp_path / "n0" / "store")
    properties = [node.all_properties() for node in nodes.all]
    assert len({each["dLegerPeers"] for each in properties}) == 1
    assert properties[0]["dLegerPeers"].count(";") == 2
    assert {each["brokerName"] for each in properties} == {properties[0]["dLegerGroup"]}
    assert "slaveTimeout" not in properties[0], "defaults, as users have them"
    group.stop()
    assert not group.replica_pids
    assert nodes.events == [
        "start NameServer",
        *("start n0", "start n1", "start n2"),
        *("n0 is ready", "n1 is ready", "n2 is ready"),
        *("SIGTERM n0", "SIGTERM n1", "SIGTERM n2"),
        "stop NameServer",
    ]


def test_all_nodes_must_have_all_keys(
    group: Group, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[Path, int]] = []
    monkeypatch.setattr(raft, "wait_for_keys", lambda _, store, keys: found.append((store, keys)))
    group.start(tmp_path)
    group.wait_until_ready(os.getpid())
    group.check(10)
    # Two keys for each message; the two sends that looked for the leader count.
    assert found == [(node.store, 24) for node in nodes.all]
    group.stop()


def test_the_clock_runs_from_the_kill_to_the_first_accepted_send(
    group: Group, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    group.start(tmp_path)
    group.find_leader()
    nodes.events.clear()
    nodes.refusals = 0
    figures = group.fail_over()
    assert figures == {"fail_over_s": 1.0, "route_s": 2.0}
    assert nodes.events == ["SIGKILL n0", "start n0", "n0 is ready"]
    group.stop()


def test_each_group_loses_its_leader_in_turn(group: Group, nodes: Nodes, tmp_path: Path) -> None:
    [first, second] = measure_fail_overs([group], tmp_path, 2, QUIET)[FAIL_OVER]["pyromq"]
    assert first.keys() == second.keys() == {"fail_over_s", "route_s"}
    assert [each for each in nodes.events if each.startswith("SIGKILL")] == 2 * ["SIGKILL n0"]
    assert nodes.events[-1] == "stop NameServer"
    assert list(tmp_path.iterdir()) == [], "all data is deleted"


def test_a_group_without_a_leader_is_named(
    group: Group, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raft, "_ELECTION_SECONDS", 0.05)
    nodes.refusals = 1 << 60
    with pytest.raises(ServerError, match=r"no node accepted a send.*slave(.|\n)*the log of n2"):
        measure_fail_overs([group], tmp_path, 1, QUIET)
    assert nodes.events[-1] == "stop NameServer"


def test_the_master_is_the_broker_with_id_0() -> None:
    java = b'{"brokerAddrTable":{"group":{"brokerAddrs":{0:"10.0.0.1:10",2:"10.0.0.2:20"}}}}'
    ours = b'{"brokerAddrTable":{"group":{"brokerAddrs":{"1":"10.0.0.2:20","0":"10.0.0.1:10"}}}}'
    assert master_address(java) == master_address(ours) == "10.0.0.1:10"
    assert master_address(b'{"brokerAddrs":{10:"10.0.0.1:10"}}') is None
    assert master_address(b"") is None


def test_groups_have_the_names_of_their_contenders(tmp_path: Path) -> None:
    assert java_group().name == "java"
    assert pyromq_group().name == "pyromq"
    assert pyromq_group(name="base", tree=tmp_path).name == "base"
