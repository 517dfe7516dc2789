"""Compute Java's `String.hashCode` of many byte spans at once with numpy.

ASCII bytes are their own code units, so a hash is the dot product of the bytes with the powers of
31. `java_hashes` computes all rows together, except long and non-ASCII ones: `string_hash` hashes
those one by one. Both modules give the same results.

Pure; called by the store on any thread.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyromq.protocol.java.string_hash import (
    POWER_COUNT,
    decode_utf8,
    java_hash_bytes,
    powers_of_31,
)

#: Spans up to this length are hashed together, longer ones one by one.
MAX_WINDOW: Final = 64
_HASH_MASK: Final = 0xFFFFFFFF


def java_hashes(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return the hash of `data[start : start + length]` and its length in code units, per row.

    `continue_hashes` takes the length. It differs from the length in bytes only for spans that are
    not ASCII. `data` must be contiguous and contain all spans.
    """
    if not starts.size:
        return np.zeros(0, np.uint32), lengths
    # `reduce` instead of the max() and min() methods, which cost twice as much for few rows.
    width = int(np.maximum.reduce(lengths))
    ends = starts + lengths
    if width > MAX_WINDOW or int(np.minimum.reduce(ends)) < width:
        alone = (lengths > MAX_WINDOW) | (ends < MAX_WINDOW)
        return _hash_some_alone(data, starts, lengths, alone)
    if width == 0:
        return np.zeros(starts.size, np.uint32), lengths
    # Each window ends where its span ends. Zeros on the left of shorter spans add nothing to the
    # sum.
    windows: NDArray[np.void] = np.ndarray((data.size - width + 1,), _WINDOWS[width], data, 0, (1,))
    units = windows[ends - width].view(np.uint8).reshape(-1, width)
    if int(np.minimum.reduce(lengths)) < width:
        padding = (width - lengths).astype(np.uint8)
        units *= _COLUMNS[:width] >= padding[:, None]
    if np.maximum.reduce(units, axis=None) > 0x7F:
        return _hash_some_alone(data, starts, lengths, (units > 0x7F).any(axis=1))
    return np.einsum("ij,j->i", units, _DESCENDING[POWER_COUNT - width :]), lengths


def continue_hashes(
    initial: NDArray[np.uint32], hashes: NDArray[np.uint32], units: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Extend strings that hash to `initial` by spans with these hashes and lengths in code units.

    No span may be longer than the properties of a record.
    """
    return (initial * _ASCENDING[units] + hashes).view(np.int32)


def index_key_hashes(hashes: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return `index_key_hash` of each hash."""
    positive: NDArray[np.int32] = np.abs(hashes) & np.int32(0x7FFFFFFF)
    return positive


def _hash_some_alone(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    alone: NDArray[np.bool_],
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Hash the rows in `alone` one by one: long, not ASCII, or at the very start of `data`."""
    hashes = np.empty(starts.size, np.uint32)
    units = lengths.copy()
    together = ~alone
    hashes[together], units[together] = java_hashes(data, starts[together], lengths[together])
    for row in alone.nonzero()[0].tolist():
        start = int(starts[row])
        utf8 = data[start : start + int(lengths[row])].tobytes()
        hashes[row] = java_hash_bytes(utf8) & _HASH_MASK
        if not utf8.isascii():
            units[row] = len(decode_utf8(utf8).encode("utf-16-le", "surrogatepass")) // 2
    return hashes, units


_ASCENDING: Final = powers_of_31()
_DESCENDING: Final = np.ascontiguousarray(_ASCENDING[::-1])
_WINDOWS: Final = tuple(np.dtype((np.void, width)) for width in range(MAX_WINDOW + 1))
_COLUMNS: Final = np.arange(MAX_WINDOW, dtype=np.uint8)
