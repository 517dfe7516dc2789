"""Queues and helpers shared by the tests of the lite pull consumer."""

from __future__ import annotations

from pyromq.client.consumer.start_from import StartFrom
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import RequestCode
from tests.unit.client.fake_cluster import FakeCluster

PULL = RequestCode.PULL_MESSAGE
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
QUEUE = MessageQueue("t", "b0", 0)
OTHER = MessageQueue("t", "b0", 1)
FIRST = StartFrom.FIRST


async def fill(cluster: FakeCluster, count: int, queue_id: int = 0, tags: str = "") -> None:
    for number in range(count):
        properties = f"TAGS\x01{tags}".encode() if tags else b""
        await cluster.brokers[0].put("t", queue_id, b"%d" % number, raw_properties=properties)
