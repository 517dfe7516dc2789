"""Values in SQL92 filters, and how RocketMQ compares them: Java's types and conversions.

A property is a string, or null when a message has it not. Beside that there are the
literals' types: Integer (32 bits), Long, Double, Boolean. Of two types, one is converted:

    string with number    the string is read as the number's type; `5.5` is no Integer, and
                          3000000000 neither: that is an error, not "unequal"
    string with string    equal or not; by < > both are read as Doubles
    string = boolean      `true` in any case is true, everything else false
    boolean = string      an error
    Integer, Long         exactly; with a Double both are Doubles
    boolean with number   never equal

An error (MismatchError) means that the message is not wanted. Doubles are in Java's
total order: -0.0 is below 0.0, NaN is above all and equals itself.

A producer chooses the texts, up to 32 KB each. Reading one takes time linear in its length
(no pattern backtracks), and an expression that compares a long one a thousand times reads it
once: `_long_doubles` and its kin remember the last ones.

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
    """Two values of one message that cannot be compared."""


class Type(Enum):
    """What an operand is for all messages, if it is not null."""

    STRING = auto()
    INTEGER = auto()
    LONG = auto()
    DOUBLE = auto()
    BOOLEAN = auto()
    NULL = auto()


NUMBERS: Final = frozenset((Type.INTEGER, Type.LONG, Type.DOUBLE))

#: So many digits and more may be beyond an Integer.
_SURE_DIGITS: Final = 10
_INT_LIMIT: Final = 1 << 31
_LONG_LIMIT: Final = 1 << 63
#: Digits of 2 ** 63. A longer number is out of range, unless it begins with zeros.
_LONG_DIGITS: Final = 19
#: Longer texts are read once and remembered, as many of them as this.
_LONG_TEXT: Final = 64
_MAX_LONG_TEXTS: Final = 64
#: Decimal digits of any script, but of the first plane only, as Java reads them.
_INTEGER: Final = re.compile(r"[+-]?(?P<digits>\d++)")
_PLANE: Final = "\uffff"
_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))
_DOUBLE: Final = re.compile(
    r"(?P<decimal>[+-]?(?:NaN|Infinity|(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?))"
    r"(?P<suffix>[fFdD]?)"
)
_HEX_DOUBLE: Final = re.compile(
    r"(?P<hex>[+-]?0[xX](?:[0-9a-fA-F]++\.?[0-9a-fA-F]*+|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++)[fFdD]?"
)


def read_integer(text: str) -> int:
    """What Integer.valueOf gives."""
    if len(text) < _SURE_DIGITS and text.isascii() and text.isdigit():
        return int(text)  # the usual case, at a fifth of the cost
    return _within(text, _INT_LIMIT)


def read_long(text: str) -> int:
    """What Long.valueOf gives."""
    return _within(text, _LONG_LIMIT)


def _within(text: str, limit: int) -> int:
    value = _read_whole(text) if len(text) <= _LONG_TEXT else _long_wholes[text]
    if not -limit <= value < limit:
        raise _out_of_range(text)
    return value


def _read_whole(text: str) -> int:
    found = _INTEGER.fullmatch(text)
    if found is None or max(text) > _PLANE:
        raise MismatchError(f"{text!r:.40} is no whole number")
    if len(text) <= _LONG_DIGITS:
        return int(text)
    # int() takes 4,300 digits at most, zeros before them included.
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
    """What Double.valueOf gives: blanks around, `1d`, `0x1p3` and `NaN` are numbers, too."""
    return _read_double(text) if len(text) <= _LONG_TEXT else _long_doubles[text]


def _read_double(text: str) -> float:
    trimmed = text.strip(_JAVA_BLANKS)
    found = _DOUBLE.fullmatch(trimmed)
    if found is not None:
        decimal = found["decimal"]
        if not found["suffix"] or decimal[-1] not in "Ny":
            return float(decimal)
    found = _HEX_DOUBLE.fullmatch(trimmed)
    if found is None:
        raise MismatchError(f"{text!r:.40} is no number")
    try:
        return float.fromhex(found["hex"])
    except OverflowError:
        return -math.inf if trimmed[0] == "-" else math.inf


_long_wholes: Final = Memo(_read_whole, max_entries=_MAX_LONG_TEXTS, max_length=MAX_PROPERTIES)
_long_doubles: Final = Memo(_read_double, max_entries=_MAX_LONG_TEXTS, max_length=MAX_PROPERTIES)


def read_boolean(text: str) -> bool:
    """What Boolean.valueOf gives."""
    return text.lower() == "true"


def compare_doubles(left: float, right: float) -> int:
    """Below 0, 0 or above, in Java's total order."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right != 0:
        return 0
    first, second = _rank(left), _rank(right)
    return (first > second) - (first < second)


def _rank(value: float) -> int:
    """The order of those doubles that Python finds neither below nor above each other."""
    if math.isnan(value):
        return 1
    return 0 if math.copysign(1.0, value) > 0 else -1


@cache
def comparison(left: Type, right: Type, *, by_order: bool) -> Comparison:
    """How values of these types are compared, none of them null; by < and > or for equality.

    The comparison gives below 0, 0 or above, or raises MismatchError. The literal null is
    no type that gets here with a value.
    """
    if left is Type.STRING and right is Type.STRING:
        return _compare_numeric_strings if by_order else _compare_plain
    if (left is right and left is not Type.DOUBLE) or {left, right} <= _WHOLE:
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


#: How strings are read as values of other types.
READERS: Final[dict[Type, Callable[[str], Any]]] = {
    Type.INTEGER: read_integer,
    Type.LONG: read_long,
    Type.DOUBLE: read_double,
    Type.BOOLEAN: read_boolean,
}
_WHOLE: Final = frozenset((Type.INTEGER, Type.LONG))


def _compare_plain(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def _compare_as_doubles(left: float, right: float) -> int:
    # A Long beyond 2 ** 53 loses digits then, as in Java.
    return compare_doubles(float(left), float(right))


def _compare_numeric_strings(left: str, right: str) -> int:
    return compare_doubles(read_double(left), read_double(right))


def _compare_unlike(left: Any, right: Any) -> int:  # noqa: ARG001 - one of the comparisons
    return -1


def _refuse(left: Any, right: Any) -> int:
    raise MismatchError(f"{left!r:.40} is not to be compared with {right!r:.40}")
