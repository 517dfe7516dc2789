"""One file of the key index: a hash table from `topic#key` to physical offsets.

The layout is in `protocol.message.units`: a header, hash slots, and entries that are chained from
the newest of a slot to its oldest. Java's IndexFile writes the same bytes for the same keys in the
same order.

Rules
1. Entries are numbered from 1, and entry 0 is never written. A slot or link that is 0 or points
   past the last entry means none. A file for N entries therefore holds N - 1.
2. A link points to a smaller number than the entry's own, so every chain ends.
3. `begin_timestamp` is the store time of the first entry. Until there is one, it is the end of
   the previous file, from which the first entry's seconds count.
4. Entries are written first, then the header, then the slots: a concurrent reader sees either
   the old chain or the new one, both complete.
5. Header and slots are written through the mapping, in disk blocks that are reserved before;
   entries are written to the descriptor. A full disk raises OSError before anything changes, and
   never SIGBUS. The rest of the file stays sparse.

One thread appends; any thread may `find` at the same time. The mapping lives until the last
reader drops the file, so `close` and `delete` do not wait for readers.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyromq.base.descriptors import close_file, map_file, open_file, opened
from pyromq.protocol.message.unit_arrays import INDEX_ENTRY_DTYPE
from pyromq.protocol.message.units import (
    INDEX_ENTRY,
    INDEX_ENTRY_SIZE,
    INDEX_HEADER,
    INDEX_HEADER_SIZE,
    INDEX_SLOT_SIZE,
)
from pyromq.store.results import StoreError

if TYPE_CHECKING:
    from pyromq.protocol.kernel.index_keys import IndexKeys

_SLOT: Final = np.dtype(">u4")
assert _SLOT.itemsize == INDEX_SLOT_SIZE
_MAX_SECONDS: Final = 0x7FFFFFFF
_LONG_MASK: Final = 0xFFFFFFFFFFFFFFFF
_LONG_SIGN: Final = 0x8000000000000000
_ROW_MASK: Final = 0xFFFFFFFF


class IndexFileError(StoreError):
    """A file in the index directory that does not belong to this index."""


class IndexEnd(NamedTuple):
    """The last message of a full file, which the next file continues from."""

    end_offset: int
    end_timestamp: int


class IndexFile:
    """A mapped index file, with the header's fields as attributes."""

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
                    "written with, or remove it (queries by key will miss its messages)"
                )
            self._map = map_file(self._descriptor, size, mmap.ACCESS_WRITE)
            # Not from the mapping: on a full tmpfs, reading a page without blocks is a SIGBUS.
            data = os.pread(self._descriptor, INDEX_HEADER_SIZE, 0)
        except BaseException:
            self.close()
            raise
        header: tuple[int, ...] = INDEX_HEADER.unpack(data)
        self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset = header[:4]
        self._used_slots = min(max(header[4], 0), slot_count)
        #: The number of the next entry.
        self.entry_count = max(header[5], 1)

    @property
    def is_sound(self) -> bool:
        """Whether the header is plausible."""
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
        """Return how many more entries fit."""
        return max(self._entry_limit - self.entry_count, 0)

    def reserve(self) -> None:
        """Reserve disk blocks for header and slots. Raises OSError if the disk is full."""
        if not self._reserved:
            os.posix_fallocate(self._descriptor, 0, self._entries_at)
            self._reserved = True

    def continue_from(self, before: IndexFile | IndexEnd) -> None:
        """Start where another file ended. This one must have no entries yet."""
        self.reserve()
        if before.end_offset > 0:
            self.begin_offset = self.end_offset = before.end_offset
        if before.end_timestamp > 0:
            self.begin_timestamp = self.end_timestamp = before.end_timestamp
        # As in Java, the entry count is written with the first entry.
        self._write_header(entry_count=0)

    def append(
        self,
        hashes: NDArray[np.int32],
        offsets: NDArray[np.int64],
        timestamps: NDArray[np.int64],
    ) -> None:
        """Add an entry for each row. There must be room for all."""
        self.reserve()
        first = self.entry_count
        # One sort by slot and row makes entries of one slot adjacent.
        slots_and_rows = (hashes.astype(np.int64) % self._slot_count) << 32
        slots_and_rows |= np.arange(hashes.size)
        slots_and_rows.sort()
        slots = slots_and_rows >> 32
        rows = slots_and_rows & _ROW_MASK
        numbers = rows + first
        # Unsigned, so that a negative number in a damaged slot points past the entries as well.
        table: NDArray[np.uint32] = np.ndarray(
            (self._slot_count,), _SLOT, self._map, INDEX_HEADER_SIZE
        )
        previous = table[slots].astype(np.int64)
        previous *= previous <= numbers
        np.copyto(previous[1:], numbers[:-1], where=slots[1:] == slots[:-1])

        entries = np.empty(hashes.size, INDEX_ENTRY_DTYPE)
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
        # If a slot occurs several times, the last and newest number wins.
        table[slots] = numbers

    def append_few(self, keys: list[tuple[int, int, int]]) -> None:
        """Add a few entries (hash, offset, timestamp) without numpy's fixed costs."""
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

    def append_read(self, keys: IndexKeys, first: int, count: int) -> None:
        """Add `count` of the keys that the kernel has read, from `first` on."""
        self.reserve()
        number = self.entry_count
        entries, new_slots = keys.link(
            self._map,
            INDEX_HEADER_SIZE,
            self._slot_count,
            number,
            self.begin_timestamp,
            first,
            count,
        )
        self._write_entries(entries)
        self._publish(*keys.bounds(first, count), count, new_slots)
        keys.enter(self._map, INDEX_HEADER_SIZE, number, first, count)

    def covers(self, begin: int, end: int) -> bool:
        """Whether a time range overlaps this file's."""
        first, last = self.begin_timestamp, self.end_timestamp
        return (begin < first and end > last) or (first <= begin <= last) or (first <= end <= last)

    def find(self, key_hash: int, begin: int, end: int) -> Iterable[int]:
        """Yield physical offsets of a key's entries in a time range, newest first.

        Entries record whole seconds since the file's first entry.
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
        """Fsync the file, unless it was deleted."""
        # With a separate descriptor, so that `close` does not wait for the sync.
        with (
            contextlib.suppress(FileNotFoundError),
            opened(self.path, os.O_RDWR) as descriptor,
        ):
            os.fdatasync(descriptor)

    def close(self) -> None:
        """End appending. The mapping lives until the last reference to this object is dropped."""
        if self._descriptor >= 0:
            close_file(self._descriptor)
            self._descriptor = -1

    def delete(self) -> None:
        """Close and remove the file."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _slot(self, slot: int) -> int:
        """Return the number in a slot, read atomically with respect to the writer."""
        position = INDEX_HEADER_SIZE + slot * INDEX_SLOT_SIZE
        return int.from_bytes(self._map[position : position + INDEX_SLOT_SIZE], "big", signed=True)

    def _seconds(self, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the seconds field of each entry (rule 3)."""
        begin = self.begin_timestamp
        if self.entry_count > 1:
            return _seconds_after(begin, timestamps)
        first = int(timestamps[0])
        seconds = _seconds_after(first, timestamps)
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


def _seconds_after(begin: int, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
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
