"""Limits of a micro-batch, shared among queues."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.spark.origins.origin import Queue, QueueRange
from pyromq.spark.reading.admission import bytes_per_offset, take_bytes, take_offsets
from tests.unit.spark.fake_origin import FakeOrigin

QUEUES = [Queue("T", "a", number) for number in range(4)]
OTHER = Queue("Other", "a", 0)


def waiting(*sizes: int) -> list[QueueRange]:
    return [QueueRange(queue, 7, 7 + size) for queue, size in zip(QUEUES, sizes, strict=False)]


def taken(limit: int, *sizes: int) -> list[int]:
    return [part.size for part in take_offsets(waiting(*sizes), limit)]


def test_in_proportion() -> None:
    assert taken(100, 600, 300, 100) == [60, 30, 10]
    assert taken(1000, 600, 300, 100) == [600, 300, 100]
    assert taken(5000, 600, 300, 100) == [600, 300, 100]


def test_no_queue_starves() -> None:
    assert taken(10, 1_000_000, 1, 0, 1) == [9, 1, 0, 1]


def test_bytes() -> None:
    ranges = [*waiting(100), QueueRange(OTHER, 0, 100)]
    sizes = {"T": 300.0, "Other": 100.0}
    assert [part.size for part in take_bytes(ranges, 20_000, sizes)] == [50, 50]
    assert take_bytes(ranges, 40_000, sizes) == ranges
    # At least one message of each queue, whatever its size.
    assert [part.size for part in take_bytes(ranges, 1, sizes)] == [1, 1]


def test_sizes_are_sampled() -> None:
    origin = FakeOrigin({QUEUES[0]: (0, 1000), QUEUES[1]: (0, 10), OTHER: (0, 1)})
    origin.body = lambda offset: bytes(100) if offset < 500 else bytes(300)
    ranges = [QueueRange(QUEUES[0], 0, 1000), QueueRange(QUEUES[1], 0, 10), QueueRange(OTHER, 0, 1)]
    found = bytes_per_offset(origin, ranges)
    heads = found["Other"] - 100
    assert 80 < heads < 150
    # From the start and the middle of the longest backlog.
    assert found["T"] == pytest.approx(200 + heads, abs=10)


def test_queues_without_a_backlog_are_not_sampled() -> None:
    nothing = [QueueRange(QUEUES[0], 5, 5)]
    assert bytes_per_offset(FakeOrigin(), nothing) == {}
    assert take_bytes(nothing, 10, {}) == nothing


def test_lost_and_unwanted_records_count_as_nothing() -> None:
    origin = FakeOrigin({QUEUES[0]: (1000, 1000)})
    assert bytes_per_offset(origin, [QueueRange(QUEUES[0], 0, 1000)]) == {"T": 1.0}


@given(st.lists(st.integers(0, 10**6), max_size=4).map(tuple), st.integers(1, 10**6))
def test_limits(sizes: tuple[int, ...], limit: int) -> None:
    found = taken(limit, *sizes)
    assert all(0 <= part <= size for part, size in zip(found, sizes, strict=True))
    assert all(part > 0 for part, size in zip(found, sizes, strict=True) if size)
    assert sum(found) <= limit + len(sizes)
    if sum(sizes) <= limit:
        assert found == list(sizes)
