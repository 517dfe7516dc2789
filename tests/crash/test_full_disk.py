"""A real broker on a small disk of its own: what it says when that is full, and afterwards.

The disk is a tmpfs, which only the superuser may mount; with CI=true a skip is a failure.
A file that takes room, the ballast, is taken away to make some.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.protocol.message.record import decode_records
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import (
    PullMessageRequestHeader,
    QueryMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from pyromq.remoting.client import RemotingClient
from pyromq.store.offline.check import check_store
from tests.support.crash import BrokerProcess
from tests.support.patience import DEADLINE, until
from tests.support.small_disk import small_disk

DISK = 16 * 1024 * 1024
BALLAST = 4 * 1024 * 1024
TOPIC = "orders"
BODY = b"x" * 4000
#: Nothing is deleted to make room, unless a test says so.
KEEP_ALL: dict[str, Any] = {
    "cleanFileForciblyEnable": "false",
    "cleanResourceInterval": 20,
    "diskMaxUsedSpaceRatio": 95,
    "flushConsumerOffsetInterval": 20,
}
NEVER_REFUSE: dict[str, Any] = {**KEEP_ALL, "diskSpaceWarningLevelRatio": 100}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The directory of a small disk."""
    path = tmp_path / "disk"
    with small_disk(path, DISK):
        (path / "ballast").write_bytes(bytes(BALLAST))
        yield path


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient()
    yield client
    await client.close()


class Sender:
    """Sends numbered messages one after the other; keeps which number got which offset."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self.client = client
        self.address = address
        self.stored: dict[int, int] = {}
        self._number = 0

    async def ask(self, request: RemotingCommand) -> RemotingCommand:
        return await self.client.request(self.address, request, DEADLINE)

    async def send(self, *, topic: str = TOPIC) -> RemotingCommand:
        number = self._number
        self._number += 1
        header = SendMessageRequestHeaderV2(
            producer_group="full-disk",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=0,
            born_timestamp=0,
            flag=0,
            properties=f"KEYS\x01key{number}",
        )
        answer = await self.ask(
            RemotingCommand(
                RequestCode.SEND_MESSAGE_V2, ext_fields=header.encode(), body=b"%d:" % number + BODY
            )
        )
        if answer.code == ResponseCode.SUCCESS and topic == TOPIC:
            self.stored[int(answer.ext_fields["queueOffset"])] = number
        return answer

    async def send_until(self, code: int) -> RemotingCommand:
        """Send on until that is the answer; it must come before twice the disk is sent."""
        async with asyncio.timeout(DEADLINE):
            while True:
                answer = await self.send()
                if answer.code == code:
                    return answer
                assert len(self.stored) * len(BODY) < 2 * DISK
                if answer.code != ResponseCode.SUCCESS:
                    await asyncio.sleep(0.01)  # until the broker has looked again

    async def send_well(self, count: int) -> None:
        for _ in range(count):
            answer = await self.send()
            assert answer.code == ResponseCode.SUCCESS, answer

    async def check_pulls(self, *, first_ones_go: bool = False) -> None:
        """Every stored message is served, at its offset, with its bytes.

        Where the first ones go meanwhile, all behind the last one that went.
        """
        offset = first = 0
        seen: dict[int, int] = {}
        gone = (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY)
        while True:
            asked = offset
            answer = await self.ask(pull_command(asked))
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                break
            offset = int(answer.ext_fields["nextBeginOffset"])
            if first_ones_go and answer.code in gone:
                first = offset
                seen.clear()
                continue
            assert answer.code == ResponseCode.SUCCESS, answer
            records = decode_records(answer.body)
            if first_ones_go and records[0].queue_offset > asked:
                # A segment went between two steps of the retention: the pull skips its messages.
                first = records[0].queue_offset
                seen.clear()
            for record in records:
                number, _, rest = record.body.partition(b":")
                assert rest == BODY
                seen[record.queue_offset] = int(number)
        assert (first > 0) == first_ones_go
        assert seen
        assert seen == {at: number for at, number in self.stored.items() if at >= first}

    async def finds(self, number: int) -> bool:
        """Whether the key of that number finds its message."""
        header = QueryMessageRequestHeader(
            topic=TOPIC, key=f"key{number}", max_num=32, begin_timestamp=0, end_timestamp=1 << 60
        )
        answer = await self.ask(
            RemotingCommand(RequestCode.QUERY_MESSAGE, ext_fields=header.encode())
        )
        if answer.code != ResponseCode.SUCCESS:
            return False
        (record,) = decode_records(answer.body)
        return record.body.startswith(b"%d:" % number)


async def in_topics_file(store: Path, topic: bytes) -> bool:
    return topic in (store / "config" / "topics.json").read_bytes()


def pull_command(offset: int) -> RemotingCommand:
    header = PullMessageRequestHeader(
        consumer_group="full-disk",
        topic=TOPIC,
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=4,  # the subscription comes with the request
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription="*",
    )
    return RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=header.encode())


def free_bytes(path: Path) -> int:
    numbers = os.statvfs(path)
    return numbers.f_bavail * numbers.f_frsize


def violations(store: Path) -> list[str]:
    return [str(violation) for violation in check_store(store)]


async def test_sends_are_refused_before_the_disk_is_full_and_resume_with_room(
    disk: Path, client: RemotingClient
) -> None:
    store = disk / "store"
    broker = await BrokerProcess.start(store, **KEEP_ALL)
    try:
        sender = Sender(client, broker.address)
        refused = await sender.send_until(ResponseCode.SERVICE_NOT_AVAILABLE)
        assert refused.remark is not None
        assert f"disk of {store / 'commitlog'} is 9" in refused.remark
        assert "diskSpaceWarningLevelRatio=90" in refused.remark
        assert free_bytes(disk) > 0
        for _ in range(3):
            assert (await sender.send()).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert len(sender.stored) > 1000
        await sender.check_pulls()
        (disk / "ballast").unlink()
        await sender.send_until(ResponseCode.SUCCESS)
        await sender.send_well(100)
        await sender.check_pulls()
    finally:
        await broker.kill()
    assert violations(store) == []
    broker = await BrokerProcess.start(store, **KEEP_ALL)
    try:
        sender.address = broker.address
        await sender.check_pulls()
        await sender.send_well(10)
    finally:
        await broker.kill()


async def test_no_room_at_all(disk: Path, client: RemotingClient) -> None:
    """What the limits should prevent: a put, the index and the tables find no block."""
    store = disk / "store"
    broker = await BrokerProcess.start(store, **NEVER_REFUSE)
    try:
        sender = Sender(client, broker.address)
        refused = await sender.send_until(ResponseCode.SYSTEM_ERROR)
        assert refused.remark is not None
        assert "create mapped file failed" in refused.remark
        assert "No space left on device" in refused.remark
        for _ in range(20):
            assert (await sender.send()).code == ResponseCode.SYSTEM_ERROR
        assert len(sender.stored) > 1000
        # Not a byte for the tables either.
        (disk / "rest").write_bytes(bytes(free_bytes(disk)))
        assert free_bytes(disk) == 0
        assert (await sender.send(topic="made-on-a-full-disk")).code == ResponseCode.SYSTEM_ERROR
        assert violations(store) == []
        await sender.check_pulls()

        (disk / "ballast").unlink()
        await sender.send_until(ResponseCode.SUCCESS)
        await sender.send_well(100)
        await sender.check_pulls()
        async with asyncio.timeout(DEADLINE):
            # The key index has come up, every refused message left nothing in it.
            last = max(sender.stored.values())
            await until(lambda: sender.finds(last))
            refused_number = next(n for n in range(last) if n not in sender.stored.values())
            assert not await sender.finds(refused_number)
            await until(lambda: in_topics_file(store, b"made-on-a-full-disk"))
    finally:
        await broker.kill()
    assert violations(store) == []


async def test_a_kill_on_a_full_disk(disk: Path, client: RemotingClient) -> None:
    store = disk / "store"
    broker = await BrokerProcess.start(store, **NEVER_REFUSE)
    try:
        sender = Sender(client, broker.address)
        await sender.send_until(ResponseCode.SYSTEM_ERROR)
    finally:
        await broker.kill()
    assert violations(store) == []
    (disk / "rest").write_bytes(bytes(free_bytes(disk)))
    # Not a byte is left: what is stored is served.
    broker = await BrokerProcess.start(store, **NEVER_REFUSE)
    try:
        sender.address = broker.address
        await sender.check_pulls()
        (disk / "ballast").unlink()
        await sender.send_until(ResponseCode.SUCCESS)
        await sender.send_well(50)
        await sender.check_pulls()
    finally:
        await broker.kill()
    assert violations(store) == []


async def test_old_messages_make_room_for_new_ones(disk: Path, client: RemotingClient) -> None:
    store = disk / "store"
    settings = {"cleanResourceInterval": 5, "deleteCommitLogFilesInterval": 0}
    broker = await BrokerProcess.start(store, **settings)
    try:
        sender = Sender(client, broker.address)
        sent = 0
        while sent * len(BODY) < 2 * DISK:
            sent += (await sender.send()).code == ResponseCode.SUCCESS
        await sender.send_until(ResponseCode.SUCCESS)
        answer = await sender.ask(
            RemotingCommand(RequestCode.GET_MIN_OFFSET, ext_fields={"topic": TOPIC, "queueId": "0"})
        )
        first = int(answer.ext_fields["offset"])
        assert first > 1000
        assert free_bytes(disk) > DISK // 20
        # A consumer that was asleep is sent on to the first message there is.
        answer = await sender.ask(pull_command(0))
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        await sender.check_pulls(first_ones_go=True)
    finally:
        await broker.kill()
    broker = await BrokerProcess.start(store, **settings)
    try:
        sender.address = broker.address
        await sender.check_pulls(first_ones_go=True)
    finally:
        await broker.kill()
    assert violations(store) == []
