"""Traces across languages: Java's messages have no context, and Java gets ours as properties."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pyromq.client import Message, Producer, PushConsumer, ReceivedMessage, StartFrom
from pyromq.otel import PyromqInstrumentor
from tests.clients.cases import Case
from tests.interop.client_driver import ClientDriver
from tests.unit.otel.tracing import Recorder, context, linked, parent, place

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    PyromqInstrumentor().instrument(tracer_provider=recorder.provider, skip_dep_check=True)
    yield recorder
    PyromqInstrumentor().uninstrument()


async def test_traces_with_java(case: Case, java_clients: ClientDriver, recorder: Recorder) -> None:
    async def handle(message: ReceivedMessage) -> None:
        assert message.body

    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await asyncio.to_thread(java_clients.producer, "java", case.namesrv, f"{case.group}-java")
    messages: list[dict[str, Any]] = [
        {"body": "plain"},
        {"body": "garbage", "properties": {"traceparent": "?"}},
    ]
    # As OpenTelemetry's agent for Java writes it.
    messages.append({"body": "traced", "properties": {"traceparent": traceparent}})
    for message in messages:
        await asyncio.to_thread(java_clients.send, "java", case.topic, [message])
    async with PushConsumer(
        case.namesrv,
        group=case.group,
        handler=handle,
        subscriptions=[case.topic],
        start_from=StartFrom.FIRST,
    ):
        spans = await recorder.until(f"process {case.topic}", 3)
    wanted = (int(traceparent[3:35], 16), int(traceparent[36:52], 16))
    assert sorted(map(str, map(parent, spans))) == sorted(["None", "None", str(wanted)])
    assert [linked(span) for span in spans if parent(span) == wanted] == [[wanted]]

    out = await case.create_topic(f"{case.topic}-out", 1)
    await asyncio.to_thread(java_clients.consumer, "reader", case.namesrv, f"{case.group}-out", out)
    async with Producer(case.namesrv) as producer:
        await producer.send(Message(out, b"from here"))
    (line,) = await asyncio.to_thread(java_clients.wait_bodies, "reader", ["from here"])
    (sent,) = recorder.spans(f"send {out}")
    trace_id, span_id = place(sent)
    flags = int(context(sent).trace_flags)
    assert line["properties"]["traceparent"] == f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"
