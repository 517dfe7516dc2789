"""Every way to send: what arrives is what was sent, and lies where the result says."""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections import defaultdict
from collections.abc import Sequence

import pytest

from pyromq.client import (
    Batching,
    Message,
    MessageQueue,
    Producer,
    ReceivedMessage,
    SendResult,
    SendStatus,
)
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.sysflag import COMPRESSED
from tests.clients.cases import Case, against_all_brokers, numbered
from tests.interop.cluster import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


def rich_messages(topic: str, way: str, count: int = 8) -> list[Message]:
    return [
        Message(
            topic,
            f"{way}-{number} äöü 消息 🚀".encode(),
            tags=("TagA", "TagB")[number % 2],
            keys=[f"{way}-{number}", f"all-{way}"],
            properties={"number": str(number), "umlaut": f"grün-{number}"},
            flag=number,
        )
        for number in range(count)
    ]


def assert_same(sent: Message, stored: ReceivedMessage, result: SendResult | None) -> None:
    assert stored.body == sent.body
    assert stored.topic == sent.topic
    assert stored.tags == sent.tags
    assert stored.keys.split() == list(sent.keys)
    assert stored.flag == sent.flag
    assert stored.reconsume_times == 0
    assert {name: stored.properties[name] for name in sent.properties} == sent.properties
    if result is not None:
        assert result.status is SendStatus.SEND_OK
        assert (result.queue, result.queue_offset) == (stored.queue, stored.queue_offset)
        assert result.msg_id == stored.msg_id == stored.system_properties["UNIQ_KEY"]
        assert result.offset_msg_id == stored.offset_msg_id


@against_all_brokers
@pytest.mark.parametrize("way", ["send", "gather", "oneway", "batch", "accumulator", "selector"])
async def test_arrives(case: Case, way: str) -> None:
    messages = rich_messages(case.topic, way)
    results: Sequence[SendResult | None]
    batching = Batching(linger=0.01) if way == "accumulator" else None
    async with Producer(case.namesrv, group=case.group, batching=batching) as producer:
        if way == "send":
            results = [await producer.send(message) for message in messages]
        elif way in ("gather", "accumulator"):
            results = await asyncio.gather(*(producer.send(message) for message in messages))
        elif way == "oneway":
            for message in messages:
                await producer.send_oneway(message)
            results = [None] * len(messages)
        elif way == "batch":
            results = await producer.send_batch(messages)
        else:
            results = [
                await producer.send(message, select=lambda queues, wanted: queues[wanted.flag % 3])
                for message in messages
            ]
    stored = {message.body: message for message in await case.wait_stored(len(messages))}
    assert len(stored) == len(messages)
    for message, result in zip(messages, results, strict=True):
        assert_same(message, stored[message.body], result)
    queues = {found.queue.queue_id for found in stored.values()}
    if way in ("send", "gather", "oneway"):
        assert queues == {0, 1, 2, 3}, "in turn"
    elif way == "selector":
        assert {found.queue.queue_id: found.flag % 3 for found in stored.values()} == {
            0: 0,
            1: 1,
            2: 2,
        }
    else:
        assert len(queues) == 1, "one request, one queue"


@against_all_brokers
@pytest.mark.parametrize("batching", [None, Batching(linger=0.005)], ids=["single", "batched"])
async def test_an_ordering_key_keeps_its_queue_and_order(
    case: Case, batching: Batching | None
) -> None:
    keys = [f"order-{number}" for number in range(6)]
    async with Producer(case.namesrv, batching=batching) as producer:
        queues = await producer.queues(case.topic)
        for number in range(10):
            await asyncio.gather(
                *(
                    producer.send(Message(case.topic, f"{key}/{number}".encode(), ordering_key=key))
                    for key in keys
                )
            )
    stored = await case.wait_stored(60)
    found = defaultdict(list)
    for message in stored:
        key, text = message.body.decode().split("/")
        found[key].append((message.queue, int(text)))
        assert message.ordering_key == key
    for key in keys:
        # As Java's SelectMessageQueueByHash: members of both languages agree.
        queue = queues[abs(java_hash(key)) % len(queues)]
        assert found[key] == [(queue, number) for number in range(10)]


async def test_a_given_queue_is_taken(case: Case) -> None:
    async with Producer(case.namesrv) as producer:
        queue = (await producer.queues(case.topic))[2]
        results = [await producer.send(Message(case.topic, body), queue) for body in numbered(4)]
        results += await producer.send_batch(
            [Message(case.topic, body) for body in numbered(4, "b")], queue
        )
    assert [(result.queue, result.queue_offset) for result in results] == [
        (queue, offset) for offset in range(8)
    ]


async def test_a_batch_too_large_for_a_request_is_split_and_stays_in_order(case: Case) -> None:
    bodies = [bytes([number]) + os.urandom(900_000) for number in range(10)]
    async with Producer(case.namesrv, send_timeout=20) as producer:
        results = await producer.send_batch([Message(case.topic, body) for body in bodies])
    assert len({result.queue for result in results}) == 1
    assert [result.queue_offset for result in results] == list(range(10))
    assert [message.body for message in await case.wait_stored(10)] == bodies


@against_all_brokers
async def test_large_bodies_are_compressed_on_the_way(case: Case) -> None:
    small, large = b"s" * 4095, b"large " * 20_000
    async with Producer(case.namesrv) as producer:
        queue = (await producer.queues(case.topic))[0]
        for body in (small, large):
            await producer.send(Message(case.topic, body), queue)
    first, second = await case.wait_stored(2)
    assert (first.body, second.body) == (small, large)
    assert not first.sys_flag & COMPRESSED
    assert second.sys_flag & COMPRESSED
    assert len(zlib.compress(large, 5)) < len(large) // 10


async def test_the_largest_body_is_taken(case: Case) -> None:
    body = os.urandom(4 * 1024 * 1024)
    async with Producer(case.namesrv, send_timeout=20, compress_over=2**31) as producer:
        await producer.send(Message(case.topic, body))
    (stored,) = await case.wait_stored(1)
    assert stored.body == body


@against_all_brokers
async def test_delayed_messages_come_after_their_time(case: Case) -> None:
    # The cluster's first level is 1 s.
    async with Producer(case.namesrv) as producer:
        sent_at = time.time()
        for body, level in ((b"later", 1), (b"now", 0)):
            await producer.send(Message(case.topic, body, tags="t", delay_level=level))
    stored = sorted(await case.wait_stored(2), key=lambda message: message.store_timestamp)
    assert [message.body for message in stored] == [b"now", b"later"]
    assert stored[1].store_timestamp >= (sent_at + 1) * 1000 - 10
    assert [message.tags for message in stored] == ["t", "t"]


@against_all_brokers
async def test_a_topic_is_made_by_the_first_send(case: Case, cluster: Cluster) -> None:
    topic = f"{case.topic}-new"
    async with Producer(case.namesrv, topic_queues=3) as producer:
        results = [await producer.send(Message(topic, body)) for body in numbered(6)]
    assert {result.queue.queue_id for result in results} <= {0, 1, 2}
    await asyncio.to_thread(cluster.wait_for_topic, topic)
    assert sorted(message.body for message in await case.wait_stored(6, topic)) == numbered(6)


async def test_many_at_once_all_arrive(case: Case) -> None:
    bodies = numbered(2000)
    async with Producer(case.namesrv, max_in_flight=256) as producer:
        results = await asyncio.gather(
            *(producer.send(Message(case.topic, body)) for body in bodies)
        )
    places = {
        (result.queue, result.queue_offset): body
        for result, body in zip(results, bodies, strict=True)
    }
    assert len(places) == len(bodies)
    assert len({result.msg_id for result in results}) == len(bodies)
    stored = await case.wait_stored(len(bodies))
    assert {(message.queue, message.queue_offset): message.body for message in stored} == places


async def test_closing_sends_what_waits(case: Case) -> None:
    producer = Producer(case.namesrv, batching=Batching(linger=30))
    await producer.start()
    sends = [
        asyncio.ensure_future(producer.send(Message(case.topic, body))) for body in numbered(50)
    ]
    await asyncio.sleep(0)
    await producer.close()
    results = await asyncio.gather(*sends)
    assert sorted(result.queue_offset for result in results) == list(range(50))
    assert len(await case.wait_stored(50)) == 50


async def test_queues_have_the_topics_names(case: Case) -> None:
    async with Producer(case.namesrv) as producer:
        queues = await producer.queues(case.topic)
    assert queues == [MessageQueue(case.topic, "broker-a", number) for number in range(4)]
