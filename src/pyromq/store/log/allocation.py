"""Preallocate commit-log segments off the loop.

Segments are created sparse. This thread reserves their blocks and populates their pages in steps,
AHEAD bytes in front of the writer. It creates the next segment before the current one is full, and
a second one if the writer fills segments quickly. The writer therefore only touches memory that is
ready. A writer that overtakes the thread takes the next step itself, and fails after TIMEOUT if the
thread hangs in the kernel.

With warmMapedFileEnable all pages of the current and the next segment are populated and locked in
memory; full segments are unlocked.

Runs one thread. The current file, its reserved size and the segments ahead change only under
`_lock`, which is never held for longer than one step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyromq.base.sizes import KIB, MIB
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.log.transient_store_pool import TransientStorePool

logger = logging.getLogger(__name__)

#: Bytes that are kept ready in front of the writer.
AHEAD: Final = 32 * MIB
#: Blocks are reserved in steps of this size, so that small stores stay small.
RESERVE_STEP: Final = 8 * MIB
#: Pages are populated in steps of this size.
POPULATE_STEP: Final = 256 * KIB
#: A segment whose creation takes longer is logged.
SLOW_CREATION_MS: Final = 1000
#: Seconds that the writer waits for the thread; Java waits as long for a file.
TIMEOUT: Final = 5.0
#: A writer that fills a segment in less time gets two ahead.
_QUICK_FILL_SECONDS: Final = 10.0


@dataclass(slots=True)
class _Segment:
    file: MappedFile
    #: Pages below this position are populated.
    ready: int = 0


class AllocationService:
    """Keeps room ready in front of the writer, in the current segment and the next ones."""

    def __init__(
        self,
        directory: Path,
        segment_size: int,
        *,
        directory_for: Callable[[int], Path] | None = None,
        warm: bool = False,
        max_ahead: int = 2,
        pool: TransientStorePool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`directory_for` returns the directory of a new file if it is not always `directory`.

        `max_ahead` caps the segments ahead, even of a quick writer. With a `pool`, new files get a
        buffer.
        """
        self._max_ahead = max_ahead
        self._pool = pool
        self._directory = directory
        self._directory_for = directory_for or (lambda _: directory)
        self._segment_size = segment_size
        self._warm = warm
        self._locks_memory = warm
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._current: _Segment | None = None
        self._target = 0
        self._taken: _Segment | None = None
        self._taken_at: float | None = None
        self._ahead: list[_Segment] = []
        self._wanted_ahead = 1
        #: Full segments that are still locked in memory.
        self._to_unlock: deque[MappedFile] = deque()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="pyromq-allocation", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and remove the unused segments ahead."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._drop_ahead()

    def follow(self, file: MappedFile, position: int) -> None:
        """Make `file` the current one, with the writer at `position`."""
        with self._lock:
            taken = self._taken
            ready = taken.ready if taken is not None and taken.file is file else 0
            self._target = position + AHEAD
            self._current = _Segment(file, max(position, ready))
        self._wake.set()

    def advance(self, position: int) -> None:
        """Note that the writer has reached `position` of the current file."""
        self._target = position + AHEAD
        self._wake.set()

    def ensure(self, file: MappedFile, end: int) -> None:
        """Reserve `file` up to `end` now. Raises OSError if the disk is full."""
        self._take_lock()
        try:
            file.reserve(_step_above(end))
        finally:
            self._lock.release()

    def take_next(self, base: int) -> MappedFile:
        """Return the file that starts at `base`: a preallocated one, or a new one.

        Raises OSError, or NoBufferError if a new file finds no free buffer.
        """
        self._take_lock()
        try:
            # Preallocation pauses until `follow`, because this file is the next one.
            full, self._current = self._current, None
            if full is not None and self._warm:
                self._to_unlock.append(full.file)
            now = self._clock()
            quick = self._taken_at is not None and now - self._taken_at < _QUICK_FILL_SECONDS
            self._taken_at, self._wanted_ahead = now, min(2 if quick else 1, self._max_ahead)
            if self._ahead and self._ahead[0].file.base == base and self._ahead_exists():
                self._taken = self._ahead.pop(0)
            else:
                self._drop_ahead()
                self._taken = _Segment(self._create(base))
            return self._taken.file
        finally:
            self._lock.release()

    def forget(self) -> None:
        """Work for no segment until `follow`, and remove the preallocated ones."""
        self._take_lock()
        try:
            self._current = self._taken = None
            self._drop_ahead()
        finally:
            self._lock.release()

    def discard(self, file: MappedFile) -> None:
        """Remove a file from `take_next` that cannot be used."""
        self._take_lock()
        try:
            self._drop_ahead()
            file.delete()
        finally:
            self._lock.release()

    def _take_lock(self) -> None:
        if not self._lock.acquire(timeout=TIMEOUT):
            raise TimeoutError(
                f"no segment after {TIMEOUT:g} s: the disk of {self._directory} does not respond"
            )

    def _ahead_exists(self) -> bool:
        """Whether the preallocated files still exist: data in removed ones would be lost.

        A Java broker that is started on a store in use removes empty segments before it checks
        the lock.
        """
        missing = [each.file.path for each in self._ahead if not each.file.path.exists()]
        if missing:
            logger.error(
                "preallocated segment %s was removed by another process, recreating it: "
                "check for a second broker on this store",
                missing[0],
            )
        return not missing

    def _create(self, base: int) -> MappedFile:
        create = MappedFile.create if self._pool is None else self._pool.create
        begun = time.monotonic()
        file = create(self._directory_for(base), base, self._segment_size)
        milliseconds = (time.monotonic() - begun) * 1000
        if milliseconds > SLOW_CREATION_MS:
            logger.warning(
                "creation of segment %s took %.0f ms, expected at most %d ms: check the disk's "
                "latency",
                file.path,
                milliseconds,
                SLOW_CREATION_MS,
            )
        return file

    def _drop_ahead(self) -> None:
        # Last one first: a kill in between must not leave a gap, which a start refuses.
        while self._ahead:
            self._ahead.pop().file.delete()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stopping:
                return
            try:
                self._work_ahead()
            except OSError as error:
                # Not fatal: a put is refused when it really needs the room.
                logger.warning(
                    "preallocation in %s failed: %s; sends are refused when the room ahead is used "
                    "up",
                    self._directory,
                    error,
                )

    def _work_ahead(self) -> None:
        while self._to_unlock:
            self._to_unlock.popleft().unlock()
        while not self._stopping:
            segment = self._current
            if segment is None:
                return
            with self._lock:
                if self._current is segment and not self._step(segment):
                    return

    def _step(self, segment: _Segment) -> bool:
        """Do one step of the work that is due; return False if there is none."""
        file = segment.file
        if self._target >= file.size and self._create_ahead(file):
            return True
        if self._make_ready(segment, min(self._target, file.size)):
            return True
        if not self._warm:
            return False
        return self._create_ahead(file) or any(
            self._make_ready(each, file.size) for each in (segment, *self._ahead[:1])
        )

    def _create_ahead(self, file: MappedFile) -> bool:
        """Create a segment after the current `file`; return False if there are enough."""
        count = len(self._ahead)
        if count >= self._wanted_ahead:
            return False
        if self._pool is not None and not self._pool.available:
            return False  # a buffer may be free by the time the file is needed
        self._ahead.append(_Segment(self._create(file.base + (count + 1) * file.size)))
        self._ahead[-1].file.reserve(RESERVE_STEP)
        return True

    def _make_ready(self, segment: _Segment, end: int) -> bool:
        """Reserve and populate the next pages below `end`; return False if all are ready."""
        start, stop = segment.ready, min(segment.ready + POPULATE_STEP, end)
        if start >= stop:
            return False
        # Reserve blocks up to the writer's target at once, beyond it (warming) step by step.
        file = segment.file
        file.reserve(_step_above(min(end, max(stop, self._target))))
        if self._locks_memory:
            try:
                file.lock(start, stop)
            except OSError as error:
                self._locks_memory = False
                logger.warning(
                    "warmMapedFileEnable: cannot lock %s in memory, only populating its pages; "
                    "raise the limit of locked memory (ulimit -l): %s",
                    file.path,
                    error,
                )
        if not self._locks_memory:
            file.populate(start, stop)
        segment.ready = stop
        return True


def _step_above(position: int) -> int:
    return (position + RESERVE_STEP - 1) // RESERVE_STEP * RESERVE_STEP
