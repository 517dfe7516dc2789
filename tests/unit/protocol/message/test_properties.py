"""Message properties: pieces, separators in odd places, text that is none."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.protocol.message.properties import (
    TAGS_START,
    WAIT_TRUE,
    PropertyPicker,
    decode_properties,
    encode_properties,
    property_pattern,
)

words = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"),
    min_size=1,
    max_size=20,
)


@given(st.dictionaries(words, words, max_size=8))
def test_round_trip(properties: dict[str, str]) -> None:
    encoded = encode_properties(properties)
    assert decode_properties(encoded) == properties
    assert decode_properties(encoded + b"\x02") == properties
    assert decode_properties(encoded.decode()) == properties


def test_bytes() -> None:
    assert encode_properties({}) == b""
    assert encode_properties({"KEYS": "a b", "T": "\u20ac"}) == b"KEYS\x01a b\x02T\x01\xe2\x82\xac"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("\x02\x02\x02", {}),
        ("\x01", {}),
        ("\x01value", {}),
        ("name\x01", {}),
        ("name\x01\x02other\x01x", {"other": "x"}),
        ("no separator", {}),
        ("none\x02a\x01b", {"a": "b"}),
        ("a\x01b\x01c", {"a": "b\x01c"}),
        ("a\x011\x02a\x012", {"a": "2"}),
        ("a\x01 \x02 \x01b", {"a": " ", " ": "b"}),
    ],
    ids=ascii,
)
def test_pieces(text: str, expected: dict[str, str]) -> None:
    assert decode_properties(text) == expected
    assert decode_properties(text.encode()) == expected


def test_bytes_that_are_no_utf8() -> None:
    assert decode_properties(b"a\x01\xff\x02\xfe\x01b") == {"a": "\ufffd", "\ufffd": "b"}
    assert decode_properties(memoryview(b"a\x01b")) == {"a": "b"}  # type: ignore[arg-type]


def test_what_is_neither_text_nor_bytes() -> None:
    # `bytes(number)` would be that many zeros.
    with pytest.raises(TypeError):
        decode_properties(10**18)  # type: ignore[arg-type]


@given(st.binary(max_size=200))
def test_any_bytes_are_properties(data: bytes) -> None:
    properties = decode_properties(data)
    assert all(properties)
    assert all(properties.values())
    assert decode_properties(encode_properties(properties)) == properties


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "ab", "b", "", "\xe4", "TAGS"]), st.text("ab\x01\xe4", max_size=3)
        )
        | st.just(("a", "")),
        max_size=8,
    ),
    st.binary(max_size=4),
)
def test_picked_properties_are_the_decoded_ones(
    pieces: list[tuple[str, str]], rubbish: bytes
) -> None:
    raw = "\x02".join(f"{name}\x01{value}" for name, value in pieces).encode() + rubbish
    properties = decode_properties(raw)
    names = ["a", "b", "TAGS", "missing"]
    picked = PropertyPicker(names).pick(raw)
    assert picked == {name: properties[name] for name in names if name in properties}


def test_pattern_matches_whole_properties_only() -> None:
    pattern = property_pattern(["A", "B.C"])
    text = "A\x011\x02XA\x012\x02BxC\x013\x02B.C\x014\x02D\x01A"
    assert re.sub(pattern, "", text) == "\x02XA\x012\x02BxC\x013\x02D\x01A"


def test_starts_are_names_and_a_separator() -> None:
    assert TAGS_START == "TAGS\x01"
    assert WAIT_TRUE == "WAIT\x01true"
