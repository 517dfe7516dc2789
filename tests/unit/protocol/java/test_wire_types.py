from __future__ import annotations

from typing import Annotated

import pytest

from pyromq.protocol.java.wire_types import (
    INT32,
    INT64,
    Int32,
    Int64,
    Wire,
    bare_type,
    integer_range,
    parse_integer,
    shorten,
    wire_name,
    without_none,
)


@pytest.mark.parametrize(
    ("attribute", "annotation", "expected"),
    [
        ("topic", str, "topic"),
        ("queue_id", Int32, "queueId"),
        ("body_crc32", Int32, "bodyCrc32"),
        ("default_topic_queue_nums", Int32, "defaultTopicQueueNums"),
        ("client_id", Annotated[str, Wire("clientID")], "clientID"),
        ("properties", Annotated[str | None, Wire("i")], "i"),
        ("queue_id", Annotated[Int32, Wire("e")], "e"),
    ],
)
def test_wire_name(attribute: str, annotation: object, expected: str) -> None:
    assert wire_name(attribute, annotation) == expected


def test_marks_are_found_through_optional_and_nesting() -> None:
    assert integer_range(Annotated[Int32 | None, Wire("j")]) is INT32
    assert integer_range(Int64 | None) is INT64
    assert integer_range(int) is INT64
    assert bare_type(without_none(Annotated[Int32 | None, Wire("j")])) is int
    assert integer_range(without_none(Int32 | None)) is INT32


def test_a_union_of_two_types_has_no_wire_form() -> None:
    with pytest.raises(TypeError, match="no single wire form"):
        without_none(str | int)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-1", -1),
        ("+7", 7),
        ("007", 7),
        ("2147483647", 2**31 - 1),
        ("-2147483648", -(2**31)),
    ],
)
def test_parse_integer(text: str, value: int) -> None:
    assert parse_integer(text, INT32) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "+",
        "--1",
        " 1",
        "1 ",
        "1_000",
        "1.0",
        "1e3",
        "0x10",
        "٣",
        "²",
        "true",
        "1\n",
        "null",
    ],
)
def test_numbers_that_java_rejects(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        parse_integer(text, INT32)


@pytest.mark.parametrize("text", ["2147483648", "-2147483649", "9" * 30, "9" * 5000, "9" * 100_000])
def test_numbers_out_of_range(text: str) -> None:
    with pytest.raises(ValueError, match="out of range for a 32-bit integer") as raised:
        parse_integer(text, INT32)
    assert len(str(raised.value)) < 200


def test_shorten_limits_quoted_values() -> None:
    assert shorten("abc") == "'abc'"
    assert len(shorten("x" * 10_000_000)) < 100
    assert len(shorten(b"\xff" * 10_000_000)) < 100
    deep: list[object] = []
    for _ in range(2000):
        deep = [deep]
    assert shorten(deep) == "a list nested too deep"
