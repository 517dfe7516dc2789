"""Spans of real clients at a real broker, with the real SDK."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from pyromq.client import (
    Batching,
    BrokerError,
    ConsumeResult,
    LitePullConsumer,
    Message,
    MessageQueue,
    Order,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
    TopicNotFoundError,
    TransactionProducer,
    TransactionState,
    reply_to,
)
from pyromq.otel import PyromqInstrumentor
from pyromq.testing import Cluster
from tests.support.patience import DEADLINE, until
from tests.unit.otel.tracing import Recorder, attributes, context, linked, parent, place


def carried(message: ReceivedMessage) -> tuple[int, int]:
    """Trace and span that a message names."""
    _, trace_id, span_id, _ = message.properties["traceparent"].split("-")
    return int(trace_id, 16), int(span_id, 16)


async def test_a_send(cluster: Cluster, topic: str, recorder: Recorder) -> None:
    message = Message(topic, b"12345", tags="new", keys=["k1", "k2"])
    token = attach(baggage.set_baggage("tenant", "a"))
    with recorder.tracer.start_as_current_span("outer") as outer:
        async with Producer(cluster.namesrv, group="makers") as producer:
            result = await producer.send(message)
    detach(token)
    span = recorder.span(f"send {topic}")
    assert span.kind is SpanKind.PRODUCER
    assert parent(span) == (outer.get_span_context().trace_id, outer.get_span_context().span_id)
    assert span.status.status_code is StatusCode.UNSET
    host, port = cluster.brokers[0].address.rsplit(":", 1)
    assert attributes(span) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": "0",
        "messaging.message.id": result.msg_id,
        "messaging.message.body.size": 5,
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "new",
        "messaging.rocketmq.message.keys": ("k1", "k2"),
        "pyromq.producer.group": "makers",
        "pyromq.message.queue_offset": 0,
        "server.address": host,
        "server.port": int(port),
    }
    assert message.properties == {}, "the application's message is not changed"
    (stored,) = await cluster.drain_async(topic, 1)
    assert carried(stored) == place(span)
    assert stored.properties["baggage"] == "tenant=a"
    assert trace.get_current_span() is trace.INVALID_SPAN


async def test_each_way_to_send_one_message(
    cluster: Cluster, topic: str, recorder: Recorder
) -> None:
    queue = MessageQueue(topic, "broker-0", 0)
    async with Producer(cluster.namesrv) as producer:
        await producer.send(message=Message(topic, b"1"), queue=queue)
        await producer.send_oneway(Message(topic, b"2"), select=lambda queues, message: queues[0])
        await producer.send(Message(topic, b"3", ordering_key="o"), timeout=DEADLINE)
        await producer.send(Message(topic, b"4", delay_level=1))
        await producer.send_batch([Message(topic, b"5")])
    async with Producer(cluster.namesrv, batching=Batching()) as producer:
        await asyncio.gather(*(producer.send(Message(topic, b"%d" % n)) for n in (6, 7)))
    with Producer.sync(cluster.namesrv) as synchronous:
        await asyncio.to_thread(synchronous.send, Message(topic, b"8"))
    stored = {message.body: message for message in await cluster.drain_async(topic, 8)}
    spans = recorder.spans(f"send {topic}")
    assert {carried(message) for message in stored.values()} == set(map(place, spans))
    assert len(spans) == 8
    types = [attributes(span)["messaging.rocketmq.message.type"] for span in spans]
    assert sorted(map(str, types)) == ["delay", "fifo", *["normal"] * 6]
    oneway = next(span for span in spans if place(span) == carried(stored[b"2"]))
    assert "messaging.message.id" not in attributes(oneway)


async def test_the_caller_s_span_is_the_parent_on_any_thread(
    cluster: Cluster, topic: str, recorder: Recorder
) -> None:
    def send() -> None:
        with (
            Producer.sync(cluster.namesrv) as producer,
            recorder.tracer.start_as_current_span("outer"),
        ):
            producer.send(Message(topic, b"1"))

    await asyncio.to_thread(send)
    assert parent(recorder.span(f"send {topic}")) == place(recorder.span("outer"))


async def test_a_batch(cluster: Cluster, topic: str, recorder: Recorder) -> None:
    async with Producer(cluster.namesrv) as producer:
        results = await producer.send_batch(iter([Message(topic, b"%d" % n) for n in range(3)]))
    assert len(results) == 3
    created, span = recorder.spans(f"create {topic}"), recorder.span(f"send {topic}")
    stored = await cluster.drain_async(topic, 3)
    assert [carried(message) for message in stored] == list(map(place, created)) == linked(span)
    assert span.kind is SpanKind.CLIENT
    assert attributes(span)["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in attributes(span)
    assert {each.kind for each in created} == {SpanKind.PRODUCER}
    assert attributes(created[0])["messaging.operation.type"] == "create"


async def test_bad_calls_raise_what_they_raise_without_traces(
    cluster: Cluster, topic: str, recorder: Recorder
) -> None:
    bad: Any = 5
    calls: list[Callable[[Producer], Awaitable[object]]] = [
        lambda producer: producer.send(bad),
        lambda producer: producer.send_oneway(bad),
        lambda producer: producer.send_batch(bad),
        lambda producer: producer.send_batch([bad]),
        lambda producer: producer.send_batch([]),
        lambda producer: producer.send_batch(Message(topic, b"1")),  # type: ignore[arg-type]
        lambda producer: producer.send(Message(topic, b"")),
        lambda producer: producer.send(Message(topic, b"1", properties=bad)),
        lambda producer: producer.send(Message(topic, b"1", keys=bad)),
    ]

    async def failures() -> list[str]:
        found = []
        async with Producer(cluster.namesrv) as producer:
            for call in calls:
                with pytest.raises(Exception) as error:  # noqa: PT011 - any that it is
                    await call(producer)
                found.append(repr(error.value))
        return found

    traced = await failures()
    PyromqInstrumentor().uninstrument()
    try:
        assert traced == await failures()
    finally:
        PyromqInstrumentor().instrument(tracer_provider=recorder.provider, skip_dep_check=True)
    assert {span.status.status_code for span in recorder.spans()} == {StatusCode.ERROR}


async def test_a_send_that_fails(cluster: Cluster, recorder: Recorder) -> None:
    settings = {"autoCreateTopicEnable": "false"}
    with Cluster(settings=settings) as strict:
        async with Producer(strict.namesrv) as producer:
            with pytest.raises((TopicNotFoundError, BrokerError)):
                await producer.send(Message("absent", b"1"))
    span = recorder.span("send absent")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] in ("TopicNotFoundError", "BrokerError")
    assert [event.name for event in span.events] == ["exception"]


async def test_a_transaction(cluster: Cluster, topic: str, recorder: Recorder) -> None:
    seen: list[Any] = []

    def execute(half: Message) -> TransactionState:
        assert threading.current_thread() is not threading.main_thread()
        seen.append(trace.get_current_span().get_span_context().span_id)
        return TransactionState.COMMIT

    async with TransactionProducer(
        cluster.namesrv, group="tx", check=lambda message: TransactionState.COMMIT
    ) as producer:
        result = await producer.send_in_transaction(Message(topic, b"1"), execute)
    span, settled = recorder.span(f"send {topic}"), recorder.span(f"settle {topic}")
    assert seen == [context(span).span_id]
    assert attributes(span)["messaging.rocketmq.message.type"] == "transaction"
    assert attributes(span)["pyromq.transaction.state"] == "COMMIT"
    assert attributes(span)["messaging.message.id"] == result.result.msg_id
    assert parent(settled) == place(span)
    assert linked(settled) == [place(span)]
    assert attributes(settled)["messaging.operation.type"] == "settle"
    (stored,) = await cluster.drain_async(topic, 1)
    assert carried(stored) == place(span)


async def test_a_transaction_whose_execution_fails(
    cluster: Cluster, topic: str, recorder: Recorder
) -> None:
    async def execute(half: Message) -> TransactionState:
        raise ValueError("no money")

    async with TransactionProducer(
        cluster.namesrv, group="tx2", check=lambda message: TransactionState.ROLLBACK
    ) as producer:
        result = await producer.send_in_transaction(Message(topic, b"1"), execute)
    assert isinstance(result.error, ValueError)
    span = recorder.span(f"send {topic}")
    assert (span.status.status_code, attributes(span)["error.type"]) == (
        StatusCode.ERROR,
        "ValueError",
    )
    assert attributes(span)["pyromq.transaction.state"] == "UNKNOWN"


async def test_a_request_and_its_reply(cluster: Cluster, topic: str, recorder: Recorder) -> None:
    async with Producer(cluster.namesrv, group="askers") as asker:

        async def answer(message: ReceivedMessage) -> None:
            await asker.send(reply_to(message, b"42"))

        async with PushConsumer(
            cluster.namesrv,
            group="repliers",
            handler=answer,
            subscriptions=[topic],
            start_from=StartFrom.FIRST,
        ):
            reply = await asker.request(Message(topic, b"6 * 7"), timeout=DEADLINE)
    assert reply.body == b"42"
    asked, sent = recorder.span(f"request {topic}"), recorder.span(f"send {topic}")
    processed = recorder.span(f"process {topic}")
    (replied,) = (span for span in recorder.spans() if "REPLY_TOPIC" in span.name)
    assert parent(sent) == place(asked)
    assert parent(processed) == place(sent)
    assert parent(replied) == place(processed)
    assert linked(asked) == [place(replied)]
    assert attributes(processed)["messaging.message.conversation_id"]
    assert len({context(span).trace_id for span in recorder.spans()}) == 1


async def consumed(
    cluster: Cluster, topic: str, recorder: Recorder, handler: Any, count: int = 1, **options: Any
) -> list[ReadableSpan]:
    """The process spans of a consumer that gets what the topic has."""
    async with PushConsumer(
        cluster.namesrv,
        group=f"group-of-{topic}",
        handler=handler,
        subscriptions=[topic],
        start_from=StartFrom.FIRST,
        **options,
    ):
        return await recorder.until(f"process {topic}", count)


@pytest.mark.parametrize("order", [Order.CONCURRENT, Order.ORDERLY])
async def test_a_handler(cluster: Cluster, recorder: Recorder, order: Order) -> None:
    topic = f"handled-{order.name}"
    cluster.create_topic(topic, queues=1)
    token = attach(baggage.set_baggage("tenant", "a"))
    async with Producer(cluster.namesrv) as producer:
        result = await producer.send(Message(topic, b"12345", tags="new"))
    detach(token)
    seen: list[Any] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append((trace.get_current_span().get_span_context(), baggage.get_baggage("tenant")))
        with recorder.tracer.start_as_current_span("inner"):
            await asyncio.sleep(0)

    (span,) = await consumed(cluster, topic, recorder, handle, order=order)
    sent = recorder.span(f"send {topic}")
    assert seen == [(context(span), "a")]
    assert parent(recorder.span("inner")) == place(span)
    assert parent(span) == place(sent)
    assert linked(span) == [place(sent)]
    assert span.kind is SpanKind.CONSUMER
    assert attributes(span) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": f"group-of-{topic}",
        "messaging.message.id": result.msg_id,
        "messaging.message.body.size": 5,
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "new",
        "pyromq.message.queue_offset": 0,
    }


async def test_a_handler_in_a_thread_and_its_retry(
    cluster: Cluster, topic: str, recorder: Recorder
) -> None:
    async with Producer(cluster.namesrv) as producer:
        await producer.send(Message(topic, b"1"))
    seen: list[int] = []

    def handle(message: ReceivedMessage) -> ConsumeResult | None:
        seen.append(trace.get_current_span().get_span_context().span_id)
        if len(seen) == 1:
            raise ValueError("not yet")
        return ConsumeResult.RETRY if len(seen) == 2 else None

    spans = await consumed(cluster, topic, recorder, handle, 3)
    assert seen == [context(span).span_id for span in spans]
    sent = recorder.span(f"send {topic}")
    assert [parent(span) for span in spans] == [place(sent)] * 3
    times = [attributes(span).get("pyromq.message.reconsume_times") for span in spans]
    assert times == [None, 1, 2]
    assert [attributes(span).get("error.type") for span in spans] == ["ValueError", "retry", None]
    (event,) = spans[0].events
    assert (event.attributes or {})["exception.message"] == "not yet"
    assert [span.status.status_code for span in spans] == [
        StatusCode.ERROR,
        StatusCode.ERROR,
        StatusCode.UNSET,
    ]


async def test_a_handler_of_lists(cluster: Cluster, topic: str, recorder: Recorder) -> None:
    async with Producer(cluster.namesrv) as producer:
        for number in range(3):
            await producer.send(Message(topic, b"%d" % number))
    got: list[list[ReceivedMessage]] = []

    async def handle(messages: list[ReceivedMessage]) -> None:
        got.append(messages)

    async with PushConsumer(
        cluster.namesrv,
        group="lists",
        handler=handle,
        subscriptions=[topic],
        start_from=StartFrom.FIRST,
        batch_size=3,
    ):
        await until(lambda: sum(map(len, got)) == 3)
        await until(lambda: len(recorder.spans(f"process {topic}")) == len(got))
    sent = list(map(place, recorder.spans(f"send {topic}")))
    spans = recorder.spans(f"process {topic}")
    assert [link for span in spans for link in linked(span)] == sent
    for span, messages in zip(spans, got, strict=True):
        if len(messages) > 1:
            assert parent(span) is None
            assert attributes(span)["messaging.batch.message_count"] == len(messages)


async def test_pulls(cluster: Cluster, topic: str, recorder: Recorder) -> None:
    async with Producer(cluster.namesrv) as producer:
        for number in range(3):
            await producer.send(Message(topic, b"%d" % number))
    sent = list(map(place, recorder.spans(f"send {topic}")))
    async with PullConsumer(cluster.namesrv, topic, group="pullers") as consumer:
        (queue,) = await consumer.queues()
        result = await consumer.pull(queue, 1)
        assert len(result.messages) == 2
        await consumer.pull(queue, 3)
    span = recorder.span(f"receive {topic}")
    assert span.kind is SpanKind.CLIENT
    assert linked(span) == sent[1:]
    assert attributes(span)["messaging.batch.message_count"] == 2
    assert attributes(span)["messaging.consumer.group.name"] == "pullers"

    async with LitePullConsumer(
        cluster.namesrv, group="readers", start_from=StartFrom.FIRST
    ) as lite:
        await lite.subscribe(topic)
        got: list[ReceivedMessage] = []
        while len(got) < 3:
            got += await lite.poll()
            assert trace.get_current_span() is trace.INVALID_SPAN
    spans = recorder.spans(f"receive {topic}")[1:]
    assert [link for each in spans for link in linked(each)] == sent
    assert recorder.spans(f"process {topic}") == []
    for each in spans:
        assert each.start_time is not None
        assert each.end_time is not None
        assert each.start_time <= each.end_time


async def test_a_forwarded_message_links_to_the_first(
    cluster: Cluster, topic: str, recorder: Recorder
) -> None:
    async with Producer(cluster.namesrv) as producer:
        await producer.send(Message(topic, b"1"))
        (stored,) = await cluster.drain_async(topic, 1)
        await producer.send(stored.forward(topic))
    first, second = recorder.spans(f"send {topic}")
    assert linked(second) == [place(first)]
    (copy,) = await cluster.drain_async(topic, 1)
    assert carried(copy) == place(second)


async def test_a_message_without_context_and_one_with_garbage(
    cluster: Cluster, topic: str, recorder: Recorder
) -> None:
    PyromqInstrumentor().uninstrument()
    try:
        # As a Java client without an agent sends it.
        async with Producer(cluster.namesrv) as producer:
            await producer.send(Message(topic, b"1"))
            properties = {"traceparent": "00-zz-\u20ac", "tracestate": "=", "baggage": "\x7f%"}
            await producer.send(Message(topic, b"2", properties=properties))
    finally:
        PyromqInstrumentor().instrument(tracer_provider=recorder.provider, skip_dep_check=True)
    bodies: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        bodies.append(message.body)

    spans = await consumed(cluster, topic, recorder, handle, 2)
    assert sorted(bodies) == [b"1", b"2"]
    assert [(parent(span), linked(span)) for span in spans] == [(None, [])] * 2


async def test_message_traces_are_not_traced(
    cluster: Cluster, topic: str, recorder: Recorder
) -> None:
    async with Producer(cluster.namesrv, trace=True) as producer:
        await producer.send(Message(topic, b"1"))
    assert [span.name for span in recorder.spans()] == [f"send {topic}"]
