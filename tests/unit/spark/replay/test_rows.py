"""What needs no engine; the rest is in tests/spark/test_replay.py."""

from __future__ import annotations

import pytest

from pyromq.spark.replay.rows import Filters, Order, Schedule, source_options


def test_a_schedule_keeps_distances() -> None:
    schedule = Schedule(origin=1000, start=50_000, pace=1.0)
    assert [schedule.time_of(stored) for stored in (1000, 1500, 900)] == [50_000, 50_500, 49_900]


def test_a_schedule_that_is_quicker() -> None:
    schedule = Schedule(origin=1000, start=50_000, pace=4.0)
    assert schedule.time_of(3000) == pytest.approx(50_500)


def test_orders_have_names_for_users() -> None:
    assert [order.value for order in Order] == ["none", "queues", "keys"]


def test_a_part_of_the_time() -> None:
    assert Filters().within(5, 9) == Filters(since=5, until=9)
    assert Filters(since=6, until=8, where="x").within(5, 9) == Filters("x", (), 6, 8)


def test_what_the_source_can_leave_out() -> None:
    assert source_options(Filters(), "UTC") == {}
    assert source_options(Filters("body is null or queueId = 1"), "UTC") == {}
    filters = Filters("queueId = 1 and flag = 2", ("paid",), since=0, until=1000)
    assert source_options(filters, "UTC") == {
        "where": "storeTimestamp >= '1970-01-01 00:00:00Z' AND "
        "storeTimestamp < '1970-01-01 00:00:01Z' AND tags IN ('paid') AND queueId = 1"
    }
