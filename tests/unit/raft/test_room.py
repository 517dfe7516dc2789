"""Room for entries before they are written: in this file, in the next one, or nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.raft.log import RaftLog

FILE = 1 << 16


@pytest.fixture
def log(tmp_path: Path) -> RaftLog:
    log = RaftLog(tmp_path, data_file_size=FILE)
    log.start()
    return log


def test_room_is_where_the_entry_will_be(log: RaftLog) -> None:
    for size in (1000, 40_000, 20_000, 30_000, 1):
        position, limit = log.make_room(48 + size)
        assert log.positions([size]) == [position]
        assert position + 48 + size <= limit <= position - position % FILE + FILE - 8
        log.append_bodies(1, [bytes(size)])
        assert log.written == position + 48 + size
    log.stop()


def test_room_that_is_not_used_changes_nothing(log: RaftLog) -> None:
    log.append_bodies(1, [bytes(40_000)])
    assert log.make_room(30_048)[0] == FILE
    assert log.make_room(1048)[0] == log.written
    assert log.append_bodies(1, [bytes(1000), bytes(30_000)]) == 1
    assert log.place(2).position == FILE
    assert log.make_room(48 + 60_000)[0] == 2 * FILE
    log.truncate(1)
    assert log.append_bodies(1, [bytes(20_000)]) == 1
    log.stop()
    again = RaftLog(log.directory, data_file_size=FILE)
    again.start()
    assert again.end_index == 1
    again.stop()


def test_entries_of_several_files_are_reserved_together(log: RaftLog) -> None:
    sizes = [30_000] * 7
    positions = log.reserve([48 + size for size in sizes])
    assert positions == log.positions(sizes)
    assert {position // FILE for position in positions} == {0, 1, 2, 3}
    log.append_bodies(1, [bytes(size) for size in sizes])
    assert [log.place(index).position for index in range(7)] == positions
    log.stop()


def test_a_full_disk_leaves_the_log_as_it_was(
    log: RaftLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append_bodies(1, [bytes(50_000)])

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(log.files._allocation, "take_next", refuse)
        for attempt in (lambda: log.make_room(30_000), lambda: log.reserve([30_000, 30_000])):
            with pytest.raises(OSError, match="No space"):
                attempt()
    log.append_bodies(1, [bytes(100), bytes(30_000)])
    assert log.end_index == 2
    log.stop()
