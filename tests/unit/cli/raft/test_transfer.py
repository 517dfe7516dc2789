from __future__ import annotations

from collections.abc import Iterator

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


def transfer(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["raft", "transfer", *arguments])


def test_another_node_leads(cluster: Cluster) -> None:
    def is_done() -> bool:
        """Whether it worked; a stalled machine may elect meanwhile."""
        leader = cluster.await_leader(timeout=DEADLINE)
        node = next(each for each in cluster.nodes if each is not leader)
        result = transfer(node.node_id, "--namesrv", cluster.namesrv)
        return (
            result.exit_code == 0
            and f"{node.node_id} leads group broker-0 in term" in result.output
            and cluster.await_leader(timeout=DEADLINE) is node
        )

    wait_until(is_done)

    def is_left_alone() -> bool:
        node = cluster.await_leader(timeout=DEADLINE)
        result = transfer(node.node_id, "broker-0", "--namesrv", cluster.namesrv)
        return f"{node.node_id} leads group broker-0 already" in result.output

    wait_until(is_left_alone)


def test_wrong_nodes_are_named(cluster: Cluster) -> None:
    result = transfer("n7", "--namesrv", cluster.namesrv)
    assert result.exit_code == 1
    assert "n7 is not a node of group broker-0: it has n0, n1, n2" in result.output
    leader = cluster.await_leader(timeout=DEADLINE)
    node = next(each for each in cluster.nodes if each is not leader)
    node.kill()
    wait_until(
        lambda: (
            f"{node.node_id} does not answer: start it first"
            in transfer(node.node_id, "--namesrv", cluster.namesrv).output
        )
    )


def test_a_group_without_a_leader(cluster: Cluster) -> None:
    for node in cluster.nodes[1:]:
        node.kill()
    wait_until(lambda: not cluster.nodes[0].is_leader)
    wait_until(
        lambda: (
            "has no leader: start a quorum of its nodes (2 of 3)"
            in transfer("n1", cluster.nodes[0].address).output
        )
    )


def test_a_java_leader_wants_its_term() -> None:
    with JavaGroup.running() as group:
        result = transfer("n2", "--namesrv", group.namesrv)
        assert result.exit_code == 1
        assert "use DLedger's own command, leadershipTransfer" in result.output
        assert group.transfers == []
