"""The valid records of the log from an offset on, in pieces, for whoever makes things of them.

The log ends at the first bytes that are no record of this place: wrong magic, a size that
does not fit, another physical offset, a body whose CRC is wrong, after a crash also
properties of which a sector never reached the disk. Behind the last record of a full
segment stands a blank one that reaches to its end.

The log is read once, front to back: what a piece is needed for (consume queues, the key
index) is done while its bytes are in the processor's cache. Pages that were read are given
back, so memory does not grow with the log. Used by `recovery` and `rebuild`, on the thread
that starts the store, before others run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from pyromq.protocol import bulk
from pyromq.protocol.record import BLANK_MAGIC, BLANK_SIZE, CRC_MASK, peek
from pyromq.store import lookup
from pyromq.store.commit_log import CommitLog
from pyromq.store.dispatch import PIECE

logger = logging.getLogger(__name__)

#: How much of the mapping stays in memory behind the walk.
_KEPT_IN_MEMORY: Final = 64 * 1024 * 1024
_SECONDS_BETWEEN_LINES: Final = 2.0
_MB: Final = 1_000_000
#: A disk writes these whole or not at all.
_SECTOR: Final = 512


class LogPiece(NamedTuple):
    """Valid records, one behind the other from the head of `data` on."""

    #: The physical offset of the first byte of `data`.
    base: int
    data: bytes
    columns: bulk.RecordColumns


class LogWalk:
    """Iterating gives the pieces; `end` is the offset behind the last of them."""

    def __init__(
        self,
        log: CommitLog,
        offset: int,
        *,
        check_crc: bool,
        after_crash: bool = False,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        """`offset` is where a record or a segment begins; `on_progress` hears `end`."""
        self._log = log
        self._check_crc = check_crc
        self._after_crash = after_crash
        self._on_progress = on_progress
        self.end = offset

    def __iter__(self) -> Iterator[LogPiece]:
        log = self._log
        for file in list(log.segments.files):
            segment_end = file.base + file.size
            if segment_end <= self.end:
                continue
            released = self.end
            while self.end < segment_end:
                piece = self._next_piece(segment_end)
                if piece is None:
                    break
                yield piece
                if self._on_progress is not None:
                    self._on_progress(self.end)
                if self.end - released >= _KEPT_IN_MEMORY:
                    released = self.end
                    file.release(released - file.base)
            if not self._is_blank(segment_end):
                return
            self.end = segment_end

    def _next_piece(self, segment_end: int) -> LogPiece | None:
        """The next valid records; None when there is none."""
        data = self._log.read(self.end, min(PIECE, segment_end - self.end))
        piece = self._valid_part(data)
        if piece is None:
            # A record longer than a piece, or the end.
            record = lookup.record_at(self._log, self.end)
            if record is None or len(record) <= len(data):
                return None
            piece = self._valid_part(record)
        return piece

    def _valid_part(self, data: bytes) -> LogPiece | None:
        """The whole, right records at the head of `data`; moves `end` behind them."""
        starts, size = bulk.record_starts(data)
        if not starts.size:
            return None
        columns = bulk.read_columns(data, starts)
        good = columns.valid & (columns.column("physical_offset") == starts + self.end)
        if self._check_crc:
            good &= columns.column("body_crc") == _body_crcs(data, columns)
        if self._after_crash:
            in_segment = self.end % self._log.segments.segment_size
            good &= ~_lost_properties(data, columns, in_segment)
        if not good.all():
            count = int(good.argmin())
            if count == 0:
                return None
            size = int(starts[count])
            columns = columns.rows(slice(0, count))
        base = self.end
        self.end += size
        return LogPiece(base, data, columns)

    def _is_blank(self, segment_end: int) -> bool:
        """Whether a blank record reaches from `end` to the segment's end."""
        if self.end == segment_end:
            return True
        size, magic = peek(self._log.read(self.end, BLANK_SIZE))
        return magic == BLANK_MAGIC and size == segment_end - self.end


class ProgressLog:
    """A log line every two seconds while a walk takes long; call it with the walk's `end`."""

    def __init__(
        self, what: str, begin: int, total: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`total` is the offset at which the walk ends at the latest."""
        self._what = what
        self._begin = begin
        self._total = total
        self._clock = clock
        self._started = self._last = clock()

    def __call__(self, end: int) -> None:
        """The walk has come to `end`."""
        now = self._clock()
        if now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            logger.info(
                "%s: %d of %d MB, %d MB/s",
                self._what,
                (end - self._begin) // _MB,
                (self._total - self._begin) // _MB,
                (end - self._begin) / (now - self._started) // _MB,
            )


def _lost_properties(data: bytes, columns: bulk.RecordColumns, base: int) -> NDArray[np.bool_]:
    """Which records have properties that are empty from a sector's beginning to its end.

    No CRC is over them. `base` is the place of `data` in its file.
    """
    lost = np.zeros(columns.starts.size, np.bool_)
    content = np.frombuffer(data, np.uint8)
    begins, lengths = columns.properties
    ends = begins + lengths
    sectors = -(-(begins + base) // _SECTOR) * _SECTOR - base
    rows = np.flatnonzero(sectors < ends)
    while rows.size:
        for row in rows[content[sectors[rows]] == 0].tolist():
            begin = int(sectors[row])
            lost[row] |= not any(data[begin : min(begin + _SECTOR, int(ends[row]))])
        sectors[rows] += _SECTOR
        rows = rows[sectors[rows] < ends[rows]]
    return lost


def _body_crcs(data: bytes, columns: bulk.RecordColumns) -> bulk.Longs:
    view = memoryview(data)
    begins, lengths = columns.bodies
    ends = begins + lengths
    crcs = [
        crc32(view[begin:end]) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
    return np.array(crcs, np.int64) & CRC_MASK
