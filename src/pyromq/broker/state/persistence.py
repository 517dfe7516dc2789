"""The broker's tables on disk: one JSON file per table, beside it the version before.

A save writes `FILE.tmp` and syncs it, renames `FILE` to `FILE.bak` and `FILE.tmp` to
`FILE`. Whatever the instant of a crash, a complete version is left in `FILE` or in
`FILE.bak`.

Invariants:
1. Saves never block the event loop: `save_soon` takes a snapshot on the loop and encodes
   and writes it in a thread. Changes that come while a save runs share the next one, so
   a burst of a thousand new topics costs a few saves, not a thousand.
2. An older snapshot never replaces a newer one.
3. A table that cannot be read is an error that stops the start: going on with an empty
   table would make topics and offsets vanish.

A change is on disk some milliseconds after it was made. Who asked for a topic, or sent its
first message, is answered after that (`saved`); what others sent to it meanwhile makes a
broker that was killed know it again (`TopicTable.adopt`).

`load` is called before the loop runs, `save_soon` on the loop, `close` at the stop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from pyromq.base.descriptors import opened

logger = logging.getLogger(__name__)

Table = TypeVar("Table")


class PersistenceError(Exception):
    """A table that cannot be read or written; the message names the file and what to do."""


class Snapshot(Protocol):
    """A table's content at one instant, not shared with the table that goes on changing."""

    def encode(self) -> bytes:
        """The content of the file."""


class TableFile:
    """Keeps one file up to date with one table."""

    def __init__(self, path: Path, snapshot: Callable[[], Snapshot]) -> None:
        self.path = path
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._taken = 0
        self._written = 0
        self._changed = False
        self._failed = False
        self._task: asyncio.Task[None] | None = None

    def load(self, decode: Callable[[bytes], Table]) -> Table | None:
        """The table of the file, or of its backup; None when there is neither.

        Raises PersistenceError when what is there cannot be read.
        """
        backup = self._beside(".bak")
        faults: list[str] = []
        for path in (self.path, backup):
            try:
                table = decode(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                faults.append(f"{path}: {error}")
                continue
            if path is backup:
                reason = faults[0] if faults else f"{self.path} is missing"
                logger.warning("%s; the version before it was loaded from %s", reason, path)
            return table
        if not faults:
            return None
        raise PersistenceError(
            f"cannot read {'; '.join(faults)}. Restore {self.path} from a copy, or move it and "
            f"{backup.name} away to start with an empty table"
        )

    def save_soon(self) -> None:
        """Save the table as it is now, off the loop; at once where no loop runs."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.save()
            return
        self._changed = True
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._save_while_changed())

    async def saved(self) -> None:
        """Wait until what was changed so far is saved, or could not be: that is in the log."""
        if self._task is not None:
            await asyncio.shield(self._task)

    def save_if_failed(self) -> None:
        """Try a save again that was not possible, such as one on a full disk."""
        if self._failed:
            self.save_soon()

    def save(self) -> None:
        """Save the table as it is now. Raises PersistenceError."""
        self._changed = False
        self._write(*self._take())

    async def close(self) -> None:
        """Wait for a save that runs, then save once more. Raises PersistenceError."""
        if self._task is not None:
            await self._task
        number, snapshot = self._take()
        await asyncio.to_thread(self._write, number, snapshot)

    async def _save_while_changed(self) -> None:
        while self._changed:
            self._changed = False
            number, snapshot = self._take()
            try:
                await asyncio.to_thread(self._write, number, snapshot)
            except PersistenceError as error:
                if not self._failed:
                    logger.error("%s; the table is kept in memory until it can be saved", error)
                self._failed = True

    def _take(self) -> tuple[int, Snapshot]:
        self._taken += 1
        return self._taken, self._snapshot()

    def _write(self, number: int, snapshot: Snapshot) -> None:
        content = snapshot.encode()
        with self._lock:
            if number < self._written:
                return
            try:
                self._replace(content)
            except OSError as error:
                raise PersistenceError(f"cannot write {self.path}: {error}") from error
            self._written = number
            self._failed = False

    def _replace(self, content: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._beside(".tmp")
        with (
            opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor,
            open(descriptor, "wb", closefd=False) as file,
        ):
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        if self.path.exists():
            self.path.replace(self._beside(".bak"))
        temporary.replace(self.path)
        with opened(self.path.parent, os.O_RDONLY) as directory:
            os.fsync(directory)

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)
