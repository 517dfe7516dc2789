from __future__ import annotations

import zlib

from pyromq.admin.messages.copies import (
    MAX_BATCH_MESSAGES,
    copies,
    copy_properties,
    may_have_stamps,
    original_topic,
    resent_offset,
    stamp_prefix,
)
from pyromq.protocol.message.properties import RESENT_FROM, decode_properties, encode_properties
from pyromq.protocol.message.record import inner_count
from pyromq.protocol.message.sysflag import COMPRESSED, COMPRESSION_ZLIB
from pyromq.protocol.wire.codes import RequestCode
from tests.unit.admin.stored_messages import made_up

PREFIX = stamp_prefix("orders", "broker-0", "")
PROPERTIES = {
    "UNIQ_KEY": "U1",
    "KEYS": "k",
    "TAGS": "t",
    "own": "x",
    "RETRY_TOPIC": "orders",
    "ORIGIN_MESSAGE_ID": "O1",
    "DELAY": "3",
    "RECONSUME_TIME": "16",
    "WAIT": "false",
    RESENT_FROM: "orders@broker-0@@5",
}


def test_the_stamp_names_target_broker_run_and_dead_letter() -> None:
    prefixes = {
        stamp_prefix(*parts)
        for parts in (
            ("orders", "broker-0", ""),
            ("orders", "broker-0", "again"),
            ("orders", "broker-1", ""),
            ("%RETRY%billing", "broker-0", ""),
        )
    }
    assert len(prefixes) == 4
    stamped = {RESENT_FROM: f"{PREFIX}77"}
    assert [resent_offset(prefix, stamped) for prefix in prefixes].count(77) == 1
    assert resent_offset(PREFIX, stamped) == 77
    for other in ({}, {RESENT_FROM: PREFIX}, {RESENT_FROM: f"{PREFIX}x"}, {RESENT_FROM: "77"}):
        assert resent_offset(PREFIX, other) is None


def test_only_records_with_stamps_are_worth_decoding() -> None:
    assert may_have_stamps(encode_properties({"a": "b", RESENT_FROM: f"{PREFIX}1"}))
    assert not may_have_stamps(encode_properties({"a": "b"}))


def test_a_copy_keeps_content_and_identity() -> None:
    message = made_up(properties=PROPERTIES)
    assert original_topic(message) == "orders"
    assert original_topic(made_up(properties={"DLQ_ORIGIN_TOPIC": "five"})) == "five"
    assert original_topic(made_up()) == ""
    assert copy_properties(message, "orders", f"{PREFIX}9") == {
        "UNIQ_KEY": "U1",
        "KEYS": "k",
        "TAGS": "t",
        "own": "x",
        "ORIGIN_MESSAGE_ID": "O1",
        "WAIT": "true",
        RESENT_FROM: f"{PREFIX}9",
    }
    retried = copy_properties(message, "%RETRY%billing", "stamp")
    assert retried["RETRY_TOPIC"] == "orders"


def test_messages_share_requests_per_queue() -> None:
    messages = [made_up(queue_offset=each, physical_offset=each) for each in range(300)]

    requests = list(copies(messages, "orders", PREFIX, "broker-0", 2))

    assert {request.code for request in requests} == {RequestCode.SEND_BATCH_MESSAGE}
    assert [len(request.offsets) for request in requests] == [
        MAX_BATCH_MESSAGES,
        300 - 2 * MAX_BATCH_MESSAGES,
        MAX_BATCH_MESSAGES,
    ]
    for request in requests:
        assert inner_count(request.body) == len(request.offsets)
        assert request.header.batch
        assert request.header.topic == "orders"
    assert {request.header.queue_id for request in requests} == {0, 1}
    assert sorted(each for request in requests for each in request.offsets) == list(range(300))


def test_one_ordering_key_stays_in_one_queue_and_in_order() -> None:
    messages = [
        made_up(
            queue_offset=each * 1000,
            physical_offset=each,
            properties={"__SHARDINGKEY": f"key-{each % 3}"},
        )
        for each in range(60)
    ]
    queues: dict[int, list[int]] = {}
    for request in copies(messages, "orders", PREFIX, "broker-0", 4):
        queues.setdefault(request.header.queue_id, []).extend(request.offsets)
    for key in range(3):
        (owner,) = [offsets for offsets in queues.values() if key in offsets]
        assert [each for each in owner if each % 3 == key] == list(range(key, 60, 3))


def test_compressed_bodies_and_retry_topics_go_one_by_one() -> None:
    flag = COMPRESSED | COMPRESSION_ZLIB
    packed = zlib.compress(b"hello")
    messages = [
        made_up(physical_offset=0),
        made_up(physical_offset=1, sys_flag=flag | 0x8, raw_body=packed, flag=5),
        made_up(physical_offset=2),
    ]

    requests = list(copies(messages, "orders", PREFIX, "broker-0", 1))

    assert [request.offsets for request in requests] == [(0,), (1,), (2,)]
    single = requests[1]
    assert (single.code, single.body) == (RequestCode.SEND_MESSAGE_V2, packed)
    assert (single.header.sys_flag, single.header.flag) == (flag, 5)
    assert decode_properties(single.header.properties or "")[RESENT_FROM] == f"{PREFIX}1"
    retried = list(copies(messages, "%RETRY%billing", PREFIX, "broker-0", 1))
    assert {request.code for request in retried} == {RequestCode.SEND_MESSAGE_V2}
    assert {request.header.reconsume_times for request in retried} == {0}


def test_large_bodies_do_not_share_a_request() -> None:
    body = b"x" * 700_000
    messages = [made_up(physical_offset=each, raw_body=body) for each in range(3)]
    requests = list(copies(messages, "orders", PREFIX, "broker-0", 1))
    assert [request.offsets for request in requests] == [(0,), (1,), (2,)]
