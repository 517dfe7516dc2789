from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.client.consumer.rebalance import (
    AllocateByConfig,
    AllocateByMachineRoom,
    AllocateConsistentHash,
    AllocateMachineRoomNearby,
    Strategy,
    allocate_averagely,
    allocate_averagely_by_circle,
)
from pyromq.protocol.wire.bodies import MessageQueue


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("t", "b", number) for number in range(count)]


@pytest.mark.parametrize(
    ("queue_count", "shares"),
    [
        (8, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (2, [[0], [1], []]),
        (3, [[0], [1], [2]]),
        (0, [[], [], []]),
    ],
)
def test_shares_equal_those_of_java(queue_count: int, shares: list[list[int]]) -> None:
    members = ["m0", "m1", "m2"]
    assert [
        [queue.queue_id for queue in allocate_averagely(queues(queue_count), members, member)]
        for member in members
    ] == shares


def test_a_non_member_gets_nothing() -> None:
    assert allocate_averagely(queues(4), ["a", "b"], "c") == []


@given(st.integers(0, 40), st.lists(st.text(min_size=1), min_size=1, unique=True), st.randoms())
def test_every_queue_has_exactly_one_owner_in_any_order(
    count: int, members: list[str], random: object
) -> None:
    owned: list[MessageQueue] = []
    for member in members:
        shuffled_queues, shuffled_members = queues(count), list(members)
        random.shuffle(shuffled_queues)  # type: ignore[attr-defined]
        random.shuffle(shuffled_members)  # type: ignore[attr-defined]
        owned += allocate_averagely(shuffled_queues, shuffled_members, member)
    assert sorted(owned) == queues(count)


def rooms(queue: MessageQueue) -> str:
    return queue.broker_name.split("@")[0]


STRATEGIES: list[Strategy] = [
    allocate_averagely_by_circle,
    AllocateByMachineRoom({"b", "c"}),
    AllocateMachineRoomNearby(rooms, lambda member: "bc"[len(member) % 2]),
    AllocateConsistentHash(),
]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_other_strategies_leave_no_gap_and_no_overlap(strategy: Strategy) -> None:
    everything = [MessageQueue("t", f"{room}@1", number) for room in "bc" for number in range(7)]
    members = ["m", "mm", "mmm", "mmmm"]
    owned = [queue for member in members for queue in strategy(everything, members, member)]
    assert sorted(owned) == everything
    assert list(strategy(everything, members, "stranger")) == []


def test_configured_queues_ignore_other_members() -> None:
    own = queues(3)[1:]
    assert AllocateByConfig(own)(queues(3), ["a", "b"], "a") == own


def test_an_unknown_room_is_an_error() -> None:
    strategy = AllocateMachineRoomNearby(rooms, lambda _: "")
    with pytest.raises(ValueError, match="machine room of m is unknown"):
        strategy(queues(2), ["m"], "m")


def test_another_hash_can_be_used() -> None:
    # All members collide on the ring: the last one wins.
    crowded = AllocateConsistentHash(hash_of=lambda _: 1)
    assert crowded(queues(2), ["a", "b"], "a") == []
    assert crowded(queues(2), ["a", "b"], "b") == queues(2)
