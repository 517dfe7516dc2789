"""One process on a store directory: the lock file, and the file that says that it runs.

The lock is Java's, on the first byte of the file `lock`, so that neither system starts on a
store that the other one uses. Used by whoever writes to a store: the store itself and the
rebuilding of its files. Called on the thread that starts it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import IO

from pyromq.store.results import StoreError

#: Stores that are open in this process: the system's locks are between processes.
_held_locks: set[Path] = set()


def lock_store(root: Path) -> IO[bytes]:
    """Hold the store's lock file until `unlock_store`; StoreError when somebody has it."""
    path = (root / "lock").resolve()
    in_use = StoreError(
        f"{path.parent} is in use by another broker: stop that one, or set another storePathRootDir"
    )
    # To open and close the file once more would give the lock up.
    if path in _held_locks:
        raise in_use
    file = path.open("ab+")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError as error:
        file.close()
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise in_use from error
        raise
    _held_locks.add(path)
    file.truncate(0)
    file.write(b"lock")
    file.flush()
    return file


def unlock_store(file: IO[bytes]) -> None:
    """Let others have the store."""
    file.close()
    _held_locks.discard(Path(file.name))


def mark_running(root: Path) -> None:
    """Make the abort file. It is on the disk before any message is: no cut of the power may
    look like a clean stop.
    """
    path = root / "abort"
    path.touch()
    for synced in (path, root):
        descriptor = os.open(synced, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
