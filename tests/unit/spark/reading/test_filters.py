"""Queues and offsets after filters: never less than the rows that pass."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from pyromq.spark.origins.origin import Queue, QueueRange
from pyromq.spark.reading.filters import CLOCK_SLACK_MILLISECONDS, WantedRows, push
from tests.unit.spark.fake_origin import EPOCH, FakeOrigin

A0, A1, B0 = Queue("T", "a", 0), Queue("T", "a", 1), Queue("T", "b", 0)
OTHER = Queue("Other", "a", 0)
QUEUES = [OTHER, A0, A1, B0]
EVERYTHING = [QueueRange(queue, 0, 100) for queue in QUEUES]


def pruned(*filters: Filter) -> list[QueueRange]:
    wanted, _ = push(filters)
    return wanted.prune(FakeOrigin(dict.fromkeys(QUEUES, (0, 100))), EVERYTHING)


def queues(*filters: Filter) -> list[Queue]:
    return [wanted.queue for wanted in pruned(*filters)]


def left(*filters: Filter) -> list[Filter]:
    return push(filters)[1]


def stored(second: float) -> datetime:
    return datetime.fromtimestamp(EPOCH / 1000, UTC) + timedelta(seconds=second)


def test_nothing_said() -> None:
    assert pruned() == EVERYTHING


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        (EqualTo(("topic",), "T"), [A0, A1, B0]),
        (EqualNullSafe(("topic",), "Other"), [OTHER]),
        (In(("topic",), ("Other", "X", None)), [OTHER]),
        (StringStartsWith(("topic",), "Oth"), [OTHER]),
        (EqualTo(("brokerName",), "b"), [B0]),
        (EqualTo(("queueId",), 1), [A1]),
        (In(("queueId",), (0, 7)), [OTHER, A0, B0]),
        (In(("queueId",), ()), []),
        (EqualTo(("topic",), "nowhere"), []),
    ],
)
def test_queues(condition: Filter, found: list[Queue]) -> None:
    assert queues(condition) == found
    assert left(condition) == []


def test_conditions_are_taken_together() -> None:
    assert queues(EqualTo(("topic",), "T"), EqualTo(("queueId",), 0)) == [A0, B0]
    assert queues(EqualTo(("queueId",), 1), EqualTo(("queueId",), 0)) == []
    assert queues(StringStartsWith(("topic",), "T"), StringStartsWith(("topic",), "O")) == []


@pytest.mark.parametrize(
    ("condition", "start", "end"),
    [
        (EqualTo(("queueOffset",), 5), 5, 6),
        (GreaterThan(("queueOffset",), 5), 6, 100),
        (GreaterThanOrEqual(("queueOffset",), 5), 5, 100),
        (LessThan(("queueOffset",), 5), 0, 5),
        (LessThanOrEqual(("queueOffset",), 5), 0, 6),
        (In(("queueOffset",), (7, 5, 6)), 5, 8),
    ],
)
def test_offsets(condition: Filter, start: int, end: int) -> None:
    assert pruned(condition) == [QueueRange(queue, start, end) for queue in QUEUES]
    assert left(condition) == []


def test_offsets_with_gaps_are_left_to_spark_as_well() -> None:
    condition = In(("queueOffset",), (5, 9))
    assert pruned(condition)[0] == QueueRange(OTHER, 5, 10)
    assert left(condition) == [condition]


def test_no_offset_at_all() -> None:
    assert pruned(In(("queueOffset",), (None,))) == []
    assert pruned(EqualTo(("queueOffset",), 100)) == []
    assert pruned(GreaterThan(("queueOffset",), 7), LessThan(("queueOffset",), 8)) == []


def test_times_with_some_slack_and_left_to_spark() -> None:
    slack = CLOCK_SLACK_MILLISECONDS // 1000
    later = GreaterThanOrEqual(("storeTimestamp",), stored(50))
    assert pruned(later)[0] == QueueRange(OTHER, 50 - slack, 100)
    earlier = LessThan(("storeTimestamp",), stored(50))
    assert pruned(earlier)[0] == QueueRange(OTHER, 0, 50 + slack + 1)
    assert left(later, earlier) == [later, earlier]
    assert pruned(later, earlier)[0] == QueueRange(OTHER, 50 - slack, 50 + slack + 1)
    just_then = EqualTo(("storeTimestamp",), stored(50))
    assert pruned(just_then) == pruned(later, earlier)
    some = In(("storeTimestamp",), (stored(30), stored(50)))
    assert pruned(some)[0] == QueueRange(OTHER, 30 - slack, 50 + slack + 1)
    assert pruned(LessThan(("storeTimestamp",), stored(-50))) == []
    assert pruned(GreaterThan(("storeTimestamp",), stored(500))) == []


def test_tags_are_left_to_spark_as_well() -> None:
    condition = In(("tags",), ("new", "paid"))
    wanted, rest = push([condition])
    assert wanted.tags == frozenset({"new", "paid"})
    assert rest == [condition]
    assert push([condition, EqualTo(("tags",), "new")])[0].tags == frozenset({"new"})
    assert pruned(condition, EqualTo(("tags",), "other")) == []


@pytest.mark.parametrize("tag", ["", "*", "a||b", "||", " a", "a "])
def test_tags_that_cannot_be_in_an_expression(tag: str) -> None:
    assert push([EqualTo(("tags",), tag)])[0] == WantedRows()


def test_is_not_null_of_columns_that_never_are() -> None:
    assert left(IsNotNull(("topic",)), IsNotNull(("queueOffset",))) == []
    assert left(IsNotNull(("tags",)), IsNotNull(("keys",))) != []


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("body",), b"x"),
        EqualTo(("queueId",), "1"),
        EqualTo(("queueId",), True),
        EqualTo(("queueId",), 1.0),
        EqualTo(("topic",), None),
        EqualNullSafe(("topic",), None),
        EqualTo(("topic", "part"), "x"),
        Not(EqualTo(("topic",), "T")),
        StringContains(("topic",), "T"),
        GreaterThan(("queueId",), 0),
        GreaterThan(("queueOffset",), None),
        Not(GreaterThan(("queueOffset",), 1)),
        GreaterThan(("storeTimestamp",), datetime(2026, 1, 1)),
        EqualTo(("tags",), None),
        GreaterThan(("tags",), "a"),
        IsNull(("tags",)),
        EqualNullSafe(("storeTimestamp",), None),
    ],
)
def test_other_filters_are_left_to_spark(condition: Filter) -> None:
    assert pruned(condition) == EVERYTHING
    assert left(condition) == [condition]


CONDITIONS = st.one_of(
    st.builds(EqualTo, st.just(("queueOffset",)), st.integers(-5, 105)),
    st.builds(GreaterThan, st.just(("queueOffset",)), st.integers(-5, 105)),
    st.builds(LessThanOrEqual, st.just(("queueOffset",)), st.integers(-5, 105)),
    st.builds(In, st.just(("queueOffset",)), st.lists(st.integers(-5, 105)).map(tuple)),
    st.builds(EqualTo, st.just(("queueId",)), st.integers(0, 2)),
    st.builds(In, st.just(("topic",)), st.lists(st.sampled_from(["T", "Other"])).map(tuple)),
    st.builds(GreaterThan, st.just(("storeTimestamp",)), st.floats(-5, 105).map(stored)),
    st.builds(LessThan, st.just(("storeTimestamp",)), st.floats(-5, 105).map(stored)),
)


def passes(condition: Filter, queue: Queue, offset: int) -> bool:
    row = {
        "topic": queue.topic,
        "queueId": queue.queue_id,
        "queueOffset": offset,
        "storeTimestamp": stored(offset),
    }
    value = row[condition.attribute[0]]  # type: ignore[attr-defined]
    other = condition.value  # type: ignore[attr-defined]
    comparisons: dict[type, Callable[[], bool]] = {
        EqualTo: lambda: value == other,
        GreaterThan: lambda: value > other,
        LessThan: lambda: value < other,
        LessThanOrEqual: lambda: value <= other,
        In: lambda: value in other,
    }
    return comparisons[type(condition)]()


@given(st.lists(CONDITIONS, max_size=4))
def test_rows_that_pass_are_never_dropped(conditions: list[Filter]) -> None:
    found = pruned(*conditions)
    rest = left(*conditions)
    for queue in QUEUES:
        for offset in range(100):
            is_read = any(
                wanted.queue == queue and wanted.start <= offset < wanted.end for wanted in found
            )
            is_shown = is_read and all(passes(condition, queue, offset) for condition in rest)
            assert is_shown == all(passes(condition, queue, offset) for condition in conditions)
