"""What tests look at in a cluster: topics, dead letters, counts, and a fresh start."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyromq.client import (
    Message,
    OptionError,
    Producer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    StartFrom,
)
from pyromq.testing import Cluster
from tests.support.patience import DEADLINE, wait_until

QUICK_RETRIES = {"messageDelayLevel": " ".join(["10ms"] * 18)}


def send(cluster: Cluster, *bodies: bytes, topic: str = "orders", **fields: Any) -> None:
    with Producer.sync(cluster.namesrv) as producer:
        for body in bodies:
            producer.send(Message(topic, body, **fields))


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def test_a_topic_is_drained_in_order_and_once() -> None:
    sent = [b"%d" % number for number in range(100)]
    with Cluster() as cluster:
        assert cluster.drain("orders") == []
        assert cluster.message_count("orders") == 0
        send(cluster, *sent)
        assert bodies(cluster.drain("orders")) == sent
        assert cluster.drain("orders") == []
        send(cluster, b"later")
        assert bodies(cluster.drain("orders", count=1)) == [b"later"]
        assert cluster.message_count("orders") == 101


def test_several_brokers_and_one_that_is_down() -> None:
    with Cluster(brokers=2) as cluster:
        cluster.create_topic("orders")
        send(cluster, *[b"%d" % number for number in range(16)])
        first = cluster.drain("orders", count=16)
        assert {message.queue.broker_name for message in first} == {"broker-0", "broker-1"}
        assert [m.store_timestamp for m in first] == sorted(m.store_timestamp for m in first)
        cluster.brokers[0].kill()
        send(cluster, b"left")
        assert bodies(cluster.drain("orders", count=1)) == [b"left"]
        assert cluster.message_count("orders") == 9
        cluster.brokers[0].start()
        assert cluster.message_count("orders") == 17
        assert cluster.drain("orders") == []


def test_it_waits_for_delayed_messages() -> None:
    with Cluster(settings={"messageDelayLevel": "100ms 1s"}) as cluster:
        send(cluster, b"delayed", delay_level=1)
        assert bodies(cluster.drain("orders", count=1, timeout=DEADLINE)) == [b"delayed"]


def test_a_time_out_says_what_came_and_drains_nothing() -> None:
    with Cluster() as cluster:
        send(cluster, b"one", b"two")
        with pytest.raises(TimeoutError, match=r"2 of 3 messages .*: b'one', b'two'$"):
            cluster.drain("orders", count=3, timeout=0.05)
        assert bodies(cluster.drain("orders")) == [b"one", b"two"]
        with pytest.raises(TimeoutError, match=r"orders: 0 of 1 messages arrived within 0\.05 s$"):
            cluster.drain("orders", count=1, timeout=0.05)


@pytest.mark.parametrize("verdict", [False, Retry(), Retry(delay_level=-1), ValueError("no")])
def test_dead_letters_are_awaited_one_by_one(verdict: Any) -> None:
    """Also of a handler that returns False, which is no success."""

    def handle(message: ReceivedMessage) -> Any:
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    with Cluster(settings=QUICK_RETRIES) as cluster:
        send(cluster, b"one", b"two", keys="k", properties={"colour": "red"})
        with PushConsumer.sync(
            cluster.namesrv,
            group="billing",
            handler=handle,
            subscriptions=["orders"],
            start_from=StartFrom.FIRST,
            max_reconsume_times=1,
        ):
            dead = [cluster.await_dead_letter("billing", timeout=DEADLINE) for _ in range(2)]
        assert sorted(bodies(dead)) == [b"one", b"two"]
        for message in dead:
            assert message.system_properties["RETRY_TOPIC"] == "orders"
            assert (message.keys, message.properties) == ("k", {"colour": "red"})
        with pytest.raises(TimeoutError, match="group billing: no dead letter arrived within 0 s"):
            cluster.await_dead_letter("billing", timeout=0)


def test_consumers_get_what_was_drained() -> None:
    got: list[bytes] = []
    with Cluster() as cluster:
        send(cluster, b"one")
        assert bodies(cluster.drain("orders")) == [b"one"]
        with PushConsumer.sync(
            cluster.namesrv,
            group="g",
            handler=lambda message: got.append(message.body),
            subscriptions=["orders"],
            start_from=StartFrom.FIRST,
        ):
            wait_until(lambda: got == [b"one"])


def test_a_reset_cluster_is_as_new() -> None:
    with Cluster(brokers=2) as cluster:
        addresses = [broker.address for broker in cluster.brokers]
        send(cluster, b"one")
        cluster.drain("orders")
        cluster.brokers[1].kill()
        cluster.reset()
        assert [broker.address for broker in cluster.brokers] == addresses
        assert all(broker.is_running for broker in cluster.brokers)
        assert cluster.message_count("orders") == 0
        send(cluster, b"two")
        assert bodies(cluster.drain("orders")) == [b"two"]


async def test_in_coroutines() -> None:
    async with (
        Cluster(settings=QUICK_RETRIES) as cluster,
        Producer(cluster.namesrv) as producer,
    ):
        waiting = asyncio.create_task(cluster.drain_async("orders", count=1, timeout=DEADLINE))
        await producer.send(Message("orders", b"one"))
        assert bodies(await waiting) == [b"one"]
        assert await cluster.message_count_async("orders") == 1
        with pytest.raises(TimeoutError):
            await cluster.await_dead_letter_async("g", timeout=0)
        await cluster.reset_async()
        assert await cluster.message_count_async("orders") == 0
        await producer.send(Message("orders", b"two"))
        assert bodies(await cluster.drain_async("orders", count=1)) == [b"two"]


def test_mistakes_are_named() -> None:
    cluster = Cluster()
    with pytest.raises(RuntimeError, match="is not running"):
        cluster.drain("orders")
    with Cluster() as cluster:
        for wrong in ({"count": -1}, {"count": "3"}, {"timeout": -1}, {"timeout": None}):
            (name,) = wrong
            with pytest.raises(OptionError, match=name):
                cluster.drain("orders", **wrong)
        with pytest.raises(ValueError, match="topic 'no topic'"):
            cluster.message_count("no topic")
        with pytest.raises(ValueError, match="group ''"):
            cluster.await_dead_letter("")
