"""The transient store pool: memory buffers in front of the commit log's files.

With transientStorePoolEnable the active segment has a buffer: chunks are copied to it and read
from it, and `commit` writes them to the file. An append then never waits for a page that is being
written back. The price: uncommitted messages die with the process. Opt-in, for masters with
ASYNC_FLUSH only.

Invariants
1. A buffer belongs to one file at a time. When a segment is full and committed, its own mapping
   replaces the buffer, and only then may the buffer serve another file.
2. Only written bytes are committed: stale bytes of a buffer's last use never reach a file.
3. From the first segment with a buffer on, all segments have one. Otherwise a segment without
   could be on disk before the buffers of earlier ones, and a kill would leave a hole in the log.
4. A file's blocks are reserved before its buffer is written, as without a pool: a full disk
   refuses a put, never a commit.

The memory of a buffer is populated page by page ahead of its first use, locked if that is allowed
(`PooledFile.populate`), and kept. The allocation service calls `create` under its lock. The loop's
thread writes to a file, the commit thread commits it, and any thread reads it.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections import deque
from pathlib import Path
from typing import Final

from pyromq.base.descriptors import close_file, open_file
from pyromq.base.sizes import MIB
from pyromq.store.log.mapped_file import MappedFile, lock_memory, make_file, populate_memory

logger = logging.getLogger(__name__)

#: Bytes per write call of a commit.
_MAX_WRITE: Final = 4 * MIB
#: Warn if a smaller share of the buffers is free, as Java does.
_LOW_SHARE: Final = 0.4


class NoBufferError(Exception):
    """All buffers are in use."""


class Buffer:
    """Memory for one segment."""

    __slots__ = ("memory", "ready")

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size)
        #: Pages below this position are populated.
        self.ready = 0


class TransientStorePool:
    """A fixed number of buffers, each the size of a segment."""

    def __init__(self, count: int, segment_size: int, *, fast_fail: bool = False) -> None:
        """With `fast_fail`, a put without a free buffer is refused and waits for no commit."""
        # A segment returns its buffer when there is a next one, so a single one never gets free.
        self.count = max(2, count)
        self.fast_fail = fast_fail
        self.locks_memory = True
        self._segment_size = segment_size
        self._free: deque[Buffer] = deque()

    def open(self) -> None:
        """Create the buffers. They take no memory yet."""
        self._free.extend(Buffer(self._segment_size) for _ in range(self.count))

    @property
    def available(self) -> int:
        """Return the number of free buffers."""
        return len(self._free)

    def create(self, directory: Path, base: int, size: int) -> MappedFile:
        """Create a file with a buffer. Raises NoBufferError if none is free."""
        try:
            buffer = self._free.popleft()
        except IndexError:
            raise NoBufferError(
                f"all {self.count} buffers of the transient store pool are in use"
            ) from None
        if self.available < self.count * _LOW_SHARE:
            logger.warning(
                "transient store pool is running low: %d of %d buffers free; raise "
                "transientStorePoolSize",
                self.available,
                self.count,
            )
        try:
            return PooledFile(make_file(directory, base, size), size, buffer, self)
        except BaseException:
            self._free.appendleft(buffer)
            raise

    def give_back(self, buffer: Buffer) -> None:
        """Return a buffer that nobody reads or writes any more."""
        # Reused first, because its memory is populated.
        self._free.appendleft(buffer)

    def close(self) -> None:
        """Free the memory of all unused buffers."""
        while self._free:
            self._free.popleft().memory.close()


class PooledFile(MappedFile):
    """A file whose bytes are in a buffer while it is the active one."""

    __slots__ = ("_buffer", "_committed", "_descriptor", "_file_map", "_pool", "_used")

    def __init__(self, path: Path, size: int, buffer: Buffer, pool: TransientStorePool) -> None:
        super().__init__(path, size, reserved=0)
        self._file_map: mmap.mmap | None = self._map
        self._map = buffer.memory
        self._buffer: Buffer | None = buffer
        self._pool = pool
        #: Kept open while there is a buffer, as the path may be removed meanwhile.
        self._descriptor = open_file(path, os.O_RDWR)
        #: Positions after the last written and the last committed byte.
        self._used = self._committed = 0

    @property
    def is_buffered(self) -> bool:
        """Whether the file still has its buffer."""
        return self._buffer is not None

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Copy `data` to `position` of the buffer."""
        super().write(position, data)
        self._used = position + len(data)

    def read(self, start: int, end: int) -> bytes:
        """Return a copy of the bytes from `start` to `end`."""
        while self.is_buffered:
            source = self.ensure_mapped()
            data = source[start:end]
            if self._map is source:  # otherwise another file may have got the buffer meanwhile
                return data
        return super().read(start, end)

    def lend(self) -> mmap.mmap | None:
        """Return None while there is a buffer, since another file may get it at any time."""
        return None if self.is_buffered else super().lend()

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes from `start` to `end`, copied while there is a buffer."""
        return memoryview(self.read(start, end)) if self.is_buffered else super().view(start, end)

    def read_into(self, start: int, buffer: memoryview) -> int:
        """Copy the bytes from `start` on into `buffer`, and return how many."""
        if not self.is_buffered:
            return super().read_into(start, buffer)
        data = self.read(start, start + len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read_many(self, places: tuple[int, ...], sizes: tuple[int, ...]) -> list[bytes]:
        """Return copies of the records at these offsets of the stream, all in this file."""
        while self.is_buffered:
            source = self._map
            records = super().read_many(places, sizes)
            if self._map is source:
                return records
        return super().read_many(places, sizes)

    def commit(self, end: int) -> None:
        """Write the buffer's bytes below position `end` to the file. Raises OSError."""
        # Nothing was written after a segment's blank record: the file has zeros there.
        end = min(end, self._used)
        if self._buffer is None or self._committed >= end:
            return
        with memoryview(self._buffer.memory) as memory:
            while self._committed < end:
                stop = min(end, self._committed + _MAX_WRITE)
                with memory[self._committed : stop] as data:
                    self._committed += os.pwrite(self._descriptor, data, self._committed)

    def release_buffer(self) -> None:
        """Continue without the buffer: everything is committed, and no more writes follow."""
        buffer = self._buffer
        if buffer is None:
            return
        # In this order, so that a concurrent `release` never reaches the buffer.
        self._map = self._file_map
        self._buffer = None
        close_file(self._descriptor)
        self._pool.give_back(buffer)

    def populate(self, start: int, end: int) -> None:
        """Populate the buffer's memory, and lock it if that is allowed."""
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
                    "transientStorePoolEnable: cannot lock buffers in memory; raise the limit of "
                    "locked memory (ulimit -l): %s",
                    error,
                )
        if not self._pool.locks_memory:
            populate_memory(buffer.memory, buffer.ready, end)
        buffer.ready = end

    def lock(self, start: int, end: int) -> None:
        """Populate the buffer, which locks it, or lock the mapping if there is none."""
        if self._buffer is None:
            super().lock(start, end)
        else:
            self.populate(start, end)

    def unlock(self) -> None:
        """Unlock the mapping. A buffer stays locked for the next segment."""
        if self._buffer is None:
            super().unlock()

    def release(self, end: int) -> None:
        """Drop pages of the mapping. A buffer keeps them: its bytes are nowhere else."""
        if self._buffer is None:
            super().release(end)

    def is_in_memory(self, start: int, end: int) -> bool:
        """Whether `start` to `end` can be read without waiting for the disk."""
        return self._buffer is not None or super().is_in_memory(start, end)

    def unmap(self) -> bool:
        """Drop the mapping, unless there is a buffer."""
        if self.is_buffered or not super().unmap():
            return False
        self._file_map = None
        return True

    def close(self) -> None:
        """Return the buffer, committed or not, and unmap."""
        self.release_buffer()
        self._file_map = None
        super().close()
