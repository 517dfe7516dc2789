"""Ranges split among tasks: nothing lost, nothing twice, no partition too large."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from pyromq.spark.origins.origin import Queue, QueueRange, merge_ranges
from pyromq.spark.reading.partitions import RangePartition, split

QUEUES = [Queue("T", "a", number) for number in range(4)]


def parts(*sizes: int, least: int = 1, most: int = 1_000_000) -> list[int]:
    ranges = [QueueRange(queue, 5, 5 + size) for queue, size in zip(QUEUES, sizes, strict=False)]
    return [partition.wanted.size for partition in split(ranges, least, most)]


def test_a_task_for_each_queue() -> None:
    assert parts(10, 20, 0, 30) == [10, 20, 30]
    assert parts() == []
    assert parts(0, 0) == []


def test_large_queues_are_divided_evenly() -> None:
    assert parts(10, 25, most=10) == [10, 8, 8, 9]
    assert parts(1_000_001) == [500_000, 500_001]


def test_more_tasks_than_queues() -> None:
    assert parts(100, 10, least=4) == [33, 33, 34, 10]
    assert parts(100, 100, least=3) == [50, 50, 100]
    # Not more than there are messages.
    assert parts(2, 1, least=100) == [1, 1, 1]
    assert parts(0, least=100) == []


def test_a_partition_travels() -> None:
    partition = RangePartition(QueueRange(QUEUES[0], 1, 2))
    assert pickle.loads(pickle.dumps(partition)).wanted == partition.wanted
    assert "T" in repr(partition)


@given(
    sizes=st.lists(st.integers(0, 500), max_size=4),
    least=st.integers(1, 50),
    most=st.integers(1, 200),
)
def test_all_offsets_once(sizes: list[int], least: int, most: int) -> None:
    ranges = [QueueRange(queue, 5, 5 + size) for queue, size in zip(QUEUES, sizes, strict=False)]
    found = [partition.wanted for partition in split(ranges, least, most)]
    assert all(0 < part.size <= most for part in found)
    assert len(found) >= min(least, sum(sizes))
    assert sum(part.size for part in found) == sum(sizes)
    assert merge_ranges(found) == [wanted for wanted in ranges if wanted.size]
