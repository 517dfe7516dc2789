"""Compare every header with `header_table.txt`: the headers, fields and types of RocketMQ 4.9.7.

`name:Type` is a field, `?` marks it as optional. Java's primitive types (`boolean`, `int`, `long`)
are also optional, unless the header is listed in `STRICT`.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from pyromq.protocol.wire import headers, headers_admin
from pyromq.protocol.wire.header_codec import Header, HeaderError
from pyromq.protocol.wire.headers import (
    CreateTopicRequestHeader,
    PullMessageRequestHeader,
    RegisterBrokerRequestHeader,
    SendMessageRequestHeaderV2,
    UnregisterClientRequestHeader,
)
from tests.support.each import for_each

CLASSES: dict[str, type[Header]] = {
    name: item
    for module in (headers, headers_admin)
    for name, item in vars(module).items()
    if isinstance(item, type) and issubclass(item, Header) and item is not Header
}

#: Primitive fields whose Java default would execute a wrong command.
STRICT = {
    ("ResetOffsetRequestHeader", "timestamp"),
    ("ResetOffsetRequestHeader", "isForce"),
    ("GetConsumeStatsInBrokerHeader", "isOrder"),
    ("RegisterFilterServerResponseHeader", "brokerId"),
    ("ReplyMessageRequestHeader", "storeTimestamp"),
}
#: Not marked as optional in Java, but with a default that older clients rely on.
DEFAULTED = {("CreateTopicRequestHeader", "order")}


class Field(NamedTuple):
    name: str
    kind: str
    optional: bool


def read_table() -> dict[str, list[Field]]:
    table = {}
    for line in (Path(__file__).parent / "header_table.txt").read_text().splitlines():
        header, _, fields = line.partition(":")
        table[header] = [
            Field(name, kind, bool(mark) or is_optional(header, name, kind))
            for name, kind, mark in re.findall(r"(\w+):([\w<>]+)(\??)", fields)
        ]
    return table


def is_optional(header: str, name: str, kind: str) -> bool:
    if (header, name) in DEFAULTED:
        return True
    return kind in ("boolean", "int", "long") and (header, name) not in STRICT


TABLE = read_table()
VALUES = {
    "String": "text",
    "Integer": "2147483647",
    "int": "-2147483648",
    "Long": "9223372036854775807",
    "long": "-9223372036854775808",
    "Boolean": "true",
    "boolean": "true",
    "List<PlainAccessConfig>": "[]",
}


def test_classes_equal_the_table() -> None:
    assert set(CLASSES) == set(TABLE)
    assert len(TABLE) == 80


#: Fields of 5.x that we read.
NEWER_FIELDS = {"PullMessageRequestHeader": ("max_msg_bytes",)}


@for_each("name", TABLE)
def test_all_fields_both_ways(name: str) -> None:
    ext_fields = {field.name: VALUES[field.kind] for field in TABLE[name]}
    header = CLASSES[name].decode(ext_fields)
    assert header.encode() == ext_fields
    assert CLASSES[name].decode(header.encode()) == header
    newer = NEWER_FIELDS.get(name, ())
    assert all(getattr(header, field) is None for field in newer)
    assert len(dataclasses.fields(header)) == len(ext_fields) + len(newer)  # type: ignore[arg-type]


@for_each("place", [(name, field) for name, fields in TABLE.items() for field in fields])
def test_required_and_optional_fields(place: tuple[str, Field]) -> None:
    name, field = place
    ext_fields = {
        other.name: VALUES[other.kind] for other in TABLE[name] if other.name != field.name
    }
    if field.optional:
        CLASSES[name].decode(ext_fields)
    else:
        with pytest.raises(HeaderError, match=f"{name}: field {field.name} is missing"):
            CLASSES[name].decode(ext_fields)


@for_each(
    "place",
    [
        (name, field)
        for name, fields in TABLE.items()
        for field in fields
        if field.kind in ("Integer", "int", "Long", "long")
    ],
)
def test_each_number_has_its_range(place: tuple[str, Field]) -> None:
    name, field = place
    ext_fields = {other.name: VALUES[other.kind] for other in TABLE[name]}
    bits = 32 if field.kind in ("Integer", "int") else 64
    ext_fields[field.name] = str(2 ** (bits - 1))
    with pytest.raises(HeaderError, match=f"{name}: field {field.name}: .* {bits}-bit integer"):
        CLASSES[name].decode(ext_fields)


def test_headers_are_frozen_and_have_slots() -> None:
    for header in CLASSES.values():
        assert not hasattr(header.__new__(header), "__dict__")
        for name in vars(header)["__slots__"]:
            with pytest.raises(dataclasses.FrozenInstanceError, match=name):
                setattr(header.__new__(header), name, "x")


def test_a_pull_as_the_java_client_sends_it() -> None:
    header = PullMessageRequestHeader.decode(
        {
            "consumerGroup": "g", "topic": "t", "queueId": "3", "queueOffset": "17",
            "maxMsgNums": "32", "sysFlag": "2", "commitOffset": "0",
            "suspendTimeoutMillis": "15000", "subVersion": "1700000000000",
            "expressionType": "TAG", "bname": "broker-a",
        }
    )  # fmt: skip
    assert header == PullMessageRequestHeader(
        consumer_group="g",
        topic="t",
        queue_id=3,
        queue_offset=17,
        max_msg_nums=32,
        sys_flag=2,
        commit_offset=0,
        suspend_timeout_millis=15000,
        sub_version=1700000000000,
        expression_type="TAG",
    )


def test_attributes_of_the_short_send_header() -> None:
    header = SendMessageRequestHeaderV2("g", "t", "TBW102", 4, 1, 0, 5, 0)
    assert header.encode() == {
        "a": "g", "b": "t", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "5", "h": "0",
        "k": "false", "m": "false",
    }  # fmt: skip
    read = SendMessageRequestHeaderV2.decode({**header.encode(), "i": "p", "l": "16", "n": "b"})
    assert (read.properties, read.max_reconsume_times, read.broker_name) == ("p", 16, "b")


def test_defaults_of_older_peers() -> None:
    broker = RegisterBrokerRequestHeader("b", "a:1", "c", "a:2", 0)
    assert (broker.compressed, broker.body_crc32) == (False, 0)
    assert CreateTopicRequestHeader("t", "TBW102", 8, 8, 6, "SINGLE_TAG").order is False
    assert UnregisterClientRequestHeader("c").encode() == {"clientID": "c"}
