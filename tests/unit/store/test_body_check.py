"""Bodies checked by a second process, by this one, and by this one when the other fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.protocol import bulk
from pyromq.store import body_check, crc_process
from pyromq.store.body_check import Bodies, BodyCheck, check_bodies
from tests.support.patience import wait_until
from tests.support.records import make_record

#: So long that only a test's own time limit ends it.
VERY_PATIENT_MS = 1_000_000
RECORDS = 50
PIECES = 12


@pytest.fixture
def pieces(tmp_path: Path) -> list[Bodies]:
    """Pieces of two files; body 7 of the fourth is wrong, and the first of the tenth."""
    made = []
    for number in range(2):
        path = tmp_path / f"file-{number}"
        content = bytearray()
        for piece in range(PIECES // 2):
            place = len(content)
            records = [make_record(body=b"%d" % at * at) for at in range(1, RECORDS + 1)]
            data = bytearray(b"".join(records))
            wrong = {3: 7, 9: 0}.get(number * PIECES // 2 + piece)
            if wrong is not None:
                at = sum(map(len, records[:wrong])) + 88
                data[at] ^= 0x20
            content += data
            columns = bulk.read_columns(data, bulk.record_starts(data)[0])
            made.append(Bodies(path, place, memoryview(bytes(data)), columns))
        path.write_bytes(content)
    return made


EXPECTED = [RECORDS] * 3 + [7] + [RECORDS] * 5 + [0] + [RECORDS] * 2


class Started:
    """The processes that were started."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    started = Started()
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = popen(*arguments, **options)
        started.processes.append(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(body_check, "_cores", lambda: 2)
    yield started
    assert all(process.returncode is not None for process in started.processes)


def results(check: BodyCheck, pieces: list[Bodies]) -> list[int]:
    """Add all, as a walk does; take what is ready, and at the end the rest."""
    taken = []
    waiting = 0
    for bodies in pieces:
        check.add(bodies)
        waiting += 1
        while waiting and check.is_ready:
            taken.append(check.take())
            waiting -= 1
    taken += [check.take() for _ in range(waiting)]
    check.close()
    return taken


def test_a_short_walk_starts_nothing(pieces: list[Bodies], started: Started) -> None:
    assert results(BodyCheck(), pieces) == EXPECTED
    assert started.processes == []


def test_another_process_finds_the_same(pieces: list[Bodies], started: Started) -> None:
    assert [check_bodies(bodies) for bodies in pieces] == EXPECTED
    assert results(BodyCheck(worth_a_process=0), pieces) == EXPECTED
    assert len(started.processes) == 1
    check = BodyCheck(worth_a_process=len(pieces[0].data) + 1)
    assert results(check, pieces) == EXPECTED
    assert len(started.processes) == 2


def test_right_bodies_are_not_checked_twice_and_wrong_ones_are(
    pieces: list[Bodies], started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: list[Bodies] = []

    def check_here(bodies: Bodies) -> int:
        here.append(bodies)
        return check_bodies(bodies)

    monkeypatch.setattr(body_check, "check_bodies", check_here)
    monkeypatch.setattr(body_check, "_PATIENCE_MS", VERY_PATIENT_MS)
    check = BodyCheck(worth_a_process=0)
    for bodies, expected in zip(pieces, EXPECTED, strict=True):
        check.add(bodies)
        assert check.take() == expected
    assert not check.is_ready
    check.close()
    assert [bodies is pieces[at] for bodies, at in zip(here, (3, 9), strict=True)] == [True, True]


def test_more_than_it_can_take_is_done_here(pieces: list[Bodies], started: Started) -> None:
    check = BodyCheck(worth_a_process=0)
    for bodies in pieces:
        check.add(bodies)
    assert [check.take() for _ in pieces] == EXPECTED
    check.close()


def test_no_request_that_does_not_fit_in_the_pipe(
    pieces: list[Bodies], started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_check, "_widen", lambda pipe: 4096)
    monkeypatch.setattr(os, "write", lambda *_: pytest.fail("it was asked"))
    assert results(BodyCheck(worth_a_process=0), pieces) == EXPECTED


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_killed(
    pieces: list[Bodies], started: Started, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    check = BodyCheck(worth_a_process=0)
    check.add(pieces[0])
    assert check.take() == EXPECTED[0]
    (process,) = started.processes
    process.send_signal(number)
    wait_until(lambda: process.poll() is not None)
    assert results(check, pieces) == EXPECTED
    assert len(started.processes) == 1


def test_a_process_that_dies_with_requests(
    pieces: list[Bodies],
    started: Started,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(body_check, "_PATIENCE_MS", VERY_PATIENT_MS)
    check = BodyCheck(worth_a_process=0)
    check.add(pieces[0])
    assert check.take() == EXPECTED[0]
    (process,) = started.processes
    process.send_signal(signal.SIGSTOP)
    check.add(pieces[1])
    check.add(pieces[3])
    assert not check.is_ready
    process.kill()
    assert [check.take(), check.take()] == [RECORDS, 7]
    assert "checked here" in caplog.text
    assert results(check, pieces) == EXPECTED


def test_a_process_that_does_not_answer(pieces: list[Bodies], started: Started) -> None:
    check = BodyCheck(worth_a_process=0)
    check.add(pieces[3])
    (process,) = started.processes
    process.send_signal(signal.SIGSTOP)
    check.add(pieces[0])
    assert [check.take(), check.take()] == [7, RECORDS]
    # What it says later is not taken for the answer to something else.
    check.add(pieces[9])
    check.add(pieces[1])
    process.send_signal(signal.SIGCONT)
    assert [check.take(), check.take()] == [0, RECORDS]
    for bodies, expected in zip(pieces, EXPECTED, strict=True):
        check.add(bodies)
        assert check.take() == expected
    check.close()


def test_a_process_that_never_answers(pieces: list[Bodies], started: Started) -> None:
    check = BodyCheck(worth_a_process=0)
    check.add(pieces[0])
    started.processes[0].send_signal(signal.SIGSTOP)
    assert check.take() == EXPECTED[0]
    assert results(check, pieces) == EXPECTED


def test_a_program_that_is_something_else(
    pieces: list[Bodies], started: Started, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
        assert results(BodyCheck(worth_a_process=0), pieces) == EXPECTED
        assert len(started.processes) - before == is_started, program


def test_a_frozen_program_starts_nothing(
    pieces: list[Bodies], started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert results(BodyCheck(worth_a_process=0), pieces) == EXPECTED
    assert started.processes == []


def test_one_core_is_not_shared(
    pieces: list[Bodies], started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_check, "_cores", lambda: 1)
    assert results(BodyCheck(worth_a_process=0), pieces) == EXPECTED
    assert started.processes == []


def test_a_file_of_the_package_that_is_not_there(
    pieces: list[Bodies], started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crc_process, "__file__", "/not/there/crc_process.py")
    assert results(BodyCheck(worth_a_process=0), pieces) == EXPECTED
    assert len(started.processes) == 1


def test_a_file_that_the_process_cannot_open(pieces: list[Bodies], started: Started) -> None:
    os.unlink(pieces[-1].path)
    assert results(BodyCheck(worth_a_process=0), pieces) == EXPECTED


def test_closing_with_requests_on_their_way(pieces: list[Bodies], started: Started) -> None:
    check = BodyCheck(worth_a_process=0)
    check.add(pieces[0])
    check.close()
    check.close()
    assert started.processes[0].returncode is not None
