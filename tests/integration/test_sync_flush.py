"""SYNC_FLUSH on real sockets: an answer says what is true of the disk."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.protocol.codes import RequestCode, ResponseCode
from pyromq.protocol.frame import Encoding, RemotingCommand
from pyromq.remoting.client import RemotingClient
from pyromq.store.config import FlushDiskType
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE, until
from tests.unit.broker.wired import pull_request


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
