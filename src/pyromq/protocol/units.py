"""The fixed-size units of the store beside the log: consume-queue entries, the key
index, the checkpoint. All integers big endian.

Consume-queue entry, 20 bytes
    physicalOffset i64 | size i32 | tagsCode i64
    tagsCode is Java's hashCode of TAGS, sign-extended (0 without tags). A queue whose
    head was cut off begins with pre-blank entries: offset 0, size 0x7FFFFFFF, code 0.

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
