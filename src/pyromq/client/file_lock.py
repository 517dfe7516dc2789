"""A file that one owner has locked at a time, among all processes of this machine.

The kernel frees the lock when its owner's process ends, however it ends. A second lock on the
same file fails in the same process, too. A fork's copy is closed in the child and frees nothing.
The file stays; it holds the owner's process id, for people. Called on any thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from pathlib import Path


class FileLock:
    """Locked from `acquire` to `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Return whether the file is ours now, without waiting; raises OSError if it cannot be."""
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
        """Let others have it. A second time changes nothing."""
        if self._descriptor is not None:
            # Not by closing alone: a fork that has just begun may still have a copy.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._close()

    def owner(self) -> str:
        """Name the process that has it, for an error message."""
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


#: Locks of this process.
_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _forked() -> None:
    # Not unlocked: the lock is shared with the parent, who keeps it.
    for lock in list(_held):
        lock._close()


os.register_at_fork(after_in_child=_forked)
