"""A server is a host of its connections."""

from __future__ import annotations

from pyromq.remoting.connection import Connection
from pyromq.remoting.host import Host
from pyromq.remoting.server import RemotingServer


def test_a_server_has_everything_that_a_connection_uses() -> None:
    server: Host[Connection] = RemotingServer()

    for name in Host.__annotations__:
        assert hasattr(server, name), name
