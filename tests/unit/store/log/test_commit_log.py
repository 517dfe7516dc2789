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


def append(log: CommitLog, data: bytes, now: int = 1) -> int:
    """What a put does."""
    position = log.position
    if position + len(data) > log.limit:
        position = log.make_room(len(data))
    log.begin_chunk(now)
    log.append((data,), len(data))
    return position


def test_parts_are_written_by_the_seal_only(log: CommitLog) -> None:
    append(log, b"first")
    append(log, b"second")
    assert (log.position, log.watermarks.written) == (11, 0)
    assert log.read(0, 11) == b""
    assert not log.holds(0, 5)
    log.seal()
    assert (log._parts, log.watermarks.written, log.watermarks.written_timestamp) == ([], 11, 1)
    assert log.read(0, 11) == b"firstsecond"
    log.seal()
    assert log.watermarks.written == 11


def test_reads_at_every_boundary(log: CommitLog) -> None:
    append(log, b"a" * 100)
    append(log, b"b" * (SIZE - 100 - BLANK_SIZE))
    append(log, b"c" * 50)
    log.seal()
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
    log.seal()
    assert log.read(1000, 8) == BLANK.pack(SIZE - 1000, BLANK_MAGIC)


def test_a_roll_seals_what_was_gathered_before(log: CommitLog) -> None:
    append(log, b"a" * (SIZE - 100))
    assert append(log, b"b" * 200) == SIZE
    assert log.watermarks.written == SIZE
    assert log.read(0, 3) == b"aaa"
    log.seal()
    assert log.read(SIZE, 200) == b"b" * 200


def test_too_long_for_any_segment(log: CommitLog) -> None:
    for size in (SIZE - BLANK_SIZE + 1, SIZE, 1 << 40):
        with pytest.raises(PutError) as refused:
            log.make_room(size)
        assert refused.value.status is PutStatus.MESSAGE_ILLEGAL
    assert log.position == 0
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
        position = append(log, data)
        assert log.position <= log.limit <= SIZE - BLANK_SIZE
        assert position == len(written)
        written += data
        if number % 7 == 0:
            log.seal()
    log.seal()
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
    state = (log.position, log.limit, len(log._parts))
    for _ in range(3):
        with pytest.raises(PutError) as refused:
            log.make_room(500)
        assert refused.value.status is PutStatus.CREATE_MAPEDFILE_FAILED
    assert (log.position, log.limit, len(log._parts)) == state
    assert append(log, b"still fits") == end - 100
    log.seal()
    monkeypatch.undo()
    assert append(log, b"b" * 500) == end
    log.seal()
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
    append(log, b"a" * (SIZE - 100), now=7)
    append(log, b"b" * 500, now=8)
    log.seal()
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
    log.seal()
    log.flush()
    assert synced == [0, SIZE, SIZE]


def test_a_segment_whose_file_was_removed_is_viewed_as_long_as_it_is_mapped(
    log: CommitLog, tmp_path: Path
) -> None:
    append(log, b"still there")
    log.seal()
    path = log.segments.files[0].path
    path.rename(tmp_path / "elsewhere")
    assert bytes(log.view(6, 5)) == b"there"
    (tmp_path / "elsewhere").rename(path)


def test_old_pages_are_let_go_and_read_again(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "_MAX_RESIDENT", 4096)
    data = [bytes([65 + n]) * (SIZE - 100) for n in range(3)]
    for piece in data:
        append(log, piece)
    log.seal()
    log.flush()
    log.release_old_pages()
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
    again.seal()
    assert again.read(299, 5) == b"xy"
    again.stop()


def test_it_may_begin_behind_deleted_segments(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, SIZE)
    log.start(5 * SIZE)
    assert append(log, b"x") == 5 * SIZE
    log.seal()
    assert log.min_offset == 5 * SIZE
    log.stop()
    assert [path.name for path in tmp_path.iterdir()] == [f"{5 * SIZE:020d}"]


def test_after_a_stop_there_is_no_room(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, SIZE)
    log.start(0)
    append(log, b"x")
    log.stop()
    assert log.limit == 0, "the next put must ask for room, and is refused there"
