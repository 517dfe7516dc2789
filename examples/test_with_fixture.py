"""Test an application against a real cluster in the test's own process.

    pytest examples/test_with_fixture.py

Installing pyromq provides the fixtures `rocketmq` and `rocketmq_topic`. Each test gets its own
cluster, which starts in a few dozen milliseconds.
"""

from __future__ import annotations

import pytest

from pyromq.client import (
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    RocketMQError,
)
from pyromq.testing import Cluster


def place_order(namesrv: str, topic: str, order: str) -> None:
    """Publish an order; the code under test."""
    with Producer.sync(namesrv, group="shop") as producer:
        producer.send(Message(topic, b"ordered", keys=order))


def test_an_order_is_published(rocketmq: Cluster, rocketmq_topic: str) -> None:
    place_order(rocketmq.namesrv, rocketmq_topic, "order-17")
    assert [message.keys for message in rocketmq.drain(rocketmq_topic, count=1)] == ["order-17"]


def bill(message: ReceivedMessage) -> Retry | None:
    """Refuse an order without a customer; the code under test."""
    return None if "customer" in message.properties else Retry()


@pytest.mark.rocketmq(settings={"messageDelayLevel": " ".join(["10ms"] * 18)})
def test_an_order_without_a_customer_becomes_a_dead_letter(
    rocketmq: Cluster, rocketmq_topic: str
) -> None:
    with PushConsumer.sync(
        rocketmq.namesrv,
        group="billing",
        handler=bill,
        subscriptions=[rocketmq_topic],
        max_reconsume_times=2,
    ):
        place_order(rocketmq.namesrv, rocketmq_topic, "order-20")
        assert rocketmq.await_dead_letter("billing").keys == "order-20"


@pytest.mark.rocketmq(brokers=2)
def test_orders_survive_the_loss_of_a_broker(rocketmq: Cluster, rocketmq_topic: str) -> None:
    rocketmq.brokers[0].kill()
    place_order(rocketmq.namesrv, rocketmq_topic, "order-18")


def test_without_a_broker_the_application_gets_an_error(rocketmq: Cluster) -> None:
    rocketmq.brokers[0].stop()
    with pytest.raises(RocketMQError):
        place_order(rocketmq.namesrv, "orders", "order-19")
