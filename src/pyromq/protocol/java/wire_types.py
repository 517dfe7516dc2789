"""Types of fields on the wire, as annotations that the codecs read.

Java's `int` and `long` are both `int` in Python, so a field states its type: `queue_id: Int32`,
`queue_offset: Int64`. A field's wire name is its attribute name in camelCase (`queue_id` ->
`queueId`). If Java's name differs, the field states it: `client_id: Annotated[str,
Wire("clientID")]`.

Pure. `header_codec` and `body_codec` read annotations once per class, never per message.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin


@dataclass(frozen=True, slots=True)
class IntegerRange:
    """The smallest and largest value of a Java integer type."""

    name: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Wire:
    """A wire name that is not the camelCase form of the attribute's name."""

    name: str


INT32 = IntegerRange("32-bit integer", -(2**31), 2**31 - 1)
INT64 = IntegerRange("64-bit integer", -(2**63), 2**63 - 1)

Int32 = Annotated[int, INT32]
Int64 = Annotated[int, INT64]

#: No legal number is longer. Also keeps Python from parsing huge numbers.
_MAX_DIGITS = 40


def wire_name(attribute: str, annotation: Any) -> str:
    """Return the name of an attribute on the wire."""
    for mark in _marks(annotation):
        if isinstance(mark, Wire):
            return mark.name
    head, *rest = attribute.split("_")
    return head + "".join(word.capitalize() for word in rest)


def integer_range(annotation: Any) -> IntegerRange:
    """Return the range of an integer annotation; a bare `int` has 64 bits."""
    for mark in _marks(annotation):
        if isinstance(mark, IntegerRange):
            return mark
    return INT64


def without_none(annotation: Any) -> Any:
    """Return `T` of `T | None` with its marks; return any other annotation unchanged."""
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        plain = without_none(inner)
        return Annotated[(plain, *marks)] if plain is not inner else annotation
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    choices = [choice for choice in get_args(annotation) if choice is not NoneType]
    if len(choices) != 1:
        raise TypeError(f"{annotation} has no single wire form")
    return choices[0]


def bare_type(annotation: Any) -> Any:
    """Strip an annotation's marks: `int` for `Int32`."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def parse_integer(text: str, limits: IntegerRange) -> int:
    """Parse a decimal number as Java's `parseInt` and `parseLong` do.

    Raises `ValueError` with the reason. Python's `int()` is too liberal for the wire: it accepts
    white space, underscores and numbers of any size.
    """
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isdigit() and digits.isascii()):
        raise ValueError(f"{shorten(text)} is not a number")
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"{shorten(text)} is out of range for a {limits.name}")
    return check_range(int(text), limits)


def check_range(value: int, limits: IntegerRange) -> int:
    """Return the value if its Java type can hold it; else raise `ValueError`."""
    if not limits.low <= value <= limits.high:
        raise ValueError(f"{value} is out of range for a {limits.name}")
    return value


def shorten(value: object, limit: int = 80) -> str:
    """Quote a value for an error message, cut so that no peer can flood a log."""
    if isinstance(value, str | bytes):
        value = value[: limit + 1]
    try:
        text = repr(value)
    except RecursionError:  # JSON may be nested deeper than Python can show
        text = f"a {type(value).__name__} nested too deep"
    return text if len(text) <= limit else text[:limit] + "..."


def _marks(annotation: Any) -> tuple[Any, ...]:
    """Return all marks of an annotation, including those inside a union."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *marks = get_args(annotation)
        return (*marks, *_marks(inner))
    if origin in (Union, UnionType):
        return tuple(mark for choice in get_args(annotation) for mark in _marks(choice))
    return ()
