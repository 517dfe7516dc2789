"""A replica's appends: records of the master's log, as raw bytes at the master's offsets.

`append` takes bytes that continue the log, cut anywhere. It checks the complete records among them,
copies these to the log, and adds their entries to the consume queues with the code that recovery
uses. Nothing is decoded and encoded again, so all files become what the master's are. The key index
follows the log by itself (`index.lane`).

Invariants
1. The log ends after a complete record, or inside the blank record that ends a segment. Bytes that
   fail a check are never written, so a broken connection leaves no trace.
2. No segment is crossed: records, blanks and segments are where the master's are.
3. Entries follow their records. If a queue cannot be extended, because the disk is full, its
   records stay in the log, and the next `append` begins with their entries; until these are there,
   it takes no bytes.

Owned by `message_store`, used while the broker is a replica. Runs on the loop's thread.
"""

from __future__ import annotations

from typing import Final

from pyromq.base.sizes import MIB
from pyromq.protocol.message.record import (
    BLANK_MAGIC,
    BLANK_SIZE,
    HEAD_SIZE_V4,
    MESSAGE_MAGIC,
    TAIL_LENGTHS,
    peek,
    store_timestamp_at,
)
from pyromq.store.chunk import Chunk
from pyromq.store.dispatching import LogDispatch
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.results import StoreError

_MIN_RECORD: Final = HEAD_SIZE_V4 + TAIL_LENGTHS
#: A record that claims more than this is garbage: RocketMQ's messages end at 4 MiB by default.
_MAX_RECORD: Final = 64 * MIB


class BadBytesError(Exception):
    """Received bytes cannot continue the log. The text says at which offset, and why."""


class ReplicatedLog:
    """Appends to the log, queues and index of a replica."""

    def __init__(
        self,
        log: CommitLog,
        chunk: Chunk,
        dispatch: LogDispatch,
    ) -> None:
        self._log = log
        self._chunk = chunk
        self._dispatch = dispatch
        self._segment_size = log.segments.segment_size
        #: The end of the blank record that is being received, or 0.
        self._blank_end = 0
        #: The end of the last complete record: what the replica may report to its master.
        self.boundary = 0

    def start(self, end: int) -> None:
        """Continue after recovery, at the log's end."""
        self._dispatch.position = self.boundary = end
        self._blank_end = 0

    @property
    def end(self) -> int:
        """Return the offset at which the next bytes go."""
        return self._log.watermarks.written

    @property
    def is_empty(self) -> bool:
        """Whether the log has no bytes, so that it may begin anywhere."""
        return self._log.is_empty

    def begin_at(self, offset: int) -> None:
        """Let an empty log begin at `offset`. Raises StoreError if no segment starts there."""
        if offset % self._segment_size:
            raise StoreError(
                f"the master's log begins at {offset}, not a multiple of {self._segment_size}: "
                "set mappedFileSizeCommitLog to the master's"
            )
        self._log.begin_at(offset)
        self._chunk.follow(offset)
        self.start(offset)

    def finish(self) -> None:
        """Complete the log, so that this broker can continue it as a master.

        A blank record that was not received completely is completed. Raises OSError or PutError.
        """
        self._dispatch.catch_up(self.boundary)
        while (end := self._log.watermarks.written) < self._blank_end:
            self._append_blank(memoryview(bytes(min(self._blank_end - end, MIB))))

    def append(self, data: memoryview, *, check_crc: bool) -> int:
        """Append the complete records that `data` starts with, and return their size.

        Raises BadBytesError for bytes that cannot follow the log, and OSError or PutError if the
        disk is full. Records before those bytes, or for which there was room, were appended then:
        `end` tells how many. Without `data`, adds entries that are missing.
        """
        self._dispatch.catch_up(self.boundary)
        taken = 0
        while taken < len(data):
            size = self._append_next(data[taken:], check_crc)
            if not size:
                break
            taken += size
        return taken

    def _append_next(self, data: memoryview, check_crc: bool) -> int:
        """Append some records, or a part of a blank one; return 0 if more bytes are needed."""
        end = self._log.watermarks.written
        data = data[: self._segment_size - end % self._segment_size]
        if end < self._blank_end:
            return self._append_blank(data)
        examined = self._dispatch.examiner(check_crc=check_crc).examine(end, data)
        if examined.end:
            piece = examined.piece
            timestamp = store_timestamp_at(data, int(piece.starts[-1]))
            self._log.append_raw(data[: examined.end], timestamp)
            self.boundary = self._log.watermarks.written
            self._chunk.follow(self.boundary)
            self._dispatch.add(piece, self.boundary)
            return examined.end
        if examined.is_end_of_log:
            raise BadBytesError(f"the record at {end} is damaged")
        return self._begin_blank(data, end)

    def _begin_blank(self, data: memoryview, end: int) -> int:
        """Append a blank record if `data` starts with one. Raises BadBytesError for no record."""
        if len(data) < BLANK_SIZE:
            return 0
        size, magic = peek(data)
        rest = self._segment_size - end % self._segment_size
        if magic == BLANK_MAGIC and size == rest:
            self._blank_end = end + rest
            return self._append_blank(data)
        if magic != MESSAGE_MAGIC:
            raise BadBytesError(f"there is no record at {end}")
        if not max(_MIN_RECORD, len(data) + 1) <= size <= min(rest - BLANK_SIZE, _MAX_RECORD):
            raise BadBytesError(f"the record at {end} claims a size of {size} bytes")
        return 0

    def _append_blank(self, data: memoryview) -> int:
        self._log.append_raw(data, self._log.watermarks.written_timestamp)
        end = self._log.watermarks.written
        self._chunk.follow(end)
        self._dispatch.position = end
        if end == self._blank_end:
            self._blank_end = 0
            self.boundary = end
        return len(data)
