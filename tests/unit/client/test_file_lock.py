from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pyromq.client.file_lock import FileLock
from tests.support.patience import wait_until

OWNER = """
import pathlib, sys, time
from pyromq.client.file_lock import FileLock
lock = FileLock(pathlib.Path(sys.argv[1]))
assert lock.acquire()
print("locked", flush=True)
time.sleep(600)
"""


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there yet" / "lock"
    one, two = FileLock(path), FileLock(path)
    assert one.acquire()
    assert not two.acquire()
    assert two.owner() == f"process {os.getpid()}"
    one.release()
    one.release()
    assert two.acquire()
    two.release()


def test_killing_the_owner_releases_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    child = subprocess.Popen([sys.executable, "-c", OWNER, str(path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"locked\n"
        lock = FileLock(path)
        assert not lock.acquire()
        assert lock.owner() == f"process {child.pid}"
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    wait_until(lock.acquire)
    lock.release()


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_forked_child_neither_holds_nor_releases_the_lock(tmp_path: Path) -> None:
    lock, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert lock.acquire()
    go_on, may_end = os.pipe()
    pid = os.fork()
    if not pid:
        lock.release()  # does nothing: the fork's copy is closed
        os.read(go_on, 1)
        os._exit(0)
    try:
        assert not other.acquire()
        lock.release()
        assert other.acquire()  # although the fork is alive
    finally:
        os.write(may_end, b".")
        os.waitpid(pid, 0)
        os.close(go_on)
        os.close(may_end)
        other.release()


def test_an_unwritable_path_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    lock = FileLock(tmp_path / "file" / "lock")
    with pytest.raises(OSError, match="file"):
        lock.acquire()
    assert lock.owner() == "another process"
