"""The header that DLedger puts before each record of a raft group's log, the blank at the end of a
file, and the index unit of an entry.

    | off | field                  | off | field                        |
    |   0 | magic i32 = 1          |  32 | channel i32 = 0              |
    |   4 | size i32 = 48 + record |  36 | chainCrc i32 = 0             |
    |   8 | index i64              |  40 | bodyCrc i32 = 0              |
    |  16 | term i64               |  44 | bodySize i32                 |
    |  24 | position i64           |  48 | body: one record of the log  |

Blank: -1 i32, room i32, zeros to the end of the file.

Each entry has a unit in an index file:

    | 0 magic i32 = 1 | 4 position i64 | 12 size i32 | 16 index i64 | 24 term i64 |

An entry's position is that of its header; the record in it, its consume-queue entry and its message
id have the position of the body. `Framing` tells a walk over a log which of the two forms it has.

Pure. `raft.format` has the rest of DLedger's files.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from pyromq.base.sizes import MIB
from pyromq.protocol.message.record import BLANK_MAGIC, BLANK_SIZE, peek

ENTRY_MAGIC: Final = 1
ENTRY_HEADER: Final = struct.Struct(">iiqqqiiii")
ENTRY_HEADER_SIZE: Final = 48
assert ENTRY_HEADER.size == ENTRY_HEADER_SIZE

ENTRY_BLANK_MAGIC: Final = -1
ENTRY_BLANK: Final = struct.Struct(">ii")
assert ENTRY_BLANK.size == BLANK_SIZE

INDEX_UNIT: Final = struct.Struct(">iqiqq")
INDEX_UNIT_SIZE: Final = 32
assert INDEX_UNIT.size == INDEX_UNIT_SIZE

#: Java's buffer for an entry, header included.
MAX_ENTRY_SIZE: Final = 4 * MIB

_UNSIGNED: Final = 0xFFFFFFFF


class Framing(NamedTuple):
    """What is around the records of a log."""

    #: Bytes before each record.
    prefix: int

    def is_blank(self, data: bytes | memoryview, rest: int) -> bool:
        """Whether `data` starts with the blank that fills the `rest` of a segment."""
        return self.blank_size(data) == rest

    def blank_size(self, data: bytes | memoryview) -> int | None:
        """Return the size of the blank that `data` starts with; None if it is none."""
        first, second = peek(data[:BLANK_SIZE])
        if self.prefix:
            return second if first & _UNSIGNED == _UNSIGNED else None
        return first if second == BLANK_MAGIC else None


#: A commit log: records follow each other.
RECORDS: Final = Framing(0)
#: The log of a raft group: each record is the body of an entry.
ENTRIES: Final = Framing(ENTRY_HEADER_SIZE)


def entry_header(index: int, term: int, position: int, body_size: int) -> bytes:
    """Return the header of an entry."""
    return ENTRY_HEADER.pack(
        ENTRY_MAGIC,
        ENTRY_HEADER_SIZE + body_size,
        index,
        term,
        position,
        0,
        0,
        0,
        body_size,
    )
