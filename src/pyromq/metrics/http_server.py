"""A small HTTP/1.1 server for scrapes and health checks.

GET and HEAD without bodies, keep-alive, one task per connection. Everything a caller sends is
bounded: the size of a request's head, the time to send it, the time to read the response, and the
number of connections. Errors are text.

Used by `metrics.endpoint`, on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, TypeAlias

from pyromq.base.log_lines import RARELY

logger = logging.getLogger(__name__)

#: Bytes of a request's line and headers.
MAX_HEAD_SIZE: Final = 16 * 1024
MAX_HTTP_CONNECTIONS: Final = 64
#: Seconds that a caller has to send a request, with the pause before it.
_REQUEST_SECONDS: Final = 120.0
#: Seconds that a caller has to read a response.
_RESPONSE_SECONDS: Final = 60.0
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Response:
    """A response, in parts that are written one after the other."""

    status: HTTPStatus
    parts: Sequence[bytes]
    content_type: str = _TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


#: Gets the headers of the request, with names in lower case.
Page: TypeAlias = Callable[[Mapping[str, str]], Awaitable[Response]]


class _BadRequestError(Exception):
    """A request that cannot be read."""


class HttpServer:
    """Serves pages by their paths."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, bound: socket.socket) -> None:
        """Serve on a bound socket, which the server takes over."""
        self._server = await asyncio.start_server(
            self._connected, sock=bound, limit=MAX_HEAD_SIZE, backlog=MAX_HTTP_CONNECTIONS
        )

    async def stop(self) -> None:
        """Stop listening and close all connections. Idempotent."""
        if self._server is None:
            return
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= MAX_HTTP_CONNECTIONS:
                while await self._serve(reader, writer):
                    pass
            else:
                logger.warning(
                    "metrics: connection refused, there are %d", MAX_HTTP_CONNECTIONS, extra=RARELY
                )
        except (OSError, EOFError, TimeoutError):
            pass  # the caller is gone, or too slow
        except asyncio.CancelledError:
            pass  # `stop`; asyncio would log the cancellation of this task as an error
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; return whether the connection stays open."""
        method, path, keeps_open = "GET", "", False
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                method, path, headers, keeps_open = await _read_request(reader)
            response = await self._respond(method, path, headers)
        except _BadRequestError as error:
            response = _error(HTTPStatus.BAD_REQUEST, str(error))
        async with asyncio.timeout(_RESPONSE_SECONDS):
            await _write(writer, response, has_body=method != "HEAD", keeps_open=keeps_open)
        return keeps_open

    async def _respond(self, method: str, path: str, headers: Mapping[str, str]) -> Response:
        page = self._pages.get(path)
        if page is None:
            return _error(HTTPStatus.NOT_FOUND, f"there are {', '.join(self._pages)}")
        if method not in ("GET", "HEAD"):
            return Response(
                HTTPStatus.METHOD_NOT_ALLOWED, [b"use GET\n"], headers={"Allow": "GET, HEAD"}
            )
        try:
            return await page(headers)
        except Exception:
            logger.exception("%s failed", path, extra=RARELY)
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, f"{path} failed: see the server's log")


async def _read_request(
    reader: asyncio.StreamReader,
) -> tuple[str, str, dict[str, str], bool]:
    """Return method, path, headers, and whether the connection may stay open."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _BadRequestError(f"a head of more than {MAX_HEAD_SIZE} bytes") from None
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise _BadRequestError("expected GET, a path and HTTP/1.1")
    headers = {
        name.strip().lower(): value.strip()
        for name, colon, value in (line.partition(":") for line in lines[1:])
        if colon
    }
    # A body would be read as the next request.
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    keeps_open = (
        words[2] != "HTTP/1.0" and not has_body and headers.get("connection", "").lower() != "close"
    )
    return words[0], words[1].partition("?")[0], headers, keeps_open


async def _write(
    writer: asyncio.StreamWriter, response: Response, *, has_body: bool, keeps_open: bool
) -> None:
    lines = [
        f"HTTP/1.1 {response.status.value} {response.status.phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {sum(map(len, response.parts))}",
        f"Connection: {'keep-alive' if keeps_open else 'close'}",
        "Cache-Control: no-store",
        *(f"{name}: {value}" for name, value in response.headers.items()),
    ]
    writer.write("\r\n".join((*lines, "", "")).encode("latin-1"))
    if has_body:
        for part in response.parts:
            writer.write(part)
            await writer.drain()
    await writer.drain()


def _error(status: HTTPStatus, text: str) -> Response:
    return Response(status, [f"{status.value} {status.phrase}: {text}\n".encode()])
