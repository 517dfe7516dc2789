from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pyromq.client import trace
from pyromq.client.hooks import Consuming
from pyromq.client.message import Message
from pyromq.client.options import Settings
from pyromq.client.producer.producer import Producer
from pyromq.client.producer.transaction import TransactionProducer
from pyromq.client.received import ReceivedMessage, decode_messages
from pyromq.client.results import TransactionState
from pyromq.client.trace import MessageTrace, TraceRole, message_trace
from pyromq.protocol.message.message_id import encode_message_id
from pyromq.protocol.message.properties import encode_properties
from pyromq.protocol.message.record import MessageRecord, encode_record
from pyromq.protocol.message.trace import (
    ConsumeBegun,
    ConsumeEnded,
    ConsumeReturn,
    Published,
    TracedType,
    TraceRecord,
    TransactionEnded,
    decode_trace,
)
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader
from tests.support.patience import until
from tests.unit.client.fake_cluster import HOST, FakeBroker, FakeCluster, running_cluster

SEND = RequestCode.SEND_MESSAGE_V2
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TOPICS = {"t": {"b0": 1}, TRACE_TOPIC: {"b0": 1}}
QUEUE = MessageQueue("t", "b0", 0)


def traces(broker: FakeBroker, topic: str = TRACE_TOPIC) -> list[TraceRecord]:
    bodies = [message.body for message in broker.queues[topic, 0]]
    # Long ones are compressed.
    texts = [zlib.decompress(body) if body.startswith(b"\x78") else body for body in bodies]
    return [record for text in texts for record in decode_trace(text)]


async def test_closing_a_producer_sends_its_traces() -> None:
    async with running_cluster(TOPICS) as cluster:
        broker = cluster.brokers[0]
        async with Producer(cluster.namesrv, group="g", trace=True) as producer:
            first = await producer.send(Message("t", b"hello", tags="a", keys=["k1", "k2"]))
            await producer.send(Message("t", b"x", delay_level=3))
            assert not broker.queues[TRACE_TOPIC, 0]
        (message,) = broker.queues[TRACE_TOPIC, 0]
        published, delayed = decode_trace(message.body)
        assert isinstance(published, Published)
        assert published.time > 1_700_000_000_000
        assert published == Published(
            time=published.time,
            region="DefaultRegion",
            group="g",
            topic="t",
            msg_id=first.msg_id,
            tags="a",
            keys="k1 k2",
            store_host=broker.address,
            body_length=5,
            cost=published.cost,
            type=TracedType.NORMAL,
            offset_msg_id="OFFSETID",
            success=True,
        )
        assert isinstance(delayed, Published)
        assert delayed.type is TracedType.DELAY
        keys = message.properties["KEYS"].split()
        assert keys == [first.msg_id, "k1", "k2", delayed.msg_id]
        (request,) = [
            SendMessageRequestHeaderV2.decode(request.ext_fields)
            for request in broker.seen(SEND)
            if request.ext_fields["b"] == TRACE_TOPIC
        ]
        assert request.producer_group.startswith("_INNER_TRACE_PRODUCER-g-PRODUCE-")


async def test_traces_are_sent_periodically(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_LINGER_SECONDS", 0.01)
    async with (
        running_cluster({**TOPICS, "traces": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv, trace="traces", namespace="ns") as producer,
    ):
        cluster.topics["ns%t"] = {"b0": 1}
        await producer.send(Message("t", b"x"))
        await until(lambda: bool(cluster.brokers[0].queues["traces", 0]))
        (published,) = traces(cluster.brokers[0], "traces")
        assert isinstance(published, Published)
        assert published.topic == "t"


async def test_each_message_of_a_batch_is_found() -> None:
    async with running_cluster(TOPICS) as cluster:
        async with Producer(cluster.namesrv, trace=True) as producer:
            results = await producer.send_batch([Message("t", b"1"), Message("t", b"22", keys="k")])
        records = traces(cluster.brokers[0])
        assert [(r.msg_id, r.body_length, r.keys) for r in records if isinstance(r, Published)] == [
            (results[0].msg_id, 1, ""),
            (results[1].msg_id, 2, "k"),
        ]


async def test_the_recorded_length_is_the_compressed_one() -> None:
    async with running_cluster(TOPICS) as cluster:
        async with Producer(cluster.namesrv, trace=True) as producer:
            await producer.send(Message("t", b"x" * 10_000))
        (published,) = traces(cluster.brokers[0])
        assert isinstance(published, Published)
        assert published.body_length == len(cluster.brokers[0].queues["t", 0][0].body) < 1000


async def test_failed_oneway_and_unwanted_sends_are_not_traced() -> None:
    async with running_cluster(TOPICS) as cluster:
        broker = cluster.brokers[0]
        header = SendMessageResponseHeader("ID", 0, 0).encode()
        broker.refusals[SEND] = [
            (ResponseCode.SYSTEM_BUSY, "busy"),
            (ResponseCode.SUCCESS, "", {**header, "TRACE_ON": "false"}),  # type: ignore[list-item]
            (ResponseCode.FLUSH_DISK_TIMEOUT, "", {**header, "MSG_REGION": "r"}),  # type: ignore[list-item]
        ]
        async with Producer(cluster.namesrv, trace=True) as producer:
            await producer.send(Message("t", b"1"))
            await producer.send(Message("t", b"2"))
            await producer.send_oneway(Message("t", b"3"))
            await producer.send(Message(TRACE_TOPIC, b"4"))
        (published,) = [r for r in traces(broker) if isinstance(r, Published)]
        assert (published.region, published.success) == ("r", False)


async def test_transactions_are_traced() -> None:
    async with running_cluster(TOPICS) as cluster:
        broker = cluster.brokers[0]
        place = SendMessageResponseHeader(encode_message_id(HOST, 1), 0, 0, "TX").encode()
        async with TransactionProducer(
            cluster.namesrv, group="g", check=lambda _: None, trace=True
        ) as producer:
            broker.refusals[SEND] = [(ResponseCode.SUCCESS, "", place)]  # type: ignore[list-item]
            result = await producer.send_in_transaction(
                Message("t", b"x", keys="k"), lambda _: TransactionState.COMMIT
            )
        half, end = traces(broker)
        assert isinstance(half, Published)
        assert half.type is TracedType.HALF
        assert isinstance(end, TransactionEnded)
        assert end == TransactionEnded(
            time=end.time,
            region="DefaultRegion",
            group="g",
            topic="t",
            msg_id=result.msg_id,
            tags="",
            keys="k",
            store_host=broker.address,
            type=TracedType.COMMIT,
            transaction_id=result.msg_id,
            state="COMMIT_MESSAGE",
            from_check=False,
        )


# Consumers


def received(key: str, **properties: str) -> ReceivedMessage:
    raw = encode_properties({"UNIQ_KEY": key, "MSG_REGION": "r", **properties})
    record = MessageRecord(
        *("t", 0, 0, 0, b"x", {}, 0, 0, 1, ("", 0), 2, ("", 0), 2, 0, 0, 0, "", raw)
    )
    (message,) = decode_messages(encode_record(record, HOST, HOST), QUEUE)
    return message


@asynccontextmanager
async def running_trace(
    cluster: FakeCluster, consume_timeout: float = 900.0
) -> AsyncIterator[MessageTrace]:
    settings = Settings.of(cluster.namesrv, {"trace": True})
    made = message_trace(
        settings, "c", TraceRole.CONSUME, Producer, consume_timeout=consume_timeout
    )
    assert made is not None
    await made.start()
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        ({"success": True}, ConsumeReturn.SUCCESS),
        ({"success": False}, ConsumeReturn.FAILED),
        ({"error": ValueError("x")}, ConsumeReturn.EXCEPTION),
    ],
)
async def test_consumption_is_traced(outcome: dict[str, Any], code: ConsumeReturn) -> None:
    async with running_cluster(TOPICS) as cluster:
        async with running_trace(cluster) as made:
            messages = [received("A", KEYS="k"), received("B"), received("C", TRACE_ON="false")]
            consuming = Consuming("c", "", messages, QUEUE, asyncio.get_running_loop().time())
            made.before_consume(consuming)
            for name, value in outcome.items():
                setattr(consuming, name, value)
            made.after_consume(consuming)
        begun, _, ended, other = traces(cluster.brokers[0])
        assert isinstance(begun, ConsumeBegun)
        assert isinstance(ended, ConsumeEnded)
        assert (begun.msg_id, begun.keys, begun.retries, begun.region) == ("A", "k", 2, "r")
        assert (ended.msg_id, ended.keys, ended.code, ended.group) == ("A", "k", code, "c")
        assert ended.success is bool(outcome.get("success"))
        assert ended.request_id == begun.request_id
        assert other.msg_id == "B"


async def test_a_slow_handler_is_traced_as_timed_out() -> None:
    async with running_cluster(TOPICS) as cluster:
        async with running_trace(cluster, consume_timeout=0.0) as made:
            consuming = Consuming("c", "", [received("A")], QUEUE)
            made.before_consume(consuming)
            consuming.success = True
            made.after_consume(consuming)
        ended = traces(cluster.brokers[0])[-1]
        assert isinstance(ended, ConsumeEnded)
        assert (ended.code, ended.success) == (ConsumeReturn.TIME_OUT, True)


async def test_messages_that_opt_out_are_not_traced() -> None:
    async with running_cluster(TOPICS) as cluster:
        async with running_trace(cluster) as made:
            consuming = Consuming("c", "", [received("A", TRACE_ON="false")], QUEUE)
            made.before_consume(consuming)
            made.after_consume(consuming)
        assert traces(cluster.brokers[0]) == []


# Bounds


async def test_keys_stay_below_the_property_limit() -> None:
    async with running_cluster(TOPICS) as cluster:
        broker = cluster.brokers[0]
        async with running_trace(cluster) as made:
            for number in range(1000):
                consuming = Consuming("c", "", [received(f"{number:032}", KEYS="k" * 40)], QUEUE)
                made.before_consume(consuming)
            huge = received("H", KEYS=" ".join(f"{number:05}" for number in range(5300)))
            made.before_consume(Consuming("c", "", [huge], QUEUE))
        stored = broker.queues[TRACE_TOPIC, 0]
        assert len(stored) >= 2
        assert all(len(message.raw_properties) < 32_000 for message in stored)
        words = {word for message in stored for word in message.properties["KEYS"].split()}
        assert {f"{number:032}" for number in range(1000)} | {"H"} <= words
        assert len(traces(broker)) == 1001


async def test_a_full_buffer_is_sent_at_once() -> None:
    async with running_cluster(TOPICS) as cluster, running_trace(cluster) as made:
        for _ in range(2000):
            made.before_consume(Consuming("c", "", [received("A" * 32)], QUEUE))
        await until(lambda: bool(cluster.brokers[0].queues[TRACE_TOPIC, 0]))


async def test_lost_traces_are_logged_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_LINGER_SECONDS", 0.001)
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        async with Producer(cluster.namesrv, trace=True) as producer:
            for _ in range(3):
                await producer.send(Message("t", b"x"))
                await asyncio.sleep(0.02)
        lost = [r.getMessage() for r in caplog.records if "trace records" in r.message]
        assert 1 <= len(lost) <= 2
        assert sum(int(line.split()[1]) for line in lost) == 3
        assert len(cluster.brokers[0].queues["t", 0]) == 3


async def test_records_beyond_the_in_flight_limit_are_dropped(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_MAX_IN_FLIGHT", 0)
    async with running_cluster(TOPICS) as cluster:
        async with Producer(cluster.namesrv, trace=True) as producer:
            await producer.send(Message("t", b"x"))
        assert "lost 1 trace records" in caplog.text


async def test_a_producer_closes_although_its_cluster_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trace, "_CLOSE_SECONDS", 0.05)
    async with (
        running_cluster(TOPICS) as cluster,
        Producer(cluster.namesrv, trace=True) as producer,
    ):
        await producer.send(Message("t", b"x"))
        await cluster.brokers[0].stop()


def test_without_the_option_there_is_no_trace() -> None:
    settings = Settings.of("127.0.0.1:1", {})
    assert message_trace(settings, "g", TraceRole.PRODUCE, Producer) is None
