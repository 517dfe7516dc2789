"""Requests and replies, between our clients and Java's, in both directions."""

from __future__ import annotations

import asyncio

import pytest

from pyromq.client import (
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RequestTimeoutError,
    StartFrom,
    reply_to,
)
from tests.clients.cases import Case, against_all_brokers
from tests.interop.client_driver import ClientDriver
from tests.support.patience import DEADLINE

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


class Replier:
    """Answers each request with a producer of its own."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.requests: list[ReceivedMessage] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.requests.append(message)
        await self._producer.send(reply_to(message, b"reply to " + message.body))


@against_all_brokers
async def test_many_requests_at_a_time_get_their_own_replies(case: Case) -> None:
    async with (
        Producer(case.namesrv, group="repliers") as answering,
        PushConsumer(
            case.namesrv,
            group=case.group,
            handler=Replier(answering),
            subscriptions={case.topic: "*"},
            start_from=StartFrom.FIRST,
        ),
        Producer(case.namesrv, group="requesters") as producer,
    ):
        bodies = [b"question %d" % number for number in range(40)] + [b"long" * 5000]
        replies = await asyncio.gather(
            *(producer.request(Message(case.topic, body), DEADLINE) for body in bodies)
        )
        assert [reply.body for reply in replies] == [b"reply to " + body for body in bodies]
        assert len({reply.system_properties["CORRELATION_ID"] for reply in replies}) == len(bodies)


async def test_java_answers_our_requests(case: Case, java_clients: ClientDriver) -> None:
    await asyncio.to_thread(
        java_clients.consumer, "replier", case.namesrv, case.group, case.topic, replies=True
    )
    async with Producer(case.namesrv, group="requesters") as producer:
        replies = await asyncio.gather(
            *(producer.request(Message(case.topic, b"question %d" % n), DEADLINE) for n in range(5))
        )
    assert [reply.body for reply in replies] == [b"reply to question %d" % n for n in range(5)]
    for reply in replies:
        assert reply.system_properties["TTL"] == str(int(DEADLINE * 1000))
        assert reply.system_properties["MSG_TYPE"] == "reply"
        assert reply.system_properties["REPLY_TO_CLIENT"] == producer.client_id


async def test_we_answer_the_requests_of_java(case: Case, java_clients: ClientDriver) -> None:
    async with Producer(case.namesrv, group="repliers") as answering:
        replier = Replier(answering)
        async with PushConsumer(
            case.namesrv,
            group=case.group,
            handler=replier,
            subscriptions={case.topic: "*"},
            start_from=StartFrom.FIRST,
        ):
            await asyncio.to_thread(java_clients.producer, "asker", case.namesrv, "askers")
            for number in range(3):
                reply = await asyncio.to_thread(
                    java_clients.call,
                    "request",
                    name="asker",
                    topic=case.topic,
                    body=f"question {number}",
                    millis=20_000,
                )
                assert reply["body"] == f"reply to question {number}"
                assert reply["properties"]["MSG_TYPE"] == "reply"
        for request in replier.requests:
            assert request.system_properties["TTL"] == "20000"


async def test_nobody_answers(case: Case) -> None:
    async with Producer(case.namesrv, group="requesters") as producer:
        with pytest.raises(RequestTimeoutError, match="stored, but not replied to"):
            await producer.request(Message(case.topic, b"?"), 1.0)
    (request,) = await case.wait_stored(1)
    assert request.system_properties["TTL"] == "1000"
