"""Masters and replicas in the test's process: replication, failover, return of a master."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyromq.cli.main import main
from pyromq.client import Message, Producer, PushConsumer, SendStatus, StartFrom
from pyromq.testing import Cluster, ClusterBroker, DivergedError, PromotionError
from tests.support.patience import DEADLINE, wait_until

PATIENT = {"slaveTimeout": str(10 * 60 * 1000)}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(replicas=1) as running:
        yield running


def pair(cluster: Cluster) -> tuple[ClusterBroker, ClusterBroker]:
    (master,) = cluster.brokers
    (replica,) = master.replicas
    return master, replica


def send(cluster: Cluster, *bodies: bytes, topic: str = "orders") -> set[SendStatus]:
    with Producer.sync(cluster.namesrv) as producer:
        return {producer.send(Message(topic, body)).status for body in bodies}


def bodies(cluster: Cluster, topic: str = "orders") -> list[bytes]:
    return sorted(message.body for message in cluster.drain(topic))


def stop_apart(cluster: Cluster) -> None:
    """Let the replica become the master while the old one has messages of its own."""
    master, replica = pair(cluster)
    send(cluster, b"common")
    master.await_replicas(timeout=DEADLINE)
    replica.stop()
    send(cluster, b"only on the old master")
    master.kill()
    replica.start()  # without a master there is nothing to wait for
    replica.promote()
    send(cluster, b"only on the new master")


def test_a_replica_takes_over_and_the_old_master_returns(cluster: Cluster) -> None:
    master, replica = pair(cluster)
    assert (master.is_replica, replica.is_replica) == (False, True)
    assert (master.name, replica.name) == ("broker-0", "broker-0")
    assert replica.directory.parent.name == "broker-0-replica-1"
    assert send(cluster, b"1", b"2") == {SendStatus.SEND_OK}
    master.await_replicas(timeout=DEADLINE)
    master.kill()
    cluster.promote(replica)
    assert not replica.is_replica
    assert bodies(cluster) == [b"1", b"2"]
    assert send(cluster, b"3") == {SendStatus.SEND_OK}

    with pytest.raises(RuntimeError, match=r"broker-0 has another master by now, .*: rejoin\(\)"):
        master.start()
    assert not master.is_running
    master.rejoin()
    assert master.is_replica
    assert master.is_running
    replica.await_replicas(timeout=DEADLINE)
    master.rejoin()  # it is one already

    # And the other way round.
    replica.kill()
    master.promote()
    replica.rejoin()
    master.await_replicas(timeout=DEADLINE)
    assert bodies(cluster) == [b"3"]


def test_nothing_is_worth_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(replicas=2) as cluster:
        send(cluster, b"1")
        cluster.brokers[0].await_replicas(timeout=DEADLINE)
    for _ in range(5):
        with Cluster(replicas=1):
            pass  # tables are being copied
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_consumer_reads_from_the_replica_while_there_is_no_master(cluster: Cluster) -> None:
    master, replica = pair(cluster)
    seen: list[bytes] = []

    def consumer() -> AbstractContextManager[object]:
        return PushConsumer.sync(
            cluster.namesrv,
            group="billing",
            handler=lambda message: seen.append(message.body),
            subscriptions=["orders"],
            start_from=StartFrom.FIRST,
        )

    with consumer():
        send(cluster, b"1", b"2")
        wait_until(lambda: len(seen) == 2)
    send(cluster, b"3", b"4")
    master.await_replicas(timeout=DEADLINE)
    master.kill()
    with consumer():
        # The replica has the offsets of the group: nothing is read twice.
        wait_until(lambda: len(seen) == 4)
        replica.promote()
        send(cluster, b"5")
        wait_until(lambda: len(seen) == 5)
    assert sorted(seen) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_master_that_starts_again_has_its_replica_back(cluster: Cluster) -> None:
    master, replica = pair(cluster)
    send(cluster, b"1")
    for _ in range(2):
        master.kill()
        master.start()
    master.restart()
    send(cluster, b"2")
    master.await_replicas(timeout=DEADLINE)
    replica.kill()
    send(cluster, b"3")
    replica.start()
    master.await_replicas(timeout=DEADLINE)
    master.stop()
    replica.promote()
    assert bodies(cluster) == [b"1", b"2", b"3"]


def test_a_sync_master_tells_whether_a_replica_has_the_message() -> None:
    with Cluster(replicas=1, settings={"brokerRole": "SYNC_MASTER", **PATIENT}) as cluster:
        master, replica = pair(cluster)
        assert send(cluster, *(b"%d" % number for number in range(20))) == {SendStatus.SEND_OK}
        replica.kill()
        assert send(cluster, b"alone") == {SendStatus.SLAVE_NOT_AVAILABLE}
        replica.start()
        assert send(cluster, b"again") == {SendStatus.SEND_OK}
        # Acknowledged, so it survives without anybody waiting for replicas.
        master.kill()
        replica.promote(role="SYNC_MASTER")
        assert len(bodies(cluster)) == 22
        assert send(cluster, b"alone") == {SendStatus.SLAVE_NOT_AVAILABLE}
        master.rejoin()
        assert send(cluster, b"again") == {SendStatus.SEND_OK}


def test_the_other_replicas_follow_the_promoted_one() -> None:
    with Cluster(replicas=2) as cluster:
        (master,) = cluster.brokers
        first, second = master.replicas
        send(cluster, b"1")
        master.await_replicas(timeout=DEADLINE)
        master.kill()
        first.promote()
        send(cluster, b"2")
        assert first.replicas == [master, second]
        first.await_replicas(timeout=DEADLINE)
        master.rejoin()
        first.stop()
        second.promote()
        assert bodies(cluster) == [b"1", b"2"]
        send(cluster, b"3")
        second.await_replicas(timeout=DEADLINE)


def test_a_diverged_master_is_refused_until_its_own_messages_are_given_up(
    cluster: Cluster,
) -> None:
    stop_apart(cluster)
    master, replica = pair(cluster)
    with pytest.raises(DivergedError, match="this log differs from the master's") as caught:
        master.rejoin()
    assert not master.is_running
    assert master.failure is not None
    assert master.failure in str(caught.value)
    with pytest.raises(DivergedError, match="stopped: this log"):
        replica.await_replicas()

    command = re.search(r"run: pyromq (store truncate .*)$", str(caught.value))
    assert command is not None
    done = CliRunner().invoke(main, shlex.split(command[1]))
    assert done.exit_code == 0, done.output
    master.rejoin()
    assert master.failure is None
    replica.await_replicas(timeout=DEADLINE)
    replica.kill()
    master.promote()
    assert bodies(cluster) == [b"common", b"only on the new master"]


def test_a_diverged_master_can_return_empty(cluster: Cluster) -> None:
    stop_apart(cluster)
    master, replica = pair(cluster)
    with pytest.raises(DivergedError):
        master.rejoin()
    master.rejoin(empty=True)
    replica.await_replicas(timeout=DEADLINE)
    replica.kill()
    master.promote()
    assert bodies(cluster) == [b"common", b"only on the new master"]


def test_a_promotion_is_refused_while_the_master_runs(cluster: Cluster) -> None:
    master, replica = pair(cluster)
    with pytest.raises(PromotionError, match=f"{master.address} answers as ASYNC_MASTER"):
        replica.promote()
    assert replica.is_replica
    with pytest.raises(PromotionError, match="the broker is a master, ASYNC_MASTER"):
        master.promote()
    replica.stop()
    with pytest.raises(PromotionError, match="is not running"):
        replica.promote()
    replica.start()
    replica.promote(force=True)
    assert not replica.is_replica
    # The old one runs, and is replaced all the same.
    master.rejoin()
    assert master.is_replica
    send(cluster, b"1")
    replica.await_replicas(timeout=DEADLINE)


def test_a_promotion_by_the_command_counts(cluster: Cluster) -> None:
    master, replica = pair(cluster)
    master.kill()
    wait_until(
        lambda: CliRunner().invoke(main, ["broker", "promote", replica.address]).exit_code == 0
    )
    with pytest.raises(RuntimeError, match="has another master"):
        master.start()
    replica.restart()
    assert not replica.is_replica
    assert send(cluster, b"1") == {SendStatus.SEND_OK}
    master.rejoin()
    replica.await_replicas(timeout=DEADLINE)


def test_waiting_for_replicas_that_cannot_come_is_an_error(cluster: Cluster) -> None:
    master, replica = pair(cluster)
    with pytest.raises(RuntimeError, match="is not a running master"):
        replica.await_replicas()
    replica.stop()
    with pytest.raises(RuntimeError, match="no replica of broker-0 is running"):
        master.await_replicas()
    master.stop()
    with pytest.raises(RuntimeError, match="is not a running master"):
        master.await_replicas()
    with pytest.raises(RuntimeError, match="is the master"):
        master.rejoin()
    with pytest.raises(RuntimeError, match=r"the master of broker-0, .*, is not running"):
        replica.rejoin()
    with pytest.raises(ValueError, match="timeout"):
        master.await_replicas(timeout=-1)


def test_waiting_has_a_deadline(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    master, replica = pair(cluster)
    send(cluster, b"1")
    monkeypatch.setattr(type(replica._node), "is_following", False)
    with pytest.raises(
        TimeoutError, match=r"replica .* of broker-0 has \d+ of \d+ bytes after 0 s"
    ):
        master.await_replicas(timeout=0)


def test_a_reset_restores_the_roles(cluster: Cluster) -> None:
    master, replica = pair(cluster)
    send(cluster, b"1")
    addresses = master.address, replica.address
    master.await_replicas(timeout=DEADLINE)
    master.kill()
    replica.promote()
    cluster.reset()
    assert (master.is_replica, replica.is_replica) == (False, True)
    assert (master.address, replica.address) == addresses
    assert cluster.message_count("orders") == 0
    send(cluster, b"2")
    master.await_replicas(timeout=DEADLINE)


def test_each_broker_has_replicas_of_its_own() -> None:
    with Cluster(brokers=2, replicas=1) as cluster:
        third = cluster.add_broker()
        assert [len(broker.replicas) for broker in cluster.brokers] == [1, 1, 1]
        cluster.create_topic("orders", queues=1)
        assert send(cluster, *(b"%d" % number for number in range(6))) == {SendStatus.SEND_OK}
        for broker in cluster.brokers:
            broker.await_replicas(timeout=DEADLINE)
            broker.kill()
            broker.replicas[0].promote()
        assert len(bodies(cluster)) == 6
        assert third.replicas[0].name == "broker-2"


def test_a_kept_directory_whose_replica_was_promoted_is_refused(tmp_path: Path) -> None:
    with Cluster(replicas=1, directory=tmp_path) as cluster:
        master, replica = pair(cluster)
        send(cluster, b"1")
        master.await_replicas(timeout=DEADLINE)
        master.stop()
        replica.promote()
        send(cluster, b"2")
    with pytest.raises(DivergedError, match="this log is longer than the master's"):
        Cluster(replicas=1, directory=tmp_path).start()


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="replicas=-1: expected 0 or more"):
        Cluster(replicas=-1)
    for settings in ({"brokerId": "0"}, {"brokerRole": "SLAVE", "brokerId": "1"}):
        with pytest.raises(ValueError, match=r"replicas= sets brokerId and brokerRole=SLAVE"):
            Cluster(replicas=1, settings=settings)


async def test_in_coroutines() -> None:
    async with Cluster(replicas=1) as cluster:
        master, replica = pair(cluster)
        async with Producer(cluster.namesrv) as producer:
            await producer.send(Message("orders", b"1"))
            await master.await_replicas_async(timeout=DEADLINE)
            await master.kill_async()
            await cluster.promote_async(replica)
            await producer.send(Message("orders", b"2"))
            await master.rejoin_async()
            await replica.await_replicas_async(timeout=DEADLINE)
        assert len(await cluster.drain_async("orders")) == 2
