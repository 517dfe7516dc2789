"""One connection of a replica to a master: asks questions, then appends what arrives and reports.

    OPEN -> FOLLOWING -> CLOSED

`enquire` finds out which kind of master this is. `ask` and `follow` negotiate with a pyromq master,
`follow_java` starts with a Java master. From then on every complete frame is appended to the log,
and one report follows each read of the socket.

Invariants
1. A frame is appended only if it starts where the received bytes end. A gap, a repetition, a wrong
   checksum or a damaged record closes the connection; the next one starts at the last good record.
2. Reports are ends of complete records, in the log, and with haReportFlushed on disk.
3. At most one frame and one incomplete record are held in memory. If the disk is full, nothing
   more is read until it has room again.

Runs on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum, auto
from typing import Any, Final, cast

from pyromq.protocol.message.record import BLANK_SIZE, peek
from pyromq.replication import wire
from pyromq.store.acknowledgement import AckOutcome
from pyromq.store.config import MessageStoreConfig
from pyromq.store.replicated import BadBytesError
from pyromq.store.replication import StoreReplication
from pyromq.store.results import PutError, StoreError

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.5
_CHECK_SECONDS: Final = 1.0


class LinkState(Enum):
    """The life of a link."""

    OPEN = auto()
    FOLLOWING = auto()
    CLOSED = auto()


class LinkError(Exception):
    """The connection cannot be used; the replica connects again."""


class MasterRefusedError(Exception):
    """The master refused to be followed from this offset."""


class ReplicaLink(asyncio.BufferedProtocol):
    """Receives the log of a master."""

    #: Set by `connection_made`.
    _transport: asyncio.Transport

    def __init__(
        self,
        config: MessageStoreConfig,
        store: StoreReplication,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._config = config
        self._store = store
        self._log = store.log
        self._loop = loop
        self.state = LinkState.OPEN
        self._reader = wire.FrameReader(is_checked=True)
        self._is_checked = True
        #: Answers of a pyromq master that nobody has taken yet.
        self._controls: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        #: Received bytes of a record that is not complete, and how many of them are needed.
        self._pieces: list[bytes] = []
        self._held = 0
        self._needed = 0
        #: The offset after the last received byte.
        self._received_to = 0
        self._reported = -1
        self._flushing_to = -1
        #: Questions asked so far, and the offset that the last one asked to follow from.
        self._questions = 0
        self._follow_from = -1
        self._is_full = False
        self._heard_at = self._wrote_at = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[str] = loop.create_future()

    # Before following

    async def enquire(self, seconds: float) -> dict[str, Any] | None:
        """Return the hello of a pyromq master, or None from a Java master. Raises LinkError."""
        self._write(wire.ENQUIRY)
        try:
            async with asyncio.timeout(seconds):
                return await self._next_control()
        except TimeoutError:
            return None

    async def ask(self, **question: object) -> dict[str, Any]:
        """Return a pyromq master's answer. Raises LinkError or MasterRefusedError."""
        self._questions += 1
        self._write(wire.encode_question({**question, "number": self._questions}))
        try:
            async with asyncio.timeout(self._config.ha_housekeeping_interval / 1000):
                answer = await self._next_control()
        except TimeoutError:
            raise LinkError("the master does not answer") from None
        if "error" in answer:
            raise MasterRefusedError(str(answer["error"]))
        if answer.get("number") != self._questions:
            raise LinkError("the master answered another question")
        return answer

    async def follow(self, offset: int, start: int, crc: int, broker_id: int) -> None:
        """Follow a pyromq master from `offset`, which the log has up to. Raises as `ask` does."""
        self._received_to = self._follow_from = offset
        answer = await self.ask(follow=offset, start=start, crc=crc, brokerId=broker_id)
        if answer.get("follow") != offset:
            raise LinkError(f"the master answered {answer} to a request for {offset}")

    def follow_java(self) -> None:
        """Follow a Java master from the log's end on, or from where it likes if that is empty."""
        self._reader = wire.FrameReader(is_checked=False)
        self._is_checked = False
        self._received_to = 0 if self._log.is_empty else self._log.end
        self._enter(LinkState.FOLLOWING)
        self._report(self._received_to)

    async def _next_control(self) -> dict[str, Any]:
        fields = await self._controls.get()
        if fields is None:
            raise LinkError(self.closed.result() if self.closed.done() else "closed")
        return fields

    def close(self, reason: str) -> None:
        """Close the connection for this reason. Idempotent."""
        if self.state is LinkState.CLOSED:
            return
        self._enter(LinkState.CLOSED)
        if self._timer is not None:
            self._timer.cancel()
        if not self.closed.done():
            self.closed.set_result(reason)
        self._controls.put_nowait(None)
        self._transport.abort()

    @property
    def silent_for(self) -> float:
        """Return for how many seconds the master has said nothing."""
        return self._loop.time() - self._heard_at

    # Called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to watch the line."""
        self._transport = cast(asyncio.Transport, transport)
        self._check()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everyone who waits."""
        self.close(str(exc) if exc else "closed by the master")

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return where the next bytes go."""
        return self._reader.room()

    def buffer_updated(self, count: int) -> None:
        """Append the frames that are complete now, then report."""
        if self.state is LinkState.CLOSED:
            return
        self._heard_at = self._loop.time()
        self._reader.received(count)
        try:
            while not self._is_full and (frame := self._reader.next_frame()) is not None:
                self._take_frame(*frame)
        except (wire.WireError, BadBytesError) as error:
            self.close(f"bad bytes: {error}")
        except StoreError as error:
            self.close(str(error))
        self._report_progress()

    # Frames

    def _take_frame(self, offset: int, body: memoryview) -> None:
        if offset == wire.NEGOTIATION:
            self._take_control(wire.decode_json(body))
            return
        if self.state is not LinkState.FOLLOWING:
            raise wire.WireError(f"a frame at offset {offset} before it was asked for")
        if self._log.is_empty and not self._held and not self._is_checked and body:
            # A Java master decides where an empty log begins.
            self._log.begin_at(offset)
            self._received_to = offset
        elif offset != self._received_to and (body or not self._log.is_empty):
            raise wire.WireError(f"a frame at offset {offset}, expected {self._received_to}")
        if body:
            self._received_to += len(body)
            self._take_bytes(body)

    def _take_control(self, fields: dict[str, Any]) -> None:
        if not self._is_checked:
            # A pyromq master that answered too late: start again.
            raise wire.WireError("a late hello")
        if self.state is LinkState.FOLLOWING:
            raise wire.WireError(str(fields.get("error", "a control frame")))
        if "follow" in fields:
            if fields["follow"] != self._follow_from:
                raise wire.WireError("the master lets this replica follow without being asked")
            # Here, not when the question's coroutine resumes: data may follow in this very read.
            self._enter(LinkState.FOLLOWING)
        self._controls.put_nowait(fields)

    def _take_bytes(self, body: memoryview) -> None:
        """Append the complete records among the received bytes, and keep the rest."""
        if self._pieces:
            self._pieces.append(bytes(body))
            self._held += len(body)
            if self._held < self._needed:
                return
            body = memoryview(b"".join(self._pieces))
        self._append(body)

    def _append(self, data: memoryview) -> None:
        before = self._log.end
        try:
            taken = self._log.append(data, check_crc=not self._is_checked)
        except (OSError, PutError) as error:
            self._wait_for_room(data[self._log.end - before :], error)
            return
        self._is_full = False
        rest = bytes(data[taken:])
        self._held = len(rest)
        self._pieces = [rest] if rest else []
        self._needed = max(peek(rest)[0], BLANK_SIZE) if rest else 0

    def _wait_for_room(self, data: memoryview, error: Exception) -> None:
        """Stop reading, and try again soon."""
        if not self._is_full:
            logger.error("replication waits for room on the disk, at %d: %s", self._log.end, error)
            self._is_full = True
            self._transport.pause_reading()
        self._pieces, self._held = [bytes(data)], len(data)
        self._loop.call_later(_RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        if self.state is LinkState.CLOSED:
            return
        data = memoryview(b"".join(self._pieces))
        try:
            self._append(data)
        except BadBytesError as error:
            self.close(f"bad bytes: {error}")
            return
        except StoreError as error:
            self.close(str(error))
            return
        if not self._is_full:
            logger.info("replication has room again, at %d", self._log.end)
            self._transport.resume_reading()
            self.buffer_updated(0)

    # Reports

    def _report_progress(self) -> None:
        if self.state is not LinkState.FOLLOWING:
            return
        offset = self._log.boundary
        if offset <= self._reported or self._log.is_empty:
            return
        if not self._config.ha_report_flushed:
            self._report(offset)
        elif offset > self._flushing_to:
            self._flushing_to = offset
            self._store.flushed(offset).add_done_callback(
                lambda done: self._flushed(offset, done.result())
            )

    def _flushed(self, offset: int, outcome: AckOutcome) -> None:
        if self.state is not LinkState.FOLLOWING:
            return
        if outcome is AckOutcome.STORED:
            if offset > self._reported:
                self._report(offset)
        elif outcome is AckOutcome.FLUSH_TIMED_OUT:
            self._flushing_to = -1  # with the next bytes or heartbeat
        else:
            self.close("the log cannot be flushed")

    def _report(self, offset: int) -> None:
        self._reported = offset
        encode = wire.encode_checked_report if self._is_checked else wire.encode_report
        self._write(encode(offset))

    def _write(self, data: bytes) -> None:
        if self.state is LinkState.CLOSED:
            return  # uvloop would raise an error; the next read of an answer has the reason
        self._wrote_at = self._loop.time()
        self._transport.write(data)

    def _check(self) -> None:
        """Report after silence of our own, and close the line after silence of the master."""
        config, now = self._config, self._loop.time()
        if now - self._heard_at > config.ha_housekeeping_interval / 1000 and not self._is_full:
            self.close(f"the master was silent for {now - self._heard_at:.0f} s")
            return
        if (
            self.state is LinkState.FOLLOWING
            and now - self._wrote_at >= config.ha_send_heartbeat_interval / 1000
        ):
            self._report_progress()
            self._report(max(self._reported, 0))
        self._timer = self._loop.call_later(
            min(_CHECK_SECONDS, config.ha_send_heartbeat_interval / 1000), self._check
        )

    def _enter(self, state: LinkState) -> None:
        assert self.state is not LinkState.CLOSED, state
        self.state = state
