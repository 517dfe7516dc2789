"""Message traces: what our clients write is what Java's write, and Java's tools find it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from pyromq.client import (
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
    TransactionProducer,
    TransactionState,
)
from pyromq.protocol.message.trace import TraceRecord, decode_trace
from pyromq.protocol.names import TRACE_TOPIC
from tests.clients.cases import Case, Inbox, eventually
from tests.interop.client_driver import ClientDriver
from tests.interop.mqadmin import mqadmin, run

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

against_apache = pytest.mark.parametrize("cluster", ["apache"], indirect=True)
#: What differs with each message and each moment.
VARYING = ("time", "cost", "msg_id", "offset_msg_id", "request_id", "transaction_id")


@pytest.fixture(scope="module")
def admin() -> Iterator[ClientDriver]:
    with mqadmin() as driver:
        yield driver


async def traces_of(case: Case, count: int, *msg_ids: str) -> list[TraceRecord]:
    """The trace records about these messages, once there are as many, by kind and message."""

    async def enough() -> list[TraceRecord] | None:
        found = [
            record
            for message in await case.stored(TRACE_TOPIC)
            for record in decode_trace(message.body)
            if record.msg_id in msg_ids
        ]
        return found if len(found) >= count else None

    found = await eventually(enough)
    assert len(found) == count
    return sorted(found, key=lambda r: (type(r).__name__, msg_ids.index(r.msg_id), r.time))


def comparable(records: list[TraceRecord]) -> list[dict[str, Any]]:
    lines = []
    for record in records:
        line = {name: value for name, value in asdict(record).items() if name not in VARYING}
        lines.append({"kind": type(record).__name__, **line})
    return lines


@against_apache
async def test_the_same_records_as_those_of_java(case: Case, java_clients: ClientDriver) -> None:
    java = java_clients
    bodies = ["plain", "rich", "late", "large" * 2000]
    lines: list[dict[str, Any]] = [{"body": body} for body in bodies]
    lines[1].update(tags="tag", keys="one two")
    lines[2].update(delay=1)
    of_java = await java_traces(case, java, lines)
    inbox = Inbox()
    async with (
        PushConsumer(
            case.namesrv,
            group=f"{case.group}_c",
            handler=inbox,
            subscriptions={case.topic: "*"},
            trace=True,
            start_from=StartFrom.FIRST,
        ),
        Producer(case.namesrv, group=f"{case.group}_p", trace=True) as producer,
    ):
        results = [
            await producer.send(
                Message(
                    case.topic,
                    line["body"].encode(),
                    tags=line.get("tags", ""),
                    keys=line.get("keys", ""),
                    delay_level=line.get("delay", 0),
                )
            )
            for line in lines
        ]
        await inbox.until_bodies([body.encode() for body in bodies])
        ours = await traces_of(case, 12, *(result.msg_id for result in results))
    assert comparable(ours) == comparable(of_java)


async def java_traces(
    case: Case, java: ClientDriver, lines: list[dict[str, Any]]
) -> list[TraceRecord]:
    producer, consumer = f"{case.group}_p", f"{case.group}_c"
    await asyncio.to_thread(
        java.consumer, "consumer", case.namesrv, consumer, case.topic, trace=True
    )
    await asyncio.to_thread(java.producer, "producer", case.namesrv, producer, trace=True)
    sent = await asyncio.to_thread(java.send, "producer", case.topic, lines)
    await asyncio.to_thread(java.wait_bodies, "consumer", [line["body"] for line in lines])
    traces = await traces_of(case, 12, *(line["msgIds"][0] for line in sent))
    # Java's clients share what sends their traces: the next must not begin while this one ends.
    for client in ("consumer", "producer"):
        await asyncio.to_thread(java.close, client)
    return traces


@against_apache
async def test_transactions_as_those_of_java(case: Case, java_clients: ClientDriver) -> None:
    java = java_clients
    line = {
        "body": "x",
        "keys": "key",
        "tags": "tag",
        "properties": {"local": "unknown", "check": "commit"},
    }
    await asyncio.to_thread(
        java.producer, "producer", case.namesrv, case.group, transactional=True, trace=True
    )
    (sent,) = await asyncio.to_thread(java.send, "producer", case.topic, [line], "transaction")
    of_java = await traces_of(case, 3, sent["msgIds"][0])
    await asyncio.to_thread(java.close, "producer")

    def check(message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT

    def execute(message: Message) -> None:
        return None

    async with TransactionProducer(
        case.namesrv, group=case.group, check=check, trace=True
    ) as producer:
        result = await producer.send_in_transaction(
            Message(case.topic, b"x", keys="key", tags="tag"), execute
        )
        ours = await traces_of(case, 3, result.msg_id)
    assert comparable(ours) == comparable(of_java)
    ends = [record for record in ours if hasattr(record, "transaction_id")]
    assert [record.transaction_id for record in ends] == [result.msg_id] * 2


async def test_mqadmin_shows_them(case: Case, admin: ClientDriver) -> None:
    inbox = Inbox()
    async with (
        PushConsumer(
            case.namesrv,
            group=case.group,
            handler=inbox,
            subscriptions={case.topic: "*"},
            trace=True,
            start_from=StartFrom.FIRST,
        ),
        Producer(case.namesrv, group=case.group, trace=True) as producer,
    ):
        results = await producer.send_batch(
            [Message(case.topic, b"first"), Message(case.topic, b"second", keys="key")]
        )
        await inbox.until_bodies([b"first", b"second"])

    async def shown(msg_id: str) -> str | None:
        words = ["queryMsgTraceById", "-i", msg_id]
        outcome = await asyncio.to_thread(run, admin, case.namesrv, words)
        has_all = outcome.out.count(case.group) >= 2 and "Pub" in outcome.out
        return outcome.out if has_all else None

    for result in results:
        text = await eventually(lambda msg_id=result.msg_id: shown(msg_id))  # type: ignore[misc]
        assert "success" in text
