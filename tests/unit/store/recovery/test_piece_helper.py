"""Pieces examined by a second process, by this one, and by this one when the other fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.protocol.message import bulk
from pyromq.protocol.message.delay import DelayLevels
from pyromq.store.recovery import piece_helper
from pyromq.store.recovery.piece import LogPiece, Rules
from pyromq.store.recovery.piece_helper import FilePiece, PieceHelper
from tests.support.patience import wait_until
from tests.support.records import make_record

#: So long that only a test's own time limit ends it.
VERY_PATIENT_MS = 1_000_000
RECORDS = 50
PIECES = 12
RULES = Rules(1 << 20, DelayLevels("1s 5s"), check_crc=True, after_crash=True)


@pytest.fixture
def pieces(tmp_path: Path) -> list[FilePiece]:
    """Pieces of two files; body 7 of the fourth is wrong, and the first of the tenth."""
    made = []
    for number in range(2):
        path = tmp_path / f"file-{number}"
        content = bytearray()
        for piece in range(PIECES // 2):
            place = len(content)
            base = number * RULES.segment_size + place
            records: list[bytes] = []
            for at in range(1, RECORDS + 1):
                offset = base + sum(map(len, records))
                record = make_record(
                    topic=f"topic-{at % 3}",
                    body=b"%d" % at * at,
                    queue_offset=at,
                    physical_offset=offset,
                )
                records.append(record)
            data = bytearray(b"".join(records))
            wrong = {3: 7, 9: 0}.get(number * PIECES // 2 + piece)
            if wrong is not None:
                at = sum(map(len, records[:wrong])) + 88
                data[at] ^= 0x20
            content += data
            view = memoryview(bytes(data))
            starts, _ = bulk.record_starts(view)
            made.append(FilePiece(path, place, LogPiece(base, view, starts, RULES)))
        path.write_bytes(content)
    return made


EXPECTED = [RECORDS] * 3 + [7] + [RECORDS] * 5 + [0] + [RECORDS] * 2


class Started:
    """The processes that were started, and the pieces that were examined here."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.here: list[LogPiece] = []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    started = Started()
    popen = subprocess.Popen
    examine = LogPiece.examine

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = popen(*arguments, **options)
        started.processes.append(process)
        return process

    def examine_here(piece: LogPiece) -> LogPiece:
        started.here.append(piece)
        return examine(piece)

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(LogPiece, "examine", examine_here)
    monkeypatch.setattr(piece_helper, "_cores", lambda: 2)
    yield started
    assert all(process.returncode is not None for process in started.processes)


def helping() -> PieceHelper:
    return PieceHelper(RULES, bytes_before_process=0)


def content(piece: LogPiece) -> tuple[int, list[tuple[str, int, list[int], bytes, bool]]]:
    runs = [
        (run.topic, run.queue_id, run.offsets.tolist(), run.entries.tobytes(), run.is_consecutive)
        for run in piece.runs()
    ]
    return piece.starts.size, runs


def results(helper: PieceHelper, pieces: list[FilePiece]) -> list[int]:
    """Add all, as a walk does; take what is ready, and at the end the rest."""
    taken: list[LogPiece] = []
    waiting = 0
    for piece in pieces:
        helper.add(piece)
        waiting += 1
        while waiting and helper.is_ready:
            taken.append(helper.take())
            waiting -= 1
    taken += [helper.take() for _ in range(waiting)]
    helper.close()
    for given, found in zip(taken, pieces, strict=True):
        assert content(given) == content(found.piece.examine())
    return [piece.starts.size for piece in taken]


def test_a_short_walk_starts_nothing(pieces: list[FilePiece], started: Started) -> None:
    assert results(PieceHelper(RULES), pieces) == EXPECTED
    assert started.processes == []


def test_another_process_finds_the_same(pieces: list[FilePiece], started: Started) -> None:
    assert results(helping(), pieces) == EXPECTED
    assert len(started.processes) == 1
    helper = PieceHelper(RULES, bytes_before_process=len(pieces[0].piece.data) + 1)
    assert results(helper, pieces) == EXPECTED
    assert len(started.processes) == 2


def test_valid_pieces_are_not_examined_twice_and_others_are(
    pieces: list[FilePiece], started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piece_helper, "_RESPONSE_TIMEOUT_MS", VERY_PATIENT_MS)
    helper = helping()
    for piece, expected in zip(pieces, EXPECTED, strict=True):
        helper.add(piece)
        assert helper.take().starts.size == expected
    assert not helper.is_ready
    helper.close()
    assert [piece is pieces[at].piece for piece, at in zip(started.here, (3, 9), strict=True)] == [
        True,
        True,
    ]


def test_records_that_cause_a_log_line_are_examined_here(
    tmp_path: Path,
    started: Started,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(piece_helper, "_RESPONSE_TIMEOUT_MS", VERY_PATIENT_MS)
    data = make_record(topic="a/b", physical_offset=0)
    (tmp_path / "file").write_bytes(data)
    starts, _ = bulk.record_starts(data)
    helper = helping()
    helper.add(FilePiece(tmp_path / "file", 0, LogPiece(0, memoryview(data), starts, RULES)))
    piece = helper.take()
    assert piece.starts.size == 1
    assert list(piece.runs()) == []
    helper.close()
    assert "invalid topic 'a/b' or queue 1" in caplog.text


def test_more_than_it_can_take_is_done_here(pieces: list[FilePiece], started: Started) -> None:
    helper = helping()
    for piece in pieces:
        helper.add(piece)
    assert len(started.here) == PIECES - 5
    assert [helper.take().starts.size for _ in pieces] == EXPECTED
    helper.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_killed(pieces: list[FilePiece], started: Started, number: int) -> None:
    helper = helping()
    helper.add(pieces[0])
    assert helper.take().starts.size == EXPECTED[0]
    (process,) = started.processes
    process.send_signal(number)
    wait_until(lambda: process.poll() is not None)
    assert results(helper, pieces) == EXPECTED
    assert len(started.processes) == 1


def test_a_process_that_dies_with_requests(
    pieces: list[FilePiece],
    started: Started,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(piece_helper, "_RESPONSE_TIMEOUT_MS", VERY_PATIENT_MS)
    helper = helping()
    helper.add(pieces[0])
    assert helper.take().starts.size == EXPECTED[0]
    (process,) = started.processes
    process.send_signal(signal.SIGSTOP)
    helper.add(pieces[1])
    helper.add(pieces[3])
    assert not helper.is_ready
    process.kill()
    assert [helper.take().starts.size, helper.take().starts.size] == [RECORDS, 7]
    assert "process died" in caplog.text
    assert results(helper, pieces) == EXPECTED


def test_a_process_that_responds_late(pieces: list[FilePiece], started: Started) -> None:
    helper = helping()
    helper.add(pieces[3])
    (process,) = started.processes
    process.send_signal(signal.SIGSTOP)
    helper.add(pieces[0])
    assert [helper.take().starts.size, helper.take().starts.size] == [7, RECORDS]
    # A late response is not mistaken for the response to another request.
    helper.add(pieces[9])
    helper.add(pieces[1])
    process.send_signal(signal.SIGCONT)
    assert [helper.take().starts.size, helper.take().starts.size] == [0, RECORDS]
    for piece, expected in zip(pieces, EXPECTED, strict=True):
        helper.add(piece)
        assert helper.take().starts.size == expected
    helper.close()


def test_a_process_that_never_responds(pieces: list[FilePiece], started: Started) -> None:
    helper = helping()
    helper.add(pieces[0])
    started.processes[0].send_signal(signal.SIGSTOP)
    assert helper.take().starts.size == EXPECTED[0]
    assert results(helper, pieces) == EXPECTED


@pytest.mark.parametrize(
    "program",
    [
        "",
        "import time; print('x', flush=True); time.sleep(600)",
        "import os; os.write(1, b'too short')",
    ],
)
def test_half_a_response(
    pieces: list[FilePiece], started: Started, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(piece_helper, "_PROGRAM", program)
    monkeypatch.setattr(piece_helper, "_RESPONSE_TIMEOUT_MS", VERY_PATIENT_MS)
    monkeypatch.setattr(piece_helper, "_REST_TIMEOUT_MS", 100)
    assert results(helping(), pieces) == EXPECTED
    assert len(started.processes) == 1


def test_a_program_that_is_something_else(
    pieces: list[FilePiece], started: Started, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for program, is_started in (
        (sys.executable, True),
        ("", False),
        (None, False),
        ("/opt/program-with-python-in-it", False),
        (str(tmp_path / "python3"), False),
    ):
        monkeypatch.setattr(sys, "executable", program)
        before = len(started.processes)
        assert results(helping(), pieces) == EXPECTED
        assert len(started.processes) - before == is_started, program


def test_a_frozen_program_starts_nothing(
    pieces: list[FilePiece], started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert results(helping(), pieces) == EXPECTED
    assert started.processes == []


def test_one_core_is_not_shared(
    pieces: list[FilePiece], started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piece_helper, "_cores", lambda: 1)
    assert results(helping(), pieces) == EXPECTED
    assert started.processes == []


def test_a_file_that_the_process_cannot_open(pieces: list[FilePiece], started: Started) -> None:
    os.unlink(pieces[-1].path)
    assert results(helping(), pieces) == EXPECTED


def test_closing_with_requests_on_their_way(pieces: list[FilePiece], started: Started) -> None:
    helper = helping()
    helper.add(pieces[0])
    helper.close()
    helper.close()
    assert started.processes[0].returncode is not None
