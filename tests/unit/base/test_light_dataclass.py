from __future__ import annotations

import copy
import pickle
from dataclasses import field, fields, is_dataclass, replace
from typing import Any, dataclass_transform

import pytest

from pyromq.base.light_dataclass import LightDataclass, light_dataclass


@dataclass_transform(field_specifiers=(field,))
def made(cls: type[Any]) -> type[Any]:
    return light_dataclass(cls)


@made
class Point(LightDataclass):
    """A place."""

    x: int
    y: int = 2
    names: list[str] = field(default_factory=list)


def test_it_is_a_dataclass_with_slots() -> None:
    point = Point(1)
    assert is_dataclass(point)
    assert [(each.name, each.type) for each in fields(Point)] == [
        ("x", "int"),
        ("y", "int"),
        ("names", "list[str]"),
    ]
    assert Point.__doc__ == "A place."
    assert not hasattr(point, "__dict__")
    with pytest.raises(AttributeError):
        point.z = 1  # type: ignore[attr-defined]


def test_values_come_by_place_or_by_name_or_are_defaults() -> None:
    point = Point(1, names=["a"])
    assert (point.x, point.y, point.names) == (1, 2, ["a"])
    assert Point(y=5, x=4) == Point(4, 5, [])
    assert Point(1).names is not Point(1).names


def test_it_can_be_changed_copied_compared_and_shown() -> None:
    point = Point(1)
    point.y = 7
    assert point == Point(1, 7)
    assert point != Point(1)
    assert point != (1, 7, [])
    assert replace(point, x=3) == Point(3, 7)
    assert copy.copy(point) == point
    assert pickle.loads(pickle.dumps(point)) == point
    assert repr(point) == "Point(x=1, y=7, names=[])"
    with pytest.raises(TypeError, match="unhashable"):
        hash(point)


@pytest.mark.parametrize(
    ("values", "named", "problem"),
    [
        ((), {}, "Point is missing x"),
        ((1,), {"x": 1}, "Point got multiple values for x"),
        ((1, 2, [], 4), {}, "Point has 3 fields, got 4"),
        ((1,), {"z": 1}, "Point has no fields z"),
    ],
)
def test_wrong_values_are_a_programming_error(
    values: tuple[Any, ...], named: dict[str, Any], problem: str
) -> None:
    with pytest.raises(TypeError, match=problem):
        Point(*values, **named)
