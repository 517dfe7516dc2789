"""Test that an application survives an election in a raft group.

    pytest examples/test_election.py

Installing pyromq provides the fixtures. With `raft=3` the broker of a test's cluster is a group of
three nodes, which elect the one that accepts messages. The test can kill and pause nodes; elections
are ten times as fast as in production.
"""

from __future__ import annotations

import time

import pytest

from pyromq.client import ClientError, Message, Producer
from pyromq.testing import Cluster


class Shop:
    """Publishes orders; the code under test."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self._topic = topic
        self.producer = Producer.sync(namesrv, group="shop")

    def place(self, order: str) -> None:
        """Publish an order, again while there is no leader: a consumer may get it twice."""
        deadline = time.monotonic() + 30
        while True:
            try:
                self.producer.send(Message(self._topic, b"ordered", keys=order))
                return
            except ClientError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


def stored(cluster: Cluster, topic: str) -> set[str]:
    return {message.keys for message in cluster.drain(topic)}


@pytest.mark.rocketmq(raft=3)
def test_orders_survive_the_leader(rocketmq: Cluster, rocketmq_topic: str) -> None:
    shop = Shop(rocketmq.namesrv, rocketmq_topic)
    with shop.producer:
        shop.place("order-1")
        killed = rocketmq.await_leader(timeout=30)
        killed.kill()
        shop.place("order-2")
        killed.start()
        shop.place("order-3")
    rocketmq.await_committed(timeout=30)
    assert stored(rocketmq, rocketmq_topic) == {"order-1", "order-2", "order-3"}


@pytest.mark.rocketmq(raft=3)
def test_orders_survive_a_leader_that_hangs(rocketmq: Cluster, rocketmq_topic: str) -> None:
    shop = Shop(rocketmq.namesrv, rocketmq_topic)
    with shop.producer:
        shop.place("order-1")
        paused = rocketmq.await_leader(timeout=30)
        paused.pause()
        shop.place("order-2")
        paused.resume()
    rocketmq.await_committed(timeout=30)
    assert stored(rocketmq, rocketmq_topic) == {"order-1", "order-2"}


@pytest.mark.rocketmq(raft=3)
def test_two_of_three_nodes_may_restart_one_by_one(rocketmq: Cluster, rocketmq_topic: str) -> None:
    shop = Shop(rocketmq.namesrv, rocketmq_topic)
    with shop.producer:
        for number, node in enumerate(rocketmq.nodes):
            shop.place(f"order-{number}")
            node.restart()
    rocketmq.await_committed(timeout=30)
    assert stored(rocketmq, rocketmq_topic) == {"order-0", "order-1", "order-2"}
