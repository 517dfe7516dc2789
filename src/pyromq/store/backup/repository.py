"""A directory of backups of one store.

    DIRECTORY/
        20261117T040000Z/           a complete backup: it has a backup.json
        20261117T050000Z.partial/   one that is being made, or was interrupted
        20261117T030000Z.removed/   one that is being removed
        lock                        held while a backup is made or removed

A backup is made under its `.partial` name and renamed when it is complete and fsynced. `copied`
in a partial backup has a line for each file that is complete: the next run links those instead of
copying them again, and then removes the leftovers. Removing any backup is always safe, also with
`rm -r`: no other depends on it.

Called by `making` and the command line, on one thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import orjson

from pyromq.base.atomic_file import read_file, sync_directory, write_file
from pyromq.store.backup.manifest import MANIFEST_NAME, FileFacts, Manifest
from pyromq.store.results import StoreError

logger = logging.getLogger(__name__)

_NAME: Final = re.compile(r"\d{8}T\d{6}Z(-\d+)?", re.ASCII)
_PARTIAL: Final = ".partial"
_REMOVED: Final = ".removed"
_COPIED_NAME: Final = "copied"


@dataclass(frozen=True, slots=True)
class Backup:
    """A complete backup."""

    directory: Path
    manifest: Manifest


class PartialBackup:
    """A backup that is being made."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._copied = (directory / _COPIED_NAME).open("ab")

    def note(self, facts: FileFacts) -> None:
        """Note that a file is complete and fsynced."""
        self._copied.write(orjson.dumps(facts.to_json()) + b"\n")
        self._copied.flush()
        os.fsync(self._copied.fileno())

    def complete(self, manifest: Manifest) -> Path:
        """Write the manifest and give the backup its name; return its directory."""
        self.close()
        for path in (path for path in self.directory.iterdir() if path.is_dir()):
            sync_directory(path)
        write_file(self.directory / MANIFEST_NAME, manifest.encode())
        (self.directory / _COPIED_NAME).unlink()
        sync_directory(self.directory)
        target = self.directory.with_name(manifest.name)
        self.directory.rename(target)
        sync_directory(target.parent)
        return target

    def close(self) -> None:
        """Close the list of copied files."""
        self._copied.close()


class Repository:
    """The backups in a directory, which may not exist yet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Create the directory, and keep other runs out. Raises StoreError if one is active."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreError(
                    f"another run is working in {self.directory}: wait until it has ended"
                ) from error
            yield

    def backups(self) -> list[Backup]:
        """Return the complete backups, oldest first; warn about those with a damaged manifest."""
        found = []
        for path in self.directory.iterdir() if self.directory.is_dir() else ():
            if not _NAME.fullmatch(path.name) or not (path / MANIFEST_NAME).is_file():
                continue
            try:
                found.append(read_backup(path))
            except StoreError as error:
                logger.warning("ignoring a damaged backup: %s", error)
        return sorted(found, key=lambda backup: _order(backup.directory.name))

    def leftovers(self) -> list[Path]:
        """Return what killed runs left behind."""
        if not self.directory.is_dir():
            return []
        return [
            path for path in self.directory.iterdir() if path.name.endswith((_PARTIAL, _REMOVED))
        ]

    def begin(self, now: float | None = None) -> tuple[str, PartialBackup]:
        """Create a partial backup; return its later name and the backup."""
        moment = datetime.fromtimestamp(time.time() if now is None else now, UTC)
        number = 1
        while True:
            name = f"{moment:%Y%m%dT%H%M%SZ}" + (f"-{number}" if number > 1 else "")
            directory = self.directory / (name + _PARTIAL)
            if not directory.exists() and not (self.directory / name).exists():
                directory.mkdir()
                return name, PartialBackup(directory)
            number += 1

    def reusable(self, backups: list[Backup]) -> Iterator[tuple[Path, dict[str, FileFacts]]]:
        """Yield directories with complete files: interrupted backups, then the newest first."""
        for path in self.leftovers():
            if path.name.endswith(_PARTIAL):
                yield path, _copied_files(path)
        for backup in reversed(backups):
            yield backup.directory, {file.path: file for file in backup.manifest.segments}

    def remove(self, directory: Path) -> None:
        """Remove a backup or a leftover. Raises OSError."""
        if not directory.name.endswith((_PARTIAL, _REMOVED)):
            # First under another name: a half-removed backup must not look complete.
            directory = directory.rename(directory.with_name(directory.name + _REMOVED))
            sync_directory(self.directory)
        shutil.rmtree(directory)


def read_backup(directory: Path) -> Backup:
    """Return a complete backup. Raises StoreError if it is none."""
    try:
        content = read_file(directory / MANIFEST_NAME)
    except OSError as error:
        raise StoreError(f"{directory}: {error.strerror}") from error
    if content is None:
        raise StoreError(
            f"{directory} is not a complete backup: it has no {MANIFEST_NAME}. List the backups "
            "of a directory with pyromq store backups list"
        )
    try:
        return Backup(directory, Manifest.decode(content))
    except StoreError as error:
        raise StoreError(f"{directory}: {error}") from error


def _order(name: str) -> tuple[str, int]:
    moment, _, number = name.partition("-")
    return moment, int(number or 1)


def _copied_files(directory: Path) -> dict[str, FileFacts]:
    found = {}
    for line in (read_file(directory / _COPIED_NAME) or b"").splitlines():
        try:
            facts = FileFacts.from_json(orjson.loads(line))
        except (KeyError, TypeError, ValueError, AttributeError):
            continue  # the last line of a killed run
        if facts.is_segment:
            found[facts.path] = facts
    return found
