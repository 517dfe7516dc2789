from __future__ import annotations

import pytest

from pyromq.admin import Admin, AdminError
from pyromq.admin.errors import UnknownBrokerError, UnknownGroupError, UnknownTopicError
from pyromq.admin.groups.offsets import OnlineGroupError
from pyromq.client import Message, Producer, PushConsumer, StartFrom
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.testing import Cluster
from tests.support.patience import until

#: Messages in each of the four queues.
COUNTS = (5, 3, 0, 1)
GROUP = "readers"


@pytest.fixture
async def topic(rocketmq: Cluster, rocketmq_topic: str) -> str:
    async with Producer(rocketmq.namesrv) as producer:
        for queue_id, count in enumerate(COUNTS):
            for _ in range(count):
                queue = MessageQueue(rocketmq_topic, "broker-0", queue_id)
                await producer.send(Message(rocketmq_topic, b"x"), queue)
    return rocketmq_topic


async def _offsets(admin: Admin, topic: str, group: str = GROUP) -> list[int | None]:
    return [each.offset for each in await admin.offsets.committed(group, topic)]


async def test_sets_exact_offsets(admin: Admin, topic: str) -> None:
    assert await _offsets(admin, topic) == [None] * 4
    wanted = {("broker-0", 0): 2, ("broker-0", 1): 3}

    plan = await admin.offsets.set_exact(GROUP, topic, wanted, dry_run=True)
    assert plan.dry_run
    assert await _offsets(admin, topic) == [None] * 4
    done = await admin.offsets.set_exact(GROUP, topic, wanted)

    assert done.changes == plan.changes
    assert [(each.before, each.after, each.skipped) for each in done.changes] == [
        (None, 2, 2),
        (None, 3, 3),
    ]
    assert (await _offsets(admin, topic))[:2] == [2, 3]
    assert [each.max_offset for each in await admin.offsets.committed(GROUP, topic)] == [*COUNTS]


@pytest.mark.parametrize(
    ("offsets", "problem"),
    [
        ({("broker-0", 0): 6}, "outside of queue 0 at broker-0: use 0 to 5"),
        ({("broker-0", 9): 0}, "no queue 9 at broker-0: it has 4 queues there"),
    ],
)
async def test_refuses_impossible_offsets(
    admin: Admin, topic: str, offsets: dict[tuple[str, int], int], problem: str
) -> None:
    with pytest.raises(AdminError, match=problem):
        await admin.offsets.set_exact(GROUP, topic, {("broker-0", 1): 1, **offsets})
    assert await _offsets(admin, topic) == [None] * 4


async def test_wrong_names(admin: Admin, topic: str) -> None:
    with pytest.raises(UnknownBrokerError):
        await admin.offsets.set_exact(GROUP, topic, {("broker-7", 0): 0})
    with pytest.raises(UnknownTopicError):
        await admin.offsets.skip(GROUP, "nowhere")
    with pytest.raises(AdminError, match="illegal"):
        await admin.offsets.skip("a b", topic)
    with pytest.raises(UnknownGroupError):
        await admin.offsets.clone("nobody", GROUP, topic)


async def test_moves_an_offline_group(admin: Admin, topic: str) -> None:
    skipped = await admin.offsets.skip(GROUP, topic)
    assert not skipped.online
    assert await _offsets(admin, topic) == [*COUNTS]
    back = await admin.offsets.reset_to_time(GROUP, topic, 0, dry_run=True)
    assert [each.after for each in back.changes] == [0] * 4
    assert await _offsets(admin, topic) == [*COUNTS]
    await admin.offsets.reset_to_time(GROUP, topic, 0)
    assert await _offsets(admin, topic) == [0] * 4

    # Only ever back.
    kept = await admin.offsets.skip(GROUP, topic, force=False)
    assert [(each.after, each.wanted) for each in kept.changes] == [(0, each) for each in COUNTS]
    assert await _offsets(admin, topic) == [0] * 4


async def test_clones_offsets(admin: Admin, topic: str) -> None:
    await admin.offsets.set_exact("source", topic, {("broker-0", 0): 4, ("broker-0", 1): 1})
    plan = await admin.offsets.clone("source", "target", topic, dry_run=True)
    assert await _offsets(admin, topic, "target") == [None] * 4

    done = await admin.offsets.clone("source", "target", topic)

    assert plan.changes == done.changes
    assert await _offsets(admin, topic, "target") == await _offsets(admin, topic, "source")


async def test_members_that_are_online_move_themselves(
    rocketmq: Cluster, admin: Admin, topic: str
) -> None:
    handled: list[bytes] = []
    async with PushConsumer(
        rocketmq.namesrv,
        group=GROUP,
        subscriptions=topic,
        handler=lambda message: handled.append(message.body),
        commit_interval=0.1,
        start_from=StartFrom.FIRST,
    ):
        await until(lambda: _has_committed(admin, topic))
        wanted = {("broker-0", 0): 1}
        with pytest.raises(OnlineGroupError, match="1 connected member,"):
            await admin.offsets.set_exact(GROUP, topic, wanted)
        with pytest.raises(OnlineGroupError):
            await admin.offsets.clone(GROUP, GROUP, topic)
        assert (await admin.offsets.set_exact(GROUP, topic, wanted, dry_run=True)).dry_run

        handled.clear()
        for for_cpp in (False, True):
            moved = await admin.offsets.reset_to_time(GROUP, topic, 0, for_cpp=for_cpp)
            assert moved.online
            assert [each.after for each in moved.changes] == [0] * 4
            if not for_cpp:
                await until(lambda: len(handled) >= sum(COUNTS))


async def _has_committed(admin: Admin, topic: str) -> bool:
    return await _offsets(admin, topic) == [*COUNTS]
