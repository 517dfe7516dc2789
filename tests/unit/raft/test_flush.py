from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.base.descriptors import ShortageError
from pyromq.raft.flush import FlushService
from pyromq.raft.log import RaftLog
from tests.support.patience import wait_until
from tests.support.raft_logs import open_log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RaftLog]:
    """An empty log."""
    log = open_log(tmp_path)
    yield log
    log.stop()


def test_entries_are_flushed_soon(log: RaftLog) -> None:
    flushed = threading.Event()
    service = FlushService(log, on_flushed=flushed.set)
    service.start()
    log.append_bodies(1, [b"x"] * 5)
    service.wake()
    wait_until(flushed.is_set)
    assert (log.flushed, log.flushed_index) == (log.written, 4)
    service.stop()


def test_the_checkpoint_is_saved(log: RaftLog) -> None:
    service = FlushService(log, checkpoint_seconds=0.0)
    service.start()
    log.append_bodies(1, [b"x"] * 5)
    log.commit(3)
    path = log.directory / "checkpoint"
    wait_until(lambda: path.exists() and b"committedIndex=3\n" in path.read_bytes())
    service.stop()


def test_a_failed_fsync_is_final(log: RaftLog, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    reasons: list[str] = []

    def fail() -> None:
        calls.append(1)
        raise OSError("broken disk")

    with monkeypatch.context() as patched:
        patched.setattr(log, "flush", fail)
        service = FlushService(log, on_failure=reasons.append)
        log.append_bodies(1, [b"x"])
        service.start()
        wait_until(lambda: reasons)
        service.wake()
        service.stop()
    assert service.failed
    assert (len(calls), len(reasons)) == (1, 1)
    assert "broken disk" in reasons[0]


def test_an_fsync_that_could_not_start_is_retried(
    log: RaftLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = log.flush
    refused: list[int] = []

    def refuse_once() -> None:
        if not refused:
            refused.append(1)
            raise ShortageError(24, "no descriptor")
        flush()

    with monkeypatch.context() as patched:
        patched.setattr(log, "flush", refuse_once)
        service = FlushService(log)
        log.append_bodies(1, [b"x"])
        service.start()
        wait_until(lambda: log.flushed == log.written)
        service.stop()
    assert refused
    assert not service.failed


def test_a_checkpoint_that_cannot_be_saved_is_not_fatal(
    log: RaftLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError("broken disk")

    with monkeypatch.context() as patched:
        patched.setattr(log, "save_checkpoint", fail)
        service = FlushService(log, checkpoint_seconds=0.0)
        service.start()
        wait_until(lambda: "cannot save the checkpoint" in caplog.text)
        service.stop()
    assert not service.failed
