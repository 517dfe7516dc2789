"""A piece of the log: which of its records are valid, and what consume queues hold of them.

`examine` is the one judge of a record at its place, for every walk over a log and in both
processes that may share one (`piece_process`). Pure but for the lines of `queue_runs`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyromq.protocol.message import bulk
from pyromq.protocol.message.bulk import Longs, RecordColumns
from pyromq.protocol.message.delay import DelayLevels
from pyromq.store.recovery.dispatch import QueueRun, queue_runs

#: A disk writes these whole or not at all.
_SECTOR: Final = 512


@dataclass(frozen=True, slots=True)
class Rules:
    """What is looked at in a record, and how times of delivery are found."""

    segment_size: int
    delay_levels: DelayLevels
    check_crc: bool
    #: Also properties: some may never have reached the disk.
    after_crash: bool = False


class LogPiece:
    """Records, one behind the other from the head of `data` on."""

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
        """`columns` and `runs` are those of all records, where they are known already."""
        #: The physical offset of the first byte of `data`.
        self.base = base
        #: The bytes where they are mapped; not to be kept.
        self.data = data
        #: Where in `data` the records begin.
        self.starts = starts
        self._rules = rules
        self._columns = columns
        self._runs = runs

    @property
    def columns(self) -> RecordColumns:
        """What stands in the records."""
        if self._columns is None:
            self._columns = bulk.read_columns(self.data, self.starts)
        return self._columns

    def runs(self) -> Iterable[QueueRun]:
        """What the consume queues hold of the records, queue by queue."""
        if self._runs is not None:
            return self._runs
        return queue_runs(self.data, self.base, self.columns, self._rules.delay_levels)

    def rows(self, wanted: slice) -> LogPiece:
        """A piece with some of the records only."""
        columns = self.columns.rows(wanted)
        return LogPiece(self.base, self.data, columns.starts, self._rules, columns=columns)

    def examine(self) -> LogPiece:
        """The same with the valid records at its head; the first that is none ends the log."""
        columns = self.columns
        good = columns.valid & (columns.column("physical_offset") == self.starts + self.base)
        if self._rules.after_crash:
            in_segment = self.base % self._rules.segment_size
            good &= ~_lost_properties(self.data, columns, in_segment)
        if self._rules.check_crc:
            good &= bulk.body_crcs(self.data, columns) == columns.column("body_crc")
        count = good.size if good.all() else int(good.argmin())
        return self if count == good.size else self.rows(slice(0, count))


def _lost_properties(data: memoryview, columns: RecordColumns, base: int) -> NDArray[np.bool_]:
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
