"""Tests of an application against a real cluster, in the test's own process.

    pytest examples/test_with_fixture.py

The fixtures `rocketmq` and `rocketmq_topic` are there as soon as pyromq is installed. Each
test has a cluster of its own, which takes a few dozen milliseconds.
"""

from __future__ import annotations

import pytest

from pyromq.client import LitePullConsumer, Message, Producer, RocketMQError, StartFrom
from pyromq.testing import Cluster


def place_order(namesrv: str, topic: str, order: str) -> None:
    """The code under test."""
    with Producer.sync(namesrv, group="shop") as producer:
        producer.send(Message(topic, b"ordered", keys=order))


def test_an_order_is_published(rocketmq: Cluster, rocketmq_topic: str) -> None:
    place_order(rocketmq.namesrv, rocketmq_topic, "order-17")
    with LitePullConsumer.sync(rocketmq.namesrv, start_from=StartFrom.FIRST) as consumer:
        consumer.subscribe(rocketmq_topic)
        assert [message.keys for message in consumer.poll()] == ["order-17"]


@pytest.mark.rocketmq(brokers=2)
def test_orders_survive_the_loss_of_a_broker(rocketmq: Cluster, rocketmq_topic: str) -> None:
    rocketmq.brokers[0].kill()
    place_order(rocketmq.namesrv, rocketmq_topic, "order-18")


def test_without_any_broker_the_application_is_told(rocketmq: Cluster) -> None:
    rocketmq.brokers[0].stop()
    with pytest.raises(RocketMQError):
        place_order(rocketmq.namesrv, "orders", "order-19")
