"""The cluster for tests: sync and async, several brokers, faults, cleaning up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from pyromq.base.settings import ConfigError
from pyromq.client import (
    BrokerError,
    Message,
    Producer,
    RocketMQError,
    SendStatus,
)
from pyromq.client.consumer.queue_access import QueueAccess
from pyromq.client.options import Settings
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import HeartbeatData
from pyromq.testing import Cluster


def test_messages_go_in_and_the_directory_goes_away() -> None:
    with Cluster() as cluster:
        directory = cluster.directory
        with Producer.sync(cluster.namesrv) as producer:
            assert producer.send(Message("orders", b"one")).status is SendStatus.SEND_OK
        assert (directory / "broker-0").is_dir()
        assert stored(cluster, "orders") == 1
    assert not directory.exists()
    cluster.stop()


async def test_in_coroutines() -> None:
    async with Cluster() as cluster:
        await cluster.create_topic_async("orders", queues=2)
        async with Producer(cluster.namesrv) as producer:
            assert len(await producer.queues("orders")) == 2
            await producer.send(Message("orders", b"one"))
            await cluster.brokers[0].restart_async()
            await producer.send(Message("orders", b"two"))
        await cluster.brokers[0].kill_async()
        await cluster.brokers[0].start_async()
        assert await stored_async(cluster, "orders") == 2
        await cluster.brokers[0].stop_async()
        second = await cluster.add_broker_async()
        assert second.is_running


def test_servers_do_not_need_the_loop_of_the_test() -> None:
    async def block() -> None:
        # A loop that is blocked by a synchronous client.
        with Cluster() as cluster, Producer.sync(cluster.namesrv) as producer:
            producer.send(Message("orders", b"one"))

    asyncio.run(block())


def test_a_cluster_outlives_loops() -> None:
    with Cluster() as cluster:
        for _ in range(2):

            async def send() -> None:
                async with Producer(cluster.namesrv) as producer:
                    await producer.send(Message("orders", b"one"))

            asyncio.run(send())
        assert stored(cluster, "orders") == 2


def test_several_brokers_with_settings() -> None:
    with Cluster(brokers=2, settings={"defaultTopicQueueNums": "3"}) as cluster:
        third = cluster.add_broker({"autoCreateTopicEnable": "false"})
        assert [broker.name for broker in cluster.brokers] == ["broker-0", "broker-1", "broker-2"]
        cluster.create_topic("orders", queues=2)
        with Producer.sync(cluster.namesrv) as producer:
            assert len(producer.queues("orders")) == 6
            assert {queue.broker_name for queue in producer.queues("new")} == {
                "broker-0",
                "broker-1",
            }
        assert third.is_running
        assert len({broker.address for broker in cluster.brokers}) == 3


def test_what_was_answered_survives_a_kill() -> None:
    with Cluster(settings={"flushDiskType": "ASYNC_FLUSH"}) as cluster:
        (broker,) = cluster.brokers
        address = broker.address
        for life in range(1, 4):
            with Producer.sync(cluster.namesrv) as producer:
                for _ in range(50):
                    producer.send(Message("orders", b"x"))
            broker.kill()
            assert not broker.is_running
            broker.kill()
            unlucky = Producer.sync(cluster.namesrv, retries=0)
            with unlucky, pytest.raises(RocketMQError):
                unlucky.send(Message("orders", b"x"))
            broker.start()
            assert broker.address == address
            assert stored(cluster, "orders") == 50 * life
        # Only the files of the last life are left.
        assert [path.name for path in broker.directory.parent.iterdir()] == ["3"]


def test_a_killed_broker_breaks_connections_at_once() -> None:
    with Cluster(brokers=2) as cluster, Producer.sync(cluster.namesrv) as producer:
        cluster.create_topic("orders")
        first, second = cluster.brokers
        producer.send(Message("orders", b"x"))
        first.kill()
        # The other one takes what this one cannot.
        for _ in range(8):
            assert producer.send(Message("orders", b"x")).queue.broker_name == second.name
        first.start()
        second.stop()
        assert producer.send(Message("orders", b"x")).queue.broker_name == first.name


def test_settings_of_a_restart_count() -> None:
    with Cluster() as cluster:
        cluster.brokers[0].restart({"autoCreateTopicEnable": "false"})
        with Producer.sync(cluster.namesrv) as producer, pytest.raises(RocketMQError):
            producer.send(Message("orders", b"x"))


def test_a_given_directory_stays(tmp_path: Path) -> None:
    for count in (1, 2):
        with (
            Cluster(directory=tmp_path) as cluster,
            Producer.sync(cluster.namesrv) as producer,
        ):
            producer.send(Message("orders", b"one"))
            assert stored(cluster, "orders") == count


FORK = """
import os, sys
from pyromq.client import ClientStateError, Message, Producer
from pyromq.testing import Cluster

with Cluster() as cluster, Producer.sync(cluster.namesrv) as producer:
    child = os.fork()
    if not child:
        producer.send(Message("orders", b"from the child"))
        try:
            cluster.create_topic("other")
        except ClientStateError as error:
            print(error, flush=True)
        cluster.stop()
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    # The child's end has stopped and removed nothing.
    cluster.brokers[0].restart()
    assert producer.send(Message("orders", b"from the parent")).status.name == "SEND_OK"
assert not cluster.directory.exists()
"""


def test_a_fork_uses_the_cluster_but_does_not_own_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "and this is a fork of it" in done.stdout


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="autoCreateTopicEnable"):
        Cluster(settings={"autoCreateTopicEnabled": "true"})
    with pytest.raises(ConfigError, match="defaultTopicQueueNums"):
        Cluster(settings={"defaultTopicQueueNums": "many"})
    with pytest.raises(ValueError, match="brokers=-1"):
        Cluster(brokers=-1)
    cluster = Cluster()
    with pytest.raises(RuntimeError, match="is not running"):
        _ = cluster.namesrv
    with pytest.raises(RuntimeError, match="is not running"):
        cluster.create_topic("orders")
    with Cluster() as running, pytest.raises(BrokerError):
        running.create_topic("not a topic")


def stored(cluster: Cluster, topic: str) -> int:
    return asyncio.run(stored_async(cluster, topic))


async def stored_async(cluster: Cluster, topic: str) -> int:
    """How many messages a topic has."""
    session = Session(Settings.of(cluster.namesrv, {}), HeartbeatData)
    session.start()
    access = QueueAccess(session, None)
    try:
        return sum([await access.max_offset(queue) for queue in await access.queues(topic)])
    finally:
        await session.close()
