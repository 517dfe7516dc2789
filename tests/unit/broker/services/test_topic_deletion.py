"""Deletions of a topic beside sends to it, on a broker whose saves a test holds up."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.state.persistence import TableFile
from pyromq.protocol.message.record import decode_records
from pyromq.protocol.wire.bodies import TopicConfig
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.check import check_store
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE, until
from tests.support.requests import pull_request, send_request


class Saves:
    """Holds waits for the saves of one table, until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, file_name: str) -> None:
        self.held: list[asyncio.Event] = []
        saved = TableFile.saved

        async def held(file: TableFile) -> None:
            if file.path.name == file_name:
                self.held.append(gate := asyncio.Event())
                await gate.wait()
            await saved(file)

        monkeypatch.setattr(TableFile, "saved", held)

    def let_go(self) -> None:
        for gate in self.held:
            gate.set()


class Deleting:
    """A broker, and the requests of these tests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.client = RemotingClient()
        self.broker = Broker(local_broker(), small_store(root))

    @property
    def store(self) -> MessageStore:
        assert self.broker.store is not None
        return self.broker.store

    async def ask(self, request: RemotingCommand) -> RemotingCommand:
        address = f"127.0.0.1:{self.broker.port}"
        return await self.client.request(address, request, timeout=DEADLINE)

    def asking(self, request: RemotingCommand) -> asyncio.Task[RemotingCommand]:
        return asyncio.create_task(self.ask(request))

    async def send(self, queue_id: int, body: bytes = b"body") -> int:
        return (await self.ask(send_request(topic="T", queueId=str(queue_id), body=body))).code

    async def bodies(self, queue_id: int) -> list[bytes]:
        answer = await self.ask(pull_request(topic="T", queueId=str(queue_id)))
        return [record.body for record in decode_records(answer.body)]

    async def held_deletion(
        self, monkeypatch: pytest.MonkeyPatch, file_name: str = "deletedTopics.json"
    ) -> tuple[Saves, asyncio.Task[RemotingCommand]]:
        """Store a message in queue 0, and delete its topic up to a save that is held."""
        assert await self.send(0, b"old") == ResponseCode.SUCCESS
        saves = Saves(monkeypatch, file_name)
        deletion = self.asking(DELETE)
        await until(lambda: len(saves.held) == 1)
        return saves, deletion

    async def stop(self) -> None:
        await self.broker.stop()
        await self.client.close()

    async def restart(self, *, killed: bool = False) -> None:
        """Start again; as after a kill, when the queues are rebuilt from the log."""
        await self.broker.stop()
        if killed:
            (self.root / "abort").touch()
            (self.root / "checkpoint").unlink()
            shutil.rmtree(self.root / "consumequeue")
        self.broker = Broker(local_broker(), small_store(self.root))
        await self.broker.start()


DELETE = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "T"})
CLEAN_UNUSED = RemotingCommand(RequestCode.CLEAN_UNUSED_TOPIC)


@pytest.fixture
async def deleting(tmp_path: Path) -> AsyncIterator[Deleting]:
    deleting = Deleting(tmp_path)
    await deleting.broker.start()
    yield deleting
    await deleting.stop()
    assert list(check_store(tmp_path)) == []


async def test_a_second_deletion_leaves_alone_what_was_sent_after_the_first(
    deleting: Deleting, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves, first = await deleting.held_deletion(monkeypatch)
    second = deleting.asking(DELETE)
    await deleting.bodies(0)  # behind the second one, over the same connection
    saves.held[0].set()
    assert (await first).code == ResponseCode.SUCCESS
    assert await deleting.send(1, b"new") == ResponseCode.SUCCESS

    saves.let_go()
    assert (await second).code == ResponseCode.SUCCESS

    assert await deleting.bodies(1) == [b"new"]
    await deleting.restart(killed=True)
    assert [await deleting.bodies(queue_id) for queue_id in (0, 1)] == [[], [b"new"]]


async def test_a_second_deletion_is_a_deletion_of_its_own(
    deleting: Deleting, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves, first = await deleting.held_deletion(monkeypatch)
    deleting.broker.topics.update(TopicConfig("T", 4, 4))
    second = deleting.asking(DELETE)
    await deleting.bodies(0)
    saves.let_go()
    await first
    assert (await second).code == ResponseCode.SUCCESS
    assert "T" not in deleting.broker.topics


async def test_unused_topics_are_not_cleaned_in_the_middle_of_a_deletion(
    deleting: Deleting, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves, deletion = await deleting.held_deletion(monkeypatch)

    assert (await deleting.ask(CLEAN_UNUSED)).code == ResponseCode.SUCCESS
    assert await deleting.send(1) == ResponseCode.SERVICE_NOT_AVAILABLE

    saves.let_go()
    assert (await deletion).code == ResponseCode.SUCCESS
    assert await deleting.send(1, b"new") == ResponseCode.SUCCESS
    assert await deleting.bodies(1) == [b"new"]


@pytest.mark.parametrize("request_", [DELETE, CLEAN_UNUSED])
async def test_messages_without_a_topic_do_not_come_back(
    deleting: Deleting, request_: RemotingCommand
) -> None:
    await deleting.send(1)
    await deleting.ask(DELETE)
    store = deleting.store
    # As the delivery of a delayed message: its topic need not exist.
    store.put(store.queue("T", 0), b"late", b"", 0, 0, 0, 0, bytes(8), 0)
    store.seal()

    assert (await deleting.ask(request_)).code == ResponseCode.SUCCESS
    assert await deleting.send(1, b"new") == ResponseCode.SUCCESS

    assert list(check_store(deleting.root)) == []
    await deleting.restart(killed=True)
    assert [await deleting.bodies(queue_id) for queue_id in (0, 1)] == [[], [b"new"]]


@pytest.mark.parametrize("file_name", ["topics.json", "deletedTopics.json"])
async def test_a_deletion_that_a_stop_cuts_short_is_a_whole_one(
    deleting: Deleting, monkeypatch: pytest.MonkeyPatch, file_name: str
) -> None:
    with monkeypatch.context() as patch:
        _, deletion = await deleting.held_deletion(patch, file_name)
        await deleting.broker.cut_off()
        await asyncio.gather(deletion, return_exceptions=True)
    await deleting.restart()
    assert await deleting.send(1, b"new") == ResponseCode.SUCCESS

    assert list(check_store(deleting.root)) == []
    await deleting.restart(killed=True)
    assert [await deleting.bodies(queue_id) for queue_id in (0, 1)] == [[], [b"new"]]


async def test_a_topic_without_messages_leaves_no_note(deleting: Deleting) -> None:
    deleting.broker.topics.update(TopicConfig("T", 4, 4))
    assert (await deleting.ask(DELETE)).code == ResponseCode.SUCCESS
    assert "T" not in deleting.broker.topics
    assert "T" not in deleting.broker.tables.deleted_topics
