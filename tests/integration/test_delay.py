"""Delayed messages on real sockets: sent, waited for, pulled."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.inner_messages import InnerMessage, MessageWriter
from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.message.record import decode_records
from pyromq.protocol.names import SCHEDULE_TOPIC
from pyromq.protocol.wire.bodies import DelayOffsetSerializeWrapper
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from pyromq.store.config import BrokerRole, FlushDiskType
from pyromq.store.message_store import MessageStore
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE, until
from tests.support.requests import pull_request, send_request

LEVELS = 18
#: A pull that waits for messages.
_WAITS = "6"


def make_broker(root: Path, **settings: Any) -> Broker:
    config = local_broker(
        broker_name="b",
    )
    return Broker(config, small_store(root, **settings))


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    made = RemotingClient()
    yield made
    await made.close()


async def send(client: RemotingClient, broker: Broker, body: bytes, level: int = 0) -> int:
    """Send to queue 0 of topic T; the offset that the answer tells."""
    properties = f"TAGS\x01a\x02DELAY\x01{level}" if level else "TAGS\x01a"
    request = send_request(body=body, queueId="0", properties=properties)
    answer = await client.request(broker.address, request, DEADLINE)
    assert answer.code == ResponseCode.SUCCESS, answer
    return int(answer.ext_fields["queueOffset"])


async def receive(client: RemotingClient, broker: Broker, count: int) -> list[Any]:
    """Pull queue 0 of topic T, waiting for messages, until there are so many."""
    records: list[Any] = []
    while len(records) < count:
        request = pull_request(queueOffset=str(len(records)), sysFlag=_WAITS)
        answer = await client.request(broker.address, request, DEADLINE)
        if answer.code == ResponseCode.SUCCESS:
            records += decode_records(answer.body)
    return records


async def test_every_level_delivers_to_a_waiting_consumer(
    tmp_path: Path, client: RemotingClient
) -> None:
    broker = make_broker(tmp_path, message_delay_level=" ".join(["1s"] * LEVELS))
    await broker.start()
    await send(client, broker, b"makes the topic")
    began = time.time_ns() // 1_000_000
    for level in range(1, LEVELS + 3):
        await send(client, broker, b"%d" % level, level)

    received = await receive(client, broker, 1 + LEVELS + 2)
    assert sorted(int(record.body) for record in received[1:]) == list(range(1, LEVELS + 3))
    for record in received[1:]:
        # A level above the highest is the highest.
        assert record.properties["DELAY"] == str(min(int(record.body), LEVELS))
        assert record.store_timestamp >= began + 1_000
    answer = await client.request(
        broker.address, RemotingCommand(RequestCode.GET_ALL_DELAY_OFFSET), 30.0
    )
    expected = {**dict.fromkeys(range(1, LEVELS), 1), LEVELS: 3}
    assert DelayOffsetSerializeWrapper.decode(answer.body).offset_table == expected
    assert broker.store is not None
    for level, end in expected.items():
        assert broker.store.max_offset(SCHEDULE_TOPIC, level - 1) == end
    await broker.stop()


async def test_with_sync_flush_delivery_does_not_wait_for_the_disk_but_progress_does(
    tmp_path: Path, client: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_sync, real = threading.Event(), os.fdatasync
    may_sync.set()

    def fdatasync(descriptor: int) -> None:
        may_sync.wait(30)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    broker = make_broker(
        tmp_path,
        message_delay_level="1s",
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
        flush_delay_offset_interval=1,
    )
    await broker.start()
    await send(client, broker, b"makes the topic")
    await send(client, broker, b"later", 1)
    may_sync.clear()
    try:
        received = await receive(client, broker, 2)
        assert received[1].body == b"later"
        assert broker.delay_offsets.get(1) == 1
        assert broker.store is not None
        assert not broker.delay_offsets.settle(broker.store.flushed_offset)
        file = tmp_path / "config" / "delayOffset.json"
        assert not file.exists()
    finally:
        may_sync.set()
    await until(lambda: file.exists() and b"{1:1\n" in file.read_bytes())
    await broker.stop()


async def test_many_messages_that_are_due_at_once_do_not_stall_sends(
    tmp_path: Path, client: RemotingClient
) -> None:
    count = 10_000
    config = small_store(tmp_path, message_delay_level="1s")
    store = MessageStore(config, encode_host("127.0.0.1", 1))
    store.start()
    writer = MessageWriter(store)
    for number in range(count):
        writer.put(InnerMessage("T", 0, b"%d" % number, {"DELAY": "1"}))
    store.stop()
    entry_time = time.time()
    await until(lambda: time.time() > entry_time + 1.0)  # all of them are due now

    broker = make_broker(tmp_path, message_delay_level="1s")
    await broker.start()
    seen = []
    for number in range(5):
        request = send_request(topic="Other", body=b"%d" % number, queueId="0")
        answer = await client.request(broker.address, request, DEADLINE)
        assert answer.code == ResponseCode.SUCCESS
        seen.append(broker.delay_offsets.get(1))
    assert seen[-1] < count, "the sends waited until everything was delivered"
    await until(lambda: broker.delay_offsets.get(1) == count)
    assert broker.store is not None
    assert broker.store.max_offset("T", 0) == count
    await broker.stop()


async def test_a_replica_delivers_nothing(tmp_path: Path, client: RemotingClient) -> None:
    broker = make_broker(tmp_path, message_delay_level="1s", broker_role=BrokerRole.SLAVE)
    await broker.start()
    answer = await client.request(
        broker.address, RemotingCommand(RequestCode.GET_ALL_DELAY_OFFSET), 30.0
    )
    assert answer.body == b'{"offsetTable":{}}'
    await broker.stop()


async def test_a_consumer_of_the_waiting_messages_keeps_none_from_being_delivered(
    tmp_path: Path, client: RemotingClient
) -> None:
    broker = make_broker(tmp_path, message_delay_level="1s")
    await broker.start()
    await send(client, broker, b"makes the topic")
    other = RemotingClient()
    request = pull_request(topic=SCHEDULE_TOPIC, sysFlag=_WAITS, suspendTimeoutMillis="20000")
    waiting = asyncio.create_task(other.request(broker.address, request, DEADLINE))
    await send(client, broker, b"first", 1)
    assert (await waiting).code in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
    received = await receive(client, broker, 2)
    await send(client, broker, b"second", 1)
    received = await receive(client, broker, 3)
    assert [record.body for record in received[1:]] == [b"first", b"second"]
    await other.close()
    await broker.stop()
