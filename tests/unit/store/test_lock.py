"""A store belongs to one at a time, in this process and among others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyromq.store.lock import (
    RESTORE_MARK,
    lock_holder,
    lock_store,
    mark_running,
    unlock_store,
)
from pyromq.store.results import StoreError

_TRY = """
import sys
from pathlib import Path
from pyromq.store.lock import lock_store
lock_store(Path(sys.argv[1]))
"""


def other_process(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _TRY, str(root)], capture_output=True, text=True, check=False
    )


def test_a_second_one_in_this_process_is_refused(tmp_path: Path) -> None:
    held = lock_store(tmp_path)
    with pytest.raises(StoreError, match="in use by another broker"):
        lock_store(tmp_path / "." / "")
    unlock_store(held)
    unlock_store(lock_store(tmp_path))


def test_another_process_is_refused_until_it_is_free(tmp_path: Path) -> None:
    held = lock_store(tmp_path)
    with pytest.raises(StoreError):
        lock_store(tmp_path)
    refused = other_process(tmp_path)
    assert refused.returncode == 1
    assert "is in use by another broker" in refused.stderr
    unlock_store(held)
    assert other_process(tmp_path).returncode == 0


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        lock_store(tmp_path / "nowhere")


def test_who_runs_says_so(tmp_path: Path) -> None:
    mark_running(tmp_path)
    mark_running(tmp_path)
    assert (tmp_path / "abort").read_bytes() == b""


def test_the_holder_is_told_without_touching_the_lock(tmp_path: Path) -> None:
    assert lock_holder(tmp_path) is None
    held = lock_store(tmp_path)
    assert lock_holder(tmp_path) == os.getpid()
    code = (
        "import sys; from pathlib import Path; from pyromq.store.lock import lock_holder;"
        "print(lock_holder(Path(sys.argv[1])))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert int(told.stdout) == os.getpid()
    assert "in use by another broker" in other_process(tmp_path).stderr
    unlock_store(held)
    assert lock_holder(tmp_path) is None


def test_an_incomplete_restore_is_refused(tmp_path: Path) -> None:
    (tmp_path / RESTORE_MARK).touch()
    with pytest.raises(StoreError, match="a restore was interrupted"):
        lock_store(tmp_path)
    unlock_store(lock_store(tmp_path, restoring=True))
