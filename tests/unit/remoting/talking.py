"""A server and clients of its that do exactly what a test says, for the tests of the server."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import (
    FLAG_RESPONSE,
    FrameReader,
    RawFrame,
    RemotingCommand,
    frame_prefix,
)
from pyromq.remoting.connection import Connection
from pyromq.remoting.runs import wants_answer
from pyromq.remoting.server import RemotingServer
from pyromq.remoting.service import Service
from tests.support.patience import DEADLINE, until

ECHO = RequestCode.HEART_BEAT
HOT = RequestCode.SEND_MESSAGE
OTHER_HOT = RequestCode.PULL_MESSAGE
MIB = 1024 * 1024

Log = pytest.LogCaptureFixture


class Client:
    """A client that does exactly what a test says, bytes and all."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._frames = FrameReader(max_frame=1 << 30)
        self._commands: list[RemotingCommand] = []

    def write(self, *commands: RemotingCommand) -> None:
        self.writer.write(b"".join(command.encode() for command in commands))

    async def read(self) -> RemotingCommand:
        """The next command; ConnectionError when the server has closed the connection."""
        while not self._commands:
            data = await asyncio.wait_for(self.reader.read(1 << 18), DEADLINE)
            if not data:
                raise ConnectionResetError("closed by the server")
            self._commands += self._frames.feed(data)
        return self._commands.pop(0)

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        self.write(command)
        return await self.read()

    async def closed(self) -> None:
        """Wait until the server has closed, and check that nothing more came."""
        with pytest.raises(ConnectionError):
            await self.read()

    @property
    def address(self) -> str:
        host, port = self.writer.get_extra_info("sockname")[:2]
        return f"{host}:{port}"


@contextlib.asynccontextmanager
async def serving(
    handlers: dict[Any, Any] | None = None, **options: Any
) -> AsyncIterator[RemotingServer]:
    service, options = service_of(handlers, options)
    server = RemotingServer(host="127.0.0.1", **options)
    await server.start(service)
    try:
        yield server
    finally:
        await server.stop()
        assert not server.connections
        assert not server.tasks


def service_of(
    handlers: dict[int, Any] | None, options: dict[str, Any]
) -> tuple[Service[Connection], dict[str, Any]]:
    """Return the service that some options describe, and the options of the server itself."""
    names = {field.name for field in dataclasses.fields(Service)}
    service: Service[Connection] = Service(
        handlers={ECHO: echo} if handlers is None else handlers,
        **{name: value for name, value in options.items() if name in names},
    )
    return service, {name: value for name, value in options.items() if name not in names}


@contextlib.asynccontextmanager
async def connected(server: RemotingServer, **options: Any) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, **options)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def connection_of(server: RemotingServer, client: Client) -> Connection:
    await until(lambda: client.address in {each.remote_address for each in server.connections})
    return next(each for each in server.connections if each.remote_address == client.address)


def echo(_: Connection, request: RemotingCommand) -> RemotingCommand:
    return request.answer(body=request.body)


def hot_echo(_connection: Connection, frames: list[RawFrame], answers: list[bytes]) -> None:
    for frame in frames:
        _, header, body = frame
        if wants_answer(frame):
            answer = RemotingCommand(0, opaque=header["opaque"], flag=FLAG_RESPONSE, body=body)
            answers.append(answer.encode())


def request(code: int = ECHO, opaque: int = 0, body: bytes = b"", **rest: Any) -> RemotingCommand:
    return RemotingCommand(code, opaque=opaque, body=body, **rest)


def raw_json(header: bytes) -> bytes:
    return frame_prefix(0, len(header), 0) + header


def server_log(caplog: Log) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith(("pyromq", "asyncio")) and record.levelno > logging.DEBUG
    ]


def slow_reader(server: RemotingServer) -> contextlib.AbstractAsyncContextManager[Client]:
    """A client whose socket takes little and who reads nothing unless asked."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.connect(("127.0.0.1", server.port))
    return connected_by(plain)


@contextlib.asynccontextmanager
async def connected_by(plain: socket.socket) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(sock=plain, limit=1024)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


def unsent(connection: Connection) -> int:
    return connection._transport.get_write_buffer_size()


class Wire(asyncio.Transport):
    """A transport without a socket: counts what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 4711)})
        self.written: list[bytes] = []
        self.is_closed = False
        self.unread = 0
        self.is_paused = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.unread

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


async def wired(**options: Any) -> tuple[Connection, Wire]:
    """A connection without a socket, for tests that count its calls."""
    wire = Wire()
    service, options = service_of(options.pop("handlers", None), options)
    server = RemotingServer(**options)
    server.serve(service)
    connection = Connection(server, asyncio.get_running_loop())
    connection.connection_made(wire)
    return connection, wire
