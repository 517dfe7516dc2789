"""The commit thread: when it commits, what it does about errors, and its end."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pyromq.store.log import commit
from pyromq.store.message_store import MessageStore
from tests.support.patience import wait_until
from tests.support.stores import bodies, open_store, put

NEVER = 10_000_000
POOL: dict[str, Any] = {
    "transient_store_pool_enable": True,
    "commit_interval_commit_log": 1,
    "commit_commit_log_least_pages": 2,
    "commit_commit_log_thorough_interval": NEVER,
}


def is_committed(store: MessageStore) -> bool:
    marks = store._log.watermarks
    return marks.committed == marks.written


def test_enough_pages_are_committed(tmp_path: Path) -> None:
    store = open_store(tmp_path, **POOL)
    put(store, bytes(9000))
    store.seal()
    wait_until(lambda: is_committed(store))
    committed = store._log.watermarks.committed
    put(store, b"too little")
    store.seal()
    marks = store._log.watermarks
    for _ in range(3):
        store._commit._round()
    assert marks.committed == committed < marks.written
    store.stop()
    again = open_store(tmp_path)
    assert bodies(again)[1:] == [b"too little"]
    again.stop()


def test_everything_is_committed_now_and_then(tmp_path: Path) -> None:
    store = open_store(tmp_path, **POOL | {"commit_commit_log_thorough_interval": 2})
    put(store, b"little")
    store.seal()
    wait_until(lambda: is_committed(store))
    store.stop()


def test_a_commit_that_fails_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, **POOL)
    failures = iter([True, True])
    real = os.pwrite

    def pwrite(descriptor: int, data: bytes, position: int) -> int:
        if next(failures, False):
            raise OSError(errno.EIO, "the disk is ill")
        return real(descriptor, data, position)

    monkeypatch.setattr(os, "pwrite", pwrite)
    put(store, b"x" * 9000)
    store.seal()
    wait_until(lambda: is_committed(store))
    assert caplog.text.count("the disk is ill") == 2
    assert bodies(store) == [b"x" * 9000]
    store.stop()
    again = open_store(tmp_path)
    assert bodies(again) == [b"x" * 9000]
    again.stop()


def test_a_stop_that_cannot_commit_is_not_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, **POOL | {"commit_interval_commit_log": NEVER})
    put(store, b"lost")
    store.seal()

    def pwrite(*_: object) -> int:
        raise OSError(errno.EIO, "the disk is ill")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", pwrite)
        with pytest.raises(OSError, match="the disk is ill"):
            store.stop()
    assert (tmp_path / "abort").exists()
    store._flush.stop()
    store._log.stop()
    store._close_files()


def test_without_a_pool_there_is_no_thread(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store._commit._thread is None
    store.stop()


def test_a_slow_commit_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(commit, "SLOW_COMMIT_MS", -1)
    store = open_store(tmp_path, **POOL)
    put(store, bytes(9000))
    store.seal()
    wait_until(lambda: "commit of the transient store pool took" in caplog.text)
    store.stop()
