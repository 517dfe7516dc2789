"""Dataclasses that are cheap to define: they share their methods instead of compiling their own.

`dataclass` generates and compiles source for the methods of each class, which takes close to a
millisecond per class. Every program that speaks RocketMQ imports more than a hundred header and
body classes, but uses few of them. A class made by `light_dataclass` is a dataclass with slots
(`fields` and `replace` work) that inherits its methods from `LightDataclass`. In exchange, creating
an object takes two microseconds longer, so classes with many instances stay plain dataclasses.

Pure. Used by `header_codec` and `body_codec`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar, cast


class LightDataclass:
    """The methods that `dataclass` would generate, shared by all light dataclasses."""

    __slots__ = ()

    def __init__(self, *values: Any, **named: Any) -> None:
        shape = _shape(type(self))
        if len(values) > len(shape):
            raise TypeError(f"{type(self).__name__} has {len(shape)} fields, got {len(values)}")
        for name, value in zip(shape, values, strict=False):
            if name in named:
                raise TypeError(f"{type(self).__name__} got multiple values for {name}")
            named[name] = value
        for name, default in shape.items():
            value = named.pop(name, MISSING)
            if value is MISSING:
                if default is None:
                    raise TypeError(f"{type(self).__name__} is missing {name}")
                value = default()
            set_field(self, name, value)
        if named:
            raise TypeError(f"{type(self).__name__} has no fields {', '.join(named)}")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return values_of(other) == values_of(self)

    def __repr__(self) -> str:
        values = zip(_shape(type(self)), values_of(self), strict=True)
        named = ", ".join(f"{name}={value!r}" for name, value in values)
        return f"{type(self).__qualname__}({named})"


_ClassType = TypeVar("_ClassType", bound=LightDataclass)


def light_dataclass(cls: type[_ClassType]) -> type[_ClassType]:
    """Turn a subclass of `LightDataclass` into a dataclass with slots."""
    return dataclass(init=False, repr=False, eq=False, slots=True)(cls)


#: Set a field, even of a frozen object.
set_field = object.__setattr__


def values_of(instance: object) -> tuple[Any, ...]:
    """Return the values of the fields, in order."""
    return tuple([getattr(instance, name) for name in _shape(type(instance))])


#: The fields of a class, each with a factory for its default, or None if it has none.
_Shape = dict[str, Callable[[], Any] | None]
_shapes: dict[type, _Shape] = {}


def _shape(cls: type) -> _Shape:
    shape = _shapes.get(cls)
    if shape is None:
        shape = _shapes[cls] = {
            field.name: default_of(field.default, field.default_factory)
            for field in fields(cast(Any, cls))
        }
    return shape


def default_of(default: Any, factory: Any) -> Callable[[], Any] | None:
    """Return a factory for the default of a dataclass field, or None if it has none."""
    if factory is not MISSING:
        return cast(Callable[[], Any], factory)
    return None if default is MISSING else lambda: default
