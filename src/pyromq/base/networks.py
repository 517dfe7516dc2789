"""Lists of IP addresses and networks in settings, and whether a peer is in one.

Pure. Used by the ports on which brokers copy their logs.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from pyromq.base.settings import ConfigError, shown

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_networks(key: str, text: str | None) -> tuple[Network, ...]:
    """Return the networks of a setting, separated by commas. Raises ConfigError."""
    networks: list[Network] = []
    for part in (text or "").split(","):
        if not part.strip():
            continue
        try:
            networks.append(ipaddress.ip_network(part.strip(), strict=False))
        except ValueError:
            raise ConfigError(
                f"{key}={shown(text or '')}: expected IP addresses or networks separated by "
                f"commas, such as 10.0.0.7,10.1.0.0/16; {shown(part.strip())} is neither"
            ) from None
    return tuple(networks)


def is_allowed(host: str, networks: Sequence[Network]) -> bool:
    """Whether an address belongs to one of these networks; none means that all do."""
    if not networks:
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)
