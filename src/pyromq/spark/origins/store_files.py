"""The files of a store, for reading: consume queue entries and log segments.

Everything here reads files as they are now, while a broker may be appending to them or deleting
them. Used by `StoreOrigin`, on its thread.

Invariants
1. Nothing is ever written, locked or deleted.
2. Nothing is read from beyond the end of a file, whatever the entries say.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyromq.base.sizes import KIB, MIB
from pyromq.protocol.message.bulk import Longs
from pyromq.protocol.message.record import BLANK_MAGIC, HEAD_SIZE_V4, peek, store_timestamp_at
from pyromq.protocol.message.unit_arrays import CONSUME_QUEUE_DTYPE
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY_SIZE
from pyromq.store.offline.check_files import SegmentFiles

#: The reason of `LostRecords` for bytes of the log that cannot be decoded.
NOT_A_RECORD: Final = "these bytes are not a record"
#: A block is at most this long, unless a single record is longer.
BLOCK_BYTES: Final = 8 * MIB
#: Records no further apart than this are read together, with the bytes in between.
_MAX_GAP: Final = 16 * KIB
_MIN_RECORD: Final = HEAD_SIZE_V4 + 3
#: Segments that stay open and mapped. A deleted segment remains readable through them.
_MAX_DESCRIPTORS: Final = 32
_MAX_MAPPINGS: Final = 4


class LogRange(NamedTuple):
    """Offsets of the log, excluding `end`: the share of one task."""

    start: int
    end: int


class QueueEntries:
    """The entries of one consume queue, as its files have them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files = SegmentFiles(directory, 0)
        # Ignore files that do not belong here; `pyromq store check` reports them.
        for _ in self._files.load():
            pass
        self.bases = self._files.bases
        self._per_file = self._files.segment_size // CONSUME_QUEUE_ENTRY_SIZE

    @property
    def first_offset(self) -> int:
        """Return the first offset that the files have room for."""
        return self._files.first_offset // CONSUME_QUEUE_ENTRY_SIZE

    def end_offset(self) -> int:
        """Return the offset after the last entry, where the zeros start."""
        for base in reversed(self.bases):
            first = base // CONSUME_QUEUE_ENTRY_SIZE
            numbers = range(first, first + self._per_file)
            count = bisect_left(numbers, True, key=lambda at: self.entry(at)[1] <= 0)
            if count:
                return first + count
        return self.first_offset

    def read(self, offset: int, count: int) -> NDArray[np.void]:
        """Return at most `count` entries of one file, from `offset` on."""
        data = self._files.read(offset * CONSUME_QUEUE_ENTRY_SIZE, count * CONSUME_QUEUE_ENTRY_SIZE)
        return np.frombuffer(data, CONSUME_QUEUE_DTYPE, len(data) // CONSUME_QUEUE_ENTRY_SIZE)

    def entry(self, offset: int) -> tuple[int, int]:
        """Return the log offset and size of one record; (0, 0) without an entry."""
        found = self.read(offset, 1)
        return (int(found["physical_offset"][0]), int(found["size"][0])) if found.size else (0, 0)

    def place(self, offset: int) -> int:
        """Return the log offset of a record."""
        return self.entry(offset)[0]

    def next_offset(self, offset: int) -> int | None:
        """Return the first offset of the first file after `offset`, or None."""
        firsts = (base // CONSUME_QUEUE_ENTRY_SIZE for base in self.bases)
        return next((first for first in firsts if first > offset), None)


class StoreLog:
    """The commit log's segments, for reading."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._descriptors: dict[int, int] = {}
        self._mappings: dict[int, memoryview] = {}
        self.refresh()

    def refresh(self) -> None:
        """List the segments again."""
        self._files = self._load()
        self._bases = np.array(self._files.bases, np.int64)

    @property
    def bases(self) -> list[int]:
        """The first offset of each segment."""
        return self._files.bases

    @property
    def segment_size(self) -> int:
        """The size of a segment in bytes."""
        return self._files.segment_size

    @property
    def first_offset(self) -> int:
        """The offset of the first byte that has not expired."""
        return self._files.first_offset

    def files(self, wanted: LogRange) -> SegmentFiles:
        """Return the segments that start in a range of the log."""
        files = self._load()
        files.bases[:] = [base for base in files.bases if wanted.start <= base < wanted.end]
        return files

    def holds(self, places: Longs, sizes: Longs) -> NDArray[np.bool_]:
        """Return which records lie within existing segments."""
        there = self._has(places, sizes)
        if not there.all():
            self.refresh()
            there = self._has(places, sizes)
        return there

    def is_written(self, place: int, size: int) -> bool:
        """Return whether the record of an entry has been written, even if it has expired."""
        if place < self.first_offset:
            return True
        return any(self.read(place, min(size, HEAD_SIZE_V4)))

    def store_timestamp(self, place: int) -> int:
        """Return when the record at `place` was stored; 0 if it does not exist."""
        head = self.read(place, HEAD_SIZE_V4)
        return store_timestamp_at(head, 0) if len(head) == HEAD_SIZE_V4 else 0

    def read(self, offset: int, size: int) -> bytes:
        """Return at most `size` bytes of one segment; none if it does not exist."""
        descriptor = self._descriptor(offset)
        return b"" if descriptor is None else os.pread(descriptor, size, self._inside(offset))

    def fitting(self, places: Longs, sizes: Longs) -> int:
        """Return how many of these records make a block: at least one, all of one segment."""
        lengths = sizes.copy()
        gaps = places[1:] - places[:-1] - sizes[:-1]
        lengths[1:] += np.where((gaps >= 0) & (gaps <= _MAX_GAP), gaps, 0)
        count = int(lengths.cumsum().searchsorted(BLOCK_BYTES, "right"))
        same_segment = places // self.segment_size == places[0] // self.segment_size
        return max(1, min(count, leading_count(same_segment)))

    def gather(self, places: Longs, sizes: Longs) -> tuple[memoryview, Longs]:
        """Return these records of one segment in one buffer, and where each one starts.

        Records close together are a slice of the mapped segment, including the bytes between
        them, which takes a third of the time of copying. Scattered records are read one by one.
        Bytes beyond the end of the segment are zero.
        """
        ends = places + sizes
        gaps = places[1:] - ends[:-1]
        breaks = np.flatnonzero((gaps < 0) | (gaps > _MAX_GAP)) + 1
        begins = np.append(0, breaks)
        span_places = places[begins]
        span_sizes = ends[np.append(breaks, places.size) - 1] - span_places
        if not breaks.size:
            mapping = self._mapping(int(places[0]))
            first = self._inside(int(places[0]))
            last = first + int(span_sizes[0])
            if last <= len(mapping):
                return mapping[first:last], places - places[0]
        span_ends = span_sizes.cumsum()
        shifts = span_ends - span_sizes - span_places
        starts = places + np.repeat(shifts, np.diff(np.append(begins, places.size)))
        descriptor = self._descriptor(int(places[0]))
        positions = (span_places % self.segment_size).tolist()
        spans = [
            _read_whole(descriptor, place, size)
            for place, size in zip(positions, span_sizes.tolist(), strict=True)
        ]
        return memoryview(b"".join(spans)), starts

    def damage_at(self, position: int, end: int) -> str | None:
        """Return what is wrong if a segment's records end at `position`; None if nothing is."""
        if position >= end:
            return None
        head = self.read(position, HEAD_SIZE_V4)
        size, magic = peek(head)
        if not any(head) or (magic == BLANK_MAGIC and size == end - position):
            return None
        return NOT_A_RECORD

    def close(self) -> None:
        """Close all descriptors."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        # A mapping closes with the last view of it.
        self._mappings.clear()

    def _load(self) -> SegmentFiles:
        first, *more = self._directories
        files = SegmentFiles(first, 0, more=more)
        for _ in files.load():
            pass
        return files

    def _has(self, places: Longs, sizes: Longs) -> NDArray[np.bool_]:
        if not self._bases.size:
            return np.zeros(places.size, np.bool_)
        inside = places % self.segment_size
        numbers = self._bases.searchsorted(places - inside).clip(0, self._bases.size - 1)
        there: NDArray[np.bool_] = self._bases[numbers] == places - inside
        there &= (sizes >= _MIN_RECORD) & (inside + sizes <= self.segment_size)
        return there

    def _mapping(self, offset: int) -> memoryview:
        """Return the segment of an offset in its current length; empty if it does not exist."""
        base = offset - self._inside(offset)
        mapping = self._mappings.get(base)
        if mapping is not None:
            return mapping
        descriptor = self._descriptor(offset)
        size = 0 if descriptor is None else os.fstat(descriptor).st_size
        if descriptor is None or not size:
            return memoryview(b"")
        mapping = memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
        if len(self._mappings) >= _MAX_MAPPINGS:
            del self._mappings[next(iter(self._mappings))]
        self._mappings[base] = mapping
        return mapping

    def _descriptor(self, offset: int) -> int | None:
        base = offset - self._inside(offset)
        descriptor = self._descriptors.get(base)
        if descriptor is None and self.segment_size:
            try:
                descriptor = os.open(self._files.path(offset), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            if len(self._descriptors) >= _MAX_DESCRIPTORS:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
            self._descriptors[base] = descriptor
        return descriptor

    def _inside(self, offset: int) -> int:
        return offset % max(self.segment_size, 1)


def _read_whole(descriptor: int | None, position: int, size: int) -> bytes:
    """Return exactly `size` bytes, padded with zeros beyond the end of the file."""
    if descriptor is None:
        return bytes(size)
    data = os.pread(descriptor, size, position)
    while len(data) < size:
        more = os.pread(descriptor, size - len(data), position + len(data))
        if not more:
            return data.ljust(size, b"\0")
        data += more
    return data


def leading_count(flags: NDArray[np.bool_]) -> int:
    """Return the number of leading flags that are set."""
    return flags.size if flags.all() else int(flags.argmin())
