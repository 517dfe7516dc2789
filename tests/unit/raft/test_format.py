from __future__ import annotations

import struct

import numpy as np
import pytest

from pyromq.raft import format as layout
from pyromq.raft.format import (
    CheckpointText,
    Columns,
    FormatError,
    Place,
    Truncation,
    Vote,
    decode_checkpoint,
    decode_columns,
    decode_header,
    decode_truncation,
    decode_unit,
    decode_units,
    decode_vote,
    encode_blank,
    encode_checkpoint,
    encode_truncation,
    encode_units,
    encode_vote,
    is_blank,
    join_entries,
)

#: By the reference's table, not by the module under test.
HEADER = struct.Struct(">iiqqqiiii")
COLUMNS = Columns(
    7,
    np.array([3, 4], np.int64),
    np.array([100, 153], np.int64),
    np.array([53, 49], np.int64),
)
BODIES = [b"hello", b"x"]
JOINED = (
    HEADER.pack(1, 53, 7, 3, 100, 0, 0, 0, 5)
    + b"hello"
    + HEADER.pack(1, 49, 8, 4, 153, 0, 0, 0, 1)
    + b"x"
)


def test_entries_have_the_layout_of_the_reference() -> None:
    assert join_entries(COLUMNS, BODIES) == JOINED


def test_entries_are_split_again() -> None:
    first, terms, positions, sizes = decode_columns(JOINED)
    assert first == 7
    assert (terms.tolist(), positions.tolist(), sizes.tolist()) == ([3, 4], [100, 153], [53, 49])


def test_entries_of_one_size_are_split_as_others() -> None:
    equal = [HEADER.pack(1, 50, index, 3, 50 * index, 0, 0, 0, 2) + b"ab" for index in range(4)]
    assert decode_columns(b"".join(equal)).sizes.tolist() == [50] * 4
    # The first size divides the whole, but others follow.
    mixed = equal[0] + HEADER.pack(1, 100, 1, 3, 50, 0, 0, 0, 52) + bytes(52)
    assert decode_columns(mixed).sizes.tolist() == [50, 100]


def test_indexes_must_be_consecutive() -> None:
    gap = JOINED[:53] + HEADER.pack(1, 49, 9, 4, 153, 0, 0, 0, 1) + b"x"
    with pytest.raises(FormatError, match="index"):
        decode_columns(gap)
    with pytest.raises(FormatError, match="0 bytes after 0 entries"):
        decode_columns(b"")


def test_every_truncation_of_entries_is_refused() -> None:
    for end in range(1, len(JOINED)):
        if end != 53:
            with pytest.raises(FormatError):
                decode_columns(JOINED[:end])


@pytest.mark.parametrize("offset", [3, 7, 35, 39, 43, 47])
def test_a_wrong_constant_is_refused(offset: int) -> None:
    damaged = bytearray(JOINED)
    damaged[offset] ^= 0x40
    with pytest.raises(FormatError):
        decode_columns(bytes(damaged))


def test_a_header_tells_a_place() -> None:
    assert decode_header(JOINED) == Place(7, 3, 100, 53)
    assert decode_header(JOINED, 53) == Place(8, 4, 153, 49)
    assert decode_header(bytes(48)) is None
    assert decode_header(HEADER.pack(1, 48, 7, 3, 100, 0, 0, 0, 0)) is None
    assert decode_header(HEADER.pack(1, 53, 7, 3, 100, 0, 0, 0, 6)) is None
    assert decode_header(HEADER.pack(1, 53, -7, 3, 100, 0, 0, 0, 5)) is None
    assert decode_header(HEADER.pack(2, 53, 7, 3, 100, 0, 0, 0, 5)) is None
    assert Place(7, 3, 100, 53).end == 153


def test_a_blank_is_minus_one_and_the_room() -> None:
    assert encode_blank(500) == b"\xff\xff\xff\xff\x00\x00\x01\xf4"
    assert is_blank(encode_blank(500))
    assert not is_blank(JOINED)


def test_units_have_the_layout_of_the_reference() -> None:
    unit = struct.Struct(">iqiqq")
    units = encode_units(COLUMNS)
    assert units == unit.pack(1, 100, 53, 7, 3) + unit.pack(1, 153, 49, 8, 4)
    assert decode_unit(units[:32]) == Place(7, 3, 100, 53)
    assert decode_units(units)["position"].tolist() == [100, 153]
    assert decode_unit(bytes(32)) is None


def test_sizes_are_those_of_dledger() -> None:
    assert layout.INDEX_FILE_SIZE == 167_772_160
    assert layout.MAX_ENTRY_SIZE == 4_194_304


@pytest.mark.parametrize("vote", [Vote(3, "n0"), Vote(0, None)])
def test_votes_are_java_properties(vote: Vote) -> None:
    assert decode_vote(encode_vote(vote)) == vote


def test_java_s_order_of_keys_is_read() -> None:
    assert decode_vote(b"voteLeader=n0\ncurrTerm=2\n") == Vote(2, "n0")
    assert decode_checkpoint(b"committedIndex=20\nendIndex=34\n") == CheckpointText(34, 20, -1)


@pytest.mark.parametrize(
    "text", [b"", b"currTerm=x\n", b"currTerm=-1\n", b"currTerm=9223372036854775808\n", b"\\uXX"]
)
def test_a_damaged_vote_is_refused(text: bytes) -> None:
    with pytest.raises(FormatError):
        decode_vote(text)


def test_a_checkpoint_is_read_again() -> None:
    text = CheckpointText(9, 7, 8)
    assert encode_checkpoint(text) == b"endIndex=9\ncommittedIndex=7\nsyncedIndex=8\n"
    assert decode_checkpoint(encode_checkpoint(text)) == text
    lost = CheckpointText(9, 7, 8, must_catch_up=True)
    assert decode_checkpoint(encode_checkpoint(lost)) == lost
    with pytest.raises(FormatError):
        decode_checkpoint(b"endIndex=9\ncommittedIndex=\n")


@pytest.mark.parametrize("rebuild", [True, False])
def test_a_truncation_is_read_again(rebuild: bool) -> None:
    truncation = Truncation(4, 812, rebuild)
    assert decode_truncation(encode_truncation(truncation)) == truncation
    with pytest.raises(FormatError):
        decode_truncation(b"nextIndex=4\n")
