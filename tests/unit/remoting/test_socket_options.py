from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from pyromq.base.settings import ConfigError
from pyromq.broker.config import BrokerConfig
from pyromq.nameserver.config import NamesrvConfig
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.connection import Connection
from pyromq.remoting.limits import PeerLimits
from pyromq.remoting.server import RemotingServer
from pyromq.remoting.service import Service
from pyromq.remoting.socket_options import DEFAULT_BACKLOG, SocketOptions

BUFFER = 64 * 1024


def test_both_servers_have_them() -> None:
    settings = {"serverSocketBacklog": "7", "serverSocketSndBufSize": "65536"}
    expected = SocketOptions(backlog=7, send_buffer=65536)
    assert PeerLimits.of(BrokerConfig.load(settings)[0]).sockets == expected
    assert PeerLimits.of(NamesrvConfig.load(settings)[0]).sockets == expected
    assert SocketOptions.of(BrokerConfig()) == SocketOptions(backlog=DEFAULT_BACKLOG)


def test_a_low_water_mark_above_the_high_one_is_refused() -> None:
    marks = {"writeBufferHighWaterMark": "1000", "writeBufferLowWaterMark": "1001"}
    for kind in (BrokerConfig, NamesrvConfig):
        with pytest.raises(ConfigError, match=r"^writeBufferLowWaterMark=1001: expected at most"):
            kind.load(marks)
        assert kind.load({**marks, "writeBufferHighWaterMark": "0"})


class Transport(asyncio.WriteTransport):
    limits: tuple[Any, ...] = ()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)


@pytest.mark.parametrize(
    ("high", "low", "expected"),
    [(0, 0, ()), (10, 0, (10, None)), (0, 5, (None, 5)), (10, 5, (10, 5))],
)
def test_water_marks_of_0_are_left_to_the_loop(
    high: int, low: int, expected: tuple[Any, ...]
) -> None:
    transport = Transport()
    SocketOptions(high_water=high, low_water=low).set_water_marks(transport)
    assert transport.limits == expected


async def test_connections_have_the_options_of_their_server() -> None:
    options = SocketOptions(
        send_buffer=BUFFER, receive_buffer=BUFFER, high_water=5000, low_water=1000
    )
    connected: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    def greet(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        connected.set_result(connection)
        return request.answer()

    server = RemotingServer(host="127.0.0.1", limits=PeerLimits(sockets=options))
    await server.start(Service(handlers={1: greet}))
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(RemotingCommand(1).encode())
        transport = (await connected)._transport
        assert transport is not None
        accepted = transport.get_extra_info("socket")
        # The kernel doubles the sizes it is given.
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * BUFFER
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * BUFFER
        assert transport.get_write_buffer_limits() == (1000, 5000)
        writer.close()
    finally:
        await server.stop()
