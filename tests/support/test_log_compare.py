from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.log_compare import assert_same_logs, compare_logs, read_records
from tests.support.stores import SEGMENT, open_store, put


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Path, Path]:
    """Two equal stores of several segments."""
    store = open_store(tmp_path / "first")
    for number in range(200):
        put(store, b"%04d" % number * 300, queue_id=number % 3)
        store.seal()
    store.stop()
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    return tmp_path / "first", tmp_path / "second"


def _segments(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def test_equal_stores_have_no_difference(stores: tuple[Path, Path]) -> None:
    found = assert_same_logs(*stores)
    assert found.records > 200, "with the blank ones"
    assert found.begins == (0, 0)
    assert found.ends[0] == found.ends[1] > 3 * SEGMENT


def test_messages_are_read_in_the_order_of_the_log(stores: tuple[Path, Path]) -> None:
    assert [int(record.body[:4]) for record in read_records(stores[0])] == list(range(200))


def test_a_different_byte_is_named_by_offset_and_record(stores: tuple[Path, Path]) -> None:
    [second] = [path for path in _segments(stores[1]) if int(path.name) == SEGMENT]
    with second.open("r+b") as file:
        file.seek(500)
        file.write(b"?")
    found = compare_logs(*stores)
    assert len(found.differences) == 1
    assert f"differ at offset {SEGMENT + 500}" in found.differences[0]
    assert f"record at {SEGMENT}, " in found.differences[0]
    assert "TopicTest queue" in found.differences[0]
    with pytest.raises(AssertionError, match="differ at offset"):
        assert_same_logs(*stores)


def test_a_shorter_log_is_a_difference(stores: tuple[Path, Path]) -> None:
    last = [path for path in _segments(stores[1]) if path.read_bytes().strip(b"\0")][-1]
    last.write_bytes(bytes(SEGMENT))
    found = compare_logs(*stores)
    base = int(last.name)
    assert found.ends[0] > found.ends[1] == base
    assert any(
        f"more: {stores[0]}/commitlog: record at {base}" in each for each in found.differences
    )


def test_a_log_that_begins_later_is_compared_from_there_on(stores: tuple[Path, Path]) -> None:
    _segments(stores[1])[0].unlink()
    for entries in sorted((stores[1] / "consumequeue").glob("*/*/*")):
        data = bytearray(entries.read_bytes())
        for at in range(0, len(data), 20):
            if int.from_bytes(data[at : at + 8]) < SEGMENT:
                data[at : at + 20] = bytes(20)
        entries.write_bytes(data)
    for order in (stores, stores[::-1]):
        found = assert_same_logs(*order)
        assert sorted(found.begins) == [0, SEGMENT]


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_missing_queue_entry_is_a_difference(stores: tuple[Path, Path], damaged: int) -> None:
    entries = sorted((stores[damaged] / "consumequeue").glob("*/*/*"))[0]
    data = bytearray(entries.read_bytes())
    data[20:40] = bytes(20)
    entries.write_bytes(data)
    [difference] = compare_logs(*stores).differences
    assert "entry 1: entry" in difference


def test_different_segment_sizes_are_a_difference(stores: tuple[Path, Path]) -> None:
    for path in _segments(stores[1])[1:]:
        path.unlink()
    _segments(stores[1])[0].write_bytes(bytes(SEGMENT // 2))
    assert "segments have 65536 and 32768 bytes" in compare_logs(*stores).differences
