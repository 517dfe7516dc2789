"""Replace small files atomically, so that a crash leaves either the old content or the new.

`write_file` writes NAME.tmp, fsyncs it, optionally keeps the old file as NAME.bak, renames NAME.tmp
to NAME, and fsyncs the directory. Readers see a complete file under NAME at every instant.
The names match RocketMQ's, so either system can take over the other's files.

Any thread may call this, but only one at a time for the same path. Descriptors come from the
process's reserve (`base.descriptors`): a server whose peers hold every descriptor still saves.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pyromq.base.descriptors import opened


def write_file(
    path: Path, content: bytes, *, mode: int | None = None, backup: bool = False
) -> None:
    """Replace the content of `path`, creating missing directories. Raises `OSError`.

    `mode` sets the permissions, whatever the umask; the default is 0644 less the umask. With
    `backup` the previous content stays available as `backup_of(path)`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with (
            opened(temporary, flags) as descriptor,
            open(descriptor, "wb", closefd=False) as file,
        ):
            if mode is not None:
                os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        if backup:
            _keep_backup(path)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def read_file(path: Path) -> bytes | None:
    """Return the content of a file, or None if it does not exist. Raises `OSError`."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def backup_of(path: Path) -> Path:
    """Return the path that holds the previous content of `path`."""
    return path.with_name(path.name + ".bak")


def sync_directory(path: Path) -> None:
    """Fsync a directory, so that created and renamed names survive a power cut."""
    with opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


def sync_file(path: Path) -> None:
    """Fsync the content of a file."""
    with opened(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


def _keep_backup(path: Path) -> None:
    """Hard-link the file as its own backup, so that its name never disappears."""
    backup = backup_of(path)
    if not path.exists():
        return
    backup.unlink(missing_ok=True)
    try:
        backup.hardlink_to(path)
    except FileNotFoundError:
        pass
    except OSError:  # no hard links here: only the backup exists until the next rename
        path.replace(backup)
