"""Room on the disk for entries that a leader is about to append.

A leader numbers and places entries before it writes them, and answers nobody until they are
written. So the blocks of data and index files are reserved first: a full disk refuses messages, and
never interrupts an append.

Used by `log`, on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from pyromq.base.sizes import MIB
from pyromq.protocol.message.record import HEAD_SIZE_V4
from pyromq.raft.entry_files import EntryFiles, EntryIndex
from pyromq.raft.format import BLANK_SIZE, HEADER_SIZE
from pyromq.raft.placement import place_entries

#: Room that is reserved at a time, and the least that an entry with a record takes of it.
_STEP: Final = MIB
_SMALLEST_ENTRY: Final = HEADER_SIZE + HEAD_SIZE_V4


class EntryRoom:
    """Reserves blocks of the data and index files."""

    def __init__(self, files: EntryFiles, index: EntryIndex) -> None:
        self._files = files
        self._index = index

    def make(self, size: int, written: int, next_index: int) -> tuple[int, int]:
        """Return where entries of `size` bytes go, and the end of the room. Raises OSError.

        The log ends at `written`, and `next_index` is the index of its next entry.
        """
        files, position = self._files, written
        if position % files.file_size + size + BLANK_SIZE > files.file_size:
            position = files.base_of(position) + files.file_size
        files.prepare([(position, position + size)], written)
        limit = min(files.room_from(position), position + max(size, _STEP))
        self._index.prepare(next_index, (limit - position) // _SMALLEST_ENTRY + 1)
        return position, limit

    def reserve(self, sizes: Sequence[int], written: int, next_index: int) -> list[int]:
        """Return the positions of entries of these sizes, which may be in several files.

        Raises OSError.
        """
        files = self._files
        positions: list[int] = place_entries(
            written, np.array(sizes, np.int64), files.file_size
        ).tolist()
        places: dict[int, tuple[int, int]] = {}
        for position, size in zip(positions, sizes, strict=True):
            start, _ = places.get(files.base_of(position), (position, 0))
            places[files.base_of(position)] = start, position + size
        files.prepare(list(places.values()), written)
        self._index.prepare(next_index, len(sizes))
        return positions
