from __future__ import annotations

import time
from collections.abc import Iterator

import orjson
import pytest
from click.testing import CliRunner, Result

from pyromq.cli.main import main
from pyromq.testing import Cluster
from tests.support.patience import DEADLINE, wait_until
from tests.unit.cli.raft.java_group import JavaGroup


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(raft=3) as cluster:
        yield cluster


def show(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["raft", "status", *arguments])


def test_a_group_is_shown_and_its_state_is_the_exit_code(cluster: Cluster) -> None:
    def is_shown() -> bool:
        result = show("--namesrv", cluster.namesrv)
        return (
            result.exit_code == 0
            and "3 of 3 nodes follow, 2 are a quorum" in result.output
            and result.output.count("FOLLOWER since") == 2
            and result.output.count("LEADER since") == 1
            and all(f"│ {node.node_id} " in result.output for node in cluster.nodes)
        )

    wait_until(is_shown)
    for node in cluster.nodes[1:]:
        node.kill()
    wait_until(lambda: not cluster.nodes[0].is_leader)

    def is_lost() -> bool:
        # An address: the NameServer may know the node or not.
        result = show(cluster.nodes[0].address)
        return (
            result.exit_code == 1
            and "has no leader; 0 of 3 nodes follow" in result.output
            and "n1: answers neither as a broker nor at 127.0.0.1:" in result.output
        )

    wait_until(is_lost)


def test_figures_for_programs(cluster: Cluster) -> None:
    leader = cluster.await_leader(timeout=DEADLINE)
    cluster.await_committed(timeout=DEADLINE)
    result = show("broker-0", "--namesrv", cluster.namesrv, "--json")
    value = orjson.loads(result.output)
    assert (value["group"], value["brokerName"], value["quorum"]) == ("broker-0", "broker-0", 2)
    assert value["leader"] in {node.node_id for node in cluster.nodes}
    assert [node["id"] for node in value["nodes"]] == ["n0", "n1", "n2"]
    assert {node["brokerAddress"] for node in value["nodes"]} == {
        node.address for node in cluster.nodes
    }
    assert {node["endIndex"] for node in value["nodes"]} == {leader.end_index}
    assert {node["kind"] for node in value["nodes"]} == {"pyromq"}


def test_java_nodes_tell_what_they_can() -> None:
    with JavaGroup.running() as group:
        result = show("--namesrv", group.namesrv)
        assert result.exit_code == 0, result.output
        assert "group RaftNode00 (broker RaftNode00) is led by n1; 3 of 3" in result.output
        assert result.output.count("DLedger") == 3
        assert (
            "n0: RocketMQ's own; its term and entries are not to be had; its committed messages "
            "end at 4711" in result.output
        )


def test_watching_prints_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    with JavaGroup.running() as group, monkeypatch.context() as patch:
        patch.setattr(time, "sleep", sleep)
        result = show("--namesrv", group.namesrv, "--watch", "5")
    assert pauses == [5.0, 5.0]
    assert result.output.count("is led by n1") == 2
