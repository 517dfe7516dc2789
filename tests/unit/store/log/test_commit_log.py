"""The log alone: room, seals, rolls, reads at every boundary, flushes."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.protocol.message.record import BLANK, BLANK_MAGIC, BLANK_SIZE
from pyromq.store.log import allocation, commit_log
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.results import PutError, PutStatus

SIZE = 16 * 1024


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    log = CommitLog(tmp_path, SIZE)
    log.start(0)
    yield log
    log.stop()


def append(log: CommitLog, data: bytes, timestamp: int = 1) -> int:
    """Append a record as a chunk does, and return its offset."""
    offset, limit = log.make_room(len(data))
    assert offset + len(data) <= limit
    log.append(data, timestamp)
    return offset


def test_records_are_written_and_marked(log: CommitLog) -> None:
    append(log, b"first", 1)
    append(log, b"second", 2)
    assert (log.watermarks.written, log.watermarks.written_timestamp) == (11, 2)
    assert log.read(0, 12) == b"firstsecond"
    assert log.holds(0, 11)
    assert not log.holds(0, 12)


def test_reads_at_every_boundary(log: CommitLog) -> None:
    append(log, b"a" * 100)
    append(log, b"b" * (SIZE - 100 - BLANK_SIZE))
    append(log, b"c" * 50)
    end = SIZE + 50
    assert log.watermarks.written == end
    for offset, size, expected in (
        (0, 100, b"a" * 100),
        (99, 2, b"ab"),
        (SIZE - BLANK_SIZE - 1, 1, b"b"),
        (SIZE - BLANK_SIZE, BLANK_SIZE, BLANK.pack(BLANK_SIZE, BLANK_MAGIC)),
        (SIZE - 1, 100, b"\x94"),
        (SIZE, 50, b"c" * 50),
        (SIZE + 49, 100, b"c"),
        (end, 1, b""),
        (end + 1, 1, b""),
        (2 * SIZE, 1, b""),
        (1 << 62, 1, b""),
        (-1, 1, b""),
        (0, 0, b""),
        (0, -5, b""),
    ):
        assert log.read(offset, size) == expected, (offset, size)
        assert bytes(log.view(offset, size)) == expected, (offset, size)
    for offset, size, held in (
        (0, SIZE, True),
        (0, SIZE + 1, False),
        (SIZE - 1, 1, True),
        (SIZE - 1, 2, False),
        (SIZE, 50, True),
        (SIZE, 51, False),
        (0, 0, False),
        (0, -1, False),
        (-1, 1, False),
        (end, 1, False),
    ):
        assert log.holds(offset, size) is held, (offset, size)


@pytest.mark.parametrize("left", [0, 1, 7])
def test_a_record_that_leaves_no_place_for_the_blank_goes_on(log: CommitLog, left: int) -> None:
    append(log, b"a" * 1000)
    assert append(log, b"b" * (SIZE - 1000 - left)) == SIZE or left >= BLANK_SIZE
    assert log.read(1000, 8) == BLANK.pack(SIZE - 1000, BLANK_MAGIC)


def test_too_long_for_any_segment(log: CommitLog) -> None:
    for size in (SIZE - BLANK_SIZE + 1, SIZE, 1 << 40):
        with pytest.raises(PutError) as refused:
            log.make_room(size)
        assert refused.value.status is PutStatus.MESSAGE_ILLEGAL
    assert log.watermarks.written == 0
    assert append(log, b"x" * (SIZE - BLANK_SIZE)) == 0


def test_room_comes_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (allocation, commit_log):
        monkeypatch.setattr(module, "RESERVE_STEP", 4096)
        monkeypatch.setattr(module, "AHEAD", 4096)
    log = CommitLog(tmp_path, SIZE)
    log.start(0)
    written = b""
    for number in range(150):
        data = b"%03d" % number * 30
        offset, limit = log.make_room(len(data))
        assert offset + len(data) <= limit <= min(offset + 4096, SIZE) - BLANK_SIZE
        assert append(log, data) == offset == len(written)
        written += data
    assert log.read(0, SIZE) == written
    log.stop()


def test_a_full_disk_changes_nothing(
    tmp_path: Path, log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    end = append(log, b"a" * (SIZE - 100)) + SIZE
    monkeypatch.setattr(os, "posix_fallocate", full)
    with contextlib.suppress(PutError):
        while True:  # into those that were made ahead
            end = append(log, b"a" * (SIZE - 100)) + SIZE
    written = log.watermarks.written
    for _ in range(3):
        with pytest.raises(PutError) as refused:
            log.make_room(500)
        assert refused.value.status is PutStatus.CREATE_MAPEDFILE_FAILED
    assert log.watermarks.written == written
    assert append(log, b"still fits") == end - 100
    monkeypatch.undo()
    assert append(log, b"b" * 500) == end
    assert log.read(end - 100, 10) == b"still fits"
    assert log.read(end, 500) == b"b" * 500


def test_flush_moves_the_mark_only_when_every_file_is_synced(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    failing = [True]

    def sync(self: MappedFile) -> None:
        if failing[0]:
            raise OSError(errno.EIO, "Input/output error")
        synced.append(self.base)

    monkeypatch.setattr(MappedFile, "sync", sync)
    append(log, b"a" * (SIZE - 100), timestamp=7)
    append(log, b"b" * 500, timestamp=8)
    with pytest.raises(OSError, match="Input"):
        log.flush()
    assert log.watermarks.flushed == 0
    failing[0] = False
    log.flush()
    assert synced == [0, SIZE]
    assert (log.watermarks.flushed, log.watermarks.flushed_timestamp) == (SIZE + 500, 8)
    log.flush()
    assert synced == [0, SIZE], "nothing new, nothing to sync"
    append(log, b"c")
    log.flush()
    assert synced == [0, SIZE, SIZE]


def test_a_segment_whose_file_was_removed_is_viewed_as_long_as_it_is_mapped(
    log: CommitLog, tmp_path: Path
) -> None:
    append(log, b"still there")
    path = log.segments.files[0].path
    path.rename(tmp_path / "elsewhere")
    assert bytes(log.view(6, 5)) == b"there"
    (tmp_path / "elsewhere").rename(path)


def test_large_reads_give_the_same_bytes_as_small_ones(log: CommitLog, tmp_path: Path) -> None:
    for number in range(3):
        append(log, bytes([65 + number]) * (SIZE - 100))
    end = log.watermarks.written
    for offset in (0, 5, SIZE - 120, SIZE, SIZE + 7, end - 1, end, end + 1):
        for size in (1, 50, 3 * SIZE):
            room = memoryview(bytearray(size))
            assert bytes(room[: log.read_into(offset, room)]) == log.read(offset, size)
    path = log.segments.files[0].path
    path.rename(tmp_path / "elsewhere")
    room = memoryview(bytearray(5))
    assert log.read_into(6, room) == 5
    assert bytes(room) == b"AAAAA"
    (tmp_path / "elsewhere").rename(path)


def test_old_pages_are_let_go_and_read_again(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "_MAX_RESIDENT", 4096)
    monkeypatch.setattr(commit_log, "_MIN_RELEASED", SIZE)
    released: list[int] = []
    release = MappedFile.release

    def spied(file: MappedFile, end: int) -> None:
        released.append(end)
        release(file, end)

    monkeypatch.setattr(MappedFile, "release", spied)
    data = [bytes([65 + n]) * (SIZE - 100) for n in range(3)]
    for piece in data:
        append(log, piece)
    log.flush()
    log.release_old_pages()
    assert released
    log.release_old_pages()
    assert len(released) <= 3, "nothing more to drop"
    assert [log.read(n * SIZE, SIZE - 100) for n in range(3)] == data


def test_where_the_next_segment_begins(log: CommitLog) -> None:
    assert log.segment_after(0) == SIZE
    assert log.segment_after(SIZE - 1) == SIZE
    assert log.segment_after(SIZE) == 2 * SIZE


def test_it_goes_on_where_it_ended(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, SIZE)
    log.start(0)
    append(log, b"x" * 300)
    log.stop()
    again = CommitLog(tmp_path, SIZE)
    again.segments.load()
    again.start(300)
    assert again.read(0, 300) == b"x" * 300
    assert (again.watermarks.written, again.watermarks.flushed) == (300, 300)
    assert append(again, b"y") == 300
    assert again.read(299, 5) == b"xy"
    again.stop()


def test_it_may_begin_behind_deleted_segments(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, SIZE)
    log.start(5 * SIZE)
    assert append(log, b"x") == 5 * SIZE
    assert log.min_offset == 5 * SIZE
    log.stop()
    assert [path.name for path in tmp_path.iterdir()] == [f"{5 * SIZE:020d}"]
