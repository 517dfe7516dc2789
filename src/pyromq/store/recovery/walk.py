"""Walk the log from an offset and yield its valid records, piece by piece.

The log ends at the first bytes that are not a valid record at this offset: wrong magic, a size that
does not fit, another physical offset, a wrong CRC, or, after a crash, properties with a sector that
was never written. In a full segment, the last record is followed by a blank one up to the end.

The log is read once, front to back, so that each piece is still in the CPU cache while its consumer
handles it. Each piece is mapped on its own, so memory does not grow with the log. The compiled
kernel examines a piece when the caller asks for it. Without the kernel, two processes examine the
pieces of a long log (`piece_helper`), a few ahead of the caller.

Used by `recovery` on the thread that starts the store, before its other threads, by
`offline.rebuild`, and by Spark tasks that decode parts of a log.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pyromq.base.sizes import MIB
from pyromq.protocol.kernel import load
from pyromq.protocol.message import bulk
from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.entry import RECORDS, Framing
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.queues import lookup
from pyromq.store.recovery.piece import LogPiece, Rules, examine_with_kernel
from pyromq.store.recovery.piece_helper import FilePiece, PieceHelper

if TYPE_CHECKING:
    from pyromq.protocol.kernel.log_piece import PieceExaminer

logger = logging.getLogger(__name__)

#: The size of a piece, unless a single record is larger.
PIECE_SIZE: Final = 4 * MIB
#: Pieces that are examined ahead of the caller.
_MAX_PIECES_AHEAD: Final = 16
_SECONDS_BETWEEN_LINES: Final = 2.0
_MB: Final = 1_000_000


class LogWalk:
    """Iterates over pieces; `end` is the offset after the last record yielded.

    Close an iterator that is not exhausted.
    """

    def __init__(
        self,
        log: CommitLog,
        offset: int,
        *,
        delay_levels: DelayLevels,
        check_crc: bool,
        after_crash: bool = False,
        alone: bool = False,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        """Start at `offset`, where a record or a segment starts; `on_progress` receives `end`.

        With `alone`, no second process is started, for callers without a spare core.
        """
        self._log = log
        self._rules = Rules(log.segments.segment_size, delay_levels, check_crc, after_crash)
        self._alone = alone
        self._on_progress = on_progress
        self.end = offset

    def __iter__(self) -> Generator[LogPiece, None, None]:
        with contextlib.closing(self._examined()) as examined:
            for piece, end in examined:
                self.end = end
                if not piece.starts.size:
                    continue
                yield piece
                if self._on_progress is not None:
                    self._on_progress(end)

    def _examined(self) -> Generator[tuple[LogPiece, int], None, None]:
        """Yield pieces up to the first invalid record, each with the offset after it."""
        kernel = load("log_piece")
        if kernel is not None:
            return self._examined_by_kernel(kernel.PieceExaminer())
        # The second process knows records only.
        alone = (
            self._alone or self._log.framing_at(self._log.segments.end_offset - 1) is not RECORDS
        )
        helper = PieceHelper(self._rules, bytes_before_process=sys.maxsize if alone else None)
        return self._examined_by_helper(helper)

    def _examined_by_kernel(
        self, examiner: PieceExaminer
    ) -> Generator[tuple[LogPiece, int], None, None]:
        position = self.end
        for file in list(self._log.segments.files):
            segment_end = file.base + file.size
            framing = self._log.framing_at(file.base)
            while position < segment_end:
                data = self._log.view(position, min(PIECE_SIZE, segment_end - position))
                if framing.is_blank(data, segment_end - position):
                    yield self._blank_piece(position), segment_end
                    position = segment_end
                    continue
                piece, end, is_end_of_log = examine_with_kernel(
                    examiner, position, data, self._rules, framing
                )
                if not end and not is_end_of_log:
                    # Either a record larger than a piece, or the end of the log.
                    data = self._large_record(position, framing)
                    piece, end, is_end_of_log = examine_with_kernel(
                        examiner, position, data, self._rules, framing
                    )
                position += end
                yield piece, position
                if not end or is_end_of_log:
                    return

    def _examined_by_helper(
        self, helper: PieceHelper
    ) -> Generator[tuple[LogPiece, int], None, None]:
        ahead: deque[_Found] = deque()
        try:
            for found in itertools.chain(self._pieces(), (None,)):
                if found is not None:
                    ahead.append(found)
                    position = found.piece.base - found.file.base
                    helper.add(FilePiece(found.file.path, position, found.piece))
                while ahead and (
                    found is None or len(ahead) > _MAX_PIECES_AHEAD or helper.is_ready
                ):
                    oldest = ahead.popleft()
                    starts = oldest.piece.starts
                    piece = helper.take()
                    if piece.starts.size < starts.size:
                        yield piece, piece.base + int(starts[piece.starts.size])
                        return
                    yield piece, oldest.end
        finally:
            helper.close()

    def _pieces(self) -> Iterator[_Found]:
        """Yield pieces of bytes that look like records."""
        position = self.end
        for file in list(self._log.segments.files):
            segment_end = file.base + file.size
            while position < segment_end:
                piece, end = self._next_piece(position, segment_end)
                if end == position:
                    return
                position = end
                yield _Found(file, piece, position)

    def _next_piece(self, base: int, segment_end: int) -> tuple[LogPiece, int]:
        """Return the records from `base` on, if any, and where the next piece starts."""
        framing = self._log.framing_at(base)
        data = self._log.view(base, min(PIECE_SIZE, segment_end - base))
        if framing.is_blank(data, segment_end - base):
            return self._blank_piece(base), segment_end
        starts, size = bulk.framed_starts(data, framing.prefix)
        if not starts.size:
            # Either a record larger than a piece, or the end of the log.
            data = self._large_record(base, framing)
            starts, size = bulk.framed_starts(data, framing.prefix)
        return LogPiece(base, data[:size], starts, self._rules), base + size

    def _large_record(self, position: int, framing: Framing) -> memoryview:
        """Return the one record at `position`, with what is before it; empty if there is none."""
        record = lookup.record_at(self._log, position + framing.prefix)
        if record is None:
            return memoryview(b"")
        return memoryview(self._log.read(position, framing.prefix + len(record)))

    def _blank_piece(self, base: int) -> LogPiece:
        return LogPiece(base, memoryview(b""), np.empty(0, np.int64), self._rules)


class _Found(NamedTuple):
    file: MappedFile
    #: Without records at a blank record.
    piece: LogPiece
    #: Where the next piece starts.
    end: int


class ProgressLog:
    """Logs progress every two seconds; pass it to `LogWalk` as `on_progress`."""

    def __init__(
        self, what: str, begin: int, total: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Describe a walk from `begin` to `total` at most."""
        self._what = what
        self._begin = begin
        self._total = total
        self._clock = clock
        self._started = self._last = clock()

    def __call__(self, end: int) -> None:
        """Log that the walk reached `end`, if the last line is old enough."""
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
