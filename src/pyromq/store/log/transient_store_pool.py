"""The pool of buffers that stand between the writer and the commit log's files.

With transientStorePoolEnable a new segment has a buffer as long as it is written to: chunks are
copied there, and read from there, and `commit` brings them to the file. No append ever waits for
a page of the file that is being written back. The price: what is not committed dies with the
process. Opt-in, for masters with ASYNC_FLUSH only.

Invariants
1. A buffer belongs to one file at a time. Once a segment is full and committed its own mapping
   takes the buffer's place, and only then the buffer may serve another one.
2. Only what was written is committed: stale bytes of a buffer's last use never reach a file.
3. All segments have a buffer from the first one on that was made with a pool. Were one written
   to without, before what stands in the buffers of those before it is committed, then a kill
   would leave a hole in the log, behind which everything is lost.
4. The blocks of the file are reserved before the buffer is written to, as without a pool: a full
   disk refuses a put, never a commit.

Buffers get their memory, locked if that is allowed, page by page ahead of their first use
(`PooledFile.populate`), and keep it. `take` is called under the allocation service's lock; a file
is written to by the loop's thread, committed by the commit thread, and read by any.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections import deque
from pathlib import Path
from typing import Final

from pyromq.base.descriptors import close_file, open_file
from pyromq.store.log.mapped_file import MappedFile, lock_memory, make_file, populate_memory

logger = logging.getLogger(__name__)

#: So much is given to the kernel at once.
_COMMIT_AT_ONCE: Final = 4 * 1024 * 1024
#: Java's, too: with fewer of its buffers left the pool is near its end.
_FEW: Final = 0.4


class NoBufferError(Exception):
    """All buffers are in use."""


class Buffer:
    """Memory for one segment."""

    __slots__ = ("memory", "ready")

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size)
        #: Pages below this position are there.
        self.ready = 0


class TransientStorePool:
    """A fixed number of buffers, each as long as a segment."""

    def __init__(self, count: int, segment_size: int, *, fast_fail: bool = False) -> None:
        """With `fast_fail` who finds no buffer is refused, and does not wait for a commit."""
        # A segment gives its buffer back when there is a next one: a single one never comes free.
        self.count = max(2, count)
        self.fast_fail = fast_fail
        self.locks_memory = True
        self._segment_size = segment_size
        self._free: deque[Buffer] = deque()

    def open(self) -> None:
        """Make the buffers; they take no memory yet."""
        self._free.extend(Buffer(self._segment_size) for _ in range(self.count))

    @property
    def available(self) -> int:
        """How many buffers are free."""
        return len(self._free)

    def create(self, directory: Path, base: int, size: int) -> MappedFile:
        """A new file with a buffer; NoBufferError when none is free."""
        try:
            buffer = self._free.popleft()
        except IndexError:
            raise NoBufferError(
                f"none of the {self.count} buffers of the transient store pool is free"
            ) from None
        if self.available < self.count * _FEW:
            logger.warning("the transient store pool has %d free buffers left", self.available)
        try:
            return PooledFile(make_file(directory, base, size), size, buffer, self)
        except BaseException:
            self._free.appendleft(buffer)
            raise

    def give_back(self, buffer: Buffer) -> None:
        """Nobody reads or writes this buffer any more."""
        # The one that was used last is the first to be used again: its memory is there.
        self._free.appendleft(buffer)

    def close(self) -> None:
        """Free the memory of all buffers that are not in use."""
        while self._free:
            self._free.popleft().memory.close()


class PooledFile(MappedFile):
    """A file whose bytes are in a buffer as long as it is written to."""

    __slots__ = ("_buffer", "_committed", "_descriptor", "_file_map", "_pool", "_used")

    def __init__(self, path: Path, size: int, buffer: Buffer, pool: TransientStorePool) -> None:
        super().__init__(path, size, reserved=0)
        self._file_map: mmap.mmap | None = self._map
        self._map = buffer.memory
        self._buffer: Buffer | None = buffer
        self._pool = pool
        #: Open while there is a buffer: the path may be removed meanwhile.
        self._descriptor = open_file(path, os.O_RDWR)
        #: Positions: behind what was written, and behind what of it is in the file.
        self._used = self._committed = 0

    @property
    def is_buffered(self) -> bool:
        """Whether the buffer has not been given back yet."""
        return self._buffer is not None

    def write(self, position: int, data: bytes | bytearray) -> None:
        """Copy `data` to `position` of the buffer."""
        super().write(position, data)
        self._used = position + len(data)

    def read(self, start: int, end: int) -> bytes:
        """A copy of the bytes from `start` to `end`."""
        while self.is_buffered:
            source = self.ensure_mapped()
            data = source[start:end]
            if self._map is source:  # else the buffer may have been another file's by then
                return data
        return super().read(start, end)

    def view(self, start: int, end: int) -> memoryview:
        """The bytes from `start` to `end`; a copy of them as long as there is a buffer."""
        return memoryview(self.read(start, end)) if self.is_buffered else super().view(start, end)

    def read_many(self, places: tuple[int, ...], sizes: tuple[int, ...]) -> list[bytes]:
        """Copies of the records at these offsets of the stream; all lie in this file."""
        while self.is_buffered:
            source = self._map
            pieces = super().read_many(places, sizes)
            if self._map is source:
                return pieces
        return super().read_many(places, sizes)

    def commit(self, end: int) -> None:
        """Bring what was written below position `end` to the file; raises OSError."""
        # A segment's rest behind its blank record was never written: the file has zeros there.
        end = min(end, self._used)
        if self._buffer is None or self._committed >= end:
            return
        with memoryview(self._buffer.memory) as memory:
            while self._committed < end:
                stop = min(end, self._committed + _COMMIT_AT_ONCE)
                with memory[self._committed : stop] as piece:
                    self._committed += os.pwrite(self._descriptor, piece, self._committed)

    def release_buffer(self) -> None:
        """Everything is committed, and nothing will be written: go on without the buffer."""
        buffer = self._buffer
        if buffer is None:
            return
        # In this order: `release` of another thread must never reach the buffer.
        self._map = self._file_map
        self._buffer = None
        close_file(self._descriptor)
        self._pool.give_back(buffer)

    def populate(self, start: int, end: int) -> None:
        """Have the buffer's memory there, and locked if that is allowed."""
        buffer = self._buffer
        if buffer is None:
            super().populate(start, end)
            return
        end = min(end, self.size)
        if end <= buffer.ready:
            return
        if self._pool.locks_memory:
            try:
                lock_memory(buffer.memory, buffer.ready, end)
            except OSError as error:
                self._pool.locks_memory = False
                logger.warning(
                    "transientStorePoolEnable: buffers cannot be locked in memory; raise the "
                    "limit of locked memory (ulimit -l): %s",
                    error,
                )
        if not self._pool.locks_memory:
            populate_memory(buffer.memory, buffer.ready, end)
        buffer.ready = end

    def lock(self, start: int, end: int) -> None:
        """As `populate`, of a buffer."""
        if self._buffer is None:
            super().lock(start, end)
        else:
            self.populate(start, end)

    def unlock(self) -> None:
        """Nothing for a buffer: it stays locked for the next segment."""
        if self._buffer is None:
            super().unlock()

    def release(self, end: int) -> None:
        """Nothing for a buffer: its bytes are nowhere else."""
        if self._buffer is None:
            super().release(end)

    def is_in_memory(self, start: int, end: int) -> bool:
        """Whether reading from `start` to `end` would not have to wait for the disk."""
        return self._buffer is not None or super().is_in_memory(start, end)

    def unmap(self) -> bool:
        """Drop the mapping; not while there is a buffer."""
        if self.is_buffered or not super().unmap():
            return False
        self._file_map = None
        return True

    def close(self) -> None:
        """Give the buffer back, uncommitted or not, and unmap."""
        self.release_buffer()
        self._file_map = None
        super().close()
