"""A record whose body is whole and whose properties the power cut took: no CRC is over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stores import audit, bodies, killed_copy, open_store, put

SECTOR = 512


def store_with_properties_over_sectors(root: Path, keys: str) -> tuple[Path, int, int]:
    """What a kill leaves of two messages; begin and end of the second one's properties."""
    store = open_store(root / "store")
    put(store, b"first")
    begin = put(store, b"b" * 300, keys=keys)
    store.seal()
    copy = killed_copy(store, root / "killed")
    end = store.max_physical_offset
    store.stop()
    return copy, begin, end


@pytest.mark.parametrize("sectors", [1, 2, 9])
def test_lost_sectors_end_the_log_before_their_record(tmp_path: Path, sectors: int) -> None:
    copy, begin, end = store_with_properties_over_sectors(tmp_path, "k" * 1500)
    segment = copy / "commitlog" / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    lost = -(-(end - 1200) // SECTOR) * SECTOR
    stop = min(lost + sectors * SECTOR, end)
    data[lost:stop] = bytes(stop - lost)
    segment.write_bytes(data)
    store = open_store(copy)
    assert bodies(store) == [b"first"]
    assert store.max_physical_offset == begin
    audit(store)
    store.stop()


def test_zeros_that_a_sender_put_there_are_kept(tmp_path: Path) -> None:
    copy, _, end = store_with_properties_over_sectors(tmp_path, "k\0" * 700 + "\0" * 300 + "end")
    store = open_store(copy)
    assert store.max_physical_offset == end
    assert bodies(store) == [b"first", b"b" * 300]
    store.stop()
