"""Java's `String.hashCode` of one text; `java_hashes` has it of many byte spans at once.

    hash = sum of unit[i] * 31 ** (length - 1 - i), modulo 2 ** 32, read as signed

over UTF-16 code units. Consume queues keep it of tags, the key index of
`topic#key`. ASCII bytes are their own code units. Anything else is decoded first, as
Java decodes what is in a record.

Invariants
1. All functions agree: `java_hash_bytes` of bytes is `java_hash` of what Java reads from
   them, also when they are no UTF-8.
2. hash(a + b) = hash(a) * 31 ** len(b) + hash(b): that is how a topic's hash goes on
   with a key's.

Without numpy, but for long texts: clients need this, and start in half the time. Pure; called
from any thread.
"""

from __future__ import annotations

import re
import sys
from operator import mul
from typing import Final

#: As many units are summed up in one go.
_STEP: Final = 64
#: What is longer is worth numpy.
_LONG: Final = 512
#: 31 ** k modulo 2 ** 32.
_POWERS: Final = tuple(pow(31, exponent, 1 << 32) for exponent in range(_STEP + 1))
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
        if length <= _STEP:
            return _signed(initial * _POWERS[length] + sum(map(mul, utf8[::-1], _POWERS)))
        units: bytes | memoryview = utf8
    else:
        units = memoryview(decode_utf8(utf8).encode(_UTF_16, "surrogatepass")).cast("H")
        length = len(units)
    return _signed(initial * pow(31, length, 1 << 32) + _hash_units(units))


def decode_utf8(utf8: bytes) -> str:
    """The text that Java reads from these bytes: what is malformed becomes U+FFFD."""
    try:
        return utf8.decode()
    except UnicodeDecodeError:
        return _ENCODED_SURROGATE.sub(b"\xef\xbf\xbd", utf8).decode(errors="replace")


def _hash_units(units: bytes | memoryview) -> int:
    """The sum itself, not yet reduced to 32 bits."""
    length = len(units)
    if length <= _STEP:
        return sum(map(mul, units[::-1], _POWERS))
    if length > _LONG:
        from pyromq.protocol.java.string_hashes import hash_long

        return hash_long(units)
    total = 0
    for begin in range(0, length, _STEP):
        part = units[begin : begin + _STEP]
        total = (total * _POWERS[len(part)] + sum(map(mul, part[::-1], _POWERS))) & _HASH_MASK
    return total


def _signed(value: int) -> int:
    return ((value + _SIGN) & _HASH_MASK) - _SIGN
