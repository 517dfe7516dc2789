"""One file of the key index: a hash table from `topic#key` to places in the log.

The layout is `units`': a header, hash slots, entries chained from the newest of a slot
back to its oldest. The bytes are those that Java's IndexFile writes for the same keys
in the same order.

Rules
1. Entries are numbered from 1; entry 0 is never written, and a slot or a link of 0, or
   one that points past the entries there are, means none. A file for N entries thus
   holds N - 1.
2. A link points to a smaller number than the entry's own, so every chain ends.
3. `begin_timestamp` is the store time of the first entry. Until there is one it is what
   the file before this one ended with, and the first entry's seconds count from that.
4. Entries are written first, then the header, then the slots: who reads meanwhile sees
   an old chain or a new one, both whole.
5. The header and slots are written through the mapping, and their disk blocks are
   reserved before; entries are written to the descriptor. A full disk is an OSError
   before anything changed, never a SIGBUS. The rest of the file stays sparse.

One thread appends; any thread may `find` at the same time. A mapping lives until the
last reader has let go of the file, so `close` and `delete` need not wait for readers.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyromq.base.descriptors import close_file, map_file, open_file, opened
from pyromq.protocol.message.units import (
    INDEX_ENTRY,
    INDEX_ENTRY_DTYPE,
    INDEX_ENTRY_SIZE,
    INDEX_HEADER,
    INDEX_HEADER_SIZE,
    INDEX_SLOT_SIZE,
)
from pyromq.store.results import StoreError

_SLOT: Final = np.dtype(">u4")
_ENTRY: Final = np.dtype(INDEX_ENTRY_DTYPE)
assert _SLOT.itemsize == INDEX_SLOT_SIZE
assert _ENTRY.itemsize == INDEX_ENTRY_SIZE
_MAX_SECONDS: Final = 0x7FFFFFFF
_LONG_MASK: Final = 0xFFFFFFFFFFFFFFFF
_LONG_SIGN: Final = 0x8000000000000000
_ROW_MASK: Final = 0xFFFFFFFF


class IndexFileError(StoreError):
    """A file in the index directory that cannot be one of this index."""


class IndexEnd(NamedTuple):
    """What the next file must know of a full one: where its last message is, and its time."""

    end_offset: int
    end_timestamp: int


class IndexFile:
    """A mapped index file; the header's values are attributes."""

    def __init__(self, path: Path, slot_count: int, entry_limit: int) -> None:
        self.path = path
        self._slot_count = slot_count
        self._entry_limit = entry_limit
        self._entries_at = INDEX_HEADER_SIZE + slot_count * INDEX_SLOT_SIZE
        self._reserved = False
        size = self._entries_at + entry_limit * INDEX_ENTRY_SIZE
        self._descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            found = os.fstat(self._descriptor).st_size
            if found == 0:
                os.ftruncate(self._descriptor, size)
            elif found != size:
                raise IndexFileError(
                    f"index file {path} has {found} bytes, but maxHashSlotNum={slot_count} and "
                    f"maxIndexNum={entry_limit} make {size}: restore the settings it was "
                    f"written with, or remove it (its messages are then not found by key)"
                )
            self._map = map_file(self._descriptor, size, mmap.ACCESS_WRITE)
        except BaseException:
            self.close()
            raise
        header: tuple[int, ...] = INDEX_HEADER.unpack_from(self._map)
        self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset = header[:4]
        self._used_slots = min(max(header[4], 0), slot_count)
        #: The number of the next entry.
        self.entry_count = max(header[5], 1)

    @property
    def is_sound(self) -> bool:
        """Whether the header can be that of an index file."""
        header: tuple[int, ...] = INDEX_HEADER.unpack_from(self._map)
        begin_time, end_time, begin, end, slots, count = header
        return (
            begin_time >= 0
            and end_time >= 0
            and 0 <= begin <= end
            and 0 <= slots <= self._slot_count
            and 0 <= count <= self._entry_limit
        )

    @property
    def is_full(self) -> bool:
        """Whether the next key must go to a new file."""
        return self.entry_count >= self._entry_limit

    @property
    def room(self) -> int:
        """How many entries still fit."""
        return max(self._entry_limit - self.entry_count, 0)

    def reserve(self) -> None:
        """Make sure that header and slots have disk blocks; raises OSError on a full disk."""
        if not self._reserved:
            os.posix_fallocate(self._descriptor, 0, self._entries_at)
            self._reserved = True

    def continue_from(self, before: IndexFile | IndexEnd) -> None:
        """Begin where another file ended, as long as this one has no entry of its own."""
        self.reserve()
        if before.end_offset > 0:
            self.begin_offset = self.end_offset = before.end_offset
        if before.end_timestamp > 0:
            self.begin_timestamp = self.end_timestamp = before.end_timestamp
        # The entry count is written with the first entry, as Java does.
        self._write_header(entry_count=0)

    def append(
        self,
        hashes: NDArray[np.int32],
        offsets: NDArray[np.int64],
        timestamps: NDArray[np.int64],
    ) -> None:
        """Add an entry for each row; there must be room for all of them."""
        self.reserve()
        first = self.entry_count
        # One sort by slot, then row: entries that share a slot become neighbours.
        slots_and_rows = (hashes.astype(np.int64) % self._slot_count) << 32
        slots_and_rows |= np.arange(hashes.size)
        slots_and_rows.sort()
        slots = slots_and_rows >> 32
        rows = slots_and_rows & _ROW_MASK
        numbers = rows + first
        # Unsigned, so that a negative number in a damaged slot points past the entries too.
        table: NDArray[np.uint32] = np.ndarray(
            (self._slot_count,), _SLOT, self._map, INDEX_HEADER_SIZE
        )
        previous = table[slots].astype(np.int64)
        previous *= previous <= numbers
        np.copyto(previous[1:], numbers[:-1], where=slots[1:] == slots[:-1])

        entries = np.empty(hashes.size, _ENTRY)
        entries["key_hash"] = hashes
        entries["physical_offset"] = offsets
        entries["seconds"] = self._seconds(timestamps)
        entries["previous"][rows] = previous
        self._write_entries(entries.tobytes())
        self._publish(
            int(offsets[0]),
            int(timestamps[0]),
            int(offsets[-1]),
            int(timestamps[-1]),
            hashes.size,
            hashes.size - int(np.count_nonzero(previous)),
        )
        # Where a slot stands several times, the last and newest number is the one that stays.
        table[slots] = numbers

    def append_few(self, keys: list[tuple[int, int, int]]) -> None:
        """`append` for a handful of (hash, offset, timestamp), without numpy's fixed costs."""
        self.reserve()
        number = self.entry_count
        begin = self.begin_timestamp
        newest: dict[int, int] = {}
        entries = []
        new_slots = 0
        for key_hash, offset, timestamp in keys:
            slot = key_hash % self._slot_count
            previous = newest.get(slot) or self._slot(slot)
            if not 0 < previous <= number:
                previous = 0
                new_slots += 1
            seconds = _seconds_between(begin, timestamp)
            entries.append(INDEX_ENTRY.pack(key_hash, offset, seconds, previous))
            newest[slot] = number
            if number == 1:
                begin = timestamp
            number += 1
        self._write_entries(b"".join(entries))
        _, first_offset, first_timestamp = keys[0]
        _, last_offset, last_timestamp = keys[-1]
        self._publish(
            first_offset, first_timestamp, last_offset, last_timestamp, len(keys), new_slots
        )
        for slot, number in newest.items():
            position = INDEX_HEADER_SIZE + slot * INDEX_SLOT_SIZE
            self._map[position : position + INDEX_SLOT_SIZE] = number.to_bytes(4, "big")

    def covers(self, begin: int, end: int) -> bool:
        """Whether a span of store times touches this file's."""
        first, last = self.begin_timestamp, self.end_timestamp
        return (begin < first and end > last) or (first <= begin <= last) or (first <= end <= last)

    def find(self, key_hash: int, begin: int, end: int) -> Iterable[int]:
        """Physical offsets of a key's entries stored between two times, newest first.

        Times are those of the entries, whole seconds behind the file's first.
        """
        mapping = self._map
        number = self._slot(key_hash % self._slot_count)
        count = min(self.entry_count, self._entry_limit - 1)
        if self.entry_count <= 1:
            return
        while 0 < number <= count:
            entry_hash, offset, seconds, previous = INDEX_ENTRY.unpack_from(
                mapping, self._entries_at + number * INDEX_ENTRY_SIZE
            )
            if seconds < 0:
                return
            timestamp = self.begin_timestamp + seconds * 1000
            if entry_hash == key_hash and begin <= timestamp <= end:
                yield offset
            if timestamp < begin or previous >= number:
                return
            number = previous

    def sync(self) -> None:
        """Wait until all that was written is on the disk; nothing to do for a deleted file."""
        # A descriptor of its own, so that `close` need not wait for a sync.
        with (
            contextlib.suppress(FileNotFoundError),
            opened(self.path, os.O_RDWR) as descriptor,
        ):
            os.fdatasync(descriptor)

    def close(self) -> None:
        """End appending. The mapping goes with the last reference to this object."""
        if self._descriptor >= 0:
            close_file(self._descriptor)
            self._descriptor = -1

    def delete(self) -> None:
        """Close and remove the file."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _slot(self, slot: int) -> int:
        """The number in a slot, read in one piece although a writer may be at it."""
        position = INDEX_HEADER_SIZE + slot * INDEX_SLOT_SIZE
        return int.from_bytes(self._map[position : position + INDEX_SLOT_SIZE], "big", signed=True)

    def _seconds(self, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
        """How long after the first entry the others were stored, by rule 3."""
        begin = self.begin_timestamp
        if self.entry_count > 1:
            return _seconds_behind(begin, timestamps)
        first = int(timestamps[0])
        seconds = _seconds_behind(first, timestamps)
        seconds[0] = _seconds_between(begin, first)
        return seconds

    def _write_entries(self, entries: bytes) -> None:
        position = self._entries_at + self.entry_count * INDEX_ENTRY_SIZE
        written = os.pwrite(self._descriptor, entries, position)
        while written < len(entries):
            written += os.pwrite(self._descriptor, entries[written:], position + written)

    def _publish(
        self,
        first_offset: int,
        first_timestamp: int,
        last_offset: int,
        last_timestamp: int,
        added: int,
        new_slots: int,
    ) -> None:
        if self.entry_count <= 1:
            self.begin_offset = first_offset
            self.begin_timestamp = first_timestamp
        self.end_offset = last_offset
        self.end_timestamp = last_timestamp
        self._used_slots += new_slots
        self.entry_count += added
        self._write_header(self.entry_count)

    def _write_header(self, entry_count: int) -> None:
        INDEX_HEADER.pack_into(
            self._map,
            0,
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self._used_slots,
            entry_count,
        )


def _seconds_behind(begin: int, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
    if begin <= 0:
        return np.zeros(timestamps.size, np.int64)
    seconds: NDArray[np.int64] = np.maximum(timestamps - begin, 0) // 1000
    return np.minimum(seconds, _MAX_SECONDS, out=seconds)


def _seconds_between(begin: int, timestamp: int) -> int:
    if begin <= 0:
        return 0
    # Java's subtraction wraps at 64 bits; only a forged timestamp gets there.
    milliseconds = ((timestamp - begin + _LONG_SIGN) & _LONG_MASK) - _LONG_SIGN
    return min(max(milliseconds // 1000, 0), _MAX_SECONDS)
