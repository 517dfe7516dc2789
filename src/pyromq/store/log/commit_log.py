"""The commit log: every message of the broker, one behind the other.

Puts of one chunk gather as `parts`, pieces of records in log order, and reach the
mapped segment in one copy when the chunk is sealed. Between, `position` is already
behind them: answers can be made, and nobody else can look, since everything happens
in one turn of the loop.

Invariants
1. written <= position; they are equal, and `parts` is empty, outside a chunk.
2. The bytes from `written` to `position` are exactly `b"".join(parts)`, all in one
   segment; `position` + size of a record <= `limit` before it is added.
3. Behind the last record of a full segment stands a blank record to its end.
4. The segment that is written to, and those made ahead of it, stay mapped.
5. With a transient store pool the segment that is written to is a `PooledFile`: what is
   written is in its buffer, what is committed in the file, too.

Owned by the loop's thread. Other threads read below `written` only.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyromq.base.descriptors import ShortageError
from pyromq.protocol.message.record import BLANK, BLANK_MAGIC, BLANK_SIZE
from pyromq.store.log.allocation import AHEAD, RESERVE_STEP, AllocationService
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.log.open_files import OpenFiles
from pyromq.store.log.segments import Segments
from pyromq.store.log.transient_store_pool import NoBufferError, PooledFile, TransientStorePool
from pyromq.store.log.watermarks import Watermarks
from pyromq.store.results import PutError, PutStatus

logger = logging.getLogger(__name__)

#: The log's end, which consumers that keep up read, stays mapped.
_KEPT_IN_MEMORY: Final = 64 * 1024 * 1024


class CommitLog:
    """Appends whole records, reads ranges of bytes."""

    __slots__ = (
        "_allocation",
        "_commit_lock",
        "_file",
        "_open_files",
        "_pool",
        "_start",
        "add",
        "limit",
        "now",
        "parts",
        "position",
        "segments",
        "watermarks",
    )

    def __init__(
        self,
        directory: Path,
        segment_size: int,
        *,
        more: Sequence[Path] = (),
        read_only: Sequence[Path] = (),
        warm: bool = False,
        pool: TransientStorePool | None = None,
        open_files: OpenFiles | None = None,
    ) -> None:
        """`more` are further directories for segments, `read_only` those of old ones.

        With `open_files` segments that are not written to are mapped when they are read.
        """
        self._open_files = open_files
        self.segments = Segments(
            directory, segment_size, more=more, read_only=read_only, open_files=open_files
        )
        self.watermarks = Watermarks()
        self._allocation = AllocationService(
            directory, segment_size, directory_for=self.segments.directory_for, warm=warm, pool=pool
        )
        self._pool = pool
        self._commit_lock = threading.Lock()
        self._file: MappedFile | None = None
        #: Where the gathered parts will begin.
        self._start = 0
        #: The offset behind the last put.
        self.position = 0
        #: A record must end at or below this offset, or `make_room` is called first.
        self.limit = 0
        #: The store timestamp of the chunk's records, in milliseconds.
        self.now = 0
        self.parts: list[bytes] = []
        self.add = self.parts.extend

    def start(self, end: int) -> None:
        """Begin to append at `end`, the end of what recovery found valid."""
        self.position = self._start = end
        self.watermarks.reset(end)
        if self._pool is not None:
            self._pool.open()
        self._file = self.segments.find(end)
        self._allocation.start()
        if self._file is not None:
            self._file.keep_mapped()
            self._allocation.follow(self._file, end - self._file.base)

    def stop(self) -> None:
        """Seal, commit, flush and unmap everything."""
        self.seal()
        self.commit()
        self.flush()
        self.limit = 0
        self._allocation.stop()
        self.segments.close()
        if self._pool is not None:
            self._pool.close()
        self._file = None

    def make_room(self, size: int) -> int:
        """Let a record of `size` bytes fit at the returned offset.

        Reserves more of the segment, or seals it with a blank record and goes on in
        the next one. Raises PutError when the disk gives no room; nothing is changed
        for the caller then.
        """
        file = self._file
        if size + BLANK_SIZE > self.segments.segment_size:
            raise PutError(
                PutStatus.MESSAGE_ILLEGAL,
                f"{size} bytes do not fit in a segment of {self.segments.segment_size}",
            )
        try:
            if file is None or self.position + size + BLANK_SIZE > file.base + file.size:
                file = self._roll(file)
            self._ready(file, size)
        except NoBufferError as error:
            raise PutError(PutStatus.NO_BUFFER, str(error)) from error
        except OSError as error:
            if not isinstance(error, ShortageError):  # `descriptors` has logged that
                logger.error("no room for %d bytes in %s: %s", size, self.segments.directory, error)
            raise PutError(PutStatus.CREATE_MAPEDFILE_FAILED, str(error)) from error
        return self.position

    def seal(self) -> None:
        """Copy the gathered parts into the segment: they are written now."""
        parts = self.parts
        if parts:
            assert self._file is not None
            self._file.write(self._start - self._file.base, b"".join(parts))
            parts.clear()
            self._start = self.watermarks.written = self.position
            self.watermarks.written_timestamp = self.now

    def holds(self, offset: int, size: int) -> bool:
        """Whether `size` bytes from `offset` on are there, in one segment."""
        file = self.segments.find(offset)
        return (
            file is not None
            and 0 < size <= file.base + file.size - offset
            and offset + size <= self.watermarks.written
        )

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset` on; fewer where they are not (or no longer) there."""
        file = self.segments.find(offset)
        if file is None:
            return b""
        end = min(offset + size, self.watermarks.written)
        try:
            return file.read(offset - file.base, max(offset, end) - file.base)
        except FileNotFoundError:  # it has expired meanwhile, or somebody else removed it
            return b""

    def view(self, offset: int, size: int) -> memoryview:
        """What `read` gives, where it lies: for pieces so large that copying them costs more."""
        file = self.segments.find(offset)
        if file is None:
            return memoryview(b"")
        end = min(offset + size, self.watermarks.written)
        try:
            return file.view(offset - file.base, max(offset, end) - file.base)
        except (FileNotFoundError, ShortageError):  # expired meanwhile, or no descriptor is left
            return memoryview(self.read(offset, size))

    def commit(self) -> None:
        """Bring all that is written to the files; raises OSError.

        Called by the commit thread, and on the loop when all buffers are in use.
        """
        if self._pool is None:
            return
        marks = self.watermarks
        with self._commit_lock:
            offset, timestamp = marks.written, marks.written_timestamp
            if marks.committed >= offset:
                return
            for file in list(self.segments.files):
                if isinstance(file, PooledFile) and file.is_buffered and file.base < offset:
                    file.commit(offset - file.base)
                    if file.base + file.size <= offset:
                        file.release_buffer()
            marks.move_committed(offset, timestamp)

    @property
    def free_buffers(self) -> int | None:
        """How many buffers the transient store pool has left; None without a pool."""
        return None if self._pool is None else self._pool.available

    @property
    def committed(self) -> tuple[int, int]:
        """The end of what survives this process, and the store time of its last message."""
        marks = self.watermarks
        if self._pool is None:
            return marks.written, marks.written_timestamp
        return marks.committed, marks.committed_timestamp

    def flush(self) -> None:
        """Wait until all that is committed is on the disk. Called by the flush thread."""
        marks = self.watermarks
        offset, timestamp = self.committed
        if marks.flushed >= offset:
            return
        for file in list(self.segments.files):
            if file.base + file.size > marks.flushed and file.base < offset:
                file.sync()
        marks.move_flushed(offset, timestamp)

    def release_old_pages(self) -> None:
        """Keep only the log's end in this process's memory. Called by the flush thread."""
        end = self.watermarks.flushed - _KEPT_IN_MEMORY
        for file in list(self.segments.files):
            if file.base < end:
                file.release(end - file.base)

    @property
    def min_offset(self) -> int:
        """The offset of the first byte that is still there."""
        return self.segments.first_offset

    def segment_after(self, offset: int) -> int:
        """The base of the segment behind the one that holds `offset`."""
        size = self.segments.segment_size
        return offset - offset % size + size

    def _ready(self, file: MappedFile, size: int) -> None:
        """Have the blocks for the next record and its blank, and go on working ahead."""
        position = self.position - file.base
        self._allocation.ensure(file, position + size + BLANK_SIZE)
        self._allocation.advance(position)
        step = max(RESERVE_STEP, size + BLANK_SIZE)
        self.limit = file.base + min(file.reserved, position + step, file.size) - BLANK_SIZE

    def _roll(self, full: MappedFile | None) -> MappedFile:
        """End the full segment with a blank record and go on with the next one."""
        base = full.base + full.size if full is not None else self.position
        file = self._next_file(base)
        try:
            self._allocation.ensure(file, min(AHEAD, file.size))
            if full is not None:
                # A segment from before the last start has nothing reserved yet.
                self._allocation.ensure(full, self.position - full.base + BLANK_SIZE)
        except OSError:
            self._allocation.give_up(file)
            raise
        if full is not None:
            self.seal()
            rest = base - self.position
            full.write(self.position - full.base, BLANK.pack(rest, BLANK_MAGIC))
            full.hand_to(self._open_files)
        self.segments.add(file)
        self._file = file
        self.position = self._start = self.watermarks.written = base
        self._allocation.follow(file, 0)
        return file

    def _next_file(self, base: int) -> MappedFile:
        """A file from the allocation; NoBufferError only where it is wanted."""
        try:
            return self._allocation.take_next(base)
        except NoBufferError:
            if self._pool is None or self._pool.fast_fail:
                raise
        # Full segments give their buffers back then: there is one at least.
        logger.warning(
            "no buffer is free: what waits is committed now; set a larger transientStorePoolSize"
        )
        self.commit()
        return self._allocation.take_next(base)
