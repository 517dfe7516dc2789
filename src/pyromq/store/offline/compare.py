"""Compare a store's consume queues and key index with ones rebuilt from its log.

`log_parts` has rebuilt the files in another directory. This module compares every entry and reports
each difference with file, entry, expected and found value. `check` verifies that a store obeys the
rules; this module verifies that its files are those that the log produces.

Not differences:
1. Entries of messages that have expired from the log, and whole files of them.
2. Queues of deleted topics, which the store's table of topics lacks.
3. Index files with keys of expired messages cannot be rebuilt. Their other entries are compared by
   key and place, in order, whatever files they are in.
4. After an unclean shutdown, or while the store is in use: entries after the last message that the
   queues had when the comparison started, and after the end of the log.
5. Tags codes of delayed messages (their delivery times) if the delay levels are unknown, and
   addresses of an extension, which cannot be rebuilt from a log.

Called by Spark tasks, each on its own thread. Memory: one file of a queue, and the slots and a
slice of the entries of an index file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from pyromq.protocol.message.bulk import Longs
from pyromq.protocol.message.unit_arrays import CONSUME_QUEUE_DTYPE, INDEX_ENTRY_DTYPE
from pyromq.protocol.message.units import (
    CONSUME_QUEUE_ENTRY_SIZE,
    INDEX_ENTRY_SIZE,
    INDEX_HEADER,
    INDEX_HEADER_SIZE,
    INDEX_SLOT_SIZE,
    MAX_EXTENSION_ADDRESS,
    PRE_BLANK_SIZE,
)
from pyromq.protocol.names import SCHEDULE_TOPIC
from pyromq.store.offline.check_files import SegmentFiles
from pyromq.store.recovery.queue_damage import Deletion

_SLOT: Final = np.dtype(">i4")
_HEADER_FIELDS: Final = (
    "beginTimestamp",
    "endTimestamp",
    "beginPhysicalOffset",
    "endPhysicalOffset",
    "usedSlotCount",
    "entryCount",
)
#: Index entries that are compared at once.
_SLICE_SIZE: Final = 1 << 20
_NOTHING: Final = "nothing"


class Difference(NamedTuple):
    """One difference between a file and the rebuilt one."""

    file: str
    #: A queue offset, or the number of an index entry or slot; -1 for the whole file.
    entry: int
    what: str
    expected: str
    found: str

    def __str__(self) -> str:
        place = self.file if self.entry < 0 else f"{self.file}, entry {self.entry}"
        return f"{place}: {self.what}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True, slots=True)
class Span:
    """The range of the log that is compared."""

    begin: int
    #: The offset after the last record.
    end: int
    #: All queues must have the messages below this; `end` after a clean shutdown.
    known_end: int
    #: Whether the shutdown was unclean, or the store is in use.
    may_move: bool


def compare_queues(
    made: Path,
    existing: Path,
    span: Span,
    *,
    group: int = 0,
    groups: int = 1,
    topics: frozenset[str] | None = None,
    knows_delays: bool = True,
    deletions: Mapping[str, Deletion] | None = None,
) -> Iterator[Difference]:
    """Compare the queues of one group out of `groups`; `topics` are the existing ones.

    `deletions` are topics that were deleted and perhaps recreated; entries of their earlier
    messages may be missing.
    """
    names = sorted({*_queue_names(made), *_queue_names(existing)})
    for name in names:
        if crc32(name.encode()) % groups != group:
            continue
        topic = name.split("/")[0]
        if topics is not None and topic not in topics and not (existing / name).is_dir():
            continue  # the topic was deleted; the log still has some of its messages
        deletion = deletions.get(topic) if deletions else None
        first = deletion.log_end if deletion is not None else 0
        compared = _Queue(_files(made / name), _files(existing / name), span, first)
        compared.with_tags = topic != SCHEDULE_TOPIC or knows_delays
        yield from compared.differences()


def _queue_names(directory: Path) -> Iterator[str]:
    return (str(path.relative_to(directory)) for path in directory.glob("*/*") if path.is_dir())


def _files(directory: Path) -> SegmentFiles:
    return SegmentFiles(directory, 0)


class _Queue:
    """One queue: the rebuilt files and the existing ones."""

    def __init__(
        self, made: SegmentFiles, existing: SegmentFiles, span: Span, first_wanted: int
    ) -> None:
        self._first_wanted = first_wanted
        self._made = made
        self._existing = existing
        self._span = span
        self.with_tags = True

    def differences(self) -> Iterator[Difference]:
        for _ in self._made.load():
            pass
        for violation in self._existing.load():
            yield Difference(str(violation.file), -1, violation.message, _NOTHING, "this file")
        sizes = {self._made.segment_size, self._existing.segment_size} - {0}
        if len(sizes) > 1:
            yield Difference(
                str(self._existing.directory),
                -1,
                "size of the files",
                str(self._made.segment_size),
                str(self._existing.segment_size),
            )
            return
        for base in sorted({*self._made.bases, *self._existing.bases}):
            yield from self._compare_file(base, max(sizes))

    def _compare_file(self, base: int, size: int) -> Iterator[Difference]:
        expected = _read_entries(self._made, base, size)
        found = _read_entries(self._existing, base, size)
        wanted = self._wanted(expected)
        if base not in self._existing.bases:
            count = int(np.count_nonzero(wanted))
            if count:
                path = str(self._existing.directory / f"{base:020d}")
                yield Difference(path, -1, "file", f"{count} entries", "no file")
            return
        same = expected["physical_offset"] == found["physical_offset"]
        same &= expected["size"] == found["size"]
        if self.with_tags:
            same &= (expected["tags_code"] == found["tags_code"]) | (
                found["tags_code"] <= MAX_EXTENSION_ADDRESS
            )
        there = self._there(found)
        path = str(self._existing.path(base))
        first = base // CONSUME_QUEUE_ENTRY_SIZE
        for row in np.flatnonzero(~same & (wanted | there)).tolist():
            yield Difference(
                path, first + row, "entry", _describe(expected[row]), _describe(found[row])
            )

    def _wanted(self, entries: NDArray[np.void]) -> NDArray[np.bool_]:
        """Return which entries must exist."""
        ends = entries["physical_offset"].astype(np.int64) + entries["size"]
        wanted: NDArray[np.bool_] = (entries["size"] > 0) & (entries["size"] != PRE_BLANK_SIZE)
        wanted &= ends <= self._span.known_end
        wanted &= entries["physical_offset"].astype(np.int64) >= self._first_wanted
        return wanted

    def _there(self, entries: NDArray[np.void]) -> NDArray[np.bool_]:
        """Return which entries exist, and must be expected ones."""
        places = entries["physical_offset"].astype(np.int64)
        content = entries.view(np.uint8).reshape(entries.size, -1)
        there: NDArray[np.bool_] = places >= self._span.begin
        there &= entries["size"].astype(np.int64) != PRE_BLANK_SIZE
        there &= content.any(axis=1)
        if self._span.may_move:
            there &= places < self._span.known_end
        return there


def _read_entries(files: SegmentFiles, base: int, size: int) -> NDArray[np.void]:
    """Read all entries of a file; zeros if it does not exist."""
    data = files.read(base, size) if base in files.bases else b""
    return np.frombuffer(
        data.ljust(size, b"\0"), CONSUME_QUEUE_DTYPE, size // CONSUME_QUEUE_ENTRY_SIZE
    )


def _describe(entry: np.void) -> str:
    place, size, tags_code = entry.tolist()
    if not size and not place and not tags_code:
        return _NOTHING
    if size == PRE_BLANK_SIZE:
        return "a pre-blank entry"
    return f"{size} bytes at {place}, tags {tags_code}"


def compare_index(
    made: Path, existing: Path, slots: int, entries: int, span: Span
) -> Iterator[Difference]:
    """Compare the files of the key index, given their numbers of slots and entries."""
    whole = INDEX_HEADER_SIZE + slots * INDEX_SLOT_SIZE + entries * INDEX_ENTRY_SIZE
    expected = [_IndexFile(path, slots) for path in sorted(made.iterdir())]
    found: list[_IndexFile] = []
    for path in sorted(existing.iterdir()) if existing.is_dir() else ():
        if path.stat().st_size == whole:
            found.append(_IndexFile(path, slots))
        elif path.stat().st_size or not span.may_move:
            size = path.stat().st_size
            yield Difference(str(path), -1, "size of the file", str(whole), str(size))
    if _begin_alike(expected, found):
        yield from _compare_files(existing, expected, found, span)
    else:
        yield from _compare_keys(existing, expected, found, span)


class _IndexFile:
    """An index file, mapped read-only."""

    def __init__(self, path: Path, slots: int) -> None:
        self.path = path
        data = np.memmap(path, np.uint8, "r")
        self.header: tuple[int, ...] = INDEX_HEADER.unpack_from(data[:INDEX_HEADER_SIZE].tobytes())
        self.table: NDArray[np.int32] = np.frombuffer(data, _SLOT, slots, INDEX_HEADER_SIZE)
        entries_at = INDEX_HEADER_SIZE + slots * INDEX_SLOT_SIZE
        room = (data.size - entries_at) // INDEX_ENTRY_SIZE
        self.entries: NDArray[np.void] = np.frombuffer(data, INDEX_ENTRY_DTYPE, room, entries_at)
        #: Entry 0 is never written.
        self.count = min(max(self.header[5], 1), room)

    def places(self) -> Longs:
        """Return the physical offsets of all entries."""
        return self.entries["physical_offset"][1 : self.count].astype(np.int64)


def _begin_alike(expected: list[_IndexFile], found: list[_IndexFile]) -> bool:
    """Return whether both start with the same message, so that all files must be equal."""
    if not expected or not found:
        return True
    begins = [file.entries["physical_offset"][1] for file in (expected[0], found[0])]
    return bool(begins[0] == begins[1])


def _compare_files(
    directory: Path, expected: list[_IndexFile], found: list[_IndexFile], span: Span
) -> Iterator[Difference]:
    for number, should in enumerate(expected):
        if number >= len(found):
            places = should.places()
            count = int(np.count_nonzero(places < span.known_end))
            if count or not span.may_move:
                text = f"file {number + 1} with {places.size} entries"
                yield Difference(str(directory), -1, "file", text, "no file")
            continue
        yield from _compare_file(should, found[number], span)
    for extra in found[len(expected) :]:
        if not span.may_move:
            yield Difference(str(extra.path), -1, "file", "no file", f"{extra.count - 1} entries")


def _compare_file(should: _IndexFile, found: _IndexFile, span: Span) -> Iterator[Difference]:
    path = str(found.path)
    # While a file is written, its slots and header do not match its entries.
    is_open = span.may_move and min(should.count, found.count) < should.entries.size
    count = max(should.count, found.count)
    for first in range(1, count, _SLICE_SIZE):
        rows_compared = slice(first, min(first + _SLICE_SIZE, count))
        one, other = should.entries[rows_compared], found.entries[rows_compared]
        wrong = one.view(np.uint8).reshape(one.size, -1) != other.view(np.uint8).reshape(
            one.size, -1
        )
        rows = np.flatnonzero(wrong.any(axis=1))
        if is_open:
            rows = rows[one["physical_offset"][rows].astype(np.int64) < span.known_end]
            rows = rows[rows + first < min(should.count, found.count)]
        for row in rows.tolist():
            yield Difference(
                path, first + row, "index entry", _describe_key(one[row]), _describe_key(other[row])
            )
    if is_open:
        return
    for slot in np.flatnonzero(should.table != found.table).tolist():
        yield Difference(
            path, slot, "slot", f"entry {should.table[slot]}", f"entry {found.table[slot]}"
        )
    for name, value, actual in zip(_HEADER_FIELDS, should.header, found.header, strict=True):
        if value != actual:
            yield Difference(path, -1, f"{name} in the header", str(value), str(actual))


def _compare_keys(
    directory: Path, expected: list[_IndexFile], found: list[_IndexFile], span: Span
) -> Iterator[Difference]:
    """Compare place and key of entries in order, whatever files they are in."""
    first = min((int(file.places()[0]) for file in found if file.places().size), default=0)
    ours, theirs = _Keys(expected, first), _Keys(found, span.begin)
    lacking = sum(int(np.count_nonzero(file.places() < first)) for file in expected)
    if lacking:
        text = f"{lacking} keys of messages before {first}"
        yield Difference(str(directory), -1, "index", text, _NOTHING)
    while True:
        should, actual = ours.take(), theirs.take()
        size = min(should.size, actual.size)
        if not size:
            break
        one, other = should[:size], actual[:size]
        same = one["physical_offset"] == other["physical_offset"]
        same &= one["key_hash"] == other["key_hash"]
        for row in np.flatnonzero(~same).tolist():
            path, number = theirs.place(row)
            yield Difference(
                path, number, "index entry", _describe_key(one[row]), _describe_key(other[row])
            )
        ours.skip(size)
        theirs.skip(size)
    for keys, is_ours in ((ours, True), (theirs, False)):
        while (rest := keys.take()).size:
            for row in np.flatnonzero(_counts(rest, span)).tolist():
                path, number = keys.place(row)
                text = _describe_key(rest[row])
                pair = (text, _NOTHING) if is_ours else (_NOTHING, text)
                yield Difference(
                    str(directory) if is_ours else path, -1 if is_ours else number, "key", *pair
                )
            keys.skip(rest.size)


def _counts(entries: NDArray[np.void], span: Span) -> NDArray[np.bool_]:
    places = entries["physical_offset"].astype(np.int64)
    counts: NDArray[np.bool_] = places < (span.known_end if span.may_move else 1 << 62)
    return counts


class _Keys:
    """The entries of several files as one sequence, from physical offset `first` on."""

    def __init__(self, files: list[_IndexFile], first: int) -> None:
        self._files = files
        self._number = 0
        self._position = 1
        for number, file in enumerate(files):
            alive = np.flatnonzero(file.places() >= first)
            if alive.size:
                self._number, self._position = number, int(alive[0]) + 1
                return
        self._number = len(files)

    def take(self) -> NDArray[np.void]:
        """Return the next entries of one file; none at the end."""
        while self._number < len(self._files):
            file = self._files[self._number]
            if self._position < file.count:
                return file.entries[self._position : min(self._position + _SLICE_SIZE, file.count)]
            self._number += 1
            self._position = 1
        return np.empty(0, INDEX_ENTRY_DTYPE)

    def skip(self, count: int) -> None:
        """Skip the first `count` entries that `take` returned."""
        self._position += count

    def place(self, row: int) -> tuple[str, int]:
        """Return the file and the number of an entry that `take` returned."""
        return str(self._files[self._number].path), self._position + row


def _describe_key(entry: np.void) -> str:
    key_hash, place, seconds, previous = entry.tolist()
    if not any((key_hash, place, seconds, previous)):
        return _NOTHING
    return f"key {key_hash} at {place}, second {seconds}, after entry {previous}"
