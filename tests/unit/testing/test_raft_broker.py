"""What a node of a raft group tells a test."""

from __future__ import annotations

import pytest

from pyromq.testing import Cluster, ClusterBroker, RaftBroker
from tests.support.patience import DEADLINE, wait_until


def test_what_a_node_tells() -> None:
    with Cluster(raft=3) as cluster:
        cluster.await_leader(timeout=DEADLINE)
        node = cluster.nodes[1]
        assert isinstance(node, RaftBroker)
        assert isinstance(node, ClusterBroker)
        address, directory = node.address, node.directory
        assert (node.node_id, node.name, node.failure) == ("n1", "broker-0", None)
        assert directory.parent.name == "broker-0-n1"
        wait_until(lambda: node.term >= 0 and node.is_replica is not node.is_leader)
        assert {each.node_id for each in node.replicas if isinstance(each, RaftBroker)} == {
            "n0",
            "n2",
        }
        node.stop()
        assert (node.is_running, node.is_leader, node.is_replica) == (False, False, True)
        assert (node.term, node.end_index, node.committed_index) == (-1, -1, -1)
        node.start()
        assert (node.address, node.directory) == (address, directory)
        assert node.is_running
    with pytest.raises(RuntimeError, match="not running"):
        node.pause()


def test_a_kill_leaves_the_files_of_a_killed_process() -> None:
    with Cluster(raft=3) as cluster:
        cluster.await_leader(timeout=DEADLINE)
        node = cluster.nodes[0]
        before = node.directory
        node.kill()
        assert node.directory != before
        assert not before.exists()
        assert (node.directory / "abort").exists()
        assert (node.directory / "dledger-n0" / "currterm").exists()
        node.start()
        node.resume()  # nothing to resume
        node.stop()
        assert not (node.directory / "abort").exists()
