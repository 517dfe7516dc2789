"""A walk yields every valid record once, up to the first invalid bytes."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.record import BLANK, BLANK_MAGIC
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.recovery.walk import LogWalk, ProgressLog
from tests import kernel_builds
from tests.support.records import make_record

SEGMENT = 4096
LEVELS = DelayLevels("1s 5s")


class WrittenLog:
    """A log of small segments, written by hand."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self.end = 0
        self.places: list[int] = []
        self.data = bytearray()

    def add(self, body: bytes = b"body", **fields: object) -> None:
        record = make_record(body=body, physical_offset=self.end, **fields)  # type: ignore[arg-type]
        rest = SEGMENT - self.end % SEGMENT
        if len(record) + 8 > rest:
            self.data += BLANK.pack(rest, BLANK_MAGIC).ljust(rest, b"\0")
            self.end += rest
            return self.add(body, **fields)
        self.places.append(self.end)
        self.data += record
        self.end += len(record)
        return None

    def open(self) -> CommitLog:
        for base in range(0, len(self.data), SEGMENT):
            path = self.directory / f"{base:020d}"
            path.write_bytes(bytes(self.data[base : base + SEGMENT]).ljust(SEGMENT, b"\0"))
        log = CommitLog(self.directory, SEGMENT)
        log.segments.load()
        log.watermarks.assume_written(log.segments.end_offset)
        return log


@pytest.fixture(autouse=True, params=["kernel", "python"])
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run each test with and without the compiled kernel."""
    module = (
        kernel_builds.load(kernel_builds.FAST, "log_piece") if request.param == "kernel" else None
    )
    monkeypatch.setattr("pyromq.store.recovery.walk.load", lambda _: module)
    return str(request.param)


@pytest.fixture
def written(tmp_path: Path) -> WrittenLog:
    return WrittenLog(tmp_path / "log")


@pytest.fixture
def log(written: WrittenLog) -> Iterator[CommitLog]:
    for number in range(60):
        written.add(b"%d" % number * (number % 50))
    log = written.open()
    yield log
    log.segments.close()


def places(walk: LogWalk) -> list[int]:
    return [piece.base + start for piece in walk for start in piece.columns.starts.tolist()]


def entries(walk: LogWalk) -> list[tuple[str, int, list[int], bytes, bool]]:
    return [
        (run.topic, run.queue_id, run.offsets.tolist(), run.entries.tobytes(), run.is_consecutive)
        for piece in walk
        for run in piece.runs()
    ]


def test_both_codes_give_the_same(
    written: WrittenLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pyromq.store.recovery.walk.PIECE_SIZE", 1000)
    chance = random.Random(5)
    for number in range(200):
        topic = chance.choice(["a", "b", "SCHEDULE_TOPIC_XXXX", "../x", "名"])
        properties = b"TAGS\x01t%d\x02DELAY\x01%d" % (number % 7, number % 4)
        written.add(
            chance.randbytes(number),
            topic=topic,
            queue_id=number % 3,
            queue_offset=number // 9,
            properties=properties,
            sys_flag=chance.choice([0, 0, 4, 8, 0x30]),
        )
    log = written.open()
    found = []
    for module in (kernel_builds.load(kernel_builds.FAST, "log_piece"), None):
        monkeypatch.setattr("pyromq.store.recovery.walk.load", lambda _, module=module: module)
        caplog.clear()
        walk = LogWalk(log, 0, delay_levels=LEVELS, check_crc=True, after_crash=True)
        found.append((sorted(entries(walk)), walk.end, sorted(caplog.messages)))
    assert found[0] == found[1]
    assert found[0][1] == written.end
    assert any("invalid topic '../x'" in line for line in found[0][2])
    log.segments.close()


@pytest.mark.parametrize("piece", [150, 1000, 1 << 20])
def test_every_record_once(
    written: WrittenLog, log: CommitLog, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr("pyromq.store.recovery.walk.PIECE_SIZE", piece)
    assert len(log.segments.files) > 2
    walk = LogWalk(log, 0, delay_levels=LEVELS, check_crc=True)
    assert places(walk) == written.places
    assert walk.end == written.end


def test_a_walk_may_start_at_any_record(written: WrittenLog, log: CommitLog) -> None:
    for number in range(0, 60, 7):
        walk = LogWalk(log, written.places[number], delay_levels=LEVELS, check_crc=True)
        assert places(walk) == written.places[number:]
    walk = LogWalk(log, SEGMENT, delay_levels=LEVELS, check_crc=True)
    assert places(walk) == [place for place in written.places if place >= SEGMENT]


@pytest.mark.parametrize("at", [0, 4, 30, 90])
def test_the_log_ends_at_invalid_bytes(written: WrittenLog, log: CommitLog, at: int) -> None:
    damaged = written.places[37]
    file = log.segments.find(damaged)
    assert file is not None
    file.reserve(SEGMENT)
    file.write(damaged - file.base + at, b"\x7f")
    walk = LogWalk(log, 0, delay_levels=LEVELS, check_crc=True)
    assert places(walk) == written.places[:37]
    assert walk.end == damaged


def test_the_same_with_a_second_process(
    written: WrittenLog, log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyromq.store.recovery.walk.PIECE_SIZE", 500)
    monkeypatch.setattr("pyromq.store.recovery.piece_helper.BYTES_BEFORE_PROCESS", 0)
    monkeypatch.setattr("pyromq.store.recovery.piece_helper._cores", lambda: 2)
    assert places(LogWalk(log, 0, delay_levels=LEVELS, check_crc=True)) == written.places
    alone = LogWalk(log, 0, delay_levels=LEVELS, check_crc=True, alone=True)
    assert entries(LogWalk(log, 0, delay_levels=LEVELS, check_crc=True)) == entries(alone)
    for number in (59, 40, 12, 1):
        damaged = written.places[number]
        file = log.segments.find(damaged)
        assert file is not None
        file.reserve(SEGMENT)
        file.write(damaged - file.base + 88, b"\x7f")
        walk = LogWalk(log, 0, delay_levels=LEVELS, check_crc=True)
        assert places(walk) == written.places[:number]
        assert walk.end == damaged


def test_an_aborted_walk_leaves_no_process(
    log: CommitLog, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr("pyromq.store.recovery.walk.PIECE_SIZE", 500)
    monkeypatch.setattr("pyromq.store.recovery.piece_helper.BYTES_BEFORE_PROCESS", 0)
    monkeypatch.setattr("pyromq.store.recovery.piece_helper._cores", lambda: 2)
    pieces = iter(LogWalk(log, 0, delay_levels=LEVELS, check_crc=True))
    next(pieces)
    pieces.close()
    expected = [True] if code == "python" else []  # the kernel needs no second process
    assert [process.returncode is not None for process in started] == expected


def test_a_record_larger_than_a_piece(written: WrittenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyromq.store.recovery.walk.PIECE_SIZE", 200)
    for size in (10, 1000, 50, 3000, 200, 3900, 5):
        written.add(b"x" * size)
    log = written.open()
    walk = LogWalk(log, 0, delay_levels=LEVELS, check_crc=True, after_crash=True)
    assert places(walk) == written.places
    assert walk.end == written.end
    log.segments.close()


def test_a_segment_that_is_blank_from_the_start(written: WrittenLog) -> None:
    written.add()
    rest = SEGMENT - written.end
    written.data += BLANK.pack(rest, BLANK_MAGIC).ljust(rest, b"\0")
    written.data += BLANK.pack(SEGMENT, BLANK_MAGIC).ljust(SEGMENT, b"\0")
    written.end = 2 * SEGMENT
    written.add()
    log = written.open()
    walk = LogWalk(log, 0, delay_levels=LEVELS, check_crc=True)
    assert places(walk) == written.places
    assert walk.end == written.end
    log.segments.close()


def test_bodies_need_not_be_checked(written: WrittenLog, log: CommitLog) -> None:
    damaged = written.places[37]
    file = log.segments.find(damaged)
    assert file is not None
    file.reserve(SEGMENT)
    file.write(damaged - file.base + 90, b"\x7f")
    assert places(LogWalk(log, 0, delay_levels=LEVELS, check_crc=False)) == written.places


def test_holes_are_not_read(written: WrittenLog, log: CommitLog) -> None:
    log.watermarks.assume_written(written.places[20])
    walk = LogWalk(log, 0, delay_levels=LEVELS, check_crc=True)
    assert places(walk) == written.places[:20]
    assert walk.end == written.places[20]


def test_an_empty_log(tmp_path: Path) -> None:
    walk = LogWalk(CommitLog(tmp_path, SEGMENT), 0, delay_levels=LEVELS, check_crc=True)
    assert places(walk) == []
    assert walk.end == 0


def test_progress_is_reported(log: CommitLog) -> None:
    seen: list[int] = []
    walk = LogWalk(log, 0, delay_levels=LEVELS, check_crc=True, on_progress=seen.append)
    assert len(list(walk)) == len(seen)
    assert seen == sorted(seen)
    assert seen[-1] == walk.end


def test_a_line_every_two_seconds(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    progress = ProgressLog("checking", 1_000_000, 9_000_000, lambda: now[0])
    with caplog.at_level("INFO"):
        for step in range(1, 8):
            now[0] = 100.0 + step * 0.7
            progress(1_000_000 + step * 1_000_000)
    assert [record.getMessage() for record in caplog.records] == [
        "checking: 3 of 8 MB, 1 MB/s",
        "checking: 6 of 8 MB, 1 MB/s",
    ]
