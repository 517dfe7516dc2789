"""Find the end of a raft log at a start, as DLedger does, and repair its index.

1. Start at the last file but two, or at an earlier one if its first entry and its index unit
   disagree. Earlier files are on disk as a whole (see `entry_files`). Files that were created, but
   not written to, do not count.
2. Compare entries with their index units, many at a time.
3. From the first disagreement on, walk from header to header and rebuild the index.
4. The log ends at zeros, or before the first entry that is not where it should be, not of the next
   index, or of a falling term. A blank belongs to the entry after it: without one, it goes.

The caller zeroes everything after the end: an entry that a crash left there could otherwise become
part of the log again, behind entries written later.

DLedger's entries have no checksum, so a page that never reached the disk goes unnoticed inside a
body. `check_body` may know better; it is asked about entries after `synced_index`, up to which the
last checkpoint knows all to be on disk.

Damage that would cost more than a file is not repaired: as in Java, the start fails, unless
`accept_loss`.

Called by `log` at its start, on the loop's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from pyromq.raft.entry_files import EntryFiles, EntryIndex
from pyromq.raft.format import (
    BLANK_SIZE,
    HEADER_SIZE,
    MAGIC,
    MAGIC_BYTES,
    CheckpointText,
    Columns,
    Place,
    Records,
    decode_header,
    encode_units,
    fields_are_valid,
    gather_headers,
    is_blank,
)
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.results import StoreError

logger = logging.getLogger(__name__)

#: Entries that are compared with the index, or written to it, at a time.
_BATCH: Final = 64 * 1024
#: Files at the end of the log that are checked.
CHECKED_FILES: Final = 3
_ZEROS: Final = bytes(BLANK_SIZE)

BodyCheck = Callable[[memoryview], bool]


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a start found."""

    #: The first and the last entry; None if there are none.
    first: Place | None
    last: Place | None
    #: Where the next entry begins, if it fits into the file.
    end: int
    #: Why the log ends there, or None if it ends in zeros.
    damage: str | None


def recover(
    data: EntryFiles,
    index: EntryIndex,
    *,
    check_body: BodyCheck | None = None,
    synced_index: int = -1,
    accept_loss: bool = False,
) -> Recovered:
    """Return the entries of loaded files, and complete the index. Raises StoreError, OSError."""
    files = data.files
    filled = [number for number, file in enumerate(files) if file.read(0, BLANK_SIZE) != _ZEROS]
    number = max(0, filled[-1] + 1 - CHECKED_FILES) if filled else 0
    while number > 0 and not _agrees(data, index, files[number].base):
        number -= 1
    first = _first_entry(files)
    if number > 0:
        if first is None:
            raise StoreError(
                f"{files[0].path} does not begin with an entry: move it away if its messages have "
                "expired, or remove the node's directory and let the group fill it again"
            )
        start = files[number].base
    else:
        start = first.position if first is not None else files[0].base
    walk = _Walk(data, index, start)
    walk.compare(None if check_body is None else synced_index)
    walk.follow(check_body)
    if first is None and walk.damage is None and any(files[0].read(0, files[0].size)):
        walk.damage = "no entry at the start of the log"
    if filled and not accept_loss:
        _check_loss(data, walk, files[filled[-1]].base)
    return Recovered(first if walk.last is not None else None, walk.last, walk.end, walk.damage)


def report_damage(directory: Path, recovered: Recovered, checkpoint: CheckpointText) -> bool:
    """Log what a start cut off; return whether the node may have acknowledged any of it."""
    end_index = -1 if recovered.last is None else recovered.last.index
    promised = max(checkpoint.committed_index, checkpoint.synced_index)
    is_lost = promised > end_index
    if is_lost or recovered.damage is not None:
        logger.log(
            logging.ERROR if is_lost else logging.WARNING,
            "truncating %s at position %d, after entry %d: %s; entries up to %d were %s",
            directory,
            recovered.end,
            end_index,
            recovered.damage or "the log ends there",
            promised,
            "committed" if promised == checkpoint.committed_index else "on disk",
        )
    return is_lost or checkpoint.must_catch_up


def _agrees(data: EntryFiles, index: EntryIndex, base: int) -> bool:
    """Whether a file begins with an entry that has the same place in the index."""
    place = data.header(base)
    return place is not None and index.place(place.index) == place


def _first_entry(files: list[MappedFile]) -> Place | None:
    """Return the first entry of the log, whose first file may begin with zeros.

    A follower whose log was rebuilt in the middle of a file begins there, or after a blank.
    """
    for file in files[:2]:
        at = _first_nonzero(file)
        if at is None:
            return None
        if is_blank(file.read(at, at + BLANK_SIZE).ljust(BLANK_SIZE, b"\0")):
            continue
        at = max(0, at - len(MAGIC_BYTES) + 1)
        header = file.read(at, at + HEADER_SIZE)
        place = decode_header(header) if len(header) == HEADER_SIZE else None
        return place if place is not None and place.position == file.base + at else None
    return None


def _first_nonzero(file: MappedFile) -> int | None:
    for start in range(0, file.size, _BATCH):
        piece = file.read(start, min(start + _BATCH, file.size))
        found = np.frombuffer(piece, np.uint8).nonzero()[0]
        if found.size:
            return start + int(found[0])
    return None


def _check_loss(data: EntryFiles, walk: _Walk, last_base: int) -> None:
    """Refuse to cut off more than a file."""
    if last_base - walk.stopped_at > data.file_size:
        raise StoreError(
            f"{data.directory} is damaged at position {walk.stopped_at} "
            f"({walk.damage or 'zeros'}), with more than a file after it: restore the files, or "
            "remove the node's directory and let the group fill it again"
        )


class _Walk:
    """The position of the walk, and the last entry that it has passed."""

    def __init__(self, data: EntryFiles, index: EntryIndex, start: int) -> None:
        self._data = data
        self._index = index
        self._start = start
        self.last: Place | None = None
        #: Where no valid entry follows: the end of the last entry, or after a blank.
        self.stopped_at = start
        self.damage: str | None = None

    @property
    def end(self) -> int:
        """Return the end of the last entry."""
        return self._start if self.last is None else self.last.end

    def compare(self, limit: int | None) -> None:
        """Pass all entries, up to index `limit`, that the index and the data agree about."""
        first = self._data.header(self._start)
        if first is None:
            return
        following = first.index
        while limit is None or following <= limit:
            count = _BATCH if limit is None else min(_BATCH, limit - following + 1)
            units = self._index.units(following, count)
            agreed = self._agreed(units, following)
            if agreed:
                unit = units[agreed - 1]
                position, size = int(unit["position"]), int(unit["size"])
                following += agreed
                self.last = Place(following - 1, int(unit["term"]), position, size)
            if not agreed or agreed < len(units):
                return

    def _agreed(self, units: Records, following: int) -> int:
        """Return how many units are of the next entries of the log."""
        data, size_of_file = self._data, self._data.file_size
        positions = units["position"].astype(np.int64)
        sizes = units["size"].astype(np.int64)
        terms = units["term"].astype(np.int64)
        ends = positions + sizes
        before = np.concatenate(([self.end], ends[:-1]))
        rolled = (before // size_of_file + 1) * size_of_file
        last_term = -1 if self.last is None else self.last.term
        good = (
            (units["magic"] == MAGIC)
            & (units["index"] == np.arange(following, following + len(units)))
            & (terms >= np.concatenate(([last_term], terms[:-1])))
            & ((positions == before) | (positions == rolled))
            & (sizes > HEADER_SIZE)
            & (positions % size_of_file + sizes + BLANK_SIZE <= size_of_file)
        )
        count = len(good) if good.all() else int(good.argmin())
        for at in (positions[:count] != before[:count]).nonzero()[0].tolist():
            if not data.is_blank(int(before[at])):
                count = at
                break
        # File by file.
        at = 0
        while at < count:
            file = data.segments.find(int(positions[at]))
            if file is None:
                return at
            until = int(np.searchsorted(positions[:count], file.base + file.size))
            with file.view(0, file.size) as view:
                headers = gather_headers(view, positions[at:until] - file.base)
            same = fields_are_valid(headers)
            for name in ("index", "term", "position", "size"):
                same &= headers[name] == units[name][at:until]
            if not same.all():
                return at + int(same.argmin())
            at = until
        return count

    def follow(self, check_body: BodyCheck | None) -> None:
        """Pass the remaining entries, header by header, and write their index units."""
        data, size_of_file = self._data, self._data.file_size
        found: list[Place] = []
        position = self.end
        while (file := data.segments.find(position)) is not None:
            with file.view(0, file.size) as view:
                while True:
                    at = position - file.base
                    place = self._next(view, at, position, check_body)
                    if place is None:
                        break
                    found.append(place)
                    self.last = place
                    position = place.end
                    if len(found) >= _BATCH:
                        self._write_index(found)
                if self.damage is not None or not is_blank(view, position - file.base):
                    break
            position = file.base + size_of_file
        self.stopped_at = position
        self._write_index(found)

    def _next(
        self, view: memoryview, at: int, position: int, check_body: BodyCheck | None
    ) -> Place | None:
        """Return the entry at `at`, or None at a blank, at zeros, and at damage."""
        if view[at : at + BLANK_SIZE] == _ZEROS or is_blank(view, at):
            return None
        place = decode_header(view, at) if at + HEADER_SIZE <= len(view) else None
        last = self.last
        if place is None:
            self.damage = "not an entry"
        elif place.position != position:
            self.damage = f"an entry of position {place.position}"
        elif at + place.size + BLANK_SIZE > len(view):
            self.damage = f"an entry of {place.size} bytes, more than the file holds"
        elif last is not None and place.index != last.index + 1:
            self.damage = f"entry {place.index} after entry {last.index}"
        elif last is not None and place.term < last.term:
            self.damage = f"term {place.term} after term {last.term}"
        elif check_body is not None and not check_body(view[at + HEADER_SIZE : at + place.size]):
            self.damage = f"entry {place.index} has a damaged body"
        else:
            return place
        return None

    def _write_index(self, found: list[Place]) -> None:
        if not found:
            return
        first = found[0].index
        columns = Columns(
            first,
            np.array([place.term for place in found], np.int64),
            np.array([place.position for place in found], np.int64),
            np.array([place.size for place in found], np.int64),
        )
        index = self._index
        if index.place(first - 1) is None:
            # Nothing before it to keep: the walk began with this entry.
            index.cut(0)
        index.cut(first)
        index.prepare(first, len(found))
        index.write(first, encode_units(columns))
        index.sync(first, first + len(found))
        found.clear()
