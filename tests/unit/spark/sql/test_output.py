from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row

from pyromq.spark.sql.output import Format, plain, render

COLUMNS = ["id", "body"]
ROWS: list[tuple[Any, ...]] = [(1, b"text"), (2, None), (3, b"\x00\xff"), (40, b'a "b", c\n')]


def test_a_table() -> None:
    assert list(render(COLUMNS, ROWS, Format.TABLE)) == [
        "id | body",
        "---+----------",
        "1  | text",
        "2  | NULL",
        "3  | 0x00ff",
        '40 | a "b", c',
    ]


def test_a_table_without_rows() -> None:
    assert list(render(COLUMNS, [], Format.TABLE)) == ["id | body", "---+-----"]


def test_wide_values_are_cut_in_a_table_alone() -> None:
    long = [("x" * 1000,)]
    assert len(list(render(["a"], long, Format.TABLE))[2]) == 60
    assert json.loads(next(render(["a"], long, Format.JSON))) == {"a": "x" * 1000}


def test_json_lines() -> None:
    found = [json.loads(line) for line in render(COLUMNS, ROWS, Format.JSON)]
    assert found == [
        {"id": 1, "body": "text"},
        {"id": 2, "body": None},
        {"id": 3, "body": "0x00ff"},
        {"id": 40, "body": 'a "b", c\n'},
    ]


def test_csv() -> None:
    assert list(render(COLUMNS, ROWS, Format.CSV)) == [
        "id,body",
        "1,text",
        "2,",
        "3,0x00ff",
        '40,"a ""b"", c\n"',
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            datetime(2026, 11, 16, 6, 30, tzinfo=timezone(timedelta(hours=1))),
            "2026-11-16T05:30:00.000Z",
        ),
        (datetime(2026, 11, 16, 5, 30, 0, 123456, tzinfo=UTC), "2026-11-16T05:30:00.123Z"),
        (date(2026, 11, 16), "2026-11-16"),
        (Decimal("1.50"), "1.50"),
        ({"a": b"b"}, {"a": "b"}),
        ([1, b"\x00"], [1, "0x00"]),
        (Row(a=1, b=Row(c=b"x")), {"a": 1, "b": {"c": "x"}}),
        (bytearray(b"ab"), "ab"),
        ("ü".encode(), "ü"),
        (True, True),
        (1.5, 1.5),
        (timedelta(days=1), "1 day, 0:00:00"),
    ],
)
def test_values(value: Any, expected: Any) -> None:
    assert plain(value) == expected


def test_structures_in_a_table() -> None:
    (*_, line) = render(["m"], [({"a": 1},)], Format.TABLE)
    assert line == '{"a":1}'
