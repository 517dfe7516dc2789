"""The steps that a commit consists of: each one happens entirely or not at all.

Every change that the driver makes to an archive is one of these calls, so a crash falls between two
of them. A new or changed name survives a power cut once its directory has been fsynced. Used by
`directory`, which calls them through this module; tests replace them here to stop at any step.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from pathlib import Path
from typing import Final

from pyromq.base.atomic_file import sync_directory as sync_directory
from pyromq.base.atomic_file import write_file as write_file

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
#: Returned by systems and filesystems that cannot exchange two names.
_UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM})


class CannotExchangeError(OSError):
    """The filesystem cannot exchange two directories atomically."""


def rename(path: Path, target: Path) -> None:
    """Rename a file, replacing one that already has the name."""
    path.replace(target)


def link(path: Path, target: Path) -> None:
    """Add a hard link."""
    target.hardlink_to(path)


def remove(path: Path) -> None:
    """Remove a file if it exists."""
    path.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a directory with its content, as far as possible, if it exists."""
    shutil.rmtree(path, ignore_errors=True)


def make_directories(path: Path) -> None:
    """Create a directory and its missing parents, and fsync each name."""
    missing = [path] if not path.exists() else []
    while missing and not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def exchange(one: Path, other: Path) -> None:
    """Exchange two directories atomically. Raises CannotExchangeError."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        raise CannotExchangeError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(one)) from None
    result = call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if result:
        number = ctypes.get_errno()
        kind = CannotExchangeError if number in _UNSUPPORTED else OSError
        raise kind(number, os.strerror(number), str(one), None, str(other))
