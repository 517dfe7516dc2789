"""Message ids and host addresses as bytes.

    host        ip 4 or 16 bytes | port u32
    message id  upper-case hex of: store host | physical offset u64

A message id made by a broker ("offset message id") says where the message is; the
unique key that a client makes is another thing and lives in the properties. Pure.
"""

from __future__ import annotations

import ipaddress
import struct

from pyromq.base.memo import Memo

_PORT = struct.Struct(">I")
_OFFSET = struct.Struct(">Q")
HOST_SIZE_V4 = 8
HOST_SIZE_V6 = 20


def encode_host(host: str, port: int) -> bytes:
    """Eight bytes for an IPv4 host, twenty for IPv6; an IPv4-mapped IPv6 address is IPv4."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed + _PORT.pack(port)


def decode_host(data: bytes) -> tuple[str, int]:
    """Host and port; raises ValueError for a length that is neither 8 nor 20."""
    return _hosts[data]


def _decode_host(data: bytes) -> tuple[str, int]:
    if len(data) not in (HOST_SIZE_V4, HOST_SIZE_V6):
        raise ValueError(f"a host takes 8 or 20 bytes, not {len(data)}")
    (port,) = _PORT.unpack(data[-4:])
    return str(ipaddress.ip_address(bytes(data[:-4]))), port


#: A few clients and brokers stand in most records.
_hosts: Memo[bytes, tuple[str, int]] = Memo(_decode_host)


def format_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def encode_message_id(store_host: bytes, physical_offset: int) -> str:
    """The id of the message at that offset of the broker with that host."""
    return (store_host + _OFFSET.pack(physical_offset)).hex().upper()


def decode_message_id(message_id: str) -> tuple[str, int, int]:
    """Store host, port and physical offset; raises ValueError for what is no id."""
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        data = b""
    if len(data) not in (HOST_SIZE_V4 + 8, HOST_SIZE_V6 + 8) or len(message_id) != 2 * len(data):
        raise ValueError(f"{message_id!r:.80} is no message id: 32 or 56 hex digits are expected")
    host, port = decode_host(data[:-8])
    return host, port, _OFFSET.unpack(data[-8:])[0]
