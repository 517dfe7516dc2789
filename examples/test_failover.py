"""Test that an application survives the loss of a broker's machine.

    pytest examples/test_failover.py

Installing pyromq provides the fixtures. With `replicas=1` each broker of a test's cluster has a
replica, and the test can kill the master, promote the replica and bring the old master back.
"""

from __future__ import annotations

import threading

import pytest

from pyromq.client import Message, Producer, PushConsumer, ReceivedMessage, SendStatus
from pyromq.testing import Cluster, DivergedError


class Billing:
    """Bills orders; the code under test."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self.billed: set[str] = set()
        self._changed = threading.Condition()
        self.consumer = PushConsumer.sync(
            namesrv, group="billing", handler=self._bill, subscriptions=[topic]
        )

    def _bill(self, message: ReceivedMessage) -> None:
        with self._changed:
            self.billed.add(message.keys)
            self._changed.notify_all()

    def wait_for(self, *orders: str) -> bool:
        """Wait until these orders are billed; return False if that takes too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self.billed >= set(orders), timeout=30)


def place_order(namesrv: str, topic: str, order: str) -> SendStatus:
    """Publish an order; the code under test."""
    with Producer.sync(namesrv, group="shop") as producer:
        return producer.send(Message(topic, b"ordered", keys=order)).status


@pytest.mark.rocketmq(replicas=1)
def test_orders_are_billed_after_a_failover(rocketmq: Cluster, rocketmq_topic: str) -> None:
    (master,) = rocketmq.brokers
    (replica,) = master.replicas
    billing = Billing(rocketmq.namesrv, rocketmq_topic)
    with billing.consumer:
        place_order(rocketmq.namesrv, rocketmq_topic, "order-1")
        assert billing.wait_for("order-1")
        master.await_replicas()

        master.kill()
        replica.promote()
        place_order(rocketmq.namesrv, rocketmq_topic, "order-2")
        assert billing.wait_for("order-2")

        master.rejoin()
        replica.await_replicas()
    assert master.is_replica


@pytest.mark.rocketmq(replicas=1, settings={"brokerRole": "SYNC_MASTER"})
def test_an_acknowledged_order_is_on_the_replica(rocketmq: Cluster, rocketmq_topic: str) -> None:
    (master,) = rocketmq.brokers
    (replica,) = master.replicas
    assert place_order(rocketmq.namesrv, rocketmq_topic, "order-1") is SendStatus.SEND_OK
    master.kill()
    replica.promote()
    assert [message.keys for message in rocketmq.drain(rocketmq_topic)] == ["order-1"]


@pytest.mark.rocketmq(replicas=1)
def test_an_order_that_no_replica_has_is_lost_with_its_master(
    rocketmq: Cluster, rocketmq_topic: str
) -> None:
    (master,) = rocketmq.brokers
    (replica,) = master.replicas
    replica.stop()
    place_order(rocketmq.namesrv, rocketmq_topic, "order-1")
    master.kill()
    replica.start()
    replica.promote()
    place_order(rocketmq.namesrv, rocketmq_topic, "order-2")
    assert [message.keys for message in rocketmq.drain(rocketmq_topic)] == ["order-2"]
    # The old master has a message that the new one has not: it cannot just follow.
    with pytest.raises(DivergedError):
        master.rejoin()
    master.rejoin(empty=True)
