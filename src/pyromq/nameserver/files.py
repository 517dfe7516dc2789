"""Small files that must survive a crash: replaced as a whole, the previous content kept.

`save` writes FILE.tmp, syncs it, links the old FILE as FILE.bak and renames FILE.tmp: at every
instant FILE is complete. Same names as RocketMQ's, so either system can take over.

Called by the NameServer: `save` in a worker thread, `load` at start-up.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def save(path: Path, content: bytes) -> None:
    """Replace the file's content; directories are made as needed. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileNotFoundError):
        _keep(path, backup_of(path))
    temporary.replace(path)
    _sync_directory(path.parent)


def load(path: Path) -> bytes | None:
    """The file's content; None when it does not exist. Raises `OSError`."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def backup_of(path: Path) -> Path:
    """Where `save` keeps the content before the last."""
    return path.with_name(path.name + ".bak")


def _keep(path: Path, backup: Path) -> None:
    """Give the file a second name, so that its own never disappears."""
    backup.unlink(missing_ok=True)
    try:
        backup.hardlink_to(path)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links; FILE.bak alone is complete for an instant
        path.replace(backup)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
