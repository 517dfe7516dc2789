"""SQL92 expressions: limits, causes, hostile text. Results are held against Java's in
tests/golden/test_sql.py.
"""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.protocol.filter.sql import MAX_DEPTH, MAX_LENGTH, SqlError, SqlExpression, compile_sql
from pyromq.protocol.filter.sql_values import MismatchError

WORDS = st.sampled_from(
    "a b c 5 -5 5.5 'x' '' ( ) , = <> > >= < <= + - AND OR NOT IN IS NULL BETWEEN "  # noqa: SIM905
    "TRUE FALSE -- /* */ ? ' \n".split(" ")
)


def test_a_message_is_wanted_when_the_result_is_true() -> None:
    expression = compile_sql("price > 10 AND region IN ('eu', 'us') AND note IS NULL")
    assert expression.names == {"price", "region", "note"}
    assert expression.matches({"price": "11", "region": "eu"})
    assert not expression.matches({"price": "10", "region": "eu"})
    assert not expression.matches({"price": "11", "region": "eu", "note": "x"})
    assert not expression.matches({"price": "11"})


def test_a_value_of_another_type_is_not_wanted() -> None:
    expression = compile_sql("price > 10")
    with pytest.raises(MismatchError, match="'cheap' is not an integer"):
        expression.evaluate({"price": "cheap"})
    assert not expression.matches({"price": "cheap"})


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("a >", "expected a property, a literal or (, found the end at character 4"),
        ("a = 5 AND AND", "a literal or (, found 'AND' at character 11"),
        ("a > 'x'", "'x' cannot be compared by >: only numbers can"),
        ("a = NULL", "write IS NULL"),
        ("TRUE = 5", "True cannot be compared with 5"),
        ("a BETWEEN 5 AND 1", "BETWEEN 5 AND 1: the lower bound exceeds the upper one"),
        ("a IN (5)", "expected a text in quotes, found '5' at character 7"),
        ("5 IN ('5')", "IN applies to properties, not to 5"),
        ("a NOT 5", "expected BETWEEN or IN after NOT, found '5' at character 7"),
        ("a IS 5", "expected NULL, found '5' at character 6"),
        ("5", "5 is not a condition"),
        ("a = 9223372036854775808", "does not fit 64 bits"),
        ("a = 0.0", "0.0 is not allowed"),
        ("a = ?", "unexpected '?' at character 5"),
    ],
)
def test_a_refusal_says_why(text: str, cause: str) -> None:
    with pytest.raises(SqlError, match=re.escape(cause)):
        compile_sql(text)


@pytest.mark.parametrize(
    "nested",
    [
        lambda count: "(" * count + "a = 5" + ")" * count,
        lambda count: "(a = 5 AND " * count + "TRUE" + ")" * count,
        lambda count: "TRUE OR FALSE AND a = (" * count + "a = 5" + ")" * count,
        lambda count: "a = 5" + " = TRUE" * count,
        lambda count: "NOT " * count + "TRUE",
    ],
)
def test_what_is_nested_too_deep_is_refused(nested) -> None:  # type: ignore[no-untyped-def]
    compile_sql(nested(MAX_DEPTH // 4)).evaluate({"a": "5"})
    for count in (MAX_DEPTH + 1, 600):
        with pytest.raises(SqlError, match="nested more than 100 levels deep"):
            compile_sql(nested(count))


def test_long_rows_are_not_deep() -> None:
    text = "a = 1" + " OR a = 1" * 1500 + " OR a = 5"
    assert compile_sql(text).matches({"a": "5"})
    with pytest.raises(SqlError, match=f"limit {MAX_LENGTH}"):
        compile_sql("a = 5" + " " * MAX_LENGTH)


@pytest.mark.parametrize(
    "text",
    [
        "-" * MAX_LENGTH,
        "+" * (MAX_LENGTH - 1) + "?",
        "/" + "*" * (MAX_LENGTH - 1),
        "/*" + "a*" * (MAX_LENGTH // 2 - 1),
        "'" * MAX_LENGTH,
        "9" * MAX_LENGTH,
        "0" * MAX_LENGTH,
        "a IN (" + "'x'," * (MAX_LENGTH // 4 - 2),
        "--" * 1000 + "\n" + "-" * (MAX_LENGTH - 3000),
    ],
)
def test_hostile_text_takes_no_time(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(SqlError):
        compile_sql(text)
    # Some milliseconds; with a square of the length in it, many seconds.
    assert time.process_time() - begun < 2.0


def test_a_number_that_int_refuses_is_no_match() -> None:
    for text in ("a > 5", "a = 5", "a BETWEEN 1 AND 9", "a > 3000000000", "5 < a"):
        assert not compile_sql(text).matches({"a": "9" * 5000}), text
    assert compile_sql("a > 5").matches({"a": "0" * 5000 + "9"})


def test_an_evaluation_that_fails_is_no_match() -> None:
    def fail(_: object) -> bool:
        raise ZeroDivisionError

    expression = SqlExpression("a > 5", frozenset("a"), fail)
    assert not expression.matches({"a": "6"})


@given(st.lists(WORDS, max_size=40).map(" ".join) | st.text(max_size=60))
def test_any_text_is_compiled_or_refused(text: str) -> None:
    try:
        expression = compile_sql(text)
    except SqlError:
        return
    for properties in ({}, {"a": "5", "b": "x"}, {"a": "-1", "b": "true", "c": "1.5"}):
        assert expression.matches(properties) in (True, False)
        assert all(name in text for name in expression.names)
