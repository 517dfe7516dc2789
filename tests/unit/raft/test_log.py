from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pyromq.raft import placement
from pyromq.raft.format import Entry, FormatError
from pyromq.raft.log import RaftLog
from pyromq.raft.placement import MismatchError
from pyromq.store.results import StoreError
from tests.support.raft_logs import DATA_FILE, body_of, entries_of, open_log, stored_bytes


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a node."""
    return tmp_path / "dledger-n0"


def filled(directory: Path, count: int = 30, size: int = 500) -> RaftLog:
    """A log of several files."""
    log = open_log(directory)
    log.append_bodies(1, [body_of(index, 1, size) for index in range(count)])
    return log


def snapshot(log: RaftLog) -> tuple[int, ...]:
    return log.begin_index, log.end_index, log.end_term, log.next_index, log.written, log.flushed


def test_a_new_log_is_empty(directory: Path) -> None:
    log = open_log(directory)
    assert snapshot(log) == (-1, -1, -1, 0, 0, 0)
    assert (log.committed_index, log.flushed_index, log.committed_position) == (-1, -1, 0)
    with pytest.raises(IndexError, match="entry 0 is not in"):
        log.entry(0)
    assert entries_of(log) == []
    log.append_bodies(1, [])
    log.append([])
    assert log.append_raw(b"") == 0
    log.stop()
    again = open_log(directory)
    assert snapshot(again) == (-1, -1, -1, 0, 0, 0)
    again.stop()


def test_a_leader_numbers_and_places_entries(directory: Path) -> None:
    log = open_log(directory)
    assert log.positions([100, 200]) == [0, 148]
    assert log.append_bodies(3, [b"a" * 100, b"b" * 200]) == 0
    assert log.append_bodies(4, [b"c"]) == 2
    assert log.entry(1) == Entry(1, 3, 148, b"b" * 200)
    assert log.entry(2).size == 49
    assert log.term(2) == 4
    assert snapshot(log) == (0, 2, 4, 3, 445, 0)
    log.stop()


def test_a_restart_finds_everything(directory: Path) -> None:
    log = filled(directory)
    stored = entries_of(log)
    log.commit(17)
    log.stop()
    again = open_log(directory)
    assert entries_of(again) == stored
    assert (again.committed_index, again.flushed_index) == (17, 29)
    assert again.flushed == again.written
    assert again.committed_position == stored[17].position + 548
    again.stop()


def test_a_follower_gets_the_same_files(directory: Path, tmp_path: Path) -> None:
    leader = filled(directory)
    one = open_log(tmp_path / "one" / "dledger-n0")
    for index in range(0, 30, 4):
        one.append([leader.entry(each) for each in range(index, min(30, index + 4))])
    two = open_log(tmp_path / "two" / "dledger-n0")
    while two.next_index < leader.next_index:
        run = leader.run(two.next_index, 2000)
        assert run.count == two.append_raw(run.data)
        assert run.position == two.place(run.first_index).position
    assert entries_of(one) == entries_of(two) == entries_of(leader)
    end = (leader.written, leader.end_index)
    for log in (leader, one, two):
        log.stop()
    expected = stored_bytes(tmp_path, *end)
    assert stored_bytes(tmp_path / "one", *end) == expected
    assert stored_bytes(tmp_path / "two", *end) == expected


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (Entry(31, 1, 17_120, b"x"), "entry 31 instead of 30"),
        (Entry(29, 1, 17_120, b"x"), "entry 29 instead of 30"),
        (Entry(30, 1, 17_121, b"x"), "continues at 17480"),
        (Entry(30, 1, 24_576, b"x"), "continues at 17480"),
        (Entry(30, 0, 17_480, b"x"), "term"),
        (Entry(30, 1, 17_480, b""), "an entry of 48 bytes"),
        (Entry(30, 1, 17_480, bytes(DATA_FILE)), "an entry of 4144 bytes"),
    ],
)
def test_an_entry_that_does_not_follow_changes_nothing(
    entry: Entry, reason: str, directory: Path
) -> None:
    log = filled(directory)
    log.flush()
    before = snapshot(log), [file.path.read_bytes() for file in log.files.files]
    with pytest.raises(MismatchError, match=reason):
        log.append([entry])
    assert (snapshot(log), [file.path.read_bytes() for file in log.files.files]) == before
    log.stop()


def test_indexes_with_a_gap_are_refused(directory: Path) -> None:
    log = open_log(directory)
    with pytest.raises(MismatchError, match="not consecutive"):
        log.append([Entry(0, 1, 0, b"x"), Entry(2, 1, 49, b"y")])
    log.append_bodies(1, [b"x", b"y"])
    run = log.run(0, 1000)
    with pytest.raises(MismatchError, match="entry 0 instead of 2"):
        log.append_raw(run.data)
    with pytest.raises(FormatError):
        log.append_raw(run.data[:-1])
    log.stop()


def test_a_run_ends_with_its_file_and_its_limits(directory: Path) -> None:
    log = filled(directory)
    assert log.run(0, 1).count == 1
    assert log.run(0, 548 * 3 + 547).count == 3
    assert log.run(0, 1 << 20, 2).count == 2
    assert log.run(3, 1 << 20).count == 4
    assert len(log.run(28, 1 << 20).data) == 2 * 548
    with pytest.raises(IndexError):
        log.run(30, 1)
    log.stop()


def test_entries_are_found_by_position(directory: Path) -> None:
    log = filled(directory)
    for entry in entries_of(log):
        assert log.index_at(entry.position) == entry.index
        assert log.index_at(entry.position + 1) == entry.index + 1
    assert log.index_at(log.written) == 30
    assert log.read(548 + 48, 5) == body_of(1, 1, 5)
    assert log.read(log.written - 3, 100) == body_of(29, 1, 500)[-3:]
    log.stop()


@pytest.mark.parametrize("failing", range(4))
def test_a_full_disk_changes_nothing(
    failing: int, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any of the reservations of an append that opens two files."""
    log = filled(directory, 12)
    log.flush()
    before, files = snapshot(log), len(log.files.files)
    reserve, calls = os.posix_fallocate, 0

    def full(descriptor: int, start: int, length: int) -> None:
        nonlocal calls
        calls += 1
        if calls > failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(descriptor, start, length)

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space left"):
            log.append_bodies(2, [bytes(1500)] * 8)
    assert (snapshot(log), len(log.files.files)) == (before, files)
    log.append_bodies(2, [body_of(index, 2, 1500) for index in range(12, 20)])
    stored = entries_of(log)
    assert [bytes(entry.body) for entry in stored[12:]] == [
        body_of(index, 2, 1500) for index in range(12, 20)
    ]
    log.stop()
    again = open_log(directory)
    assert entries_of(again) == stored
    again.stop()


def test_the_flush_mark_follows(directory: Path) -> None:
    log = open_log(directory)
    log.append_bodies(1, [b"x"])
    assert (log.flushed, log.flushed_index) == (0, -1)
    log.flush()
    assert (log.flushed, log.flushed_index) == (49, 0)
    log.stop()


def test_the_committed_index_is_capped_and_never_falls(directory: Path) -> None:
    log = filled(directory)
    assert not log.commit(-1)
    assert log.commit(5)
    assert not log.commit(4)
    assert log.committed_index == 5
    assert log.commit(1000)
    assert (log.committed_index, log.committed_position) == (29, log.written)
    log.stop()


def test_the_checkpoint_is_java_s(directory: Path) -> None:
    log = filled(directory)
    log.commit(20)
    log.save_checkpoint()
    # Nothing is on disk yet, so nothing counts as committed after a power cut.
    assert (directory / "checkpoint").read_bytes() == (
        b"endIndex=29\ncommittedIndex=-1\nsyncedIndex=-1\n"
    )
    log.stop()
    assert (directory / "checkpoint").read_bytes() == (
        b"endIndex=29\ncommittedIndex=20\nsyncedIndex=29\n"
    )


def test_a_damaged_checkpoint_costs_only_the_committed_index(directory: Path) -> None:
    log = filled(directory)
    log.commit(20)
    log.stop()
    for name in ("checkpoint", "checkpoint.bak"):
        (directory / name).write_bytes(b"committedIndex=\xff\n")
    again = open_log(directory)
    assert (again.end_index, again.committed_index) == (29, -1)
    again.stop()


def test_expiry_removes_the_oldest_files(directory: Path) -> None:
    log = filled(directory)
    first = [file.base for file in log.files.files]
    assert len(first) == 5
    with pytest.raises(AssertionError, match="not committed"):
        log.take_first()
    log.commit(29)
    for base in first[:2]:
        file = log.take_first()
        assert file.base == base
        file.unlink()
    assert (log.begin_index, log.begin_position) == (14, first[2])
    assert not (directory / "data" / f"{first[1]:020d}").exists()
    with pytest.raises(IndexError):
        log.entry(13)
    assert bytes(log.entry(14).body) == body_of(14, 1, 500)
    for _ in range(2):
        log.take_first().unlink()
    with pytest.raises(AssertionError, match="the last file stays"):
        log.take_first()
    assert log.begin_index == 28
    log.append_bodies(1, [b"more"])
    stored = entries_of(log)
    log.stop()
    again = open_log(directory)
    assert entries_of(again) == stored
    assert sorted(path.name for path in (directory / "index").iterdir()) == [f"{512:020d}"]
    again.stop()


def test_a_run_that_expires_while_it_is_read_is_not_cut(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(directory)
    read = log.files.read
    monkeypatch.setattr(log.files, "read", lambda position, size: read(position, size)[:-1])
    with pytest.raises(IndexError, match="left meanwhile"):
        log.run(0, 2000)
    log.stop()


def test_large_batches_are_written_whole(tmp_path: Path) -> None:
    log = open_log(tmp_path, data_file_size=1 << 20, index_file_size=32 * 1000)
    bodies = [body_of(index, 1, 100 + index % 50) for index in range(20_000)]
    log.append_bodies(1, bodies)
    assert [bytes(entry.body) for entry in entries_of(log)] == bodies
    log.stop()
    again = open_log(tmp_path, data_file_size=1 << 20, index_file_size=32 * 1000)
    assert again.end_index == 19_999
    again.stop()


def test_another_file_size_is_refused(directory: Path) -> None:
    filled(directory).stop()
    with pytest.raises(StoreError, match="has 4096 bytes, not 8192"):
        open_log(directory, data_file_size=8192)
    with pytest.raises(StoreError, match="has 512 bytes, not 1024"):
        open_log(directory, index_file_size=1024)


@pytest.mark.parametrize("has_kernel", [True, False])
def test_raw_entries_are_checked_with_and_without_the_kernel(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_kernel: bool
) -> None:
    if not has_kernel:
        monkeypatch.setattr(placement, "_kernel", None)
    leader = filled(directory)
    follower = open_log(tmp_path / "follower" / "dledger-n0")
    while follower.next_index < leader.next_index:
        run = leader.run(follower.next_index, 2000)
        before = snapshot(follower)
        for wrong in ({"expected": run.count + 1}, {"max_term": 0}):
            with pytest.raises(MismatchError, match=f"{run.count} entries up to term 1"):
                follower.append_raw(run.data, **wrong)
        with pytest.raises((MismatchError, FormatError)):
            follower.append_raw(run.data[1:])
        assert snapshot(follower) == before
        assert follower.append_raw(run.data, expected=run.count, max_term=1) == run.count
    assert _bytes_of(follower) == _bytes_of(leader)
    leader.stop()
    follower.stop()


def _bytes_of(log: RaftLog) -> tuple[bytes, bytes]:
    return stored_bytes(log.directory.parent, log.written, log.end_index)
