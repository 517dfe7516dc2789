"""Addresses as RocketMQ's settings write them: `host:port`, and lists of addresses.

A list is separated by `;` (Java's form) or `,`. The port follows the last colon, so IPv6 hosts
may be bare, as Java prints them (`::1:10911`), or in brackets (`[::1]:10911`). Pure functions.
"""

from __future__ import annotations

import re

_SEPARATORS = re.compile(r"[;,]")


class AddressError(ValueError):
    """Text is not an address; the message shows the expected form."""


def parse_address(text: str) -> tuple[str, int]:
    """Split `host:port` into its host (without brackets) and port."""
    host, colon, port_text = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    port = int(port_text) if port_text.isascii() and port_text.isdigit() else 0
    if not colon or not host or any(map(str.isspace, host)) or not 0 < port < 65536:
        raise AddressError(
            f"{text!r} is not an address: expected host:port, for example 127.0.0.1:9876"
        )
    return host, port


def parse_addresses(text: str) -> list[str]:
    """Split a list of addresses, check each, and drop duplicates; the order is kept."""
    addresses = [part.strip() for part in _SEPARATORS.split(text) if part.strip()]
    if not addresses:
        raise AddressError(
            f"{text!r} names no address: expected host:port[;host:port], "
            "for example 127.0.0.1:9876;192.168.0.1:9876"
        )
    for address in addresses:
        parse_address(address)
    return list(dict.fromkeys(addresses))
