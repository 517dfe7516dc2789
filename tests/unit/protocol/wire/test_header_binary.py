"""Binary headers: byte for byte, and with every kind of wrong length."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.protocol.wire import header_binary
from pyromq.protocol.wire.codes import LanguageCode
from pyromq.protocol.wire.header_binary import MAX_KEY, DecodeError

FIXED = bytes.fromhex("0136 00 0197 00000009 00000002")
#: code 310, JAVA, 407, opaque 9, flag 2, remark "ab", extFields k=v and an empty pair
SAMPLE = (
    FIXED
    + bytes.fromhex("00000002")
    + b"ab"
    + bytes.fromhex("0000000e 0001")
    + b"k"
    + bytes.fromhex("00000001")
    + b"v"
    + bytes.fromhex("0000 00000000")
)
HEADER = {
    "code": 310,
    "language": "JAVA",
    "version": 407,
    "opaque": 9,
    "flag": 2,
    "remark": "ab",
    "extFields": {"k": "v", "": ""},
}

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
integers = st.integers(-0x80000000, 0x7FFFFFFF)
shorts = st.integers(-0x8000, 0x7FFF)


def encode(remark: str | None = None, ext_fields: dict[str, str] | None = None) -> bytes:
    return header_binary.encode(310, LanguageCode.JAVA, 407, 9, 2, remark, ext_fields or {})


def test_bytes() -> None:
    assert encode("ab", {"k": "v", "": ""}) == SAMPLE
    assert header_binary.decode(SAMPLE) == HEADER


def test_fixed_fields_only() -> None:
    assert encode() == FIXED + bytes(8)
    header = header_binary.decode(FIXED + bytes(8))
    assert header["extFields"] == {}
    assert "remark" not in header


@given(
    shorts,
    st.sampled_from(LanguageCode),
    shorts,
    integers,
    integers,
    text.filter(bool),
    st.dictionaries(text, text, max_size=6),
)
def test_round_trip(
    code: int,
    language: LanguageCode,
    version: int,
    opaque: int,
    flag: int,
    remark: str,
    ext_fields: dict[str, str],
) -> None:
    data = header_binary.encode(code, language, version, opaque, flag, remark, ext_fields)
    assert header_binary.decode(data) == {
        "code": code,
        "language": language.name,
        "version": version,
        "opaque": opaque,
        "flag": flag,
        "remark": remark,
        "extFields": ext_fields,
    }


@pytest.mark.parametrize(
    "ext_fields",
    [
        {"a": "x", "b": "", "n": "v" * 300},
        {"a": "größe", "b": "标签 😀", "c": "plain"},
        {"é": "x", "a": "y"},
        {"a": "x", "topic": "T", "b": "y"},
        {"topic": "größe", "größe": "T", "": "x", "z": ""},
        {"a": "\x7f", "\x7f": "\x80", "\x80": "\xff"},
    ],
    ids=ascii,
)
def test_names_of_one_letter_and_longer_ones(ext_fields: dict[str, str]) -> None:
    data = encode(ext_fields=ext_fields)
    assert header_binary.decode(data)["extFields"] == ext_fields
    assert header_binary.decode(data + b"ignored")["extFields"] == ext_fields


def test_the_last_of_two_equal_names_wins() -> None:
    fields = bytes.fromhex("0001 61 00000001 78  0001 61 00000001 79")
    data = FIXED + bytes(4) + struct.pack(">i", len(fields)) + fields
    assert header_binary.decode(data)["extFields"] == {"a": "y"}


def test_pieces() -> None:
    data = encode(ext_fields={"k": "VALUE", "fixed": "f", "l": "OTHER"})
    before_opaque, before_length, before_value, before_other, end = header_binary.pieces(
        data, ["VALUE", "OTHER"]
    )
    fields = (
        before_value
        + header_binary.pack_int(1)
        + b"1"
        + before_other
        + header_binary.pack_int(2)
        + b"22"
        + end
    )
    joined = (
        before_opaque
        + header_binary.pack_int(-5)
        + before_length
        + header_binary.pack_int(len(fields))
        + fields
    )
    header = header_binary.decode(joined)
    assert header["opaque"] == -5
    assert header["extFields"] == {"k": "1", "fixed": "f", "l": "22"}


def test_every_truncation_is_an_error() -> None:
    for length in range(len(SAMPLE)):
        with pytest.raises(DecodeError):
            header_binary.decode(SAMPLE[:length])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_header_or_a_decode_error(data: bytes) -> None:
    for header in (data, FIXED + data, FIXED + bytes(4) + struct.pack(">i", len(data)) + data):
        try:
            header_binary.decode(header)
        except DecodeError as error:
            assert str(error)  # noqa: PT017


@given(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255))
def test_any_changed_byte_is_a_header_or_a_decode_error(position: int, value: int) -> None:
    changed = bytearray(SAMPLE)
    changed[position] = value
    try:
        header_binary.decode(bytes(changed))
    except DecodeError as error:
        assert str(error)  # noqa: PT017


@pytest.mark.parametrize("length", [-1, -0x80000000, 3, 0x7FFFFFFF])
def test_wrong_length_of_a_remark(length: int) -> None:
    with pytest.raises(DecodeError, match=f"block of {length} bytes at 13"):
        header_binary.decode(FIXED + struct.pack(">i", length) + b"ab")


@pytest.mark.parametrize("length", [-1, 2, 0x7FFFFFFF])
def test_wrong_length_of_fields(length: int) -> None:
    with pytest.raises(DecodeError, match=f"block of {length} bytes at 17"):
        header_binary.decode(FIXED + bytes(4) + struct.pack(">i", length) + b"x")


@pytest.mark.parametrize("length", [-1, -0x8000, 2, 0x7FFF])
def test_wrong_length_of_a_name(length: int) -> None:
    fields = struct.pack(">h", length) + b"k"
    data = FIXED + bytes(4) + struct.pack(">i", len(fields)) + fields
    with pytest.raises(DecodeError, match=f"extField name of {length} bytes"):
        header_binary.decode(data)


@pytest.mark.parametrize("length", [-1, 2, 0x7FFFFFFF])
def test_wrong_length_of_a_value(length: int) -> None:
    fields = struct.pack(">h", 1) + b"k" + struct.pack(">i", length) + b"v"
    data = FIXED + bytes(4) + struct.pack(">i", len(fields)) + fields
    with pytest.raises(DecodeError, match=f"block of {length} bytes"):
        header_binary.decode(data)


def test_value_may_not_exceed_its_block() -> None:
    fields = struct.pack(">h", 1) + b"k" + struct.pack(">i", 5) + b"v"
    data = FIXED + bytes(4) + struct.pack(">i", len(fields)) + fields + b"more than enough"
    with pytest.raises(DecodeError, match="block of 5 bytes"):
        header_binary.decode(data)


@pytest.mark.parametrize("place", ["remark", "name", "value"])
def test_text_that_is_not_utf8(place: str) -> None:
    bad, good = b"\xff", b"g"
    remark = bad if place == "remark" else good
    name = bad if place == "name" else good
    value = bad if place == "value" else good
    fields = struct.pack(">h", 1) + name + struct.pack(">i", 1) + value
    data = FIXED + struct.pack(">i", 1) + remark + struct.pack(">i", len(fields)) + fields
    with pytest.raises(DecodeError, match="utf-8"):
        header_binary.decode(data)


def test_unknown_language_is_other() -> None:
    data = bytearray(SAMPLE)
    data[2] = 200
    assert header_binary.decode(bytes(data))["language"] == "OTHER"


def test_name_at_and_above_the_limit() -> None:
    name = "k" * MAX_KEY
    assert header_binary.decode(encode(ext_fields={name: "v"}))["extFields"] == {name: "v"}
    with pytest.raises(ValueError, match="extField name of 32768 bytes"):
        encode(ext_fields={name + "k": "v"})
    with pytest.raises(ValueError, match="extField name of 32769 bytes"):
        encode(ext_fields={"\u20ac" * 10923: "v"})


@pytest.mark.parametrize(
    ("code", "version", "opaque", "flag"),
    [(0x8000, 0, 0, 0), (0, -0x8001, 0, 0), (0, 0, 0x80000000, 0), (0, 0, 0, -0x80000001)],
)
def test_numbers_that_do_not_fit(code: int, version: int, opaque: int, flag: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        header_binary.encode(code, LanguageCode.JAVA, version, opaque, flag, None, {})


def test_pieces_of_a_header_with_a_remark() -> None:
    data = encode(remark="FOUND", ext_fields={"k": "VALUE"})
    pieces = header_binary.pieces(data, ["VALUE"])
    assert b"FOUND" in pieces[1]
    assert pieces[2:] == [b"\0\1k", b""]
