"""Compute Java's `String.hashCode` of one string; `string_hashes` does it for many byte spans.

    hash = sum of unit[i] * 31 ** (length - 1 - i), modulo 2 ** 32, read as signed

over UTF-16 code units. Consume queues store the hash of tags, the key index that of `topic#key`.
ASCII bytes are their own code units. Other bytes are decoded first, the way Java decodes them.

Invariants
1. All functions agree: `java_hash_bytes(b)` is `java_hash` of the string that Java reads from `b`,
   even if `b` is not valid UTF-8.
2. hash(a + b) = hash(a) * 31 ** len(b) + hash(b). `continue_hash` uses this to extend the hash of a
   topic with a key.

numpy is loaded only for long strings: clients import this module, and start in half the time
without numpy. Pure; callable from any thread.
"""

from __future__ import annotations

import functools
import re
import sys
from operator import mul
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Units that one `sum` call handles.
_UNITS_PER_SUM: Final = 64
#: Longer strings are hashed with numpy.
_MAX_UNITS_WITHOUT_NUMPY: Final = 512
#: 31 ** k modulo 2 ** 32.
_POWERS: Final = tuple(pow(31, exponent, 1 << 32) for exponent in range(_UNITS_PER_SUM + 1))
#: The length of `powers_of_31`, enough for the properties of any record.
POWER_COUNT: Final = 1 << 15
_HASH_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
_UTF_16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
#: Java decodes a UTF-8 encoded surrogate, even a truncated one, as one malformed character;
#: Python replaces each of its bytes.
_ENCODED_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def java_hash(text: str) -> int:
    """Return `text.hashCode()` as Java computes it, signed."""
    if text.isascii():
        return _signed(_hash_units(text.encode()))
    units = memoryview(text.encode(_UTF_16, "surrogatepass")).cast("H")
    return _signed(_hash_units(units))


def java_hash_bytes(utf8: bytes) -> int:
    """Return `new String(utf8, UTF_8).hashCode()` as Java computes it, signed."""
    if utf8.isascii():
        return _signed(_hash_units(utf8))
    return java_hash(decode_utf8(utf8))


def index_key_hash(java_hash_code: int) -> int:
    """Return the form of a hash that the key index stores: never negative, the minimum as 0."""
    return abs(java_hash_code) & 0x7FFFFFFF


def continue_hash(initial: int, utf8: bytes) -> int:
    """Return the hash of a string that starts with one that hashes to `initial`, then `utf8`."""
    if utf8.isascii():
        length = len(utf8)
        if length <= _UNITS_PER_SUM:
            return _signed(initial * _POWERS[length] + sum(map(mul, utf8[::-1], _POWERS)))
        units: bytes | memoryview = utf8
    else:
        units = memoryview(decode_utf8(utf8).encode(_UTF_16, "surrogatepass")).cast("H")
        length = len(units)
    return _signed(initial * pow(31, length, 1 << 32) + _hash_units(units))


def decode_utf8(utf8: bytes) -> str:
    """Decode bytes as Java does: malformed sequences become U+FFFD."""
    try:
        return utf8.decode()
    except UnicodeDecodeError:
        return _ENCODED_SURROGATE.sub(b"\xef\xbf\xbd", utf8).decode(errors="replace")


def _hash_units(units: bytes | memoryview) -> int:
    """Return the sum, possibly not yet reduced to 32 bits."""
    length = len(units)
    if length <= _UNITS_PER_SUM:
        return sum(map(mul, units[::-1], _POWERS))
    if length > _MAX_UNITS_WITHOUT_NUMPY:
        return _hash_with_numpy(units)
    total = 0
    for begin in range(0, length, _UNITS_PER_SUM):
        part = units[begin : begin + _UNITS_PER_SUM]
        total = (total * _POWERS[len(part)] + sum(map(mul, part[::-1], _POWERS))) & _HASH_MASK
    return total


def _hash_with_numpy(units: bytes | memoryview) -> int:
    import numpy as np

    descending = powers_of_31()[::-1]
    numbers = np.frombuffer(units, np.uint8 if isinstance(units, bytes) else np.uint16)
    total = 0
    for begin in range(0, numbers.size, POWER_COUNT):
        part = numbers[begin : begin + POWER_COUNT].astype(np.uint32)
        dot = int(part @ descending[POWER_COUNT - part.size :])
        total = (total * pow(31, part.size, 1 << 32) + dot) & _HASH_MASK
    return total


@functools.cache
def powers_of_31() -> NDArray[np.uint32]:
    """Return 31 ** k modulo 2 ** 32 for k = 0, 1, ..., `POWER_COUNT` - 1."""
    import numpy as np

    powers = np.full(POWER_COUNT, 31, np.uint32)
    powers[0] = 1
    return np.multiply.accumulate(powers, dtype=np.uint32)


def _signed(value: int) -> int:
    return ((value + _SIGN) & _HASH_MASK) - _SIGN
