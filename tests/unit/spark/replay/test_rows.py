"""The parts that need no Spark; the rest is in tests/spark/test_replay.py."""

from __future__ import annotations

import pytest

from pyromq.spark.replay.options import Filters
from pyromq.spark.replay.rows import Schedule, source_options


def test_a_schedule_keeps_intervals() -> None:
    schedule = Schedule(origin=1000, start=50_000, pace=1.0)
    assert [schedule.time_of(stored) for stored in (1000, 1500, 900)] == [50_000, 50_500, 49_900]


def test_a_faster_schedule() -> None:
    schedule = Schedule(origin=1000, start=50_000, pace=4.0)
    assert schedule.time_of(3000) == pytest.approx(50_500)


def test_the_source_skips_excluded_messages() -> None:
    assert source_options(Filters(), "UTC") == {}
    assert source_options(Filters("body is null or queueId = 1"), "UTC") == {}
    filters = Filters("queueId = 1 and flag = 2", ("paid",), since=0, until=1000)
    assert source_options(filters, "UTC") == {
        "where": "storeTimestamp >= '1970-01-01 00:00:00Z' AND "
        "storeTimestamp < '1970-01-01 00:00:01Z' AND tags IN ('paid') AND queueId = 1"
    }
