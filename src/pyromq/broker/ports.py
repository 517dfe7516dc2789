"""Bind the ports of a broker, and find the address that its records carry.

The main port is `listenPort`. The fast port is two below it: consumers never wait for sends there.
Replicas connect to the port above it. With `listenPort=0` a main port is found whose neighbours are
free as well. Called by `broker.broker` at the start, on the loop.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from typing import Final, NamedTuple

from pyromq.broker.config import FAST_PORT_DISTANCE, BrokerConfig
from pyromq.remoting.limits import PeerLimits
from pyromq.remoting.server import RemotingServer, bound_socket
from pyromq.tls.server import ServerTls

HA_PORT_DISTANCE: Final = 1
#: Attempts to find a free port whose fast port and replication port are free as well.
_MAX_PORT_ATTEMPTS: Final = 50


class Ports(NamedTuple):
    """The bound ports of a broker; nothing is served yet."""

    #: The main port and the fast port.
    servers: list[RemotingServer]
    #: None in a raft group.
    ha_socket: socket.socket | None


def bind_ports(config: BrokerConfig, reserved: int, tls: ServerTls, *, has_replicas: bool) -> Ports:
    """Bind the main, the fast and the replication port.

    `reserved` file descriptors are left to the store.
    """
    limits = PeerLimits.of(config, reserved)
    for attempt in range(_MAX_PORT_ATTEMPTS):
        main = _server(config, config.listen_port, limits, tls)
        main.bind()
        fast = _server(config, main.port - FAST_PORT_DISTANCE, limits, tls)
        try:
            fast.bind()
            ha_socket = None
            if has_replicas:
                ha_socket = bound_socket(
                    config.bind_address,
                    main.port + HA_PORT_DISTANCE,
                    is_chosen=config.listen_port != 0,
                )
        except (OSError, OverflowError):  # the highest port has none above it
            main.close_socket()
            fast.close_socket()
            if config.listen_port or attempt == _MAX_PORT_ATTEMPTS - 1:
                raise
        else:
            return Ports([main, fast], ha_socket)
    raise AssertionError("the last attempt returns or raises")


def _server(config: BrokerConfig, port: int, limits: PeerLimits, tls: ServerTls) -> RemotingServer:
    return RemotingServer(
        host=config.bind_address,
        port=port,
        idle_seconds=config.server_channel_max_idle_time_seconds,
        limits=limits,
        is_port_chosen=config.listen_port != 0,
        tls=tls,
    )


async def resolve(host: str) -> str:
    """Return the IP address of `host`, which records and message ids carry."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        loop = asyncio.get_running_loop()
    else:
        return host
    try:
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise OSError(
            errno.EADDRNOTAVAIL, f"brokerIP1={host} cannot be resolved: {reason}"
        ) from error
    # IPv4 first: every client can read such records.
    found.sort(key=lambda address: address[0] != socket.AF_INET)
    return str(found[0][4][0])
