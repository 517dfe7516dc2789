"""What needs no engine of a report's figures; the rest is in tests/spark/test_report.py."""

from __future__ import annotations

from pyromq.spark.columns import COLUMN_NAMES
from pyromq.spark.report.data import COLUMNS, TopicFigures, _step


def topic(first_ms: int, last_ms: int) -> TopicFigures:
    return TopicFigures("T", 1, 1, first_ms, last_ms, 0.0, 0.0, 0.0)


def test_columns_are_those_of_a_topic() -> None:
    assert set(COLUMNS) < set(COLUMN_NAMES)


def test_a_line_has_about_a_hundred_points() -> None:
    assert _step([]) == 1
    assert _step([topic(0, 10_000)]) == 1
    assert _step([topic(0, 3_600_000)]) == 30
    assert _step([topic(0, 1000), topic(500, 86_400_000)]) == 1800
    assert _step([topic(0, 10**15)]) == 10**15 // 1000 // 120
