"""Numbers and comparisons equal those of Java."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest

from pyromq.protocol.filter import sql_values
from pyromq.protocol.filter.sql_values import (
    MismatchError,
    Type,
    compare_doubles,
    comparison,
    read_boolean,
    read_double,
    read_integer,
    read_long,
)


def test_integers() -> None:
    assert read_integer("+2147483647") == 2**31 - 1
    assert read_integer("-2147483648") == -(2**31)
    assert read_integer("\u0665") == 5
    assert read_long("9223372036854775807") == 2**63 - 1
    for text in ("2147483648", "", " 5", "5 ", "5_0", "5.0", "\U0001d7d3", "+", "0x5"):
        with pytest.raises(MismatchError):
            read_integer(text)
    with pytest.raises(MismatchError):
        read_long("9223372036854775808")


@pytest.mark.parametrize("read", [read_integer, read_long])
@pytest.mark.parametrize("zero", ["0", "\u0660"])
def test_integers_of_any_length(read: Callable[[str], int], zero: str) -> None:
    assert read("-" + zero * 20_000 + "17") == -17
    assert read(zero * 20_000) == 0
    for text in (
        zero * 20_000 + "9" * 20,
        "1" + zero * 20_000,
        "+" + "9" * 30_000,
        zero * 99 + "x",
    ):
        with pytest.raises(MismatchError):
            read(text)


@pytest.mark.parametrize(
    "text",
    [start + "1" * 32_000 + "x" for start in ("", "-", ".", "1.", "1e", "0x", "0x1.", "0x1p")],
)
def test_near_doubles_are_parsed_in_linear_time(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(MismatchError):
        read_double(text)
    # Takes less than a millisecond; with a backtracking pattern, half a minute.
    assert time.process_time() - begun < 2.0


def test_a_long_number_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "0." + "1" * 30_000
    assert read_double(text) == read_double(text[:100])
    monkeypatch.setattr(sql_values, "_DOUBLE", None)
    assert read_double(text) == 1 / 9


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5.0),
        (" 5.5d\n", 5.5),
        (".5F", 0.5),
        ("1e999", math.inf),
        ("-Infinity", -math.inf),
        ("0x1p3", 8.0),
        ("-0x1p99999", -math.inf),
        ("0x.8P1f", 1.0),
        ("5.", 5.0),
    ],
)
def test_doubles(text: str, value: float) -> None:
    assert read_double(text) == value


@pytest.mark.parametrize(
    "text", ["", ".", "nan", "NaNd", "Infinityf", "0x5", "1_0", "\u0665", "5L"]
)
def test_invalid_doubles(text: str) -> None:
    with pytest.raises(MismatchError):
        read_double(text)


def test_doubles_have_a_total_order() -> None:
    order = [-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan]
    for first, one in enumerate(order):
        for second, other in enumerate(order):
            expected = (first > second) - (first < second)
            assert compare_doubles(one, other) == expected, (one, other)


def test_booleans() -> None:
    assert read_boolean("TrUe")
    assert not read_boolean("yes")


def test_comparisons_by_type() -> None:
    assert comparison(Type.LONG, Type.DOUBLE, by_order=False)(2**53 + 1, float(2**53)) == 0
    assert comparison(Type.LONG, Type.INTEGER, by_order=True)(2**53 + 1, 5) == 1
    assert comparison(Type.STRING, Type.STRING, by_order=True)("10", "9") == 1
    assert comparison(Type.STRING, Type.STRING, by_order=False)("5", "5.0") != 0
    assert comparison(Type.STRING, Type.DOUBLE, by_order=False)("5", 5.0) == 0
    assert comparison(Type.INTEGER, Type.STRING, by_order=True)(5, "6") == -1
    assert comparison(Type.STRING, Type.BOOLEAN, by_order=False)("TRUE", True) == 0
    assert comparison(Type.BOOLEAN, Type.INTEGER, by_order=False)(True, 1) != 0
    with pytest.raises(MismatchError):
        comparison(Type.BOOLEAN, Type.STRING, by_order=False)(True, "true")
    with pytest.raises(MismatchError):
        comparison(Type.STRING, Type.STRING, by_order=True)("x", "5")
