from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pyromq.raft.entry_files import EntryFiles, EntryIndex
from pyromq.raft.format import BLANK_SIZE, Columns, Place, encode_units, join_entries
from pyromq.store.log.allocation import POPULATE_STEP, AllocationService
from tests.support.patience import wait_until
from tests.support.raft_logs import DATA_FILE, INDEX_FILE


def entry(index: int, position: int, body: bytes) -> bytes:
    return join_entries(columns(index, position, len(body) + 48), [body])


def columns(index: int, position: int, size: int, count: int = 1) -> Columns:
    return Columns(
        index,
        np.ones(count, np.int64),
        np.arange(position, position + count * size, size, dtype=np.int64),
        np.full(count, size, np.int64),
    )


@pytest.fixture
def files(tmp_path: Path) -> Iterator[EntryFiles]:
    """An empty stream of data files."""
    files = EntryFiles(tmp_path / "data", DATA_FILE)
    files.load()
    files.start()
    files.follow(0)
    yield files
    files.stop()


def test_a_blank_fills_a_file_before_the_next_one(files: EntryFiles) -> None:
    data = entry(0, 0, b"x" * 100)
    files.prepare([(0, 148)], 0)
    files.write(0, data, 0)
    more = entry(1, DATA_FILE, b"y" * 4000)
    files.prepare([(DATA_FILE, DATA_FILE + 4048)], 148)
    files.write(DATA_FILE, more, 148)
    assert [file.base for file in files.files] == [0, DATA_FILE]
    assert files.read(148, 8) == b"\xff\xff\xff\xff" + (DATA_FILE - 148).to_bytes(4, "big")
    assert files.is_blank(148)
    assert not files.is_blank(0)
    assert files.header(DATA_FILE) == Place(1, 1, DATA_FILE, 4048)
    assert files.header(1) is None
    assert files.header(5 * DATA_FILE) is None


def test_at_most_one_file_is_preallocated(files: EntryFiles, tmp_path: Path) -> None:
    """Java refuses a log that ends with two empty files."""
    for number in range(6):
        start = number * DATA_FILE
        end = start - DATA_FILE + 1048 if number else 0
        files.prepare([(start, start + 1048)], end)
        files.write(start, entry(number, start, bytes(1000)), end)
        wait_until((tmp_path / "data" / f"{start + DATA_FILE:020d}").exists)
        files.sync_last(1)
        assert len(list((tmp_path / "data").iterdir())) == number + 2


def test_a_file_of_the_batch_is_not_preallocated_again(files: EntryFiles, tmp_path: Path) -> None:
    """Else it would be removed with the preallocated ones."""
    places = [(number * DATA_FILE, number * DATA_FILE + 4048) for number in range(5)]
    files.prepare(places, 0)
    end = 0
    for number, (start, stop) in enumerate(places):
        files.write(start, entry(number, start, bytes([number + 1]) * 4000), end)
        end = stop
    files.stop()
    again = EntryFiles(tmp_path / "data", DATA_FILE)
    again.load()
    assert [again.read(start + 48, 1) for start, _ in places] == [b"\1", b"\2", b"\3", b"\4", b"\5"]


def test_no_room_changes_nothing(files: EntryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    files.prepare([(0, 148)], 0)
    files.write(0, entry(0, 0, b"x" * 100), 0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="full"):
            files.prepare([(DATA_FILE, DATA_FILE + 148), (2 * DATA_FILE, 2 * DATA_FILE + 148)], 148)
    assert [file.base for file in files.files] == [0]
    assert not any(files.read(148, DATA_FILE))
    files.prepare([(148, 296)], 148)
    files.write(148, entry(1, 148, b"y" * 100), 148)


def test_a_cut_zeroes_the_rest(files: EntryFiles, tmp_path: Path) -> None:
    files.prepare([(0, 1048), (DATA_FILE, DATA_FILE + 1048)], 0)
    files.write(0, entry(0, 0, b"x" * 1000), 0)
    files.write(DATA_FILE, entry(1, DATA_FILE, b"y" * 1000), 1048)
    files.cut(1048)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["0" * 20]
    assert any(files.read(0, 1048))
    assert not any(files.read(1048, DATA_FILE))
    files.follow(1048)
    files.prepare([(1048, 1197)], 1048)
    files.write(1048, entry(1, 1048, b"z" * 101), 1048)
    assert files.header(1048) == Place(1, 1, 1048, 149)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[EntryIndex]:
    """An empty index."""
    index = EntryIndex(tmp_path / "index", INDEX_FILE)
    index.load()
    yield index
    index.stop()


def add(index: EntryIndex, first: int, count: int) -> None:
    index.prepare(first, count)
    index.write(first, encode_units(columns(first, first * 100, 100, count)))


def test_units_cross_files(index: EntryIndex) -> None:
    add(index, 0, 40)
    assert len(index.segments.files) == 3
    assert [index.place(n) for n in (0, 15, 16, 39)] == [
        Place(n, 1, n * 100, 100) for n in (0, 15, 16, 39)
    ]
    assert index.place(40) is None
    assert index.place(48) is None
    assert index.place(-1) is None
    assert index.units(14, 100)["index"].tolist() == [14, 15]
    index.sync(0, 40)


def test_an_index_may_begin_anywhere(index: EntryIndex) -> None:
    add(index, 100, 3)
    assert index.segments.files[0].base == 96 * 32
    assert index.place(99) is None
    assert index.place(102) == Place(102, 1, 10_200, 100)


@pytest.mark.parametrize(("end", "files"), [(0, 0), (1, 1), (16, 1), (17, 2), (40, 3)])
def test_units_are_cut(end: int, files: int, index: EntryIndex) -> None:
    add(index, 0, 40)
    index.cut(end)
    assert len(index.segments.files) == files
    assert index.place(end) is None
    assert end == 0 or index.place(end - 1) is not None
    add(index, end, 5)
    assert index.place(end + 4) is not None


def test_old_units_are_dropped_by_the_file(index: EntryIndex) -> None:
    add(index, 0, 40)
    index.drop_before(31)
    assert index.segments.files[0].base == 16 * 32
    index.drop_before(1000)
    assert len(index.segments.files) == 1, "the last file stays"


def test_room_for_a_blank_is_reserved(files: EntryFiles) -> None:
    files.prepare([(0, DATA_FILE - BLANK_SIZE)], 0)
    assert files.files[0].reserved == DATA_FILE


def test_the_allocation_is_told_of_progress_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr(AllocationService, "advance", lambda _, position: told.append(position))
    files = EntryFiles(tmp_path / "data", 16 * POPULATE_STEP)
    files.load()
    files.start()
    files.follow(0)
    step, end = POPULATE_STEP // 4, 0
    for _ in range(9):
        files.prepare([(end, end + step)], end)
        files.write(end, bytes(step), end)
        end += step
    files.stop()
    assert told == [POPULATE_STEP, 2 * POPULATE_STEP]
