"""Java's `String.hashCode` of many byte spans at once, with numpy; see `java_hash`.

ASCII bytes are their own code units, so their hash is a dot product of the bytes with the
powers of 31: `java_hashes` does that for all rows in one go. What is not ASCII, or long, is
hashed each for itself, by `java_hash`, with which all functions here agree.

Pure; called by the store, on any thread.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyromq.protocol.java.string_hash import decode_utf8, java_hash_bytes

#: 31 ** k modulo 2 ** 32 for k = 0, 1, ...: enough for any properties of a record.
_TABLE_SIZE: Final = 1 << 15
#: Spans up to this length are hashed together; the few longer ones each for itself.
MAX_WINDOW: Final = 64
_HASH_MASK: Final = 0xFFFFFFFF


def java_hashes(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The hash of `data[start : start + length]` of every row, and its length in code units.

    The second is what `continue_hashes` wants; it differs from the length in bytes only
    where a span is not ASCII. `data` is contiguous and the spans lie inside it.
    """
    if not starts.size:
        return np.zeros(0, np.uint32), lengths
    # `reduce` itself: the arrays' own max() and min() cost twice as much for few rows.
    width = int(np.maximum.reduce(lengths))
    ends = starts + lengths
    if width > MAX_WINDOW or int(np.minimum.reduce(ends)) < width:
        alone = (lengths > MAX_WINDOW) | (ends < MAX_WINDOW)
        return _hash_some_alone(data, starts, lengths, alone)
    if width == 0:
        return np.zeros(starts.size, np.uint32), lengths
    # Each window ends where its span ends: shorter spans are padded with zeros on the
    # left, which add nothing to the sum.
    windows: NDArray[np.void] = np.ndarray((data.size - width + 1,), _WINDOWS[width], data, 0, (1,))
    units = windows[ends - width].view(np.uint8).reshape(-1, width)
    if int(np.minimum.reduce(lengths)) < width:
        padding = (width - lengths).astype(np.uint8)
        units *= _COLUMNS[:width] >= padding[:, None]
    if np.maximum.reduce(units, axis=None) > 0x7F:
        return _hash_some_alone(data, starts, lengths, (units > 0x7F).any(axis=1))
    return np.einsum("ij,j->i", units, _DESCENDING[_TABLE_SIZE - width :]), lengths


def continue_hashes(
    initial: NDArray[np.uint32], hashes: NDArray[np.uint32], units: NDArray[np.int64]
) -> NDArray[np.int32]:
    """The hashes of texts that begin with what hashes to `initial` and go on with spans
    of these hashes and lengths; no span is longer than a record's properties can be.
    """
    return (initial * _ASCENDING[units] + hashes).view(np.int32)


def index_key_hashes(hashes: NDArray[np.int32]) -> NDArray[np.int32]:
    """`index_key_hash` of many."""
    positive: NDArray[np.int32] = np.abs(hashes) & np.int32(0x7FFFFFFF)
    return positive


def hash_long(units: bytes | memoryview) -> int:
    """The hash of one long text's code units, not signed; `java_hash` calls this."""
    total = 0
    numbers = np.frombuffer(units, np.uint8 if isinstance(units, bytes) else np.uint16)
    for begin in range(0, numbers.size, _TABLE_SIZE):
        part = numbers[begin : begin + _TABLE_SIZE].astype(np.uint32)
        dot = int(part @ _DESCENDING[_TABLE_SIZE - part.size :])
        total = (total * pow(31, part.size, 1 << 32) + dot) & _HASH_MASK
    return total


def _hash_some_alone(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    alone: NDArray[np.bool_],
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Rows that are long, not ASCII or at the very beginning of `data`: each for itself."""
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


def _powers() -> NDArray[np.uint32]:
    powers = np.full(_TABLE_SIZE, 31, np.uint32)
    powers[0] = 1
    return np.multiply.accumulate(powers, dtype=np.uint32)


_ASCENDING: Final = _powers()
_DESCENDING: Final = np.ascontiguousarray(_ASCENDING[::-1])
_WINDOWS: Final = tuple(np.dtype((np.void, width)) for width in range(MAX_WINDOW + 1))
_COLUMNS: Final = np.arange(MAX_WINDOW, dtype=np.uint8)
