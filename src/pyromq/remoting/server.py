"""The server shell: sockets on one side, handlers on the other, one chunk at a time.

`data_received` gets everything that the socket had. All whole frames in it are parsed,
handled and answered in one pass, and their answers leave in one write: no task, future
or queue per message. Requests of hot codes go to their handler as runs of raw frames;
all others as commands, one by one.

Rules
1. Answers leave only after `on_chunk_end` has returned: what they say is true then. If it
   gives something to wait for, they leave when that is done, and if its outcome is not
   what they say, as `late_answers` writes them.
2. A peer that does not read is not read from: while its socket is full, nothing of it
   is parsed, and frames that are parsed already wait. So a connection holds at most
   one chunk of input, and as output `MAX_UNSENT` and the answers of one run.
   One whose coroutines have much to do is not read from either. What is written to a
   peer later than its chunk (late answers, requests) may not pile up beyond
   `_MAX_BACKLOG`: then it is closed. `limits` bounds what all connections hold together.
3. Bytes that are no frame, a connection silent for `idle_seconds`, and a frame that takes
   too long to become whole, are closed with one line in the log.
4. A handler's RequestError becomes the answer's code and remark; any other exception
   an answer SYSTEM_ERROR with its cause, and one line in the log. A hot handler answers
   for itself: what it lets through closes the connection.
5. When a connection is lost, its requests that only ask (`queries`) are cancelled. Requests
   that change something are carried out: their sender may want no answer.

Everything here runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, cast

from pyromq.base.log_lines import RARELY, shortened
from pyromq.protocol.message.message_id import encode_host, format_address
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    MAX_FRAME,
    MAX_REMARK,
    ChunkGatherer,
    FrameError,
    RawFrame,
    RemotingCommand,
    RequestError,
    command_from,
    split_frames,
)
from pyromq.remoting.errors import RemotingClosedError, RemotingTimeoutError
from pyromq.remoting.lateness import Lateness
from pyromq.remoting.limits import PeerLimits, report_accept_faults

logger = logging.getLogger(__name__)

IDLE_SECONDS: Final = 120.0
#: Answers of one chunk are written at the latest when they have come to this size.
MAX_UNSENT: Final = 4 * 1024 * 1024
#: So many frames of one run are handled between two looks at the size of the answers.
_MAX_RUN: Final = 256
#: A connection with more unfinished coroutines than this is not read from.
_MAX_UNFINISHED: Final = 1024
#: Nor is one whose unfinished requests have larger bodies than this, together.
_MAX_UNFINISHED_SIZE: Final = 2 * MAX_FRAME
#: A peer that leaves so much unread does not read at all.
_MAX_BACKLOG: Final = 64 * 1024 * 1024
#: About the memory that a parsed frame takes beside its body.
_FRAME_COST: Final = 1024
#: Connections are looked at so often within the time that they may be silent.
_LOOKS: Final = 12
#: Above, writing a part by itself costs less than copying it.
_LARGE_PART: Final = 64 * 1024
#: How long a stopping server waits for a peer to read its last answers.
_CLOSE_SECONDS: Final = 2.0
#: How long a connection that will be closed is still read from: what lies unread in a socket
#: when it is closed makes the peer forget answers that it has not read yet.
_LINGER_SECONDS: Final = 0.2
_DRAIN_STEP_SECONDS: Final = 0.005

Handler = Callable[
    ["Connection", RemotingCommand],
    RemotingCommand | Awaitable[RemotingCommand | None] | None,
]
#: Takes a run of frames of its code and appends the answers, as pieces of bytes; one that
#: will come later, or is not wanted (oneway), is left out. A FrameError ends the run.
HotHandler = Callable[["Connection", list[RawFrame], list[bytes]], None]
#: Whether a request of this code is refused, which has waited so many seconds for its turn
#: with so many others behind it.
RefuseLate = Callable[[int, float, int], RequestError | None]


class RemotingServer:
    """Listens on one port and serves every connection to it."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        host: str = "0.0.0.0",  # noqa: S104 - a server is there to be reached
        port: int = 0,
        hot_handlers: Mapping[int, HotHandler] | None = None,
        max_runs: Mapping[int, int] | None = None,
        on_chunk_end: Callable[[], asyncio.Future[Any] | None] | None = None,
        late_answers: Callable[[bytes, Any], bytes] | None = None,
        on_disconnect: Callable[[Connection], None] | None = None,
        idle_seconds: float = IDLE_SECONDS,
        max_frame: int = MAX_FRAME,
        queries: Collection[int] = (),
        limits: PeerLimits | None = None,
    ) -> None:
        self.handlers = handlers
        #: Codes of requests that change nothing: without a peer to answer they are pointless.
        self.queries = queries
        #: Shared by all ports of a process.
        self.limits = limits or PeerLimits()
        self.hot_handlers = hot_handlers or {}
        #: Shorter runs for the hot codes whose answers are large.
        self.max_runs = max_runs or {}
        self.on_chunk_end = on_chunk_end
        self.late_answers = late_answers
        self.on_disconnect = on_disconnect
        self.max_frame = max_frame
        #: Its limit, and who decides when that is reached, are set before the start.
        self.lateness = Lateness()
        self.refuse_late: RefuseLate | None = None
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.stopping = False
        self._host = host
        self._port = port
        self._idle_seconds = idle_seconds
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port that was bound; the one asked for until then."""
        return self._port

    def bind(self) -> None:
        """Take the port, without listening yet; raises OSError when it cannot be had."""
        if self._socket is not None:
            return
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        # Named in full: asyncio sets TCP_NODELAY only on what it knows to be TCP.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.limits.sockets.set_buffers(bound)
            bound.bind((self._host, self._port))
        except OSError as error:
            bound.close()
            raise OSError(
                error.errno, error.strerror, format_address(self._host, self._port)
            ) from error
        self._socket = bound
        self._port = bound.getsockname()[1]

    async def start(self) -> None:
        """Listen; raises OSError when the address cannot be had."""
        self.bind()
        assert self._socket is not None
        self.stopping = False
        loop = asyncio.get_running_loop()
        # asyncio's loop also accepts, and reports failures, as often in a row as its backlog says.
        self._server = await loop.create_server(
            lambda: Connection(self, loop), sock=self._socket, backlog=1
        )
        self._socket.listen(self.limits.sockets.backlog)
        report_accept_faults(loop)
        self.lateness.start(loop)
        self._look_for_idle(loop)

    async def drain(self, seconds: float) -> None:
        """Take no new connection, and wait until every request that came is answered.

        Requests on open connections are served on; what is not done after `seconds` is left.
        """
        if self._server is not None:
            self._server.close()
        await asyncio.sleep(0)  # what the sockets have is read
        deadline = asyncio.get_running_loop().time() + seconds
        while any(connection.is_busy for connection in self.connections):
            if asyncio.get_running_loop().time() > deadline:
                logger.warning("requests are still unanswered after %g s: closed", seconds)
                return
            await asyncio.sleep(_DRAIN_STEP_SECONDS)

    async def stop(self) -> None:
        """Stop listening, then close every connection."""
        self.stopping = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self.lateness.stop()
        if self._server is not None:
            self._server.close()
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        closing = [asyncio.ensure_future(gone.end()) for gone in self.connections]
        if closing:
            await asyncio.wait(closing)
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None
        self.close_socket()

    def close_socket(self) -> None:
        """Give the port back."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _look_for_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        oldest = loop.time() - self._idle_seconds
        for connection in list(self.connections):
            if connection.last_active >= oldest:
                continue
            if connection.closed:  # its last answers are not read
                connection.abort()
            else:
                logger.info(
                    "%s was silent for %g s: closed", connection.remote_address, self._idle_seconds
                )
                connection.close()
        self._look_for_slow_frames(loop.time())
        patience = min(self._idle_seconds, self.limits.frame_seconds or self._idle_seconds)
        self._idle_timer = loop.call_later(patience / _LOOKS, self._look_for_idle, loop)

    def _look_for_slow_frames(self, now: float) -> None:
        """Close connections that send a frame in drops: such a peer is never silent."""
        for connection, holding in self.limits.received:
            if (
                connection in self.connections
                and isinstance(connection, Connection)
                and connection.is_read
                and self.limits.is_too_slow(holding, now)
            ):
                connection.give_up(
                    "maxFrameSeconds",
                    f"sent {holding.size} bytes of a frame in {now - holding.since:.0f} s, "
                    f"limit {self.limits.frame_seconds:g} s",
                )


class Connection(asyncio.Protocol):
    """One client's connection, as the loop and the handlers see it."""

    __slots__ = (
        "_admitted_from",
        "_gatherer",
        "_gone",
        "_held",
        "_last_waiter",
        "_loop",
        "_next_opaque",
        "_overworked",
        "_parked",
        "_parked_size",
        "_pending",
        "_queries",
        "_received",
        "_server",
        "_transport",
        "_unfinished",
        "_unfinished_size",
        "_waiting",
        "_waiting_size",
        "_write_paused",
        "born_host",
        "closed",
        "last_active",
        "remote_address",
    )

    def __init__(self, server: RemotingServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._gatherer = ChunkGatherer(server.max_frame)
        #: Frames that are parsed and wait until the peer reads again.
        self._waiting: list[RawFrame] = []
        #: About the memory that they take.
        self._waiting_size = 0
        #: What `limits.received` counts for this connection.
        self._received = 0
        #: The address under which `limits` counts this connection.
        self._admitted_from: str | None = None
        #: Bytes of answers that wait for the end of their chunk.
        self._held = 0
        #: What the last chunk that had to wait waits for.
        self._last_waiter: asyncio.Future[Any] | None = None
        self._write_paused = False
        #: Late answers that are encoded when the peer reads again, and the size of their bodies:
        #: those of one table share theirs.
        self._parked: deque[tuple[RemotingCommand, RemotingCommand]] = deque()
        self._parked_size = 0
        #: Requests whose coroutines are under way.
        self._unfinished = 0
        #: The size of their bodies.
        self._unfinished_size = 0
        #: Whether they are so many that nothing more is begun.
        self._overworked = False
        #: Those that are pointless without this connection.
        self._queries: set[asyncio.Task[None]] = set()
        self._next_opaque = 0
        self._pending: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._gone: asyncio.Future[None] = loop.create_future()
        self.closed = False
        self.last_active = loop.time()
        self.remote_address = ""
        #: The peer's address and port as records carry them.
        self.born_host = b""

    # What handlers use

    def send(self, command: RemotingCommand) -> None:
        """Write a late answer, or a request that wants no answer. Nothing after a close."""
        self.write(command.encode())

    def write(self, frames: bytes) -> None:
        """Write whole frames that are encoded already."""
        if self.closed or self._transport is None:
            return
        self.last_active = self._loop.time()
        self._transport.write(frames)
        self._note_unsent()

    def _note_unsent(self) -> None:
        """Count what the peer has not read; close it when that is far too much."""
        unsent = self.unsent
        if unsent > _MAX_BACKLOG:
            self.give_up("fixed", f"has not read {unsent} bytes, limit {_MAX_BACKLOG}")
        elif self._write_paused:
            self._server.limits.unsent.hold(self, unsent, self._loop.time())

    def write_parts(self, parts: Sequence[bytes]) -> None:
        """Write whole frames in parts; the last one, when it is large, is not copied once more."""
        if len(parts[-1]) >= _LARGE_PART:
            self.write(b"".join(parts[:-1]))
            parts = parts[-1:]
        self.write(b"".join(parts))

    @property
    def unsent(self) -> int:
        """How many bytes wait until the client reads."""
        written = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return written + self._parked_size

    @property
    def congested(self) -> bool:
        """Whether the client reads too slowly to be sent more that can wait."""
        return self._write_paused

    async def request(
        self,
        command: RemotingCommand,
        timeout: float,  # noqa: ASYNC109 - part of what is asked, as in RemotingClient
    ) -> RemotingCommand:
        """Ask the client something on its own connection."""
        if self.closed:
            raise RemotingClosedError(self.remote_address, "the connection is closed")
        self._next_opaque = command.opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self._pending[command.opaque] = future
        try:
            self.send(command)
            return await asyncio.wait_for(future, timeout)
        except TimeoutError:
            raise RemotingTimeoutError(
                self.remote_address, f"{self.remote_address} gave no answer within {timeout:g} s"
            ) from None
        finally:
            self._pending.pop(command.opaque, None)

    def close(self) -> None:
        """Close once what was written has left; what comes in from now on is ignored."""
        self.closed = True
        self._drop_pending()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, whatever has not left yet."""
        self.close()
        if self._transport is not None:
            self._transport.abort()

    def give_up(self, setting: str, reason: str) -> None:
        """Close at once a peer that makes the server hold too much."""
        logger.warning(
            "%s %s (%s): closed",
            self.remote_address,
            reason,
            setting,
            extra={**RARELY, "kind": setting},
        )
        self.abort()
        self._server.limits.unsent.hold(self, 0, self._loop.time())

    @property
    def is_read(self) -> bool:
        """Whether the peer can send more: it is not held back."""
        return not (
            self.closed or self._write_paused or self._overworked or self._held > MAX_UNSENT
        )

    @property
    def is_busy(self) -> bool:
        """Whether a request that came is not answered yet."""
        return not self.closed and bool(
            self._unfinished or self._held or self._waiting or self._parked
        )

    async def end(self) -> None:
        """Close, and come back when the connection is gone; a peer that does not read is cut."""
        transport = self._transport
        if transport is not None and not self.closed and not transport.is_closing():
            self.closed = True
            self._drop_pending()
            transport.write_eof()
            transport.resume_reading()
            await asyncio.wait((self._gone,), timeout=_LINGER_SECONDS)
        self.close()
        if not self._gone.done():
            _, reading = await asyncio.wait((self._gone,), timeout=_CLOSE_SECONDS)
            if reading:
                self.abort()
                await self._gone

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer is None or self._server.stopping:  # gone already, or too late
            self._transport.abort()
            return
        self.remote_address = format_address(peer[0], peer[1])
        refusal = self._server.limits.admit(peer[0])
        if refusal is not None:
            logger.warning(
                "connection from %s refused: %s (%s)",
                peer[0],
                refusal.reason,
                refusal.setting,
                extra={**RARELY, "kind": refusal.setting},
            )
            self.abort()
            return
        self._admitted_from = peer[0]
        self._server.limits.sockets.set_water_marks(self._transport)
        self.born_host = encode_host(peer[0], peer[1])
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's own
        """The client has gone, or was closed."""
        self.closed = True
        self._drop_pending()
        self._server.limits.unsent.hold(self, 0, self._loop.time())
        self._server.connections.discard(self)
        if not self._gone.done():
            self._gone.set_result(None)
        if self._admitted_from is None:
            return
        self._server.limits.leave(self._admitted_from)
        for task in self._queries:
            task.cancel()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(
                    RemotingClosedError(self.remote_address, "the connection was lost")
                )
        if self._server.on_disconnect is not None:
            self._server.on_disconnect(self)

    def pause_writing(self) -> None:
        """The peer does not read: stop reading from it."""
        self._write_paused = True
        if self._transport is not None:
            self._transport.pause_reading()
            self._server.limits.unsent.hold(self, self.unsent, self._loop.time())

    def resume_writing(self) -> None:
        """The peer reads again: go on where we stopped."""
        self._write_paused = False
        while self._parked and not self._write_paused:
            request, answer = self._parked.popleft()
            self._parked_size -= len(answer.body)
            self._write_late(request, answer)
        if not self._write_paused:
            self._server.limits.unsent.hold(self, 0, self._loop.time())
        self._go_on()

    def _go_on(self) -> None:
        """Handle what waits, then read again, unless there still is a reason not to."""
        if self._waiting and not self._write_paused and not self._overworked:
            frames = self._waiting
            self._wait_with([])
            self._handle(frames)
        if self.is_read and not self._waiting and self._transport is not None:
            if self._received:  # its frame had to wait for us: its time begins anew
                self._note_received(self._loop.time(), anew=True)
            self._transport.resume_reading()

    def _wait_with(self, frames: list[RawFrame]) -> None:
        """Keep frames until they can be handled."""
        self._waiting = frames
        self._waiting_size = sum(len(frame[2]) + _FRAME_COST for frame in frames)
        self._note_received(self._loop.time())

    def _drop_pending(self) -> None:
        self._parked.clear()
        self._parked_size = 0
        self._gatherer = ChunkGatherer(self._server.max_frame)
        self._wait_with([])

    def _note_received(self, now: float, *, anew: bool = False) -> None:
        """Count what of the peer's input is not handled yet."""
        self._received = self._gatherer.held + self._waiting_size
        self._server.limits.received.hold(self, self._received, now, anew=anew)

    def data_received(self, data: bytes) -> None:
        """Parse, handle and answer everything that the socket had."""
        if self.closed:
            return
        now = self.last_active = self._loop.time()
        buffer = self._gatherer.add(data)
        if buffer is None:
            self._note_received(now)
            return
        frames, taken, error = split_frames(buffer, self._server.max_frame)
        if frames:
            if now > self._server.lateness.at:
                frames = self._without_late(frames, now)
            self._handle(frames)
        if error is not None:
            self._refuse(error)
        elif (taken != len(buffer) or self._received) and not self.closed:
            self._gatherer.keep(buffer, taken)
            self._note_received(now, anew=taken > 0)

    # How a chunk is handled

    def _without_late(self, frames: list[RawFrame], now: float) -> list[RawFrame]:
        """Refuse the requests that have waited too long; what is left of the chunk."""
        waited = self._server.lateness.waited(now)
        refuse = self._server.refuse_late
        if refuse is None or waited < self._server.lateness.limit:
            return frames
        kept: list[RawFrame] = []
        answers: list[bytes] = []
        for number, frame in enumerate(frames):
            header = frame[1]
            code, flag = header.get("code"), header.get("flag", 0)
            refusal = (
                refuse(code, waited, len(frames) - number - 1)
                if type(code) is int and type(flag) is int and not flag & FLAG_RESPONSE
                else None
            )
            if refusal is None:
                kept.append(frame)
            elif not flag & FLAG_ONEWAY:
                try:
                    answer = command_from(frame).answer(refusal.code, refusal.remark)
                except FrameError:  # said when its turn comes
                    kept.append(frame)
                else:
                    answers.append(answer.encode())
        self._write_answers(answers)
        return kept

    def _handle(self, frames: list[RawFrame]) -> None:
        answers: list[bytes] = []
        unsent = 0
        start, count = 0, len(frames)
        run: list[bytes]
        while start < count and not self.closed:
            try:
                run = []
                hot, end = self._next_run(frames, start, count)
                if hot is None:
                    run = self._handle_one(frames[start])
                else:
                    hot(self, frames if end - start == count else frames[start:end], run)
            except FrameError as error:
                self._write_answers(answers + run)
                self._refuse(error)
                return
            except Exception:
                self._write_answers(answers)
                logger.exception("%s: a request could not be handled: closed", self.remote_address)
                self.close()
                return
            start = end
            if start == count:
                self._write_answers(answers + run if answers else run)
                return
            answers += run
            unsent += sum(map(len, run))
            if unsent > MAX_UNSENT:
                self._write_answers(answers)
                answers, unsent = [], 0
                if self._write_paused:
                    self._wait_with(frames[start:])
                    return
            if self._overworked:
                self._wait_with(frames[start:])
                break
        self._write_answers(answers)

    def _next_run(
        self, frames: list[RawFrame], start: int, count: int
    ) -> tuple[HotHandler | None, int]:
        """The hot handler of the frame at `start`, if it has one, and how far its run goes."""
        try:
            header = frames[start][1]
            code = header["code"]
            hot = self._server.hot_handlers.get(code)
            end = start + 1
            if hot is None or header.get("flag", 0) & FLAG_RESPONSE:
                return None, end
        except (KeyError, TypeError) as error:
            raise FrameError(f"header without a code or with a flag of no use: {error}") from error
        limit = min(count, start + self._server.max_runs.get(code, _MAX_RUN))
        try:
            while end < limit:
                header = frames[end][1]
                if header["code"] != code or header.get("flag", 0) & FLAG_RESPONSE:
                    break
                end += 1
        except (KeyError, TypeError):
            return hot, end  # What is wrong there is said when its turn comes.
        return hot, end

    def _write_answers(self, answers: list[bytes], *, late: bool = False) -> None:
        """Write a chunk's answers, or hold them; a `late` one is of some chunk before."""
        on_chunk_end = self._server.on_chunk_end
        if on_chunk_end is not None:
            try:
                waiter = on_chunk_end()
            except Exception:
                logger.exception("%s: the chunk could not be ended: closed", self.remote_address)
                self.close()
                return
            if waiter is not None:
                self._last_waiter = waiter
            elif late:
                waiter = self._last_waiter
            if waiter is not None:
                if answers:
                    self._hold(b"".join(answers), waiter)
                return
        if late:
            self.write(b"".join(answers))
        elif answers and not self.closed and self._transport is not None:
            self._transport.write(answers[0] if len(answers) == 1 else b"".join(answers))
            if self._write_paused:
                self._note_unsent()

    def _hold(self, answers: bytes, waiter: asyncio.Future[Any]) -> None:
        """Let a chunk's answers leave when `waiter` is done."""
        self._held += len(answers)
        if self._held > MAX_UNSENT and self._transport is not None:
            self._transport.pause_reading()
        waiter.add_done_callback(lambda done: self._release(answers, done))

    def _release(self, answers: bytes, done: asyncio.Future[Any]) -> None:
        was_full = self._held > MAX_UNSENT
        self._held -= len(answers)
        if self.closed or self._transport is None:
            return
        if done.cancelled() or done.exception() is not None:
            logger.error("%s: what its answers waited for failed: closed", self.remote_address)
            self.close()
            return
        if self._server.late_answers is not None:
            answers = self._server.late_answers(answers, done.result())
        self.write(answers)
        if was_full:
            self._go_on()

    def _handle_one(self, frame: RawFrame) -> list[bytes]:
        command = command_from(frame)
        if command.is_response:
            self._take_response(command)
            return []
        answer = self.dispatch(command)
        return [self._encoded(command, answer)] if answer is not None else []

    def dispatch(self, request: RemotingCommand) -> RemotingCommand | None:
        """The answer of the request's handler; None when it comes later or is not wanted."""
        handler = self._server.handlers.get(request.code)
        if handler is None:
            answer: RemotingCommand | None = request.answer(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {request.code} not supported",
            )
        else:
            try:
                result = handler(self, request)
            except Exception as error:
                answer = self.error_answer(request, error)
            else:
                if inspect.isawaitable(result):
                    self._begin(request, result)
                    return None
                answer = result
        return None if request.is_oneway else answer

    def finish_later(
        self, request: RemotingCommand, result: Awaitable[RemotingCommand | None]
    ) -> None:
        """Answer a hot request when `result` is there; many unfinished ones stop the reading."""
        self._begin(request, result)

    def _begin(self, request: RemotingCommand, result: Awaitable[RemotingCommand | None]) -> None:
        task = asyncio.ensure_future(self._finish(request, result))
        self._server.tasks.add(task)
        if request.code in self._server.queries:
            self._queries.add(task)
        size = len(request.body)
        task.add_done_callback(lambda done: self._finished(done, size))
        limits = self._server.limits
        self._unfinished += 1
        self._unfinished_size += size
        limits.in_progress += size
        if (
            self._unfinished > _MAX_UNFINISHED
            or self._unfinished_size > _MAX_UNFINISHED_SIZE
            or limits.is_overworked
        ):
            self._overworked = True
            if not self.closed and self._transport is not None:
                self._transport.pause_reading()

    def _finished(self, task: asyncio.Task[None], size: int) -> None:
        self._server.tasks.discard(task)
        self._queries.discard(task)
        limits = self._server.limits
        self._unfinished -= 1
        self._unfinished_size -= size
        limits.in_progress -= size
        if self._overworked and (
            self._unfinished == 0
            or (
                # Not at once: what waits is looked at as a whole each time.
                self._unfinished <= _MAX_UNFINISHED // 2
                and self._unfinished_size <= _MAX_UNFINISHED_SIZE * 3 // 4
                and not limits.is_overworked
            )
        ):
            self._overworked = False
            self._go_on()

    async def _finish(
        self, request: RemotingCommand, result: Awaitable[RemotingCommand | None]
    ) -> None:
        try:
            answer = await result
        except Exception as error:
            answer = self.error_answer(request, error)
        if answer is None or request.is_oneway or self.closed:
            return
        if not self._write_paused:
            self._write_late(request, answer)
            return
        self._parked.append((request, answer))
        self._parked_size += len(answer.body)
        self._note_unsent()

    def _write_late(self, request: RemotingCommand, answer: RemotingCommand) -> None:
        self.last_active = self._loop.time()
        self._write_answers([self._encoded(request, answer)], late=True)

    def _encoded(self, request: RemotingCommand, answer: RemotingCommand) -> bytes:
        try:
            encoded = answer.encode()
        except (ValueError, TypeError) as error:
            return self.error_answer(request, error).encode()
        if len(encoded) <= self._server.max_frame:
            return encoded
        # The peer could only close the connection, and lose every other answer on it.
        remark = (
            f"the answer to request {request.code} has {len(encoded)} bytes,"
            f" a frame at most {self._server.max_frame}"
        )
        logger.error("%s: %s", self.remote_address, remark)
        return request.answer(ResponseCode.SYSTEM_ERROR, remark).encode()

    def error_answer(self, request: RemotingCommand, error: Exception) -> RemotingCommand:
        """What a request is answered whose handler failed."""
        if isinstance(error, RequestError):
            return request.answer(error.code, error.remark)
        kind = type(error).__name__
        cause = shortened(f"{kind}: {error}", MAX_REMARK)
        logger.error(
            "%s: request %d failed: %s",
            self.remote_address,
            request.code,
            cause,
            exc_info=not isinstance(error, ValueError),
            extra={"kind": (request.code, kind)},
        )
        return request.answer(ResponseCode.SYSTEM_ERROR, cause)

    def _take_response(self, response: RemotingCommand) -> None:
        future = self._pending.get(response.opaque)
        if future is None:
            logger.debug("%s: answer %d to nothing", self.remote_address, response.opaque)
        elif not future.done():
            future.set_result(response)

    def _refuse(self, error: Exception) -> None:
        if not self.closed:
            logger.warning("%s sent no RocketMQ frame: %s: closed", self.remote_address, error)
            self.close()


def wants_answer(frame: RawFrame) -> bool:
    """Whether the sender of a raw frame waits for an answer."""
    return not frame[1].get("flag", 0) & FLAG_ONEWAY
