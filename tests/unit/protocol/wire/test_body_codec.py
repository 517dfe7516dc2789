from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.protocol.java.fastjson import BodyError
from pyromq.protocol.java.wire_types import Int32, Int64, Wire
from pyromq.protocol.wire.bodies_admin import Connection
from pyromq.protocol.wire.body_codec import Body
from pyromq.protocol.wire.codes import LanguageCode


class Colour(Enum):
    RED = 0
    GREEN = 1


@dataclass(frozen=True, slots=True, order=True)
class Point(Body):
    x: Int32
    y: Int32 = 5


@dataclass(slots=True)
class Everything(Body):
    some_text: str
    odd_name: Annotated[str, Wire("oddNAME")] = "odd"
    small: Int32 = 1
    large: Int64 = 2
    flag: bool = False
    colour: Colour = Colour.RED
    maybe: str | None = None
    maybe_small: Int32 | None = None
    names: set[str] = field(default_factory=set)
    points: list[Point] = field(default_factory=list)
    point_set: set[Point] = field(default_factory=set)
    numbers: list[Int32] = field(default_factory=list)
    by_name: dict[str, Point] = field(default_factory=dict)
    by_number: dict[Int32, list[str]] = field(default_factory=dict)
    by_point: dict[Point, Int64] = field(default_factory=dict)


@dataclass(slots=True)
class OnlyNames(Body):
    names: dict[str, str] = field(default_factory=dict)


FULL = Everything(
    some_text="ä",
    odd_name="o",
    small=-1,
    large=2**40,
    flag=True,
    colour=Colour.GREEN,
    maybe="m",
    maybe_small=0,
    names={"b", "a"},
    points=[Point(1, 2)],
    point_set={Point(3, 4), Point(1, 2)},
    numbers=[3, 1, 2],
    by_name={"p": Point(7, 8)},
    by_number={0: ["x"], 1: []},
    by_point={Point(1, 1): 9},
)
FULL_JSON = (
    '{"byName":{"p":{"x":7,"y":8}},"byNumber":{0:["x"],1:[]},"byPoint":{{"x":1,"y":1}:9},'
    '"colour":"GREEN","flag":true,"large":1099511627776,"maybe":"m","maybeSmall":0,'
    '"names":["a","b"],"numbers":[3,1,2],"oddNAME":"o","pointSet":[{"x":1,"y":2},{"x":3,"y":4}],'
    '"points":[{"x":1,"y":2}],"small":-1,"someText":"ä"}'
)


def test_all_kinds_of_fields_both_ways() -> None:
    assert FULL.encode().decode() == FULL_JSON
    assert Everything.decode(FULL_JSON.encode()) == FULL
    assert Everything.decode(FULL.encode(standard_json=True)) == FULL


def test_standard_json_has_quoted_keys() -> None:
    assert b'"byNumber":{"0":["x"],"1":[]}' in FULL.encode(standard_json=True)


def test_absent_and_null_fields_take_their_defaults_and_unknown_ones_are_ignored() -> None:
    expected = Everything("t")
    assert Everything.decode(b'{"someText":"t","small":null,"newer":{"x":1}}') == expected


def test_none_is_not_written() -> None:
    assert "maybe" not in Everything("t").to_value()


def test_numbers_booleans_and_enums_as_other_clients_send_them() -> None:
    body = Everything.decode(
        b'{"someText":"t","small":"-7","large":"9","flag":"TRUE","colour":1,"numbers":["1"]}'
    )
    assert (body.small, body.large, body.flag, body.colour, body.numbers) == (
        -7, 9, True, Colour.GREEN, [1]
    )  # fmt: skip
    assert Everything.decode(b'{"someText":"t","flag":0}').flag is False


def test_a_language_of_a_newer_peer_is_another_one() -> None:
    for value in (b'"NODE_JS"', b"13", b"-1"):
        text = b'{"clientId":"a","clientAddr":"b","language":%b}' % value
        assert Connection.decode(text).language is LanguageCode.OTHER
    with pytest.raises(BodyError, match="is not one of"):
        Connection.decode(b'{"clientId":"a","clientAddr":"b","language":[]}')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "Everything is not a JSON object"),
        ("null", "Everything is not a JSON object"),
        ("{}", "Everything.someText is missing"),
        ('{"someText":null}', "Everything.someText is missing"),
        ('{"someText":5}', "Everything.someText: 5 is not a string"),
        ('{"someText":"t","small":2147483648}', "Everything.small: 2147483648 is out of range"),
        ('{"someText":"t","small":true}', "Everything.small: True is not a 32-bit integer"),
        ('{"someText":"t","small":1.5}', "Everything.small: 1.5 is not a 32-bit integer"),
        ('{"someText":"t","small":"x"}', "Everything.small: 'x' is not a number"),
        ('{"someText":"t","large":99999999999999999999}', "Everything.large: "),
        ('{"someText":"t","flag":"yes"}', "Everything.flag: 'yes' is not true or false"),
        ('{"someText":"t","flag":[]}', "Everything.flag: "),
        ('{"someText":"t","colour":"BLUE"}', "Everything.colour: 'BLUE' is not one of RED, GREEN"),
        ('{"someText":"t","colour":2}', "Everything.colour: 2 is not one of RED, GREEN"),
        ('{"someText":"t","colour":-1}', "Everything.colour: -1 is not one of RED, GREEN"),
        ('{"someText":"t","colour":true}', "Everything.colour: True is not one of RED, GREEN"),
        ('{"someText":"t","points":{}}', "Everything.points: {} is not a JSON array"),
        ('{"someText":"t","points":[{}]}', "Everything.points: Point.x is missing"),
        ('{"someText":"t","points":[null]}', "Everything.points: Point is not a JSON object"),
        ('{"someText":"t","byName":[]}', "Everything.byName: "),
        ('{"someText":"t","byNumber":{"a":[]}}', "Everything.byNumber: 'a' is not a number"),
        ('{"someText":"t","byPoint":{"a":1}}', "Everything.byPoint: body is not JSON"),
        ('{"someText":"t","byPoint":{"[]":1}}', "Everything.byPoint: Point is not a JSON object"),
    ],
)
def test_errors_name_class_and_field(text: str, message: str) -> None:
    with pytest.raises(BodyError) as raised:
        Everything.decode(text.encode())
    assert str(raised.value).startswith(message)


def test_string_keys_never_take_the_slow_path() -> None:
    with pytest.raises(BodyError, match="not JSON"):
        OnlyNames.decode(b'{"names":{0:"a"}}')
    assert Everything.decode(b'{"someText":"t","byNumber":{0:[]}}').by_number == {0: []}


def test_an_annotation_without_json_form_is_a_programming_error() -> None:
    @dataclass(slots=True)
    class Wrong(Body):
        moment: complex

    with pytest.raises((TypeError, NameError)):
        Wrong.decode(b"{}")


@given(
    st.dictionaries(
        st.sampled_from(["someText", "small", "flag", "colour", "names", "points", "byNumber"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=6,
        ),
    )
)
def test_any_value_ends_in_a_body_or_a_body_error(value: dict[str, Any]) -> None:
    try:
        body = Everything.from_value(value)
    except BodyError:
        return
    assert Everything.decode(body.encode()) == body
