"""A broker that runs out of descriptors: sends are answered, nothing is lost, and it recovers."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.protocol.message.message_id import decode_message_id
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.headers import SendMessageResponseHeader
from pyromq.remoting.client import RemotingClient
from tests.support.crash import (
    QUEUES,
    Acknowledged,
    BrokerProcess,
    check_files,
    check_wire,
    send_command,
)
from tests.support.patience import DEADLINE, until

#: Descriptors that peers can take beside those in use.
_ROOM = 40
#: Sends while there is no descriptor: several segments, flushes and new queues.
_SENDS = 400


class Producer:
    """Sends on one connection and keeps what was acknowledged."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._numbers = itertools.count()
        self.client = RemotingClient()
        self.acknowledged: list[Acknowledged] = []

    async def send(self) -> bool:
        """Send one message; whether it was stored. It is answered in any case."""
        number = next(self._numbers)
        answer = await self.client.request(self._address, send_command([number]), DEADLINE)
        # FLUSH_DISK_TIMEOUT: it is stored, and the disk has not said so.
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT):
            return False
        header = SendMessageResponseHeader.decode(answer.ext_fields)
        topic, queue_id = QUEUES[number % len(QUEUES)]
        physical = decode_message_id(header.msg_id)[2]
        self.acknowledged.append(
            Acknowledged(topic, queue_id, header.queue_offset, physical, number)
        )
        return answer.code == ResponseCode.SUCCESS


def open_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@contextlib.contextmanager
def peers(address: str, count: int) -> Iterator[None]:
    """Idle connections, until the end of the block."""
    host, _, port = address.partition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=DEADLINE))
        yield


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_broker_without_descriptors_serves_again_when_its_peers_leave(
    tmp_path: Path, flush: str
) -> None:
    directory = tmp_path / "store"
    # A send that waits for the disk must not wait longer than the test does.
    broker = await BrokerProcess.start(directory, flushDiskType=flush, syncFlushTimeout=1000)
    try:
        producer = Producer(broker.address)
        assert await producer.send()
        limit = open_descriptors(broker.pid) + _ROOM
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (limit, limit))
        with peers(broker.address, 2 * _ROOM):
            await until(lambda: open_descriptors(broker.pid) >= limit - 3)
            for _ in range(_SENDS):
                await producer.send()
        await until(lambda: open_descriptors(broker.pid) < limit - _ROOM // 2)
        await until(producer.send)
        for _ in range(_SENDS):
            assert await producer.send()
        await producer.client.close()
        await check_wire(broker.address, producer.acknowledged)
    finally:
        printed = await broker.kill()
    assert b"no more sends" not in printed, printed.decode()
    check_files(directory, producer.acknowledged)
