from __future__ import annotations

import copy
import pickle
import sys
import zlib
from collections.abc import Callable

import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.client import received
from pyromq.client.errors import UnreadableBodyError
from pyromq.client.message import Message
from pyromq.client.received import ReceivedMessage, decode_messages
from pyromq.protocol.message import compression
from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.message.properties import decode_properties
from pyromq.protocol.message.record import MessageRecord, RecordError, decode_record, encode_record
from pyromq.protocol.message.sysflag import BORN_HOST_V6, STORE_HOST_V6
from pyromq.protocol.wire.bodies import MessageQueue
from tests.support.examples import examples

QUEUE = MessageQueue("t", "b", 3)


def record(
    body: bytes, sys_flag: int = 0, properties: bytes = b"", topic: str = "t", offset: int = 7
) -> bytes:
    born = encode_host("::1" if sys_flag & BORN_HOST_V6 else "127.0.0.1", 1234)
    store = encode_host("::2" if sys_flag & STORE_HOST_V6 else "127.0.0.1", 10911)
    values = MessageRecord(
        topic,
        3,
        offset,
        99,
        body,
        {},
        5,
        sys_flag,
        1,
        ("", 0),
        2,
        ("", 0),
        4,
        6,
        0,
        0,
        "",
        properties,
    )
    return encode_record(values, born, store)


def received_of(data: bytes) -> ReceivedMessage:
    (message,) = decode_messages(data, QUEUE)
    return message


#: A message of a transaction that was delayed, retried, and asks for a reply.
WITH_A_PAST = (
    b"colour\x01red\x02TAGS\x01a\x02KEYS\x01k l\x02UNIQ_KEY\x01ID\x02TRAN_MSG\x01true"
    b"\x02PGROUP\x01g\x02DELAY\x013\x02REAL_TOPIC\x01t\x02REAL_QID\x010\x02RETRY_TOPIC\x01t\x02CLUSTER\x01c"
    b"\x02CORRELATION_ID\x01i\x02__SHARDINGKEY\x01order-1\x02"
)


def test_properties_are_the_applications_own() -> None:
    received = received_of(record(b"body", properties=WITH_A_PAST))
    assert received.properties == {"colour": "red"}
    assert received.all_properties == received.properties | received.system_properties
    assert received.system_properties["TRAN_MSG"] == "true"
    assert received.ordering_key == "order-1"
    # The usual way to copy: the result must not be a half message or a delayed one.
    sent = Message("out", received.body, properties={**received.properties, "step": "2"})
    assert decode_properties(sent.wire_properties("NEW")) == {
        "colour": "red",
        "step": "2",
        "UNIQ_KEY": "NEW",
        "WAIT": "true",
    }


def test_forwarding_keeps_the_content_only() -> None:
    received = received_of(record(b"body", properties=WITH_A_PAST))
    forwarded = received.forward("out")
    assert forwarded == Message(
        "out", b"body", "a", "k l", {"colour": "red"}, flag=5, ordering_key="order-1"
    )
    assert received.forward("out", b"other").body == b"other"
    # Java's producers check neither tags nor spaces between keys.
    odd = received_of(record(b"body", properties=b"KEYS\x01 k  l\x02TAGS\x01a || b"))
    assert decode_properties(odd.forward("out").wire_properties("ID")) == {
        **odd.system_properties,
        "UNIQ_KEY": "ID",
        "WAIT": "true",
    }
    forwarded.properties["step"] = "2"
    assert received.properties == {"colour": "red"}
    with pytest.raises(UnreadableBodyError):
        received_of(record(b"no zlib", sys_flag=1)).forward("out")


def test_received_message_is_the_record_in_the_applications_terms() -> None:
    received = received_of(record(b"body", properties=b"TAGS\x01a\x02KEYS\x01k\x02UNIQ_KEY\x01ID"))
    assert (received.body, received.tags, received.keys, received.msg_id) == (
        b"body",
        "a",
        "k",
        "ID",
    )
    assert (received.queue, received.queue_offset, received.flag) == (QUEUE, 7, 5)
    assert received.offset_msg_id == "7F00000100002A9F0000000000000063"


def test_without_a_unique_key_the_offset_id_is_the_id() -> None:
    received = received_of(record(b"body"))
    assert received.msg_id == received.offset_msg_id


def test_compressed_bodies_are_decompressed() -> None:
    body = b"long " * 1000
    assert received_of(record(zlib.compress(body), 1)).body == body


@pytest.mark.parametrize("body", [b"no zlib", zlib.compress(b"cut off")[:-3], b""])
def test_a_body_that_cannot_be_decompressed_is_never_returned(
    body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    message = received_of(record(body, 1, b"TAGS\x01a"))
    with pytest.raises(
        UnreadableBodyError, match=r"of t, b:3:7, .* cannot be decompressed: zlib: "
    ):
        message.body  # noqa: B018 - reading it is the matter
    assert "cannot be decompressed" in caplog.text
    assert not message.is_readable
    assert message.raw_body == body
    assert message.body_size == len(body)
    assert message.tags == "a"


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    message = received_of(record(lz4.frame.compress(b"some LZ4"), 0x101))
    with pytest.raises(UnreadableBodyError, match=r"LZ4 .* pip install 'pyromq\[compression\]'"):
        message.body  # noqa: B018 - reading it is the matter


def test_the_raw_body_of_a_readable_message_is_its_body() -> None:
    message = received_of(record(zlib.compress(b"body"), 1))
    assert (message.is_readable, message.raw_body, message.body_size) == (True, b"body", 4)
    with pytest.raises(AttributeError, match="nothing"):
        message.nothing  # type: ignore[attr-defined]  # noqa: B018 - there is none


def test_lz4_of_newer_producers_is_read() -> None:
    assert received_of(record(lz4.frame.compress(b"some LZ4"), 0x101)).body == b"some LZ4"


def test_a_decompression_bomb_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_DECOMPRESSED", 1000)
    bomb = zlib.compress(bytes(1001))
    with pytest.raises(UnreadableBodyError, match="more than 1000 bytes"):
        received_of(record(bomb, 1)).body  # noqa: B018 - reading it is the matter


@pytest.mark.parametrize("sys_flag", [0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6])
def test_every_field_matches_the_record(sys_flag: int) -> None:
    data = record(b"body", sys_flag, b"a\x01b")
    expected = decode_record(data)
    received = received_of(data)
    for name in (
        "topic",
        "body",
        "queue_offset",
        "physical_offset",
        "flag",
        "sys_flag",
        "born_timestamp",
        "store_timestamp",
        "reconsume_times",
        "prepared_transaction_offset",
        "properties",
        "born_host",
        "store_host",
    ):
        assert getattr(received, name) == getattr(expected, name), name
    assert received.offset_msg_id == expected.message_id
    assert received == received_of(data)
    assert hash(received) == hash(received_of(data))
    assert received != received_of(record(b"body", offset=8))
    assert received != "a message"
    assert "4 bytes" in repr(received)


def test_consecutive_records() -> None:
    data = b"".join(record(b"%d" % number, offset=number) for number in range(5))
    assert [int(message.body) for message in decode_messages(data, QUEUE)] == [0, 1, 2, 3, 4]
    assert decode_messages(b"", QUEUE) == []


def test_the_namespace_is_removed() -> None:
    data = record(b"x", topic="ns%t") + record(b"x", topic="else")
    topics = [message.topic for message in decode_messages(data, QUEUE, "ns%t")]
    assert topics == ["t", "else"]


@given(st.binary(max_size=300), st.integers(0, 200), st.integers(0, 255))
def test_bytes_that_are_not_records_are_refused(junk: bytes, place: int, value: int) -> None:
    good = record(b"body", 0, b"a\x01b")
    damaged = bytearray(good)
    damaged[place % len(good)] = value
    for data in (junk, good + junk, bytes(damaged), good[: place % len(good)]):
        try:
            messages = decode_messages(data, QUEUE)
        except RecordError:
            continue
        assert sum(len(message.body) for message in messages) <= len(data)


def both_ways(data: bytes, queue: MessageQueue = QUEUE, topic: str = "") -> list[object]:
    """Return what the kernel, if there is one, and the Python code decode."""
    results: list[object] = []
    for compiled in {received._compiled, None}:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(received, "_compiled", compiled)
            try:
                results.append([values_of(each) for each in decode_messages(data, queue, topic)])
            except RecordError as error:
                results.append(str(error))
    return results


def values_of(message: ReceivedMessage) -> dict[str, object]:
    names = [
        *("topic", "raw_body", "body_size", "is_readable", "queue", "queue_offset"),
        *("physical_offset", "flag", "sys_flag", "born_timestamp", "store_timestamp"),
        *("reconsume_times", "prepared_transaction_offset", "born_host", "store_host"),
        *("all_properties", "properties", "msg_id", "offset_msg_id"),
    ]
    return {name: getattr(message, name) for name in names}


HOST_BITS = st.sampled_from([0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6])
RECORDS = st.lists(
    st.builds(
        record,
        st.binary(min_size=1, max_size=40),
        st.builds(
            lambda bits, compressed: bits | compressed, HOST_BITS, st.sampled_from([0, 0, 1])
        ),
        st.sampled_from([b"", b"TAGS\x01a", b"UNIQ_KEY\x01ID\x02TAGS\x01\xc3\xa9", b"\xff"]),
        st.sampled_from(["t", "t", "other", "topic"]),
        st.integers(-(1 << 63), (1 << 63) - 1),
    ),
    max_size=4,
)


@given(RECORDS, st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=3))
@settings(max_examples=examples(300))
def test_the_kernel_decodes_what_python_does(
    records: list[bytes], damage: list[tuple[int, int]]
) -> None:
    data = bytearray(b"".join(records))
    for place, value in damage if data else ():
        data[place % len(data)] = value
    first, *others = both_ways(bytes(data))
    assert all(other == first for other in others)


@pytest.mark.parametrize("compiled", sorted({received._compiled is not None, False}))
@pytest.mark.parametrize("copied", [copy.copy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_message_can_be_copied(
    compiled: bool,
    copied: Callable[[ReceivedMessage], ReceivedMessage],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not compiled:
        monkeypatch.setattr(received, "_compiled", None)
    for data in (record(b"body", BORN_HOST_V6, WITH_A_PAST), record(b"no zlib", 1)):
        message = received_of(data)
        assert values_of(copied(message)) == values_of(message)
        message.count_failure()
        again = copied(message)
        assert again.reconsume_times == 5
        assert values_of(again) == values_of(message)
