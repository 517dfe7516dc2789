"""Messages that left the memory are read by a thread; the loop never waits for the disk."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.protocol.message.record import decode_records
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.remoting.client import RemotingClient
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.queues import reading
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE, until
from tests.support.requests import pull_request, send_request

COUNT = 40


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    # Everything but the last bytes may be cold.
    monkeypatch.setattr(reading, "_WARM_BYTES", 0)
    monkeypatch.setattr(reading, "_WARM_ENTRIES", 0)
    config = local_broker(
        broker_name="b",
    )
    started = Broker(config, small_store(tmp_path))
    await started.start()
    client = RemotingClient()
    for number in range(COUNT):
        body = b"%d" % number + bytes(5000)
        request = send_request(RequestCode.SEND_MESSAGE_V2, body, queueId="0")
        assert (await client.request(started.address, request, DEADLINE)).code == 0
    await client.close()
    yield started
    await started.stop()


def forget(broker: Broker) -> bool:
    """Have the kernel drop the log's pages; whether it did."""
    assert broker.store is not None
    log = broker.store._log
    log.flush()
    files = [*log.segments.files, *broker.store.queue("T", 0).segments.files]
    for file in files:
        file.sync()
        file.release(file.size)
        descriptor = os.open(file.path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    return not log.segments.files[0].is_in_memory(0, COUNT * 5000)


async def pull_all(broker: Broker) -> list[bytes]:
    client = RemotingClient()
    found: list[bytes] = []
    while len(found) < COUNT:
        request = pull_request(queueId="0", queueOffset=str(len(found)))
        answer = await client.request(broker.address, request, DEADLINE)
        assert answer.code == ResponseCode.SUCCESS
        found += [record.body.rstrip(b"\0") for record in decode_records(answer.body)]
    await client.close()
    return found


async def test_cold_messages_are_brought_in_by_a_thread(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broker.store is not None
    store = broker.store
    await until(lambda: store.dispatch_behind == 0)  # the key index reads the log, too
    try:
        # Pages that are just being written back cannot be dropped in that moment.
        await until(lambda: forget(broker))
    except AssertionError:
        pytest.skip("this file system keeps its pages (tmpfs)")
    loop_thread = asyncio.get_running_loop()
    brought: list[str] = []
    real = MappedFile.bring_in

    def bring_in(file: MappedFile, start: int, end: int) -> None:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        brought.append(file.path.parent.name)
        real(file, start, end)

    monkeypatch.setattr(MappedFile, "bring_in", bring_in)
    assert await pull_all(broker) == [b"%d" % number for number in range(COUNT)]
    assert "commitlog" in brought
    assert loop_thread.is_running()


async def test_warm_messages_need_no_thread(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bring_in(file: MappedFile, start: int, end: int) -> None:
        raise AssertionError("nothing was cold")

    await pull_all(broker)
    monkeypatch.setattr(MappedFile, "bring_in", bring_in)
    assert len(await pull_all(broker)) == COUNT


async def test_a_read_that_fails_is_answered(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bring_in(file: MappedFile, start: int, end: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(MappedFile, "is_in_memory", lambda *_: False)
    monkeypatch.setattr(MappedFile, "bring_in", bring_in)
    client = RemotingClient()
    answer = await client.request(broker.address, pull_request(queueId="0"), DEADLINE)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "Input/output error" in (answer.remark or "")
    await client.close()
