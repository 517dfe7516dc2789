"""Our clients against our broker with strict access control: all works for those who may."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.client import (
    BrokerError,
    ClientOptions,
    LitePullConsumer,
    Message,
    Order,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
    TransactionProducer,
    TransactionState,
    reply_to,
)
from tests.clients.cases import Inbox, numbered
from tests.interop.servers import PyromqServer
from tests.support.access import write_accounts
from tests.support.patience import DEADLINE

ACCOUNTS = """accounts:
- {accessKey: brokers, secretKey: brokers-secret, peer: true}
- accessKey: worker-key
  secretKey: worker-secret-äöü
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms: [forbidden=DENY]
- {accessKey: nothing-key, secretKey: nothing-secret}
"""
WORKER: dict[str, Any] = {"access_key": "worker-key", "secret_key": "worker-secret-äöü"}


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home: Path = tmp_path_factory.mktemp("strict")
    write_accounts(home, ACCOUNTS)
    properties = {
        "aclEnable": "true",
        "aclMode": "strict",
        "rocketmqHome": str(home),
        "replicationAccessKey": "brokers",
        "replicationSecretKey": "brokers-secret",
        "messageDelayLevel": " ".join(["1s"] * 18),
    }
    with PyromqServer(broker_properties=properties) as server:
        yield server.namesrv_address


async def test_signed_clients_do_everything(namesrv: str) -> None:
    topic, group = "everything", "group-everything"
    inbox = Inbox(lambda message: message.body == b"m-1" and message.reconsume_times == 0)
    async with (
        Producer(namesrv, group=f"{group}-p", **WORKER) as producer,
        PushConsumer(
            namesrv,
            group=group,
            handler=inbox,
            subscriptions={topic: "*"},
            start_from=StartFrom.FIRST,
            **WORKER,
        ),
        LitePullConsumer(
            namesrv, group=f"{group}-lite", start_from=StartFrom.FIRST, **WORKER
        ) as lite,
    ):
        await producer.send(Message(topic, b"m-0", keys="äöü", properties={"umlaut": "grün"}))
        await lite.subscribe(topic)
        await producer.send_oneway(Message(topic, b"m-1"))
        await producer.send_batch([Message(topic, body) for body in numbered(10)[2:]])
        await producer.send(Message(topic, b"large " * 5000))
        expected = [*numbered(10), b"large " * 5000]
        # One of them fails, is sent back, and comes again.
        await inbox.until_count(len(expected) + 1)
        assert sorted(inbox.bodies) == sorted([*expected, b"m-1"])
        read = [await asyncio.wait_for(anext(lite), DEADLINE) for _ in expected]
        assert sorted(message.body for message in read) == sorted(expected)
    async with PullConsumer(namesrv, topic, group=group, **WORKER) as pull:
        committed = [await pull.committed(queue) or 0 for queue in await pull.queues()]
    assert sum(committed) == len(expected)


async def test_ordered_consumers_lock_their_queues(namesrv: str) -> None:
    inbox = Inbox()
    async with Producer(namesrv, **WORKER) as producer:
        for body in numbered(8):
            await producer.send(Message("ordered", body))
    async with PushConsumer(
        namesrv,
        group="group-ordered",
        handler=inbox,
        subscriptions={"ordered": "*"},
        order=Order.ORDERLY,
        start_from=StartFrom.FIRST,
        **WORKER,
    ):
        await inbox.until_count(8)


async def test_transactions_and_requests(namesrv: str) -> None:
    async def answer(message: ReceivedMessage) -> None:
        await producer.send(reply_to(message, b"reply to " + message.body))

    async def commit(_: object) -> TransactionState:
        return TransactionState.COMMIT

    async with (
        TransactionProducer(
            namesrv, group="transactions", check=lambda _: TransactionState.COMMIT, **WORKER
        ) as producer,
        PushConsumer(
            namesrv,
            group="group-requests",
            handler=answer,
            subscriptions={"requests": "*"},
            start_from=StartFrom.FIRST,
            **WORKER,
        ),
    ):
        reply = await producer.request(Message("requests", b"question"), DEADLINE)
        assert reply.body == b"reply to question"
        result = await producer.send_in_transaction(Message("committed", b"x"), commit)
        assert result.state is TransactionState.COMMIT
        async with PullConsumer(namesrv, "committed", **WORKER) as pull:
            ends = [await pull.max_offset(queue) for queue in await pull.queues()]
        assert sum(ends) == 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"access_key": "worker-key", "secret_key": "wrong"}, "signature"),
        ({"access_key": "nobody", "secret_key": "wrong"}, "nobody"),
        ({"access_key": "nothing-key", "secret_key": "nothing-secret"}, "topic:everything"),
        ({}, "No accessKey"),
    ],
    ids=["wrong secret", "unknown key", "no permission", "unsigned"],
)
async def test_others_are_refused_with_a_typed_error(
    namesrv: str, options: ClientOptions, problem: str
) -> None:
    async with Producer(namesrv, **WORKER) as producer:
        await producer.send(Message("everything", b"first"))
    async with Producer(namesrv, **options) as producer:
        with pytest.raises(BrokerError, match=problem):
            await producer.send(Message("everything", b"x"))
    async with PullConsumer(namesrv, "everything", **options) as consumer:
        with pytest.raises(BrokerError, match=problem):
            await consumer.max_offset((await consumer.queues())[0])


async def test_a_topic_that_is_denied(namesrv: str) -> None:
    async with Producer(namesrv, **WORKER) as producer:
        with pytest.raises(BrokerError, match="topic:forbidden"):
            await producer.send(Message("forbidden", b"x"))
