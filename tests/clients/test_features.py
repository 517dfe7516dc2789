"""Namespaces, transactions, request-reply and message traces, also with Java at the other end."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from pyromq.client import (
    ConsumeResult,
    HalfMessage,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RequestTimeoutError,
    StartFrom,
    TransactionProducer,
    TransactionState,
    reply_to,
)
from tests.clients.cases import Case, Inbox, against_all_brokers, eventually, numbered
from tests.interop.client_driver import ClientDriver

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

DECISIONS = {
    "commit": TransactionState.COMMIT,
    "rollback": TransactionState.ROLLBACK,
    "unknown": TransactionState.UNKNOWN,
}


# Namespaces


@against_all_brokers
async def test_namespaces_are_apart(case: Case) -> None:
    await case.create_topic(f"Space%{case.topic}")
    inside, outside = Inbox(lambda message: message.reconsume_times == 0), Inbox()
    async with (
        PushConsumer(
            case.namesrv,
            group=case.group,
            handler=inside,
            subscriptions={case.topic: "*"},
            namespace="Space",
            start_from=StartFrom.FIRST,
        ),
        PushConsumer(
            case.namesrv,
            group=case.group,
            handler=outside,
            subscriptions={case.topic: "*"},
            start_from=StartFrom.FIRST,
        ),
        Producer(case.namesrv, namespace="Space") as spaced,
    ):
        result = await spaced.send(Message(case.topic, b"inside"))
        assert result.queue.topic == case.topic
        await case.send([b"outside"])
        await inside.until_count(2)
        await outside.until_exactly([b"outside"])
    assert inside.bodies == [b"inside"] * 2
    assert {message.topic for message in inside.messages} == {case.topic}
    assert [message.body for message in await case.wait_stored(1, f"Space%{case.topic}")] == [
        b"inside"
    ]
    async with LitePullConsumer(
        case.namesrv, group=f"{case.group}-lite", namespace="Space", start_from=StartFrom.FIRST
    ) as consumer:
        await consumer.subscribe(case.topic)
        message = await asyncio.wait_for(anext(consumer), 20)
        assert (message.topic, message.body) == (case.topic, b"inside")


async def test_a_namespace_is_the_same_in_java(case: Case, java_clients: ClientDriver) -> None:
    await case.create_topic(f"Space%{case.topic}")
    name = case.group
    await asyncio.to_thread(
        java_clients.consumer, name, case.namesrv, case.group, case.topic, namespace="Space"
    )
    async with Producer(case.namesrv, namespace="Space") as producer:
        await producer.send(Message(case.topic, b"from here"))
    (line,) = await asyncio.to_thread(java_clients.wait_bodies, name, ["from here"])
    assert line["topic"] == case.topic


# Transactions


@against_all_brokers
async def test_transactions_end_as_they_say(case: Case) -> None:
    checked: list[str] = []

    async def execute(half: HalfMessage) -> TransactionState:
        return DECISIONS[half.properties["local"]]

    async def check(message: ReceivedMessage) -> TransactionState:
        checked.append(message.body.decode())
        return DECISIONS[message.properties["check"]]

    ways = [
        ("commit", "unknown"),
        ("rollback", "unknown"),
        ("unknown", "commit"),
        ("unknown", "rollback"),
    ]
    inbox = Inbox()
    async with (
        PushConsumer(
            case.namesrv,
            group=case.group,
            handler=inbox,
            subscriptions={case.topic: "*"},
            start_from=StartFrom.FIRST,
        ),
        TransactionProducer(case.namesrv, group=f"{case.group}-tx", check=check) as producer,
    ):
        results = {
            f"{local}-{later}": await producer.send_in_transaction(
                Message(
                    case.topic,
                    f"{local}-{later}".encode(),
                    keys="k",
                    tags="t",
                    properties={"local": local, "check": later},
                ),
                execute,
            )
            for local, later in ways
        }

        async def both_checked() -> bool:
            return {"unknown-commit", "unknown-rollback"} <= set(checked)

        await eventually(both_checked)
        await inbox.until_exactly([b"commit-unknown", b"unknown-commit"])
    if case.cluster.kind != "apache-5.3.3":
        # 5.x notes ends only each 3 s, so it may ask about transactions that have ended.
        assert set(checked) == {"unknown-commit", "unknown-rollback"}
    for message in inbox.messages:
        assert message.topic == case.topic
        assert message.msg_id == results[message.body.decode()].msg_id
        assert (message.keys, message.tags) == ("k", "t")


async def test_another_member_answers_for_a_transaction(
    case: Case, java_clients: ClientDriver
) -> None:
    """A half of a producer that is gone: a Java member of its group is asked, and the reverse."""
    group = f"{case.group}-tx"

    async def unknown(_: object) -> TransactionState:
        return TransactionState.UNKNOWN

    async with TransactionProducer(case.namesrv, group=group, check=unknown) as producer:
        await producer.send_in_transaction(
            Message(case.topic, b"left by us", properties={"check": "commit"}), unknown
        )
    name = f"{case.group}-java"
    await asyncio.to_thread(java_clients.producer, name, case.namesrv, group, transactional=True)
    # It is known to a broker when it has sent there.
    await asyncio.to_thread(
        java_clients.send,
        name,
        case.topic,
        [{"body": "left by java", "properties": {"local": "unknown", "check": "unknown"}}],
        "transaction",
    )
    await asyncio.to_thread(
        java_clients.wait_reports,
        name,
        lambda lines: "left by us" in {line["body"] for line in lines},
        30.0,
        "check",
    )
    await asyncio.to_thread(java_clients.close, name)

    async def commit(_: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT

    async with TransactionProducer(case.namesrv, group=group, check=commit, topics=[case.topic]):
        stored = await case.wait_stored(2)
    assert sorted(message.body for message in stored) == [b"left by java", b"left by us"]


# Request-reply


async def test_a_request_is_replied_to(case: Case) -> None:
    async with Producer(case.namesrv, group=f"{case.group}-replies") as replies:

        async def answer(message: ReceivedMessage) -> None:
            await replies.send(reply_to(message, b"reply to " + message.body))

        async with (
            PushConsumer(
                case.namesrv,
                group=case.group,
                handler=answer,
                subscriptions={case.topic: "*"},
                start_from=StartFrom.FIRST,
            ),
            Producer(case.namesrv, group=f"{case.group}-asks") as producer,
        ):
            answers = await asyncio.gather(
                *(producer.request(Message(case.topic, body), 20.0) for body in numbered(5))
            )
    assert [answer.body for answer in answers] == [b"reply to " + body for body in numbered(5)]


async def test_a_request_without_reply_ends(case: Case) -> None:
    async with Producer(case.namesrv) as producer:
        with pytest.raises(RequestTimeoutError, match="not replied to"):
            await producer.request(Message(case.topic, b"anybody?"), 1.0)


@pytest.mark.parametrize("asker", ["java", "ours"])
async def test_requests_between_languages(
    case: Case, java_clients: ClientDriver, asker: str
) -> None:
    if asker == "ours":
        await asyncio.to_thread(
            java_clients.consumer,
            case.group,
            case.namesrv,
            case.group,
            case.topic,
            replies=True,
        )
        async with Producer(case.namesrv, group=f"{case.group}-asks") as producer:
            reply = await producer.request(Message(case.topic, b"6 * 7"), 20.0)
        assert reply.body == b"reply to 6 * 7"
        return
    async with Producer(case.namesrv, group=f"{case.group}-replies") as replies:

        async def answer(message: ReceivedMessage) -> None:
            await replies.send(reply_to(message, b"reply to " + message.body))

        async with PushConsumer(
            case.namesrv,
            group=case.group,
            handler=answer,
            subscriptions={case.topic: "*"},
            start_from=StartFrom.FIRST,
        ):
            name = f"{case.group}-java"
            await asyncio.to_thread(java_clients.producer, name, case.namesrv, f"{case.group}-asks")
            reply = await asyncio.to_thread(
                java_clients.call,
                "request",
                name=name,
                topic=case.topic,
                body="6 * 7",
                millis=20_000,
            )
    assert reply["body"] == "reply to 6 * 7"


# Traces


async def test_traces_have_the_shape_of_javas(case: Case, java_clients: ClientDriver) -> None:
    """The same things done by both languages leave the same kinds of records."""
    group = case.group

    async def ours() -> None:
        inbox = Inbox()

        async def handle(message: ReceivedMessage) -> ConsumeResult:
            inbox.put(message)
            is_first = message.reconsume_times == 0
            return ConsumeResult.RETRY if is_first else ConsumeResult.SUCCESS

        async with (
            PushConsumer(
                case.namesrv,
                group=group,
                handler=handle,
                subscriptions={case.topic: "ours"},
                start_from=StartFrom.FIRST,
                trace=True,
            ),
            Producer(case.namesrv, group=f"{group}-p", trace=True) as producer,
        ):
            await producer.send(Message(case.topic, b"traced", tags="ours", keys="key-ours"))
            await inbox.until_count(2)

    await ours()
    name = f"{group}-java"
    await asyncio.to_thread(
        java_clients.consumer,
        name,
        case.namesrv,
        f"{group}-j",
        case.topic,
        expression="java",
        trace=True,
    )
    producer = f"{name}-producer"
    await asyncio.to_thread(
        java_clients.producer, producer, case.namesrv, f"{group}-jp", trace=True
    )
    await asyncio.to_thread(
        java_clients.send,
        producer,
        case.topic,
        [{"body": "traced", "tags": "java", "keys": "key-java", "properties": {"fail": "1"}}],
    )
    await asyncio.to_thread(java_clients.wait_reports, name, lambda lines: len(lines) == 2)
    await asyncio.to_thread(java_clients.close_all)

    async def traced() -> dict[str, list[list[str]]] | None:
        found = {who: await traces_of(case, f"key-{who}") for who in ("ours", "java")}
        # Published, and twice consumed.
        return found if all(len(records) >= 5 for records in found.values()) else None

    found = await eventually(traced)
    shapes = {who: Counter(shape(record) for record in records) for who, records in found.items()}
    assert shapes["ours"] == shapes["java"]


async def traces_of(case: Case, key: str) -> list[list[str]]:
    """The fields of each trace record that speaks of a message with this key."""
    async with PullConsumer(case.namesrv, "RMQ_SYS_TRACE_TOPIC") as consumer:
        records: list[list[str]] = []
        for queue in await consumer.queues():
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                offset = result.next_offset
                for message in result.messages:
                    if key in message.keys.split():
                        records += [
                            record.split("\x01")
                            for record in message.body.decode().split("\x02")
                            if key in record
                        ]
        return records


def shape(record: list[str]) -> tuple[str, ...]:
    """Kind, number of fields, and the fields that say what happened."""
    kind = record[0]
    if kind == "Pub":
        return (kind, str(len(record)), record[9], record[11], record[13])
    if kind == "SubBefore":
        return (kind, str(len(record)), record[6])
    return (kind, str(len(record)), record[4], record[6])
