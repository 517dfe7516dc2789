"""Forwarding: a received message, whatever happened to it, arrives when it is sent on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from pyromq.client import (
    Batching,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    StartFrom,
    TransactionProducer,
    TransactionState,
    reply_to,
)
from pyromq.protocol.names import TRACE_TOPIC
from tests.clients.cases import Case, eventually
from tests.support.patience import DEADLINE

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


async def test_messages_with_any_past_arrive(case: Case) -> None:
    """Of a transaction, delayed, retried, given up, a request, a reply, a trace."""
    received = await messages_with_a_past(case)
    assert set(received) == {
        b"transaction", b"delayed", b"retried", b"dead", b"request", b"reply", b"trace"
    }  # fmt: skip
    out = await case.create_topic(f"{case.topic}-out", 1)
    async with Producer(case.namesrv) as producer:
        for kind, message in received.items():
            await producer.send(Message(out, kind, properties=message.properties))
            await producer.send(message.forward(out, kind + b", forwarded"))
    arrived = {message.body: message for message in await case.wait_stored(14, out)}
    assert set(arrived) == {kind + end for kind in received for end in (b"", b", forwarded")}
    for kind, original in received.items():
        by_hand, forwarded = arrived[kind], arrived[kind + b", forwarded"]
        assert by_hand.properties == forwarded.properties == original.properties
        assert (forwarded.tags, forwarded.keys) == (original.tags, original.keys)
        assert (by_hand.tags, by_hand.keys) == ("", "")
        assert forwarded.msg_id != original.msg_id
        assert by_hand.reconsume_times == forwarded.reconsume_times == 0


async def test_every_way_to_send_forwards(case: Case) -> None:
    """A committed half message is the one that gets lost most easily."""
    message = await committed(case, Message(case.topic, b"m", "tag", "key", {"colour": "red"}))
    out = await case.create_topic(f"{case.topic}-out", 1)
    ways: dict[bytes, Callable[[Message], Awaitable[object]]] = {}
    async with (
        Producer(case.namesrv, batching=Batching()) as batching,
        # Of another group: nobody is left to answer for the original's transaction.
        TransactionProducer(case.namesrv, group=f"{case.group}-on", check=commit) as producer,
        answering(case, out),
    ):
        ways = {
            b"send": producer.send,
            b"send_batch": lambda message: producer.send_batch([message]),
            b"send_oneway": producer.send_oneway,
            b"accumulator": batching.send,
            b"transaction": lambda message: producer.send_in_transaction(message, commit),
            b"request": lambda message: producer.request(message, DEADLINE),
        }
        for name, send in ways.items():
            await send(Message(out, name, "tag", "key", {**message.properties, "via": "hand"}))
            await send(message.forward(out, name + b", forwarded"))
        arrived = await case.wait_stored(2 * len(ways), out)
    assert {m.body for m in arrived} == {
        name + end for name in ways for end in (b"", b", forwarded")
    }
    for found in arrived:
        assert (found.tags, found.keys, found.properties["colour"]) == ("tag", "key", "red")
    assert await consumed(case, out, len(arrived)) == {m.body for m in arrived}


async def messages_with_a_past(case: Case) -> dict[bytes, ReceivedMessage]:
    """One message of each kind, as a consumer gets it, by kind."""
    found: dict[bytes, ReceivedMessage] = {}

    async with Producer(case.namesrv, trace=True) as producer:

        async def handle(message: ReceivedMessage) -> Retry | None:
            if message.body == b"request":
                await producer.send(reply_to(message, b"reply"))
            if message.body == b"dead":
                return Retry(delay_level=-1)
            if message.body == b"retried" and not message.reconsume_times:
                return Retry()
            found[message.body] = message
            return None

        async with PushConsumer(
            case.namesrv,
            group=case.group,
            handler=handle,
            subscriptions={case.topic: "*"},
            start_from=StartFrom.FIRST,
        ):
            await committed(case, of_kind(case, b"transaction"))
            for kind in (b"delayed", b"retried", b"dead"):
                message = of_kind(case, kind)
                message.delay_level = 1 if kind == b"delayed" else 0
                await producer.send(message)
            found[b"reply"] = await producer.request(of_kind(case, b"request"), DEADLINE)
            await eventually(lambda: _is(len(found) >= 5))
    dead_letters = f"%DLQ%{case.group}"
    await asyncio.to_thread(case.cluster.wait_for_topic, dead_letters)
    (found[b"dead"],) = await case.wait_stored(1, dead_letters)
    found[b"trace"] = (await case.wait_stored(1, TRACE_TOPIC))[0]
    return found


def of_kind(case: Case, kind: bytes) -> Message:
    return Message(case.topic, kind, "tag", "key", {"colour": "red"})


async def committed(case: Case, message: Message) -> ReceivedMessage:
    """A message of a transaction, once it can be consumed."""
    async with TransactionProducer(case.namesrv, group=case.group, check=commit) as producer:
        await producer.send_in_transaction(message, commit)
        return (await case.wait_stored(1))[0]


async def commit(_: object) -> TransactionState:
    return TransactionState.COMMIT


@asynccontextmanager
async def answering(case: Case, topic: str) -> AsyncIterator[None]:
    """Reply to the requests among the messages of a topic."""
    async with Producer(case.namesrv) as producer:

        async def handle(message: ReceivedMessage) -> None:
            if message.body.startswith(b"request"):
                await producer.send(reply_to(message, b"reply"))

        async with PushConsumer(
            case.namesrv,
            group=f"{case.group}-answering",
            handler=handle,
            subscriptions={topic: "*"},
            start_from=StartFrom.FIRST,
        ):
            yield


async def consumed(case: Case, topic: str, count: int) -> set[bytes]:
    """What a consumer gets of a topic."""
    bodies: set[bytes] = set()

    async def handle(message: ReceivedMessage) -> None:
        bodies.add(message.body)

    async with PushConsumer(
        case.namesrv,
        group=f"{case.group}-reading",
        handler=handle,
        subscriptions={topic: "*"},
        start_from=StartFrom.FIRST,
    ):
        await eventually(lambda: _is(len(bodies) >= count))
    return bodies


async def _is(condition: bool) -> bool:
    return condition
