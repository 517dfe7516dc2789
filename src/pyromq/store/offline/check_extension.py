"""Check the consume-queue extension: its units, and the addresses that refer to them.

`load` walks the units of one queue up to the last one that an entry refers to. Later units were
truncated together with their entries, and are never read. `fits` compares the units of some entries
with their records.

Used by `check_queues`, with one object per queue that has an extension, on one thread. Files are
read in portions, and nothing is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyromq.base.sizes import MIB
from pyromq.protocol.message.bulk import Longs
from pyromq.protocol.message.unit_arrays import EXTENSION_UNIT_DTYPE
from pyromq.protocol.message.units import (
    EXTENSION_BASE,
    EXTENSION_END_SIZE,
    EXTENSION_UNIT,
    EXTENSION_UNIT_SIZE,
)
from pyromq.store.offline.check_files import SegmentFiles
from pyromq.store.offline.violation import Violation, ViolationKind

_READ_SIZE: Final = MIB
_END: Final = -1
_SIZE: Final = struct.Struct(">h")


class ExtensionCheck:
    """Checks the units of one queue."""

    def __init__(self, files: SegmentFiles, *, may_move: bool) -> None:
        self._files = files
        self._may_move = may_move
        #: The offset after the last unit that the walk reached.
        self.end = 0

    def load(self, last_address: int | None) -> Iterator[Violation]:
        """Check the files, and all units up to the last one that an entry refers to."""
        yield from self._files.load()
        self.end = self._files.first_offset
        if last_address is None:
            return
        last = last_address + EXTENSION_BASE
        for base in self._files.bases:
            if base > last:
                return
            self.end = base
            reason = self._walk(base, min(base + self._files.segment_size, last + 1))
            if reason is not None and not (self._may_move and self._is_empty_at(self.end)):
                yield self._violation(self.end, reason)

    def fits(self, addresses: Longs, tags_codes: Longs, times: Longs | None) -> NDArray[np.bool_]:
        """Return which addresses refer to a unit with that tags code and store time."""
        offsets = addresses ^ -EXTENSION_BASE  # adds 2 ** 63, which int64 cannot hold
        right = np.zeros(offsets.size, np.bool_)
        for base in self._files.bases:
            inside = offsets - base
            rows = np.flatnonzero((inside >= 0) & (inside < self._files.segment_size))
            if rows.size:
                units = self._units(base, inside[rows])
                whole = units["size"] == EXTENSION_UNIT_SIZE + units["bit_map_size"].astype(int)
                right[rows] = (
                    whole & (units["bit_map_size"] >= 0) & (units["tags_code"] == tags_codes[rows])
                )
                if times is not None:
                    right[rows] &= units["store_timestamp"] == times[rows]
        if self._may_move:
            # Units after the end of the walk are not written yet, or lost.
            right |= offsets >= self.end
        return right

    def _units(self, base: int, positions: Longs) -> NDArray[np.void]:
        """Read units at positions of a file, without their bit maps; zeros outside the file."""
        low, length = int(positions.min()), int(np.ptp(positions)) + EXTENSION_UNIT_SIZE
        data = np.frombuffer(self._files.read(base + low, length).ljust(length, b"\0"), np.uint8)
        heads = data[(positions - low)[:, None] + np.arange(EXTENSION_UNIT_SIZE)]
        units: NDArray[np.void] = np.ascontiguousarray(heads).view(EXTENSION_UNIT_DTYPE)[:, 0]
        return units

    def _walk(self, position: int, stop: int) -> str | None:
        """Walk from unit to unit up to `stop`; return why the walk ended early, or None."""
        segment_end = position - position % self._files.segment_size + self._files.segment_size
        while position < stop:
            data = self._files.read(position, _READ_SIZE)
            at = 0
            while position + at < stop and at + EXTENSION_UNIT_SIZE <= len(data):
                size, _, _, bit_map_size = EXTENSION_UNIT.unpack_from(data, at)
                if size == _END:
                    break
                if bit_map_size < 0 or size != EXTENSION_UNIT_SIZE + bit_map_size:
                    return f"invalid unit: size {size}, bit map of {bit_map_size} bytes"
                if position + at + size > segment_end - EXTENSION_END_SIZE:
                    return f"unit of {size} bytes crosses the end of its file"
                at += size
                self.end = position + at
            position += at
            if _SIZE.unpack_from(data.ljust(_SIZE.size + at, b"\0"), at)[0] == _END:
                return None
            if at == 0:
                return "neither a unit nor the end mark"
        return None

    def _is_empty_at(self, offset: int) -> bool:
        return not any(self._files.read(offset, EXTENSION_UNIT_SIZE))

    def _violation(self, offset: int, message: str) -> Violation:
        return Violation(ViolationKind.EXTENSION_UNIT, *self._files.place(offset), message)
