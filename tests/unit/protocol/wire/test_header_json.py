"""JSON headers: the written form, and conversion of values from foreign clients."""

from __future__ import annotations

import json

import pytest

from pyromq.protocol.wire import header_json
from pyromq.protocol.wire.codes import LanguageCode


def encoded(
    remark: str | None = None, ext_fields: dict[str, str] | None = None
) -> dict[str, object]:
    data = header_json.encode(310, LanguageCode.PYTHON, 407, 9, 2, remark, ext_fields or {})
    header: dict[str, object] = json.loads(data)
    return header


def test_every_field() -> None:
    assert encoded("wrong", {"a": "b"}) == {
        "code": 310,
        "extFields": {"a": "b"},
        "flag": 2,
        "language": "PYTHON",
        "opaque": 9,
        "remark": "wrong",
        "serializeTypeCurrentRPC": "JSON",
        "version": 407,
    }


def test_fields_without_a_value_are_not_written() -> None:
    header = encoded()
    assert "remark" not in header
    assert "extFields" not in header


def test_empty_remark_is_a_remark() -> None:
    assert encoded("")["remark"] == ""


@pytest.mark.parametrize("text", ['"', "\\", "\x00\x01\x02", "\u20ac", "\U0001f680", "</script>"])
def test_any_text_survives(text: str) -> None:
    header = encoded(text, {text: text})
    assert header["remark"] == text
    assert header["extFields"] == {text: text}


def test_lone_surrogates_are_not_written() -> None:
    with pytest.raises(TypeError):
        encoded("\ud800")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        ("", ""),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-5, "-5"),
        (2**64 - 1, "18446744073709551615"),
        (1.5, "1.5"),
        ([], "[]"),
        ({"a": [None, True]}, '{"a":[null,true]}'),
    ],
)
def test_values_become_text(value: object, text: str) -> None:
    assert header_json.text_fields({"name": value}) == {"name": text}


def test_null_is_absent() -> None:
    assert header_json.text_fields({"a": None, "b": "1"}) == {"b": "1"}


def test_value_nested_too_deep() -> None:
    value: list[object] = []
    for _ in range(1000):
        value = [value]
    with pytest.raises(ValueError, match="extField 'name' cannot be converted to text"):
        header_json.text_fields({"name": value})


def test_names_in_errors_are_shortened() -> None:
    value: list[object] = []
    for _ in range(1000):
        value = [value]
    with pytest.raises(ValueError, match="extField 'xxx") as info:
        header_json.text_fields({"x" * 1_000_000: value})
    assert len(str(info.value)) < 200


def test_pieces() -> None:
    fields = {"k": "VALUE", "fixed": '"opaque":0', "l": "OTHER"}
    data = header_json.encode(0, LanguageCode.PYTHON, 401, 0, 1, None, fields)
    before_value, before_other, before_opaque, end = header_json.pieces(data, ["VALUE", "OTHER"])
    joined = before_value + b"1" + before_other + b"22" + before_opaque + b"-5" + end
    fields |= {"k": "1", "l": "22"}
    assert joined == header_json.encode(0, LanguageCode.PYTHON, 401, -5, 1, None, fields)
