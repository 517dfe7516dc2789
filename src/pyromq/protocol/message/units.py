"""The units of the store beside the log: consume-queue entries and their extension, the
key index, the checkpoint. All integers big endian.

Consume-queue entry, 20 bytes
    physicalOffset i64 | size i32 | tagsCode i64
    tagsCode is Java's hashCode of TAGS, sign-extended (0 without tags). A queue whose
    head was cut off begins with pre-blank entries: offset 0, size 0x7FFFFFFF, code 0.
    With an extension, tagsCode is the address of the message's unit there: the unit's
    offset in the extension - 2 ** 63. Up to -2 ** 31 - 1 it is an address, else a code.

Consume-queue extension: units of 20 bytes and a bit map, one after the other
    size i16 (of the whole unit) | tagsCode i64 | storeTimestamp i64 | bitMapSize i16 | bit map
    Behind a segment's last unit stands -1 i16 in the place of a size, when the next unit
    did not fit; four bytes at least are left for it.

Index file: header 40 | slots 4 each | entries 20 each
    header  beginTimestamp i64 | endTimestamp i64 | beginPhysicalOffset i64
            | endPhysicalOffset i64 | usedSlotCount i32 | entryCount i32 (starts at 1)
    slot    number of the newest entry whose key falls in it, 0 = none
    entry   keyHash i32 | physicalOffset i64 | seconds since beginTimestamp i32
            | number of the entry before it in its slot i32

Checkpoint, first 24 bytes of a 4 KiB file
    physicMsgTimestamp i64 | logicsMsgTimestamp i64 | indexMsgTimestamp i64

Pure. Nothing else knows these offsets.
"""

from __future__ import annotations

import struct
from typing import Final

CONSUME_QUEUE_ENTRY = struct.Struct(">qiq")
CONSUME_QUEUE_ENTRY_SIZE: Final = 20
assert CONSUME_QUEUE_ENTRY.size == CONSUME_QUEUE_ENTRY_SIZE
PRE_BLANK_ENTRY: Final = CONSUME_QUEUE_ENTRY.pack(0, 0x7FFFFFFF, 0)
#: numpy's view of consume-queue entries.
CONSUME_QUEUE_DTYPE: Final = [("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")]

EXTENSION_UNIT = struct.Struct(">hqqh")
EXTENSION_UNIT_SIZE: Final = 20
assert EXTENSION_UNIT.size == EXTENSION_UNIT_SIZE
#: numpy's view of units without their bit maps.
EXTENSION_UNIT_DTYPE: Final = [
    ("size", ">i2"),
    ("tags_code", ">i8"),
    ("store_timestamp", ">i8"),
    ("bit_map_size", ">i2"),
]
MAX_EXTENSION_UNIT: Final = 0x7FFF
EXTENSION_END: Final = b"\xff\xff"
#: So many bytes at a segment's end are not for units.
EXTENSION_END_SIZE: Final = 4
#: What is added to an address to get its offset.
EXTENSION_BASE: Final = 1 << 63
#: What stands in an entry is an address up to this number.
MAX_EXTENSION_ADDRESS: Final = -(1 << 31) - 1

INDEX_HEADER = struct.Struct(">qqqqii")
INDEX_HEADER_SIZE: Final = 40
assert INDEX_HEADER.size == INDEX_HEADER_SIZE
INDEX_SLOT_SIZE: Final = 4
INDEX_ENTRY = struct.Struct(">iqii")
INDEX_ENTRY_SIZE: Final = 20
assert INDEX_ENTRY.size == INDEX_ENTRY_SIZE
#: numpy's view of index entries.
INDEX_ENTRY_DTYPE: Final = [
    ("key_hash", ">i4"),
    ("physical_offset", ">i8"),
    ("seconds", ">i4"),
    ("previous", ">i4"),
]

CHECKPOINT = struct.Struct(">qqq")
CHECKPOINT_FILE_SIZE: Final = 4096
