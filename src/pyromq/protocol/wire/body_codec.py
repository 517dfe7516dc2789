"""Convert dataclasses to JSON bodies, and back.

A body class is a dataclass that derives from `Body` (`body_class` makes one quickly). Its
annotations describe it completely. Wire names are the camelCase attribute names (or `Wire`), in
alphabetical order, as fastjson writes a bean. Supported annotations: `str`, `bool`, `Int32`,
`Int64`, `float`, an `Enum` (names of members on the wire), another body, `T | None`, `list[T]`,
`set[T]` (sorted on the wire) and `dict[K, T]` with K `str`, an integer or a frozen body.

Reading is as liberal as fastjson, because clients in other languages rely on it: unknown fields are
ignored; an absent or null field gets its default (and is an error without one); numbers and
booleans may be strings, an enum its ordinal. An enum with a member OTHER reads names of newer peers
as that. Anything else is a `BodyError` that names class and
field. Fields that are None are not written.

Pure. Readers and writers are built once per class, at its first use.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import (
    Any,
    Final,
    Self,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from pyromq.base.light_dataclass import (
    LightDataclass,
    default_of,
    light_dataclass,
    set_field,
)
from pyromq.protocol.java.fastjson import BodyError, ObjectKey, dump_json, parse_json
from pyromq.protocol.java.wire_types import (
    bare_type,
    check_range,
    integer_range,
    parse_integer,
    shorten,
    wire_name,
    without_none,
)

#: The member of an enum that takes unknown names.
_OTHER: Final = "OTHER"

_Reader = Callable[[Any], Any]
_Writer = Callable[[Any], Any]


class Body(LightDataclass):
    """Base class of all JSON bodies."""

    __slots__ = ()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body from JSON. Raises `BodyError`."""
        # Only classes with integer or object keys use fastjson's non-standard form.
        value = parse_json(data, standard_json=not _plan(cls).has_other_keys)
        return cls.from_value(value)

    def encode(self, *, standard_json: bool = False) -> bytes:
        """Encode as JSON. Integer keys of maps are unquoted, as in RocketMQ 4.9.

        With `standard_json` they are quoted.
        """
        return dump_json(self.to_value(), standard_json=standard_json)

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """Build a body from a parsed JSON object. Raises `BodyError`."""
        if not isinstance(value, dict):
            raise BodyError(f"{cls.__name__} is not a JSON object: {shorten(value)}")
        body = cls.__new__(cls)
        for field in _plan(cls).fields:
            item = value.get(field.wire_name)
            if item is not None:
                try:
                    set_field(body, field.attribute, field.read(item))
                except BodyError as error:
                    raise BodyError(f"{cls.__name__}.{field.wire_name}: {error}") from None
            elif field.default is None:
                raise BodyError(f"{cls.__name__}.{field.wire_name} is missing")
            else:
                set_field(body, field.attribute, field.default())
        return body

    def to_value(self) -> dict[str, Any]:
        """Return the body as plain values for `dump_json`."""
        value = {}
        for field in _plan(type(self)).fields:
            item = getattr(self, field.attribute)
            if item is not None:
                value[field.wire_name] = item if field.write is None else field.write(item)
        return value


_BodyType = TypeVar("_BodyType", bound=Body)


@dataclass_transform(field_specifiers=(dataclasses.field,))
def body_class(cls: type[_BodyType]) -> type[_BodyType]:
    """Turn an annotated class into a body: a dataclass with slots (see `light_dataclass`)."""
    return light_dataclass(cls)


@dataclass(frozen=True, slots=True)
class _Field:
    attribute: str
    wire_name: str
    default: Callable[[], Any] | None  # None if the field is required
    read: _Reader
    write: _Writer | None  # None if the value is already plain


@dataclass(frozen=True, slots=True)
class _Plan:
    fields: tuple[_Field, ...]
    has_other_keys: bool


_plans: dict[type[Body], _Plan] = {}


def _plan(body: type[Body]) -> _Plan:
    plan = _plans.get(body)
    if plan is None:
        plan = _plans[body] = _build_plan(body)
    return plan


def _build_plan(body: type[Body]) -> _Plan:
    annotations = get_type_hints(body, include_extras=True)
    planned = []
    for field in fields(cast(Any, body)):
        annotation = annotations[field.name]
        plain = without_none(annotation)
        planned.append(
            _Field(
                attribute=field.name,
                wire_name=wire_name(field.name, annotation),
                default=default_of(field.default, field.default_factory),
                read=_reader(plain),
                write=_writer(plain),
            )
        )
    planned.sort(key=lambda item: item.wire_name)
    other_keys = any(_has_other_keys(annotations[item.attribute]) for item in planned)
    return _Plan(tuple(planned), other_keys)


def _has_other_keys(annotation: Any) -> bool:
    bare = bare_type(annotation)
    arguments = get_args(bare)
    if get_origin(bare) is dict and bare_type(arguments[0]) is not str:
        return True
    if isinstance(bare, type) and issubclass(bare, Body):
        return _plan(bare).has_other_keys
    return any(_has_other_keys(argument) for argument in arguments)


def _reader(annotation: Any) -> _Reader:
    """Return the function that converts a parsed JSON value to this annotation's type."""
    bare = bare_type(annotation)
    origin, arguments = get_origin(bare), get_args(bare)
    if origin in (list, set):
        return _collection_reader(origin, _reader(arguments[0]))
    if origin is dict:
        return _map_reader(_key_reader(arguments[0]), _reader(arguments[1]))
    if origin in (Union, types.UnionType):
        return _reader(without_none(bare))
    if bare is str:
        return _read_text
    if bare is bool:
        return _read_boolean
    if bare is int:
        limits = integer_range(annotation)
        return lambda value: _read_integer(value, limits)
    if bare is float:
        return _read_double
    if issubclass(bare, Enum):
        members = tuple(bare)
        return lambda value: _read_enum(value, bare, members)
    if issubclass(bare, Body):
        return cast(_Reader, bare.from_value)
    raise TypeError(f"{annotation} has no JSON form")


def _collection_reader(make: Callable[[Any], Any], read: _Reader) -> _Reader:
    def read_collection(value: Any) -> Any:
        if not isinstance(value, list):
            raise BodyError(f"{shorten(value)} is not a JSON array")
        return make(read(item) for item in value)

    return read_collection


def _map_reader(read_key: _Reader, read: _Reader) -> _Reader:
    def read_map(value: Any) -> Any:
        if not isinstance(value, dict):
            raise BodyError(f"{shorten(value)} is not a JSON object")
        return {read_key(key): read(item) for key, item in value.items()}

    return read_map


def _key_reader(annotation: Any) -> _Reader:
    bare = bare_type(annotation)
    if isinstance(bare, type) and issubclass(bare, Body):
        return lambda text: bare.from_value(parse_json(text))
    return _reader(annotation)


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise BodyError(f"{shorten(value)} is not a string")
    return value


def _read_boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise BodyError(f"{shorten(value)} is not true or false")


def _read_integer(value: Any, limits: Any) -> int:
    try:
        if type(value) is int:
            return check_range(value, limits)
        if isinstance(value, str):
            return parse_integer(value, limits)
    except ValueError as error:
        raise BodyError(str(error)) from None
    raise BodyError(f"{shorten(value)} is not a {limits.name}")


def _read_double(value: Any) -> float:
    if type(value) in (int, float, str):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise BodyError(f"{shorten(value)} is not a number")


def _read_enum(value: Any, enum: type[Enum], members: tuple[Enum, ...]) -> Enum:
    if isinstance(value, str) and value in enum.__members__:
        return enum[value]
    if type(value) is int and 0 <= value < len(members):
        return members[value]
    if type(value) in (str, int) and _OTHER in enum.__members__:
        return enum[_OTHER]
    raise BodyError(f"{shorten(value)} is not one of {', '.join(enum.__members__)}")


def _writer(annotation: Any) -> _Writer | None:
    """Return the function that converts a value to plain JSON values; None if it is plain."""
    bare = bare_type(annotation)
    origin, arguments = get_origin(bare), get_args(bare)
    if origin in (Union, types.UnionType):
        return _writer(without_none(bare))
    if origin is list:
        return _list_writer(_writer(arguments[0]))
    if origin is set:
        return _set_writer(_writer(arguments[0]))
    if origin is dict:
        return _map_writer(_key_writer(arguments[0]), _writer(arguments[1]))
    if issubclass(bare, Enum):
        return lambda value: value.name
    if issubclass(bare, Body):
        return cast(_Writer, bare.to_value)
    return None


def _list_writer(write: _Writer | None) -> _Writer | None:
    return None if write is None else lambda value: [write(item) for item in value]


def _set_writer(write: _Writer | None) -> _Writer:
    return sorted if write is None else lambda value: [write(item) for item in sorted(value)]


def _map_writer(write_key: _Writer | None, write: _Writer | None) -> _Writer | None:
    if write_key is None:
        if write is None:
            return None
        return lambda value: {key: write(item) for key, item in value.items()}
    write_item = write or _identity
    return lambda value: {write_key(key): write_item(item) for key, item in value.items()}


def _key_writer(annotation: Any) -> _Writer | None:
    bare = bare_type(annotation)
    if isinstance(bare, type) and issubclass(bare, Body):
        return lambda key: ObjectKey(key.encode().decode())
    return None


def _identity(value: Any) -> Any:
    return value
