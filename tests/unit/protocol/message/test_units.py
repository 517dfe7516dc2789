"""The store's small units, byte for byte."""

from __future__ import annotations

from pyromq.protocol.message.units import (
    CHECKPOINT,
    CHECKPOINT_FILE_SIZE,
    CONSUME_QUEUE_ENTRY,
    CONSUME_QUEUE_ENTRY_SIZE,
    ENTRY_PHYSICAL_OFFSET,
    ENTRY_SIZE,
    ENTRY_TAGS_CODE,
    EXTENSION_BASE,
    EXTENSION_UNIT,
    EXTENSION_UNIT_SIZE,
    INDEX_ENTRY,
    INDEX_ENTRY_SIZE,
    INDEX_HEADER,
    INDEX_SLOT_SIZE,
    MAX_EXTENSION_ADDRESS,
    PRE_BLANK_ENTRY,
    PRE_BLANK_SIZE,
    Entry,
)


def test_consume_queue_entry() -> None:
    data = CONSUME_QUEUE_ENTRY.pack(0x0102030405060708, 0x0A0B0C0D, -2)
    assert data == bytes.fromhex("0102030405060708 0a0b0c0d fffffffffffffffe")
    assert len(data) == CONSUME_QUEUE_ENTRY_SIZE
    assert Entry.unpack(b"-" + data, 1) == Entry(0x0102030405060708, 0x0A0B0C0D, -2)


def test_slices_of_an_entry() -> None:
    data = CONSUME_QUEUE_ENTRY.pack(1, 2, 3)
    slices = (ENTRY_PHYSICAL_OFFSET, ENTRY_SIZE, ENTRY_TAGS_CODE)
    assert [int.from_bytes(data[each], "big") for each in slices] == [1, 2, 3]
    assert b"".join(data[each] for each in slices) == data


def test_entry_names_its_fields() -> None:
    entry = Entry(100, 20, -5)
    assert (entry.physical_offset, entry.size, entry.tags_code) == (100, 20, -5)
    assert entry.end == 120
    assert not entry.is_pre_blank


def test_pre_blank_entry() -> None:
    assert PRE_BLANK_SIZE == 0x7FFFFFFF
    assert Entry.unpack(PRE_BLANK_ENTRY) == (0, PRE_BLANK_SIZE, 0)
    assert Entry.unpack(PRE_BLANK_ENTRY).is_pre_blank


def test_extension_unit() -> None:
    data = EXTENSION_UNIT.pack(34, -2, 0x0102030405060708, 14)
    assert data == bytes.fromhex("0022 fffffffffffffffe 0102030405060708 000e")
    assert len(data) == EXTENSION_UNIT_SIZE


def test_addresses_are_no_codes() -> None:
    # A code is a Java hash, of 32 bits, or a time: never below the smallest hash.
    assert -EXTENSION_BASE <= MAX_EXTENSION_ADDRESS < -(1 << 31)


def test_index_header() -> None:
    data = INDEX_HEADER.pack(1, 2, 3, 4, 5, 6)
    assert data == bytes.fromhex(
        "0000000000000001 0000000000000002 0000000000000003 0000000000000004 00000005 00000006"
    )


def test_index_entry() -> None:
    data = INDEX_ENTRY.pack(-1, 0x0102030405060708, 9, 10)
    assert data == bytes.fromhex("ffffffff 0102030405060708 00000009 0000000a")
    assert len(data) == INDEX_ENTRY_SIZE


def test_offset_of_an_entry_in_a_full_index_file() -> None:
    # Java's sizes: 5,000,000 slots and 20,000,000 entries make a file of 420,000,040 bytes.
    size = INDEX_HEADER.size + 5_000_000 * INDEX_SLOT_SIZE + 20_000_000 * INDEX_ENTRY_SIZE
    assert size == 420_000_040


def test_checkpoint() -> None:
    data = CHECKPOINT.pack(1, 2, 3)
    assert data == bytes.fromhex("0000000000000001 0000000000000002 0000000000000003")
    assert len(data) <= CHECKPOINT_FILE_SIZE == 4096
