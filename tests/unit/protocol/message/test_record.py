"""Commit-log records: byte for byte, every truncation, every kind of host."""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.message.properties import MAX_PROPERTIES, encode_properties
from pyromq.protocol.message.record import (
    BLANK,
    BLANK_MAGIC,
    HEAD_SIZE_V4,
    INNER_FIXED_SIZE,
    INNER_HEAD,
    MAX_TOPIC,
    MESSAGE_MAGIC,
    TAIL_LENGTHS,
    MessageRecord,
    RecordError,
    body_crc,
    decode_record,
    decode_records,
    encode_inner_message,
    encode_record,
    head_packer,
    head_size,
    inner_count,
    peek,
    read_raw_properties,
    shared_packer,
    store_timestamp_at,
    topic_part,
)
from pyromq.protocol.message.sysflag import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from tests.support.records import make_record

HOST_BITS = (0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6)
every_host = pytest.mark.parametrize("host_bits", HOST_BITS)

V4 = ("10.1.2.3", 40404)
V6 = ("2001:db8::1", 10911)


def record_of(host_bits: int = 0, **changes: object) -> MessageRecord:
    """A record with everything set, as `decode_record` gives it."""
    properties = {"KEYS": "k1 k2", "TAGS": "tag"}
    record = MessageRecord(
        topic="TopicTest",
        queue_id=3,
        queue_offset=77,
        physical_offset=123_456,
        body=b"the body",
        properties=properties,
        flag=-5,
        sys_flag=host_bits,
        born_timestamp=1_700_000_000_000,
        born_host=V6 if host_bits & BORN_HOST_V6 else V4,
        store_timestamp=1_700_000_000_123,
        store_host=V6 if host_bits & STORE_HOST_V6 else V4,
        reconsume_times=2,
        prepared_transaction_offset=11,
        body_crc=body_crc(b"the body"),
        size=0,
        message_id="",
        raw_properties=encode_properties(properties),
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def encoded(record: MessageRecord) -> bytes:
    return encode_record(record, encode_host(*record.born_host), encode_host(*record.store_host))


def test_bytes() -> None:
    expected = bytes.fromhex(
        "0000007f"  # totalSize
        "daa320a7"
        "167527c2"  # bodyCRC
        "00000003 fffffffb 000000000000004d 000000000001e240 00000000"
        "0000018bcfe56800 0a010203 00009dd4"
        "0000018bcfe5687b 0a010203 00009dd4"
        "00000002 000000000000000b"
        "00000008"
    )
    expected += b"the body" + b"\x09TopicTest" + b"\x00\x13" + b"KEYS\x01k1 k2\x02TAGS\x01tag"
    assert encoded(record_of()) == expected


@every_host
def test_round_trip(host_bits: int) -> None:
    record = record_of(host_bits)
    data = encoded(record)
    decoded = decode_record(data)
    store_host = encode_host(*record.store_host)
    message_id = (store_host + struct.pack(">Q", 123_456)).hex().upper()
    assert decoded == replace(record, size=len(data), message_id=message_id)
    assert len(data) == head_size(host_bits) + 8 + 9 + len(record.raw_properties) + TAIL_LENGTHS
    assert store_timestamp_at(b"xyz" + data, 3) == record.store_timestamp
    assert peek(data) == (len(data), MESSAGE_MAGIC)


longs = st.integers(-(2**63), 2**63 - 1)
ints = st.integers(-(2**31), 2**31 - 1)
ports = st.integers(0, 65_535)


def is_not_mapped(address: IPv4Address | IPv6Address) -> bool:
    """Exclude IPv4-mapped addresses, which have four bytes in a record."""
    return isinstance(address, IPv6Address) and address.ipv4_mapped is None


@given(
    host_bits=st.sampled_from(HOST_BITS),
    sys_flag=st.integers(0, 15),
    v4=st.tuples(st.ip_addresses(v=4).map(str), ports),
    v6=st.tuples(st.ip_addresses(v=6).filter(is_not_mapped).map(str), ports),
    topic=st.text("abc%_-\u00e4", max_size=60),
    body=st.binary(max_size=300),
    raw_properties=st.binary(max_size=300),
    numbers=st.tuples(ints, longs, longs, ints, longs, longs, ints, longs),
)
def test_any_record_round_trips(
    host_bits: int,
    sys_flag: int,
    v4: tuple[str, int],
    v6: tuple[str, int],
    topic: str,
    body: bytes,
    raw_properties: bytes,
    numbers: tuple[int, ...],
) -> None:
    record = record_of(
        sys_flag=sys_flag | host_bits,
        born_host=v6 if host_bits & BORN_HOST_V6 else v4,
        store_host=v6 if host_bits & STORE_HOST_V6 else v4,
        topic=topic,
        body=body,
        body_crc=body_crc(body),
        raw_properties=raw_properties,
        queue_id=numbers[0],
        queue_offset=numbers[1],
        physical_offset=numbers[2],
        flag=numbers[3],
        born_timestamp=numbers[4],
        store_timestamp=numbers[5],
        reconsume_times=numbers[6],
        prepared_transaction_offset=numbers[7],
    )
    data = encoded(record)
    decoded = decode_record(memoryview(b"\x00" * 5 + data + b"\x00" * 5), 5)
    assert replace(decoded, size=0, message_id="", properties=record.properties) == replace(
        record, size=0
    )
    assert decoded.size == len(data)


@every_host
def test_every_truncation_is_a_record_error(host_bits: int) -> None:
    data = encoded(record_of(host_bits))
    for length in range(len(data)):
        with pytest.raises(RecordError):
            decode_record(data[:length])
        with pytest.raises(RecordError):
            decode_record(memoryview(b"xx" + data[:length]), 2)


@every_host
def test_every_truncation_with_an_honest_size_is_a_record_error(host_bits: int) -> None:
    data = encoded(record_of(host_bits))
    for length in range(4, len(data)):
        with pytest.raises(RecordError):
            decode_record(struct.pack(">i", length) + data[4:length])


@given(st.data())
def test_any_damage_is_a_record_or_a_record_error(data: st.DataObject) -> None:
    record = bytearray(encoded(record_of(data.draw(st.sampled_from(HOST_BITS)))))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(record) - 4))
        record[position : position + 4] = data.draw(st.binary(min_size=4, max_size=4))
    try:
        decoded = decode_record(bytes(record))
    except RecordError as error:
        assert str(error)  # noqa: PT017
    else:
        assert decoded.size == len(record)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_error(data: bytes) -> None:
    with pytest.raises(RecordError):
        decode_record(data)
    if data:
        with pytest.raises(RecordError):
            decode_records(data)


@pytest.mark.parametrize("size", [-0x80000000, -1, 0, 8, 87, 90, 0x7FFFFFFF])
def test_size_that_lies(size: int) -> None:
    data = struct.pack(">i", size) + encoded(record_of())[4:]
    with pytest.raises(RecordError):
        decode_record(data)


@pytest.mark.parametrize("length", [-1, -0x80000000, 7, 9, 1000, 0x7FFFFFFF])
def test_body_length_that_lies(length: int) -> None:
    data = bytearray(encoded(record_of()))
    data[HEAD_SIZE_V4 - 4 : HEAD_SIZE_V4] = struct.pack(">i", length)
    with pytest.raises(RecordError):
        decode_record(bytes(data))


@pytest.mark.parametrize("length", [0, 8, 10, 127, 128, 255])
def test_topic_length_that_lies(length: int) -> None:
    data = bytearray(encoded(record_of()))
    data[HEAD_SIZE_V4 + 8] = length
    with pytest.raises(RecordError):
        decode_record(bytes(data))


@pytest.mark.parametrize("length", [0, 18, 20, 0x7FFF, 0xFFFF])
def test_properties_length_that_lies(length: int) -> None:
    record = record_of()
    data = bytearray(encoded(record))
    at = len(data) - len(record.raw_properties) - 2
    data[at : at + 2] = struct.pack(">H", length)
    with pytest.raises(RecordError):
        decode_record(bytes(data))


def test_topic_and_properties_above_their_limits_are_no_record() -> None:
    # Consistent in itself, but Java reads these lengths as negative numbers.
    for topic_length, properties_length in ((128, 0), (1, 0x8000)):
        size = HEAD_SIZE_V4 + TAIL_LENGTHS + topic_length + properties_length
        head = head_packer(0)(
            size, MESSAGE_MAGIC, 0, 0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, 0
        )
        data = head + bytes((topic_length,)) + b"t" * topic_length
        data += struct.pack(">H", properties_length) + b"p" * properties_length
        assert len(data) == size
        with pytest.raises(RecordError):
            decode_record(data)


def test_blank_record_is_no_message() -> None:
    blank = BLANK.pack(200, BLANK_MAGIC) + bytes(192)
    assert peek(blank) == (200, BLANK_MAGIC)
    with pytest.raises(RecordError, match="magic 0xcbd43194 at 0 is not that of a message"):
        decode_record(blank)


def test_peek_of_too_few_bytes() -> None:
    assert peek(b"") == (0, 0)
    assert peek(bytes(7)) == (0, 0)


def test_topic_and_properties_that_are_no_utf8() -> None:
    data = encoded(record_of(topic="aaaaaaaaa", raw_properties=b"KEY\x01ab"))
    damaged = data.replace(b"aaaaaaaaa", b"aaaa\xffaaaa").replace(b"\x01ab", b"\x01a\xff")
    record = decode_record(damaged)
    assert record.topic == "aaaa\ufffdaaaa"
    assert record.properties == {"KEY": "a\ufffd"}


def test_topic_limits() -> None:
    assert topic_part("") == b"\x00"
    assert topic_part("t" * MAX_TOPIC) == b"\x7f" + b"t" * MAX_TOPIC
    with pytest.raises(RecordError, match="topic of 128 bytes"):
        topic_part("t" * 128)
    with pytest.raises(RecordError, match="topic of 129 bytes"):
        topic_part("\u20ac" * 43)


def test_properties_limits() -> None:
    record = record_of(raw_properties=b"p" * MAX_PROPERTIES)
    assert decode_record(encoded(record)).raw_properties == record.raw_properties
    with pytest.raises(RecordError, match="properties of 32768 bytes"):
        encoded(record_of(raw_properties=b"p" * (MAX_PROPERTIES + 1)))
    with pytest.raises(RecordError, match="properties of 70000 bytes"):
        encode_inner_message(b"", b"p" * 70_000)


@pytest.mark.parametrize(
    ("bits", "born", "store"), list(itertools.product(HOST_BITS, (8, 20), (8, 20)))
)
def test_hosts_must_fit_the_flag(bits: int, born: int, store: int) -> None:
    fits = born == (20 if bits & BORN_HOST_V6 else 8) and store == (
        20 if bits & STORE_HOST_V6 else 8
    )
    if fits:
        assert encode_record(record_of(bits), bytes(born), bytes(store))
    else:
        with pytest.raises(RecordError, match="contradicts the host bits of sysFlag"):
            encode_record(record_of(bits), bytes(born), bytes(store))


@every_host
def test_shared_part_is_the_head_s_own(host_bits: int) -> None:
    born = bytes(range(20 if host_bits & BORN_HOST_V6 else 8))
    store = bytes(range(100, 120 if host_bits & STORE_HOST_V6 else 108))
    head = head_packer(host_bits)(
        1, MESSAGE_MAGIC, 2, 3, 4, 5, 6, host_bits, 7, born, 8, store, 9, 10, 11
    )
    assert len(head) == head_size(host_bits)
    assert head[36:-4] == shared_packer(host_bits)(host_bits, 7, born, 8, store, 9, 10)


def test_other_bits_do_not_change_the_layout() -> None:
    assert head_size(COMPRESSED | 0xC) == HEAD_SIZE_V4
    assert head_size(-1) == HEAD_SIZE_V4 + 24


def test_is_compressed() -> None:
    assert record_of(sys_flag=COMPRESSED).is_compressed
    assert not record_of(sys_flag=0xE).is_compressed


def test_records_one_behind_the_other() -> None:
    records = [encoded(record_of(bits, queue_offset=n)) for n, bits in enumerate(HOST_BITS)]
    assert [record.queue_offset for record in decode_records(b"".join(records))] == [0, 1, 2, 3]
    assert decode_records(b"") == []
    with pytest.raises(RecordError, match=f"at {len(records[0])} are too few"):
        decode_records(records[0] + records[1][:50])


def test_inner_message() -> None:
    data = encode_inner_message(b"body", b"A\x01b", flag=-2)
    assert data == bytes.fromhex("0000001d 00000000 00000000 fffffffe 00000004") + (
        b"body" + b"\x00\x03" + b"A\x01b"
    )
    assert INNER_HEAD.unpack_from(data) == (len(data), -2, 4)
    assert len(encode_inner_message(b"", b"")) == INNER_FIXED_SIZE


def test_inner_count() -> None:
    one = encode_inner_message(b"body", b"")
    assert inner_count(b"") == 0
    assert inner_count(one * 32) == 32
    assert inner_count(one + one[:-1]) == 2
    assert inner_count(one + one[:10]) == 1


@pytest.mark.parametrize("size", [-0x80000000, -1, 0, 1, 21])
def test_inner_count_of_sizes_that_lead_nowhere(size: int) -> None:
    assert inner_count(struct.pack(">i", size) + bytes(1000)) == 1


@given(st.binary(max_size=500))
def test_inner_count_ends_for_any_bytes(data: bytes) -> None:
    assert 0 <= inner_count(data) <= len(data) // INNER_HEAD.size + 1


@pytest.mark.parametrize(
    "host_bits", [0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6]
)
@pytest.mark.parametrize("body", [b"", b"body", b"x" * 4000, b"x" * 50_000])
@pytest.mark.parametrize("properties", [b"", b"a\x01b", b"a\x01" + b"b" * 30_000])
def test_properties_alone(host_bits: int, body: bytes, properties: bytes) -> None:
    log = b"before" + make_record(body=body, properties=properties, sys_flag=host_bits)
    read = 0

    def read_log(offset: int, size: int) -> bytes:
        nonlocal read
        read += size
        return log[offset : offset + size]

    assert read_raw_properties(read_log, 6, len(log) - 6) == properties
    assert read < 4096 + len(properties) + 4096, "a long body is not read"


@given(st.binary(max_size=200) | st.just(make_record(body=b"x" * 5000)), st.integers(0, 6000))
def test_properties_of_what_is_no_record(data: bytes, size: int) -> None:
    read_raw_properties(lambda offset, length: data[offset : offset + length], 0, size)
    assert read_raw_properties(lambda offset, length: b"", 0, size) is None


def test_inner_count_ends_at_its_limit() -> None:
    one = encode_inner_message(b"body", b"k\x01v")
    assert inner_count(one * 32, 40) == 32
    assert inner_count(one * 32, 20) == 20
