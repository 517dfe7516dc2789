from __future__ import annotations

import pytest

from pyromq.admin import Admin
from pyromq.admin.errors import UnreadableAnswerError
from pyromq.admin.queue_reader import PullStatus, QueueReader, decoded
from pyromq.client import Message, Producer
from pyromq.client.consumer.subscription import Subscription
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.testing import Cluster

COUNT = 70


async def _filled(rocketmq: Cluster, topic: str) -> tuple[str, MessageQueue]:
    queue = MessageQueue(topic, "broker-0", 1)
    async with Producer(rocketmq.namesrv) as producer:
        for number in range(COUNT):
            tags = "even" if number % 2 == 0 else "odd"
            await producer.send(Message(topic, b"%d" % number, tags=tags), queue)
    return rocketmq.brokers[0].address, queue


async def test_reads_a_range(rocketmq: Cluster, admin: Admin, rocketmq_topic: str) -> None:
    address, queue = await _filled(rocketmq, rocketmq_topic)
    reader = QueueReader(admin.session)

    assert await reader.min_offset(address, queue) == 0
    assert await reader.max_offset(address, queue) == COUNT
    found = [
        message
        async for pulled in reader.batches(address, queue, 3, COUNT - 1)
        for message in pulled.messages
    ]

    assert [message.queue_offset for message in found] == list(range(3, COUNT - 1))
    assert {message.broker_name for message in found} == {"broker-0"}
    time = found[10].store_timestamp
    offset = await reader.offset_by_time(address, queue, time)
    assert found[offset - 3].store_timestamp == time
    assert await reader.offset_by_time(address, queue, 0) == 0


async def test_filters_by_tags(rocketmq: Cluster, admin: Admin, rocketmq_topic: str) -> None:
    address, queue = await _filled(rocketmq, rocketmq_topic)
    reader = QueueReader(admin.session)
    odd = Subscription.tags("odd")

    found = [
        message
        async for pulled in reader.batches(address, queue, 0, COUNT, odd)
        for message in pulled.messages
    ]

    assert [int(message.body) for message in found] == list(range(1, COUNT, 2))


async def test_the_end_of_a_queue_ends_the_reading(
    rocketmq: Cluster, admin: Admin, rocketmq_topic: str
) -> None:
    address, queue = await _filled(rocketmq, rocketmq_topic)
    reader = QueueReader(admin.session)

    pulled = await reader.pull(address, queue, COUNT)
    assert (pulled.status, pulled.messages) == (PullStatus.NO_NEW_MSG, [])
    beyond = [each async for each in reader.batches(address, queue, COUNT - 1, COUNT + 1000)]
    assert [message.queue_offset for each in beyond for message in each.messages] == [COUNT - 1]
    assert [each async for each in reader.batches(address, queue, COUNT + 5, COUNT + 9)] == []


async def test_reads_by_entries(rocketmq: Cluster, admin: Admin, rocketmq_topic: str) -> None:
    address, queue = await _filled(rocketmq, rocketmq_topic)
    reader = QueueReader(admin.session)
    pulled = [
        message
        async for batch in reader.batches(address, queue, 5, COUNT)
        for message in batch.messages
    ]
    assert await reader.by_entries(address, queue, 5, COUNT + 10) == pulled


def test_garbage_names_its_sender() -> None:
    with pytest.raises(UnreadableAnswerError, match=r"10\.0\.0\.1:10911"):
        decoded("10.0.0.1:10911", b"garbage")
