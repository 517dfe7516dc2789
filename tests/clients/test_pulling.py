"""Pull and lite-pull consumers: filters, offsets, places to begin, sharing, pausing."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from pyromq.client import (
    LitePullConsumer,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PullStatus,
    ReceivedMessage,
    StartFrom,
    Subscription,
)
from tests.clients.cases import Case, against_all_brokers, eventually, numbered
from tests.support.patience import DEADLINE

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

SQL = "(size BETWEEN 3 AND 7 AND colour IN ('red', 'blue')) OR extra IS NOT NULL"
SQL_FINDS = [b"m-3", b"m-5", b"m-6", b"with extra"]


async def send_coloured(case: Case) -> None:
    messages = [
        Message(
            case.topic,
            f"m-{number}".encode(),
            tags=f"Tag{number % 4}",
            properties={"size": str(number), "colour": ("red", "green", "blue")[number % 3]},
        )
        for number in range(12)
    ]
    messages.append(Message(case.topic, b"with extra", properties={"extra": "x"}))
    messages.append(Message(case.topic, b"without properties"))
    async with Producer(case.namesrv) as producer:
        for message in messages:
            await producer.send(message)


async def take(consumer: LitePullConsumer, count: int) -> list[ReceivedMessage]:
    """The next `count` messages."""
    taken: list[ReceivedMessage] = []
    async with asyncio.timeout(DEADLINE):
        while len(taken) < count:
            taken.append(await anext(consumer))
    return taken


# Single pulls


@against_all_brokers
async def test_a_pull_tells_where_the_queue_begins_and_ends(case: Case) -> None:
    async with PullConsumer(case.namesrv, case.topic) as consumer:
        queue = (await consumer.queues())[1]
        assert (await consumer.min_offset(queue), await consumer.max_offset(queue)) == (0, 0)
        nothing = await consumer.pull(queue, 0)
        assert (nothing.status, nothing.messages) == (PullStatus.NO_NEW_MESSAGE, [])
        async with Producer(case.namesrv) as producer:
            await producer.send_batch(
                [Message(case.topic, body) for body in numbered(50)],
                queue,
            )
        await case.wait_stored(50)
        result = await consumer.pull(queue, 10, 5)
        assert [message.body for message in result.messages] == numbered(50)[10:15]
        assert (result.next_offset, result.min_offset, result.max_offset) == (15, 0, 50)
        beyond = await consumer.pull(queue, 60)
        assert beyond.status is PullStatus.OFFSET_ILLEGAL
        assert beyond.next_offset == 50


async def found(consumer: PullConsumer, queue: MessageQueue, offset: int) -> list[bytes]:
    return [message.body for message in (await consumer.pull(queue, offset)).messages]


@against_all_brokers
async def test_a_waiting_pull_gets_what_comes(case: Case) -> None:
    async with (
        PullConsumer(case.namesrv, case.topic) as consumer,
        Producer(case.namesrv) as producer,
    ):
        queue = (await consumer.queues())[0]
        pull = asyncio.create_task(consumer.pull(queue, 0, wait=20.0))
        await asyncio.sleep(0.2)
        assert not pull.done()
        await producer.send(Message(case.topic, b"late"), queue)
        result = await asyncio.wait_for(pull, 15.0)
        assert [message.body for message in result.messages] == [b"late"]


@against_all_brokers
async def test_offsets_of_a_group(case: Case) -> None:
    # 5.x knows a group from the first time that it has a member.
    async with LitePullConsumer(case.namesrv, group=case.group) as member:
        await member.subscribe(case.topic)
    async with PullConsumer(case.namesrv, case.topic, group=case.group) as consumer:
        queue = (await consumer.queues())[0]
        # Most brokers say 0 for a queue that still has its first message.
        assert not await consumer.committed(queue)
        await consumer.commit(queue, 7)
        assert await eventually(lambda: consumer.committed(queue)) == 7


@against_all_brokers
@pytest.mark.parametrize(
    ("subscription", "wanted"),
    [
        ("Tag1 || Tag3", [b"m-1", b"m-11", b"m-3", b"m-5", b"m-7", b"m-9"]),
        (Subscription.sql(SQL), SQL_FINDS),
    ],
    ids=["tags", "sql"],
)
async def test_pulls_are_filtered(
    case: Case, subscription: str | Subscription, wanted: list[bytes]
) -> None:
    await send_coloured(case)
    await case.wait_stored(14)
    bodies: list[bytes] = []
    async with PullConsumer(case.namesrv, case.topic, subscription=subscription) as consumer:
        for queue in await consumer.queues():
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                assert result.next_offset > offset
                offset = result.next_offset
                bodies += [message.body for message in result.messages]
    assert sorted(bodies) == wanted


@against_all_brokers
async def test_offsets_by_time(case: Case) -> None:
    middle = await send_twice(case)
    async with PullConsumer(case.namesrv, case.topic) as consumer:
        for queue in await consumer.queues():
            offset = await consumer.offset_by_time(queue, middle)
            bodies = await found(consumer, queue, offset)
            assert {body.split(b"-")[0] for body in bodies} == {b"middle"}, (queue, offset)
            before = (await found(consumer, queue, 0))[:offset]
            assert all(body.startswith(b"early") for body in before)


# Lite-pull


@against_all_brokers
async def test_reading_as_a_group(case: Case) -> None:
    bodies = numbered(100)
    await case.send(bodies)
    async with LitePullConsumer(
        case.namesrv, group=case.group, start_from=StartFrom.FIRST
    ) as consumer:
        await consumer.subscribe(case.topic)
        messages = await take(consumer, 100)
    assert sorted(message.body for message in messages) == sorted(bodies)
    # Left without an exception: everything counts as consumed.
    await case.until_committed(100)
    await case.send([b"one more"])
    async with LitePullConsumer(case.namesrv, group=case.group) as consumer:
        await consumer.subscribe(case.topic)
        assert [message.body for message in await take(consumer, 1)] == [b"one more"]


@against_all_brokers
@pytest.mark.parametrize(
    ("subscription", "wanted"),
    [
        ("Tag1 || Tag3", [b"m-1", b"m-11", b"m-3", b"m-5", b"m-7", b"m-9"]),
        (Subscription.sql(SQL), SQL_FINDS),
    ],
    ids=["tags", "sql"],
)
async def test_reading_is_filtered(
    case: Case, subscription: str | Subscription, wanted: list[bytes]
) -> None:
    async with LitePullConsumer(
        case.namesrv, group=case.group, start_from=StartFrom.FIRST
    ) as consumer:
        await consumer.subscribe({case.topic: subscription})
        await send_coloured(case)
        assert sorted(message.body for message in await take(consumer, len(wanted))) == wanted
        assert await consumer.poll(0.3) == []


@against_all_brokers
@pytest.mark.parametrize("start", ["first", "last", "middle"])
async def test_where_reading_begins(case: Case, start: str, tmp_path: Path) -> None:
    middle = await send_twice(case)
    wanted = {
        "first": {b"early", b"middle", b"late"},
        "middle": {b"middle", b"late"},
        "last": {b"late"},
    }[start]
    start_from = middle if start == "middle" else StartFrom(start)
    async with (
        LitePullConsumer(
            case.namesrv,
            group=case.group,
            model=MessageModel.BROADCASTING,
            offsets_directory=tmp_path,
            start_from=start_from,
        ) as own,
        LitePullConsumer(case.namesrv, group=f"{case.group}-all", start_from=start_from) as all_,
    ):
        for consumer in (own, all_):
            await consumer.subscribe(case.topic)

        async def begun() -> bool:
            return all(own.position(queue) is not None for queue in own.assignment())

        await eventually(begun)
        await case.send(numbered(8, "late"))
        got = Counter(message.body.split(b"-")[0] for message in await take(own, 8 * len(wanted)))
        assert got == dict.fromkeys(wanted, 8)
        # A group is told by its broker to begin with the first message, which is still there.
        await take(all_, 24)


async def send_twice(case: Case) -> datetime:
    """Eight early messages and eight later ones; a time just before these.

    Brokers give the message that is nearest to a time.
    """
    await case.send(numbered(8, "early"))
    await asyncio.sleep(0.3)
    await case.send(numbered(8, "middle"))
    stored = await case.wait_stored(16)
    later = [message.store_timestamp for message in stored if message.body.startswith(b"middle")]
    return datetime.fromtimestamp((min(later) - 1) / 1000)


async def test_assigned_queues_and_seeking(case: Case) -> None:
    await case.send(numbered(40))
    await case.wait_stored(40)
    async with LitePullConsumer(case.namesrv) as consumer:
        first, second = (await consumer.queues(case.topic))[:2]
        await consumer.assign([first, second])
        await consumer.seek_to_begin(first)
        await consumer.seek(second, 5)
        messages = await take(consumer, 15)
        assert Counter(message.queue for message in messages) == {first: 10, second: 5}
        offsets = [message.queue_offset for message in messages if message.queue == second]
        assert offsets == [5, 6, 7, 8, 9]
        await consumer.seek_to_end(first)
        await consumer.seek(second, 9)
        (again,) = await take(consumer, 1)
        assert (again.queue, again.queue_offset) == (second, 9)


async def test_paused_queues_wait(case: Case) -> None:
    async with LitePullConsumer(
        case.namesrv, group=case.group, start_from=StartFrom.FIRST
    ) as consumer:
        await consumer.subscribe(case.topic)
        held = consumer.assignment()[:2]
        consumer.pause(held)
        await case.send(numbered(20))
        messages = await take(consumer, 10)
        assert {message.queue for message in messages}.isdisjoint(held)
        assert await consumer.poll(0.3) == []
        consumer.resume(held)
        assert {message.queue for message in await take(consumer, 10)} == set(held)


@against_all_brokers
async def test_readers_share_the_queues(case: Case) -> None:
    async with (
        LitePullConsumer(case.namesrv, group=case.group) as first,
        LitePullConsumer(case.namesrv, group=case.group) as second,
    ):
        await first.subscribe(case.topic)
        assert len(first.assignment()) == 4
        await second.subscribe(case.topic)

        async def shared() -> bool:
            return len(first.assignment()) == len(second.assignment()) == 2

        await eventually(shared)
        assert set(first.assignment()).isdisjoint(second.assignment())
        await second.close()

        async def alone() -> bool:
            return len(first.assignment()) == 4

        await eventually(alone)


async def test_first_commits_of_many_queues_at_once(case: Case) -> None:
    """Java's broker forgets some when the first ones of a group reach it together."""
    topic = await case.create_topic(f"{case.topic}-wide", 16)
    for number in range(25):
        async with PullConsumer(case.namesrv, topic, group=f"{case.group}-{number}") as consumer:
            queues = await consumer.queues()
            await asyncio.gather(*(consumer.commit(queue, 7) for queue in queues))
            offsets = [await consumer.committed(queue) for queue in queues]
        assert offsets == [7] * 16
