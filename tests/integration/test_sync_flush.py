"""SYNC_FLUSH on real sockets: an answer says what is true of the disk."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.handlers import send as send_module
from pyromq.broker.handlers import send_slow
from pyromq.protocol.message.record import encode_inner_message
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import Encoding, RemotingCommand
from pyromq.remoting.client import RemotingClient
from pyromq.store.config import FlushDiskType
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE, until
from tests.support.requests import pull_request


class Disk:
    """Lets syncs through, or holds them until `may_sync` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.begun = 0
        real = os.fdatasync

        def fdatasync(descriptor: int) -> None:
            self.begun += 1
            self.may_sync.wait(20)
            real(descriptor)

        monkeypatch.setattr(os, "fdatasync", fdatasync)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def timeout_ms() -> int:
    return 30_000


@pytest.fixture
async def broker(tmp_path: Path, disk: Disk, timeout_ms: int) -> AsyncIterator[Broker]:
    store = dataclasses.replace(
        small_store(tmp_path),
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
        sync_flush_timeout=timeout_ms,
    )
    config = local_broker(
        broker_name="b",
    )
    started = Broker(config, store)
    await started.start()
    yield started
    disk.may_sync.set()
    await started.stop()


def send(body: bytes, encoding: Encoding = Encoding.JSON) -> RemotingCommand:
    fields = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    return RemotingCommand(
        RequestCode.SEND_MESSAGE_V2,
        ext_fields={**fields, "i": "UNIQ_KEY\x01x", "j": "0", "k": "false", "m": "false"},
        body=body,
        encoding=encoding,
    )


async def test_an_answer_comes_after_its_sync(broker: Broker, disk: Disk) -> None:
    client = RemotingClient()
    assert (await client.request(broker.address, send(b"first"), DEADLINE)).code == 0
    begun = disk.begun
    assert begun > 0
    disk.may_sync.clear()
    waiting = [
        asyncio.create_task(client.request(broker.address, send(b"%d" % n), DEADLINE))
        for n in (1, 2)
    ]
    await until(lambda: disk.begun > begun)
    assert not any(task.done() for task in waiting)
    disk.may_sync.set()
    answers = await asyncio.gather(*waiting)
    assert [answer.code for answer in answers] == [0, 0]
    await client.close()


@pytest.mark.parametrize("timeout_ms", [300])
@pytest.mark.parametrize("encoding", list(Encoding))
async def test_a_sync_that_takes_too_long_is_told_with_the_message_id(
    broker: Broker, disk: Disk, encoding: Encoding
) -> None:
    client = RemotingClient()
    first = await client.request(broker.address, send(b"first", encoding), DEADLINE)
    assert first.code in (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT)
    disk.may_sync.clear()
    answer = await client.request(broker.address, send(b"slow", encoding), DEADLINE)
    assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert answer.ext_fields["queueOffset"] == "1"
    assert len(answer.ext_fields["msgId"]) == 32
    disk.may_sync.set()
    pulled = await client.request(broker.address, pull_request(queueId="0"), DEADLINE)
    assert pulled.code == ResponseCode.SUCCESS
    assert pulled.ext_fields["nextBeginOffset"] == "2"
    await client.close()


async def test_a_pull_does_not_wait_for_the_disk(broker: Broker, disk: Disk) -> None:
    client = RemotingClient()
    assert (await client.request(broker.address, send(b"first"), DEADLINE)).code == 0
    disk.may_sync.clear()
    sending = asyncio.create_task(client.request(broker.address, send(b"slow"), DEADLINE))
    other = RemotingClient()
    pulled = await other.request(broker.address, pull_request(queueId="0"), DEADLINE)
    assert pulled.code == ResponseCode.SUCCESS
    disk.may_sync.set()
    assert (await sending).code == ResponseCode.SUCCESS
    await other.close()
    await client.close()


def large_batch(count: int) -> RemotingCommand:
    request = send(b"".join(encode_inner_message(b"%d" % number, b"") for number in range(count)))
    request.code = RequestCode.SEND_BATCH_MESSAGE
    request.ext_fields["m"] = "true"
    return request


async def test_a_large_batch_and_what_is_behind_it_wait_for_the_disk(
    broker: Broker, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (send_module, send_slow):
        monkeypatch.setattr(module, "MAX_BATCH_AT_ONCE", 100)
    monkeypatch.setattr(send_slow, "_BATCH_SLICE", 10)
    client, other = RemotingClient(), RemotingClient()
    assert (await client.request(broker.address, send(b"first"))).code == ResponseCode.SUCCESS
    assert broker.store is not None
    store = broker.store
    put = store.put_encoded

    def put_before_the_end_of_another_chunk(*values: Any) -> list[int]:
        asyncio.get_running_loop().call_soon(store.end_chunk)
        return put(*values)

    monkeypatch.setattr(store, "put_encoded", put_before_the_end_of_another_chunk)
    disk.may_sync.clear()
    waiting = [
        asyncio.create_task(client.request(broker.address, request, DEADLINE))
        for request in (large_batch(300), send(b"behind"))
    ]
    # Chunks of others end meanwhile, before and behind.
    others = [
        asyncio.create_task(other.request(broker.address, send(b"other"), DEADLINE))
        for _ in range(20)
    ]
    await until(lambda: store.max_offset("T", 0) == 322)
    await until(lambda: disk.begun)
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in (*waiting, *others))
    disk.may_sync.set()
    answers = await asyncio.gather(*waiting, *others)
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    await client.close()
    await other.close()


@pytest.mark.parametrize("timeout_ms", [20])
async def test_a_large_batch_that_is_not_flushed_in_time_says_so(
    broker: Broker, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_module, "MAX_BATCH_AT_ONCE", 100)
    client = RemotingClient()
    disk.may_sync.clear()
    answers = await asyncio.gather(
        *(
            client.request(broker.address, request, DEADLINE)
            for request in (large_batch(300), send(b"behind"))
        )
    )
    assert [answer.code for answer in answers] == [ResponseCode.FLUSH_DISK_TIMEOUT] * 2
    assert len(answers[0].ext_fields["msgId"].split(",")) == 300
    await client.close()
