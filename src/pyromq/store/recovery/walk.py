"""The valid records of the log from an offset on, in pieces, for whoever makes things of them.

The log ends at the first bytes that are no record of this place: wrong magic, a size that
does not fit, another physical offset, a body whose CRC is wrong, after a crash also
properties of which a sector never reached the disk. Behind the last record of a full
segment stands a blank one that reaches to its end.

The log is read once, front to back: what a piece is needed for (consume queues, the key
index) is done while its bytes are in the processor's cache. It is read where it lies, each
piece by a mapping of its own, so memory does not grow with the log. The pieces of a long log
are examined by two processes (`piece_helper`), some ahead of those that are given.

Used by `recovery` and `rebuild`, on the thread that starts the store, before others run, and
by the parts of a log that tasks of Spark decode.
"""

from __future__ import annotations

import itertools
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Final, NamedTuple

import numpy as np

from pyromq.protocol.message import bulk
from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.record import BLANK_MAGIC, BLANK_SIZE, peek
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.queues import lookup
from pyromq.store.recovery.dispatch import PIECE
from pyromq.store.recovery.piece import LogPiece, Rules
from pyromq.store.recovery.piece_helper import FilePiece, PieceHelper

logger = logging.getLogger(__name__)

#: So many pieces at most wait to be examined.
_STEPS_AHEAD: Final = 16
_SECONDS_BETWEEN_LINES: Final = 2.0
_MB: Final = 1_000_000


class LogWalk:
    """Iterating gives the pieces; `end` is the offset behind the last of them.

    An iterator that is not used up is to be closed.
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
        """`offset` is where a record or a segment begins; `on_progress` hears `end`.

        `alone`: no second process, for those who have no core to spare.
        """
        self._log = log
        self._rules = Rules(log.segments.segment_size, delay_levels, check_crc, after_crash)
        self._alone = alone
        self._on_progress = on_progress
        self.end = offset

    def __iter__(self) -> Generator[LogPiece, None, None]:
        helper = PieceHelper(self._rules, worth_a_process=sys.maxsize if self._alone else None)
        try:
            for piece, end in self._examined(helper):
                self.end = end
                if not piece.starts.size:
                    continue
                yield piece
                if self._on_progress is not None:
                    self._on_progress(end)
        finally:
            helper.close()

    def _examined(self, helper: PieceHelper) -> Iterator[tuple[LogPiece, int]]:
        """Pieces up to the first wrong record; the walk is some ahead of those that are given."""
        ahead: deque[_Found] = deque()
        for found in itertools.chain(self._pieces(), (None,)):
            if found is not None:
                ahead.append(found)
                position = found.piece.base - found.file.base
                helper.add(FilePiece(found.file.path, position, found.piece))
            while ahead and (found is None or len(ahead) > _STEPS_AHEAD or helper.is_ready):
                oldest = ahead.popleft()
                starts = oldest.piece.starts
                piece = helper.take()
                if piece.starts.size < starts.size:
                    yield piece, piece.base + int(starts[piece.starts.size])
                    return
                yield piece, oldest.end

    def _pieces(self) -> Iterator[_Found]:
        """Piece after piece of what looks like records."""
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
        """The records from `base` on, if there are any, and where to go on."""
        data = self._log.view(base, min(PIECE, segment_end - base))
        if _is_blank(data, segment_end - base):
            return LogPiece(base, memoryview(b""), np.empty(0, np.int64), self._rules), segment_end
        starts, size = bulk.record_starts(data)
        if not starts.size:
            # A record longer than a piece, or the end.
            data = memoryview(lookup.record_at(self._log, base) or b"")
            starts, size = bulk.record_starts(data)
        return LogPiece(base, data[:size], starts, self._rules), base + size


class _Found(NamedTuple):
    file: MappedFile
    #: Without a record where the blank one is.
    piece: LogPiece
    #: Where the walk is then.
    end: int


def _is_blank(data: memoryview, rest: int) -> bool:
    """Whether `data` begins with a blank record of this size, that of the segment's rest."""
    size, magic = peek(data[:BLANK_SIZE])
    return magic == BLANK_MAGIC and size == rest


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
