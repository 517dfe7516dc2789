"""What needs no engine; the rest is in tests/spark/test_replay.py."""

from __future__ import annotations

import pytest

from pyromq.spark.replay_rows import Order, Schedule


def test_a_schedule_keeps_distances() -> None:
    schedule = Schedule(origin=1000, start=50_000, pace=1.0)
    assert [schedule.time_of(stored) for stored in (1000, 1500, 900)] == [50_000, 50_500, 49_900]


def test_a_schedule_that_is_quicker() -> None:
    schedule = Schedule(origin=1000, start=50_000, pace=4.0)
    assert schedule.time_of(3000) == pytest.approx(50_500)


def test_orders_have_names_for_users() -> None:
    assert [order.value for order in Order] == ["none", "queues", "keys"]
