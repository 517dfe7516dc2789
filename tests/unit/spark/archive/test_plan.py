from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyromq.spark.archive.plan import MIN_TASK_RECORDS, plan_commit, plan_tasks
from pyromq.spark.origins.origin import Bounds, LostRecords, Queue, QueueRange

A = Queue("Orders", "broker-a", 0)
B = Queue("Orders", "broker-a", 1)
C = Queue("Payments", "broker-a", 0)


def test_new_messages_are_read() -> None:
    plan = plan_commit({A: 5, B: 7}, {A: Bounds(0, 9), B: Bounds(2, 7)}, {}, 1000)
    assert plan.ranges == [QueueRange(A, 5, 9)]
    assert plan.advances == [QueueRange(A, 5, 9)]
    assert (plan.lost, plan.resets, plan.left, plan.records) == ([], {}, 0, 4)


def test_new_queues_start_at_their_first_offset_or_as_given() -> None:
    bounds = {A: Bounds(3, 9), B: Bounds(0, 4), C: Bounds(0, 0)}
    plan = plan_commit({}, bounds, {B: 4}, 1000)
    assert plan.ranges == [QueueRange(A, 3, 9)]
    # The start of a queue is recorded even if there is nothing to read, so that it stays.
    assert plan.advances == [QueueRange(A, 3, 9), QueueRange(B, 4, 4), QueueRange(C, 0, 0)]


def test_expired_offsets_are_lost() -> None:
    plan = plan_commit({A: 5}, {A: Bounds(8, 20)}, {}, 1000)
    assert plan.ranges == [QueueRange(A, 8, 20)]
    assert plan.advances == [QueueRange(A, 5, 20)]
    assert plan.lost == [LostRecords(A, 5, 8, "they have expired")]


def test_a_queue_that_lost_everything_advances() -> None:
    plan = plan_commit({A: 5}, {A: Bounds(8, 8)}, {}, 1000)
    assert plan.ranges == []
    assert plan.advances == [QueueRange(A, 5, 8)]
    assert plan.lost == [LostRecords(A, 5, 8, "they have expired")]


def test_a_queue_that_ends_before_its_position_starts_over() -> None:
    plan = plan_commit({A: 50}, {A: Bounds(1, 9)}, {}, 1000)
    assert plan.ranges == plan.advances == [QueueRange(A, 1, 9)]
    assert "archived up to offset 49 but now ends at 8" in plan.resets[A]
    empty = plan_commit({A: 50}, {A: Bounds(0, 0)}, {}, 1000)
    assert empty.advances == [QueueRange(A, 0, 0)]


def test_a_limit_is_shared_by_the_queues() -> None:
    plan = plan_commit({}, {A: Bounds(0, 900), B: Bounds(0, 90), C: Bounds(0, 1)}, {}, 100)
    assert plan.ranges == [QueueRange(A, 0, 90), QueueRange(B, 0, 9), QueueRange(C, 0, 1)]
    assert plan.left == 991 - 100


@given(
    st.lists(st.integers(0, 5 * MIN_TASK_RECORDS), max_size=12),
    st.integers(1, 20),
)
def test_tasks_cover_everything_once_in_equal_shares(sizes: list[int], tasks: int) -> None:
    ranges = [
        QueueRange(Queue("t", "b", number), 7, 7 + size)
        for number, size in enumerate(sizes)
        if size
    ]
    dealt = plan_tasks(ranges, tasks)
    joined: list[QueueRange] = []
    for queue, start, end in (each for task in dealt for each in task):
        assert start < end
        if joined and joined[-1].queue == queue:
            assert joined[-1].end == start
            joined[-1] = joined[-1]._replace(end=end)
        else:
            joined.append(QueueRange(queue, start, end))
    assert joined == ranges
    amounts = [sum(each.size for each in task) for task in dealt]
    if amounts:
        assert len(amounts) <= tasks
        assert max(amounts) - min(amounts) <= 1
        assert len(amounts) == 1 or min(amounts) >= MIN_TASK_RECORDS - 1
