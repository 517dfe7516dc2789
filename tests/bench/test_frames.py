from __future__ import annotations

import re
import struct

import orjson
import pytest

from bench.frames import (
    BATCH_SIZE,
    BINARY_OPAQUE_BASE,
    OPAQUE_BASE,
    QUEUES,
    Encoding,
    Ring,
    batch_ring,
    pull_request,
    pull_ring,
    send_ring,
)


def _frames(ring: Ring) -> list[tuple[dict[str, object], bytes]]:
    decoded = []
    data = bytes(ring.data)
    for start, end in zip(ring.starts[:-1].tolist(), ring.starts[1:].tolist(), strict=True):
        total, length = struct.unpack_from(">II", data, start)
        assert start + 4 + total == end
        decoded.append(
            (orjson.loads(data[start + 8 : start + 8 + length]), data[start + 8 + length : end])
        )
    return decoded


#: Printed by RocketMQ 4.9.7's own RemotingCommand.encode() for the same values, opaque and order of
#: the properties aside: the benchmark's tags are not the last property.
_JAVA_SEND_HEADER = (
    rb'{"code":310,"extFields":{"a":"BenchmarkProducer","b":"T","c":"TBW102","d":"4","e":"1",'
    rb'"f":"0","g":"1700000000000","h":"0","i":"KEYS\u0001order-030000000900AB\u0002TAGS\u0001Tag1'
    rb'\u0002UNIQ_KEY\u00017F000001000318B4AAC20000000900AB\u0002WAIT\u0001true","j":"0",'
    rb'"k":"false","m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":100009,'
    rb'"serializeTypeCurrentRPC":"JSON","version":407}'
)
_JAVA_PULL_HEADER = (
    rb'{"code":11,"extFields":{"queueId":"1","maxMsgNums":"32","sysFlag":"4",'
    rb'"suspendTimeoutMillis":"15000","commitOffset":"0","topic":"T","queueOffset":"32",'
    rb'"expressionType":"TAG","subscription":"*","subVersion":"0",'
    rb'"consumerGroup":"BenchmarkConsumer"},"flag":0,"language":"JAVA","opaque":100009,'
    rb'"serializeTypeCurrentRPC":"JSON","version":407}'
)


def test_headers_are_byte_for_byte_what_java_writes() -> None:
    ring = send_ring("T", 10, 128, 3, 1_700_000_000_000)
    ring.start_lap(0xAB)
    frame = bytes(ring.data[ring.starts[9] :])
    assert frame[8:-128] == _JAVA_SEND_HEADER
    assert pull_request("T", 1, 32, OPAQUE_BASE + 9)[8:] == _JAVA_PULL_HEADER


def test_sends_carry_the_fields_of_the_java_client() -> None:
    frames = _frames(send_ring("T", 16, 128, 3, 1_700_000_000_000))
    header, body = frames[9]
    assert header["code"] == 310
    assert header["opaque"] == OPAQUE_BASE + 9
    assert len(body) == 128
    fields = header["extFields"]
    assert isinstance(fields, dict)
    assert "".join(fields) == "abcdefghijkmn"
    assert fields["e"] == str(9 % QUEUES)
    properties = dict(pair.split("\x01") for pair in fields["i"].split("\x02"))
    assert list(properties) == ["KEYS", "TAGS", "UNIQ_KEY", "WAIT"]
    assert len(properties["UNIQ_KEY"]) == 32


def test_a_binary_header_holds_the_same_fields() -> None:
    plain = send_ring("T", 16, 128, 3, 1_700_000_000_000)
    binary = send_ring("T", 16, 128, 3, 1_700_000_000_000, Encoding.BINARY)
    for ring in (plain, binary):
        ring.start_lap(0xAB)
    start, end = binary.starts[9:11].tolist()
    frame = bytes(binary.data[start:end])
    total, length = struct.unpack_from(">II", frame)
    assert (total, length >> 24) == (len(frame) - 4, 1)
    code, language, version, opaque, flag, remark, size = struct.unpack_from(">hBhiiII", frame, 8)
    assert (code, language, version, flag, remark) == (310, 0, 407, 0, 0)
    assert opaque == BINARY_OPAQUE_BASE + 9
    position = 8 + struct.calcsize(">hBhiiII")
    fields = {}
    while position < 8 + (length & 0xFFFFFF):
        (short,) = struct.unpack_from(">H", frame, position)
        name = frame[position + 2 : position + 2 + short].decode()
        (long,) = struct.unpack_from(">I", frame, position + 2 + short)
        value = position + 6 + short
        fields[name] = frame[value : value + long].decode()
        position = value + long
    header, body = _frames(plain)[9]
    assert fields == header["extFields"]
    assert frame[position:] == body
    assert size == (length & 0xFFFFFF) - struct.calcsize(">hBhiiII")


def test_a_new_lap_makes_every_key_new() -> None:
    ring = send_ring("T", 64, 128, 0, 1_700_000_000_000)
    keys: set[bytes] = set()
    for lap in range(3):
        ring.start_lap(lap)
        found = re.findall(rb"UNIQ_KEY\\u0001([0-9A-F]{32})\\u0002", bytes(ring.data))
        assert len(found) == 64
        keys.update(found)
    assert len(keys) == 3 * 64


def test_a_batch_holds_its_messages_in_javas_inner_layout() -> None:
    ring = batch_ring("T", 4, 128, 0, 1_700_000_000_000)
    ring.start_lap(0xABCD)
    header, body = _frames(ring)[2]
    assert header["code"] == 320
    assert header["extFields"]["m"] == "true"  # type: ignore[index]
    position = 0
    unique = set()
    while position < len(body):
        total, magic, crc, flag, length = struct.unpack_from(">IIIII", body, position)
        assert (magic, crc, flag, length) == (0, 0, 0, 128)
        (properties,) = struct.unpack_from(">H", body, position + 20 + length)
        assert total == 20 + length + 2 + properties
        unique.add(body[position + 22 + length : position + total])
        position += total
    assert len(unique) == BATCH_SIZE
    assert all(properties.count(b"ABCD") == 2 for properties in unique)


@pytest.mark.parametrize("connections", [1, 4])
def test_pulls_read_every_queue_from_end_to_end(connections: int) -> None:
    places = set()
    for connection in range(connections):
        ring = pull_ring("T", connection, connections, 100)
        assert ring.next_offsets is not None
        for (header, _), following in zip(_frames(ring), ring.next_offsets.tolist(), strict=True):
            fields = header["extFields"]
            assert isinstance(fields, dict)
            assert int(fields["queueOffset"]) + 32 == following
            places.add((int(fields["queueId"]), int(fields["queueOffset"])))
    assert places == {(queue, offset) for queue in range(QUEUES) for offset in (0, 32, 64)}
