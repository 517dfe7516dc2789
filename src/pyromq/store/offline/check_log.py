"""Check the log: every record, and the bytes between and after records.

Recovery ends the log at the first bytes that are not a record. A check continues: after damage it
searches for the next record whose stated offset matches its position, so that one run reports all
violations. In the log of a raft group, the header before each record is skipped: `raft.offline`
checks those. Used by `check`, on one thread.

Invariants
1. `pieces` yields every complete record once, in order, including those with damaged bodies, but
   not a torn record at the end of a log that may move: the next start truncates it.
2. Afterwards, `end` is the offset after the last record.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from pyromq.base.sizes import MIB
from pyromq.protocol.message import bulk
from pyromq.protocol.message.record import (
    BLANK_SIZE,
    HEAD_SIZE_V4,
    MESSAGE_MAGIC,
    RecordError,
    decode_record,
    peek,
)
from pyromq.store.offline.check_files import SegmentFiles
from pyromq.store.offline.violation import Violation, ViolationKind
from pyromq.store.recovery.piece import lost_properties

_PIECE_SIZE: Final = 4 * MIB
#: The end of a log that may be growing is read this many times, with a delay between.
_MAX_READS: Final = 3
_SECONDS_BETWEEN_READS: Final = 0.05
_ZEROS: Final = bytes(_PIECE_SIZE)
_MAGIC: Final = MESSAGE_MAGIC.to_bytes(4, "big")


class CheckedPiece(NamedTuple):
    """Consecutive complete records from the offset `base` on, with what is before each."""

    base: int
    data: bytes
    columns: bulk.RecordColumns


class LogCheck:
    """One walk through the log; `pieces` adds to `violations`."""

    def __init__(self, files: SegmentFiles, *, may_move: bool, check_bodies: bool = True) -> None:
        """Prepare a walk.

        `may_move` means that the last record may be torn or being written, because the shutdown
        was unclean or a broker is running. Without `check_bodies`, CRCs are not checked.
        """
        self._files = files
        self._check_bodies = check_bodies
        self._may_move = may_move
        self.violations: list[Violation] = []
        self.end = files.first_offset

    def pieces(self) -> Iterator[CheckedPiece]:
        """Yield the records of the log."""
        bases, size = self._files.bases, self._files.segment_size
        position = self.end
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
                if position != self.end and not self._begins_at(position):
                    self._report_gap(position)
                is_torn = self._may_move and self._has_torn_end(piece, segment_end)
                if is_torn:
                    piece = self._without_last(piece)
                self.end = piece.base + len(piece.data)
                position = segment_end if is_torn else self.end
                if piece.data:
                    self._check_records(piece)
                    yield piece
            if position == segment_end:
                number += 1
        if not self._may_move:
            self._check_empty()

    def record_at(self, offset: int) -> bytes | None:
        """Return the record at `offset`, or None."""
        size, magic = peek(self._files.read(offset, HEAD_SIZE_V4))
        if magic != MESSAGE_MAGIC:
            return None
        data = self._files.read(offset, size)
        return data if len(data) == size else None

    def _piece(self, position: int, segment_end: int) -> CheckedPiece | None:
        """Return the records from `position` on, or None if there is none."""
        framing = self._files.framing(position)
        prefix = framing.prefix
        for attempt in range(_MAX_READS if self._may_move else 1):
            if attempt:
                time.sleep(_SECONDS_BETWEEN_READS)
            data = self._files.read(position, min(_PIECE_SIZE, segment_end - position))
            starts, end = bulk.framed_starts(data, prefix)
            size, magic = peek(data[prefix : prefix + BLANK_SIZE])
            rest = segment_end - position - prefix
            if not starts.size and magic == MESSAGE_MAGIC and len(data) < size <= rest:
                data = self._files.read(position, prefix + size)
                starts, end = bulk.framed_starts(data, prefix)
            columns = bulk.read_columns(data, starts)
            count = starts.size if columns.valid.all() else int(columns.valid.argmin())
            if count:
                end = end if count == starts.size else int(starts[count]) - prefix
                if count < starts.size:
                    columns = bulk.read_columns(data, starts[:count])
                return CheckedPiece(position, data[:end], columns)
            if not any(data[:HEAD_SIZE_V4]) or framing.is_blank(data, segment_end - position):
                break
        return None

    def _has_torn_end(self, piece: CheckedPiece, segment_end: int) -> bool:
        """Return whether the last record of a piece is torn, and the last one of its segment."""
        last = piece.columns.rows(slice(-1, None))
        begin = self._files.place(piece.base)[1]
        is_torn = bool(lost_properties(memoryview(piece.data), last, begin)[0])
        if self._check_bodies and not is_torn:
            is_torn = bool(bulk.body_crcs(piece.data, last)[0] != last.column("body_crc")[0])
        return is_torn and self.next_record(piece.base + len(piece.data), segment_end) is None

    def _without_last(self, piece: CheckedPiece) -> CheckedPiece:
        end = int(piece.columns.starts[-1]) - self._files.framing(piece.base).prefix
        return CheckedPiece(piece.base, piece.data[:end], piece.columns.rows(slice(-1)))

    def _check_records(self, piece: CheckedPiece) -> None:
        columns = piece.columns
        places = columns.column("physical_offset")
        for row in np.flatnonzero(places != columns.starts + piece.base).tolist():
            self._report(
                ViolationKind.RECORD,
                piece.base + int(columns.starts[row]),
                f"record states physical offset {places[row]}",
            )
        if not self._check_bodies:
            return
        crcs = bulk.body_crcs(piece.data, columns)
        expected = columns.column("body_crc")
        for row in np.flatnonzero(expected != crcs).tolist():
            self._report(
                ViolationKind.BODY_CRC,
                piece.base + int(columns.starts[row]),
                f"CRC of the body is {crcs[row]}, but the record states {expected[row]}",
            )

    def _is_blank(self, position: int, segment_end: int) -> bool:
        data = self._files.read(position, BLANK_SIZE)
        return self._files.framing(position).is_blank(data, segment_end - position)

    def _was_written_since(self) -> bool:
        """Return whether the log now continues at `end`, where it had ended before."""
        segment_end = self.end - self._files.place(self.end)[1] + self._files.segment_size
        return (
            self._may_move
            and segment_end - self._files.segment_size in self._files.bases
            and (
                self._piece(self.end, segment_end) is not None
                or self._is_blank(self.end, segment_end)
            )
        )

    def _begins_at(self, position: int) -> bool:
        """Return whether the log begins here, after zeros.

        A follower of a raft group whose log was replaced begins in the middle of a file, or after
        the blank at its end.
        """
        files = self._files
        if self.end != files.first_offset or not files.framing(self.end).prefix:
            return False
        at, size = self.end, files.segment_size
        while at < position:
            data = files.read(at, min(_PIECE_SIZE, position - at))
            zeros = len(data) - len(data.lstrip(b"\0"))
            if zeros < len(data):
                segment_end = at - at % size + size
                return position == segment_end and self._is_blank(at + zeros, segment_end)
            at += len(data) or size
        return True

    def _report_gap(self, following: int) -> None:
        reason = self._reason(self.end) or "nothing was written here"
        self._report(ViolationKind.RECORD, self.end, f"{reason}; the next record is at {following}")

    def _reason(self, position: int) -> str | None:
        """Return why there is no record at `position`; None if nothing was written there."""
        rest = self._files.segment_size - self._files.place(position)[1]
        data = self._files.read(position, min(_PIECE_SIZE, rest))
        if not any(data[:HEAD_SIZE_V4]):
            return None
        framing = self._files.framing(position)
        blank = framing.blank_size(data)
        if blank is not None:
            return f"blank record of {blank} bytes, but {rest} are left"
        record = data[framing.prefix :]
        try:
            decode_record(record)
        except RecordError as error:
            return str(error)
        return f"record of {peek(record)[0]} bytes does not fit its segment"

    def next_record(self, position: int, segment_end: int) -> int | None:
        """Return the offset of the next record in the segment that states its own offset.

        In the log of a raft group, that of the header before it.
        """
        first, prefix = position, self._files.framing(position).prefix
        while position < segment_end:
            data = self._files.read(position, min(_PIECE_SIZE, segment_end - position))
            at = -1 if _is_empty(data) else data.find(_MAGIC)
            while at >= 0:
                start = position + at - 4
                record = self.record_at(start) if at >= 4 and start - prefix >= first else None
                if record is not None:
                    columns = bulk.read_columns(record, np.zeros(1, np.int64))
                    if columns.valid[0] and int(columns.column("physical_offset")[0]) == start:
                        return start - prefix
                at = data.find(_MAGIC, at + 1)
            if position + len(data) >= segment_end or len(data) < 2 * len(_MAGIC):
                return None
            position += len(data) - 2 * len(_MAGIC) + 1
        return None

    def _check_empty(self) -> None:
        """Report bytes after the end of the log, which could later be mistaken for a record."""
        files = self._files
        for base in files.bases:
            segment_end = base + files.segment_size
            position = max(base, self.end)
            while position < segment_end:
                data = files.read(position, min(_PIECE_SIZE, segment_end - position))
                if not _is_empty(data):
                    reason = self._reason(self.end) or "bytes after the end of the log"
                    first = len(data) - len(data.lstrip(b"\0"))
                    self._report(ViolationKind.LOG_END, position + first, reason)
                    return
                position += len(data) or files.segment_size

    def _report(self, kind: ViolationKind, offset: int, message: str) -> None:
        path, position = self._files.place(offset)
        self.violations.append(Violation(kind, path, position, message))


def _is_empty(data: bytes) -> bool:
    """Return whether all bytes are zero; a comparison is much faster than a search."""
    return data == _ZEROS[: len(data)]
