from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.protocol.java.fastjson import BodyError, ObjectKey, dump_json, parse_json

#: A ConsumeStats as Java writes it.
CONSUME_STATS = (
    b'{"consumeTps":1.5,"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:'
    b'{"brokerOffset":5,"consumerOffset":3,"lastTimestamp":9}}}'
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("[]", []),
        ('{"a":[1,2.5,true,null,"x"]}', {"a": [1, 2.5, True, None, "x"]}),
        ('{0:"127.0.0.1:10911"}', {"0": "127.0.0.1:10911"}),
        ("{0:1,-1:2}", {"0": 1, "-1": 2}),
        (
            '{"a":{0:{1:[{2:3},{4:5}]}},6:[7,8]}',
            {"a": {"0": {"1": [{"2": 3}, {"4": 5}]}}, "6": [7, 8]},
        ),
        (' { 0 : 1 , "b" : 2 } ', {"0": 1, "b": 2}),
        ('{0:"{1:2}",3:",4:"}', {"0": "{1:2}", "3": ",4:"}),
        ('{0:"a\\"b{1:",2:"\\\\"}', {"0": 'a"b{1:', "2": "\\"}),
        ('{{"q":0}:1,{"q":1}:2}', {'{"q":0}': 1, '{"q":1}': 2}),
        ('{{"q":{"x":[{"y":"\\""}]}}:{0:1}}', {'{"q":{"x":[{"y":"\\""}]}}': {"0": 1}}),
        ('{{0:1}:[{"a":1},{"b":2}]}', {'{"0":1}': [{"a": 1}, {"b": 2}]}),
    ],
)
def test_parse(text: str, value: Any) -> None:
    assert parse_json(text) == value
    assert parse_json(text.encode()) == value


def test_parse_maps_with_message_queues_as_keys() -> None:
    table = parse_json(CONSUME_STATS)["offsetTable"]
    ((key, value),) = table.items()
    assert parse_json(key) == {"brokerName": "b", "queueId": 0, "topic": "t"}
    assert value["brokerOffset"] == 5


@pytest.mark.parametrize(
    "text",
    ["", " ", "{", "}", "]", "{]", "{1", "{1:", "{1:2", "{1:2,}", "{,1:2}", "{1 2}", "{a:1}",
     "{1.5:2}", "{{", "{{}", "{{}}", "{{}:1", "{[1]:2}", "[1:2]", "[{0:1}", '"', '"\\', '{0:"',
     "nul", "{0:1}}", "{0:1}{", "1:2", "{true:1}", "{{{}:1}:2}", "[" * 5000, "{0:" * 5000,
     "{{" * 5000],
)  # fmt: skip
def test_broken_text_is_rejected(text: str) -> None:
    with pytest.raises(BodyError) as raised:
        parse_json(text)
    assert len(str(raised.value)) < 300


def test_text_that_is_not_utf8_is_rejected() -> None:
    with pytest.raises(BodyError, match="not UTF-8"):
        parse_json(b'{0:"\xff"}')


def test_unquoted_keys_are_rejected_in_standard_json() -> None:
    assert parse_json(b'{"0":1}', standard_json=True) == {"0": 1}
    with pytest.raises(BodyError, match="not JSON"):
        parse_json(b"{0:1}", standard_json=True)


def test_an_unterminated_string_of_escapes_is_scanned_once() -> None:
    # Backtracking would make this quadratic: minutes instead of milliseconds.
    with pytest.raises(BodyError):
        parse_json('{0:"' + '\\"' * 1_000_000)


def test_nested_object_keys_cannot_blow_up() -> None:
    # Each level of quoting would double the backslashes.
    with pytest.raises(BodyError, match="object key inside an object key"):
        parse_json("{" * 40 + '"a":1' + "}:1" * 39 + "}")


def test_dump_writes_integer_and_object_keys_as_fastjson_does() -> None:
    value = {"a": {0: "x", -1: [{2: 3}]}, "b": {ObjectKey('{"q":0}'): 1}}
    assert dump_json(value) == b'{"a":{0:"x",-1:[{2:3}]},"b":{{"q":0}:1}}'
    assert dump_json(value, standard_json=True) == (
        b'{"a":{"0":"x","-1":[{"2":3}]},"b":{"{\\"q\\":0}":1}}'
    )


def test_dump_writes_plain_values_as_utf8() -> None:
    assert dump_json({"ä": [None, True, 1, "\u2603"]}) == '{"ä":[null,true,1,"☃"]}'.encode()


@pytest.mark.parametrize("key", [1.5, True, None, (1,)])
def test_dump_rejects_other_keys(key: object) -> None:
    with pytest.raises(TypeError, match="key"):
        dump_json({0: 1, key: 2} if key is not True else {2: 1, key: 2})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.dictionaries(st.integers(-(2**31), 2**31), inner, max_size=4)
        | st.dictionaries(
            st.dictionaries(st.text(), st.integers(0, 9) | st.text(), max_size=2).map(
                lambda key: ObjectKey(json.dumps(key))
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=20,
)


def as_read_back(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key.text if isinstance(key, ObjectKey) else str(key): as_read_back(item)
            for key, item in value.items()
        }
    return [as_read_back(item) for item in value] if isinstance(value, list) else value


@given(json_values)
def test_both_forms_read_back_as_the_same_value(value: Any) -> None:
    assert parse_json(dump_json(value)) == as_read_back(value)
    assert parse_json(dump_json(value, standard_json=True), standard_json=True) == as_read_back(
        value
    )


@given(st.text(alphabet='{}[]:,"\\0-9a \n') | st.text() | st.binary())
def test_any_text_ends_in_a_value_or_a_body_error(text: str | bytes) -> None:
    with contextlib.suppress(BodyError):
        parse_json(text)
