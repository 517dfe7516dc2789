"""Makes commit-log segments ready ahead of their use, off the loop.

A segment is made sparse; its blocks are reserved and its pages mapped in steps,
always AHEAD bytes in front of the writer, and the next segment is begun before the
current one ends. The writer only ever meets memory that is ready; if it is faster
than this thread it makes the next step itself.

One thread beside the loop's. Which file is current, how much of it is reserved and
which one is next change only under `_lock`, which is never held longer than one step.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Final

from pyromq.store.mapped_file import MappedFile

logger = logging.getLogger(__name__)

#: How far in front of the writer a segment is kept ready.
AHEAD: Final = 32 * 1024 * 1024
#: Blocks are reserved in steps of this size, so that small stores stay small.
RESERVE_STEP: Final = 8 * 1024 * 1024
#: Pages are mapped in steps of this size.
POPULATE_STEP: Final = 256 * 1024


class AllocationService:
    """Keeps the segment in use ready ahead of the writer, and the next one too."""

    def __init__(self, directory: Path, segment_size: int) -> None:
        self._directory = directory
        self._segment_size = segment_size
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._current: MappedFile | None = None
        self._populated = 0
        self._target = 0
        self._next: MappedFile | None = None

    def start(self) -> None:
        """Begin to work ahead."""
        self._thread = threading.Thread(target=self._run, name="pyromq-allocation", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a next segment that was never written to is removed."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        if self._next is not None:
            self._next.delete()
            self._next = None

    def follow(self, file: MappedFile, position: int) -> None:
        """From now on `file` is written to, and the writer stands at `position`."""
        with self._lock:
            self._populated = position
            self._target = position + AHEAD
            self._current = file
        self._wake.set()

    def advance(self, position: int) -> None:
        """The writer has come to `position` of the current file."""
        self._target = position + AHEAD
        self._wake.set()

    def ensure(self, file: MappedFile, end: int) -> None:
        """Reserve `file` up to `end` now; raises OSError on a full disk."""
        with self._lock:
            file.reserve(_step_above(end))

    def take_next(self, base: int) -> MappedFile:
        """The file that begins at `base`: the one made ahead, or a new one; OSError if neither."""
        with self._lock:
            # Nothing is made ahead until `follow`: the file behind the current one is this one.
            self._current = None
            file, self._next = self._next, None
            if file is not None and file.base != base:
                file.delete()
                file = None
            if file is None:
                file = MappedFile.create(self._directory, base, self._segment_size)
            return file

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stopping:
                return
            try:
                self._work_ahead()
            except OSError as error:
                # Not fatal here: the writer reports it when it really needs the room.
                logger.warning("cannot make room ahead in %s: %s", self._directory, error)

    def _work_ahead(self) -> None:
        while not self._stopping:
            file, target = self._current, self._target
            if file is None:
                return
            end = min(target, file.size)
            with self._lock:
                if self._current is not file:
                    continue
                file.reserve(_step_above(end))
                if target >= file.size and self._next is None:
                    self._next = MappedFile.create(
                        self._directory, file.base + file.size, self._segment_size
                    )
                    self._next.reserve(RESERVE_STEP)
                start = self._populated
                stop = min(start + POPULATE_STEP, end)
                if start < stop:
                    file.populate(start, stop)
                    self._populated = stop
            if self._populated >= end:
                return


def _step_above(position: int) -> int:
    return (position + RESERVE_STEP - 1) // RESERVE_STEP * RESERVE_STEP
