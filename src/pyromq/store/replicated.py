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

from collections.abc import Callable
from typing import Final

from pyromq.base.sizes import MIB
from pyromq.protocol.message.delay import DelayLevels
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
from pyromq.store.config import MessageStoreConfig
from pyromq.store.flush import FlushService
from pyromq.store.growth import Growth
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.recovery.dispatch import append_run
from pyromq.store.recovery.piece import Examiner, LogPiece, Rules
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
        config: MessageStoreConfig,
        log: CommitLog,
        chunk: Chunk,
        flush: FlushService,
        growth: Growth,
        queue_of: Callable[[str, int], ConsumeQueue],
        on_arrival: Callable[[ConsumeQueue], None] | None,
    ) -> None:
        self._config = config
        self._log = log
        self._chunk = chunk
        self._flush = flush
        self._growth = growth
        self._queue_of = queue_of
        self._on_arrival = on_arrival
        self._segment_size = log.segments.segment_size
        #: With and without a check of the bodies' CRCs; made at the first use.
        self._examiners: dict[bool, Examiner] = {}
        #: Records below this offset have their entries.
        self._dispatched = 0
        #: The end of the blank record that is being received, or 0.
        self._blank_end = 0
        #: The end of the last complete record: what the replica may report to its master.
        self.boundary = 0

    def start(self, end: int) -> None:
        """Continue after recovery, at the log's end."""
        self._dispatched = self.boundary = end
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
        self._dispatch_missing()
        while (end := self._log.watermarks.written) < self._blank_end:
            self._append_blank(memoryview(bytes(min(self._blank_end - end, MIB))))

    def append(self, data: memoryview, *, check_crc: bool) -> int:
        """Append the complete records that `data` starts with, and return their size.

        Raises BadBytesError for bytes that cannot follow the log, and OSError or PutError if the
        disk is full. Records before those bytes, or for which there was room, were appended then:
        `end` tells how many. Without `data`, adds entries that are missing.
        """
        self._dispatch_missing()
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
        examined = self._examiner(check_crc).examine(end, data)
        if examined.end:
            piece = examined.piece
            timestamp = store_timestamp_at(data, int(piece.starts[-1]))
            self._log.append_raw(data[: examined.end], timestamp)
            self.boundary = self._log.watermarks.written
            self._chunk.follow(self.boundary)
            self._dispatch(piece)
            self._dispatched = self.boundary
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
        self._dispatched = end
        if end == self._blank_end:
            self._blank_end = 0
            self.boundary = end
        return len(data)

    def _examiner(self, check_crc: bool) -> Examiner:
        examiner = self._examiners.get(check_crc)
        if examiner is None:
            rules = Rules(
                self._segment_size, DelayLevels(self._config.message_delay_level), check_crc
            )
            examiner = self._examiners[check_crc] = Examiner(rules)
        return examiner

    def _dispatch(self, piece: LogPiece) -> None:
        """Add the entries that queues lack, and wake the long polls there. Raises PutError."""
        for run in piece.runs():
            queue = self._queue_of(run.topic, run.queue_id)
            is_next = run.is_consecutive and int(run.offsets[0]) == queue.next_offset
            if is_next:
                queue.append_many(run.entries.tobytes())
            else:
                append_run(queue, run)
            if queue.pending and queue.write_pending():
                self._flush.add(queue)
                self._growth.add(queue)
            if not is_next:
                queue.correct_min_offset(self._log.min_offset)
            if queue.watched and self._on_arrival is not None:
                self._on_arrival(queue)

    def _dispatch_missing(self) -> None:
        """Add entries that are missing since a queue could not be extended. Raises PutError."""
        while self._dispatched < self.boundary:
            start = self._dispatched
            size = self._segment_size - start % self._segment_size
            size = min(size, self.boundary - start)
            examined = self._examiner(False).examine(start, self._log.view(start, size))
            assert examined.end, f"no record at {start}"
            self._dispatch(examined.piece)
            self._dispatched = start + examined.end
