"""A consume queue alone: entries over file ends, recovery, truncation, syncs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY, PRE_BLANK_ENTRY
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.results import PutError, PutStatus, StoreError

PER_FILE = 4
SIZE = PER_FILE * 20


def make(directory: Path, count: int = 0, *, size: int = SIZE) -> ConsumeQueue:
    queue = ConsumeQueue(directory, size, "Topic", 3)
    for number in range(count):
        queue.append_many(CONSUME_QUEUE_ENTRY.pack(number * 100, 100, number))
    queue.write_pending()
    return queue


def loaded(directory: Path, *, size: int = SIZE) -> ConsumeQueue:
    queue = ConsumeQueue(directory, size, "Topic", 3)
    queue.segments.load()
    queue.recover()
    return queue


def files(queue: ConsumeQueue) -> list[int]:
    return sorted(int(path.name) for path in queue.segments.directory.iterdir())


def test_constants_of_a_put(tmp_path: Path) -> None:
    queue = ConsumeQueue(tmp_path, SIZE, "Grüße", 0)
    assert queue.topic_part == b"\x07" + "Grüße".encode()
    assert queue.fixed_size == 88 + 8 + 2
    assert ConsumeQueue(tmp_path, SIZE, "T", 0, 100).fixed_size == 100 + 2 + 2


def test_no_file_is_made_before_the_first_entry(tmp_path: Path) -> None:
    queue = make(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert (queue.next_offset, queue.min_offset, queue.read(0, 10)) == (0, 0, b"")
    assert queue.entry(0) is None
    assert queue.last_physical_offset() == 0
    assert list(queue.entries()) == []
    queue.delete()
    queue.close()


@pytest.mark.parametrize("count", range(1, 3 * PER_FILE + 2))
def test_pending_entries_over_several_files(tmp_path: Path, count: int) -> None:
    queue = make(tmp_path, count)
    assert [queue.entry(n) for n in range(count)] == [(n * 100, 100, n) for n in range(count)]
    assert list(queue.entries()) == [(n * 100, 100, n) for n in range(count)]
    assert queue.entry(count) is queue.entry(-1) is None
    assert queue.last_physical_offset() == count * 100
    queue.close()
    again = loaded(tmp_path)
    assert again.next_offset == count
    again.close()


def test_a_read_ends_with_its_file_or_with_the_queue(tmp_path: Path) -> None:
    queue = make(tmp_path, 6)
    for offset, count, expected in (
        (0, 100, 4),
        (0, 2, 2),
        (3, 100, 1),
        (4, 100, 2),
        (5, 1, 1),
        (6, 1, 0),
        (8, 1, 0),
        (0, 0, 0),
        (0, -3, 0),
        (-1, 5, 0),
        (1 << 60, 1, 0),
    ):
        assert len(queue.read(offset, count)) == expected * 20, (offset, count)
    assert queue.segment_after(0) == queue.segment_after(3) == 4
    assert queue.segment_after(4) == 8
    queue.close()


def test_room_is_reserved_before_it_is_used(tmp_path: Path) -> None:
    queue = make(tmp_path, size=20 * 1000)
    queue.extend()
    assert queue.room == 4096 // 20
    queue.next_offset = queue.room
    queue.extend()
    assert queue.room >= 2 * (4096 // 20)
    queue.next_offset = 990
    queue.extend(30)
    assert queue.room >= 1020
    assert files(queue) == [0, 20_000]
    queue.close()


def test_a_full_disk_is_a_put_error_and_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make(tmp_path, 3)

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    for _ in range(2):
        with pytest.raises(PutError, match="No space") as refused:
            queue.extend(PER_FILE)
        assert refused.value.status is PutStatus.CREATE_MAPEDFILE_FAILED
        assert "Topic/3" in refused.value.reason
    assert queue.next_offset == 3
    queue.append_many(CONSUME_QUEUE_ENTRY.pack(300, 100, 3))
    with pytest.raises(PutError):
        queue.append_many(CONSUME_QUEUE_ENTRY.pack(400, 100, 4))
    assert queue.next_offset == 4
    monkeypatch.undo()
    queue.append_many(CONSUME_QUEUE_ENTRY.pack(400, 100, 4))
    queue.write_pending()
    assert [entry[0] for entry in queue.entries()] == [0, 100, 200, 300, 400]
    queue.close()
    again = loaded(tmp_path)
    again.truncate(500)
    assert again.next_offset == 5
    again.close()


@given(count=st.integers(0, 14), ahead=st.integers(0, 9), end=st.integers(-1, 1500))
def test_truncation_drops_what_ends_behind(
    tmp_path_factory: pytest.TempPathFactory, count: int, ahead: int, end: int
) -> None:
    directory = tmp_path_factory.mktemp("queue")
    queue = make(directory, count)
    if ahead:
        queue.extend(ahead)
    queue.close()
    again = loaded(directory)
    again.truncate(end)
    kept = min(count, max(0, end // 100))
    assert again.next_offset == kept
    assert [entry[2] for entry in again.entries()] == list(range(kept))
    assert all(file.base <= kept * 20 for file in again.segments.files)
    for number in range(kept, kept + 5):
        again.append_many(CONSUME_QUEUE_ENTRY.pack(number * 100, 100, number))
    again.write_pending()
    again.close()
    third = loaded(directory)
    assert third.next_offset == kept + 5, "something stale was taken for an entry"
    third.close()


def test_a_queue_goes_on_behind_expired_messages(tmp_path: Path) -> None:
    queue = make(tmp_path)
    queue.skip_to(10)
    queue.append_many(CONSUME_QUEUE_ENTRY.pack(5000, 100, 1))
    queue.append_many(CONSUME_QUEUE_ENTRY.pack(5100, 100, 2))
    queue.write_pending()
    assert files(queue) == [2 * SIZE]
    assert (queue.min_offset, queue.next_offset) == (10, 12)
    assert queue.segments.files[0].read(0, 40) == PRE_BLANK_ENTRY * 2
    assert queue.entry(10) == (5000, 100, 1)
    assert queue.entry(9) is None
    queue.close()
    again = loaded(tmp_path)
    assert again.next_offset == 12
    again.truncate(5100)
    assert again.next_offset == 11
    again.correct_min_offset(0)
    assert again.min_offset == 10
    again.truncate(0)
    assert again.next_offset == 10, "blank entries are no messages, and stay"
    assert again.last_physical_offset() == 0
    again.close()


def test_a_hole_in_the_middle_is_filled_or_refused(tmp_path: Path) -> None:
    queue = make(tmp_path, 2)
    queue.skip_to(5)
    queue.append_many(CONSUME_QUEUE_ENTRY.pack(500, 100, 5))
    queue.write_pending()
    assert queue.next_offset == 6
    assert queue.entry(5) == (500, 100, 5)
    with pytest.raises(StoreError, match="rebuild"):
        queue.skip_to(100)
    queue.close()


@pytest.mark.parametrize(
    ("min_physical", "expected"),
    [(0, 0), (1, 1), (100, 1), (399, 4), (400, 4), (899, 9), (900, 9), (901, 10), (5000, 10)],
)
def test_the_first_message_is_the_first_in_the_log(
    tmp_path: Path, min_physical: int, expected: int
) -> None:
    queue = make(tmp_path, 10)
    queue.correct_min_offset(min_physical)
    assert queue.min_offset == expected
    queue.close()


def test_every_file_that_was_written_to_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(MappedFile, "sync", lambda self: synced.append(self.base // SIZE))
    queue = make(tmp_path, 3 * PER_FILE + 1)
    queue.sync()
    assert synced == [0, 1, 2, 3], "entries of one chunk may lie in more than two files"
    synced.clear()
    queue.append_many(CONSUME_QUEUE_ENTRY.pack(9000, 100, 0))
    queue.write_pending()
    queue.sync()
    assert synced == [3], "full files need no second sync"
    queue.close()
    synced.clear()
    again = loaded(tmp_path)
    again.truncate(1 << 40)
    again.append_many(CONSUME_QUEUE_ENTRY.pack(9900, 100, 0))
    again.write_pending()
    again.sync()
    assert synced == [3], "what was there before the start is on the disk"
    again.delete()


def test_a_file_without_blocks_is_not_read_by_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full tmpfs, reading a hole of a mapped file ends the process with SIGBUS."""
    queue = make(tmp_path / "queue", SIZE // 20)
    with monkeypatch.context() as patched:

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "no space left")

        patched.setattr(MappedFile, "reserve", full)
        with pytest.raises(PutError):
            queue.append_many(CONSUME_QUEUE_ENTRY.pack(0, 1, 0))
    assert files(queue) == [0, SIZE]
    read, bases = MappedFile.read, list[int]()

    def noted(self: MappedFile, begin: int, end: int) -> bytes:
        bases.append(self.base)
        return read(self, begin, end)

    monkeypatch.setattr(MappedFile, "read", noted)
    queue.sync()
    assert bases == [0]


def test_deleting_forgets_everything(tmp_path: Path) -> None:
    queue = make(tmp_path, 6)
    queue.append_many(CONSUME_QUEUE_ENTRY.pack(600, 100, 6))
    queue.delete()
    assert (queue.next_offset, queue.min_offset, queue.room, len(queue.pending)) == (0, 0, 0, 0)
    assert not queue.segments.directory.exists()
    queue.append_many(CONSUME_QUEUE_ENTRY.pack(700, 100, 0))
    queue.write_pending()
    assert list(queue.entries()) == [(700, 100, 0)]
    queue.close()


@pytest.mark.parametrize(
    ("count", "kept"), [(0, []), (1, [0]), (PER_FILE, [0]), (PER_FILE + 1, [0, SIZE])]
)
def test_files_without_an_entry_can_be_dropped(tmp_path: Path, count: int, kept: list[int]) -> None:
    queue = make(tmp_path, count)
    queue.extend(PER_FILE + 1)
    queue.drop_unused()
    assert files(queue) == kept
    queue.append_many(CONSUME_QUEUE_ENTRY.pack(count * 100, 100, 0))
    queue.write_pending()
    assert queue.entry(count) == (count * 100, 100, 0)
    queue.close()


def test_the_file_that_says_where_a_queue_is_stays(tmp_path: Path) -> None:
    """All its messages have left the log, and the next one gets the next offset."""
    queue = make(tmp_path, PER_FILE)
    queue.extend()
    queue.segments.files.pop(0).delete()
    queue.drop_unused()
    queue.close()
    assert files(queue) == [SIZE]
    queue = loaded(tmp_path)
    assert queue.next_offset == PER_FILE
    queue.close()


def test_close_writes_what_is_pending(tmp_path: Path) -> None:
    queue = make(tmp_path, 2)
    queue.append_many(CONSUME_QUEUE_ENTRY.pack(200, 100, -(1 << 63)))
    queue.close()
    data = (tmp_path / "Topic/3" / f"{0:020d}").read_bytes()
    assert CONSUME_QUEUE_ENTRY.unpack_from(data, 40) == (200, 100, -(1 << 63))


@pytest.mark.parametrize(
    ("count", "min_physical", "expired", "first"),
    [
        (10, 0, 0, 0),
        (10, 300, 0, 3),  # entry 3, the last of its file, begins there
        (10, 301, 1, 4),
        (10, 700, 1, 7),
        (10, 701, 2, 8),
        (10, 5000, 2, 10),  # the last file stays, with nothing that is left
        (8, 5000, 1, 8),
        (3, 5000, 0, 3),
        (0, 5000, 0, 0),
    ],
)
def test_whole_files_expire(
    tmp_path: Path, count: int, min_physical: int, expired: int, first: int
) -> None:
    queue = make(tmp_path, count)
    gone = queue.take_expired(min_physical)
    assert [file.base for file in gone] == [number * SIZE for number in range(expired)]
    assert (queue.min_offset, queue.next_offset) == (first, count)
    for file in gone:
        assert len(file.read(0, SIZE)) == SIZE, "still mapped"
        file.unlink()
    again = loaded(tmp_path)
    again.correct_min_offset(min_physical)
    assert (again.min_offset, again.next_offset) == (first, count)
    again.append_many(CONSUME_QUEUE_ENTRY.pack(9000, 100, 0))
    again.close()
    queue.close()


def test_a_file_that_is_not_full_does_not_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk in the middle of a batch leaves one behind a file with room."""
    queue = make(tmp_path, 3)
    reserve = MappedFile.reserve

    def full(self: MappedFile, end: int) -> None:
        if self.base:
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(self, end)

    monkeypatch.setattr(MappedFile, "reserve", full)
    with pytest.raises(PutError):
        queue.extend(3)
    assert len(queue.segments.files) == 2
    assert queue.take_expired(100) == []
    assert (queue.min_offset, queue.next_offset) == (1, 3)
    queue.close()


def test_a_file_that_expires_during_a_sync_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make(tmp_path, 2 * PER_FILE + 1)
    synced: list[int] = []

    def sync(self: MappedFile) -> None:
        if self.base == 0:
            for file in queue.take_expired(PER_FILE * 100):
                file.unlink()
        self.path.stat()
        synced.append(self.base)

    monkeypatch.setattr(MappedFile, "sync", sync)
    queue.sync()
    assert synced == [SIZE, 2 * SIZE]
    queue.segments.files[-1].unlink()
    with pytest.raises(FileNotFoundError):
        queue.sync()
    queue.close()


@pytest.mark.parametrize("split", [1, 3, 4, 5, 11])
def test_many_entries_at_once_are_those_one_by_one(tmp_path: Path, split: int) -> None:
    plain = make(tmp_path / "plain", 11)
    entries = b"".join(CONSUME_QUEUE_ENTRY.pack(n * 100, 100, n) for n in range(11))
    queue = ConsumeQueue(tmp_path / "many", SIZE, "Topic", 3)
    for begin in range(0, len(entries), split * 20):
        queue.append_many(entries[begin : begin + split * 20])
        queue.write_pending()
    assert queue.next_offset == 11
    assert list(queue.entries()) == list(plain.entries())
    plain.close()
    queue.close()
