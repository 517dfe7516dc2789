"""The commit log: every message of the broker, in the order of arrival.

`make_room` reserves disk blocks and returns the range in which the next records fit; `append`
copies all records of a chunk there at once. `chunk` is the only caller of both. On a replica,
`replicated` appends bytes of the master's log instead (`append_raw`).

Invariants
1. The log ends at the `written` watermark.
2. A record never crosses a segment. A full segment ends with a blank record after its last
   message.
3. The active segment, and those preallocated after it, stay mapped.
4. With a transient store pool the active segment is a `PooledFile`: written bytes are in its
   buffer, committed bytes in its file as well.

Owned by the loop's thread. Other threads only read below `written`.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyromq.base.descriptors import ShortageError
from pyromq.base.sizes import KIB, MIB
from pyromq.protocol.message.entry import ENTRIES, RECORDS, Framing
from pyromq.protocol.message.record import BLANK, BLANK_MAGIC, BLANK_SIZE
from pyromq.store.log.allocation import AHEAD, RESERVE_STEP, AllocationService
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.log.open_files import OpenFiles
from pyromq.store.log.segments import Segments
from pyromq.store.log.transient_store_pool import NoBufferError, PooledFile, TransientStorePool
from pyromq.store.log.watermarks import Watermarks
from pyromq.store.results import PutError, PutStatus

logger = logging.getLogger(__name__)

#: Bytes at the log's end that stay resident, for consumers that keep up.
_MAX_RESIDENT: Final = 64 * MIB
#: Raw bytes that are written to the file instead of its mapping: a replica that catches up needs no
#: pages ahead, which cost more than the copy.
_LARGE_APPEND: Final = 64 * KIB
#: Bytes of old pages to gather before they are dropped, since that takes time.
_MIN_RELEASED: Final = 16 * MIB


class CommitLog:
    """The log's segments and watermarks."""

    __slots__ = (
        "_allocation",
        "_commit_lock",
        "_entries_from",
        "_file",
        "_open_files",
        "_pool",
        "_released",
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
        """`more` are further directories for segments, `read_only` hold old ones.

        With `open_files`, segments other than the active one are mapped on demand.
        """
        self._open_files = open_files
        self.segments = Segments(
            directory, segment_size, more=more, read_only=read_only, open_files=open_files
        )
        self.watermarks = Watermarks(has_pool=pool is not None)
        self._allocation = AllocationService(
            directory, segment_size, directory_for=self.segments.directory_for, warm=warm, pool=pool
        )
        self._pool = pool
        #: From here on, records are the bodies of entries (`agreed_log`).
        self._entries_from = sys.maxsize
        self._commit_lock = threading.Lock()
        self._file: MappedFile | None = None
        #: Pages below this offset were dropped from this process's memory.
        self._released = 0

    def start(self, end: int) -> None:
        """Continue the log at `end`, where recovery found its last valid record to end."""
        self.watermarks.reset(end)
        if self._pool is not None:
            self._pool.open()
        self._file = self.segments.find(end)
        self._allocation.start()
        if self._file is not None:
            self._file.keep_mapped()
            self._allocation.follow(self._file, end - self._file.base)

    def stop(self) -> None:
        """Commit, flush and unmap everything."""
        self.commit()
        self.flush()
        self._allocation.stop()
        self.segments.close()
        if self._pool is not None:
            self._pool.close()
        self._file = None

    def make_room(self, size: int) -> tuple[int, int]:
        """Return the log's end, at which a record of `size` bytes fits, and the end of the room.

        Reserves more of the segment, or ends it with a blank record and starts the next one.
        Raises PutError, and changes nothing, if the disk has no room.
        """
        file = self._file
        if size + BLANK_SIZE > self.segments.segment_size:
            raise PutError(
                PutStatus.MESSAGE_ILLEGAL,
                f"{size} bytes do not fit in a segment of {self.segments.segment_size}",
            )
        try:
            end = self.watermarks.written
            if file is None or end + size + BLANK_SIZE > file.base + file.size:
                file = self._roll(file)
            return self.watermarks.written, self._reserve(file, size)
        except NoBufferError as error:
            raise PutError(PutStatus.NO_BUFFER, str(error)) from error
        except OSError as error:
            if not isinstance(error, ShortageError):  # `descriptors` has logged it
                logger.error(
                    "no room for %d bytes in %s, message refused: %s; free disk space",
                    size,
                    self.segments.directory,
                    error,
                )
            raise PutError(PutStatus.CREATE_MAPEDFILE_FAILED, str(error)) from error

    def append(self, records: bytes | memoryview, store_timestamp: int) -> None:
        """Copy whole records, for which there is room, to the end of the log."""
        file, end = self._file, self.watermarks.written
        assert file is not None
        file.write(end - file.base, records)
        self.watermarks.move_written(end + len(records), store_timestamp)

    @property
    def append_position(self) -> int:
        """Return where the next append goes."""
        return self.watermarks.written

    @property
    def is_empty(self) -> bool:
        """Whether no bytes were ever written, or all are gone; the log may still end above 0."""
        return not self.segments.files or self.watermarks.written == self.min_offset

    def begin_at(self, offset: int) -> None:
        """Let a log without messages begin at `offset`, the start of a segment."""
        assert self.is_empty, "the log has messages"
        assert offset % self.segments.segment_size == 0, offset
        if self.segments.files and self.min_offset == offset:
            return
        self._file = None
        self._allocation.forget()
        self.segments.delete()
        self.watermarks.reset(offset)

    def append_raw(self, data: bytes | memoryview, store_timestamp: int) -> None:
        """Copy bytes of another broker's log, all of one segment, to the end of this one.

        Unlike `make_room`, this writes no blank record, which is among the copied bytes. Raises
        OSError, and changes nothing, if the disk has no room.
        """
        file, end = self._file, self.watermarks.written
        if file is None or end == file.base + file.size:
            file = self._begin_segment(end, file)
        position, size = end - file.base, len(data)
        self._allocation.ensure(file, position + size)
        if size >= _LARGE_APPEND:
            file.write_large(position, data)
        else:
            file.write(position, data)
            self._allocation.advance(position + size)
        self.watermarks.move_written(end + size, store_timestamp)

    def holds(self, offset: int, size: int) -> bool:
        """Whether `size` bytes from `offset` on are written, within one segment."""
        file = self.segments.find(offset)
        return (
            file is not None
            and 0 < size <= file.base + file.size - offset
            and offset + size <= self.watermarks.written
        )

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` on, or fewer if some are not stored (any more)."""
        file = self.segments.find(offset)
        if file is None:
            return b""
        end = min(offset + size, self.watermarks.written)
        try:
            return file.read(offset - file.base, max(offset, end) - file.base)
        except FileNotFoundError:  # it expired meanwhile, or another process removed it
            return b""

    def view(self, offset: int, size: int) -> memoryview:
        """Return the same bytes as `read` without copying them, for large ranges."""
        file = self.segments.find(offset)
        if file is None:
            return memoryview(b"")
        end = min(offset + size, self.watermarks.written)
        try:
            return file.view(offset - file.base, max(offset, end) - file.base)
        except (FileNotFoundError, ShortageError):  # expired meanwhile, or out of descriptors
            return memoryview(self.read(offset, size))

    def read_into(self, offset: int, room: memoryview) -> int:
        """Copy the bytes that `read` would return, as many as fit; return their number."""
        file = self.segments.find(offset)
        if file is None:
            return 0
        end = min(offset + len(room), self.watermarks.written, file.base + file.size)
        with room[: max(0, end - offset)] as part:
            try:
                return file.read_into(offset - file.base, part)
            except (FileNotFoundError, ShortageError):  # expired meanwhile, or out of descriptors
                data = self.read(offset, len(part))
                part[: len(data)] = data
                return len(data)

    def framing_at(self, offset: int) -> Framing:
        """Return what is around the records of the segment that holds `offset`."""
        return ENTRIES if offset >= self._entries_from else RECORDS

    def take_first(self) -> MappedFile:
        """Detach and return the first segment, for the caller to remove."""
        return self.segments.take_first()

    def commit(self) -> None:
        """Write all written bytes from the pool's buffers to the files. Raises OSError.

        Called by the commit thread, and on the loop if all buffers are in use.
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
        """Return how many buffers of the transient store pool are free; None without a pool."""
        return None if self._pool is None else self._pool.available

    @property
    def committed(self) -> tuple[int, int]:
        """Return the end of the bytes that survive a kill, and their last store timestamp."""
        marks = self.watermarks
        if self._pool is None:
            return marks.written, marks.written_timestamp
        return marks.committed, marks.committed_timestamp

    def flush(self) -> None:
        """Fsync everything committed so far. Called by the flush thread."""
        marks = self.watermarks
        offset, timestamp = self.committed
        if marks.flushed >= offset:
            return
        for file in self.segments.between(marks.flushed, offset):
            file.sync()
        marks.move_flushed(offset, timestamp)

    def release_old_pages(self) -> None:
        """Drop all but the log's end from this process's memory. Called by the flush thread."""
        end = self.watermarks.flushed - _MAX_RESIDENT
        if end - self._released < _MIN_RELEASED:
            return
        self._released = end
        for file in list(self.segments.files):
            if file.base < end:
                file.release(end - file.base)

    @property
    def min_offset(self) -> int:
        """Return the offset of the first byte that is still stored."""
        return self.segments.first_offset

    def segment_after(self, offset: int) -> int:
        """Return the base of the segment after the one that holds `offset`."""
        size = self.segments.segment_size
        return offset - offset % size + size

    def _reserve(self, file: MappedFile, size: int) -> int:
        """Reserve blocks for the next record and a blank one; return the end of the room."""
        position = self.watermarks.written - file.base
        self._allocation.ensure(file, position + size + BLANK_SIZE)
        self._allocation.advance(position)
        step = max(RESERVE_STEP, size + BLANK_SIZE)
        return file.base + min(file.reserved, position + step, file.size) - BLANK_SIZE

    def _roll(self, full: MappedFile | None) -> MappedFile:
        """End the full segment with a blank record and make the next one active."""
        end = self.watermarks.written
        base = full.base + full.size if full is not None else end
        file = self._begin_segment(base, full)
        self.watermarks.move_written(base, self.watermarks.written_timestamp)
        return file

    def _begin_segment(self, base: int, full: MappedFile | None) -> MappedFile:
        """Make the segment at `base` active, and end the full one with a blank if it has room."""
        end = self.watermarks.written
        file = self._next_file(base)
        try:
            self._allocation.ensure(file, min(AHEAD, file.size))
            if end < base and full is not None:
                # Nothing is reserved yet in a segment that an earlier run created.
                self._allocation.ensure(full, end - full.base + BLANK_SIZE)
        except OSError:
            self._allocation.discard(file)
            raise
        if full is not None:
            if end < base:
                full.write(end - full.base, BLANK.pack(base - end, BLANK_MAGIC))
            full.hand_to(self._open_files)
        self.segments.add(file)
        self._file = file
        self._allocation.follow(file, 0)
        return file

    def _next_file(self, base: int) -> MappedFile:
        """Return the next file. Raises NoBufferError only with fastFailIfNoBufferInStorePool."""
        try:
            return self._allocation.take_next(base)
        except NoBufferError:
            if self._pool is None or self._pool.fast_fail:
                raise
        # Committing releases the buffers of full segments, and there is at least one.
        logger.warning(
            "transient store pool is empty: committing on the event loop; "
            "increase transientStorePoolSize"
        )
        self.commit()
        return self._allocation.take_next(base)
