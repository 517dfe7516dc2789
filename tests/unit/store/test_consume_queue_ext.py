"""The consume queue's extension alone: units, ends of files, recovery. Java's in tests/golden."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.protocol.units import CONSUME_QUEUE_ENTRY, EXTENSION_BASE
from pyromq.store.consume_queue_ext import (
    ConsumeQueueExt,
    ExtensionUnit,
    is_address,
    refuse_other_size,
)
from pyromq.store.results import StoreError

#: Room for three units without a bit map and the end.
SIZE = 3 * 20 + 4


def make(directory: Path, size: int = SIZE) -> ConsumeQueueExt:
    return ConsumeQueueExt(directory, size, "Topic", 0, lambda _offset, _size: b"")


def put(extension: ConsumeQueueExt, count: int) -> list[int]:
    addresses = [extension.put(ExtensionUnit(number, 100 + number)) for number in range(count)]
    return [address for address in addresses if address is not None]


def test_units_are_found_at_their_addresses(tmp_path: Path) -> None:
    extension = make(tmp_path)
    addresses = put(extension, 7)
    assert [address + EXTENSION_BASE for address in addresses] == [0, 20, 40, 64, 84, 104, 128]
    assert all(map(is_address, addresses))
    for number, address in enumerate(addresses):
        assert extension.get(address) == ExtensionUnit(number, 100 + number)
    assert extension.get(addresses[-1] + 20) is None
    assert extension.get(addresses[1] + 1) is None
    assert extension.segments.files[0].read(60, 64) == b"\xff\xff\0\0"
    extension.segments.close()


def test_a_unit_that_fits_no_file_is_not_kept(tmp_path: Path) -> None:
    extension = make(tmp_path)
    assert extension.put(ExtensionUnit(1, 2, bytes(41))) is None
    assert extension.put(ExtensionUnit(1, 2, bytes(40))) == -EXTENSION_BASE
    extension.segments.close()


def test_an_entry_without_a_record_keeps_its_tags_code(tmp_path: Path) -> None:
    extension = make(tmp_path)
    entries = bytearray(CONSUME_QUEUE_ENTRY.pack(0, 100, 7))
    extension.take_over(entries)
    assert CONSUME_QUEUE_ENTRY.unpack(entries) == (0, 100, 7)
    assert extension.end == 0


@pytest.mark.parametrize("kept", range(1, 8))
def test_units_behind_the_last_address_are_dropped(tmp_path: Path, kept: int) -> None:
    extension = make(tmp_path)
    addresses = put(extension, 7)
    extension.segments.close()
    again = make(tmp_path)
    again.segments.load()
    again.truncate(addresses[kept - 1])
    assert again.damage is None
    assert again.end == addresses[kept - 1] + EXTENSION_BASE + 20
    assert [again.get(address) is not None for address in addresses] == [
        number < kept for number in range(7)
    ]
    again.segments.close()


def test_a_lost_unit_is_named(tmp_path: Path) -> None:
    extension = make(tmp_path)
    put(extension, 2)
    extension.recover(-EXTENSION_BASE + 40)
    assert extension.damage == "its extension has no unit at 40"
    assert extension.end == 40
    extension.segments.close()


def test_files_before_the_first_message_expire(tmp_path: Path) -> None:
    extension = make(tmp_path)
    addresses = put(extension, 9)
    assert extension.take_expired(addresses[3]) == []  # as Java: its file begins there
    assert [file.base for file in extension.take_expired(addresses[7])] == [0, SIZE]
    extension.delete()


def test_another_segment_size_is_refused(tmp_path: Path) -> None:
    extension = make(tmp_path)
    put(extension, 1)
    extension.segments.close()
    refuse_other_size(tmp_path, SIZE)
    with pytest.raises(StoreError, match="mappedFileSizeConsumeQueueExt"):
        refuse_other_size(tmp_path, SIZE + 1)
