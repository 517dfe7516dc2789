"""Dataclasses that are made quickly: their methods are shared, not compiled for each class.

`dataclass` writes the source of every method of every class and compiles it, which takes most
of a millisecond. Programs that speak RocketMQ begin with more than a hundred classes of headers
and bodies, of which they use few. A class made by `light_dataclass` is a dataclass with slots
(`fields` and `replace` know it) that gets its methods from `LightDataclass`. In exchange, an
object takes two microseconds longer to be made: what is made in masses is no light dataclass.

Pure. Used by `header_codec` and `body_codec`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar, cast


class LightDataclass:
    """What `dataclass` would make for each class, once for all."""

    __slots__ = ()

    def __init__(self, *values: Any, **named: Any) -> None:
        shape = _shape(type(self))
        if len(values) > len(shape):
            raise TypeError(f"{type(self).__name__}: {len(values)} values for {len(shape)} fields")
        for name, value in zip(shape, values, strict=False):
            if name in named:
                raise TypeError(f"{type(self).__name__}: {name} is given twice")
            named[name] = value
        for name, default in shape.items():
            value = named.pop(name, MISSING)
            if value is MISSING:
                if default is None:
                    raise TypeError(f"{type(self).__name__}: {name} is not given")
                value = default()
            set_field(self, name, value)
        if named:
            raise TypeError(f"{type(self).__name__} has no {', '.join(named)}")

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
    """Make a dataclass with slots out of a class that derives from `LightDataclass`."""
    return dataclass(init=False, repr=False, eq=False, slots=True)(cls)


#: Sets a field, also of what is frozen for everybody else.
set_field = object.__setattr__


def values_of(instance: object) -> tuple[Any, ...]:
    """The values of the fields, in order."""
    return tuple([getattr(instance, name) for name in _shape(type(instance))])


#: The fields of a class, each with what makes its default; None where it has none.
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
    """What makes a field's default, of either of the two that `field` has for it."""
    if factory is not MISSING:
        return cast(Callable[[], Any], factory)
    return None if default is MISSING else lambda: default
