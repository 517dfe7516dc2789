"""A piece of the log: its valid records and their consume-queue entries.

`examine` decides which records are valid, for every walk without the compiled kernel and in both
processes that may share one (`piece_process`). `examine_with_kernel` does the same in the kernel.
`Examiner` chooses between them for bytes that a replica received.
Pure, except for the log lines of `queue_runs`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyromq.protocol.kernel import load
from pyromq.protocol.message import bulk
from pyromq.protocol.message.bulk import Longs, RecordColumns
from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.entry import RECORDS, Framing
from pyromq.protocol.message.unit_arrays import CONSUME_QUEUE_DTYPE
from pyromq.store.recovery.dispatch import QueueRun, queue_runs, usable_runs

if TYPE_CHECKING:
    from pyromq.protocol.kernel.log_piece import PieceExaminer

#: A disk writes a sector completely or not at all.
_SECTOR_SIZE: Final = 512


@dataclass(frozen=True, slots=True)
class Rules:
    """Which checks a record must pass, and the delay levels that determine delivery times."""

    segment_size: int
    delay_levels: DelayLevels
    check_crc: bool
    #: Also check for sectors of properties that were never written.
    after_crash: bool = False


class LogPiece:
    """Consecutive records from the start of `data`."""

    __slots__ = ("_columns", "_rules", "_runs", "base", "data", "starts")

    def __init__(
        self,
        base: int,
        data: memoryview,
        starts: Longs,
        rules: Rules,
        *,
        columns: RecordColumns | None = None,
        runs: Iterable[QueueRun] | None = None,
    ) -> None:
        """Pass `columns` and `runs` of all records if they are known."""
        #: The physical offset of the first byte of `data`.
        self.base = base
        #: A view of the mapped log; callers must not keep it.
        self.data = data
        #: The positions in `data` where records start.
        self.starts = starts
        self._rules = rules
        self._columns = columns
        self._runs = runs

    @property
    def columns(self) -> RecordColumns:
        """The decoded records."""
        if self._columns is None:
            self._columns = bulk.read_columns(self.data, self.starts)
        return self._columns

    def runs(self) -> Iterable[QueueRun]:
        """Return the consume-queue entries of the records, queue by queue."""
        if self._runs is not None:
            return self._runs
        return queue_runs(self.data, self.base, self.columns, self._rules.delay_levels)

    def rows(self, wanted: slice) -> LogPiece:
        """Return a piece with only some of the records, and all of the data."""
        columns = self.columns.rows(wanted)
        return LogPiece(self.base, self.data, columns.starts, self._rules, columns=columns)

    def examine(self) -> LogPiece:
        """Return the piece, data included, up to its first invalid record, which ends the log."""
        columns = self.columns
        good = columns.valid & (columns.column("physical_offset") == self.starts + self.base)
        if self._rules.after_crash:
            in_segment = self.base % self._rules.segment_size
            good &= ~lost_properties(self.data, columns, in_segment)
        if self._rules.check_crc:
            good &= bulk.body_crcs(self.data, columns) == columns.column("body_crc")
        if good.all():
            return self
        count = int(good.argmin())
        valid = self.rows(slice(0, count))
        valid.data = self.data[: int(self.starts[count])]
        return valid


class Examined(NamedTuple):
    """A piece with its valid records, and where they end in its data."""

    piece: LogPiece
    end: int
    #: Whether the record there is invalid, and not merely incomplete.
    is_end_of_log: bool


class _GroupedPiece(LogPiece):
    """A piece whose entries the kernel has grouped by queue."""

    __slots__ = ("_grouped",)

    def __init__(
        self, base: int, data: memoryview, starts: Longs, rules: Rules, grouped: list[QueueRun]
    ) -> None:
        super().__init__(base, data, starts, rules)
        self._grouped = grouped

    def runs(self) -> Iterable[QueueRun]:
        """Return the consume-queue entries of the records, queue by queue."""
        return usable_runs(self.data, self.base, self._grouped, self._rules.delay_levels)


class Examiner:
    """Examines bytes of the log with the compiled kernel, or without it if there is none."""

    __slots__ = ("_kernel", "_rules")

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        kernel = load("log_piece")
        self._kernel: PieceExaminer | None = None if kernel is None else kernel.PieceExaminer()

    def examine(self, base: int, data: memoryview, framing: Framing = RECORDS) -> Examined:
        """Return the valid records that `data` starts with, perhaps not all at once."""
        if self._kernel is not None:
            return examine_with_kernel(self._kernel, base, data, self._rules, framing)
        starts, end = bulk.framed_starts(data, framing.prefix)
        if not starts.size:
            return Examined(LogPiece(base, data[:0], starts, self._rules), 0, False)
        piece = LogPiece(base, data[:end], starts, self._rules).examine()
        is_bad = piece.starts.size < starts.size
        if is_bad:
            end = int(starts[piece.starts.size]) - framing.prefix
        return Examined(piece, end, is_bad)


def examine_with_kernel(
    examiner: PieceExaminer,
    base: int,
    data: memoryview,
    rules: Rules,
    framing: Framing = RECORDS,
) -> Examined:
    """Return the valid records that `data` starts with; as many as the kernel takes at once."""
    end, is_bad, packed_starts, queues, packed_offsets, packed_entries = examiner.examine(
        data,
        base,
        rules.check_crc,
        base % rules.segment_size if rules.after_crash else -1,
        framing.prefix,
    )
    starts = np.frombuffer(packed_starts, np.int64)
    if queues is None:
        return Examined(LogPiece(base, data[:end], starts, rules), end, is_bad)
    offsets = np.frombuffer(packed_offsets, np.int64)
    entries = np.frombuffer(packed_entries, CONSUME_QUEUE_DTYPE)
    runs = []
    begin = 0
    for topic, queue_id, count, is_consecutive in queues:
        rows = slice(begin, begin + count)
        begin = rows.stop
        run = QueueRun(topic.decode(), queue_id, offsets[rows], entries[rows], is_consecutive)
        runs.append(run)
    return Examined(_GroupedPiece(base, data[:end], starts, rules, runs), end, is_bad)


def lost_properties(data: memoryview, columns: RecordColumns, base: int) -> NDArray[np.bool_]:
    """Return which records have properties with an all-zero sector.

    No CRC covers properties. `base` is the position of `data` in its file.
    """
    lost = np.zeros(columns.starts.size, np.bool_)
    content = np.frombuffer(data, np.uint8)
    begins, lengths = columns.properties
    ends = begins + lengths
    sectors = -(-(begins + base) // _SECTOR_SIZE) * _SECTOR_SIZE - base
    rows = np.flatnonzero(sectors < ends)
    while rows.size:
        for row in rows[content[sectors[rows]] == 0].tolist():
            begin = int(sectors[row])
            lost[row] |= not any(data[begin : min(begin + _SECTOR_SIZE, int(ends[row]))])
        sectors[rows] += _SECTOR_SIZE
        rows = rows[sectors[rows] < ends[rows]]
    return lost
