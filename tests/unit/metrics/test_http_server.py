from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus

import pytest

from pyromq.metrics import http_server
from pyromq.metrics.http_server import MAX_HEAD_SIZE, MAX_HTTP_CONNECTIONS, HttpServer, Response
from tests.support.patience import DEADLINE, until


async def hello(headers: Mapping[str, str]) -> Response:
    return Response(HTTPStatus.OK, [b"hello ", headers.get("x-name", "you").encode()])


async def broken(_: Mapping[str, str]) -> Response:
    raise RuntimeError("broken")


async def large(_: Mapping[str, str]) -> Response:
    return Response(HTTPStatus.OK, [b"x" * 1_000_000] * 16)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = HttpServer({"/hello": hello, "/broken": broken, "/large": large})
    bound = socket.create_server(("127.0.0.1", 0))
    found: int = bound.getsockname()[1]
    await server.start(bound)
    yield found
    await server.stop()
    await server.stop()


async def exchange(port: int, request: bytes) -> bytes:
    """Send bytes and return everything until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    async with asyncio.timeout(DEADLINE):
        data = await reader.read()
    writer.close()
    return data


async def test_get(port: int) -> None:
    data = await exchange(
        port, b"GET /hello?x=1 HTTP/1.1\r\nX-Name: b\r\nConnection: close\r\n\r\n"
    )
    head, body = data.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 7\r\n" in head
    assert body == b"hello b"


async def test_head_has_no_body(port: int) -> None:
    data = await exchange(port, b"HEAD /hello HTTP/1.0\r\n\r\n")
    assert b"Content-Length: 9" in data
    assert data.endswith(b"\r\n\r\n")


async def test_a_connection_serves_many_requests(port: int) -> None:
    request = b"GET /hello HTTP/1.1\r\n\r\n"
    last = b"GET /hello HTTP/1.1\r\nConnection: close\r\n\r\n"
    assert (await exchange(port, request * 5 + last)).count(b"hello you") == 6


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /nothing HTTP/1.1", b"404"),
        (b"POST /hello HTTP/1.1", b"405"),
        (b"GET /broken HTTP/1.1", b"500"),
        (b"nonsense", b"400"),
        (b"GET /hello SPDY/3", b"400"),
        (b"\xff\xfe \x00 HTTP/1.1", b"404"),
    ],
)
async def test_bad_requests(port: int, request_line: bytes, status: bytes) -> None:
    data = await exchange(port, request_line + b"\r\nConnection: close\r\n\r\n")
    assert data.startswith(b"HTTP/1.1 " + status)


async def test_a_body_ends_the_connection(port: int) -> None:
    smuggled = b"GET /hello HTTP/1.1\r\nContent-Length: 9\r\n\r\nGET /hello HTTP/1.1\r\n\r\n"
    assert (await exchange(port, smuggled)).count(b"HTTP/1.1 200") == 1


async def test_a_long_head_is_refused(port: int) -> None:
    data = await exchange(port, b"GET /hello HTTP/1.1\r\nX: " + b"x" * 2 * MAX_HEAD_SIZE)
    assert data.startswith(b"HTTP/1.1 400")


async def test_a_large_response_arrives(port: int) -> None:
    data = await exchange(port, b"GET /large HTTP/1.0\r\n\r\n")
    assert data.partition(b"\r\n\r\n")[2] == b"x" * 16_000_000


async def test_a_caller_that_goes_away_harms_nobody(port: int) -> None:
    for _ in range(3):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /large HTTP/1.1\r\n\r\n")
        writer.transport.abort()
    assert b"hello you" in await exchange(port, b"GET /hello HTTP/1.0\r\n\r\n")


async def test_silent_callers_are_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_REQUEST_SECONDS", 0.05)
    assert await exchange(port, b"GET /hel") == b""


async def test_connections_are_bounded(port: int) -> None:
    open_ones = [
        await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_HTTP_CONNECTIONS)
    ]

    async def is_refused() -> bool:
        try:
            return await exchange(port, b"GET /hello HTTP/1.0\r\n\r\n") == b""
        except ConnectionError:
            return True

    await until(is_refused)
    for _, writer in open_ones:
        writer.close()

    async def is_served() -> bool:
        try:
            return b"hello" in await exchange(port, b"GET /hello HTTP/1.0\r\n\r\n")
        except ConnectionError:
            return False

    await until(is_served)
