"""The asking end of RocketMQ's remoting protocol: requests to servers by address.

One connection per address, made on demand and shared; whoever asks first
while it is being made shares the same attempt. Requests and answers are
matched by opaque. A server may send requests of its own on the connection:
they go to `handlers`, and their answers back. Used by clients, tools and by a
broker towards its NameServers, on one event loop: not safe across threads.

Invariants:
1. A request ends exactly once: with its answer, or with one RemotingError
   that names the address. A lost connection fails all its requests at once.
2. The frames of one turn of the event loop leave in one write, in the order
   in which they were sent.
3. A sender waits while the peer does not read (`pause_writing`), so memory is
   bounded by the number of concurrent requests.
4. An answer that comes too late, or that nobody asked for, is dropped.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from pyromq.protocol.codes import RequestCode, ResponseCode
from pyromq.protocol.frame import (
    FLAG_ONEWAY,
    MAX_FRAME,
    FrameError,
    FrameReader,
    RemotingCommand,
    RequestError,
)
from pyromq.remoting.address import parse_address
from pyromq.remoting.errors import (
    RemotingClosedError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
)

__all__ = [
    "ClientHandler",
    "RemotingClient",
    "RemotingClosedError",
    "RemotingConnectError",
    "RemotingError",
    "RemotingTimeoutError",
]

logger = logging.getLogger(__name__)

#: Takes the server's address and its request; a plain function or a coroutine
#: function. `None` means no answer; `RequestError` is answered with its code.
ClientHandler = Callable[
    [str, RemotingCommand], RemotingCommand | Awaitable[RemotingCommand | None] | None
]

_MAX_OPAQUE = 0x7FFFFFFF
#: How long `close` lets a peer take what was still queued for it.
_CLOSE_GRACE_SECONDS = 1.0


class RemotingClient:
    """Sends requests to any number of servers.

    `handlers` serves requests that a server sends on our connection, by code.
    `connect_timeout` bounds a connection attempt, in seconds.
    """

    def __init__(
        self,
        handlers: Mapping[int, ClientHandler] | None = None,
        *,
        connect_timeout: float = 3.0,
        max_frame: int = MAX_FRAME,
    ) -> None:
        self._handlers = handlers or {}
        self._connect_timeout = connect_timeout
        self._max_frame = max_frame
        self._connections: dict[str, _ServerConnection] = {}
        self._connecting: dict[str, asyncio.Task[_ServerConnection]] = {}
        self._closed = False

    async def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout: float = 3.0,  # noqa: ASYNC109 - the time-out is part of the protocol's request
    ) -> RemotingCommand:
        """Send `command` (its opaque is set here) and return the answer, whatever its code.

        `timeout` covers connecting, waiting for the peer to read, and the answer.
        """
        try:
            async with asyncio.timeout(timeout):
                connection = self._connections.get(address) or await self._connect(address)
                return await connection.request(command)
        except TimeoutError:
            raise RemotingTimeoutError(
                address,
                f"no answer from {address} to {_code_name(command.code)} within {timeout:g} s",
            ) from None

    async def send_oneway(self, address: str, command: RemotingCommand) -> None:
        """Send `command` without waiting for an answer: none will come."""
        connection = self._connections.get(address) or await self._connect(address)
        await connection.send_oneway(command)

    async def close(self) -> None:
        """Send what is queued, close every connection and fail requests still open."""
        self._closed = True
        attempts = list(self._connecting.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        connections = list(self._connections.values())
        await asyncio.gather(*(connection.close() for connection in connections))

    async def _connect(self, address: str) -> _ServerConnection:
        if self._closed:
            raise RemotingClosedError(
                address, f"cannot reach {address}: this remoting client was closed"
            )
        attempt = self._connecting.get(address)
        if attempt is None:
            attempt = asyncio.create_task(self._open(address))
            attempt.add_done_callback(lambda done: self._attempt_ended(address, done))
            self._connecting[address] = attempt
        try:
            # Shielded: one caller that gives up must not end the others' attempt.
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            if attempt.cancelled():
                raise RemotingClosedError(
                    address, f"this remoting client was closed while connecting to {address}"
                ) from None
            raise

    async def _open(self, address: str) -> _ServerConnection:
        host, port = parse_address(address)
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _ServerConnection(
                        address, self._handlers, self._max_frame, self._forget
                    ),
                    host,
                    port,
                )
        except TimeoutError:
            raise RemotingConnectError(
                address, f"cannot connect to {address} within {self._connect_timeout:g} s"
            ) from None
        except (OSError, UnicodeError) as error:
            raise RemotingConnectError(address, f"cannot connect to {address}: {error}") from error
        if not connection.is_lost:  # a peer may close in the very turn that accepts
            self._connections[address] = connection
        return connection

    def _attempt_ended(self, address: str, attempt: asyncio.Task[_ServerConnection]) -> None:
        del self._connecting[address]
        if not attempt.cancelled():
            attempt.exception()  # seen, also when every caller has given up

    def _forget(self, connection: _ServerConnection) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]


class _ServerConnection(asyncio.Protocol):
    """One connection to a server and the requests that are open on it."""

    def __init__(
        self,
        address: str,
        handlers: Mapping[int, ClientHandler],
        max_frame: int,
        on_lost: Callable[[_ServerConnection], None],
    ) -> None:
        self.address = address
        self._handlers = handlers
        self._on_lost = on_lost
        self._reader = FrameReader(max_frame)
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._writable = asyncio.Event()
        self._writable.set()
        self._outgoing: list[bytes] = []
        self._opaque = 0
        self._pending: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._handler_tasks: set[asyncio.Task[None]] = set()
        self._close_reason: str | None = None

    @property
    def is_lost(self) -> bool:
        return self._lost.done()

    async def request(self, command: RemotingCommand) -> RemotingCommand:
        await self._until_writable()
        self._opaque = opaque = (self._opaque + 1) & _MAX_OPAQUE
        command.opaque = opaque
        # Encoded before it is entered: a command that cannot be encoded leaves nothing behind.
        self._write(command.encode())
        answer: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self._pending[opaque] = answer
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen: the connection was lost in the turn that cancelled us
            raise
        finally:
            self._pending.pop(opaque, None)

    async def send_oneway(self, command: RemotingCommand) -> None:
        await self._until_writable()
        self._opaque = command.opaque = (self._opaque + 1) & _MAX_OPAQUE
        command.flag |= FLAG_ONEWAY
        self._write(command.encode())

    async def close(self) -> None:
        self._end("this remoting client was closed")
        try:
            async with asyncio.timeout(_CLOSE_GRACE_SECONDS):
                await asyncio.shield(self._lost)
        except TimeoutError:
            self._transport.abort()
            await self._lost
        await asyncio.gather(*self._handler_tasks, return_exceptions=True)

    # What the event loop calls, in the order of a connection's life.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports are not derived from asyncio's class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            commands = self._reader.feed(data)
        except FrameError as error:
            reason = f"{self.address} sent bytes that are no RocketMQ frame: {error}"
            logger.warning("%s; connection closed", reason)
            self._end(reason)
            return
        for command in commands:
            if command.is_response:
                self._take_answer(command)
            else:
                self._take_request(command)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        if self._close_reason is None:
            self._close_reason = f"connection to {self.address} was lost" + (
                f": {error}" if error else " (closed by the peer)"
            )
        self._on_lost(self)
        self._fail_pending()
        self._writable.set()
        for task in self._handler_tasks:
            task.cancel()
        self._lost.set_result(None)

    # Helpers, in call order.

    async def _until_writable(self) -> None:
        while self._close_reason is None and not self._writable.is_set():
            await self._writable.wait()
        if self._close_reason is not None:
            raise RemotingClosedError(self.address, self._close_reason)

    def _write(self, frame: bytes) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(frame)

    def _flush(self) -> None:
        if self._outgoing:
            self._transport.write(b"".join(self._outgoing))
            self._outgoing.clear()

    def _take_answer(self, command: RemotingCommand) -> None:
        answer = self._pending.pop(command.opaque, None)
        if answer is None or answer.done():
            logger.debug(
                "answer %d of %s came too late, or to no request: dropped",
                command.opaque,
                self.address,
            )
        else:
            answer.set_result(command)

    def _take_request(self, command: RemotingCommand) -> None:
        handler = self._handlers.get(command.code)
        if handler is None:
            self._answer(
                command,
                command.answer(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    f"request type {command.code} not supported",
                ),
            )
            return
        try:
            outcome = handler(self.address, command)
        except Exception as error:
            outcome = self._answer_of_failure(command, error)
        if inspect.isawaitable(outcome):
            task = self._loop.create_task(self._answer_later(command, outcome))
            self._handler_tasks.add(task)
            task.add_done_callback(self._handler_tasks.discard)
        else:
            self._answer(command, outcome)

    async def _answer_later(
        self, command: RemotingCommand, outcome: Awaitable[RemotingCommand | None]
    ) -> None:
        try:
            answer = await outcome
        except Exception as error:
            answer = self._answer_of_failure(command, error)
        self._answer(command, answer)

    def _answer_of_failure(self, command: RemotingCommand, error: Exception) -> RemotingCommand:
        if isinstance(error, RequestError):
            return command.answer(error.code, error.remark)
        logger.error(
            "handling %s from %s failed", _code_name(command.code), self.address, exc_info=error
        )
        return command.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def _answer(self, command: RemotingCommand, answer: RemotingCommand | None) -> None:
        if answer is not None and not command.is_oneway and self._close_reason is None:
            self._write(answer.encode())

    def _end(self, reason: str) -> None:
        if self._close_reason is None:
            self._close_reason = reason
        self._flush()
        self._on_lost(self)
        self._fail_pending()
        self._transport.close()

    def _fail_pending(self) -> None:
        pending, self._pending = self._pending, {}
        for answer in pending.values():
            if not answer.done():
                assert self._close_reason is not None
                answer.set_exception(RemotingClosedError(self.address, self._close_reason))


def _code_name(code: int) -> str:
    try:
        return f"{RequestCode(code).name} ({code})"
    except ValueError:
        return f"request {code}"
