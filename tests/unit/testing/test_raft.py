"""Raft groups in the test's process: elections, pauses, kills, equal logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pyromq.base.settings import ConfigError
from pyromq.broker.state.persistence import PersistenceError
from pyromq.client import ClientError, Message, Producer, PushConsumer, StartFrom
from pyromq.testing import Cluster, PromotionError, RaftBroker
from pyromq.testing.raft import RaftMember, _compare
from pyromq.testing.replicas import DivergedError
from tests.support.patience import DEADLINE, wait_until


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(raft=3) as running:
        yield running


def send(cluster: Cluster, *bodies: bytes, topic: str = "orders") -> None:
    """Send messages, again and again while the group elects a leader."""
    with Producer.sync(cluster.namesrv) as producer:
        for body in bodies:

            def is_sent(body: bytes = body) -> bool:
                try:
                    producer.send(Message(topic, body))
                except ClientError:
                    return False
                return True

            wait_until(is_sent)


def bodies(cluster: Cluster, topic: str = "orders") -> set[bytes]:
    """A message may be there twice, after an election."""
    return {message.body for message in cluster.drain(topic)}


def followers(cluster: Cluster) -> list[RaftBroker]:
    leader = cluster.await_leader(timeout=DEADLINE)
    return [node for node in cluster.nodes if node is not leader]


def lead(node: RaftBroker) -> None:
    """Let a node lead; a stalled machine may elect another one meanwhile."""

    def is_done() -> bool:
        try:
            node.lead(timeout=DEADLINE)
        except (RuntimeError, TimeoutError):
            return False
        return True

    wait_until(is_done)


def test_a_group_elects_a_leader_and_has_one_log(cluster: Cluster) -> None:
    leader = cluster.await_leader(timeout=DEADLINE)
    assert [node.node_id for node in cluster.nodes] == ["n0", "n1", "n2"]
    assert [node.name for node in cluster.brokers] == ["broker-0"] * 3
    assert cluster.brokers == cluster.nodes
    assert leader in cluster.nodes
    assert len(leader.replicas) == 2
    send(cluster, b"1", b"2")
    cluster.await_committed(timeout=DEADLINE)
    assert {node.end_index for node in cluster.nodes} == {leader.end_index}
    assert {node.committed_index for node in cluster.nodes} == {leader.end_index}
    assert leader.end_index >= 1
    assert bodies(cluster) == {b"1", b"2"}
    assert {node.term >= 0 for node in cluster.nodes} == {True}


def test_another_node_takes_over_from_a_killed_leader(cluster: Cluster) -> None:
    send(cluster, b"1")
    killed = cluster.await_leader(timeout=DEADLINE)
    killed.kill()
    assert (killed.is_running, killed.is_leader, killed.term) == (False, False, -1)
    assert cluster.await_leader(timeout=DEADLINE) is not killed
    send(cluster, b"2")
    killed.start()
    cluster.await_committed(timeout=DEADLINE)
    assert killed.end_index == cluster.await_leader(timeout=DEADLINE).end_index
    assert bodies(cluster) == {b"1", b"2"}


def test_a_paused_leader_is_replaced_and_returns_as_a_follower(cluster: Cluster) -> None:
    send(cluster, b"1")
    paused = cluster.await_leader(timeout=DEADLINE)
    paused.pause()
    paused.pause()  # is idempotent
    assert (paused.is_paused, paused.is_running) == (True, True)
    assert cluster.await_leader(timeout=DEADLINE) is not paused
    send(cluster, b"2")
    paused.resume()
    cluster.await_committed(timeout=DEADLINE)
    assert bodies(cluster) == {b"1", b"2"}


def test_without_a_quorum_nobody_leads(cluster: Cluster) -> None:
    send(cluster, b"1")
    one, two = followers(cluster)
    one.kill()
    two.pause()
    leader = next(node for node in cluster.nodes if node not in (one, two))
    wait_until(lambda: not leader.is_leader)
    with pytest.raises(TimeoutError, match=r"has no leader after 0\.1 s .*stopped"):
        cluster.await_leader(timeout=0.1)
    with pytest.raises(RuntimeError, match="no leader at the moment"):
        _ = cluster.leader
    cluster.create_topic("later")  # nobody takes it, and nobody is waited for
    two.kill()  # ends the pause
    assert not two.is_paused
    one.start()
    two.start()
    send(cluster, b"2")
    cluster.await_committed(timeout=DEADLINE)
    assert bodies(cluster) == {b"1", b"2"}


def test_a_node_leads_when_asked(cluster: Cluster) -> None:
    follower = followers(cluster)[0]
    lead(follower)
    lead(follower)  # it does already, or again
    send(cluster, b"1")
    assert bodies(cluster) == {b"1"}


def test_a_node_whose_disk_was_replaced_gets_everything(cluster: Cluster) -> None:
    send(cluster, b"1", b"2")
    cluster.await_committed(timeout=DEADLINE)
    follower = followers(cluster)[0]
    follower.rejoin(empty=True)
    cluster.await_committed(timeout=DEADLINE)
    assert follower.committed_index >= 1
    follower.empty()
    assert not follower.directory.exists()
    follower.start()
    cluster.await_committed(timeout=DEADLINE)


def test_consumers_continue(cluster: Cluster) -> None:
    cluster.create_topic("orders")
    seen: set[bytes] = set()
    with PushConsumer.sync(
        cluster.namesrv,
        group="billing",
        handler=lambda message: seen.add(message.body),
        subscriptions=["orders"],
        start_from=StartFrom.FIRST,
    ):
        send(cluster, b"1")
        wait_until(lambda: b"1" in seen)
        cluster.await_leader(timeout=DEADLINE).kill()
        send(cluster, b"2")
        wait_until(lambda: b"2" in seen)


def test_a_reset_empties_all_nodes(cluster: Cluster) -> None:
    send(cluster, b"1")
    followers(cluster)[0].kill()
    cluster.reset()
    assert all(node.is_running for node in cluster.nodes)
    assert cluster.message_count("orders") == 0
    send(cluster, b"2")
    assert bodies(cluster) == {b"2"}


def test_a_stopped_leader_hands_over(cluster: Cluster) -> None:
    leader = cluster.await_leader(timeout=DEADLINE)
    leader.stop()
    assert cluster.await_leader(timeout=DEADLINE) is not leader
    leader.start()
    leader.restart()
    cluster.await_committed(timeout=DEADLINE)


def test_promotions_are_refused(cluster: Cluster) -> None:
    with pytest.raises(PromotionError, match=r"elects its master: use lead\(\)"):
        followers(cluster)[0].promote()
    with pytest.raises(RuntimeError, match="does not lead its raft group"):
        followers(cluster)[0].await_replicas()
    with pytest.raises(RuntimeError, match="has one group"):
        cluster.add_broker()
    cluster.await_leader(timeout=DEADLINE).await_replicas(timeout=DEADLINE)


async def test_coroutines_have_the_same(tmp_path: Path) -> None:
    async with Cluster(raft=3, directory=tmp_path) as cluster:
        leader = await cluster.await_leader_async(timeout=DEADLINE)
        await leader.pause_async()
        await cluster.await_leader_async(timeout=DEADLINE)
        leader.resume()
        await leader.kill_async()
        await leader.start_async()
        other = next(node for node in cluster.nodes if node is not leader)
        with suppress(RuntimeError, TimeoutError):  # a stalled machine elects meanwhile
            await other.lead_async(timeout=DEADLINE)
        await leader.empty_async()
        await leader.restart_async()
        await cluster.await_committed_async(timeout=DEADLINE)
        names = {each.directory.parent.name for each in cluster.nodes}
    assert names == {"broker-0-n0", "broker-0-n1", "broker-0-n2"}


def test_a_cluster_starts_again_on_its_directory(tmp_path: Path) -> None:
    with Cluster(raft=3, directory=tmp_path) as cluster:
        send(cluster, b"1")
        cluster.await_committed(timeout=DEADLINE)
    with Cluster(raft=3, directory=tmp_path) as cluster:
        assert bodies(cluster) == {b"1"}


def test_logs_that_differ_are_reported(cluster: Cluster) -> None:
    send(cluster, b"1")
    cluster.await_committed(timeout=DEADLINE)
    one, other = (node._member for node in cluster.nodes[:2])
    assert isinstance(one, RaftMember)
    _compare(one, other)
    assert other.log is not None
    file = other.log.segments.files[-1]
    file.write(60, b"damage")
    with pytest.raises(DivergedError, match="nodes n0 and n1 of broker-0 differ"):
        _compare(one, other)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="raft=-1"):
        Cluster(raft=-1)
    with pytest.raises(ValueError, match="leave brokers= and replicas= out"):
        Cluster(raft=3, replicas=1)
    with pytest.raises(ValueError, match="leave brokers= and replicas= out"):
        Cluster(raft=3, brokers=2)
    with pytest.raises(ConfigError, match="raft= sets dLegerPeers"):
        Cluster(raft=3, settings={"dLegerPeers": "n0-127.0.0.1:1"})
    with Cluster() as cluster, pytest.raises(RuntimeError, match=r"create it with Cluster\(raft=3"):
        cluster.await_leader()


def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "broker-0-n1").write_text("not a directory")
    with pytest.raises(PersistenceError, match="broker-0-n1"):
        Cluster(raft=3, directory=tmp_path).start()


def test_a_replaced_node_votes_only_when_it_has_the_log(cluster: Cluster) -> None:
    """The run book of docs/operations/raft.md, Replace a node."""
    send(cluster, b"1", b"2")
    cluster.await_committed(timeout=DEADLINE)
    node = followers(cluster)[0]
    node.empty()
    mark = node.directory / f"dledger-{node.node_id}" / "checkpoint"
    mark.parent.mkdir(parents=True)
    mark.write_text("endIndex=-1\ncommittedIndex=-1\nmustCatchUp=true\n")
    killed = cluster.await_leader(timeout=DEADLINE)
    killed.kill()
    other = next(each for each in cluster.nodes if each not in (node, killed))
    other.pause()
    node.start()
    other.resume()  # two of three run, but without the node's vote nobody wins
    with pytest.raises(TimeoutError):
        cluster.await_leader(timeout=2.0)
    killed.start()
    cluster.await_committed(timeout=DEADLINE)
    wait_until(lambda: "mustCatchUp" not in mark.read_text())
    killed.kill()
    assert cluster.await_leader(timeout=DEADLINE) is not killed


def test_a_new_node_gets_what_the_leader_still_has() -> None:
    with Cluster(raft=3, settings={"mappedFileSizeCommitLog": str(64 * 1024)}) as cluster:
        send(cluster, *(b"%04d" % number * 1000 for number in range(100)))
        cluster.await_committed(timeout=DEADLINE)
        for node in cluster.nodes:
            log = node._member.log
            assert log is not None
            for _ in range(3):
                log.take_first().unlink()
        node = followers(cluster)[0]
        node.rejoin(empty=True)
        cluster.await_committed(timeout=DEADLINE)
        lead(node)
        send(cluster, b"last")
        seen = bodies(cluster)
        assert b"last" in seen
        assert b"0099" * 1000 in seen
        assert b"0000" * 1000 not in seen
