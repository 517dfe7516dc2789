"""A message made here is the same as one made by the Java producer, and the reverse.

Both languages send the same message; what the broker has stored is compared record by record,
then as Java's consumer and as ours see it. What differs by nature is compared by its form: ids,
times, ports, places.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest

from pyromq.client import (
    ConsumeResult,
    HalfMessage,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
    TransactionProducer,
    TransactionState,
)
from pyromq.protocol.message.sysflag import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZSTD,
)
from tests.clients.cases import Case, Inbox
from tests.interop.client_driver import ClientDriver, Line
from tests.interop.client_programs import java_driver

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

LARGE = "compressed äöü 消息 🚀 " * 2000
KINDS: dict[str, tuple[str, Line]] = {
    "plain": ("sync", {"body": "plain"}),
    "full": (
        "sync",
        {
            "body": "full äöü 消息 🚀",
            "tags": "TagA",
            "keys": "key-1 key-2",
            "properties": {"number": "1", "umlaut": "grün", "emoji": "🚀"},
        },
    ),
    "compressed": ("sync", {"body": LARGE, "tags": "TagA"}),
    "delayed": ("sync", {"body": "delayed", "tags": "TagA", "keys": "k", "delay": 1}),
    "oneway": ("oneway", {"body": "oneway", "tags": "TagA"}),
    "batch": ("batch", {"body": "batch", "tags": "TagA", "keys": "k", "properties": {"a": "b"}}),
    "transaction": (
        "transaction",
        {"body": "transaction", "tags": "TagA", "keys": "k", "properties": {"local": "commit"}},
    ),
}


async def send_ours(case: Case, group: str, mode: str, description: Line) -> None:
    message = Message(
        case.topic,
        description["body"].encode(),
        tags=description.get("tags", ""),
        keys=description.get("keys", ""),
        properties=dict(description.get("properties", {})),
        delay_level=description.get("delay", 0),
    )

    async def execute(_: HalfMessage) -> TransactionState:
        return TransactionState.COMMIT

    async def check(_: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT

    if mode == "transaction":
        async with TransactionProducer(case.namesrv, group=group, check=check) as transactional:
            await transactional.send_in_transaction(message, execute)
        return
    async with Producer(case.namesrv, group=group) as producer:
        if mode == "batch":
            await producer.send_batch([message, message])
        elif mode == "oneway":
            await producer.send_oneway(message)
        else:
            await producer.send(message)


async def send_java(
    case: Case, java: ClientDriver, group: str, mode: str, description: Line
) -> None:
    name = f"{case.topic}-producer"
    await asyncio.to_thread(
        java.producer, name, case.namesrv, group, transactional=mode == "transaction"
    )
    messages = [description] * (2 if mode == "batch" else 1)
    await asyncio.to_thread(java.send, name, case.topic, messages, mode)


@pytest.mark.parametrize("kind", KINDS)
async def test_stored_records_are_the_same(
    case: Case, java_clients: ClientDriver, kind: str
) -> None:
    mode, description = KINDS[kind]
    group = f"{case.group}-p"
    count = 2 if mode == "batch" else 1
    await send_java(case, java_clients, group, mode, description)
    theirs = await case.wait_stored(count)
    await send_ours(case, group, mode, description)
    both = await case.wait_stored(2 * count)
    known = {message.physical_offset for message in theirs}
    ours = [message for message in both if message.physical_offset not in known]
    assert len(ours) == len(theirs) == count
    for our, their in zip(ours, theirs, strict=True):
        assert described(our) == described(their)
        keys = [unique_key(message) for message in (our, their)]
        # Both take the machine's address: one can tell where a message came from.
        assert keys[0][:4] == keys[1][:4]


@pytest.mark.parametrize("kind", KINDS)
async def test_javas_consumer_sees_the_same(
    case: Case, java_clients: ClientDriver, kind: str
) -> None:
    mode, description = KINDS[kind]
    group, consumer = f"{case.group}-p", f"{case.topic}-consumer"
    count = 2 if mode == "batch" else 1
    await asyncio.to_thread(java_clients.consumer, consumer, case.namesrv, case.group, case.topic)
    await send_java(case, java_clients, group, mode, description)
    await wait_lines(java_clients, consumer, count)
    await send_ours(case, group, mode, description)
    lines = await wait_lines(java_clients, consumer, 2 * count)
    theirs, ours = lines[:count], lines[count:]
    assert [line_described(line) for line in ours] == [line_described(line) for line in theirs]
    for line in lines:
        assert line["msgId"] == line["properties"]["UNIQ_KEY"]
        assert line["body"] == description["body"]


@pytest.mark.parametrize("kind", ["full", "compressed", "batch"])
async def test_our_consumers_see_what_java_sent(
    case: Case, java_clients: ClientDriver, kind: str
) -> None:
    mode, description = KINDS[kind]
    count = 2 if mode == "batch" else 1
    inbox = Inbox()
    async with (
        PushConsumer(
            case.namesrv,
            group=case.group,
            handler=inbox,
            subscriptions={case.topic: "TagA"},
            start_from=StartFrom.FIRST,
        ),
        LitePullConsumer(
            case.namesrv, group=f"{case.group}-lite", start_from=StartFrom.FIRST
        ) as lite,
    ):
        await lite.subscribe({case.topic: "TagA"})
        await send_java(case, java_clients, f"{case.group}-p", mode, description)
        await inbox.until_count(count)
        read = [await asyncio.wait_for(anext(lite), 20) for _ in range(count)]
    for message in [*inbox.messages, *read]:
        assert message.body.decode() == description["body"]
        assert message.tags == description["tags"]
        assert message.keys == description.get("keys", "")
        for name, value in description.get("properties", {}).items():
            assert message.properties[name] == value


@pytest.mark.parametrize("cluster", ["pyromq"], indirect=True)
@pytest.mark.parametrize("compression", ["LZ4", "ZSTD"])
async def test_bodies_that_newer_producers_compress_are_read(case: Case, compression: str) -> None:
    option = f"-Drocketmq.message.compressType={compression}"
    with java_driver("5.3.3", "-Djava.net.preferIPv4Stack=true", option) as java:
        await send_java(case, java, f"{case.group}-p", *KINDS["compressed"])
    (message,) = await case.wait_stored(1)
    assert message.sys_flag & COMPRESSED
    assert (
        message.sys_flag & COMPRESSION_MASK
        == {
            "LZ4": COMPRESSION_LZ4,
            "ZSTD": COMPRESSION_ZSTD,
        }[compression]
    )
    assert message.body.decode() == LARGE


async def test_a_message_that_goes_back_is_the_same(case: Case, java_clients: ClientDriver) -> None:
    """Retries and dead letters, after failures in consumers of both languages."""
    description = {"tags": "TagA", "keys": "k", "properties": {"fail": "9", "a": "b"}}
    groups = {"java": f"{case.group}-java", "ours": f"{case.group}-ours"}
    await asyncio.to_thread(
        java_clients.consumer,
        f"{case.topic}-consumer",
        case.namesrv,
        groups["java"],
        case.topic,
        maxReconsumeTimes=1,
    )

    async def refuse(_: ReceivedMessage) -> ConsumeResult:
        return ConsumeResult.RETRY

    async with PushConsumer(
        case.namesrv,
        group=groups["ours"],
        handler=refuse,
        subscriptions={case.topic: "*"},
        max_reconsume_times=1,
        start_from=StartFrom.FIRST,
    ):
        await send_java(
            case, java_clients, f"{case.group}-p", "sync", {"body": "bad", **description}
        )
        found: dict[str, list[dict[str, Any]]] = {}
        for who, group in groups.items():
            await asyncio.to_thread(case.cluster.wait_for_topic, f"%DLQ%{group}")
            (again,) = await case.wait_stored(1, f"%RETRY%{group}")
            (dead,) = await case.wait_stored(1, f"%DLQ%{group}")
            found[who] = [described(again, group), described(dead, group)]
    assert found["ours"] == found["java"]


def described(message: ReceivedMessage, group: str = "") -> dict[str, Any]:
    """A record without what differs by nature."""
    properties = dict(message.all_properties)
    properties["UNIQ_KEY"] = form(properties["UNIQ_KEY"])
    for name in ("ORIGIN_MESSAGE_ID", "REAL_QID", "__transactionId__"):
        if name in properties:
            properties[name] = form(properties[name])
    text = {
        name: value.replace(group, "GROUP") if group else value
        for name, value in properties.items()
    }
    return {
        "topic": message.topic.replace(group, "GROUP") if group else message.topic,
        "body": message.body,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "reconsume_times": message.reconsume_times,
        "prepared": bool(message.prepared_transaction_offset),
        "born_host": message.born_host[0],
        "store_host": message.store_host,
        "properties": text,
    }


def line_described(line: Line) -> Line:
    """What Java's consumer reports, without what differs by nature."""
    properties = {
        name: form(value) if name in ("UNIQ_KEY", "REAL_QID") or value.isdecimal() else value
        for name, value in line["properties"].items()
    }
    kept = ("topic", "broker", "body", "tags", "keys", "reconsumeTimes")
    return {**{name: line.get(name) for name in kept}, "properties": properties}


def form(value: str) -> str:
    """What kind of value it is."""
    if re.fullmatch(r"[0-9A-F]{32}", value):
        return "id"
    return "number" if value.isdecimal() else value


def unique_key(message: ReceivedMessage) -> bytes:
    """A client's id: address, process, random, the time within the month, counter."""
    key = bytes.fromhex(message.system_properties["UNIQ_KEY"])
    assert len(key) == 16
    month = time.localtime()
    began = time.mktime((month.tm_year, month.tm_mon, 1, 0, 0, 0, 0, 1, -1))
    elapsed = int.from_bytes(key[10:14], "big") / 1000
    assert abs(began + elapsed - time.time()) < 60
    return key


async def wait_lines(java: ClientDriver, consumer: str, count: int) -> list[Line]:
    return await asyncio.to_thread(java.wait_reports, consumer, lambda lines: len(lines) >= count)
