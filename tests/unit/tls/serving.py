"""A server that echoes, behind the TLS layer, and clients for it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

from pyromq.tls.client import Tls, client_tls
from pyromq.tls.server import ServerTls
from pyromq.tls.settings import TlsSettings
from tests.support.patience import DEADLINE


class Echo(asyncio.Protocol):
    """Writes what it reads, and notes what happened."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.events: list[str] = []
        self.chunks: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.events.append("made")

    def connection_secured(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.events.append("secured")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")

    def pause_writing(self) -> None:
        self.events.append("paused")

    def resume_writing(self) -> None:
        self.events.append("resumed")

    def data_received(self, data: bytes) -> None:
        self.chunks.append(data)
        self.transport.write(data)


class Echoes:
    """A running server and its connections."""

    def __init__(self, tls: ServerTls, port: int, served: list[Echo]) -> None:
        self.tls, self.port, self.served = tls, port, served

    async def connect(
        self, tls: Tls | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        client = None if tls is None else client_tls(tls)
        arguments = {} if client is None else client.arguments("127.0.0.1")
        async with asyncio.timeout(DEADLINE):
            return await asyncio.open_connection("127.0.0.1", self.port, **arguments)

    async def ask(self, data: bytes, tls: Tls | None = None) -> bytes:
        """Send bytes over a new connection and return as many, or fewer if it was closed."""
        reader, writer = await self.connect(tls)
        try:
            writer.write(data)
            async with asyncio.timeout(DEADLINE):
                return await reader.readexactly(len(data))
        except asyncio.IncompleteReadError as error:
            return error.partial
        finally:
            await closed(writer)


@contextlib.asynccontextmanager
async def echoing(settings: TlsSettings, *, look_seconds: float = 3600.0) -> AsyncIterator[Echoes]:
    """Serve; certificates are looked at when `reload_if_changed` is called, or so often."""
    tls = ServerTls(settings, look_seconds=look_seconds)
    tls.load()
    tls.start()
    served: list[Echo] = []

    def new() -> Echo:
        served.append(Echo())
        return served[-1]

    loop = asyncio.get_running_loop()
    server = await loop.create_server(tls.protect(new), "127.0.0.1", 0)
    try:
        yield Echoes(tls, server.sockets[0].getsockname()[1], served)
    finally:
        server.close()
        for echo in served:
            echo.transport.abort()
        await server.wait_closed()
        await tls.stop()


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a client's connection, however it ended."""
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):
        await writer.wait_closed()
