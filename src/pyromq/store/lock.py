"""The lock file and the abort file of a store directory.

The lock is on the first byte of the file `lock`, as in Java, so that neither system starts on a
store that the other one is using. Used by everything that writes to a store: the live store and
the offline rebuild. Called on the thread that starts them.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import IO

from pyromq.store.results import StoreError

#: Stores open in this process, which the system's locks do not see.
_held_locks: set[Path] = set()


def lock_store(root: Path) -> IO[bytes]:
    """Hold the store's lock file until `unlock_store`. Raises StoreError if it is taken."""
    path = (root / "lock").resolve()
    in_use = StoreError(
        f"{path.parent} is in use by another broker: stop it, or set another storePathRootDir"
    )
    # Opening and closing the file a second time would release the lock.
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
    """Release the store."""
    file.close()
    _held_locks.discard(Path(file.name))


def mark_running(root: Path) -> None:
    """Create the abort file and fsync it, so that no power cut looks like a clean stop."""
    path = root / "abort"
    path.touch()
    for synced in (path, root):
        descriptor = os.open(synced, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
