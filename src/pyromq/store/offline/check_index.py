"""Check the key index: its internal links, and its entries against the keys in the log.

`load` checks the files on their own: sizes, headers, slots and links. Then `compare` gets the
records of the log piece by piece. Entries are in the order of the log, so each file is read once,
front to back, alongside the log. Used by `check`, on one thread.

Not violations:
1. Entries whose messages have expired from the log.
2. Duplicate keys of a record, which Java leaves behind after a crash.
3. Files whose numbers of slots and entries are unknown: they are skipped.
4. After an unclean shutdown: messages after the last indexed one, and entries that point past the
   end of the log. The next start rebuilds that end of the index.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyromq.protocol.message.bulk import Longs
from pyromq.protocol.message.unit_arrays import INDEX_ENTRY_DTYPE
from pyromq.protocol.message.units import (
    INDEX_ENTRY_SIZE,
    INDEX_HEADER,
    INDEX_HEADER_SIZE,
    INDEX_SLOT_SIZE,
)
from pyromq.store.index.index import keys_of_records
from pyromq.store.offline.check_log import CheckedPiece
from pyromq.store.offline.violation import Violation, ViolationKind

_SLOT: Final = np.dtype(">u4")
#: RocketMQ's default is four entries per slot; the number of slots of most files follows from it.
_ENTRIES_PER_SLOT: Final = 4
#: Entries of a file that are examined at once.
_WINDOW: Final = 4096
#: Violations that are reported individually per file.
_MAX_NAMED: Final = 20


class _File:
    """An index file, mapped read-only."""

    def __init__(self, path: Path, slots: int) -> None:
        self.path = path
        self.slots = slots
        self.entries_at = INDEX_HEADER_SIZE + slots * INDEX_SLOT_SIZE
        self.named = 0
        data = np.memmap(path, np.uint8, "r")
        header: tuple[int, ...] = INDEX_HEADER.unpack_from(data[:INDEX_HEADER_SIZE].tobytes())
        self.header = header
        room = (data.size - self.entries_at) // INDEX_ENTRY_SIZE
        self.room = room
        #: Entry 0 is never written.
        self.count = min(max(header[5], 1), room)
        self.table: NDArray[np.uint32] = np.frombuffer(data, _SLOT, slots, INDEX_HEADER_SIZE)
        self.entries: NDArray[np.void] = np.frombuffer(
            data, INDEX_ENTRY_DTYPE, self.count, self.entries_at
        )
        #: The next entry to compare with the log.
        self.next = 1

    def position(self, number: int) -> int:
        """Return the position of an entry in the file."""
        return self.entries_at + number * INDEX_ENTRY_SIZE


class IndexCheck:
    """Checks all index files of a store."""

    def __init__(
        self, directory: Path, slots: int, entries: int, *, is_kept: bool, may_move: bool
    ) -> None:
        """Pass 0 for unknown `slots` and `entries`; `is_kept` says if the index is enabled."""
        self._directory = directory
        self._slots = slots
        self._limit = entries
        self._is_kept = is_kept
        self._may_move = may_move
        self._files: list[_File] = []
        #: The physical offset of the first entry. Keys of earlier records were in deleted files.
        self._first = 0
        self._last = 0
        #: The offset of the first record in the log, -1 until it is known.
        self._log_begin = -1

    def load(self) -> Iterator[Violation]:
        """Check the files on their own."""
        paths = []
        for path in sorted(self._directory.iterdir()) if self._directory.is_dir() else ():
            if path.name.isascii() and path.name.isdigit() and path.is_file():
                paths.append(path)
            else:
                yield Violation(ViolationKind.FILE, path, 0, "is not an index file")
        slots, limit = (self._slots, self._limit) if self._slots else guess_index_settings(paths)
        if not slots:
            return
        whole = INDEX_HEADER_SIZE + slots * INDEX_SLOT_SIZE + limit * INDEX_ENTRY_SIZE
        for path in paths:
            size = path.stat().st_size
            if size == 0 and path == paths[-1]:
                continue  # being created, or its creation was interrupted
            if size != whole:
                yield Violation(ViolationKind.FILE, path, 0, f"has {size} bytes, expected {whole}")
                continue
            file = _File(path, slots)
            self._files.append(file)
            yield from self._check_file(file)
        used = [file for file in self._files if file.count > 1]
        if used:
            self._first = int(used[0].entries["physical_offset"][1])
            self._last = max(int(file.entries["physical_offset"][-1]) for file in used)

    def compare(self, piece: CheckedPiece) -> Iterator[Violation]:
        """Compare the keys of these records with the index."""
        if not self._files:
            return
        rows, hashes = keys_of_records(piece.data, piece.columns)
        places = piece.columns.starts[rows] + piece.base
        low, high = piece.base, piece.base + len(piece.data)
        if self._log_begin < 0:
            self._log_begin = low
        wanted = _pairs(places - low, hashes)
        found = [np.zeros(0, np.int64)]
        for file in self._files:
            numbers = _take(file, high)
            if not numbers.size:
                continue
            entries = file.entries[numbers]
            offsets = entries["physical_offset"].astype(np.int64)
            # Other offsets are damage, and a very large one could give the pair of another entry.
            inside = (offsets >= low) & (offsets < high)
            pairs = _pairs(offsets - low, entries["key_hash"].astype(np.int64))
            found.append(pairs[inside])
            # Entries before the first record of the log have expired.
            wrong = ~(inside & np.isin(pairs, wanted)) & (offsets >= self._log_begin)
            for row in np.flatnonzero(wrong).tolist():
                yield from self._wrong_entry(file, int(numbers[row]), int(offsets[row]))
        if self._is_kept:
            missing = ~np.isin(wanted, np.concatenate(found)) & (places > self._first)
            if self._may_move:
                missing &= places < self._last
            lost = np.unique(places[missing])
            if lost.size:
                yield Violation(
                    ViolationKind.MISSING_KEY,
                    self._files[-1].path,
                    0,
                    f"{lost.size} messages have keys that the index lacks, the first at physical "
                    f"offset {lost[0]}",
                )

    def finish(self, log_end: int) -> Iterator[Violation]:
        """Report entries that point past the last record."""
        if self._may_move:
            return
        for file in self._files:
            numbers = _take(file, None)
            offsets = file.entries["physical_offset"][numbers].astype(np.int64)
            for row in np.flatnonzero(offsets >= log_end).tolist():
                yield from self._wrong_entry(file, int(numbers[row]), int(offsets[row]))

    def _wrong_entry(self, file: _File, number: int, offset: int) -> Iterator[Violation]:
        file.named += 1
        if file.named <= _MAX_NAMED:
            yield Violation(
                ViolationKind.INDEX_ENTRY,
                file.path,
                file.position(number),
                f"entry {number} points at physical offset {offset}, where no record has its key",
            )
        elif file.named == _MAX_NAMED + 1:
            message = "more entries are wrong, not listed"
            yield Violation(ViolationKind.INDEX_ENTRY, file.path, file.position(number), message)

    def _check_file(self, file: _File) -> Iterator[Violation]:
        begin_time, end_time, begin, end, used_slots, count = file.header
        problems = (
            (not 0 <= begin_time <= end_time, f"states times from {begin_time} to {end_time}"),
            (not 0 <= begin <= end, f"states offsets from {begin} to {end}"),
            (not 0 <= used_slots <= file.slots, f"states {used_slots} used slots"),
            (not 0 <= count <= file.room, f"states {count} used entries"),
        )
        for is_wrong, message in problems:
            if is_wrong:
                yield Violation(ViolationKind.INDEX_HEADER, file.path, 0, message)
        numbers = np.arange(file.count, dtype=np.int64)
        slots = file.entries["key_hash"].astype(np.int64) % file.slots
        previous = file.entries["previous"].astype(np.int64)
        linked = previous > 0
        broken = linked & (previous >= numbers)
        checked = linked & ~broken
        broken[checked] = slots[previous[checked]] != slots[checked]
        broken[:1] = False
        for number in np.flatnonzero(broken)[:_MAX_NAMED].tolist():
            yield Violation(
                ViolationKind.INDEX_ENTRY,
                file.path,
                file.position(number),
                f"entry {number} links to entry {previous[number]}, which is not an earlier one "
                "of its slot",
            )
        if self._may_move and file.count < file.room:
            return  # slots are written last
        newest = np.zeros(file.slots, np.int64)
        newest[slots[1:]] = numbers[1:]
        wrong = np.flatnonzero(newest != file.table)
        for slot in wrong[:_MAX_NAMED].tolist():
            yield Violation(
                ViolationKind.INDEX_ENTRY,
                file.path,
                INDEX_HEADER_SIZE + slot * INDEX_SLOT_SIZE,
                f"slot {slot} has entry {file.table[slot]}, but its newest is {newest[slot]}",
            )


def _take(file: _File, below: int | None) -> Longs:
    """Return the numbers of the next entries that point below an offset (None: all)."""
    first = file.next
    while below is not None and file.next < file.count:
        window = file.entries["physical_offset"][file.next : file.next + _WINDOW].astype(np.int64)
        beyond = np.concatenate((window >= below, (True, True)))
        # One or two entries that point too far are damage; do not let them block the others.
        stays = beyond[:-2] & beyond[1:-1] & beyond[2:]
        stop = int(stays.argmax()) if stays.any() else window.size
        file.next += stop
        if stop < _WINDOW:
            break
    if below is None:
        file.next = file.count
    return np.arange(first, file.next, dtype=np.int64)


def _pairs(places: Longs, hashes: NDArray[np.int64] | NDArray[np.int32]) -> Longs:
    """Combine place and key hash into one number."""
    pairs: Longs = places << 32 | hashes.astype(np.int64) & 0xFFFFFFFF
    return pairs


def guess_index_settings(paths: list[Path]) -> tuple[int, int]:
    """Return the numbers of slots and entries of these files; (0, 0) if unknown.

    All files but the last are full, so the count in their header is the number of entries.
    """
    for path in paths[:-1]:
        with path.open("rb") as file:
            header = file.read(INDEX_HEADER_SIZE)
        if len(header) == INDEX_HEADER_SIZE:
            count: int = INDEX_HEADER.unpack(header)[5]
            slots, rest = divmod(
                path.stat().st_size - INDEX_HEADER_SIZE - count * INDEX_ENTRY_SIZE, INDEX_SLOT_SIZE
            )
            if not rest and slots > 0 and count > 0:
                return slots, count
    for path in paths:
        slots, rest = divmod(
            path.stat().st_size - INDEX_HEADER_SIZE,
            INDEX_SLOT_SIZE + _ENTRIES_PER_SLOT * INDEX_ENTRY_SIZE,
        )
        if not rest and slots > 0:
            return slots, slots * _ENTRIES_PER_SLOT
    return 0, 0
