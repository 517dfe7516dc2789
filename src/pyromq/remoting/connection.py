"""One connection of a server: a chunk comes in, its responses leave in one write.

`data_received` gets everything that the socket had. It parses, handles and answers all complete
frames in one pass, without a task, future or queue per message. `Service.take_frames`, if there is
one, serves plain requests straight from the bytes. Of the others, requests of hot codes go to their
handler as runs of raw frames, the rest one by one as commands.

Invariants
1. Responses leave only after `Service.on_chunk_end` has returned, so everything they claim is true.
   If it returned a future, they leave when it is done, rewritten by `Service.late_answers`.
2. Backpressure: a connection is not read while its peer does not read, while its responses wait, or
   while too many of its requests are in progress; frames already parsed wait. So it holds at most
   one chunk of input and, as output, `MAX_UNSENT` plus the responses of one run. Frames written
   outside a chunk (late responses, requests to the client) may add up to `_MAX_BACKLOG`; beyond
   that the connection is closed. `limits` caps the bytes held for all connections together.
3. A handler's RequestError becomes the response's code and remark; any other exception becomes
   SYSTEM_ERROR with its text, and a log line. A hot handler answers for itself: an exception that
   it lets through closes the connection.
4. When a connection is lost, its queries are cancelled. Requests that change something run to
   their end.

Nothing is read or written in any state but OPEN (`connection_state`). Everything runs on the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeAlias, cast

from pyromq.base.log_lines import RARELY
from pyromq.base.sizes import KIB, MIB
from pyromq.protocol.message.message_id import encode_host, format_address
from pyromq.protocol.wire.frame import (
    ChunkGatherer,
    FrameError,
    RawFrame,
    RemotingCommand,
    command_from,
    split_frames,
)
from pyromq.remoting.answers import encode_answer, error_answer, not_supported
from pyromq.remoting.connection_state import ConnectionState, check_transition
from pyromq.remoting.errors import RemotingClosedError
from pyromq.remoting.host import Host
from pyromq.remoting.outgoing import OutgoingRequests
from pyromq.remoting.parked import ParkedResponses
from pyromq.remoting.runs import next_run, without_late
from pyromq.remoting.service import Result
from pyromq.remoting.unfinished import Unfinished

logger = logging.getLogger(__name__)

#: Bytes of responses after which a chunk's responses are written before its remaining frames run.
MAX_UNSENT: Final = 4 * MIB
#: Bytes that a peer may leave unread before it is closed.
_MAX_BACKLOG: Final = 64 * MIB
#: Approximate memory of a parsed frame besides its body.
_FRAME_COST: Final = 1 * KIB
_ALL_FRAMES: Final = sys.maxsize
#: From this size on, a second write is cheaper than copying the buffer.
_LARGE_BUFFER: Final = 64 * KIB
#: How long a stopping server waits for a peer to read its last responses, and reads on itself:
#: closing a socket with unread input resets it, and the peer loses responses.
_CLOSE_SECONDS, _LINGER_SECONDS = 2.0, 0.2

_NEW, _OPEN, _CLOSING, _LOST = ConnectionState

#: Serves one request.
Handler: TypeAlias = Callable[["Connection", RemotingCommand], Result]
#: Serves a run of raw frames; see `Service.hot_handlers`.
HotHandler: TypeAlias = Callable[["Connection", list[RawFrame], list[bytes]], None]


class Connection(asyncio.Protocol):
    """One client's connection, as the loop and the handlers see it."""

    __slots__ = (
        "_admitted_from",
        "_gatherer",
        "_gone",
        "_held",
        "_host",
        "_last_waiter",
        "_loop",
        "_outgoing",
        "_parked",
        "_received",
        "_state",
        "_transport",
        "_unfinished",
        "_waiting",
        "_waiting_size",
        "_write_paused",
        "born_host",
        "last_active",
        "remote_address",
    )

    #: Set by `connection_made`.
    _transport: asyncio.Transport

    def __init__(self, host: Host[Connection], loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._state = _NEW
        self._gatherer = ChunkGatherer(host.max_frame)
        #: Parsed frames that wait until the connection is read again.
        self._waiting: list[RawFrame] = []
        #: Their approximate memory.
        self._waiting_size = 0
        #: What `limits.received` counts for this connection.
        self._received = 0
        #: The address under which `limits` counts this connection.
        self._admitted_from: str | None = None
        #: Bytes of responses that wait for the end of their chunk.
        self._held = 0
        #: The future of the last chunk that had to wait.
        self._last_waiter: asyncio.Future[Any] | None = None
        self._write_paused = False
        self._parked = ParkedResponses()
        self._unfinished = Unfinished(host.limits)
        self._outgoing = OutgoingRequests()
        self._gone: asyncio.Future[None] = loop.create_future()
        self.last_active = loop.time()
        self.remote_address = ""
        #: The peer's address and port as records carry them.
        self.born_host = b""

    # For handlers

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent to the client any more."""
        return self._state is not _OPEN

    def send(self, command: RemotingCommand) -> None:
        """Write a late response or a oneway request; do nothing if the connection is closed."""
        self.write(command.encode())

    def write(self, frames: bytes) -> None:
        """Write complete, encoded frames; do nothing if the connection is closed."""
        if self._state is not _OPEN:
            return
        self.last_active = self._loop.time()
        self._transport.write(frames)
        self._note_unsent()

    def write_parts(self, parts: Sequence[bytes]) -> None:
        """Write complete frames given as several buffers, without copying a large last one."""
        if len(parts[-1]) >= _LARGE_BUFFER:
            self.write(b"".join(parts[:-1]))
            parts = parts[-1:]
        self.write(b"".join(parts))

    @property
    def unsent(self) -> int:
        """Return how many bytes wait until the client reads."""
        return self._transport.get_write_buffer_size() + self._parked.size

    @property
    def congested(self) -> bool:
        """Whether the client reads too slowly to be sent anything that can wait."""
        return self._write_paused

    async def request(
        self,
        command: RemotingCommand,
        timeout: float,  # noqa: ASYNC109 - as in RemotingClient
    ) -> RemotingCommand:
        """Send the client a request on its own connection and return its response.

        Raises RemotingClosedError or RemotingTimeoutError.
        """
        if self._state is not _OPEN:
            raise RemotingClosedError(self.remote_address, "the connection is closed")
        return await self._outgoing.ask(command, timeout, self.send, self.remote_address)

    def serve(self, handler: Handler, request: RemotingCommand) -> RemotingCommand | None:
        """Run a handler; return its response, or None if it comes later or is not wanted."""
        try:
            result = handler(self, request)
        except Exception as error:
            answer: RemotingCommand | None = error_answer(self.remote_address, request, error)
        else:
            if inspect.isawaitable(result):
                self.finish_later(request, result)
                return None
            answer = result
        return None if request.is_oneway else answer

    def finish_later(
        self, request: RemotingCommand, result: Awaitable[RemotingCommand | None]
    ) -> None:
        """Answer a request when `result` is done; pause reading if too many are in progress."""
        task = asyncio.ensure_future(self._finish(request, result))
        self._host.tasks.add(task)
        size = len(request.body)
        self._unfinished.add(task, size, is_query=request.code in self._host.service.queries)
        task.add_done_callback(lambda done: self._finished(done, size, result))
        if self._unfinished.is_full and self._state is _OPEN:
            self._transport.pause_reading()

    # For the server

    @property
    def is_read(self) -> bool:
        """Whether the connection is read: no backpressure applies."""
        return not (
            self._state is not _OPEN
            or self._write_paused
            or self._unfinished.is_full
            or self._held > MAX_UNSENT
        )

    @property
    def is_busy(self) -> bool:
        """Whether a received request is not answered yet."""
        return self._state is _OPEN and bool(
            self._unfinished.count or self._held or self._waiting or self._parked
        )

    def close(self) -> None:
        """Close after the written bytes have left; ignore further input. Idempotent."""
        if self._state in (_NEW, _OPEN):
            self._enter(_CLOSING)
        self._drop_waiting()
        self._transport.close()

    def abort(self) -> None:
        """Close immediately and drop unsent bytes."""
        self.close()
        self._transport.abort()

    def give_up(self, setting: str, reason: str) -> None:
        """Abort a connection that makes the server hold too much, and log which limit it hit."""
        logger.warning(
            "%s %s (%s): closed",
            self.remote_address,
            reason,
            setting,
            extra={**RARELY, "kind": setting},
        )
        self.abort()
        self._host.limits.unsent.hold(self, 0, self._loop.time())

    async def end(self) -> None:
        """Close and wait until the connection is lost; abort if the peer does not read."""
        if self._state is _OPEN and not self._transport.is_closing():
            self._enter(_CLOSING)
            self._drop_waiting()
            self._transport.write_eof()
            self._transport.resume_reading()
            await asyncio.wait((self._gone,), timeout=_LINGER_SECONDS)
        self.close()
        if not self._gone.done():
            await asyncio.wait((self._gone,), timeout=_CLOSE_SECONDS)
            if not self._gone.done():
                self.abort()
                await self._gone

    # Called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the client, or close the connection if a limit is reached."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer is None or self._host.stopping:  # the client has gone, or came too late
            self.abort()
            return
        self.remote_address = format_address(peer[0], peer[1])
        refusal = self._host.limits.admit(peer[0])
        if refusal is not None:
            refusal.log(peer[0])
            self.abort()
            return
        self._enter(_OPEN)
        self._admitted_from = peer[0]
        self._host.limits.sockets.set_water_marks(self._transport)
        self.born_host = encode_host(peer[0], peer[1])
        self._host.connections.add(self)

    def connection_secured(self, transport: asyncio.Transport) -> None:
        """Read and write through the TLS layer from now on."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Release everything that the server holds for the client."""
        self._enter(_LOST)
        self._drop_waiting()
        self._host.limits.unsent.hold(self, 0, self._loop.time())
        self._host.connections.discard(self)
        if not self._gone.done():
            self._gone.set_result(None)
        if self._admitted_from is None:
            return
        self._host.limits.leave(self._admitted_from)
        self._unfinished.cancel_queries()
        self._outgoing.fail(self.remote_address)
        if (on_disconnect := self._host.service.on_disconnect) is not None:
            on_disconnect(self)

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not read."""
        self._write_paused = True
        self._transport.pause_reading()
        self._host.limits.unsent.hold(self, self.unsent, self._loop.time())

    def resume_writing(self) -> None:
        """Write parked responses, then resume handling and reading."""
        self._write_paused = False
        while self._parked and not self._write_paused:
            self._write_late(*self._parked.take())
        if not self._write_paused:
            self._host.limits.unsent.hold(self, 0, self._loop.time())
        self._resume()

    def data_received(self, data: bytes) -> None:
        """Parse, handle and answer everything that one socket read delivered."""
        if self._state is not _OPEN:
            return
        host = self._host
        now = self.last_active = self._loop.time()
        # 1. Complete the frame that the last chunk left unfinished.
        buffer = self._gatherer.add(data)
        if buffer is None:
            self._note_received(now)
            return
        # 2. Serve its requests, end the chunk, write the responses.
        if now > host.lateness.at and (waited := self._late_by(now)):
            taken, error = self._serve_late(buffer, waited)
        else:
            taken, error = self._serve(buffer)
        # 3. Close on bytes that are not a frame; the frames before them are answered.
        if error is not None:
            self._refuse(error)
        # 4. Keep the beginning of a frame whose end has not arrived.
        elif (taken != len(buffer) or self._received) and self._state is _OPEN:
            self._gatherer.keep(buffer, taken)
            self._note_received(now, restart=taken > 0)

    # Steps of a chunk

    def _serve(self, buffer: bytes) -> tuple[int, FrameError | None]:
        """Serve a chunk; return the end of its last complete frame, and an error after it.

        `take_frames` gets the bytes first. It stops at each frame that it leaves to the handlers;
        they serve one frame before it is asked again, then two, four and so on, so that a chunk
        of such frames costs few vain calls.
        """
        take = self._host.service.take_frames
        max_frame = self._host.max_frame
        answers: list[bytes] = []
        position, count = 0, 1 if take is not None else _ALL_FRAMES
        while True:
            if take is not None:
                try:
                    taken = take(self, buffer, position, answers)
                except Exception:
                    self._fail(answers)
                    return position, None
                if taken == len(buffer):
                    self._write_answers(answers)
                    return taken, None
                if taken > position:
                    position, count = taken, 1
            frames, position, error = split_frames(buffer, max_frame, position, count)
            if len(frames) < count:  # the last ones
                if (not frames or self._handle(frames, answers)) and position:
                    self._write_answers(answers)
                return position, error
            if not self._handle(frames, answers) or self._must_wait(answers):
                frames, position, error = split_frames(buffer, max_frame, position)
                if self._state is _OPEN:
                    self._keep_waiting(self._waiting + frames)
                return position, error
            count *= 2

    def _late_by(self, now: float) -> float:
        """Return how long the chunk has waited, or 0 if that is too short to refuse anything."""
        waited, policy = self._host.lateness.waited(now), self._host.service.late_requests
        return 0.0 if policy is None or waited < policy.shortest_limit else waited

    def _serve_late(self, buffer: bytes, waited: float) -> tuple[int, FrameError | None]:
        """Serve a chunk of which some requests may have waited too long: refuse those first."""
        frames, taken, error = split_frames(buffer, self._host.max_frame)
        policy = self._host.service.late_requests
        frames, refusals = without_late(frames, waited, policy) if policy else (frames, [])
        self._write_answers(refusals)
        answers: list[bytes] = []
        if frames and self._handle(frames, answers):
            self._write_answers(answers)
        return taken, error

    def _handle(self, frames: list[RawFrame], answers: list[bytes]) -> bool:
        """Run the handlers of frames, run by run, and add the responses to `answers`.

        Return False if the chunk must not continue: the connection is closed, or the remaining
        frames wait. The responses are written then.
        """
        service = self._host.service
        hot_handlers, max_runs = service.hot_handlers, service.max_runs
        unsent = sum(map(len, answers))
        start, count = 0, len(frames)
        run: list[bytes]
        while start < count and self._state is _OPEN:
            try:
                run = []
                hot, end = next_run(frames, start, hot_handlers, max_runs)
                if hot is None:
                    run = self._handle_one(frames[start])
                else:
                    hot(self, frames if end - start == count else frames[start:end], run)
            except FrameError as error:
                self._write_answers(answers + run)
                self._refuse(error)
                return False
            except Exception:
                self._fail(answers)
                return False
            start = end
            answers += run
            if start == count:
                return True
            unsent += sum(map(len, run))
            if unsent > MAX_UNSENT:
                self._write_answers(answers)
                answers.clear()
                unsent = 0
                if self._write_paused:
                    self._keep_waiting(frames[start:])
                    return False
            if self._unfinished.is_full:
                self._keep_waiting(frames[start:])
                break
        self._write_answers(answers)
        return False

    def _must_wait(self, answers: list[bytes]) -> bool:
        """Write many responses; return whether the rest of the chunk waits or is not wanted."""
        if sum(map(len, answers)) > MAX_UNSENT:
            self._write_answers(answers)
            answers.clear()
        if self._state is _OPEN and not self._write_paused and not self._unfinished.is_full:
            return False
        self._write_answers(answers)
        return True

    def _fail(self, answers: list[bytes]) -> None:
        """Write responses and close the connection after an exception of a handler."""
        self._write_answers(answers)
        logger.exception("%s: request handler failed: closed", self.remote_address)
        self.close()

    def _handle_one(self, frame: RawFrame) -> list[bytes]:
        """Run the plain handler of a frame, or take the response to one of our requests."""
        command = command_from(frame)
        if command.is_response:
            if not self._outgoing.take(command):
                logger.debug(
                    "%s: response %d matches no request", self.remote_address, command.opaque
                )
            return []
        handler = self._host.service.handlers.get(command.code)
        if handler is not None:
            answer = self.serve(handler, command)
        else:
            answer = None if command.is_oneway else not_supported(command)
        return [] if answer is None else [self._encoded(command, answer)]

    def _write_answers(self, answers: list[bytes], *, late: bool = False) -> None:
        """End the chunk, then write its responses; `late` responses belong to an earlier chunk."""
        on_chunk_end = self._host.service.on_chunk_end
        if on_chunk_end is not None:
            try:
                waiter = on_chunk_end()
            except Exception:
                logger.exception("%s: ending the chunk failed: closed", self.remote_address)
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
        elif answers and self._state is _OPEN:
            self._transport.write(answers[0] if len(answers) == 1 else b"".join(answers))
            if self._write_paused:
                self._note_unsent()

    def _hold(self, answers: bytes, waiter: asyncio.Future[Any]) -> None:
        """Write responses when `waiter` is done."""
        self._held += len(answers)
        if self._held > MAX_UNSENT and self._state is _OPEN:
            self._transport.pause_reading()
        waiter.add_done_callback(lambda done: self._release(answers, done))

    def _release(self, answers: bytes, done: asyncio.Future[Any]) -> None:
        was_full = self._held > MAX_UNSENT
        self._held -= len(answers)
        if self._state is not _OPEN:
            return
        if done.cancelled() or done.exception() is not None:
            logger.error("%s: waiting for the end of a chunk failed: closed", self.remote_address)
            self.close()
            return
        if (late_answers := self._host.service.late_answers) is not None:
            answers = late_answers(answers, done.result())
        self.write(answers)
        if was_full:
            self._resume()

    def _refuse(self, error: Exception) -> None:
        if self._state is _OPEN:
            logger.warning("%s sent no RocketMQ frame: %s: closed", self.remote_address, error)
            self.close()

    # Requests in progress

    async def _finish(
        self, request: RemotingCommand, result: Awaitable[RemotingCommand | None]
    ) -> None:
        try:
            answer = await result
        except Exception as error:
            answer = error_answer(self.remote_address, request, error)
        if answer is None or request.is_oneway or self._state is not _OPEN:
            return
        if self._write_paused:
            self._parked.add(request, answer)
            self._note_unsent()
        else:
            self._write_late(request, answer)

    def _finished(self, task: asyncio.Task[None], size: int, result: object) -> None:
        self._host.tasks.discard(task)
        if task.cancelled() and isinstance(result, Coroutine):
            result.close()  # cancelled before it began: nobody will await it
        if self._unfinished.remove(task, size):
            self._resume()

    def _write_late(self, request: RemotingCommand, answer: RemotingCommand) -> None:
        self.last_active = self._loop.time()
        self._write_answers([self._encoded(request, answer)], late=True)

    def _encoded(self, request: RemotingCommand, answer: RemotingCommand) -> bytes:
        return encode_answer(self.remote_address, request, answer, self._host.max_frame)

    # Backpressure

    def _resume(self) -> None:
        """Handle waiting frames, then read again, unless backpressure still applies."""
        if self._waiting and not self._write_paused and not self._unfinished.is_full:
            frames = self._waiting
            self._keep_waiting([])
            answers: list[bytes] = []
            if self._handle(frames, answers):
                self._write_answers(answers)
        if self.is_read and not self._waiting:
            if self._received:  # the delay was ours: the unfinished frame gets its full time
                self._note_received(self._loop.time(), restart=True)
            self._transport.resume_reading()

    def _keep_waiting(self, frames: list[RawFrame]) -> None:
        """Keep parsed frames until the connection resumes."""
        self._waiting = frames
        self._waiting_size = sum(len(frame[2]) + _FRAME_COST for frame in frames)
        self._note_received(self._loop.time())

    def _drop_waiting(self) -> None:
        self._parked.clear()
        self._gatherer = ChunkGatherer(self._host.max_frame)
        self._keep_waiting([])

    def _note_received(self, now: float, *, restart: bool = False) -> None:
        """Count the input that is not handled yet; `restart` the time of the unfinished frame."""
        self._received = self._gatherer.held + self._waiting_size
        self._host.limits.received.hold(self, self._received, now, restart=restart)

    def _note_unsent(self) -> None:
        """Count the bytes that the peer has not read; close it if they are far too many."""
        unsent = self.unsent
        if unsent > _MAX_BACKLOG:
            self.give_up("fixed", f"has not read {unsent} bytes, limit {_MAX_BACKLOG}")
        elif self._write_paused:
            self._host.limits.unsent.hold(self, unsent, self._loop.time())

    def _enter(self, state: ConnectionState) -> None:
        check_transition(self._state, state)
        self._state = state
