"""The client end of RocketMQ's remoting protocol: requests to servers by address.

There is one connection per address, opened on demand and shared; concurrent callers share the
attempt to open it. Requests and responses are matched by opaque. Requests that a server sends on
the connection go to `handlers`. Used by clients, by tools, and by brokers towards NameServers, on
one event loop; not thread-safe.

`request` suits most callers. A caller that sends tens of thousands of requests per second encodes
frames itself and uses `ready` and `ServerConnection.call` or `send`: one future per request, one
timer for all of them, and no copy of the response's header.

Invariants:
1. A request ends exactly once, with its response or with one RemotingError that names the address.
   When a connection is lost, all its requests fail immediately.
2. The frames of one loop iteration leave together, in the order in which they were sent. If
   responses lead to requests at once, half as many requests leave as soon as they are there, so
   that the server works on them while the client handles the other responses.
3. Senders wait while the peer does not read (`pause_writing`), so the number of concurrent
   requests bounds the memory.
4. Responses that are late or match no request are dropped.
5. A connection whose requests time out while nothing arrives for `SILENT_SECONDS` is closed, and
   the next request opens a new one. So a silently broken path heals itself.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, cast

from pyromq.protocol import kernel
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    MAX_FRAME,
    ChunkGatherer,
    FrameError,
    RawFrame,
    RemotingCommand,
    RequestError,
    command_from,
    split_frames,
)
from pyromq.remoting.address import AddressError, parse_address
from pyromq.remoting.errors import (
    RemotingClosedError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
)
from pyromq.remoting.in_flight import Requests
from pyromq.tls.client import ClientTls
from pyromq.tls.errors import describe, describe_connect

__all__ = [
    "ClientHandler",
    "RemotingClient",
    "RemotingClosedError",
    "RemotingConnectError",
    "RemotingError",
    "RemotingTimeoutError",
    "SendAnswer",
    "ServerConnection",
]

logger = logging.getLogger(__name__)
_compiled = kernel.load("producing")

#: Takes the server's address and its request; a function or a coroutine function. None means no
#: response; a RequestError is answered with its code.
ClientHandler = Callable[
    [str, RemotingCommand], RemotingCommand | Awaitable[RemotingCommand | None] | None
]
#: Called with the server's address and each request before it is encoded; may change the request.
BeforeRequest = Callable[[str, RemotingCommand], None]

_MAX_OPAQUE = 0x7FFFFFFF
#: More frames than one loop iteration ever has.
_NEVER = 1 << 62
#: How long `close` waits for a peer to read the frames that are queued for it.
_CLOSE_GRACE_SECONDS = 1.0
#: A connection whose requests time out is closed if nothing arrived on it for this long.
SILENT_SECONDS = 3.0


class SendAnswer(NamedTuple):
    """The response to a send, which the broker has stored: code SUCCESS and nothing unusual."""

    #: The ids that encode broker and physical offset, separated by commas.
    message_ids: str
    queue_id: int
    queue_offset: int
    region_id: str
    trace_on: bool


class RemotingClient:
    """Sends requests to any number of servers.

    `handlers` serve requests that a server sends on our connection, by code. `connect_timeout` is
    in seconds. `tls` encrypts the connections. `on_connect` is called with the address of each new
    connection.
    """

    def __init__(
        self,
        handlers: Mapping[int, ClientHandler] | None = None,
        *,
        connect_timeout: float = 3.0,
        max_frame: int = MAX_FRAME,
        tls: ClientTls | None = None,
        before_request: BeforeRequest | None = None,
        on_connect: Callable[[str], None] | None = None,
    ) -> None:
        self._handlers = handlers or {}
        self._on_connect = on_connect
        self._connect_timeout = connect_timeout
        self._max_frame = max_frame
        self._tls = tls
        self._before_request = before_request
        self._connections: dict[str, ServerConnection] = {}
        self._connecting: dict[str, asyncio.Task[ServerConnection]] = {}
        self._closed = False

    async def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout: float = 3.0,  # noqa: ASYNC109 - the time-out is part of the protocol's request
    ) -> RemotingCommand:
        """Send `command` (its opaque is set here) and return the response, whatever its code.

        `timeout` covers connecting, waiting for the peer to read, and the response.
        """
        connection = self.ready(address)
        if connection is not None:
            frame = await self._call(connection, command, timeout)
        else:
            try:
                async with asyncio.timeout(timeout):
                    connection = await self.connect(address)
                    frame = await self._call(connection, command, None)
            except TimeoutError:
                raise _timed_out(address, command.code, timeout) from None
        try:
            return command_from(frame)
        except FrameError as error:
            raise connection.refuse(error) from error

    async def send_oneway(self, address: str, command: RemotingCommand) -> None:
        """Send `command` as a oneway request: the server sends no response."""
        connection = self.ready(address) or await self.connect(address)
        self._prepare(connection, command)
        command.flag |= FLAG_ONEWAY
        connection.write(command.encode())

    def ready(self, address: str) -> ServerConnection | None:
        """Return the connection to a server if there is one that accepts frames now."""
        connection = self._connections.get(address)
        return connection if connection is not None and connection.takes_frames else None

    async def connect(self, address: str) -> ServerConnection:
        """Return the connection to a server when it accepts frames; open it if necessary."""
        connection = self._connections.get(address) or await self._connect(address)
        await connection.until_writable()
        return connection

    def _call(
        self,
        connection: ServerConnection,
        command: RemotingCommand,
        timeout: float | None,
    ) -> asyncio.Future[RawFrame]:
        self._prepare(connection, command)
        return connection.call(command.opaque, command.encode(), command.code, timeout)

    def _prepare(self, connection: ServerConnection, command: RemotingCommand) -> None:
        command.opaque = connection.next_opaque()
        if self._before_request is not None:
            self._before_request(connection.address, command)

    async def close(self) -> None:
        """Send queued frames, close every connection and fail the requests in flight."""
        self._closed = True
        attempts = list(self._connecting.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        connections = list(self._connections.values())
        await asyncio.gather(*(connection.close() for connection in connections))

    async def _connect(self, address: str) -> ServerConnection:
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
            # Shielded: a caller that gives up must not cancel the attempt of the others.
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            if attempt.cancelled():
                raise RemotingClosedError(
                    address, f"this remoting client was closed while connecting to {address}"
                ) from None
            raise

    async def _open(self, address: str) -> ServerConnection:
        try:
            host, port = parse_address(address)
        except AddressError as error:  # from a server, which may send a valid one later
            raise RemotingConnectError(address, f"cannot connect: {error}") from error
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: ServerConnection(
                        address, self._handlers, self._max_frame, self._forget
                    ),
                    host,
                    port,
                    **({} if self._tls is None else self._tls.arguments(host)),
                )
        except TimeoutError:
            raise RemotingConnectError(
                address, f"cannot connect to {address} within {self._connect_timeout:g} s"
            ) from None
        except (OSError, UnicodeError) as error:  # a failed TLS handshake is an OSError
            reason = error if self._tls is None else describe_connect(error)
            raise RemotingConnectError(address, f"cannot connect to {address}: {reason}") from error
        if not connection.is_lost:  # the peer may close in the same loop iteration
            self._connections[address] = connection
            if self._on_connect is not None:
                self._on_connect(address)
        return connection

    def _attempt_ended(self, address: str, attempt: asyncio.Task[ServerConnection]) -> None:
        del self._connecting[address]
        if not attempt.cancelled():
            attempt.exception()  # retrieved, even if every caller has gone

    def _forget(self, connection: ServerConnection) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]


class ServerConnection(asyncio.Protocol):
    """One connection to a server and the requests in flight on it."""

    def __init__(
        self,
        address: str,
        handlers: Mapping[int, ClientHandler],
        max_frame: int,
        on_lost: Callable[[ServerConnection], None],
    ) -> None:
        self.address = address
        #: Whether a frame may be written now: connected, and the peer reads.
        self.takes_frames = True
        self._handlers = handlers
        self._on_lost = on_lost
        self._max_frame = max_frame
        self._gatherer = ChunkGatherer(max_frame)
        self._loop = asyncio.get_running_loop()
        self._create_future = self._loop.create_future
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._writable = asyncio.Event()
        self._writable.set()
        self._outgoing: list[bytes] = []
        #: How many frames leave without waiting for the end of the loop iteration.
        self._early = _NEVER
        self._opaque = 0
        self._pending = Requests()
        #: Send requests; a plain response to one is decoded without its header's other fields.
        self._sends = Requests()
        self._handler_tasks: set[asyncio.Task[None]] = set()
        self._close_reason: str | None = None
        #: `loop.time()` when the first frame of this loop iteration was queued.
        self.queued_at = self._loop.time()
        #: `loop.time()` when bytes last arrived, and since when requests have had no response.
        self.heard_at = self._opened_at = self.queued_at
        self._silent_since = self.heard_at

    @property
    def is_lost(self) -> bool:
        """Whether the connection is lost."""
        return self._lost.done()

    def next_opaque(self) -> int:
        """Return the opaque of the next request; its frame must carry it."""
        self._opaque = opaque = (self._opaque + 1) & _MAX_OPAQUE
        return opaque

    def call(
        self, opaque: int, frame: bytes, code: int, timeout: float | None
    ) -> asyncio.Future[RawFrame]:
        """Send a request's frame; return a future of its response or a RemotingError.

        Without a `timeout` the caller must cancel the future itself.
        """
        return self._begin(self._pending, opaque, frame, code, timeout)

    def send(
        self, opaque: int, frame: bytes, code: int, timeout: float
    ) -> asyncio.Future[RawFrame | SendAnswer]:
        """Send the frame of a send request, like `call`; a plain response is a `SendAnswer`."""
        return self._begin(self._sends, opaque, frame, code, timeout)

    def write(self, frame: bytes) -> None:
        """Send a frame together with the others of this loop iteration."""
        outgoing = self._outgoing
        if not outgoing:
            self._loop.call_soon(self._flush)
            self.queued_at = self._loop.time()
        outgoing.append(frame)
        if len(outgoing) >= self._early:
            self._flush()

    async def until_writable(self) -> None:
        """Wait while the peer does not read. Raises RemotingClosedError."""
        while self._close_reason is None and not self._writable.is_set():
            await self._writable.wait()
        if self._close_reason is not None:
            raise RemotingClosedError(self.address, self._close_reason)

    def refuse(self, error: FrameError) -> RemotingClosedError:
        """Close the connection to a peer that does not speak RocketMQ; return the error."""
        reason = f"{self.address} sent no RocketMQ frame: {error}"
        logger.warning("%s; connection closed", reason)
        self._end(reason)
        return RemotingClosedError(self.address, reason)

    def overdue(self, answer: asyncio.Future[Any], code: int, seconds: float) -> None:
        """Fail a request that has timed out."""
        if not answer.done():
            answer.set_exception(_timed_out(self.address, code, seconds))
            self._note_silence(seconds)

    async def close(self) -> None:
        """Send queued frames, then close; abort if the peer does not read."""
        self._end("this remoting client was closed")
        try:
            async with asyncio.timeout(_CLOSE_GRACE_SECONDS):
                await asyncio.shield(self._lost)
        except TimeoutError:
            self._transport.abort()
            await self._lost
        await asyncio.gather(*self._handler_tasks, return_exceptions=True)

    # Called by the event loop, in the order of a connection's life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the new connection."""
        # uvloop's transports do not derive from asyncio's class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Pass responses to their callers and requests to their handlers."""
        self.heard_at = self._loop.time()
        buffer = self._gatherer.add(data)
        if buffer is None:
            return
        count = 0
        if self._sends and _compiled is not None:
            buffer, count = self._take_plain_answers(buffer)
        frames, taken, error = split_frames(buffer, self._max_frame)
        try:
            for frame in frames:
                header = frame[1]
                if header.get("flag", 0) & FLAG_RESPONSE:
                    self._take_answer(header["opaque"], frame)
                else:
                    self._take_request(command_from(frame))
        except (FrameError, TypeError, KeyError) as unreadable:
            error = FrameError(f"header cannot be used: {unreadable!r}")
        if error is not None:
            self.refuse(error)
            return
        self._gatherer.keep(buffer, taken)
        if count or frames:
            self._early = (count + len(frames) + 1) // 2
            self._loop.call_soon(self._end_early)  # behind the callers, who run next

    def pause_writing(self) -> None:
        """Make senders wait: the server does not read."""
        self.takes_frames = False
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let senders continue."""
        self.takes_frames = self._close_reason is None
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail every request in flight."""
        if self._close_reason is None:
            how = f": {describe(error)}" if error else " (closed by the peer)"
            self._close_reason = f"connection to {self.address} was lost{how}{self._tls_hint()}"
        self.takes_frames = False
        self._on_lost(self)
        self._fail_pending()
        self._outgoing.clear()  # uvloop raises an error for a write from now on
        self._writable.set()
        for task in self._handler_tasks:
            task.cancel()
        self._lost.set_result(None)

    # Helpers, in call order

    def _tls_hint(self) -> str:
        """Return why a peer may have closed: one that enforces TLS answers nothing else."""
        is_plain = self._transport.get_extra_info("ssl_object") is None
        is_silent = is_plain and self.heard_at == self._opened_at
        return "; it answered nothing and may want TLS" if is_silent else ""

    def _begin(
        self, requests: Requests, opaque: int, frame: bytes, code: int, timeout: float | None
    ) -> asyncio.Future[Any]:
        if self._close_reason is not None:
            raise RemotingClosedError(self.address, self._close_reason)
        answer: asyncio.Future[Any] = self._create_future()
        requests[opaque] = answer
        outgoing = self._outgoing
        if not outgoing:  # as in `write`, which would be one call more for each send
            self._loop.call_soon(self._flush)
            self.queued_at = self._loop.time()
        outgoing.append(frame)
        if len(outgoing) >= self._early:
            self._flush()
        if timeout is None:
            answer.add_done_callback(lambda _: requests.pop(opaque, None))
            return answer
        deadlines = requests.deadlines.get(timeout) or requests.deadlines_of(timeout, self.overdue)
        deadlines.add(self.queued_at + timeout, opaque, code)
        return answer

    def _note_silence(self, seconds: float) -> None:
        """Close the connection if nothing has arrived while requests timed out."""
        now = self._loop.time()
        if self.heard_at > now - seconds:
            return  # the server is alive and only did not answer this request
        if self._silent_since <= self.heard_at:
            self._silent_since = now - seconds
        if now - self._silent_since >= SILENT_SECONDS and self._close_reason is None:
            reason = f"{self.address} was silent for {now - self._silent_since:.1f} s"
            logger.warning("%s while requests were waiting; connection closed", reason)
            self._end(reason)
            self._transport.abort()  # drop unsent frames: their requests have failed

    def _end_early(self) -> None:
        """Let frames wait again: the callers of the last responses have run."""
        self._early = _NEVER

    def _flush(self) -> None:
        self._early = _NEVER
        if self._outgoing:
            self._transport.write(b"".join(self._outgoing))
            self._outgoing.clear()

    def _take_plain_answers(self, buffer: bytes) -> tuple[bytes, int]:
        """Pass on the plain responses to sends at the head of a chunk.

        Return the rest of it, and their number.
        """
        assert _compiled is not None
        answers, taken = _compiled.read_answers(buffer, self._sends, self._max_frame, SendAnswer)
        pop = self._sends.pop
        for opaque, plain in answers:
            answer = pop(opaque, None)  # a peer may repeat a response
            if answer is not None and not answer.done():
                answer.set_result(plain)
        return buffer[taken:] if taken else buffer, len(answers)

    def _take_answer(self, opaque: int, frame: RawFrame) -> None:
        answer = self._pending.pop(opaque, None) or self._sends.pop(opaque, None)
        if answer is None or answer.done():
            logger.debug(
                "response %s of %s is late or matches no request: dropped", opaque, self.address
            )
        else:
            answer.set_result(frame)

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
            self.write(answer.encode())

    def _end(self, reason: str) -> None:
        if self._close_reason is None:
            self._close_reason = reason
        self.takes_frames = False
        self._flush()
        self._on_lost(self)
        self._fail_pending()
        if not self._transport.is_closing():  # asyncio's TLS cannot be aborted after two of these
            self._transport.close()

    def _fail_pending(self) -> None:
        assert self._close_reason is not None
        for requests in (self._pending, self._sends):
            answers = [*requests.values()]
            requests.clear()
            for answer in answers:
                if not answer.done():
                    answer.set_exception(RemotingClosedError(self.address, self._close_reason))


def _timed_out(address: str, code: int, seconds: float) -> RemotingTimeoutError:
    return RemotingTimeoutError(
        address, f"no response from {address} to {_code_name(code)} within {seconds:g} s"
    )


def _code_name(code: int) -> str:
    try:
        return f"{RequestCode(code).name} ({code})"
    except ValueError:
        return f"request {code}"
