from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.protocol.message.record import BLANK, BLANK_MAGIC
from pyromq.store.log.segments import Segments
from pyromq.store.recovery.mixed_mode import close_old_log
from tests.support.raft_logs import DATA_FILE, body_of, open_log


def old_log(directory: Path, count: int) -> Segments:
    segments = Segments(directory, DATA_FILE)
    for _ in range(count):
        segments.create_next()
    return segments


@pytest.mark.parametrize("end", [DATA_FILE, DATA_FILE + 500, 2 * DATA_FILE - 8])
def test_the_last_segment_is_closed_by_a_blank_record(end: int, tmp_path: Path) -> None:
    segments = old_log(tmp_path, 2)
    assert close_old_log(segments, end) == 2 * DATA_FILE
    last = segments.files[-1].path.read_bytes()
    blank = BLANK.pack(2 * DATA_FILE - end, BLANK_MAGIC)
    assert last[end - DATA_FILE :][:8] == blank
    assert not any(last[: end - DATA_FILE])
    assert close_old_log(segments, end) == 2 * DATA_FILE
    assert segments.files[-1].path.read_bytes() == last


def test_a_blank_record_of_java_is_kept(tmp_path: Path) -> None:
    segments = old_log(tmp_path, 1)
    segments.files[0].reserve(108)
    segments.files[0].write(100, BLANK.pack(77, BLANK_MAGIC))
    assert close_old_log(segments, 100) == DATA_FILE
    assert segments.files[0].read(100, 108) == BLANK.pack(77, BLANK_MAGIC)


def test_a_full_log_needs_no_blank(tmp_path: Path) -> None:
    segments = old_log(tmp_path, 1)
    assert close_old_log(segments, DATA_FILE) == DATA_FILE
    assert not any(segments.files[0].path.read_bytes())


def test_without_an_old_log_the_raft_log_begins_at_zero(tmp_path: Path) -> None:
    assert close_old_log(Segments(tmp_path, DATA_FILE), 0) == 0


def test_the_raft_log_begins_at_the_divided_offset(tmp_path: Path) -> None:
    divided = close_old_log(old_log(tmp_path / "commitlog", 3), 2 * DATA_FILE + 10)
    log = open_log(tmp_path / "dledger-n0", first_position=divided)
    assert (tmp_path / "dledger-n0" / "data" / f"{divided:020d}").exists()
    log.append_bodies(1, [body_of(0, 1, 100)])
    assert log.place(0).position == 3 * DATA_FILE
    log.stop()
    again = open_log(tmp_path / "dledger-n0")
    assert (again.begin_index, again.begin_position) == (0, divided)
    again.stop()


def test_a_position_within_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not at a multiple"):
        open_log(tmp_path, first_position=100)
