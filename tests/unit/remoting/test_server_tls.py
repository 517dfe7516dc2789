"""A server whose connections are encrypted behaves as one whose are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from pyromq.remoting.limits import PeerLimits
from pyromq.remoting.server import RemotingServer
from pyromq.tls.client import client_tls
from pyromq.tls.server import ServerTls
from tests.support.certificates import Certificates
from tests.support.loops import on_both_loops
from tests.support.patience import until
from tests.unit.remoting.talking import MIB, Log, connected, connection_of, request, serving


@asynccontextmanager
async def encrypted(
    directory: Path, mode: str = "enforcing", **options: Any
) -> AsyncIterator[tuple[RemotingServer, dict[str, Any]]]:
    """A server, and the arguments of its clients."""
    certs = Certificates(directory)
    tls = ServerTls(certs.settings(mode))
    tls.load()
    client = client_tls(certs.tls())
    assert client is not None
    async with serving(tls=tls, **options) as server:
        yield server, client.arguments("127.0.0.1")
    await tls.stop()


@on_both_loops
async def test_requests_of_any_size(tmp_path: Path) -> None:
    async with encrypted(tmp_path) as (server, tls), connected(server, **tls) as client:
        for number, size in enumerate((0, 1, 100_000, 5 * MIB)):
            answer = await client.ask(request(opaque=number, body=b"x" * size))
            assert (answer.opaque, len(answer.body)) == (number, size)
        connection = await connection_of(server, client)
        assert connection.unsent == 0


@on_both_loops
async def test_many_requests_in_flight_are_answered_in_order(tmp_path: Path) -> None:
    async with encrypted(tmp_path) as (server, tls), connected(server, **tls) as client:
        client.write(*(request(opaque=number, body=b"x" * 500) for number in range(500)))
        assert [(await client.read()).opaque for _ in range(500)] == list(range(500))


@on_both_loops
async def test_a_silent_connection_is_closed(tmp_path: Path) -> None:
    async with encrypted(tmp_path, idle_seconds=0.3) as (server, tls):
        async with connected(server, **tls) as client:
            await client.closed()
        async with connected(server) as client:  # not a byte of a handshake
            await client.closed()
        async with connected(server) as client:  # not a whole one
            client.writer.write(b"\x16\x03\x01")
            await client.closed()


@on_both_loops
async def test_limits_count_connections_from_the_start(tmp_path: Path) -> None:
    limits = PeerLimits(max_connections=2)
    async with encrypted(tmp_path, limits=limits) as (server, tls):
        async with connected(server, **tls) as first:
            assert (await first.ask(request(body=b"in"))).body == b"in"
            async with connected(server):  # no handshake yet
                await until(lambda: limits.connections == 2 or limits.max_per_address == 1)
        await until(lambda: limits.connections == 0)


@on_both_loops
async def test_responses_arrive_before_a_stop_closes(tmp_path: Path) -> None:
    async with encrypted(tmp_path) as (server, tls), connected(server, **tls) as client:
        assert (await client.ask(request(body=b"one"))).body == b"one"
        connection = await connection_of(server, client)
        connection.write(request(opaque=7).answer(body=b"last words").encode())
        stopping = asyncio.create_task(server.stop())
        assert (await client.read()).body == b"last words"
        await client.closed()
        await stopping


@on_both_loops
async def test_a_frame_that_is_none_is_refused(tmp_path: Path, caplog: Log) -> None:
    async with encrypted(tmp_path) as (server, tls), connected(server, **tls) as client:
        client.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await client.closed()
    assert "sent no RocketMQ frame" in caplog.text


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
async def test_a_peer_that_does_not_read_holds_little(tmp_path: Path, mode: str) -> None:
    async with encrypted(tmp_path, mode) as (server, tls), connected(server, **tls) as client:
        await client.ask(request(body=b"x"))
        connection = await connection_of(server, client)
        transport = cast(asyncio.Transport, client.writer.transport)
        transport.pause_reading()
        for number in range(64):
            client.write(request(opaque=number, body=b"x" * MIB))
        await until(lambda: connection.congested)
        held = connection.unsent
        assert 0 < held < 16 * MIB
        transport.resume_reading()
        for _ in range(64):
            await client.read()
        await until(lambda: connection.unsent == 0)
