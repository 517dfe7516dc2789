"""Connections of this node to its peers: requests out, responses in.

There is one connection per peer, opened when a request needs it. Requests wait while it is being
opened; they fail at once while it cannot be: after a failed attempt, the next one waits for a
backoff of 0.1 to 1 s. A request ends with its response, or with `Failed` after `TIMEOUT_SECONDS` or
when the connection is lost. A connection that says nothing while requests time out is closed, and
so is one that nobody needs for a minute.

Invariants
1. Frames leave in the order of `send`, together at `flush`.
2. What a peer does not read is bounded: above `MAX_UNSENT` bytes, pushes fail. Votes and heartbeats
   are small, and few: `MAX_PENDING` bounds them.
3. JSON is sent until the peer has greeted on this very connection (`binary_push.GREETING`). A run
   for a peer that has not fails.
4. `PeerEvents.answered` is never called from within `send`.

Runs on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from typing import Final, NamedTuple, Protocol, cast

from pyromq.base.log_lines import Repeats
from pyromq.base.sizes import MIB
from pyromq.protocol.message.message_id import format_address
from pyromq.protocol.wire.codes import PROTOCOL_VERSION, RequestCode
from pyromq.protocol.wire.frame import (
    FLAG_RESPONSE,
    PREFIX_SIZE,
    TOTAL_SIZE,
    ChunkGatherer,
    FrameError,
    RawFrame,
    pack_prefix,
    split_frames,
)
from pyromq.protocol.wire.header_json import Header
from pyromq.raft.messages import (
    NONE,
    Code,
    Failed,
    PushRequest,
    PushResponse,
    Request,
    Response,
)
from pyromq.raft.network.binary_push import GREETING, decode_answer, encode_push, names_of
from pyromq.raft.network.json_bodies import (
    CHECKSUM,
    BodyError,
    check_frame,
    checksum_of,
    code_of,
    decode_response,
    encode_request,
)
from pyromq.tls.client import ClientTls

logger = logging.getLogger(__name__)

#: As in Java.
TIMEOUT_SECONDS: Final = 3.0
#: Bytes that a peer may leave unread before pushes to it fail.
MAX_UNSENT: Final = 16 * MIB
#: Requests without a response, above which all fail.
MAX_PENDING: Final = 4096
#: Requests that wait for a connection.
_MAX_HELD: Final = 64
_MIN_BACKOFF, _MAX_BACKOFF = 0.1, 1.0
_CHECK_SECONDS: Final = 0.5
_IDLE_SECONDS: Final = 60.0
_MAX_OPAQUE: Final = 0x7FFFFFFF
_LOG_SECONDS: Final = 60.0

_HEADER: Final = (
    b'{"code":%%d,"extFields":{"%s":"%%d"},"flag":0,"language":"PYTHON","opaque":%%d,'
    b'"serializeTypeCurrentRPC":"JSON","version":%d}' % (CHECKSUM.encode(), PROTOCOL_VERSION)
)


class PeerKind(Enum):
    """The implementation of a peer, as far as its connection has told."""

    UNKNOWN = "unknown"
    PYROMQ = "pyromq"
    DLEDGER = "DLedger"


class LinkState(Enum):
    """The connection to a peer."""

    CLOSED = "closed"
    CONNECTING = "connecting"
    OPEN = "open"


class PeerEvents(Protocol):
    """Learns what peers answer."""

    def answered(self, peer: str, answers: list[tuple[int, Response | Failed]]) -> None:
        """Take the ends of requests."""

    def takes_runs(self, peer: str, *, is_able: bool) -> None:
        """Take note whether pushes to a peer may carry a run."""


class _Pending(NamedTuple):
    request_id: int
    code: int
    deadline: float
    #: Index of the first entry of a push.
    first: int


class Peer:
    """One other node."""

    def __init__(
        self,
        group: str,
        self_id: str,
        node_id: str,
        address: tuple[str, int],
        events: PeerEvents,
        tls: ClientTls | None = None,
    ) -> None:
        self.node_id = node_id
        self._tls = tls
        self.state = LinkState.CLOSED
        self.kind = PeerKind.UNKNOWN
        #: `loop.time()` when something last arrived.
        self.heard_at: float | None = None
        self._host, self._port = address
        self._events = events
        self._names = names_of(group, self_id, node_id)
        self._loop = asyncio.get_running_loop()
        self._link: _Link | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._backoff = 0.0
        self._next_attempt = 0.0
        self._opened_at = self._used_at = self._loop.time()
        self._held: list[tuple[int, Request]] = []
        self._pending: dict[int, _Pending] = {}
        self._opaque = 0
        self._frames: list[bytes] = []
        self._unsent = 0
        self._ended: list[tuple[int, Response | Failed]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._complaints = Repeats(self._loop.time, _LOG_SECONDS)

    @property
    def address(self) -> str:
        """Return host and port as text."""
        return format_address(self._host, self._port)

    @property
    def pending(self) -> int:
        """Return how many requests have no response yet."""
        return len(self._pending)

    def send(self, request_id: int, request: Request) -> None:
        """Send a request at the next `flush`; the response comes to `PeerEvents`."""
        now = self._used_at = self._loop.time()
        if self.state is LinkState.OPEN:
            self._encode(request_id, request, now)
        elif len(self._held) >= _MAX_HELD or self._is_stopped:
            self._fail(request_id)
        elif self.state is LinkState.CONNECTING:
            self._held.append((request_id, request))
        elif now < self._next_attempt:
            self._fail(request_id)
        else:
            self._held.append((request_id, request))
            self._connect()

    def flush(self) -> None:
        """Write what `send` has queued."""
        if not self._frames or self._link is None:
            return
        frames, self._frames = self._frames, []
        self._unsent = 0
        transport = self._link.transport
        if len(frames) == 1:
            transport.write(frames[0])
        else:
            transport.writelines(frames)

    async def stop(self) -> None:
        """Close the connection and forget all requests."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.gather(self._attempt, return_exceptions=True)
        self._held.clear()
        self._pending.clear()
        if self._link is not None:
            link = self._link
            self._lose("stopped")
            await link.lost

    # Requests

    def _encode(self, request_id: int, request: Request, now: float) -> None:
        if len(self._pending) >= MAX_PENDING:
            self._fail(request_id)
            return
        opaque = self._opaque = (self._opaque + 1) & _MAX_OPAQUE
        if isinstance(request, PushRequest):
            assert self._link is not None
            unsent = self._unsent + self._link.transport.get_write_buffer_size()
            if unsent > MAX_UNSENT or (
                request.run is not None and (self.kind is not PeerKind.PYROMQ or not self._names)
            ):
                self._fail(request_id)
                return
            if request.run is not None:
                assert self._names is not None
                frames = encode_push(self._names, request, opaque)
                self._pending[opaque] = _Pending(
                    request_id, RequestCode.RAFT_PUSH, now + TIMEOUT_SECONDS, request.first_index
                )
                self._frames += frames
                self._unsent += len(frames[0]) + len(frames[1])
                return
        code = code_of(request)
        body = encode_request(request)
        header = _HEADER % (code, checksum_of(code, opaque, body), opaque)
        prefix = pack_prefix(PREFIX_SIZE - TOTAL_SIZE + len(header) + len(body), len(header))
        first = request.first_index if isinstance(request, PushRequest) else NONE
        self._pending[opaque] = _Pending(request_id, code, now + TIMEOUT_SECONDS, first)
        self._frames.append(prefix + header + body)
        self._unsent += len(header) + len(body)

    def _fail(self, request_id: int) -> None:
        if not self._ended:
            self._loop.call_soon(self._report)
        self._ended.append((request_id, Failed()))

    def _report(self) -> None:
        ended, self._ended = self._ended, []
        if ended and not self._is_stopped:
            self._events.answered(self.node_id, ended)

    # The connection

    def _connect(self) -> None:
        self.state = LinkState.CONNECTING
        self._attempt = self._loop.create_task(self._open())

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self._loop.create_connection(
                    lambda: _Link(self),
                    self._host,
                    self._port,
                    **({} if self._tls is None else self._tls.arguments(self._host)),
                )
        except (OSError, UnicodeError) as error:  # a time-out is an OSError
            if self.state is LinkState.CONNECTING:
                self._refused(str(error) or "no answer")

    def _refused(self, reason: str) -> None:
        self.state = LinkState.CLOSED
        self._back_off()
        self._complain("cannot connect to node %s at %s: %s", reason)
        held, self._held = self._held, []
        for request_id, _ in held:
            self._fail(request_id)

    def _back_off(self) -> None:
        self._backoff = min(max(2 * self._backoff, _MIN_BACKOFF), _MAX_BACKOFF)
        self._next_attempt = self._loop.time() + self._backoff

    def opened(self, link: _Link) -> None:
        """Send what waited for the connection; called by the link."""
        if self._is_stopped:
            link.transport.abort()
            return
        self.state = LinkState.OPEN
        self._link = link
        now = self._opened_at = self._used_at = self._loop.time()
        logger.debug("connected to node %s at %s", self.node_id, self.address)
        held, self._held = self._held, []
        for request_id, request in held:
            self._encode(request_id, request, now)
        self.flush()
        self._timer = self._loop.call_later(_CHECK_SECONDS, self._check)

    def received(self, frames: list[RawFrame]) -> None:
        """Hand responses over; called by the link."""
        now = self.heard_at = self._loop.time()
        self._backoff = 0.0
        answers: list[tuple[int, Response | Failed]] = []
        pop = self._pending.pop
        for _, header, body in frames:
            flag = header.get("flag")
            if type(flag) is not int or not flag & FLAG_RESPONSE:
                continue
            opaque = header.get("opaque")
            pending = pop(opaque, None) if type(opaque) is int else None
            if pending is None:
                continue  # late
            try:
                answers.append((pending.request_id, self._decode(header, body, pending)))
            except BodyError as error:
                self._complain("node %s at %s sent a response that is refused: %s", str(error))
                answers.append((pending.request_id, Failed()))
        self._used_at = now
        if answers:
            self._events.answered(self.node_id, answers)

    def _decode(self, header: Header, body: bytes, pending: _Pending) -> Response:
        if pending.code == RequestCode.RAFT_PUSH:
            answer: Response = decode_answer(body)
        else:
            check_frame(header, body)
            if self.kind is PeerKind.UNKNOWN:
                self._greet(header.get("extFields"))
            answer = decode_response(pending.code, body)
        if (
            isinstance(answer, PushResponse)
            and answer.code is Code.SUCCESS
            and answer.index != pending.first
        ):
            # It would acknowledge entries that the follower may not have.
            raise BodyError(f"success of entry {answer.index} instead of {pending.first}")
        return answer

    def _greet(self, fields: object) -> None:
        is_ours = type(fields) is dict and GREETING in fields and self._names is not None
        self.kind = PeerKind.PYROMQ if is_ours else PeerKind.DLEDGER
        if is_ours:
            self._events.takes_runs(self.node_id, is_able=True)

    def lost(self, link: _Link, reason: str) -> None:
        """Fail all requests: the connection is lost; called by the link."""
        if link is self._link:
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        link, self._link = self._link, None
        assert link is not None
        link.transport.abort()
        self.state = LinkState.CLOSED
        if self._timer is not None:
            self._timer.cancel()
        if self.kind is PeerKind.PYROMQ:
            self._events.takes_runs(self.node_id, is_able=False)
        self.kind = PeerKind.UNKNOWN
        self._frames.clear()
        self._unsent = 0
        logger.debug("connection to node %s at %s closed: %s", self.node_id, self.address, reason)
        if self._pending:
            self._back_off()
        pending, self._pending = self._pending, {}
        for each in pending.values():
            self._fail(each.request_id)

    def _check(self) -> None:
        """Fail what waits for too long; close a connection that is dead or not needed."""
        now = self._loop.time()
        self._timer = self._loop.call_later(_CHECK_SECONDS, self._check)
        is_late = False
        while self._pending:
            opaque, oldest = next(iter(self._pending.items()))
            if oldest.deadline > now:
                break
            del self._pending[opaque]
            self._fail(oldest.request_id)
            is_late = True
        quiet_since = max(self.heard_at or 0.0, self._opened_at)
        if is_late and now - quiet_since >= TIMEOUT_SECONDS:
            self._complain("node %s at %s is silent: %s", "closing the connection")
            self._back_off()
            self._lose("silence")
        elif not self._pending and now - self._used_at > _IDLE_SECONDS:
            self._lose("not needed")

    def refuse(self, error: FrameError) -> None:
        """Close the connection to a peer that does not speak the protocol; called by the link."""
        self._complain("node %s at %s sent no RocketMQ frame: %s", str(error))
        self._lose(str(error))

    def _complain(self, text: str, reason: str) -> None:
        self._complaints.ended()
        if self._complaints.is_wanted(text, 1):
            logger.warning(text, self.node_id, self.address, reason)


class _Link(asyncio.Protocol):
    """One connection to a peer."""

    #: Set by `connection_made`.
    transport: asyncio.Transport

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._gatherer = ChunkGatherer()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the peer's object."""
        # uvloop's transports do not derive from asyncio's class.
        self.transport = cast(asyncio.Transport, transport)
        self._peer.opened(self)

    def data_received(self, data: bytes) -> None:
        """Cut the stream into frames."""
        buffer = self._gatherer.add(data)
        if buffer is None:
            return
        frames, taken, error = split_frames(buffer)
        if frames:
            self._peer.received(frames)
        if error is not None:
            if not self.transport.is_closing():
                self._peer.refuse(error)
        else:
            self._gatherer.keep(buffer, taken)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the peer's object."""
        if not self.lost.done():
            self.lost.set_result(None)
        self._peer.lost(self, str(exc) if exc else "closed by the peer")
