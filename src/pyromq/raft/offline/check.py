"""Check the files of a raft node: every entry, its index unit and its record, and the text files.

    check = NodeCheck(find_node(Path("store")))
    for finding in check.findings(): ...
    check.end_index, check.committed_index

The data files are read once, front to back. Each entry must have a valid header with its own
position, the next index and a term that does not fall; its index unit must have the same values;
its body must be one record with a valid CRC that states the body's position. Recovery ends the log
at the first entry that is not; the check searches for the next one, so that one run finds all.

A finding says what to do. Those that the next start repairs are `Remedy.NEXT_START`: bytes after
the end, a wrong index near the end, an interrupted truncation. If the node runs, or was killed, its
tail may be incomplete.

Never writes, and works while the node runs. Called by `pyromq raft check`, on its own thread.
Memory: pieces of a few MiB.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import numpy as np

from pyromq.base.atomic_file import backup_of, read_file
from pyromq.base.sizes import MIB
from pyromq.protocol.message import bulk
from pyromq.protocol.message.record import MESSAGE_MAGIC
from pyromq.raft.format import (
    BLANK_SIZE,
    CHECKPOINT_FILE,
    HEADER_SIZE,
    INDEX_FILE_SIZE,
    INDEX_UNIT_SIZE,
    MAGIC,
    MAGIC_BYTES,
    MAX_ENTRY_SIZE,
    TERM_FILE,
    TRUNCATION_FILE,
    CheckpointText,
    FormatError,
    Place,
    Records,
    Vote,
    blank_room,
    decode_checkpoint,
    decode_header,
    decode_truncation,
    decode_units,
    decode_vote,
    fields_are_valid,
    gather_headers,
    is_blank,
)
from pyromq.raft.offline.files import NodeFiles
from pyromq.store.offline.check import is_unclean
from pyromq.store.offline.check_files import SegmentFiles

_PIECE_SIZE: Final = 8 * MIB
assert _PIECE_SIZE > MAX_ENTRY_SIZE, "a piece holds at least one entry"
#: Findings of one kind that are listed.
_MAX_NAMED: Final = 20
#: A start checks as many files at the end of the log.
_CHECKED_FILES: Final = 3
_START: Final = struct.Struct(">ii")
_NONE: Final = -1
_ZEROS: Final = bytes(_PIECE_SIZE)


class Kind(Enum):
    """The rule that is violated."""

    FILE = "file"
    ENTRY = "entry"
    BLANK = "blank"
    RECORD = "record"
    INDEX = "index unit"
    LOG_END = "log end"
    CHECKPOINT = "checkpoint"
    TERM = "term"
    TRUNCATION = "truncation"


class Remedy(Enum):
    """What to do about a finding."""

    NEXT_START = "the next start repairs this"
    FILL_AGAIN = (
        "if the other nodes are sound, stop this one, remove its files and let the group fill them "
        "again (docs/operations/raft.md, Replace a node)"
    )
    REMOVE_INDEX = "stop the node and remove its index directory: the next start rebuilds it"
    RESTORE = "restore the files, or let the group fill them again"
    NONE = "nothing to do"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding."""

    kind: Kind
    file: Path
    #: The position in the file; 0 if it is about the whole file.
    position: int
    message: str
    remedy: Remedy

    @property
    def is_damage(self) -> bool:
        """Return whether somebody must do something."""
        return self.remedy not in (Remedy.NEXT_START, Remedy.NONE)

    def __str__(self) -> str:
        return f"{self.file} at {self.position}: {self.kind.value}: {self.message}"


class NodeCheck:
    """One check of a node's files; the figures are complete after `findings`."""

    def __init__(
        self,
        node: NodeFiles,
        *,
        data_file_size: int = 0,
        index_file_size: int = INDEX_FILE_SIZE,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """With `data_file_size` 0, use the size of most files."""
        self._node = node
        self._data = SegmentFiles(node.data, data_file_size)
        self._units = SegmentFiles(node.index, index_file_size)
        self._on_progress = on_progress
        #: Whether the tail may be incomplete: the node runs, or was killed.
        self.may_move = node.root is not None and is_unclean(node.root)
        self._found: list[Finding] = []
        self._counts: dict[tuple[Kind, bool], int] = {}
        self._first: Place | None = None
        self._last: Place | None = None
        #: The end of the last entry, or of the blank after it.
        self._end = 0
        #: A start compares entries from here on with the index.
        self._checked_from = 0
        self.entries = 0
        self.checkpoint = CheckpointText(_NONE, _NONE)
        self.vote: Vote | None = None

    @property
    def begin_index(self) -> int:
        """The index of the first entry, -1 if there is none."""
        return _NONE if self._first is None else self._first.index

    @property
    def end_index(self) -> int:
        """The index of the last entry, -1 if there is none."""
        return _NONE if self._last is None else self._last.index

    @property
    def end_term(self) -> int:
        """The term of the last entry, -1 if there is none."""
        return _NONE if self._last is None else self._last.term

    @property
    def begin_position(self) -> int:
        """The position of the first entry, or of the first file."""
        return self._data.first_offset if self._first is None else self._first.position

    @property
    def end_position(self) -> int:
        """The position after the last entry."""
        return self._data.first_offset if self._last is None else self._last.end

    @property
    def committed_index(self) -> int:
        """The index of the last entry that the checkpoint knows to be committed."""
        return self.checkpoint.committed_index

    def findings(self) -> Iterator[Finding]:
        """Yield everything that is wrong, in the order of the log."""
        # The text files first: a running node may append and commit meanwhile.
        self._read_checkpoint()
        self._read_vote()
        self._read_truncation()
        for files, remedy in ((self._units, Remedy.REMOVE_INDEX), (self._data, Remedy.RESTORE)):
            for violation in files.load():
                self._add(Kind.FILE, violation.file, 0, violation.message, remedy)
        yield from self._taken()
        self._end = self._data.first_offset
        filled = [base for base in self._data.bases if any(self._data.read(base, BLANK_SIZE))]
        self._checked_from = ([0] * _CHECKED_FILES + filled)[-_CHECKED_FILES]
        yield from self._walk()
        self._check_end()
        self._check_index_end()
        self._check_promises()
        yield from self._taken()

    def _taken(self) -> Iterator[Finding]:
        found, self._found = self._found, []
        yield from found

    # Text files

    def _read_checkpoint(self) -> None:
        path = self._node.directory / CHECKPOINT_FILE
        for each in (path, backup_of(path)):
            content = read_file(each)
            if content is None:
                continue
            try:
                self.checkpoint = decode_checkpoint(content)
            except FormatError as error:
                self._add(Kind.CHECKPOINT, each, 0, str(error), Remedy.NEXT_START)
                continue
            if self.checkpoint.must_catch_up:
                message = "this node lost entries, and does not vote until it has them again"
                self._add(Kind.CHECKPOINT, each, 0, message, Remedy.NONE)
            return

    def _read_vote(self) -> None:
        path = self._node.directory / TERM_FILE
        content = read_file(path)
        if content is None:
            return
        try:
            self.vote = decode_vote(content)
        except FormatError as error:
            message = f"{error}: this node may have voted already"
            self._add(Kind.TERM, path, 0, message, Remedy.FILL_AGAIN)

    def _read_truncation(self) -> None:
        path = self._node.directory / TRUNCATION_FILE
        content = read_file(path)
        if content is None:
            return
        try:
            truncation = decode_truncation(content)
        except FormatError as error:
            self._add(Kind.TRUNCATION, path, 0, str(error), Remedy.FILL_AGAIN)
            return
        message = f"was interrupted before entry {truncation.next_index}"
        self._add(Kind.TRUNCATION, path, 0, message, Remedy.NEXT_START)

    # Entries

    def _walk(self) -> Iterator[Finding]:
        data, size = self._data, self._data.segment_size
        total = data.end_offset - data.first_offset
        for base in data.bases:
            position, segment_end = base, base + size
            if self._first is None:
                position = self._begin_in(base)
            while position < segment_end:
                following = self._piece(position, segment_end)
                if following is None:
                    break
                position = following
                if self._on_progress is not None:
                    self._on_progress(position - data.first_offset, total)
                yield from self._taken()
            yield from self._taken()

    def _begin_in(self, base: int) -> int:
        """Return where the log begins in its first file: it may begin after zeros."""
        at, segment_end = base, base + self._data.segment_size
        while at < segment_end:
            piece = self._data.read(at, min(_PIECE_SIZE, segment_end - at))
            zeros = len(piece) - len(piece.lstrip(b"\0"))
            if not piece or zeros < len(piece):
                start = at + zeros
                if self._is_blank_at(start):
                    return start
                # The magic number of an entry begins with zeros.
                return max(base, start - len(MAGIC_BYTES) + 1)
            at += len(piece)
        return segment_end

    def _is_blank_at(self, position: int) -> bool:
        head = self._data.read(position, BLANK_SIZE)
        return len(head) == BLANK_SIZE and is_blank(head)

    def _piece(self, position: int, segment_end: int) -> int | None:
        """Check the entries from `position` on; return where to continue, None at the end.

        The end is that of the file's entries: zeros, a blank, or damage with nothing after it.
        """
        data = self._data.read(position, min(_PIECE_SIZE, segment_end - position))
        starts = _starts(data)
        if starts:
            headers = gather_headers(data, np.array(starts, np.int64))
            good = self._good(headers, starts, position)
            if good:
                self._accept(data, headers[:good], starts[:good], position)
                return self._end
        if self._is_blank_at(position):
            self._end = segment_end
            return None
        following = self._next_entry(position + 1, segment_end)
        if following is None:
            # If the log ends here, `_check_end` has a look at what follows.
            if segment_end < self._data.end_offset and self._has_entry(segment_end):
                reason = self._reason(data, position, segment_end)
                self._add_at(Kind.ENTRY, position, reason, Remedy.FILL_AGAIN)
            return None
        message = f"{self._reason(data, position, segment_end)}; the next entry is at {following}"
        self._add_at(Kind.ENTRY, position, message, Remedy.FILL_AGAIN)
        return following

    def _good(self, headers: Records, starts: list[int], position: int) -> int:
        """Return how many entries continue the log."""
        places = np.array(starts, np.int64) + position
        last_term = _NONE if self._last is None else self._last.term
        terms = headers["term"].astype(np.int64)
        first = int(headers["index"][0])
        expected = first if self._last is None else self._last.index + 1
        good = fields_are_valid(headers) & (headers["position"] == places)
        if self._last is None or self._follows(position):
            good &= headers["index"] == np.arange(expected, expected + len(starts))
        else:
            # After damage: the entries between are lost, the rest must be consecutive.
            good &= headers["index"] == np.arange(first, first + len(starts))
        good &= terms >= np.concatenate(([last_term], terms[:-1]))
        return len(starts) if good.all() else int(good.argmin())

    def _follows(self, position: int) -> bool:
        """Return whether the next entry belongs here: after the last one, or after its blank."""
        assert self._last is not None
        end, size = self._last.end, self._data.segment_size
        rolled = position == end - end % size + size and self._is_blank_at(end)
        return position == end or rolled

    def _accept(self, data: bytes, headers: Records, starts: list[int], position: int) -> None:
        """Take entries over, and check their index units and records."""
        first = int(headers["index"][0])
        if self._last is not None and first > self._last.index + 1:
            message = f"{first - self._last.index - 1} entries before entry {first} are missing"
            self._add_at(Kind.ENTRY, position, message, Remedy.FILL_AGAIN)
        else:
            self._check_blank(position)
        self._check_units(headers)
        self._check_records(data, headers, np.array(starts, np.int64), position)
        row = headers[-1]
        if self._first is None:
            self._first = _place(headers[0])
        self._last = _place(row)
        self._end = self._last.end
        self.entries += len(headers)

    def _check_blank(self, position: int) -> None:
        """Check the blank between two files."""
        size = self._data.segment_size
        if self._last is None or self._last.end == position or position % size:
            return
        path, at = self._data.place(self._last.end)
        head = self._data.read(self._last.end, BLANK_SIZE)
        if len(head) < BLANK_SIZE:
            return
        if not is_blank(head):
            message = "no blank between the last entry of the file and the next file"
            self._add(Kind.BLANK, path, at, message, Remedy.FILL_AGAIN)
        elif (room := blank_room(head)) != size - at:
            message = f"blank of {room} bytes, but {size - at} are left"
            self._add(Kind.BLANK, path, at, message, Remedy.NONE)

    def _check_units(self, headers: Records) -> None:
        first, count = int(headers["index"][0]), len(headers)
        done = 0
        while done < count:
            at = (first + done) * INDEX_UNIT_SIZE
            content = self._units.read(at, (count - done) * INDEX_UNIT_SIZE)
            units = decode_units(content[: len(content) - len(content) % INDEX_UNIT_SIZE])
            if not len(units):
                if self._units.bases and at < self._units.first_offset:
                    # Units of entries before the first index file: no start reads them.
                    done = min(count, self._units.first_offset // INDEX_UNIT_SIZE - first)
                    continue
                message = f"units from entry {first + done} on are missing"
                path, position = self._units.place(at)
                self._add(Kind.INDEX, path, position, message, self._index_remedy(headers[done]))
                return
            part = headers[done : done + len(units)]
            same = units["magic"] == MAGIC
            for name in ("position", "size", "index", "term"):
                same &= units[name] == part[name]
            for row in np.flatnonzero(~same).tolist():
                unit = units[row]
                message = (
                    f"entry {first + done + row} is at {int(part['position'][row])} with "
                    f"{int(part['size'][row])} bytes in term {int(part['term'][row])}, but its "
                    f"unit has {int(unit['position'])}, {int(unit['size'])}, {int(unit['term'])}"
                )
                path, position = self._units.place(at + row * INDEX_UNIT_SIZE)
                self._add(Kind.INDEX, path, position, message, self._index_remedy(part[row]))
            done += len(units)

    def _index_remedy(self, header: np.void) -> Remedy:
        # A start rebuilds the index from the first difference on, but not in earlier files.
        is_compared = int(header["position"]) >= self._checked_from
        return Remedy.NEXT_START if is_compared else Remedy.REMOVE_INDEX

    def _check_records(
        self, data: bytes, headers: Records, starts: bulk.Longs, position: int
    ) -> None:
        columns = bulk.read_columns(data, starts + HEADER_SIZE)
        places = columns.starts + position
        sizes = headers["body_size"].astype(np.int64)
        whole = (
            columns.valid
            & (columns.heads["magic"] == MESSAGE_MAGIC)
            & (columns.column("total_size") == sizes)
        )
        stated, crcs = columns.column("physical_offset"), columns.column("body_crc")
        computed = bulk.body_crcs(data, columns)
        wrong = ~whole | (stated != places) | (crcs != computed)
        for row in np.flatnonzero(wrong).tolist():
            index = int(headers["index"][row])
            if not whole[row]:
                reason = "its body is not a record"
            elif stated[row] != places[row]:
                reason = f"its record states offset {stated[row]}, expected {places[row]}"
            else:
                reason = f"the CRC of its message is {computed[row]}, but it states {crcs[row]}"
            remedy = Remedy.FILL_AGAIN
            if self.may_move and index > max(
                self.checkpoint.committed_index, self.checkpoint.synced_index
            ):
                remedy = Remedy.NEXT_START
            self._add_at(Kind.RECORD, int(places[row]), f"entry {index}: {reason}", remedy)

    def _reason(self, data: bytes, position: int, segment_end: int) -> str:
        """Return why there is no entry at `position`."""
        head = data[:HEADER_SIZE]
        if not any(head):
            return "zeros"
        place = decode_header(head) if len(head) == HEADER_SIZE else None
        if place is None:
            return "not the header of an entry"
        if place.position != position:
            return f"the header of an entry of position {place.position}"
        if position + place.size + BLANK_SIZE > segment_end:
            return f"entry {place.index} of {place.size} bytes does not fit its file"
        if self._last is not None and place.term < self._last.term:
            return f"entry {place.index} of term {place.term} after term {self._last.term}"
        if self._last is not None and place.index != self._last.index + 1:
            return f"entry {place.index} after entry {self._last.index}"
        return "not a valid entry"

    def _next_entry(self, position: int, segment_end: int) -> int | None:
        """Return the position of the next entry of this file that states its own position."""
        while position < segment_end:
            data = self._data.read(position, min(_PIECE_SIZE, segment_end - position))
            at = -1 if data == _ZEROS[: len(data)] else data.find(MAGIC_BYTES)
            while at >= 0:
                if self._has_entry(position + at):
                    return position + at
                at = data.find(MAGIC_BYTES, at + 1)
            if position + len(data) >= segment_end or len(data) < len(MAGIC_BYTES):
                return None
            position += len(data) - len(MAGIC_BYTES) + 1
        return None

    def _has_entry(self, position: int) -> bool:
        """Return whether an entry is here that may be part of the log."""
        head = self._data.read(position, HEADER_SIZE)
        place = decode_header(head) if len(head) == HEADER_SIZE else None
        return (
            place is not None
            and place.position == position
            and (self._last is None or place.index > self._last.index)
            and (self._last is None or place.term >= self._last.term)
        )

    # The end

    def _check_end(self) -> None:
        """Report bytes after the last entry."""
        data, size = self._data, self._data.segment_size
        for base in data.bases:
            position = max(base, self._end)
            while position < base + size:
                piece = data.read(position, min(_PIECE_SIZE, base + size - position))
                zeros = len(piece) - len(piece.lstrip(b"\0"))
                if zeros < len(piece):
                    message = f"bytes after the last entry, {self.end_index}"
                    self._add_at(Kind.LOG_END, position + zeros, message, Remedy.NEXT_START)
                    return
                position += len(piece) or size

    def _check_index_end(self) -> None:
        """Report units after that of the last entry."""
        units, size = self._units, self._units.segment_size
        end = (self.end_index + 1) * INDEX_UNIT_SIZE
        for base in units.bases:
            position = max(base, end)
            while position < base + size:
                piece = units.read(position, min(_PIECE_SIZE, base + size - position))
                zeros = len(piece) - len(piece.lstrip(b"\0"))
                if zeros < len(piece):
                    if not self.may_move:
                        path, at = units.place(position + zeros - zeros % INDEX_UNIT_SIZE)
                        message = f"units after that of the last entry, {self.end_index}"
                        self._add(Kind.INDEX, path, at, message, Remedy.NEXT_START)
                    return
                position += len(piece) or size

    def _check_promises(self) -> None:
        """Compare the log with what the text files say about it."""
        path = self._node.directory / CHECKPOINT_FILE
        promised = max(self.checkpoint.committed_index, self.checkpoint.synced_index)
        if promised > self.end_index:
            message = (
                f"entries up to {promised} were committed or on disk, but the log ends at "
                f"{self.end_index}: the node will not vote until the group has refilled it"
            )
            self._add(Kind.CHECKPOINT, path, 0, message, Remedy.FILL_AGAIN)
        path = self._node.directory / TERM_FILE
        if self.vote is None:
            if self._last is not None and not path.exists():
                message = f"is missing, but the log has entries of term {self.end_term}"
                self._add(Kind.TERM, path, 0, message, Remedy.FILL_AGAIN)
        elif self.vote.term < self.end_term:
            message = f"has term {self.vote.term}, but the log has entries of term {self.end_term}"
            self._add(Kind.TERM, path, 0, message, Remedy.FILL_AGAIN)

    # Findings

    def _add_at(self, kind: Kind, offset: int, message: str, remedy: Remedy) -> None:
        path, position = self._data.place(offset)
        self._add(kind, path, position, message, remedy)

    def _add(self, kind: Kind, path: Path, position: int, message: str, remedy: Remedy) -> None:
        finding = Finding(kind, path, position, message, remedy)
        key = kind, finding.is_damage
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count <= _MAX_NAMED:
            self._found.append(finding)
        elif count == _MAX_NAMED + 1:
            more = f"more findings of this kind, not listed: the next is {message}"
            self._found.append(Finding(kind, path, position, more, remedy))


def _starts(data: bytes) -> list[int]:
    """Return where whole entries of `data` start, one after the other."""
    starts: list[int] = []
    at, last, end = 0, len(data) - HEADER_SIZE, len(data)
    unpack = _START.unpack_from
    while at < last:
        magic, size = unpack(data, at)
        if magic != MAGIC or size <= HEADER_SIZE or at + size > end:
            break
        starts.append(at)
        at += size
    return starts


def _place(header: np.void) -> Place:
    return Place(
        int(header["index"]), int(header["term"]), int(header["position"]), int(header["size"])
    )
