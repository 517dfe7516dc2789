"""The files of a DLedger node, byte for byte those of DLedger 0.3.1.2. Big endian.

    <root>/dledger-<id>/data/<20 digits>     entries, in files of equal size
    <root>/dledger-<id>/index/<20 digits>    one unit per entry, at index * 32
    <root>/dledger-<id>/currterm             term and vote, text
    <root>/dledger-<id>/checkpoint           committed index, text
    <root>/dledger-<id>/truncation           ours: a truncation in progress, text

Data entry
    | off | field                  | off | field                        |
    |   0 | magic i32 = 1          |  32 | channel i32 = 0              |
    |   4 | size i32 = 48 + body   |  36 | chainCrc i32 = 0             |
    |   8 | index i64              |  40 | bodyCrc i32 = 0              |
    |  16 | term i64               |  44 | bodySize i32                 |
    |  24 | position i64           |  48 | body, at least one byte      |

Blank: -1 i32, room i32, zeros to the end of the file.

Index unit
    | 0 magic i32 = 1 | 4 position i64 | 12 size i32 | 16 index i64 | 24 term i64 |

Rules
1. An entry never crosses a file, and leaves room for a blank. If its size + 8 exceeds the room, a
   blank fills the file and the entry opens the next one.
2. `position` is the entry's own position in the stream of data files, so it proves that an entry is
   where it was written.
3. Java counts an entry without a body as damage, and refuses one of more than 4 MiB.
4. Nothing has a checksum: the CRC fields are always 0.

Text files are Java's `.properties`, keys in any order:
    currterm    currTerm=3, voteLeader=n0 (empty: no vote)
    checkpoint  endIndex=3, committedIndex=3, and ours: syncedIndex=3, mustCatchUp=true (or absent)
    truncation  nextIndex=4, nextPosition=812, rebuild=false

Pure. Called by the modules of this package; no other file knows an offset.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyromq.protocol.java.properties import PropertiesError, format_properties, parse_properties
from pyromq.protocol.message import entry

DATA_DIRECTORY: Final = "data"
INDEX_DIRECTORY: Final = "index"
TERM_FILE: Final = "currterm"
CHECKPOINT_FILE: Final = "checkpoint"
TRUNCATION_FILE: Final = "truncation"

MAGIC: Final = entry.ENTRY_MAGIC
HEADER: Final = entry.ENTRY_HEADER
HEADER_SIZE: Final = entry.ENTRY_HEADER_SIZE
#: An entry begins with these bytes.
MAGIC_BYTES: Final = struct.pack(">i", MAGIC)

BLANK_MAGIC: Final = entry.ENTRY_BLANK_MAGIC
BLANK: Final = entry.ENTRY_BLANK
BLANK_SIZE: Final = BLANK.size

INDEX_UNIT: Final = entry.INDEX_UNIT
INDEX_UNIT_SIZE: Final = entry.INDEX_UNIT_SIZE
INDEX_FILE_SIZE: Final = 5 * 1024 * 1024 * INDEX_UNIT_SIZE
assert INDEX_FILE_SIZE == 167_772_160

MAX_ENTRY_SIZE: Final = entry.MAX_ENTRY_SIZE

HEADER_TYPE: Final = np.dtype(
    [
        ("magic", ">i4"),
        ("size", ">i4"),
        ("index", ">i8"),
        ("term", ">i8"),
        ("position", ">i8"),
        ("channel", ">i4"),
        ("chain_crc", ">i4"),
        ("body_crc", ">i4"),
        ("body_size", ">i4"),
    ]
)
assert HEADER_TYPE.itemsize == HEADER_SIZE
UNIT_TYPE: Final = np.dtype(
    [("magic", ">i4"), ("position", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")]
)
assert UNIT_TYPE.itemsize == INDEX_UNIT_SIZE

Numbers = NDArray[np.int64]
Records = NDArray[Any]

_SIZE_FIELD: Final = struct.Struct(">4xi")
_SIZE_OFFSET: Final = 4
#: Copied faster than fields.
_OPAQUE_HEADER: Final = np.dtype(f"V{HEADER_SIZE}")


class FormatError(ValueError):
    """Bytes or text that no DLedger node writes."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an entry is, and its term."""

    index: int
    term: int
    position: int
    size: int

    @property
    def end(self) -> int:
        """Return the position after the entry."""
        return self.position + self.size


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as a peer sent it, or as it is stored."""

    index: int
    term: int
    position: int
    body: bytes | memoryview

    @property
    def size(self) -> int:
        """Return the bytes of header and body."""
        return HEADER_SIZE + len(self.body)


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive entries with their headers, as they are in one data file."""

    first_index: int
    count: int
    position: int
    data: bytes

    @property
    def last_index(self) -> int:
        """Return the index of the last entry."""
        return self.first_index + self.count - 1


class Columns(NamedTuple):
    """Consecutive entries as columns."""

    first_index: int
    terms: Numbers
    positions: Numbers
    sizes: Numbers


class Vote(NamedTuple):
    """A term, and the candidate that got this node's vote in it."""

    term: int
    voted_for: str | None


class CheckpointText(NamedTuple):
    """The content of `checkpoint`; -1 stands for no entry."""

    end_index: int
    committed_index: int
    #: Entries up to this one are on disk. Java writes no such key.
    synced_index: int = -1
    #: Entries were lost, and are not yet back. Java writes no such key.
    must_catch_up: bool = False


class Truncation(NamedTuple):
    """A truncation in progress: the index and the position of the next entry."""

    next_index: int
    next_position: int
    #: Everything goes, and the log begins at the position.
    rebuild: bool


# Entries


def encode_headers(columns: Columns) -> bytes:
    """Return the headers of entries, one after the other."""
    count = len(columns.sizes)
    headers = np.zeros(count, HEADER_TYPE)
    headers["magic"] = MAGIC
    headers["size"] = columns.sizes
    headers["index"] = np.arange(columns.first_index, columns.first_index + count)
    headers["term"] = columns.terms
    headers["position"] = columns.positions
    headers["body_size"] = columns.sizes - HEADER_SIZE
    return headers.tobytes()


def join_entries(columns: Columns, bodies: Sequence[bytes | memoryview]) -> bytes:
    """Return entries, headers and bodies, one after the other."""
    headers = encode_headers(columns)
    parts: list[bytes | memoryview] = [b""] * (2 * len(bodies))
    parts[::2] = [headers[at : at + HEADER_SIZE] for at in range(0, len(headers), HEADER_SIZE)]
    parts[1::2] = bodies
    return b"".join(parts)


def decode_columns(data: bytes | memoryview) -> Columns:
    """Return consecutive entries, at least one, that follow one another in `data` without gaps.

    Raises FormatError if `data` is anything else. Positions and terms are not compared.
    """
    sizes = _sizes(data)
    ends = np.cumsum(sizes)
    if int(ends[-1]) != len(data):
        raise FormatError(f"{int(ends[-1]) - len(data)} bytes of the last entry are missing")
    # A header as six numbers: magic and size, index, term, position, zeros, body size.
    words = gather_headers(data, ends - sizes).view(">i8").astype(np.int64).reshape(-1, 6)
    first = int(words[0, 1])
    expected = words.copy()
    expected[:, 0] = sizes + (MAGIC << 32)
    expected[:, 1] = np.arange(first, first + len(sizes))
    expected[:, 4] = 0
    expected[:, 5] = sizes - HEADER_SIZE
    if np.count_nonzero(words != expected):
        raise FormatError("wrong magic, size, index, channel or checksum in an entry's header")
    return Columns(first, words[:, 2], words[:, 3], sizes)


def _sizes(data: bytes | memoryview) -> Numbers:
    """Return the sizes of entries; the last one may be too large."""
    at, end = 0, len(data)
    unpack, last = _SIZE_FIELD.unpack_from, end - HEADER_SIZE
    if last > 0:
        # Producers often send messages of one size.
        (size,) = unpack(data)
        if size > HEADER_SIZE and end % size == 0:
            count = end // size
            fields = np.ndarray((count,), ">i4", data, _SIZE_OFFSET, (size,))
            if not np.count_nonzero(fields != size):
                return np.full(count, size, np.int64)
    sizes: list[int] = []
    while at < last:
        (size,) = unpack(data, at)
        if size <= HEADER_SIZE:
            raise FormatError(f"entry of {size} bytes")
        sizes.append(size)
        at += size
    if at < end or not sizes:
        raise FormatError(f"{end - at} bytes after {len(sizes)} entries")
    return np.array(sizes, np.int64)


def fields_are_valid(headers: Records) -> NDArray[np.bool_]:
    """Return for each header whether its magic and sizes are those of an entry, as Java checks."""
    return np.asarray(
        (headers["magic"] == MAGIC)
        & (headers["size"] > HEADER_SIZE)
        & (headers["body_size"] == headers["size"] - HEADER_SIZE)
    )


def gather_headers(data: bytes | memoryview, starts: Numbers) -> Records:
    """Return the headers that begin at `starts`, all within `data`."""
    # One item for each byte of the data, of which most overlap.
    everywhere = np.ndarray((len(data) - HEADER_SIZE + 1,), _OPAQUE_HEADER, data, 0, (1,))
    return everywhere[starts].view(HEADER_TYPE)


def decode_header(data: bytes | memoryview, at: int = 0) -> Place | None:
    """Return the place of the entry whose header is at `at`, or None if there is no entry."""
    magic, size, index, term, position, _, _, _, body_size = HEADER.unpack_from(data, at)
    if magic != MAGIC or size <= HEADER_SIZE or body_size != size - HEADER_SIZE or index < 0:
        return None
    return Place(index, term, position, size)


def encode_blank(room: int) -> bytes:
    """Return the blank for the rest of a file, less its zeros."""
    return BLANK.pack(BLANK_MAGIC, room)


def is_blank(data: bytes | memoryview, at: int = 0) -> bool:
    """Whether a blank is at `at`. As in Java, its size does not matter."""
    magic, _ = BLANK.unpack_from(data, at)
    return bool(magic == BLANK_MAGIC)


def blank_room(data: bytes | memoryview, at: int = 0) -> int:
    """Return the size that the blank at `at` states."""
    return int(BLANK.unpack_from(data, at)[1])


# Index


def encode_units(columns: Columns) -> bytes:
    """Return the index units of entries."""
    count = len(columns.sizes)
    units = np.zeros(count, UNIT_TYPE)
    units["magic"] = MAGIC
    units["position"] = columns.positions
    units["size"] = columns.sizes
    units["index"] = np.arange(columns.first_index, columns.first_index + count)
    units["term"] = columns.terms
    return units.tobytes()


def decode_unit(data: bytes) -> Place | None:
    """Return the place of the entry of a unit, or None if it is not a unit."""
    magic, position, size, index, term = INDEX_UNIT.unpack(data)
    return Place(index, term, position, size) if magic == MAGIC else None


def decode_units(data: bytes | memoryview) -> Records:
    """Return units as records."""
    return np.frombuffer(data, UNIT_TYPE)


# Text files


def encode_vote(vote: Vote) -> bytes:
    """Return the content of `currterm`."""
    return f"currTerm={vote.term}\nvoteLeader={vote.voted_for or ''}\n".encode()


def decode_vote(data: bytes) -> Vote:
    """Read `currterm`. Raises FormatError."""
    table = _table(data)
    return Vote(_number(table, "currTerm", 0), table.get("voteLeader", "").strip() or None)


def encode_checkpoint(checkpoint: CheckpointText) -> bytes:
    """Return the content of `checkpoint`."""
    end, committed, synced, must_catch_up = checkpoint
    text = f"endIndex={end}\ncommittedIndex={committed}\nsyncedIndex={synced}\n"
    return (text + "mustCatchUp=true\n" if must_catch_up else text).encode()


def decode_checkpoint(data: bytes) -> CheckpointText:
    """Read `checkpoint`. Raises FormatError."""
    table = _table(data)
    return CheckpointText(
        _number(table, "endIndex", -1),
        _number(table, "committedIndex", -1),
        _number(table, "syncedIndex", -1) if "syncedIndex" in table else -1,
        table.get("mustCatchUp") == "true",
    )


def encode_truncation(truncation: Truncation) -> bytes:
    """Return the content of `truncation`."""
    values = {
        "nextIndex": str(truncation.next_index),
        "nextPosition": str(truncation.next_position),
        "rebuild": str(truncation.rebuild).lower(),
    }
    return format_properties(values).encode()


def decode_truncation(data: bytes) -> Truncation:
    """Read `truncation`. Raises FormatError."""
    table = _table(data)
    return Truncation(
        _number(table, "nextIndex", 0),
        _number(table, "nextPosition", 0),
        table.get("rebuild") == "true",
    )


def _table(data: bytes) -> dict[str, str]:
    try:
        return parse_properties(data)
    except PropertiesError as error:
        raise FormatError(str(error)) from error


def _number(table: dict[str, str], key: str, least: int) -> int:
    text = table.get(key, "").strip()
    try:
        number = int(text)
    except ValueError:
        raise FormatError(f"{key}={text!r} is not a number") from None
    if not least <= number < 2**63:
        raise FormatError(f"{key}={number} is out of range")
    return number
