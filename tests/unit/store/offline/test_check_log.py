"""The walk of a check goes on behind damage and gives every whole record once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.store.offline.check_files import SegmentFiles
from pyromq.store.offline.check_log import LogCheck
from tests.unit.store.recovery.test_walk import SEGMENT, WrittenLog

COUNT = 60


@pytest.fixture
def written(tmp_path: Path) -> WrittenLog:
    written = WrittenLog(tmp_path / "log")
    for number in range(COUNT):
        written.add(b"%02d" % number * (number % 50 + 1))
    written.open().segments.close()
    return written


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyromq.store.offline.check_log._SECONDS_BETWEEN_READS", 0.0)


def check(written: WrittenLog, *, may_move: bool = False) -> tuple[list[int], LogCheck]:
    files = SegmentFiles(written.directory, SEGMENT)
    assert list(files.load()) == []
    log = LogCheck(files, may_move=may_move)
    places = [
        piece.base + start for piece in log.pieces() for start in piece.columns.starts.tolist()
    ]
    return places, log


def patch(written: WrittenLog, place: int, data: bytes) -> None:
    path = written.directory / f"{place - place % SEGMENT:020d}"
    with path.open("r+b") as file:
        file.seek(place % SEGMENT)
        file.write(data)


def named(log: LogCheck) -> list[tuple[str, int]]:
    return [
        (violation.kind.name, int(violation.file.name) + violation.position)
        for violation in log.violations
    ]


@pytest.mark.parametrize("may_move", [False, True])
@pytest.mark.parametrize("piece", [200, 1 << 20])
def test_a_right_log(
    written: WrittenLog, monkeypatch: pytest.MonkeyPatch, piece: int, may_move: bool
) -> None:
    monkeypatch.setattr("pyromq.store.offline.check_log._PIECE_SIZE", piece)
    places, log = check(written, may_move=may_move)
    assert places == written.places
    assert (log.end, log.violations) == (written.end, [])


@pytest.mark.parametrize("piece", [200, 1 << 20])
@pytest.mark.parametrize("at", [0, 4, 84, 88])
def test_one_damaged_record_in_the_middle(
    written: WrittenLog, monkeypatch: pytest.MonkeyPatch, at: int, piece: int
) -> None:
    monkeypatch.setattr("pyromq.store.offline.check_log._PIECE_SIZE", piece)
    damaged = written.places[31]
    patch(written, damaged + at, b"\x7f")
    places, log = check(written, may_move=True)
    if at == 88:  # the body: still a record
        assert named(log) == [("BODY_CRC", damaged)]
        assert places == written.places
    else:
        assert named(log) == [("RECORD", damaged)]
        assert f"the next record is at {written.places[32]}" in log.violations[0].message
        assert places == [place for place in written.places if place != damaged]


def test_a_record_that_says_it_stands_elsewhere(written: WrittenLog) -> None:
    patch(written, written.places[5] + 28, (12345).to_bytes(8, "big"))
    places, log = check(written)
    assert places == written.places
    assert named(log) == [("RECORD", written.places[5])]
    assert "states physical offset 12345" in log.violations[0].message


def test_a_lost_blank_record(written: WrittenLog) -> None:
    last = max(place for place in written.places if place < SEGMENT)
    index = written.places.index(last)
    _, log = check(written)
    end = written.data.find(b"\xcb\xd4\x31\x94", last) - 4
    patch(written, end, bytes(8))
    places, log = check(written)
    assert places == written.places
    assert named(log) == [("RECORD", end)]
    assert f"the next record is at {written.places[index + 1]}" in log.violations[0].message


def test_a_whole_segment_of_zeros_in_the_middle(written: WrittenLog) -> None:
    patch(written, SEGMENT, bytes(SEGMENT))
    places, log = check(written)
    assert places == [place for place in written.places if not SEGMENT <= place < 2 * SEGMENT]
    assert named(log) == [("RECORD", SEGMENT)]


def test_a_torn_end(written: WrittenLog) -> None:
    patch(written, written.places[-1] + 100, b"\0\0\0")
    assert named(check(written)[1]) == [("BODY_CRC", written.places[-1])]
    assert named(check(written, may_move=True)[1]) == []
    patch(written, written.places[-1], (500).to_bytes(4, "big"))
    places, log = check(written)
    assert places == written.places[:-1]
    assert log.end == written.places[-1]
    assert [kind for kind, _ in named(log)] == ["LOG_END"]
    assert named(check(written, may_move=True)[1]) == []


def test_something_behind_the_end(written: WrittenLog) -> None:
    patch(written, written.end + 50, b"stale")
    _, log = check(written)
    assert named(log) == [("LOG_END", written.end + 50)]
    assert log.end == written.end


def test_records_by_their_place(written: WrittenLog) -> None:
    _, log = check(written)
    record = log.record_at(written.places[3])
    assert record is not None
    assert written.data[written.places[3] :].startswith(record)
    assert log.record_at(written.places[3] + 1) is None
    assert log.record_at(written.end) is None


@pytest.mark.parametrize("seen_at_first", [3, 20, 35])
def test_a_log_that_grows_while_it_is_checked(
    written: WrittenLog, monkeypatch: pytest.MonkeyPatch, seen_at_first: int
) -> None:
    """What was not there at the first look is there when the search behind it begins."""
    end = written.places[seen_at_first]
    whole = {path: path.read_bytes() for path in written.directory.iterdir()}
    for path, data in whole.items():
        seen = max(0, end - int(path.name))
        path.write_bytes(data[:seen].ljust(SEGMENT, b"\0"))
    search = LogCheck.next_record

    def growing(self: LogCheck, position: int, segment_end: int) -> int | None:
        for path, data in whole.items():
            path.write_bytes(data)
        return search(self, position, segment_end)

    monkeypatch.setattr(LogCheck, "next_record", growing)
    places, log = check(written, may_move=True)
    assert places == written.places
    assert log.violations == []
