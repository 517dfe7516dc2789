"""Makes commit-log segments ready ahead of their use, off the loop.

A segment is made sparse; its blocks are reserved and its pages mapped in steps,
always AHEAD bytes in front of the writer. The next segment is begun before the current
one ends, and the one after it too while the writer fills segments quickly. The writer
only ever meets memory that is ready; if it is faster than this thread it makes the next
step itself, and if this thread hangs in the kernel it gives up after TIMEOUT.

With warmMapedFileEnable all pages of the current and the next segment are mapped and
locked in memory; a segment that is full is unlocked.

One thread beside the loop's. Which file is current, how much of it is reserved and
which ones are ahead change only under `_lock`, which is never held longer than one step.
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

from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.log.transient_store_pool import TransientStorePool

logger = logging.getLogger(__name__)

#: How far in front of the writer a segment is kept ready.
AHEAD: Final = 32 * 1024 * 1024
#: Blocks are reserved in steps of this size, so that small stores stay small.
RESERVE_STEP: Final = 8 * 1024 * 1024
#: Pages are mapped in steps of this size.
POPULATE_STEP: Final = 256 * 1024
#: Seconds that the writer waits for a step of the thread, as long as Java waits for a file.
TIMEOUT: Final = 5.0
#: A writer that fills a segment in fewer seconds gets two ahead.
_QUICK: Final = 10.0


@dataclass(slots=True)
class _Segment:
    file: MappedFile
    #: Pages below this position are mapped.
    ready: int = 0


class AllocationService:
    """Keeps the segment in use ready ahead of the writer, and the next ones too."""

    def __init__(
        self,
        directory: Path,
        segment_size: int,
        *,
        directory_for: Callable[[int], Path] | None = None,
        warm: bool = False,
        pool: TransientStorePool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`directory_for` says where the file of an offset is made, if not in `directory`.

        With a `pool` new files get a buffer of it.
        """
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
        #: Segments that were locked in memory and need not be any more.
        self._to_unlock: deque[MappedFile] = deque()

    def start(self) -> None:
        """Begin to work ahead."""
        self._thread = threading.Thread(target=self._run, name="pyromq-allocation", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; segments ahead, which were never written to, are removed."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._drop_ahead()

    def follow(self, file: MappedFile, position: int) -> None:
        """From now on `file` is written to, and the writer stands at `position`."""
        with self._lock:
            taken = self._taken
            ready = taken.ready if taken is not None and taken.file is file else 0
            self._target = position + AHEAD
            self._current = _Segment(file, max(position, ready))
        self._wake.set()

    def advance(self, position: int) -> None:
        """The writer has come to `position` of the current file."""
        self._target = position + AHEAD
        self._wake.set()

    def ensure(self, file: MappedFile, end: int) -> None:
        """Reserve `file` up to `end` now; raises OSError on a full disk."""
        self._take_lock()
        try:
            file.reserve(_step_above(end))
        finally:
            self._lock.release()

    def take_next(self, base: int) -> MappedFile:
        """The file that begins at `base`: one made ahead, or a new one.

        Raises OSError, or NoBufferError for a new one that should have a buffer.
        """
        self._take_lock()
        try:
            # Nothing is made ahead until `follow`: the file behind the current one is this one.
            full, self._current = self._current, None
            if full is not None and self._warm:
                self._to_unlock.append(full.file)
            now = self._clock()
            quick = self._taken_at is not None and now - self._taken_at < _QUICK
            self._taken_at, self._wanted_ahead = now, 2 if quick else 1
            if self._ahead and self._ahead[0].file.base == base and self._ahead_is_there():
                self._taken = self._ahead.pop(0)
            else:
                self._drop_ahead()
                self._taken = _Segment(self._create(base))
            return self._taken.file
        finally:
            self._lock.release()

    def give_up(self, file: MappedFile) -> None:
        """Remove a file that `take_next` gave and that cannot be used."""
        self._take_lock()
        try:
            self._drop_ahead()
            file.delete()
        finally:
            self._lock.release()

    def _take_lock(self) -> None:
        if not self._lock.acquire(timeout=TIMEOUT):
            raise TimeoutError(
                f"no segment within {TIMEOUT:g} s: the disk of {self._directory} hangs"
            )

    def _ahead_is_there(self) -> bool:
        """Whether nobody removed the segments ahead; what goes to such files is lost.

        A broker of Java's that is started on a store in use removes empty segments before it
        sees the lock.
        """
        missing = [each.file.path for each in self._ahead if not each.file.path.exists()]
        if missing:
            logger.error(
                "%s was removed by another process: made again; look for a second broker "
                "on this store",
                missing[0],
            )
        return not missing

    def _create(self, base: int) -> MappedFile:
        create = MappedFile.create if self._pool is None else self._pool.create
        return create(self._directory_for(base), base, self._segment_size)

    def _drop_ahead(self) -> None:
        # The last one first: a kill in between must leave no gap, which a start refuses.
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
                # Not fatal here: the writer reports it when it really needs the room.
                logger.warning("cannot make room ahead in %s: %s", self._directory, error)

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
        """Do one piece of what is due; False when nothing is left."""
        file = segment.file
        if self._target >= file.size and self._make_one_ahead(file):
            return True
        if self._make_ready(segment, min(self._target, file.size)):
            return True
        if not self._warm:
            return False
        return self._make_one_ahead(file) or any(
            self._make_ready(each, file.size) for each in (segment, *self._ahead[:1])
        )

    def _make_one_ahead(self, file: MappedFile) -> bool:
        """Begin a segment behind `file`, which is in use; False when there are enough."""
        count = len(self._ahead)
        if count >= self._wanted_ahead:
            return False
        if self._pool is not None and not self._pool.available:
            return False  # perhaps there is one when the file is needed
        self._ahead.append(_Segment(self._create(file.base + (count + 1) * file.size)))
        self._ahead[-1].file.reserve(RESERVE_STEP)
        return True

    def _make_ready(self, segment: _Segment, end: int) -> bool:
        """Reserve and map the next pages below `end`; False when all of them are ready."""
        start, stop = segment.ready, min(segment.ready + POPULATE_STEP, end)
        if start >= stop:
            return False
        # Blocks up to the writer's target at once, of a segment to be warmed step by step.
        file = segment.file
        file.reserve(_step_above(min(end, max(stop, self._target))))
        if self._locks_memory:
            try:
                file.lock(start, stop)
            except OSError as error:
                self._locks_memory = False
                logger.warning(
                    "warmMapedFileEnable: %s cannot be locked in memory, pages are mapped only; "
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
