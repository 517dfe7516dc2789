from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyromq.protocol.java.properties import (
    PropertiesError,
    format_properties,
    parse_properties,
    update_properties,
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
def test_parses_like_java(text: str, expected: dict[str, str]) -> None:
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


def test_an_update_keeps_comments_order_and_other_lines() -> None:
    before = (
        b"# my broker\n"
        b"brokerName = a\n"
        b"\n"
        b"long=1,\\\n  2\n"
        b"! fileReservedTime=1\n"
        b"fileReservedTime : 48\n"
        b"other=x"
    )

    after = update_properties(before, {"fileReservedTime": "72", "long": "3", "new": "a\nb"})

    assert after == (
        b"# my broker\n"
        b"brokerName = a\n"
        b"\n"
        b"long=3\n"
        b"! fileReservedTime=1\n"
        b"fileReservedTime=72\n"
        b"other=x\n"
        b"new=a\\nb\n"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b"k=v\n"),
        (b"a=1\r\nk=2\r\n", b"a=1\r\nk=v\r\n"),
        (b"k=1\na=2\nk=3\n", b"a=2\nk=v\n"),
        (b"\xef\xbb\xbfk=1", b"\xef\xbb\xbfk=v\n"),
        ("a=é\nk=1".encode(), "a=é\nk=v\n".encode()),
        ("a=é\nk=1".encode("latin-1"), "a=é\nk=v\n".encode("latin-1")),
        (b"a=\\", b"a=\\\n\nk=v\n"),
    ],
)
def test_updates_of_odd_files(before: bytes, after: bytes) -> None:
    assert update_properties(before, {"k": "v"}) == after


@given(
    st.text(alphabet="ab=: \\#!\t\n\r\f\u00e9", max_size=40).filter(lambda text: "\\u" not in text),
    st.dictionaries(st.text(alphabet="ab= ", min_size=1, max_size=3), st.text(max_size=5)),
)
@example(":\\\r", {"=": ""})
@example("a\\\n", {"b": "1"})
def test_an_update_changes_only_the_given_keys(text: str, changes: dict[str, str]) -> None:
    data = text.encode()

    assert parse_properties(update_properties(data, changes)) == {
        **parse_properties(data),
        **parse_properties(format_properties(changes)),
    }
