"""The steps from which commits are made: each one happens wholly or not at all.

Every change that an archive makes to its directory, beside what tasks write, is one of
these calls; a crash falls between two of them. A change is on the disk when the directory
that holds the name has been synced. Used by `archive_directory`, in the driver.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from pathlib import Path
from typing import Final

_CURRENT_DIRECTORY: Final = -100  # AT_FDCWD
_EXCHANGE: Final = 2  # RENAME_EXCHANGE
#: What systems and filesystems answer that cannot swap two names.
_CANNOT: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM})


class CannotExchangeError(OSError):
    """The filesystem cannot swap two directories in one step."""


def write_whole(path: Path, content: bytes) -> None:
    """Make a file that has its whole content as soon as it has its name."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    rename(temporary, path)
    sync_directory(path.parent)


def rename(path: Path, target: Path) -> None:
    """Give a file another name; one that has the name already is replaced."""
    path.replace(target)


def link(path: Path, target: Path) -> None:
    """Give a file a second name."""
    target.hardlink_to(path)


def remove(path: Path) -> None:
    """Remove a file; it may be gone already."""
    path.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it, as far as possible; it may be gone already."""
    shutil.rmtree(path, ignore_errors=True)


def make_directories(path: Path) -> None:
    """Make a directory and those above it that are missing, each on the disk."""
    missing = [path] if not path.exists() else []
    while missing and not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(path: Path) -> None:
    """Bring the names in a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Bring the content of a file to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(one: Path, other: Path) -> None:
    """Swap two directories in one step. Raises CannotExchangeError."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        raise CannotExchangeError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(one)) from None
    result = call(
        _CURRENT_DIRECTORY, os.fsencode(one), _CURRENT_DIRECTORY, os.fsencode(other), _EXCHANGE
    )
    if result:
        number = ctypes.get_errno()
        kind = CannotExchangeError if number in _CANNOT else OSError
        raise kind(number, os.strerror(number), str(one), None, str(other))
