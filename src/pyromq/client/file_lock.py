"""Lock a file exclusively among all processes of a machine.

The kernel releases the lock when its owner's process ends, for whatever reason. A second lock on
the same file fails within the same process as well. A forked child closes its copy without
releasing the lock. The file remains and holds the owner's process id, for people. Any thread may
call this.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from pathlib import Path


class FileLock:
    """A lock on a file, held from `acquire` to `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take the lock if it is free and return whether it was; never waits. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.truncate(descriptor, 0)
            os.write(descriptor, b"%d\n" % os.getpid())
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _held.add(self)
        return True

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._descriptor is not None:
            # Closing alone would not do: a child just forked may still hold a copy.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._close()

    def owner(self) -> str:
        """Return the process that holds the lock, for an error message."""
        with contextlib.suppress(OSError):
            pid = self.path.read_text(errors="replace").strip()
            if pid:
                return f"process {pid}"
        return "another process"

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            _held.discard(self)


#: Locks held by this process.
_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _forked() -> None:
    # Only closed: unlocking would release the parent's lock.
    for lock in list(_held):
        lock._close()


os.register_at_fork(after_in_child=_forked)
