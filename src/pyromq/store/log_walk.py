"""The valid records of the log from an offset on, in pieces, for whoever makes things of them.

The log ends at the first bytes that are no record of this place: wrong magic, a size that
does not fit, another physical offset, a body whose CRC is wrong, after a crash also
properties of which a sector never reached the disk. Behind the last record of a full
segment stands a blank one that reaches to its end.

The log is read once, front to back: what a piece is needed for (consume queues, the key
index) is done while its bytes are in the processor's cache. It is read where it lies, each
piece by a mapping of its own, so memory does not grow with the log. The bodies of a long log
are checked by a second process (`body_check`), some pieces ahead of those that are given.

Used by `recovery` and `rebuild`, on the thread that starts the store, before others run.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyromq.protocol import bulk
from pyromq.protocol.record import BLANK_MAGIC, BLANK_SIZE, peek
from pyromq.store import lookup
from pyromq.store.body_check import Bodies, BodyCheck
from pyromq.store.commit_log import CommitLog
from pyromq.store.dispatch import PIECE
from pyromq.store.mapped_file import MappedFile

logger = logging.getLogger(__name__)

#: So many pieces at most wait for their bodies to be checked.
_STEPS_AHEAD: Final = 6
_SECONDS_BETWEEN_LINES: Final = 2.0
_MB: Final = 1_000_000
#: A disk writes these whole or not at all.
_SECTOR: Final = 512


class LogPiece(NamedTuple):
    """Valid records, one behind the other from the head of `data` on."""

    #: The physical offset of the first byte of `data`.
    base: int
    #: The bytes where they are mapped; not to be kept.
    data: memoryview
    columns: bulk.RecordColumns


class LogWalk:
    """Iterating gives the pieces; `end` is the offset behind the last of them.

    An iterator that is not used up is to be closed.
    """

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

    def __iter__(self) -> Generator[LogPiece, None, None]:
        check = BodyCheck()
        try:
            for step in self._checked(check) if self._check_crc else self._steps():
                self.end = step.end
                if not step.piece.columns.starts.size:
                    continue
                yield step.piece
                if self._on_progress is not None:
                    self._on_progress(step.end)
        finally:
            check.close()

    def _checked(self, check: BodyCheck) -> Iterator[_Step]:
        """The steps up to the first wrong body; the walk is some ahead while it is looked for."""
        ahead: deque[_Step] = deque()
        for step in itertools.chain(self._steps(), (None,)):
            if step is not None:
                ahead.append(step)
                _, data, columns = step.piece
                check.add(Bodies(step.file.path, step.piece.base - step.file.base, data, columns))
            while ahead and (step is None or len(ahead) > _STEPS_AHEAD or check.is_ready):
                oldest = ahead.popleft()
                base, data, columns = oldest.piece
                right = check.take()
                if right < columns.starts.size:
                    piece = LogPiece(base, data, columns.rows(slice(0, right)))
                    yield _Step(oldest.file, piece, base + int(columns.starts[right]))
                    return
                yield oldest

    def _steps(self) -> Iterator[_Step]:
        """Piece after piece of whole records, whatever their bodies are."""
        position = self.end
        for file in list(self._log.segments.files):
            segment_end = file.base + file.size
            while position < segment_end:
                piece, end = self._next_piece(position, segment_end)
                if end == position:
                    return
                position = end
                yield _Step(file, piece, position)

    def _next_piece(self, base: int, segment_end: int) -> tuple[LogPiece, int]:
        """The valid records from `base` on, if there are any, and where to go on."""
        data = self._log.view(base, min(PIECE, segment_end - base))
        if _is_blank(data, segment_end - base):
            return LogPiece(base, data, bulk.read_columns(b"", np.empty(0, np.int64))), segment_end
        starts, size = bulk.record_starts(data)
        if not starts.size:
            # A record longer than a piece, or the end.
            data = memoryview(lookup.record_at(self._log, base) or b"")
            starts, size = bulk.record_starts(data)
        columns = bulk.read_columns(data, starts)
        good = columns.valid & (columns.column("physical_offset") == starts + base)
        if self._after_crash:
            in_segment = base % self._log.segments.segment_size
            good &= ~_lost_properties(data, columns, in_segment)
        if not good.all():
            count = int(good.argmin())
            size = int(starts[count])
            columns = columns.rows(slice(0, count))
        return LogPiece(base, data, columns), base + size


class _Step(NamedTuple):
    file: MappedFile
    #: Without a row where the blank record is.
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


def _lost_properties(data: memoryview, columns: bulk.RecordColumns, base: int) -> NDArray[np.bool_]:
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
