from __future__ import annotations

import zlib

from pyromq.admin.message_view import views
from pyromq.protocol.message.properties import encode_properties
from pyromq.protocol.message.sysflag import COMPRESSED, COMPRESSION_ZLIB
from tests.support.records import make_record


def test_a_record_as_an_operator_sees_it() -> None:
    properties = encode_properties({"UNIQ_KEY": "U1", "KEYS": "a b", "TAGS": "t", "own": "x"})
    record = make_record(topic="orders", body=b"hello", properties=properties, queue_id=3)

    (message,) = views(record, "broker-0")

    assert (message.topic, message.broker_name, message.queue_id) == ("orders", "broker-0", 3)
    assert (message.msg_id, message.tags, message.keys) == ("U1", "t", "a b")
    assert message.properties["own"] == "x"
    assert message.body == b"hello"
    assert message.has_key("b")
    assert not message.has_key("a b")
    assert message.store_size == len(record)


def test_a_message_without_a_producer_s_id_has_the_broker_s() -> None:
    (message,) = views(make_record(topic="orders", body=b"hello"))
    assert message.msg_id == message.offset_msg_id
    assert len(message.msg_id) == 32


def test_bodies_are_decompressed_and_bad_ones_reported() -> None:
    flag = COMPRESSED | COMPRESSION_ZLIB
    packed = zlib.compress(b"hello" * 100)
    good = make_record(topic="orders", body=packed, sys_flag=flag)
    bad = make_record(topic="orders", body=b"no zlib", sys_flag=flag)

    first, second = views(good + bad)

    assert (first.body, first.raw_body, first.problem) == (b"hello" * 100, packed, "")
    assert (second.body, second.raw_body) == (b"", b"no zlib")
    assert "zlib" in second.problem
