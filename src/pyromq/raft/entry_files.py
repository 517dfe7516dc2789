"""The data files of a raft log, and the index from entry numbers to places in them.

`EntryFiles` is the stream of entries, `EntryIndex` the stream of index units. Neither knows terms,
and neither decides where the log ends: `log` and `recovery` do.

Invariants
1. Room is reserved before anything is written, so a full disk is an OSError and changes nothing.
2. At most one file is preallocated. Java takes a log with two empty files at its end for damaged.
3. Files leave at the end one by one, the last one first: a gap would be refused at the next start.
4. A file and its index units are on disk as a whole before the second file after it is written to.
   Recovery checks the last three files and relies on all earlier ones.

The loop's thread writes. The flush thread calls `sync` only, under the log's lock.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyromq.raft.format import (
    BLANK_SIZE,
    HEADER_SIZE,
    INDEX_UNIT_SIZE,
    Place,
    Records,
    decode_header,
    decode_unit,
    decode_units,
    encode_blank,
    is_blank,
)
from pyromq.store.log.allocation import AHEAD, POPULATE_STEP, RESERVE_STEP, AllocationService
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.log.open_files import OpenFiles
from pyromq.store.log.segments import Segments

#: Bytes that are written to the file instead of its mapping (see `MappedFile.write_large`).
_LARGE_WRITE: Final = 64 * 1024
#: Bytes after which the writer notifies preallocation, which is `AHEAD` of it.


class EntryFiles:
    """The data files, oldest first, and the one that is written to."""

    def __init__(
        self, directory: Path, file_size: int, *, open_files: OpenFiles | None = None
    ) -> None:
        self.segments = Segments(directory, file_size, open_files=open_files)
        self.file_size = file_size
        self._open_files = open_files
        self._allocation = AllocationService(directory, file_size, max_ahead=1)
        self._active: MappedFile | None = None
        #: The writer's position, as far as the allocation knows it.
        self._told = 0
        #: Files that `prepare` created, which `write` will use.
        self._prepared: dict[int, MappedFile] = {}

    @property
    def files(self) -> list[MappedFile]:
        """Return the files, oldest first."""
        return self.segments.files

    @property
    def directory(self) -> Path:
        """Return the directory of the files."""
        return self.segments.directory

    def load(self) -> None:
        """Map the existing files. Raises StoreError if they do not fit together."""
        self.segments.load()

    def start(self) -> None:
        """Start the preallocation."""
        self._allocation.start()

    def stop(self) -> None:
        """End the preallocation and unmap everything."""
        self._allocation.stop()
        self.segments.close()
        self._active = None

    def base_of(self, position: int) -> int:
        """Return the start of the file for `position`."""
        return position - position % self.file_size

    def follow(self, position: int) -> None:
        """Continue writing at `position`, in the last file or a new one. Raises OSError."""
        base = self.base_of(position)
        if not self.files:
            self.segments.create_next(base)
        self._active = self.files[-1]
        assert self._active.base == base, (self._active.base, position)
        self._active.keep_mapped()
        self._told = position
        self._allocation.follow(self._active, position - base)

    def prepare(self, places: list[tuple[int, int]], end: int) -> None:
        """Reserve room for bytes from each start to its end, and for the blanks before new files.

        Raises OSError, and changes nothing visible, if the disk has no room.
        """
        file, allocation = self._active, self._allocation
        assert file is not None
        written = end
        try:
            for start, stop in places:
                base = self.base_of(start)
                if base != file.base:
                    allocation.ensure(file, end - file.base + BLANK_SIZE)
                    file = self._prepared.get(base) or self._create(base)
                # Reserved room only grows, so this needs no lock.
                if stop - base + BLANK_SIZE > file.reserved:
                    allocation.ensure(file, stop - base + BLANK_SIZE)
                end = stop
        except OSError:
            self._discard_prepared(written)
            raise

    def _create(self, base: int) -> MappedFile:
        file = self._prepared[base] = self._allocation.take_next(base)
        self._allocation.ensure(file, min(AHEAD, file.size))
        return file

    def room_from(self, position: int) -> int:
        """Return the end of the room that `prepare` has reserved for bytes from `position` on."""
        base = self.base_of(position)
        file = self._prepared.get(base, self._active)
        assert file is not None
        assert file.base == base, (file.base, base)
        return base + min(file.reserved, file.size) - BLANK_SIZE

    def write(self, start: int, data: bytes | memoryview, end: int) -> None:
        """Copy entries to `start`, all in one file, for which there is room.

        `end` is where the last entry ends; if `start` is in another file, a blank comes between.
        """
        file, base = self._active, self.base_of(start)
        assert file is not None
        if base != file.base:
            file.write(end - file.base, encode_blank(file.base + file.size - end))
            file.hand_to(self._open_files)
            file = self._active = self._prepared.pop(base)
            self.segments.add(file)
            self._told = start
            if not self._prepared:
                # Before, the file to preallocate would be one of those.
                self._allocation.follow(file, start - base)
        if len(data) >= _LARGE_WRITE:
            file.write_large(start - base, data)
        else:
            file.write(start - base, data)
        if start + len(data) - self._told >= POPULATE_STEP:
            # Each call wakes a thread.
            self._told = start + len(data)
            self._allocation.advance(self._told - base)

    def read(self, position: int, size: int) -> bytes:
        """Return `size` bytes from `position` on, or fewer at the end of a file or of the log."""
        file = self.segments.find(position)
        if file is None:
            return b""
        try:
            return file.read(position - file.base, position - file.base + size)
        except FileNotFoundError:  # it expired meanwhile
            return b""

    def header(self, position: int) -> Place | None:
        """Return the place that the header at `position` tells, or None if there is no header."""
        data = self.read(position, HEADER_SIZE)
        place = decode_header(data) if len(data) == HEADER_SIZE else None
        return place if place is not None and place.position == position else None

    def is_blank(self, position: int) -> bool:
        """Whether a blank is at `position`."""
        data = self.read(position, BLANK_SIZE)
        return len(data) == BLANK_SIZE and is_blank(data)

    def sync(self, start: int, end: int) -> None:
        """Fsync the files with bytes from `start` to `end`."""
        for file in self.segments.between(start, end):
            file.sync()

    def sync_last(self, count: int) -> None:
        """Fsync the last files."""
        for file in self.files[-count:]:
            file.sync()

    def cut(self, position: int) -> None:
        """Zero everything from `position` on, and fsync that. Files behind it leave."""
        self._forget()
        # A file that begins at the position has no entries: another one was not created for it.
        while self.files and self.files[-1].base > position:
            self.files.pop().delete()
        if self.files and position < self.segments.end_offset:
            self.files[-1].empty_from(position - self.files[-1].base)
            self.files[-1].sync()

    def clear(self) -> None:
        """Remove all files, the last one first."""
        self._forget()
        while self.files:
            self.files.pop().delete()

    def _forget(self) -> None:
        """Drop files that were to follow; `follow` chooses the active one."""
        for base in sorted(self._prepared, reverse=True):
            self._allocation.discard(self._prepared.pop(base))
        self._allocation.forget()
        self._active = None

    def _discard_prepared(self, written: int) -> None:
        for base in sorted(self._prepared, reverse=True):
            self._allocation.discard(self._prepared.pop(base))
        if self._active is not None:
            self._allocation.follow(self._active, written - self._active.base)


class EntryIndex:
    """The index files: the unit of entry n is at n * 32."""

    def __init__(self, directory: Path, file_size: int) -> None:
        assert file_size % INDEX_UNIT_SIZE == 0, file_size
        self.segments = Segments(directory, file_size)

    def load(self) -> None:
        """Map the existing files. Raises StoreError if they do not fit together."""
        self.segments.load()

    def stop(self) -> None:
        """Unmap everything."""
        self.segments.close()

    def place(self, index: int) -> Place | None:
        """Return the place of an entry, or None if its unit is missing or damaged."""
        at = index * INDEX_UNIT_SIZE
        file = self.segments.find(at)
        if file is None:
            return None
        place = decode_unit(file.read(at - file.base, at - file.base + INDEX_UNIT_SIZE))
        return place if place is not None and place.index == index else None

    def units(self, first: int, count: int) -> Records:
        """Return the units from entry `first` on: at most `count`, those of one file."""
        at = first * INDEX_UNIT_SIZE
        file = self.segments.find(at)
        if file is None:
            return decode_units(b"")
        start = at - file.base
        return decode_units(file.read(start, min(file.size, start + count * INDEX_UNIT_SIZE)))

    def prepare(self, first: int, count: int) -> None:
        """Reserve room for the units of `count` entries. Raises OSError if the disk is full."""
        start, end = first * INDEX_UNIT_SIZE, (first + count) * INDEX_UNIT_SIZE
        segments = self.segments
        if segments.files:
            last = segments.files[-1]
            if start >= last.base and end <= last.base + last.reserved:
                return
        if not segments.files:
            segments.create_next(start - start % segments.segment_size)
        while segments.end_offset < end:
            segments.create_next()
        for file in segments.between(start, end):
            wanted = min(end - file.base, file.size)
            if wanted > file.reserved:
                # The blocks below were reserved before, in this run or an earlier one.
                file.reserve(-(-wanted // RESERVE_STEP) * RESERVE_STEP)

    def write(self, first: int, units: bytes | bytearray | memoryview) -> None:
        """Copy units, for which there is room."""
        start, end = first * INDEX_UNIT_SIZE, first * INDEX_UNIT_SIZE + len(units)
        last = self.segments.files[-1]
        if start >= last.base and end <= last.base + last.size:
            last.write(start - last.base, units)
            return
        for file in self.segments.between(start, end):
            low, high = max(start, file.base), min(end, file.base + file.size)
            part = units if high - low == len(units) else units[low - start : high - start]
            file.write(low - file.base, part)

    def sync(self, first: int, end: int) -> None:
        """Fsync the files with the units from `first` to before `end`."""
        for file in self.segments.between(first * INDEX_UNIT_SIZE, end * INDEX_UNIT_SIZE):
            file.sync()

    def sync_last(self, count: int) -> None:
        """Fsync the last files."""
        for file in self.segments.files[-count:]:
            file.sync()

    def cut(self, end: int) -> None:
        """Zero the units from `end` on, and fsync that. Files behind it leave."""
        files, at = self.segments.files, end * INDEX_UNIT_SIZE
        while files and files[-1].base >= at:
            files.pop().delete()
        if files and at < self.segments.end_offset:
            files[-1].empty_from(at - files[-1].base)
            files[-1].sync()

    def drop_before(self, index: int) -> None:
        """Remove the files whose units are all before `index`, but never the last one."""
        segments = self.segments
        while len(segments.files) > 1 and segments.files[1].base <= index * INDEX_UNIT_SIZE:
            segments.take_first().unlink()
