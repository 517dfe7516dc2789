"""The log as replication reads it: bytes by physical offset, straight from the mapped segments.

A master ships `slice`s to its replicas; both ends compare `checksum`s before they trust each other.
`end` is the end of the bytes that a kill cannot take back, so that a replica never has bytes that
its master lost.

`slice`, `whole_records`, `end`, `first` and `is_boundary` run on the loop; the other methods may
wait for the disk and run on any thread.
"""

from __future__ import annotations

from typing import Final

from pyromq.base.sizes import MIB
from pyromq.protocol.message.crc import crc32
from pyromq.protocol.message.record import (
    BLANK_MAGIC,
    BLANK_SIZE,
    HEAD_SIZE_V4,
    names_offset,
    peek,
)
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.queues import lookup
from pyromq.store.recovery.boundary import boundary_at_or_below

#: Bytes at the log's end that are in memory anyway: the log releases older pages.
_RESIDENT: Final = 64 * MIB
#: The longest range of a checksum.
MAX_CHECKED: Final = MIB


class LogSource:
    """Reads the log of a running store."""

    __slots__ = ("_log",)

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    @property
    def first(self) -> int:
        """Return the offset of the first byte that is still stored."""
        return self._log.segments.first_offset if self._log.segments.files else self.end

    @property
    def end(self) -> int:
        """Return the offset after the last byte that survives a kill."""
        return self._log.committed[0]

    @property
    def segment_size(self) -> int:
        """Return the size of a segment, in which no byte of another log may be out of place."""
        return self._log.segments.segment_size

    @property
    def newest_segment(self) -> int:
        """Return the start of the segment that holds the log's end."""
        return self.end - self.end % self.segment_size

    def slice(self, offset: int, max_size: int) -> memoryview:
        """Return bytes from `offset` on, of one segment, without copying them.

        Empty if they are not stored (any more). The view stays valid if the segment expires.
        """
        file = self._log.segments.find(offset)
        end = min(offset + max_size, self.end)
        if file is None or offset >= end:
            return memoryview(b"")
        start = offset - file.base
        return memoryview(file.ensure_mapped())[start : min(end - file.base, file.size)]

    def whole_records(self, offset: int, max_size: int) -> int:
        """Return the size of the records that begin at `offset` and fit into `max_size` bytes.

        Counts records of one segment, and at least one, however large it is. Reads their sizes: the
        pages must be in memory.
        """
        view = self.slice(offset, self.segment_size)
        size = 0
        while size < len(view):
            following = size + peek(view[size : size + BLANK_SIZE])[0]
            if following <= size or (size and following > max_size):
                break
            size = following
            if size >= max_size:
                break
        return min(size, len(view))

    def must_wait(self, offset: int, size: int) -> bool:
        """Whether reading these bytes would wait for the disk: call `bring_in` first."""
        if offset + _RESIDENT > self.end:
            return False
        file = self._log.segments.find(offset)
        return file is not None and not file.is_in_memory(
            offset - file.base, offset - file.base + size
        )

    def bring_in(self, offset: int, size: int) -> None:
        """Read bytes of one segment into memory. Raises OSError."""
        file = self._log.segments.find(offset)
        if file is not None:
            file.bring_in(offset - file.base, offset - file.base + size)

    def is_boundary(self, offset: int) -> bool:
        """Whether a record starts at `offset`, or the log begins or ends there."""
        log = self._log
        if offset in (log.watermarks.written, self.first):
            return True
        if not self.first < offset < log.watermarks.written:
            return False
        rest = self.segment_size - offset % self.segment_size
        if rest == self.segment_size:
            return True
        head = log.read(offset, HEAD_SIZE_V4)
        return peek(head) == (rest, BLANK_MAGIC) or names_offset(head, offset)

    def boundary_below(self, offset: int) -> int:
        """Return the largest boundary at or below `offset`. Slow: walks a segment."""
        return offset if self.is_boundary(offset) else boundary_at_or_below(self._log, offset)

    def record(self, offset: int) -> bytes | None:
        """Return the record that starts at `offset`, or None. May wait for the disk."""
        return lookup.record_at(self._log, offset)

    def checksum(self, start: int, end: int) -> int | None:
        """Return the CRC-32 of at most MAX_CHECKED bytes, or None if they are not stored."""
        if not self.first <= start <= end <= self.end or end - start > MAX_CHECKED:
            return None
        checksum, position = 0, start
        while position < end:
            data = self._log.read(position, end - position)
            if not data:
                return None
            checksum = crc32(data, checksum)
            position += len(data)
        return checksum
