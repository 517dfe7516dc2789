"""Synchronous consumers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from pyromq.client import (
    ClientStateError,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RocketMQError,
    StartFrom,
)
from pyromq.client.consumer.sync import SyncLitePullConsumer, SyncPullConsumer, SyncPushConsumer
from pyromq.testing import Cluster
from tests.support.patience import DEADLINE
from tests.unit.client.delegation import check_delegation
from tests.unit.client.message_counts import committed, total


class Collected:
    """The messages a handler got; `wait_for` waits for a number of them."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._changed = threading.Condition()

    def handle(self, message: ReceivedMessage) -> None:
        with self._changed:
            self.bodies.append(message.body)
            self._changed.notify_all()

    def wait_for(self, count: int) -> list[bytes]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.bodies) >= count, DEADLINE)
        return sorted(self.bodies)


def test_a_push_consumer_consumes(cluster: Cluster, topic: str) -> None:
    got = Collected()
    with (
        PushConsumer.sync(
            cluster.namesrv,
            group="billing",
            handler=got.handle,
            subscriptions={topic: "*"},
            start_from=StartFrom.FIRST,
        ) as consumer,
        Producer.sync(cluster.namesrv) as producer,
    ):
        for number in range(20):
            producer.send(Message(topic, b"%02d" % number))
        assert got.wait_for(20) == [b"%02d" % number for number in range(20)]
        assert {queue.topic for queue in consumer.assignment()} >= {topic}
        assert consumer.wait(0.01) is False
        consumer.pause()
        consumer.resume()
        consumer.unsubscribe(topic)
        consumer.subscribe(topic)
    assert consumer.wait(0.01) is True


def test_a_handler_may_send_and_close(cluster: Cluster, topic: str) -> None:
    producer = Producer.sync(cluster.namesrv)

    def handle(message: ReceivedMessage) -> None:
        producer.send(Message(f"{topic}-done", message.body))
        consumer.close()

    consumer = PushConsumer.sync(
        cluster.namesrv,
        group="forwarding",
        handler=handle,
        subscriptions={topic: "*"},
        start_from=StartFrom.FIRST,
        close_grace=600.0,
    )
    consumer.start()
    producer.send(Message(topic, b"x"))
    assert consumer.wait(DEADLINE)
    producer.close()
    assert total(cluster, f"{topic}-done") == 1
    assert committed(cluster, topic, "forwarding") == 1


def test_a_failed_start_raises() -> None:
    consumer = PushConsumer.sync(
        "127.0.0.1:1", group="billing", handler=print, subscriptions={"orders": "*"}
    )
    with pytest.raises(RocketMQError):
        consumer.start()
    consumer.close()


def test_a_lite_pull_consumer_reads(cluster: Cluster, topic: str) -> None:
    assigned: list[MessageQueue] = []
    with Producer.sync(cluster.namesrv) as producer:
        queue = producer.queues(topic)[0]
        for number in range(10):
            producer.send(Message(topic, b"%d" % number), queue)

    def reader(group: str) -> SyncLitePullConsumer:
        return LitePullConsumer.sync(cluster.namesrv, group=group, start_from=StartFrom.FIRST)

    with reader("reading") as consumer:
        consumer.subscribe({topic: "*"}, on_assigned=assigned.extend)
        for message in consumer:
            if message.body == b"4":
                break
        assert consumer.assignment() == assigned
        assert consumer.position(queue) == 5
    # All five were consumed: the block ended without an exception.
    assert committed(cluster, topic, "reading") == 5
    assert list(consumer) == []

    def fail() -> None:
        with reader("reading") as consumer:
            consumer.subscribe(topic)
            assert next(consumer).body == b"5"
            assert next(consumer).body == b"6"
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert committed(cluster, topic, "reading") == 6

    with reader("reading") as consumer:
        consumer.subscribe(topic, on_revoked=lambda _: consumer.commit())
        lists = consumer.batches()
        assert [message.body for message in next(lists)][:2] == [b"6", b"7"]
        consumer.seek(queue, 2)
        assert consumer.poll(DEADLINE)[0].body == b"2"
        consumer.seek_to_begin(queue)
        assert consumer.poll(DEADLINE)[0].body == b"0"
        consumer.seek_to_end(queue)
        consumer.pause()
        consumer.resume()
        assert consumer.poll(0.1) == []
        assert consumer.committed(queue) == 6
        assert consumer.max_offset(queue) == 10
        assert consumer.min_offset(queue) == 0
        assert len(consumer.queues(topic)) == 4
        consumer.commit({queue: 8})
        consumer.close()
        with pytest.raises(ClientStateError):
            consumer.poll()


def test_a_pull_consumer_pulls(cluster: Cluster, topic: str) -> None:
    with Producer.sync(cluster.namesrv) as producer:
        queue = producer.queues(topic)[0]
        for number in range(3):
            producer.send(Message(topic, b"%d" % number), queue)
    began = datetime.fromtimestamp(0)
    with PullConsumer.sync(cluster.namesrv, topic, group="pulling") as consumer:
        assert queue in consumer.queues()
        result = consumer.pull(queue, 1, max_messages=1, wait=0.1)
        assert [message.body for message in result.messages] == [b"1"]
        assert result.next_offset == 2
        assert (consumer.min_offset(queue), consumer.max_offset(queue)) == (0, 3)
        assert consumer.offset_by_time(queue, began) == 0
        consumer.commit(queue, 2)
        assert consumer.committed(queue) == 2
        assert consumer.client_id
    with pytest.raises(ClientStateError):
        consumer.queues()


def test_close_ends_a_reader_in_another_thread(cluster: Cluster, topic: str) -> None:
    consumer = LitePullConsumer.sync(cluster.namesrv)
    consumer.assign(consumer.queues(topic))
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(list, consumer)
        with pytest.raises(TimeoutError):
            read.result(0.05)
        consumer.close()
        assert read.result(DEADLINE) == []


def test_every_call_reaches_the_asynchronous_consumer() -> None:
    check_delegation(SyncPushConsumer, PushConsumer, own=["wait"])
    check_delegation(SyncLitePullConsumer, LitePullConsumer, own=["batches"])
    check_delegation(SyncPullConsumer, PullConsumer)
