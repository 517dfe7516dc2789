"""The lock file, the abort file and the restore mark of a store directory.

The lock is on the first byte of the file `lock`, as in Java, so that neither system starts on a
store that the other one is using. Used by everything that writes to a store: the live store and
the offline rebuild. The file `restoring` exists while `backup.restoring` fills the directory; the
store cannot be locked for any other purpose meanwhile. Called on the thread that starts them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import IO, Final

from pyromq.store.results import StoreError

#: Stores open in this process, which the system's locks do not see.
_held_locks: set[Path] = set()

#: Exists while a backup is being restored into the store.
RESTORE_MARK: Final = "restoring"
#: Linux's `struct flock`: type, whence, start, length, process id.
_FLOCK: Final = struct.Struct("@hhqqi4x")


def lock_store(root: Path, *, restoring: bool = False) -> IO[bytes]:
    """Hold the store's lock file until `unlock_store`. Raises StoreError if it is taken.

    Only with `restoring`, a store is accepted that a restore has not completed.
    """
    if not restoring and (root / RESTORE_MARK).exists():
        raise StoreError(
            f"{root} is incomplete, because a restore was interrupted: run pyromq store restore "
            "again, with the same backup"
        )
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


def lock_holder(root: Path) -> int | None:
    """Return the id of the process that holds the store's lock, or None. Changes nothing."""
    path = (root / "lock").resolve()
    if path in _held_locks:
        return os.getpid()  # opening and closing the file would release the lock
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
    finally:
        os.close(descriptor)
    return None if kind == fcntl.F_UNLCK else int(process)


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
