"""TLS and signed requests, against Apache's broker: it encrypts and checks access."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from pyromq.client import (
    BrokerError,
    ClientOptions,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    RocketMQError,
    StartFrom,
    Tls,
)
from pyromq.protocol.wire.acl import ACCESS_KEY, SIGNATURE, signature_of
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import CreateTopicRequestHeader
from pyromq.remoting.client import RemotingClient
from tests.clients.cases import Case, Inbox, numbered
from tests.support.apache_rocketmq import ApacheRocketMQ, java_or_skip
from tests.support.patience import DEADLINE

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

ACCOUNTS = """accounts:
- accessKey: operator
  secretKey: operator-secret
  admin: true
- accessKey: worker-key
  secretKey: worker-secret-äöü
  admin: false
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms:
  - forbidden=DENY
"""
WORKER: dict[str, Any] = {"access_key": "worker-key", "secret_key": "worker-secret-äöü"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[ApacheRocketMQ]:
    """A NameServer and a broker that wants signed requests; both take TLS on the same port."""
    java_or_skip()
    java = ApacheRocketMQ(
        broker_properties={"aclEnable": "true", "messageDelayLevel": " ".join(["1s"] * 18)},
        files={"conf/plain_acl.yml": ACCOUNTS},
        jvm_options=("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    )
    java.start()
    try:
        yield java
    finally:
        java.kill()  # in peace it takes ten seconds, and nobody looks


async def create_topic(java: ApacheRocketMQ, topic: str) -> None:
    """As an operator would: with the operator's key."""
    fields = CreateTopicRequestHeader(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=4,
        write_queue_nums=4,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
    ).encode()
    fields[ACCESS_KEY] = "operator"
    fields[SIGNATURE] = signature_of(fields, b"", "operator-secret")
    client = RemotingClient()
    try:
        answer = await client.request(
            java.broker_address,
            RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields),
            timeout=DEADLINE,
        )
    finally:
        await client.close()
    assert answer.code == ResponseCode.SUCCESS, answer


@pytest.fixture
async def topic(request: pytest.FixtureRequest, guarded: ApacheRocketMQ) -> str:
    name = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")
    await create_topic(guarded, name)
    return name


@pytest.mark.parametrize("tls", [False, Tls(verify=False)], ids=["plain", "tls"])
async def test_signed_clients_do_everything(
    guarded: ApacheRocketMQ, topic: str, tls: bool | Tls
) -> None:
    namesrv, group = guarded.namesrv_address, f"group-{topic}"
    inbox = Inbox(lambda message: message.body == b"m-1" and message.reconsume_times == 0)
    async with (
        Producer(namesrv, group=f"{group}-p", tls=tls, **WORKER) as producer,
        PushConsumer(
            namesrv,
            group=group,
            handler=inbox,
            subscriptions={topic: "*"},
            start_from=StartFrom.FIRST,
            tls=tls,
            **WORKER,
        ),
        LitePullConsumer(
            namesrv, group=f"{group}-lite", start_from=StartFrom.FIRST, tls=tls, **WORKER
        ) as lite,
    ):
        await lite.subscribe(topic)
        await producer.send(Message(topic, b"m-0", keys="äöü", properties={"umlaut": "grün"}))
        await producer.send_oneway(Message(topic, b"m-1"))
        await producer.send_batch([Message(topic, body) for body in numbered(10)[2:]])
        await producer.send(Message(topic, b"large " * 5000))
        expected = [*numbered(10), b"large " * 5000]
        await inbox.until_count(len(expected) + 1)
        assert sorted(inbox.bodies) == sorted([*expected, b"m-1"])
        read = [await asyncio.wait_for(anext(lite), 20) for _ in expected]
        assert sorted(message.body for message in read) == sorted(expected)
    async with PullConsumer(namesrv, topic, group=group, tls=tls, **WORKER) as pull:
        committed = [await pull.committed(queue) or 0 for queue in await pull.queues()]
    assert sum(committed) == len(expected)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"access_key": "worker-key", "secret_key": "wrong"}, "signature"),
        ({"access_key": "nobody", "secret_key": "wrong"}, "nobody"),
        ({}, "(?i)access|acl"),
    ],
    ids=["wrong secret", "unknown key", "unsigned"],
)
async def test_wrong_keys_are_refused_with_a_typed_error(
    guarded: ApacheRocketMQ, topic: str, options: ClientOptions, problem: str
) -> None:
    namesrv = guarded.namesrv_address
    async with Producer(namesrv, **options) as producer:
        with pytest.raises(BrokerError, match=problem) as sent:
            await producer.send(Message(topic, b"x"))
    assert sent.value.code == ResponseCode.SYSTEM_ERROR  # Java's brokers say no more
    assert sent.value.address == guarded.broker_address
    async with PullConsumer(namesrv, topic, **options) as consumer:
        with pytest.raises(BrokerError, match=problem):
            await consumer.max_offset((await consumer.queues())[0])


async def test_a_topic_that_is_denied(guarded: ApacheRocketMQ) -> None:
    await create_topic(guarded, "forbidden")
    async with Producer(guarded.namesrv_address, **WORKER) as producer:
        with pytest.raises(BrokerError, match=r"(?i)no default permission|forbidden"):
            await producer.send(Message("forbidden", b"x"))


async def test_a_certificate_that_nobody_signed_can_be_refused(
    guarded: ApacheRocketMQ, topic: str
) -> None:
    async with Producer(
        guarded.namesrv_address, tls=ssl.create_default_context(), **WORKER
    ) as producer:
        with pytest.raises(RocketMQError, match=r"(?i)certificate"):
            await producer.send(Message(topic, b"x"))


async def test_tls_to_a_server_without(case: Case) -> None:
    """By default pyromq's servers take plain connections only; Java's take both."""
    async with Producer(
        case.namesrv, tls=case.cluster.options.get("tls") or Tls(verify=False)
    ) as producer:
        if case.cluster.kind == "pyromq":
            with pytest.raises(RocketMQError):
                await producer.send(Message(case.topic, b"x"))
        else:
            await producer.send(Message(case.topic, b"x"))
