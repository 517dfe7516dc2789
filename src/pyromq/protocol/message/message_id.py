"""Encode and decode host addresses and message ids.

    host        ip 4 or 16 bytes | port u32
    message id  upper-case hex of: store host | physical offset u64

This id is made by the broker ("offset message id") and locates the message. Clients make a
different one, the unique key, which is a property. Pure.
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
    """Encode a host: 8 bytes for IPv4 (also IPv4-mapped IPv6 addresses), 20 for IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed + _PORT.pack(port)


def decode_host(data: bytes) -> tuple[str, int]:
    """Return host and port. Raises ValueError for a length other than 8 or 20."""
    return _hosts[data]


def _decode_host(data: bytes) -> tuple[str, int]:
    if len(data) not in (HOST_SIZE_V4, HOST_SIZE_V6):
        raise ValueError(f"host of {len(data)} bytes: expected 8 or 20")
    (port,) = _PORT.unpack(data[-4:])
    return str(ipaddress.ip_address(bytes(data[:-4]))), port


#: Most records name the same few clients and brokers.
_hosts: Memo[bytes, tuple[str, int]] = Memo(_decode_host)


def format_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def encode_message_id(store_host: bytes, physical_offset: int) -> str:
    """Return the id of the message at this offset of the broker at this host."""
    return (store_host + _OFFSET.pack(physical_offset)).hex().upper()


def decode_message_id(message_id: str) -> tuple[str, int, int]:
    """Return store host, port and physical offset. Raises ValueError."""
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        data = b""
    if len(data) not in (HOST_SIZE_V4 + 8, HOST_SIZE_V6 + 8) or len(message_id) != 2 * len(data):
        raise ValueError(f"{message_id!r:.80} is not a message id: expected 32 or 56 hex digits")
    host, port = decode_host(data[:-8])
    return host, port, _OFFSET.unpack(data[-8:])[0]
