from __future__ import annotations

import errno
import socket

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.ports import HA_PORT_DISTANCE, Ports, bind_ports, resolve
from pyromq.remoting.server import RemotingServer
from pyromq.tls.server import ServerTls


def bind(port: int = 0, *, has_replicas: bool = True) -> Ports:
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=port)
    return bind_ports(config, 0, ServerTls(config), has_replicas=has_replicas)


def release(ports: Ports) -> None:
    for server in ports.servers:
        server.close_socket()
    if ports.ha_socket is not None:
        ports.ha_socket.close()


def test_three_ports_side_by_side() -> None:
    ports = bind()
    main, fast = (server.port for server in ports.servers)
    assert fast == main - 2
    assert ports.ha_socket is not None
    assert ports.ha_socket.getsockname()[1] == main + HA_PORT_DISTANCE
    release(ports)


def test_a_raft_group_has_no_replication_port() -> None:
    ports = bind(has_replicas=False)
    assert ports.ha_socket is None
    release(ports)


def test_any_port_will_do_until_one_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast port beside a free one may be taken."""
    attempts = []
    bind_one = RemotingServer.bind

    def refuse_some(server: RemotingServer) -> None:
        attempts.append(server.port)
        if len(attempts) in (2, 4):
            raise OSError(errno.EADDRINUSE, "in use", "somewhere")
        bind_one(server)

    monkeypatch.setattr(RemotingServer, "bind", refuse_some)
    release(bind())
    assert len(attempts) >= 6


def test_a_chosen_port_that_is_taken() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="in use"):
            bind(holder.getsockname()[1])


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "fe80::1%eth0"])
async def test_an_address_is_kept(address: str) -> None:
    assert await resolve(address) == address


async def test_a_name_becomes_an_address() -> None:
    assert await resolve("localhost") == "127.0.0.1"


async def test_a_name_that_cannot_be_resolved() -> None:
    with pytest.raises(OSError, match=r"brokerIP1=nowhere\.invalid cannot be resolved"):
        await resolve("nowhere.invalid")
