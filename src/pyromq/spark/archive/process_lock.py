"""Locks that a process holds while it works, and that name their holder to others.

    with process_lock(Path("archive/_pyromq/archive.lock")): ...

An flock on a file that contains the holder's process id and host. The kernel releases the lock of a
process that dies. Used by the archive and the replay jobs, in the driver.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LockHeldError(Exception):
    """Another process holds the lock; the message is its id and host."""


@contextmanager
def process_lock(path: Path) -> Iterator[None]:
    """Hold the lock. Raises LockHeldError instead of waiting."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise LockHeldError(file.read().strip()) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
