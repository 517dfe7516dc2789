"""The header of an entry, and what tells a walk the end of a file."""

from __future__ import annotations

import struct

from pyromq.protocol.message.entry import (
    ENTRIES,
    ENTRY_BLANK,
    ENTRY_HEADER_SIZE,
    RECORDS,
    entry_header,
)
from pyromq.protocol.message.record import BLANK, BLANK_MAGIC


def test_the_header_is_dledgers() -> None:
    header = entry_header(5, 7, 1000, 91)
    assert header == struct.pack(">iiqqqiiii", 1, 139, 5, 7, 1000, 0, 0, 0, 91)
    assert len(header) == ENTRY_HEADER_SIZE == ENTRIES.prefix


def test_each_framing_knows_its_own_blank_only() -> None:
    of_entries, of_records = ENTRY_BLANK.pack(-1, 100), BLANK.pack(100, BLANK_MAGIC)
    assert ENTRIES.is_blank(of_entries, 100)
    assert RECORDS.is_blank(of_records, 100)
    for framing in (ENTRIES, RECORDS):
        assert not framing.is_blank(of_records if framing is ENTRIES else of_entries, 100)
        assert not framing.is_blank(of_entries + of_records, 99)
        assert not framing.is_blank(bytes(8), 8)
        assert not framing.is_blank(b"\xff" * 7, 7)
