"""Compare values in SQL92 filters like RocketMQ, with Java's types and conversions.

A property is a string, or null if the message does not have it. Literals are also Integer (32
bits), Long, Double or Boolean. If the types of two operands differ, one is converted:

    string with number    the string is parsed as the number's type; `5.5` and 3000000000 are not
                          Integers: that is an error, not "unequal"
    string with string    compared as text for equality, as Doubles by < and >
    string = boolean      `true` in any case is true, everything else false
    boolean = string      an error
    Integer, Long         exactly; with a Double both become Doubles
    boolean with number   never equal

On an error (MismatchError) the message does not match. Doubles are in Java's total order: -0.0 is
below 0.0, NaN is above all and equals itself.

Producers choose the strings, up to 32 KB each. Parsing takes linear time (no pattern backtracks).
An expression that compares a long string a thousand times parses it once: `_long_doubles` and
`_long_integers` cache the last ones.

Pure; used by `sql`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from enum import Enum, auto
from functools import cache
from typing import Any, Final

from pyromq.base.memo import Memo
from pyromq.protocol.message.properties import MAX_PROPERTIES

Comparison = Callable[[Any, Any], int]


class MismatchError(ValueError):
    """Two values that cannot be compared."""


class Type(Enum):
    """The type of an operand, for all messages in which it is not null."""

    STRING = auto()
    INTEGER = auto()
    LONG = auto()
    DOUBLE = auto()
    BOOLEAN = auto()
    NULL = auto()


NUMBERS: Final = frozenset((Type.INTEGER, Type.LONG, Type.DOUBLE))

#: Fewer digits always fit an Integer.
_INT_DIGITS: Final = 10
_INT_LIMIT: Final = 1 << 31
_LONG_LIMIT: Final = 1 << 63
#: Digits of 2 ** 63. A longer number is out of range, unless it has leading zeros.
_LONG_DIGITS: Final = 19
#: The values of longer strings are cached.
_MAX_UNCACHED_LENGTH: Final = 64
#: Strings in each cache.
_MAX_LONG_TEXTS: Final = 64
#: Like Java, accept decimal digits of any script in the basic multilingual plane.
_INTEGER: Final = re.compile(r"[+-]?(?P<digits>\d++)")
_LAST_OF_BASIC_PLANE: Final = "\uffff"
_JAVA_WHITE_SPACE: Final = "".join(map(chr, range(0x21)))
_DOUBLE: Final = re.compile(
    r"(?P<decimal>[+-]?(?:NaN|Infinity|(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?))"
    r"(?P<suffix>[fFdD]?)"
)
_HEX_DOUBLE: Final = re.compile(
    r"(?P<hex>[+-]?0[xX](?:[0-9a-fA-F]++\.?[0-9a-fA-F]*+|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++)[fFdD]?"
)


def read_integer(text: str) -> int:
    """Return the value of Java's Integer.valueOf. Raises MismatchError."""
    if len(text) < _INT_DIGITS and text.isascii() and text.isdigit():
        return int(text)  # the common case, at a fifth of the cost
    return _within(text, _INT_LIMIT)


def read_long(text: str) -> int:
    """Return the value of Java's Long.valueOf. Raises MismatchError."""
    return _within(text, _LONG_LIMIT)


def _within(text: str, limit: int) -> int:
    value = _parse_integer(text) if len(text) <= _MAX_UNCACHED_LENGTH else _long_integers[text]
    if not -limit <= value < limit:
        raise _out_of_range(text)
    return value


def _parse_integer(text: str) -> int:
    found = _INTEGER.fullmatch(text)
    if found is None or max(text) > _LAST_OF_BASIC_PLANE:
        raise MismatchError(f"{text!r:.40} is not an integer")
    if len(text) <= _LONG_DIGITS:
        return int(text)
    # int() accepts at most 4,300 digits, including leading zeros.
    digits = found["digits"]
    if not digits.isascii():
        digits = "".join(str(int(digit)) for digit in digits)
    digits = digits.lstrip("0")
    if len(digits) > _LONG_DIGITS:
        raise _out_of_range(text)
    return -int(digits or "0") if text[0] == "-" else int(digits or "0")


def _out_of_range(text: str) -> MismatchError:
    return MismatchError(f"{text:.40} is out of range")


def read_double(text: str) -> float:
    """Return the value of Java's Double.valueOf. Raises MismatchError.

    Java accepts surrounding white space, `1d`, `0x1p3` and `NaN`.
    """
    return _parse_double(text) if len(text) <= _MAX_UNCACHED_LENGTH else _long_doubles[text]


def _parse_double(text: str) -> float:
    trimmed = text.strip(_JAVA_WHITE_SPACE)
    found = _DOUBLE.fullmatch(trimmed)
    if found is not None:
        decimal = found["decimal"]
        if not found["suffix"] or decimal[-1] not in "Ny":
            return float(decimal)
    found = _HEX_DOUBLE.fullmatch(trimmed)
    if found is None:
        raise MismatchError(f"{text!r:.40} is not a number")
    try:
        return float.fromhex(found["hex"])
    except OverflowError:
        return -math.inf if trimmed[0] == "-" else math.inf


_long_integers: Final = Memo(_parse_integer, max_entries=_MAX_LONG_TEXTS, max_length=MAX_PROPERTIES)
_long_doubles: Final = Memo(_parse_double, max_entries=_MAX_LONG_TEXTS, max_length=MAX_PROPERTIES)


def read_boolean(text: str) -> bool:
    """Return the value of Java's Boolean.valueOf."""
    return text.lower() == "true"


def compare_doubles(left: float, right: float) -> int:
    """Compare in Java's total order; return a number below, equal to or above 0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right != 0:
        return 0
    first, second = _rank(left), _rank(right)
    return (first > second) - (first < second)


def _rank(value: float) -> int:
    """Order the doubles that Python cannot order: -0.0, 0.0, NaN."""
    if math.isnan(value):
        return 1
    return 0 if math.copysign(1.0, value) > 0 else -1


@cache
def comparison(left: Type, right: Type, *, by_order: bool) -> Comparison:
    """Return the comparison of non-null values of these types, for < and > or for equality.

    It returns a number below, equal to or above 0, or raises MismatchError. No value has the type
    of the literal null.
    """
    if left is Type.STRING and right is Type.STRING:
        return _compare_numeric_strings if by_order else _compare_plain
    if (left is right and left is not Type.DOUBLE) or {left, right} <= _INTEGERS:
        return _compare_plain
    if left in NUMBERS and right in NUMBERS:
        return _compare_as_doubles
    if left is Type.STRING and right in READERS:
        read = READERS[right]
        compare = comparison(right, right, by_order=by_order)
        return lambda text, value: compare(read(text), value)
    if right is Type.STRING and left in NUMBERS:
        read = READERS[left]
        compare = comparison(left, left, by_order=by_order)
        return lambda value, text: compare(value, read(text))
    if right is Type.STRING and left is Type.BOOLEAN:
        return _refuse
    return _compare_unlike


#: Parse a string as a value of another type.
READERS: Final[dict[Type, Callable[[str], Any]]] = {
    Type.INTEGER: read_integer,
    Type.LONG: read_long,
    Type.DOUBLE: read_double,
    Type.BOOLEAN: read_boolean,
}
_INTEGERS: Final = frozenset((Type.INTEGER, Type.LONG))


def _compare_plain(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def _compare_as_doubles(left: float, right: float) -> int:
    # A Long above 2 ** 53 loses digits, as in Java.
    return compare_doubles(float(left), float(right))


def _compare_numeric_strings(left: str, right: str) -> int:
    return compare_doubles(read_double(left), read_double(right))


def _compare_unlike(left: Any, right: Any) -> int:  # noqa: ARG001 - a Comparison
    return -1


def _refuse(left: Any, right: Any) -> int:
    raise MismatchError(f"{left!r:.40} cannot be compared with {right!r:.40}")
