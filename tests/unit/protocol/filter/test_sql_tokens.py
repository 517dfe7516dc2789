"""The words of SQL92 expressions."""

from __future__ import annotations

import pytest

from pyromq.protocol.filter.sql_tokens import Kind, SqlError, Tokens


def words(text: str) -> list[tuple[Kind, str]]:
    tokens = Tokens(text)
    found: list[tuple[Kind, str]] = []
    while (token := tokens.take()).kind is not Kind.END:
        found.append((token.kind, token.value))
    return found


def test_words() -> None:
    assert words("a1>=5L anD _b <>'it''s'\n-- c\n/* * */( .5e-3)") == [
        (Kind.NAME, "a1"),
        (Kind.OPERATOR, ">="),
        (Kind.INTEGER, "5L"),
        (Kind.KEYWORD, "AND"),
        (Kind.NAME, "_b"),
        (Kind.OPERATOR, "<>"),
        (Kind.TEXT, "it's"),
        (Kind.OPERATOR, "("),
        (Kind.FLOAT, ".5e-3"),
        (Kind.OPERATOR, ")"),
    ]


def test_the_longest_word_wins() -> None:
    assert [value for _, value in words("007")] == ["0", "0", "7"]
    assert words("nothing")[0] == (Kind.NAME, "nothing")
    assert [value for _, value in words("5e 5e1")] == ["5", "e", "5e1"]
    # A comment ends with its line: on the last line there is none.
    assert [value for _, value in words("a--b")] == ["a", "-", "-", "b"]


def test_nothing_is_read_before_it_is_looked_at() -> None:
    tokens = Tokens("a = ?")
    assert tokens.take().value == "a"
    assert tokens.take_if("<", "=") == "="
    with pytest.raises(SqlError, match="at character 5"):
        tokens.peek()


def test_what_is_expected_is_named() -> None:
    tokens = Tokens("a")
    assert tokens.take_if("a") is None, "a name is no keyword"
    with pytest.raises(SqlError, match="expected NULL, found 'a' at character 1"):
        tokens.expect("NULL")
    tokens.take()
    with pytest.raises(SqlError, match="found the end at character 2"):
        tokens.expect(")")


@pytest.mark.parametrize("text", ["'x", "?", "/* x", "\u00e4", "\u212a"])
def test_what_is_no_word(text: str) -> None:
    with pytest.raises(SqlError, match="unexpected"):
        words(text)
