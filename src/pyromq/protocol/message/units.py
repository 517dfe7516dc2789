"""Layouts of consume queue, its extension, key index and checkpoint (`record` has the log's).

All integers are big endian.

Consume-queue entry, 20 bytes
    physicalOffset i64 | size i32 | tagsCode i64
    tagsCode is Java's hashCode of TAGS, sign-extended (0 without tags). A queue whose oldest
    entries were removed starts with pre-blank entries: offset 0, size 0x7FFFFFFF, code 0.
    With an extension, tagsCode is the address of the message's unit there: the unit's offset
    in the extension - 2 ** 63. Values up to -2 ** 31 - 1 are addresses, all others are codes.

Consume-queue extension: a sequence of units, each 20 bytes and a bit map
    size i16 (of the whole unit) | tagsCode i64 | storeTimestamp i64 | bitMapSize i16 | bit map
    If the next unit does not fit into a segment, the last unit is followed by -1 i16 in place of
    a size. At least four bytes are reserved for it.

Index file: header 40 | slots 4 each | entries 20 each
    header  beginTimestamp i64 | endTimestamp i64 | beginPhysicalOffset i64
            | endPhysicalOffset i64 | usedSlotCount i32 | entryCount i32 (starts at 1)
    slot    number of the newest entry whose key hashes to it, 0 = none
    entry   keyHash i32 | physicalOffset i64 | seconds since beginTimestamp i32
            | number of the previous entry in its slot i32

Checkpoint, first 24 bytes of a 4 KiB file
    physicMsgTimestamp i64 | logicsMsgTimestamp i64 | indexMsgTimestamp i64

Pure, and free of numpy, because clients load it; `unit_arrays` has the numpy types. No other
module knows an offset inside these units.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

CONSUME_QUEUE_ENTRY = struct.Struct(">qiq")
CONSUME_QUEUE_ENTRY_SIZE: Final = 20
assert CONSUME_QUEUE_ENTRY.size == CONSUME_QUEUE_ENTRY_SIZE
#: Slices of an entry's bytes. The first two also fit a buffer of many entries (its first one).
ENTRY_PHYSICAL_OFFSET: Final = slice(0, 8)
ENTRY_SIZE: Final = slice(8, 12)
ENTRY_TAGS_CODE: Final = slice(12, 20)
#: The size field of a pre-blank entry.
PRE_BLANK_SIZE: Final = 0x7FFFFFFF
PRE_BLANK_ENTRY: Final = CONSUME_QUEUE_ENTRY.pack(0, PRE_BLANK_SIZE, 0)
CONSUME_QUEUE_FIELDS: Final = [("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")]


class Entry(NamedTuple):
    """A consume-queue entry: where a record is in the log, its size, and the hash of its tags."""

    physical_offset: int
    size: int
    tags_code: int

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview, position: int = 0) -> Entry:
        """Decode the entry at `position` of `data`."""
        return cls._make(CONSUME_QUEUE_ENTRY.unpack_from(data, position))

    @property
    def end(self) -> int:
        """The physical offset after the record."""
        return self.physical_offset + self.size

    @property
    def is_pre_blank(self) -> bool:
        """Whether the entry only fills the place of one that was removed."""
        return self.size == PRE_BLANK_SIZE


EXTENSION_UNIT = struct.Struct(">hqqh")
EXTENSION_UNIT_SIZE: Final = 20
assert EXTENSION_UNIT.size == EXTENSION_UNIT_SIZE
#: A unit without its bit map.
EXTENSION_UNIT_FIELDS: Final = [
    ("size", ">i2"),
    ("tags_code", ">i8"),
    ("store_timestamp", ">i8"),
    ("bit_map_size", ">i2"),
]
MAX_EXTENSION_UNIT: Final = 0x7FFF
EXTENSION_END: Final = b"\xff\xff"
#: Bytes at the end of a segment that no unit may use.
EXTENSION_END_SIZE: Final = 4
#: Added to an address, gives the unit's offset.
EXTENSION_BASE: Final = 1 << 63
#: The largest tagsCode that is an address.
MAX_EXTENSION_ADDRESS: Final = -(1 << 31) - 1

INDEX_HEADER = struct.Struct(">qqqqii")
INDEX_HEADER_SIZE: Final = 40
assert INDEX_HEADER.size == INDEX_HEADER_SIZE
INDEX_SLOT_SIZE: Final = 4
INDEX_ENTRY = struct.Struct(">iqii")
INDEX_ENTRY_SIZE: Final = 20
assert INDEX_ENTRY.size == INDEX_ENTRY_SIZE
INDEX_ENTRY_FIELDS: Final = [
    ("key_hash", ">i4"),
    ("physical_offset", ">i8"),
    ("seconds", ">i4"),
    ("previous", ">i4"),
]

CHECKPOINT = struct.Struct(">qqq")
CHECKPOINT_FILE_SIZE: Final = 4096
