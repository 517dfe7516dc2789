"""Deleting a topic: beside searches that read it, and cut off by the power at any moment."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import DeleteTopicRequestHeader, SearchOffsetRequestHeader
from pyromq.remoting.client import RemotingClient
from pyromq.store.offline.check import check_store
from pyromq.store.offline.rebuild import rebuild_store
from tests.support.brokers import local_broker, small_store
from tests.support.crash import seeds
from tests.support.patience import DEADLINE, until
from tests.support.power_cut import Disk
from tests.support.requests import send_request

QUEUES = 4
EACH = 5
ROUNDS = 100
FLUSHED_SOON = {
    "flush_interval_commit_log": 5,
    "flush_interval_consume_queue": 10,
    "flush_consume_queue_least_pages": 0,
    "flush_commit_log_least_pages": 0,
}


async def send_all(client: RemotingClient, address: str, topic: str) -> None:
    for number in range(QUEUES * EACH):
        request = send_request(
            RequestCode.SEND_MESSAGE_V2, b"%d" % number, topic=topic, queueId=str(number % QUEUES)
        )
        answer = await client.request(address, request, DEADLINE)
        assert answer.code == ResponseCode.SUCCESS, answer


def delete(topic: str) -> RemotingCommand:
    header = DeleteTopicRequestHeader(topic)
    return RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields=header.encode())


def search(topic: str, queue_id: int) -> RemotingCommand:
    header = SearchOffsetRequestHeader(topic, queue_id, 0)
    return RemotingCommand(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext_fields=header.encode())


async def test_a_topic_is_deleted_while_its_queues_are_searched(tmp_path: Path) -> None:
    broker = Broker(local_broker(broker_name="b"), small_store(tmp_path))
    await broker.start()
    client = RemotingClient()
    try:
        for number in range(ROUNDS):
            topic = f"T{number}"
            await send_all(client, broker.address, topic)
            requests = [search(topic, queue_id % QUEUES) for queue_id in range(4 * QUEUES)]
            requests.insert(2 * QUEUES, delete(topic))
            answers = await asyncio.gather(
                *(client.request(broker.address, request, DEADLINE) for request in requests)
            )
            assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}, answers
            assert broker.store is not None
            assert broker.store.find_queue(topic, 0) is None
            assert not (tmp_path / "consumequeue" / topic).exists()
    finally:
        await client.close()
        await broker.stop()


@pytest.mark.parametrize("properties", ["", "DELAY\x0118"])
async def test_sends_beside_a_deletion_are_kept_or_refused(tmp_path: Path, properties: str) -> None:
    """The topic is made anew by them; what was acknowledged behind the deletion is there."""
    broker = Broker(local_broker(broker_name="b"), small_store(tmp_path))
    await broker.start()
    client = RemotingClient()
    plain, other = (
        send_request(RequestCode.SEND_MESSAGE_V2, b"x", topic="T", queueId="0", properties=each)
        for each in ("", properties)
    )
    try:
        for _ in range(8):
            await send_all(client, broker.address, "T")
            deleting = asyncio.create_task(client.request(broker.address, delete("T"), DEADLINE))
            answers = []
            while not deleting.done():
                answers.append(await client.request(broker.address, other, DEADLINE))
            assert (await deleting).code == ResponseCode.SUCCESS
            refused = [answer for answer in answers if answer.code != ResponseCode.SUCCESS]
            assert all("being deleted" in (answer.remark or "") for answer in refused), refused
            assert broker.store is not None
            before = broker.store.max_offset("T", 0)
            answer = await client.request(broker.address, plain, DEADLINE)
            assert answer.code == ResponseCode.SUCCESS, answer
            assert answer.ext_fields["queueOffset"] == str(before)
            assert broker.store.max_offset("T", 0) == before + 1
    finally:
        await client.close()
        await broker.stop()
    assert list(check_store(tmp_path)) == []


def messages_of(broker: Broker, topic: str) -> int | None:
    """How many messages the broker has of a topic; None when it does not know the topic."""
    assert broker.store is not None
    if topic not in broker.topics:
        assert topic not in broker.store.queue_counts()
        return None
    return sum(broker.store.max_offset(topic, queue_id) for queue_id in range(QUEUES))


async def delete_until_the_power_goes(root: Path, cut: int, chooser: random.Random) -> Disk:
    """Delete a topic; the power goes at the given event of the deletion, or behind the last."""
    disk = Disk(root, chooser)
    with disk.recording():
        broker = Broker(local_broker(broker_name="b"), small_store(root, **FLUSHED_SOON))
        await broker.start()
        client = RemotingClient()
        await send_all(client, broker.address, "T")
        store = broker.store
        assert store is not None
        await until(lambda: store.flushed_offset == store.max_physical_offset)
        await until(lambda: not any(queue.dirty for queue in store.queues()))
        await broker.topics.file.saved()
        disk.cut_at = disk.events + cut
        answered = await client.request(broker.address, delete("T"), DEADLINE)
        assert answered.code == ResponseCode.SUCCESS
        disk.cut()
        await client.close()
        await broker.stop()
    return disk


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_deletion_that_was_cut_off_is_undone_or_completed(
    tmp_path: Path, seed: int
) -> None:
    await cut_everywhere(tmp_path, seed, 14)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", seeds(20))
async def test_deletions_that_were_cut_off_are_undone_or_completed(
    tmp_path: Path, seed: int
) -> None:
    await cut_everywhere(tmp_path, seed, 40)


async def cut_everywhere(directory: Path, seed: int, cuts: int) -> None:
    """Cut the power at the first events of a deletion, and look at what each cut left."""
    outcomes = set()
    for cut in range(1, cuts + 1):
        chooser = random.Random(seed * 1000 + cut)
        disk = await delete_until_the_power_goes(directory / f"store{cut}", cut, chooser)
        left = disk.restore(directory / f"left{cut}")
        # Twice: what a start completes must stay so.
        for _ in range(2):
            broker = Broker(local_broker(broker_name="b"), small_store(left))
            await broker.start()
            try:
                found = messages_of(broker, "T")
                assert found in (None, QUEUES * EACH), f"cut {cut} of seed {seed}: half done"
            finally:
                await broker.stop()
            assert list(check_store(left, small_store(left))) == []
        outcomes.add(found)
    assert None in outcomes


async def test_a_topic_that_is_deleted_and_made_anew_is_no_damage(tmp_path: Path) -> None:
    """Its queues got fewer messages than before, or none."""
    broker = Broker(local_broker(broker_name="b"), small_store(tmp_path))
    await broker.start()
    client = RemotingClient()
    try:
        await send_all(client, broker.address, "T")
        await client.request(broker.address, delete("T"), DEADLINE)
        request = send_request(RequestCode.SEND_MESSAGE_V2, b"new", topic="T", queueId="0")
        assert (await client.request(broker.address, request, DEADLINE)).code == 0
    finally:
        await client.close()
        await broker.stop()
    assert list(check_store(tmp_path)) == []
    rebuild_store(small_store(tmp_path))
    assert list(check_store(tmp_path)) == []
    broker = Broker(local_broker(broker_name="b"), small_store(tmp_path))
    await broker.start()
    try:
        assert messages_of(broker, "T") == 1
    finally:
        await broker.stop()
    assert list(check_store(tmp_path)) == []
