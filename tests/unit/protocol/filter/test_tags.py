"""Tag expressions and the filter that they make."""

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
        # Java's trim leaves spaces alone that are not ASCII's, and takes control characters.
        ("\u3000a\u00a0||\x00\x1fb\x01", {"\u3000a\u00a0", "b"}),
    ],
    ids=lambda value: ascii(sorted(value) if isinstance(value, set) else value),
)
def test_tags_of_an_expression(expression: str, tags: set[str]) -> None:
    assert parse_tags(expression) == tags


@pytest.mark.parametrize("expression", ["||", " ", " || ", "||||", "\x00"])
def test_expression_that_names_no_tag(expression: str) -> None:
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


def test_negative_hashes_are_those_of_the_entries() -> None:
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
def test_tags_are_found_as_if_all_properties_were_decoded(text: str) -> None:
    text_codes, raw_codes = text_tags_codes(), raw_tags_codes()
    expected = java_hash(decode_properties(text).get("TAGS", ""))
    for _ in range(2):
        assert text_codes.find(text) == raw_codes.find(text.encode()) == expected
        last = text.rpartition("\x02")[2]
        assert text_codes.by_last_property.get(last, expected) == expected


def test_tags_that_are_no_utf8_have_java_s_hash() -> None:
    assert raw_tags_codes().find(b"TAGS\x01\xff\x02a\x01b") == java_hash("\ufffd")


@pytest.mark.parametrize("piece", ["xTAGS\x01", "TAGS\x01\x02", "\x02TAGS\x01\x02"])
def test_many_tags_that_are_none_take_no_time(piece: str) -> None:
    text = piece * (32_000 // len(piece))
    begun = time.process_time()
    for _ in range(20):
        assert text_tags_codes().find(text) == java_hash(decode_properties(text).get("TAGS", ""))
    assert time.process_time() - begun < 2.0
