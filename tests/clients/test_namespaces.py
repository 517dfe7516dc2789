"""Namespaces: the same names in two of them are apart, and Java's clients agree."""

from __future__ import annotations

import asyncio

import pytest

from pyromq.client import LitePullConsumer, Message, Producer, PushConsumer, StartFrom
from tests.clients.cases import Case, Inbox, against_all_brokers
from tests.interop.client_driver import ClientDriver

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


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
