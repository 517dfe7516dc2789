"""Add the entries of new records to the consume queues, for records that this broker did not put.

A replica receives records from its master, a member of a raft group learns that entries are
committed. Both dispatch them here, with the code that recovery uses, so that queues become what
they are on the broker that put the messages. The key index follows the log by itself
(`index.lane`).

If a queue cannot be extended, because the disk is full, PutError is raised; the owner dispatches
the same records again later, and queues skip what they have.

Owned by `message_store`. Runs on the loop's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from pyromq.base.sizes import KIB, MIB
from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE
from pyromq.protocol.message.record import BLANK_SIZE, store_timestamp_at
from pyromq.protocol.names import SCHEDULE_TOPIC
from pyromq.store.config import MessageStoreConfig
from pyromq.store.flush import FlushService
from pyromq.store.growth import Growth
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.recovery.dispatch import append_run
from pyromq.store.recovery.piece import Examiner, LogPiece, Rules
from pyromq.store.results import StoreError

logger = logging.getLogger(__name__)

#: Bytes that are dispatched at a time.
_MAX_PIECE: Final = 4 * MIB
#: Bytes that are copied instead of mapped.
_MAX_COPY: Final = 128 * KIB


class LogDispatch:
    """Brings the consume queues up to the log."""

    def __init__(
        self,
        config: MessageStoreConfig,
        log: CommitLog,
        flush: FlushService,
        growth: Growth,
        queue_of: Callable[[str, int], ConsumeQueue],
        on_arrival: Callable[[ConsumeQueue], None] | None,
    ) -> None:
        self._config = config
        self._log = log
        self._flush = flush
        self._growth = growth
        self._queue_of = queue_of
        self._on_arrival = on_arrival
        self._segment_size = log.segments.segment_size
        #: With and without a check of the bodies' CRCs; made at the first use.
        self._examiners: dict[bool, Examiner] = {}
        #: Called with the level of delayed messages that can be read now.
        self.on_delayed: Callable[[int], None] | None = None
        #: Records below this offset have their entries.
        self.position = 0
        #: The store timestamp of the last one of them that this object dispatched.
        self.timestamp = 0

    def examiner(self, *, check_crc: bool) -> Examiner:
        """Return an examiner of the log's bytes."""
        examiner = self._examiners.get(check_crc)
        if examiner is None:
            rules = Rules(
                self._segment_size, DelayLevels(self._config.message_delay_level), check_crc
            )
            examiner = self._examiners[check_crc] = Examiner(rules)
        return examiner

    def add(self, piece: LogPiece, end: int) -> None:
        """Add the entries of records up to `end`, and wake the long polls. Raises PutError."""
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
            if self.on_delayed is not None and run.topic == SCHEDULE_TOPIC:
                self.on_delayed(run.queue_id + 1)
        self.position = end

    def catch_up(self, end: int) -> None:
        """Add the entries of all records up to `end`, which the log has. Raises PutError.

        Raises StoreError if there is no record where one must be.
        """
        while self.position < end:
            start = self.position
            framing = self._log.framing_at(start)
            rest = self._segment_size - start % self._segment_size
            size = min(rest, end - start, _MAX_PIECE)
            # A view has a mapping of its own, which costs more than a copy of a few pages.
            read = self._log.read if size <= _MAX_COPY else self._log.view
            data = memoryview(read(start, size))
            examined = self.examiner(check_crc=False).examine(start, data, framing)
            if examined.end:
                self.timestamp = store_timestamp_at(data, int(examined.piece.starts[-1]))
                self.add(examined.piece, start + examined.end)
            elif framing.is_blank(self._log.read(start, BLANK_SIZE), rest):
                self.position = start + rest
            else:
                self._skip_entry(start, framing.prefix)

    def _skip_entry(self, start: int, prefix: int) -> None:
        """Skip an entry of a raft group's log whose body is not a message, as Java does."""
        header = self._log.read(start, ENTRY_HEADER_SIZE) if prefix else b""
        _, size, index, *_ = ENTRY_HEADER.unpack(header.ljust(ENTRY_HEADER_SIZE, b"\0"))
        if size <= ENTRY_HEADER_SIZE:
            raise StoreError(f"there is no record at {start}: run `pyromq store check`")
        logger.error("entry %d at %d holds no message: nobody can consume it", index, start)
        self.position = start + size
