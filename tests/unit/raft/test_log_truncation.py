from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.raft import truncation_file
from pyromq.raft.format import Entry, Truncation, encode_truncation
from pyromq.raft.log import RaftLog
from pyromq.raft.placement import MismatchError
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.results import StoreError
from tests.support.raft_logs import DATA_FILE, body_of, entries_of, open_log

COUNT = 30


@pytest.fixture
def log(tmp_path: Path) -> RaftLog:
    """A log of five files, entries of 548 bytes, seven per file."""
    log = open_log(tmp_path)
    log.append_bodies(1, [body_of(index, 1, 500) for index in range(COUNT)])
    return log


@pytest.mark.parametrize("flush", [True, False])
@pytest.mark.parametrize("index", [1, 6, 7, 8, 14, 29])
def test_the_rest_is_gone(index: int, flush: bool, log: RaftLog) -> None:
    if flush:
        log.flush()
    kept = entries_of(log)[:index]
    log.truncate(index)
    assert entries_of(log) == kept
    assert (log.end_index, log.next_index) == (index - 1, index)
    assert log.written == kept[-1].position + 548
    assert (log.flushed_index, log.flushed) == ((index - 1, log.written) if flush else (-1, 0))
    last = log.files.files[-1]
    assert not any(last.read(log.written - last.base, last.size)), "a blank goes, too"
    # Smaller, so that it fits where the blank was.
    log.append_bodies(2, [b"new"])
    assert log.place(index).position == kept[-1].position + 548
    stored = entries_of(log)
    log.stop()
    again = open_log(log.directory)
    assert entries_of(again) == stored
    assert not (log.directory / "truncation").exists()
    again.stop()


def test_truncating_at_the_end_does_nothing(log: RaftLog) -> None:
    log.truncate(COUNT)
    assert log.end_index == COUNT - 1
    with pytest.raises(IndexError):
        log.truncate(COUNT + 1)
    log.stop()


def test_the_first_entry_may_go(log: RaftLog) -> None:
    log.truncate(0)
    assert (log.begin_index, log.end_index, log.next_index, log.written) == (-1, -1, 0, 0)
    log.append([Entry(0, 3, 0, b"again")])
    assert log.entry(0).term == 3
    log.stop()


def test_committed_entries_stay(log: RaftLog) -> None:
    log.commit(10)
    with pytest.raises(StoreError, match="entries up to 10 are committed"):
        log.truncate(10)
    assert log.end_index == COUNT - 1
    log.truncate(11)
    assert log.end_index == 10
    log.stop()


@pytest.mark.parametrize("index", [0, 10])
def test_a_push_does_not_replace_committed_entries(index: int, log: RaftLog) -> None:
    log.commit(10)
    with pytest.raises(StoreError, match="contradicts the leader's"):
        log.truncate_to(Entry(index, 2, log.place(index).position, b"other"))
    assert log.end_index == COUNT - 1
    log.stop()


def test_a_push_of_a_stored_entry_cuts_after_it(log: RaftLog) -> None:
    log.truncate_to(log.entry(20))
    assert log.end_index == 20
    log.stop()


@pytest.mark.parametrize("index", [20, COUNT])
def test_a_push_of_another_entry_keeps_nothing(index: int, log: RaftLog) -> None:
    """Although it fits behind the entry before it."""
    position = log.place(index - 1).end
    log.truncate_to(Entry(index, 2, position, b"other"))
    assert entries_of(log) == [Entry(index, 2, position, b"other")]
    log.stop()


def test_a_first_push_needs_no_rebuild(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    monkeypatch.setattr(log, "rebuild", None)
    log.truncate_to(Entry(0, 2, 0, b"first"))
    assert log.end_index == 0
    log.stop()


@pytest.mark.parametrize(("index", "position"), [(500, 10 * DATA_FILE), (20, 123), (0, 0)])
def test_a_push_of_an_unknown_entry_rebuilds_the_log(
    index: int, position: int, log: RaftLog
) -> None:
    log.truncate_to(Entry(index, 2, position, b"first"))
    assert (log.begin_index, log.end_index, log.begin_position) == (index, index, position)
    assert log.written == position + 53
    log.append_bodies(2, [body_of(0, 2, 3000), body_of(1, 2, 3000)])
    stored = entries_of(log)
    log.stop()
    again = open_log(log.directory)
    assert entries_of(again) == stored
    again.stop()


def test_a_push_that_fits_nowhere_changes_nothing(log: RaftLog) -> None:
    stored = entries_of(log)
    for entry in (Entry(5, 2, 4090, b"x"), Entry(5, 2, 0, b"")):
        with pytest.raises(MismatchError):
            log.truncate_to(entry)
    with pytest.raises(ValueError, match="entry -1"):
        log.rebuild(-1, 0)
    assert entries_of(log) == stored
    log.stop()


def test_a_rebuilt_log_has_nothing_committed(log: RaftLog) -> None:
    log.flush()
    log.commit(20)
    log.rebuild(700, 10 * DATA_FILE)
    assert (log.committed_index, log.begin_index, log.next_index) == (-1, -1, 700)
    assert [file.base for file in log.files.files] == [10 * DATA_FILE]
    log.stop()


@pytest.mark.parametrize("rebuild", [True, False])
def test_an_interrupted_truncation_is_completed(rebuild: bool, log: RaftLog) -> None:
    log.commit(2)
    kept = [] if rebuild else entries_of(log)[:4]
    position = log.place(4).position
    log.stop()
    path = log.directory / "truncation"
    path.write_bytes(encode_truncation(Truncation(4, position, rebuild)))
    again = open_log(log.directory)
    assert entries_of(again) == kept
    assert again.committed_index == (-1 if rebuild else 2)
    assert not again.must_catch_up
    assert not path.exists()
    again.stop()


def test_a_damaged_truncation_stops_the_node(log: RaftLog) -> None:
    log.stop()
    (log.directory / "truncation").write_bytes(b"nextIndex=4\n")
    with pytest.raises(StoreError, match="nextPosition"):
        open_log(log.directory)


def test_the_intent_is_on_disk_before_anything_goes(
    log: RaftLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no")

    stored = entries_of(log)
    with monkeypatch.context() as patched:
        patched.setattr(truncation_file, "write_file", refuse)
        with pytest.raises(OSError, match="no"):
            log.truncate(5)
    assert entries_of(log) == stored
    log.stop()


def test_nothing_is_appended_after_a_failed_truncation(
    log: RaftLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start would complete the truncation, and remove what is new."""

    def refuse(_: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as patched:
        patched.setattr(MappedFile, "sync", refuse)
        with pytest.raises(OSError, match="no"):
            log.truncate(5)
    with pytest.raises(OSError, match="restart the node"):
        log.append_bodies(1, [b"x"])
    log.stop()
    again = open_log(log.directory)
    assert again.end_index == 4
    again.append_bodies(1, [b"x"])
    again.stop()
