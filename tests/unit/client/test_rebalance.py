from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.client.rebalance import allocate_averagely
from pyromq.protocol.bodies import MessageQueue


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
def test_shares_are_java_s(queue_count: int, shares: list[list[int]]) -> None:
    members = ["m0", "m1", "m2"]
    assert [
        [queue.queue_id for queue in allocate_averagely(queues(queue_count), members, member)]
        for member in members
    ] == shares


def test_someone_who_is_no_member_gets_nothing() -> None:
    assert allocate_averagely(queues(4), ["a", "b"], "c") == []


@given(st.integers(0, 40), st.lists(st.text(min_size=1), min_size=1, unique=True), st.randoms())
def test_every_queue_has_exactly_one_owner_whatever_order_members_see(
    count: int, members: list[str], random: object
) -> None:
    owned: list[MessageQueue] = []
    for member in members:
        shuffled_queues, shuffled_members = queues(count), list(members)
        random.shuffle(shuffled_queues)  # type: ignore[attr-defined]
        random.shuffle(shuffled_members)  # type: ignore[attr-defined]
        owned += allocate_averagely(shuffled_queues, shuffled_members, member)
    assert sorted(owned) == queues(count)
