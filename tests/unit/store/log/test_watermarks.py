"""The marks of the commit log keep their order."""

from __future__ import annotations

import pytest

from pyromq.store.log.watermarks import Watermarks


def test_everything_begins_at_zero() -> None:
    marks = Watermarks()
    assert (marks.written, marks.committed, marks.flushed) == (0, 0, 0)
    assert (marks.written_timestamp, marks.flushed_timestamp) == (0, 0)


def test_what_recovery_found_is_written_and_flushed() -> None:
    marks = Watermarks()
    marks.reset(4711)
    assert (marks.written, marks.committed, marks.flushed) == (4711, 4711, 4711)


def test_flushed_follows_written() -> None:
    marks = Watermarks()
    marks.move_written(100, 9)
    marks.move_flushed(50, 7)
    marks.move_flushed(100, 8)
    marks.move_flushed(100, 8)
    assert (marks.flushed, marks.flushed_timestamp) == (100, 8)


@pytest.mark.parametrize("offset", [49, 101])
def test_flushed_never_goes_back_nor_past_written(offset: int) -> None:
    marks = Watermarks()
    marks.move_written(100, 9)
    marks.move_flushed(50, 7)
    with pytest.raises(AssertionError):
        marks.move_flushed(offset, 8)
    assert marks.flushed == 50


@pytest.mark.parametrize(("has_pool", "limit"), [(False, 100), (True, 60)])
def test_flushed_stops_at_committed_only_with_a_pool(has_pool: bool, limit: int) -> None:
    marks = Watermarks(has_pool=has_pool)
    marks.move_written(100, 9)
    marks.move_committed(60, 8)
    with pytest.raises(AssertionError):
        marks.move_flushed(limit + 1, 8)
    marks.move_flushed(limit, 8)
    assert marks.flushed == limit


def test_written_never_goes_back() -> None:
    marks = Watermarks()
    marks.move_written(100, 9)
    with pytest.raises(AssertionError):
        marks.move_written(99, 10)
    assert (marks.written, marks.written_timestamp) == (100, 9)


def test_committed_follows_written() -> None:
    marks = Watermarks()
    marks.move_written(100, 9)
    marks.move_committed(50, 7)
    marks.move_committed(100, 8)
    assert (marks.committed, marks.committed_timestamp, marks.flushed) == (100, 8, 0)


@pytest.mark.parametrize("offset", [49, 101])
def test_committed_never_goes_back_nor_past_written(offset: int) -> None:
    marks = Watermarks()
    marks.move_written(100, 9)
    marks.move_committed(50, 7)
    with pytest.raises(AssertionError):
        marks.move_committed(offset, 8)
    assert marks.committed == 50
