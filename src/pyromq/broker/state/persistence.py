"""Tables on disk: one JSON file per table, and the previous version as its backup.

Files are replaced atomically (`base.atomic_file`): after a crash at any instant, `FILE` or
`FILE.bak` is complete.

Invariants
1. Saves never block the loop: `save_soon` takes a snapshot on the loop and encodes and writes it in
   a thread. Changes during a save share the next one, so a burst of a thousand new topics costs a
   few saves.
2. An older snapshot never replaces a newer one.
3. An unreadable table stops the start: with an empty one, topics and offsets would vanish.

A change is on disk some milliseconds after it was made. The response to a request that created a
topic waits for that (`saved`). If the broker is killed first, messages that others sent to the
topic meanwhile restore it (`TopicTable.adopt`).

`load` runs before the loop, `save_soon` on the loop, `close` at the stop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from pyromq.base.atomic_file import backup_of, write_file

logger = logging.getLogger(__name__)

Table = TypeVar("Table")


class PersistenceError(Exception):
    """A table cannot be read or written; the message names the file and what to do."""


class Snapshot(Protocol):
    """The content of a table at one instant, independent of later changes."""

    def encode(self) -> bytes:
        """Return the content of the file."""


class TableFile:
    """The file of one table."""

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
        """Return the table from the file or its backup; None if neither exists.

        Raises PersistenceError if they cannot be read.
        """
        backup = backup_of(self.path)
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
                logger.warning("%s; loaded the previous version from %s", reason, path)
            return table
        if not faults:
            return None
        raise PersistenceError(
            f"cannot read {'; '.join(faults)}. Restore {self.path} from a copy, or move it and "
            f"{backup.name} away to start with an empty table"
        )

    def save_soon(self) -> None:
        """Save the current table in a thread; synchronously if no loop runs."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.save()
            return
        self._changed = True
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._save_while_changed())

    async def saved(self) -> None:
        """Wait until all changes so far are saved, or the failure is logged."""
        if self._task is not None:
            await asyncio.shield(self._task)

    def save_if_failed(self) -> None:
        """Retry a failed save, for example after the disk was full."""
        if self._failed:
            self.save_soon()

    def save(self) -> None:
        """Save the current table now. Raises PersistenceError."""
        self._changed = False
        self._write(*self._take())

    async def close(self) -> None:
        """Wait for a save in flight, then save once more. Raises PersistenceError."""
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
                    logger.error("%s; keeping the table in memory until it can be saved", error)
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
                write_file(self.path, content, backup=True)
            except OSError as error:
                raise PersistenceError(f"cannot write {self.path}: {error}") from error
            self._written = number
            self._failed = False
