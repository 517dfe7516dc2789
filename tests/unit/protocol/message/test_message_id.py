"""Hosts and message ids as bytes and back, and what is neither."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.protocol.message.message_id import (
    decode_host,
    decode_message_id,
    encode_host,
    encode_message_id,
    format_address,
)


def test_bytes_of_hosts() -> None:
    assert encode_host("10.1.2.3", 10911) == bytes.fromhex("0a010203 00002a9f")
    assert encode_host("2001:db8::1", 1) == bytes.fromhex(
        "20010db8000000000000000000000001 00000001"
    )


def test_mapped_and_scoped_addresses() -> None:
    assert encode_host("::ffff:10.1.2.3", 1) == encode_host("10.1.2.3", 1)
    assert encode_host("fe80::1%eth0", 1) == encode_host("fe80::1", 1)


@pytest.mark.parametrize("host", ["", "localhost", "1.2.3", "1.2.3.4.5", "256.1.1.1", "[::1]"])
def test_what_is_no_address(host: str) -> None:
    with pytest.raises(ValueError, match="does not appear to be an IPv4 or IPv6 address"):
        encode_host(host, 1)


addresses = st.ip_addresses().filter(lambda ip: ip.version == 4 or ip.ipv4_mapped is None)


@given(addresses.map(str), st.integers(0, 0xFFFFFFFF), st.integers(0, 2**64 - 1))
def test_round_trip(host: str, port: int, offset: int) -> None:
    data = encode_host(host, port)
    assert decode_host(data) == (host, port)
    message_id = encode_message_id(data, offset)
    assert len(message_id) == (56 if ":" in host else 32)
    assert decode_message_id(message_id) == (host, port, offset)
    assert decode_message_id(message_id.lower()) == (host, port, offset)


@pytest.mark.parametrize("length", [0, 4, 7, 9, 16, 19, 21])
def test_host_of_a_wrong_length(length: int) -> None:
    with pytest.raises(ValueError, match=f"host of {length} bytes: expected 8 or 20"):
        decode_host(bytes(length))


def test_message_id_of_java() -> None:
    data = encode_host("192.168.0.10", 10911)
    assert encode_message_id(data, 0x1234) == "C0A8000A00002A9F0000000000001234"


@pytest.mark.parametrize(
    "message_id",
    [
        "",
        "C0A8000A00002A9F000000000000123",
        "C0A8000A00002A9F00000000000012345",
        "C0A8000A00002A9F00000000000012",
        "G0A8000A00002A9F0000000000001234",
        "C0A8000A 00002A9F 0000000000001234",
        " C0A8000A00002A9F000000000000123 ",
        "0xC0A8000A00002A9F00000000000012",
        "\uff10" * 32,
        "00" * 27,
        "0" * 1_000_000,
    ],
    ids=lambda text: ascii(text[:40]),
)
def test_what_is_no_message_id(message_id: str) -> None:
    with pytest.raises(
        ValueError, match="is not a message id: expected 32 or 56 hex digits"
    ) as info:
        decode_message_id(message_id)
    assert len(str(info.value)) < 200


def test_addresses_for_people() -> None:
    assert format_address("127.0.0.1", 10911) == "127.0.0.1:10911"
    assert format_address("::1", 10911) == "[::1]:10911"
    assert format_address("broker-a", 10911) == "broker-a:10911"
