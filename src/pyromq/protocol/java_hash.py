"""Java's `String.hashCode`, of one text and of many byte spans at once.

    hash = sum of unit[i] * 31 ** (length - 1 - i), modulo 2 ** 32, read as signed

over UTF-16 code units. Consume queues keep it of tags, the key index of
`topic#key`. ASCII bytes are their own code units, so their hash is a dot product of
the bytes with the powers of 31: `java_hashes` does that for all rows in one go.
Anything else is decoded first, as Java decodes what is in a record.

Invariants
1. All functions here agree: `java_hashes` of a span is `java_hash_bytes` of its bytes,
   which is `java_hash` of what Java reads from them, also when they are no UTF-8.
2. hash(a + b) = hash(a) * 31 ** len(b) + hash(b): that is how a topic's hash goes on
   with a key's.

Pure; called from any thread.
"""

from __future__ import annotations

import re
import sys
from operator import mul
from typing import Final

import numpy as np
from numpy.typing import NDArray

#: 31 ** k modulo 2 ** 32 for k = 0, 1, ...: enough for any properties of a record.
_TABLE_SIZE: Final = 1 << 15
#: Spans up to this length are hashed together; the few longer ones each for itself.
MAX_WINDOW: Final = 64
_HASH_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
_UTF_16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
#: A UTF-8 encoded surrogate, also a truncated one, is one malformed character for Java;
#: Python counts each of its bytes.
_ENCODED_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def java_hash(text: str) -> int:
    """`text.hashCode()` as Java computes it, signed."""
    if text.isascii():
        return _signed(_hash_units(text.encode()))
    units = memoryview(text.encode(_UTF_16, "surrogatepass")).cast("H")
    return _signed(_hash_units(units))


def java_hash_bytes(utf8: bytes) -> int:
    """`new String(utf8, UTF_8).hashCode()` as Java computes it, signed."""
    if utf8.isascii():
        return _signed(_hash_units(utf8))
    return java_hash(decode_utf8(utf8))


def index_key_hash(java_hash_code: int) -> int:
    """What the key index keeps of a hash: never negative, the minimum value becomes 0."""
    return abs(java_hash_code) & 0x7FFFFFFF


def continue_hash(initial: int, utf8: bytes) -> int:
    """The hash of a text whose beginning hashes to `initial` and that goes on with `utf8`."""
    if utf8.isascii():
        length = len(utf8)
        if length <= MAX_WINDOW:
            return _signed(initial * _POWERS[length] + sum(map(mul, utf8[::-1], _POWERS)))
        units: bytes | memoryview = utf8
    else:
        units = memoryview(decode_utf8(utf8).encode(_UTF_16, "surrogatepass")).cast("H")
        length = len(units)
    return _signed(initial * pow(31, length, 1 << 32) + _hash_units(units))


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


def decode_utf8(utf8: bytes) -> str:
    """The text that Java reads from these bytes: what is malformed becomes U+FFFD."""
    try:
        return utf8.decode()
    except UnicodeDecodeError:
        return _ENCODED_SURROGATE.sub(b"\xef\xbf\xbd", utf8).decode(errors="replace")


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
            units[row] = len(decode_utf8(utf8).encode(_UTF_16, "surrogatepass")) // 2
    return hashes, units


def _hash_units(units: bytes | memoryview) -> int:
    """The sum itself, not yet reduced to 32 bits."""
    length = len(units)
    if length <= MAX_WINDOW:
        return sum(map(mul, units[::-1], _POWERS))
    total = 0
    numbers = np.frombuffer(units, np.uint8 if isinstance(units, bytes) else np.uint16)
    for begin in range(0, length, _TABLE_SIZE):
        part = numbers[begin : begin + _TABLE_SIZE].astype(np.uint32)
        dot = int(part @ _DESCENDING[_TABLE_SIZE - part.size :])
        total = (total * pow(31, part.size, 1 << 32) + dot) & _HASH_MASK
    return total


def _signed(value: int) -> int:
    return ((value + _SIGN) & _HASH_MASK) - _SIGN


def _powers() -> NDArray[np.uint32]:
    powers = np.full(_TABLE_SIZE, 31, np.uint32)
    powers[0] = 1
    return np.multiply.accumulate(powers, dtype=np.uint32)


_ASCENDING: Final = _powers()
_DESCENDING: Final = np.ascontiguousarray(_ASCENDING[::-1])
_POWERS: Final[tuple[int, ...]] = tuple(_ASCENDING[: MAX_WINDOW + 1].tolist())
_WINDOWS: Final = tuple(np.dtype((np.void, width)) for width in range(MAX_WINDOW + 1))
_COLUMNS: Final = np.arange(MAX_WINDOW, dtype=np.uint8)
