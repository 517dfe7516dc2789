"""Which parts of a condition the source applies, and that the rest is unchanged."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from pyromq.spark.reading.conditions import (
    EVERYTHING,
    ConditionError,
    options_for,
    parse_where,
    stored_condition,
)
from tests.support.each import for_each

TIME = datetime(2026, 11, 16, 8, 30, tzinfo=UTC)

UNDERSTOOD: list[tuple[str, list[Filter]]] = [
    ("queueId = 1", [EqualTo(("queueId",), 1)]),
    ("QUEUEID == 1", [EqualTo(("queueId",), 1)]),
    ("`queueId` <=> 1", [EqualTo(("queueId",), 1)]),
    ("((queueId=1))", [EqualTo(("queueId",), 1)]),
    ("1 = queueId", [EqualTo(("queueId",), 1)]),
    ("500 <= queueOffset", [GreaterThanOrEqual(("queueOffset",), 500)]),
    ("queueOffset = 5L", [EqualTo(("queueOffset",), 5)]),
    ("queueOffset > -1", [GreaterThan(("queueOffset",), -1)]),
    ("queueId in (1, 3)", [In(("queueId",), (1, 3))]),
    ("topic = 'Orders'", [EqualTo(("topic",), "Orders")]),
    ("brokerName IN ('a','b')", [In(("brokerName",), ("a", "b"))]),
    ("tags = 'paid'", [EqualTo(("tags",), "paid")]),
    ("queueId is not null", [IsNotNull(("queueId",))]),
    (
        "queueOffset between 5 and 9",
        [GreaterThanOrEqual(("queueOffset",), 5), LessThanOrEqual(("queueOffset",), 9)],
    ),
    ("storeTimestamp < '2026-11-16 08:30:00Z'", [LessThan(("storeTimestamp",), TIME)]),
    ("storeTimestamp < '2026-11-16T10:30+02:00'", [LessThan(("storeTimestamp",), TIME)]),
    ("storeTimestamp < timestamp'2026-11-16 08:30:00.0Z'", [LessThan(("storeTimestamp",), TIME)]),
    ("storeTimestamp < timestamp '2026-11-16 08:30 UTC'", [LessThan(("storeTimestamp",), TIME)]),
]

LEFT = [
    "queueId = 1 OR queueId = 2",
    "queueId = 1 AND queueOffset > 5 OR tags = 'x'",
    "NOT queueId = 1",
    "queueId <> 1",
    "queueId != 1",
    "queueId > 1",
    "queueId = '1'",
    "queueId = 1.0",
    "queueId = 1S",
    "queueId = 1 + 1",
    "queueId = 1 = true",
    "queueId = bodyLength",
    "queueId in (1, null)",
    "queueId in (select 1)",
    "queueId not in (1)",
    "queueId",
    "1",
    "queueId =",
    "= 1",
    "queueOffset in (1, 5)",
    "queueOffset = 99999999999999999999999",
    f"queueOffset < {'9' * 5000}",
    "queueOffset not between 5 and 9",
    "abs(queueId) = 1",
    "orders.queueId = 1",
    "tags = 'it\\'s'",
    "tags = 'it''s'",
    'tags = "paid"',
    "tags = 'paid' collate UTF8_LCASE",
    "tags = 'a' 'b'",
    "tags = r'a'",
    "tags = ''",
    "tags = '*'",
    "tags = 'a || b'",
    "tags is not null",
    "tags like 'p%'",
    "storeTimestamp < '2026-11-16 08:30:00'",
    "storeTimestamp < '20261116'",
    "storeTimestamp < '2026-13-16Z'",
    "storeTimestamp < 1700000000",
    "storeTimestamp < current_timestamp()",
    "case when queueId = 1 then true else false end",
    "exists(array(1), x -> x = 1 and true)",
    "(queueId = 1",
    "queueId = 1 AND",
    "AND queueId = 1",
    "queueId = 1 AND () AND queueId = 2",
    "queueId = 1)",
    "end = 1",
    "queueId = 1 -- and more",
    "queueId = 1 /* and */",
    "queueId = 'open",
]


@for_each("case", UNDERSTOOD)
def test_comparisons_with_constants(case: tuple[str, list[Filter]]) -> None:
    text, filters = case
    assert list(parse_where(text)) == filters
    narrowed = options_for(text)
    assert narrowed.condition == EVERYTHING
    # The text of the filters parses to the same filters.
    assert list(parse_where(narrowed.options["where"])) == filters


@for_each("text", LEFT)
def test_everything_else_is_left_to_spark(text: str) -> None:
    narrowed = options_for(text)
    assert narrowed.options == {}
    assert narrowed.condition in (text, f"({text})")
    with pytest.raises(ConditionError):
        parse_where(text)


def test_a_condition_in_two_parts() -> None:
    narrowed = options_for(
        "queueId = 1 AND (queueOffset >= 500 AND keys LIKE 'a%') AND (tags = 'x' OR flag = 1) "
        "AND NOT flag BETWEEN 1 AND 2 AND storeTimestamp >= '2026-11-16 08:30:00Z'"
    )
    assert narrowed.options == {
        "where": "queueId = 1 AND queueOffset >= 500 AND storeTimestamp >= '2026-11-16 08:30:00Z'"
    }
    assert (
        narrowed.condition
        == "keys LIKE 'a%' AND (tags = 'x' OR flag = 1) AND NOT flag BETWEEN 1 AND 2"
    )


def test_an_empty_condition() -> None:
    assert options_for("  ") == ({}, EVERYTHING)


def test_times_in_a_given_zone() -> None:
    text = "storeTimestamp >= '2026-11-16 09:30:00' and storeTimestamp < '2026-11-17'"
    assert options_for(text).options == {}
    assert options_for(text, time_zone="Europe/Berlin") == (
        {
            "where": "storeTimestamp >= '2026-11-16 08:30:00Z' "
            "AND storeTimestamp < '2026-11-16 23:00:00Z'"
        },
        EVERYTHING,
    )


def test_a_zone_that_python_does_not_know_changes_nothing() -> None:
    text = "storeTimestamp < '2026-11-17'"
    for zone in ("GMT+8", "Mars/Olympus", "Europe", "../UTC"):
        assert options_for(text, time_zone=zone) == ({}, text)


def test_conditions_on_what_is_stored() -> None:
    assert stored_condition() == ""
    condition = stored_condition(1_794_817_800_001, 1_794_817_801_000, ("a", "b"))
    low, high, tags = parse_where(condition)
    assert low == GreaterThanOrEqual(
        ("storeTimestamp",), datetime(2026, 11, 16, 8, 30, 0, 1000, tzinfo=UTC)
    )
    assert high == LessThan(("storeTimestamp",), datetime(2026, 11, 16, 8, 30, 1, tzinfo=UTC))
    assert tags == In(("tags",), ("a", "b"))
    # Tags that would need escapes are dropped.
    assert stored_condition(tags=("a", "it's")) == ""


def test_conditions_from_spark_plans() -> None:
    text = (
        "((((t.queueId IS NOT NULL) AND (`t`.queueId = 1)) AND (spark_catalog.x.queueOffset > 7L)) "
        "AND contains(CAST(t.body AS STRING), 't.queueId = 2'))"
    )
    assert options_for(text).options == {}
    assert options_for(text, qualified=True).options == {
        "where": "queueId IS NOT NULL AND queueId = 1 AND queueOffset > 7"
    }


def test_the_error_names_the_part() -> None:
    with pytest.raises(ConditionError, match="the source cannot apply 'flag = 1'"):
        parse_where("queueId = 1 and flag = 1")
