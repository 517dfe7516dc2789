"""Tag expressions and their filters."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.protocol.filter.tags import (
    SubscriptionError,
    TagFilter,
    is_tag_type,
    parse_tags,
    raw_tags_codes,
    text_tags_codes,
)
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.properties import decode_properties


def wants(tag_filter: TagFilter, tags: str) -> bool:
    def read(offset: int, size: int) -> bytes:
        raise AssertionError("the tags decide without a record")

    return tag_filter.matches(java_hash(tags), 0, 100, read)


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_all_messages(expression: str | None) -> None:
    assert parse_tags(expression) == frozenset()
    assert TagFilter.of(expression) is None


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("a", {"a"}),
        ("a||b", {"a", "b"}),
        (" a ||\tb\n", {"a", "b"}),
        ("a||a", {"a"}),
        ("||a||", {"a"}),
        ("a|b", {"a|b"}),
        ("a|||b", {"a", "|b"}),
        ("*||a", {"*", "a"}),
        ("a b", {"a b"}),
        # Java's trim keeps non-ASCII white space and removes control characters.
        ("\u3000a\u00a0||\x00\x1fb\x01", {"\u3000a\u00a0", "b"}),
    ],
    ids=lambda value: ascii(sorted(value) if isinstance(value, set) else value),
)
def test_tags_of_an_expression(expression: str, tags: set[str]) -> None:
    assert parse_tags(expression) == tags


@pytest.mark.parametrize("expression", ["||", " ", " || ", "||||", "\x00"])
def test_expression_without_tags(expression: str) -> None:
    with pytest.raises(SubscriptionError, match="has no tags"):
        TagFilter.of(expression)


def test_error_is_short() -> None:
    with pytest.raises(SubscriptionError) as info:
        parse_tags("||" * 1_000_000)
    assert len(str(info.value)) < 200


def test_filter() -> None:
    tag_filter = TagFilter.of("tagA || \u20ac")
    assert tag_filter is not None
    assert wants(tag_filter, "tagA")
    assert wants(tag_filter, "\u20ac")
    assert not wants(tag_filter, "tagB")
    assert not wants(tag_filter, "")


def test_tags_of_the_same_hash_both_pass() -> None:
    tag_filter = TagFilter.of("Aa")
    assert tag_filter is not None
    assert wants(tag_filter, "BB")


def test_negative_hashes_match_entries() -> None:
    tags = "negative tag"
    code = java_hash("polygenelubricants")
    assert code == -(2**31)
    assert TagFilter([code]).matches(code, 0, 1, lambda _offset, _size: b"")
    assert not TagFilter([code]).matches(java_hash(tags), 0, 1, lambda _offset, _size: b"")


@given(st.text(max_size=50))
def test_any_expression_is_a_filter_or_an_error(expression: str) -> None:
    try:
        tags = parse_tags(expression)
    except SubscriptionError:
        return
    assert "" not in tags
    assert all("||" not in tag for tag in tags)


@pytest.mark.parametrize(
    ("expression_type", "expected"),
    [(None, True), ("", True), ("TAG", True), ("SQL92", False), ("tag", False)],
)
def test_kinds_of_expressions(expression_type: str | None, expected: bool) -> None:
    assert is_tag_type(expression_type) is expected


PIECES = st.sampled_from(
    ["TAGS", "\x01", "\x02", "a", "X", "é", "KEYS", "TAGS\x01", "\x02TAGS\x01"]
)


@given(st.lists(PIECES, max_size=12).map("".join))
def test_tags_equal_those_of_decoded_properties(text: str) -> None:
    text_codes, raw_codes = text_tags_codes(), raw_tags_codes()
    expected = java_hash(decode_properties(text).get("TAGS", ""))
    for _ in range(2):
        assert text_codes.find(text) == raw_codes.find(text.encode()) == expected


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("TAGS\x01a", "a"),
        ("TAGS\x01a\x02KEYS\x01k", "a"),
        ("KEYS\x01k\x02TAGS\x01a\x02UNIQ_KEY\x01u", "a"),
        ("KEYS\x01k\x02TAGS\x01a\x02", "a"),
        ("KEYS\x01k\x02TAGS\x01grün 标签 😀\x02UNIQ_KEY\x01u", "grün 标签 😀"),
        # The last one with a value wins.
        ("TAGS\x01a\x02TAGS\x01b\x02K\x01k", "b"),
        ("TAGS\x01a\x02TAGS\x01\x02K\x01k", "a"),
        ("TAGS\x01", ""),
        ("TAGS\x01\x02K\x01k", ""),
        # Inside another name or value, or without a name.
        ("xTAGS\x01a", ""),
        ("TAGS\x01a\x02xTAGS\x01b", "a"),
        ("TAGS\x01a\x02K\x01TAGS\x01b", "a"),
        ("\x01TAGS\x01a", ""),
        ("TAGS\x01a\x01b\x02K\x01k", "a\x01b"),
        ("a", ""),
        ("", ""),
    ],
    ids=ascii,
)
def test_tags_anywhere(text: str, tags: str) -> None:
    assert decode_properties(text).get("TAGS", "") == tags
    text_codes, raw_codes = text_tags_codes(), raw_tags_codes()
    # All of these tags are cached: a cached hash must not be taken for another property's.
    for known in ("a", "b", "k", "TAGS\x01b"):
        text_codes.find(f"TAGS\x01{known}")
        raw_codes.find(f"TAGS\x01{known}".encode())
    for _ in range(2):
        assert text_codes.find(text) == raw_codes.find(text.encode()) == java_hash(tags)


def test_tags_that_are_not_utf8_hash_as_in_java() -> None:
    assert raw_tags_codes().find(b"TAGS\x01\xff\x02a\x01b") == java_hash("\ufffd")


@pytest.mark.parametrize("piece", ["xTAGS\x01", "TAGS\x01\x02", "\x02TAGS\x01\x02"])
def test_many_empty_tags_take_linear_time(piece: str) -> None:
    text = piece * (32_000 // len(piece))
    begun = time.process_time()
    for _ in range(20):
        assert text_tags_codes().find(text) == java_hash(decode_properties(text).get("TAGS", ""))
    assert time.process_time() - begun < 2.0
