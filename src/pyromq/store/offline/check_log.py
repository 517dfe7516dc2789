"""The log's part of a check: every record, and what stands between and behind them.

Recovery ends the log at the first bytes that are no record. A check goes on: behind
damage it looks for the next record that says it stands where it stands, so that one run
names everything. Used by `check`, on one thread.

Invariants
1. `pieces` gives every whole record of the log once, in the log's order; those whose
   body is damaged too.
2. When it is done, `end` is the offset behind the last record.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from pyromq.protocol.message import bulk
from pyromq.protocol.message.record import (
    BLANK_MAGIC,
    HEAD_SIZE_V4,
    MESSAGE_MAGIC,
    RecordError,
    decode_record,
    peek,
)
from pyromq.store.offline.check_files import SegmentFiles
from pyromq.store.offline.violation import Violation, ViolationKind

_PIECE: Final = 4 * 1024 * 1024
#: How often, and how far apart, the end of a log that may grow is looked at again.
_LOOKS: Final = 3
_SECONDS_BETWEEN_LOOKS: Final = 0.05
_ZEROS: Final = bytes(_PIECE)
_MAGIC: Final = MESSAGE_MAGIC.to_bytes(4, "big")


class CheckedPiece(NamedTuple):
    """Whole records, one behind the other, from the physical offset `base` on."""

    base: int
    data: bytes
    columns: bulk.RecordColumns


class LogCheck:
    """One walk through the log. `violations` fills while `pieces` runs."""

    def __init__(self, files: SegmentFiles, *, may_move: bool, check_bodies: bool = True) -> None:
        """`may_move`: not stopped cleanly, so the last record may be torn or being written.

        Without `check_bodies` no CRC is computed.
        """
        self._files = files
        self._check_bodies = check_bodies
        self._may_move = may_move
        self.violations: list[Violation] = []
        self.end = files.first_offset

    def pieces(self) -> Iterator[CheckedPiece]:
        """The records of the log."""
        bases, size = self._files.bases, self._files.segment_size
        last = position = self.end
        number = 0
        while number < len(bases):
            segment_end = bases[number] + size
            position = max(position, bases[number])
            piece = self._piece(position, segment_end)
            if piece is None:
                if position == self.end and self._is_blank(position, segment_end):
                    self.end = segment_end
                    following = None
                else:
                    following = self.next_record(position + 1, segment_end)
                position = segment_end if following is None else following
            elif position != self.end and self._was_written_since():
                number, position = bases.index(self.end - self.end % size), self.end
            else:
                if position != self.end:
                    self._report_gap(position)
                self._check_records(piece)
                self.end = position = piece.base + len(piece.data)
                last = piece.base + int(piece.columns.starts[-1])
                yield piece
            if position == segment_end:
                number += 1
        if self._may_move:
            # The last record may be torn; the next start cuts it off.
            torn = (ViolationKind.BODY_CRC, *self._files.place(last))
            found = self.violations[-1:]
            if found and (found[0].kind, found[0].file, found[0].position) == torn:
                self.violations.pop()
        else:
            self._check_empty()

    def record_at(self, offset: int) -> bytes | None:
        """The record that begins at `offset`; None when none does."""
        size, magic = peek(self._files.read(offset, HEAD_SIZE_V4))
        if magic != MESSAGE_MAGIC:
            return None
        data = self._files.read(offset, size)
        return data if len(data) == size else None

    def _piece(self, position: int, segment_end: int) -> CheckedPiece | None:
        """The next records; None when none begins here."""
        for look in range(_LOOKS if self._may_move else 1):
            if look:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            data = self._files.read(position, min(_PIECE, segment_end - position))
            starts, end = bulk.record_starts(data)
            size, magic = peek(data)
            rest = segment_end - position
            if not starts.size and magic == MESSAGE_MAGIC and len(data) < size <= rest:
                data = self._files.read(position, size)
                starts, end = bulk.record_starts(data)
            columns = bulk.read_columns(data, starts)
            count = starts.size if columns.valid.all() else int(columns.valid.argmin())
            if count:
                end = end if count == starts.size else int(starts[count])
                if count < starts.size:
                    columns = bulk.read_columns(data, starts[:count])
                return CheckedPiece(position, data[:end], columns)
            if not any(data[:HEAD_SIZE_V4]) or magic == BLANK_MAGIC:
                break
        return None

    def _check_records(self, piece: CheckedPiece) -> None:
        columns = piece.columns
        places = columns.column("physical_offset")
        for row in np.flatnonzero(places != columns.starts + piece.base).tolist():
            self._report(
                ViolationKind.RECORD,
                piece.base + int(columns.starts[row]),
                f"the record says that it stands at {places[row]}",
            )
        if not self._check_bodies:
            return
        crcs = bulk.body_crcs(piece.data, columns)
        expected = columns.column("body_crc")
        for row in np.flatnonzero(expected != crcs).tolist():
            self._report(
                ViolationKind.BODY_CRC,
                piece.base + int(columns.starts[row]),
                f"the body's CRC is {crcs[row]}, the record says {expected[row]}",
            )

    def _is_blank(self, position: int, segment_end: int) -> bool:
        size, magic = peek(self._files.read(position, HEAD_SIZE_V4))
        return magic == BLANK_MAGIC and size == segment_end - position

    def _was_written_since(self) -> bool:
        """Whether the log goes on at `end`, where there was nothing when it was looked at."""
        segment_end = self.end - self._files.place(self.end)[1] + self._files.segment_size
        return (
            self._may_move
            and segment_end - self._files.segment_size in self._files.bases
            and (
                self._piece(self.end, segment_end) is not None
                or self._is_blank(self.end, segment_end)
            )
        )

    def _report_gap(self, following: int) -> None:
        reason = self._reason(self.end) or "nothing was written here"
        self._report(ViolationKind.RECORD, self.end, f"{reason}; the next record is at {following}")

    def _reason(self, position: int) -> str | None:
        """Why no record begins here; None when nothing was ever written."""
        rest = self._files.segment_size - self._files.place(position)[1]
        data = self._files.read(position, min(_PIECE, rest))
        if not any(data[:HEAD_SIZE_V4]):
            return None
        size, magic = peek(data)
        if magic == BLANK_MAGIC:
            return f"a blank record of {size} bytes where {rest} are left"
        try:
            decode_record(data)
        except RecordError as error:
            return str(error)
        return f"a record of {size} bytes that does not fit its segment"

    def next_record(self, position: int, segment_end: int) -> int | None:
        """The next place in the segment at which a record of that very place begins."""
        while position < segment_end:
            data = self._files.read(position, min(_PIECE, segment_end - position))
            at = -1 if _is_empty(data) else data.find(_MAGIC)
            while at >= 0:
                start = position + at - 4
                record = self.record_at(start) if at >= 4 else None
                if record is not None:
                    columns = bulk.read_columns(record, np.zeros(1, np.int64))
                    if columns.valid[0] and int(columns.column("physical_offset")[0]) == start:
                        return start
                at = data.find(_MAGIC, at + 1)
            if position + len(data) >= segment_end or len(data) < 2 * len(_MAGIC):
                return None
            position += len(data) - 2 * len(_MAGIC) + 1
        return None

    def _check_empty(self) -> None:
        """Nothing may stand behind the log's end: it could be taken for a record later."""
        files = self._files
        for base in files.bases:
            segment_end = base + files.segment_size
            position = max(base, self.end)
            while position < segment_end:
                data = files.read(position, min(_PIECE, segment_end - position))
                if not _is_empty(data):
                    reason = self._reason(self.end) or "bytes stand behind the log's end"
                    first = len(data) - len(data.lstrip(b"\0"))
                    self._report(ViolationKind.LOG_END, position + first, reason)
                    return
                position += len(data) or files.segment_size

    def _report(self, kind: ViolationKind, offset: int, message: str) -> None:
        path, position = self._files.place(offset)
        self.violations.append(Violation(kind, path, position, message))


def _is_empty(data: bytes) -> bool:
    """Whether there are only zeros: a comparison is much faster than any search."""
    return data == _ZEROS[: len(data)]
