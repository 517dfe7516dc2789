from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.protocol.java.wire_types import Int32, Int64, Wire
from pyromq.protocol.wire.header_codec import Header, HeaderError, header_class


@header_class
class Sample(Header):
    topic: str
    queue_id: Int32
    queue_offset: Int64
    odd: Annotated[str | None, Wire("o")] = None
    times: Int32 | None = None
    unit_mode: bool = False
    standard: bool | None = None


FULL_VALUES: tuple[Any, ...] = ("t", 1, 2**40, "x", 3, True, False)
FULL = Sample(*FULL_VALUES)
NAMED: dict[str, Any] = {
    "queue_id": 1, "queue_offset": 2**40, "odd": "x", "times": 3, "unit_mode": True,
    "standard": False,
}  # fmt: skip
FULL_FIELDS = {
    "topic": "t", "queueId": "1", "queueOffset": "1099511627776", "o": "x", "times": "3",
    "unitMode": "true", "standard": "false",
}  # fmt: skip


def test_both_ways() -> None:
    assert FULL.encode() == FULL_FIELDS
    assert Sample.decode(FULL_FIELDS) == FULL


def test_absent_fields_take_defaults_and_none_is_left_out() -> None:
    header = Sample.decode({"topic": "t", "queueId": "1", "queueOffset": "2"})
    assert header == Sample("t", 1, 2, None, None, False, None)
    assert header.encode() == {
        "topic": "t", "queueId": "1", "queueOffset": "2", "unitMode": "false"
    }  # fmt: skip


def test_unknown_fields_are_ignored() -> None:
    assert Sample.decode({**FULL_FIELDS, "bname": "b"}) == FULL


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("false", False), ("1", False), ("", False)]
)
def test_booleans_follow_java(text: str, value: bool) -> None:
    assert Sample.decode({**FULL_FIELDS, "unitMode": text}).unit_mode is value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queueId": None}, "Sample: field queueId is missing"),
        ({"queueId": ""}, "Sample: field queueId: '' is not a number"),
        (
            {"queueId": "2147483648"},
            "Sample: field queueId: 2147483648 is out of range for a 32-bit",
        ),
        (
            {"queueOffset": "9" * 19},
            "Sample: field queueOffset: 9999999999999999999 is out of range",
        ),
        ({"queueOffset": "9" * 1_000_000}, "Sample: field queueOffset: "),
        ({"times": "x"}, "Sample: field times: 'x' is not a number"),
    ],
)
def test_errors_name_header_and_field(change: dict[str, str | None], message: str) -> None:
    ext_fields = {
        key: value for key, value in {**FULL_FIELDS, **change}.items() if value is not None
    }
    with pytest.raises(HeaderError) as raised:
        Sample.decode(ext_fields)
    assert str(raised.value).startswith(message)
    assert len(str(raised.value)) < 300


def test_an_annotation_without_wire_form_is_a_programming_error() -> None:
    @header_class
    class Wrong(Header):
        moment: float

    with pytest.raises(TypeError, match="a header cannot hold"):
        Wrong.decode({})


@given(
    st.builds(
        Sample,
        topic=st.text(),
        queue_id=st.integers(-(2**31), 2**31 - 1),
        queue_offset=st.integers(-(2**63), 2**63 - 1),
        odd=st.none() | st.text(),
        times=st.none() | st.integers(-(2**31), 2**31 - 1),
        unit_mode=st.booleans(),
        standard=st.none() | st.booleans(),
    )
)
def test_every_header_reads_back(header: Sample) -> None:
    assert Sample.decode(header.encode()) == header


@given(st.dictionaries(st.sampled_from(sorted(FULL_FIELDS)), st.text()))
def test_any_fields_end_in_a_header_or_a_header_error(ext_fields: dict[str, str]) -> None:
    try:
        header = Sample.decode(ext_fields)
    except HeaderError:
        return
    assert Sample.decode(header.encode()) == header


def test_a_header_is_a_frozen_dataclass() -> None:
    assert is_dataclass(FULL)
    assert [field.name for field in fields(FULL)][:2] == ["topic", "queue_id"]
    assert replace(FULL, topic="u").topic == "u"
    assert FULL == Sample(*FULL_VALUES) == Sample(topic="t", **NAMED)
    assert replace(FULL, topic="u") != FULL
    assert FULL != FULL_VALUES
    assert len({FULL, Sample(*FULL_VALUES), replace(FULL, topic="u")}) == 2
    assert repr(FULL).startswith("Sample(topic='t', queue_id=1, ")
    assert pickle.loads(pickle.dumps(FULL)) == FULL
    assert copy.copy(FULL) == FULL
    with pytest.raises(FrozenInstanceError, match="topic"):
        FULL.topic = "u"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="topic"):
        del FULL.topic
    with pytest.raises(AttributeError):
        FULL.nothing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("values", "named", "problem"),
    [
        (("t", 1), {}, "Sample is missing queue_offset"),
        (FULL_VALUES, {"topic": "t"}, "multiple values for topic"),
        ((*FULL_VALUES, 1), {}, "has 7 fields, got 8"),
        (FULL_VALUES, {"nothing": 1}, "Sample has no fields nothing"),
    ],
)
def test_wrong_values_are_a_programming_error(
    values: tuple[Any, ...], named: dict[str, Any], problem: str
) -> None:
    with pytest.raises(TypeError, match=problem):
        Sample(*values, **named)
