from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.protocol.java_properties import (
    PropertiesError,
    format_properties,
    parse_properties,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=b", {"a": "b"}),
        ("a = b\n", {"a": "b"}),
        ("a:b\r\nc d\re", {"a": "b", "c": "d", "e": ""}),
        ("  \t a\f=\tb  ", {"a": "b  "}),
        ("# x=1\n  ! y=2\nz=3", {"z": "3"}),
        ("# comment \\\nx=1", {"x": "1"}),
        ("a=1,\\\n   2,\\\r\n\t3", {"a": "1,2,3"}),
        ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
        ("a=b\\\n# not a comment", {"a": "b# not a comment"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        ("a\\=b\\:c\\ d=e", {"a=b:c d": "e"}),
        ("path=C\\:\\\\store\\tx", {"path": "C:\\store\tx"}),
        ("a==b", {"a": "=b"}),
        ("a = = b", {"a": "= b"}),
        ("a=\\u4e2d\\u6587", {"a": "中文"}),
        ("a=\\uD83D\\uDE00", {"a": "😀"}),
        ("a=\\q", {"a": "q"}),
        ("=value", {"": "value"}),
        ("a=1\na=2", {"a": "2"}),
    ],
)
def test_reads_what_java_reads(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_bytes_are_utf8_or_else_latin1() -> None:
    assert parse_properties("name=Köln".encode()) == {"name": "Köln"}
    assert parse_properties("name=Köln".encode("iso-8859-1")) == {"name": "Köln"}
    assert parse_properties(b"\xef\xbb\xbfname=x") == {"name": "x"}


@pytest.mark.parametrize("text", ["ok=1\nbad=\\u12g4", "ok=1\nbad=\\u12", "ok=1\nbad=\\u"])
def test_broken_unicode_escape_names_the_line(text: str) -> None:
    with pytest.raises(PropertiesError, match="line 2"):
        parse_properties(text)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.text()))
def test_round_trip(table: dict[str, str]) -> None:
    text = format_properties(table)
    assert text.isascii()
    assert parse_properties(text) == table


@given(st.binary())
def test_any_bytes_end_in_a_table_or_an_error(data: bytes) -> None:
    try:
        table = parse_properties(data)
    except PropertiesError:
        return
    assert all(isinstance(text, str) for pair in table.items() for text in pair)
