"""Convert dataclasses to the extFields of requests and responses, and back.

A header class is a frozen dataclass that derives from `Header`, made by `header_class`. Its
annotations describe it completely (see `wire_types`). Every value on the wire is a string: numbers
in decimal, booleans as `true` and `false`. A field with a default may be absent; fields that are
None are not written. Unknown fields are ignored, because newer peers send them.

Pure. The plan of a class is built at its first use, so that decoding costs one dictionary lookup
and one conversion per field. The hot requests (send, pull) have their own decoders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
from typing import Any, Self, TypeVar, cast, dataclass_transform, get_type_hints

from pyromq.base.light_dataclass import (
    LightDataclass,
    light_dataclass,
    set_field,
    values_of,
)
from pyromq.protocol.java.wire_types import (
    bare_type,
    integer_range,
    parse_integer,
    wire_name,
    without_none,
)


class HeaderError(ValueError):
    """A header with a missing or invalid field; the message names the class and the field."""


class Header(LightDataclass):
    """Base class of all headers."""

    __slots__ = ()

    @classmethod
    def decode(cls, ext_fields: Mapping[str, str]) -> Self:
        """Decode a header from extFields. Raises `HeaderError`."""
        header = cls.__new__(cls)
        for field in _plan(cls):
            text = ext_fields.get(field.wire_name)
            if text is None:
                if field.default is MISSING:
                    raise HeaderError(f"{cls.__name__}: field {field.wire_name} is missing")
                set_field(header, field.attribute, field.default)
                continue
            if field.read is None:
                set_field(header, field.attribute, text)
                continue
            try:
                set_field(header, field.attribute, field.read(text))
            except ValueError as error:
                raise HeaderError(f"{cls.__name__}: field {field.wire_name}: {error}") from None
        return header

    def encode(self) -> dict[str, str]:
        """Return the extFields of this header."""
        ext_fields = {}
        for field in _plan(type(self)):
            value = getattr(self, field.attribute)
            if value is not None:
                ext_fields[field.wire_name] = value if field.write is None else field.write(value)
        return ext_fields

    def __hash__(self) -> int:
        return hash(values_of(self))

    __eq__ = LightDataclass.__eq__

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), values_of(self)


_HeaderType = TypeVar("_HeaderType", bound=Header)


@dataclass_transform(frozen_default=True)
def header_class(cls: type[_HeaderType]) -> type[_HeaderType]:
    """Turn an annotated class into a header: a frozen dataclass with slots."""
    return light_dataclass(cls)


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """The names of one field, and how to read and write it."""

    attribute: str
    wire_name: str
    #: MISSING if the field is required.
    default: Any
    #: None if the value is the text itself.
    read: Callable[[str], Any] | None
    write: Callable[[Any], str] | None


_plans: dict[type[Header], tuple[FieldPlan, ...]] = {}


def _plan(header: type[Header]) -> tuple[FieldPlan, ...]:
    plan = _plans.get(header)
    if plan is None:
        plan = _plans[header] = _build_plan(header)
    return plan


def _build_plan(header: type[Header]) -> tuple[FieldPlan, ...]:
    annotations = get_type_hints(header, include_extras=True)
    return tuple(
        _build_field(field.name, field.default, annotations[field.name])
        for field in fields(cast(Any, header))
    )


def _build_field(attribute: str, default: Any, annotation: Any) -> FieldPlan:
    name = wire_name(attribute, annotation)
    kind = bare_type(without_none(annotation))
    if kind is str:
        return FieldPlan(attribute, name, default, None, None)
    if kind is bool:
        return FieldPlan(attribute, name, default, _read_boolean, _write_boolean)
    if kind is int:
        limits = integer_range(annotation)
        return FieldPlan(attribute, name, default, lambda text: parse_integer(text, limits), str)
    raise TypeError(f"{attribute}: a header cannot hold {annotation}")


def _read_boolean(text: str) -> bool:
    # As in Java, everything but "true" is false.
    return text.lower() == "true"


def _write_boolean(value: bool) -> str:
    return "true" if value else "false"
