"""One replica's connection, as the master sees it.

    ENQUIRING -> FEEDING                  a Java replica: its first report is its request
    ENQUIRING -> NEGOTIATING -> FEEDING   a pyromq replica: enquiry, questions, then "follow"
    any -> CLOSED

While feeding, `pump` writes the log's bytes straight from the mapped segments, as frames, up to the
end of the log. It pauses when the socket's buffer is full, so a slow replica costs no memory, and
when pages must be read from disk, which a thread does. Heartbeats follow silence.

Invariants
1. A report counts only if it is the end of a record that was sent on this connection, or, after
   negotiation, the end of the common log, which both ends have compared. A peer with another log,
   or none at all, therefore acknowledges nothing.
2. Reports never go back. A peer that breaks these rules is closed with one log line.
3. A replica that asks for bytes that this log no longer has, or never had, gets the reason, and
   is closed.

Everything runs on the loop, except for reads of cold pages and checksums of a negotiation.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from enum import Enum, auto
from typing import Any, Final, NamedTuple, Protocol, cast

from pyromq.base.log_lines import RARELY
from pyromq.base.sizes import MIB
from pyromq.protocol.message.message_id import format_address
from pyromq.replication import wire
from pyromq.store.config import MessageStoreConfig
from pyromq.store.log_source import MAX_CHECKED, LogSource

logger = logging.getLogger(__name__)

#: Bytes that wait in a socket's buffer before the pump pauses.
_MAX_UNSENT: Final = 1 * MIB
#: Bytes that the pump writes before other work gets its turn.
_MAX_PUMPED: Final = 4 * MIB
#: Bytes that a thread reads from disk at a time.
_MAX_BROUGHT_IN: Final = 4 * MIB
#: Checksums in one question.
_MAX_CHECKSUMS: Final = 64
#: The shortest time between two samples of the log's end, which the lag in time is derived from.
_SAMPLE_SECONDS: Final = 0.005
_MAX_SAMPLES: Final = 65_536
#: How long a closed connection may take to send what is in its buffer. The kernel of a peer that
#: does not read keeps the connection alive for ever.
_LINGER_SECONDS: Final = 2.0


class FeederState(Enum):
    """The life of a connection."""

    ENQUIRING = auto()
    NEGOTIATING = auto()
    FEEDING = auto()
    CLOSED = auto()


_TRANSITIONS: Final = {
    FeederState.ENQUIRING: {FeederState.NEGOTIATING, FeederState.FEEDING, FeederState.CLOSED},
    FeederState.NEGOTIATING: {FeederState.FEEDING, FeederState.CLOSED},
    FeederState.FEEDING: {FeederState.CLOSED},
    FeederState.CLOSED: set[FeederState](),
}


class FeederHost(Protocol):
    """The master, as its connections see it."""

    config: MessageStoreConfig
    source: LogSource
    broker_name: str

    def admit(self, feeder: Feeder, host: str) -> str | None:
        """Return why a peer is refused, or None."""

    def accepted(self, feeder: Feeder) -> None:
        """Note that a replica is being fed from now on."""

    def reported(self, feeder: Feeder) -> None:
        """Note that a replica's `acked` moved."""

    def closed(self, feeder: Feeder) -> None:
        """Note that a replica is no longer fed."""

    def gone(self, feeder: Feeder) -> None:
        """Note that a connection has ended, and holds no memory any more."""


class ReplicaStatus(NamedTuple):
    """How far one replica is."""

    address: str
    #: "pyromq" or "java".
    kind: str
    #: None if unknown: Java's replicas do not tell.
    broker_id: int | None
    #: The offset below which the replica has everything.
    acked: int
    lag_bytes: int
    #: For how long the replica has lacked the oldest message that it lacks.
    lag_millis: int
    connected_seconds: float


class Feeder(asyncio.Protocol):
    """Feeds one replica."""

    #: Set by `connection_made`.
    _transport: asyncio.Transport

    def __init__(self, host: FeederHost, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._source = host.source
        self.state = FeederState.ENQUIRING
        self.address = ""
        self._received = bytearray()
        self._broker_id: int | None = None
        self._is_checked = False
        #: The number of the question that is being answered.
        self._asked: object = None
        #: Everything below these offsets was sent, and reported by the replica.
        self.sent = 0
        self.acked = 0
        #: The first offset that was sent: without negotiation, only reports above it count.
        self._started_at = 0
        self._connected_at = self._heard_at = self._wrote_at = loop.time()
        self._is_paused = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_pumping_later = False
        #: The end of the records that are being sent to a Java replica.
        self._cut_until = 0
        #: Ends of the log that were sent, each with the time of its first sending.
        self._samples: deque[tuple[int, float]] = deque()

    # For the master

    @property
    def counts(self) -> bool:
        """Whether `acked` acknowledges messages (invariant 1)."""
        return self.state is FeederState.FEEDING and (
            self._is_checked or self.acked > self._started_at
        )

    def status(self) -> ReplicaStatus:
        """Return how far the replica is."""
        now, lag = self._loop.time(), max(0, self._source.end - self.acked)
        since = self._samples[0][1] if self._samples else now
        return ReplicaStatus(
            address=self.address,
            kind="pyromq" if self._is_checked else "java",
            broker_id=self._broker_id,
            acked=self.acked,
            lag_bytes=lag,
            lag_millis=int((now - since) * 1000) if lag else 0,
            connected_seconds=now - self._connected_at,
        )

    def log_grew(self) -> None:
        """Send what was appended to the log, after the other work of this loop iteration."""
        if not self._is_pumping_later and self.state is FeederState.FEEDING:
            self._is_pumping_later = True
            self._loop.call_soon(self._pump_later)

    def close(self, reason: str = "", *, level: int = logging.WARNING) -> None:
        """Close the connection, and log the reason if there is one. Idempotent."""
        if self.state is FeederState.CLOSED:
            return
        if reason:
            extra = {**RARELY, "kind": "replication"} if level >= logging.WARNING else None
            logger.log(level, "replica %s: %s: closed", self.address, reason, extra=extra)
        self._enter(FeederState.CLOSED)
        for task in (self._task, self._timer):
            if task is not None:
                task.cancel()
        self._host.closed(self)
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._timer = self._loop.call_later(_LINGER_SECONDS, self._transport.abort)

    def abort(self, reason: str = "") -> None:
        """Close the connection without sending what is in its buffer."""
        self.close(reason)
        self._transport.abort()

    # Called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the peer, or close the connection."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer is None:
            self._enter(FeederState.CLOSED)
            self._transport.abort()
            return
        self.address = format_address(peer[0], peer[1])
        self._transport.set_write_buffer_limits(high=_MAX_UNSENT)
        refusal = self._host.admit(self, peer[0])
        if refusal is not None:
            self.abort(refusal)
            return
        self._check_silence()

    def connection_secured(self, transport: asyncio.Transport) -> None:
        """Read and write through the TLS layer from now on."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Release what the master holds for the replica."""
        if self.state is FeederState.FEEDING:
            logger.warning(
                "replica %s disconnected at %d, lag %d bytes: %s",
                self.address,
                self.acked,
                self._source.end - self.acked,
                exc or "closed by the replica",
            )
        self.close()
        if self._timer is not None:
            self._timer.cancel()
        self._host.gone(self)

    def pause_writing(self) -> None:
        """Stop pumping: the replica does not read."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Pump again."""
        self._is_paused = False
        self.pump()

    def data_received(self, data: bytes) -> None:
        """Take the enquiry, questions or reports of the replica."""
        if self.state is FeederState.CLOSED:
            return
        self._heard_at = self._loop.time()
        received = self._received
        received += data
        try:
            if self.state is FeederState.ENQUIRING and len(received) >= wire.REPORT_SIZE:
                self._take_first(received)
            if self.state is FeederState.NEGOTIATING:
                self._take_question()
                if len(received) > 2 * wire.MAX_QUESTION:
                    raise wire.WireError("it sends questions without waiting for answers")
            if self.state is FeederState.FEEDING:
                self._take_reports(received)
        except wire.WireError as error:
            self.close(f"not a replica: {error}")

    # Beginning

    def _take_first(self, received: bytearray) -> None:
        (offset,) = wire.REPORT.unpack_from(received)
        del received[: wire.REPORT_SIZE]
        if offset == wire.NEGOTIATION:
            self._enter(FeederState.NEGOTIATING)
            self._write_control(
                version=wire.VERSION,
                first=self._source.first,
                end=self._source.end,
                segmentSize=self._source.segment_size,
                brokerName=self._host.broker_name,
            )
            return
        source = self._source
        if offset == 0:
            # As in RocketMQ: a replica without a log gets the newest segment only.
            offset = source.newest_segment
            if not source.first <= offset:
                offset = source.first
        refusal = self._refusal_of(offset)
        if refusal is not None:
            self.close(f"not a replica of this log: {refusal}")
            return
        self._feed_from(offset)

    def _refusal_of(self, offset: int) -> str | None:
        """Return why a replica cannot start at `offset`, or None."""
        source = self._source
        if offset > source.end:
            return f"it has {offset} bytes, but the log ends at {source.end}"
        if offset < source.first:
            return f"it asks for offset {offset}, but the log begins at {source.first}"
        if not source.is_boundary(offset):
            return (
                f"no record begins at {offset}: if it is one, restart it, so that it drops an "
                "incomplete record"
            )
        return None

    def _feed_from(self, offset: int) -> None:
        self._enter(FeederState.FEEDING)
        self.sent = self.acked = self._started_at = offset
        logger.info(
            "replica %s follows from %d, %d bytes behind",
            self.address,
            offset,
            self._source.end - offset,
        )
        self._host.accepted(self)
        self._host.reported(self)
        self.pump()

    # Negotiation

    def _take_question(self) -> None:
        if self._task is not None:
            return  # one at a time
        question = wire.take_question(self._received)
        if question is not None:
            self._task = self._loop.create_task(self._answer(question))

    async def _answer(self, question: dict[str, Any]) -> None:
        self._asked = question.get("number")
        try:
            if "follow" in question:
                await self._answer_follow(question)
            elif "checksums" in question:
                ranges = _ranges(question["checksums"])
                self._write_control(checksums=await asyncio.to_thread(self._checksums, ranges))
            else:
                raise wire.WireError(f"unknown question {sorted(question)[:3]}")
        except wire.WireError as error:
            self._refuse(str(error))
        finally:
            self._task = None
        self.data_received(b"")
        self.pump()

    async def _answer_follow(self, question: dict[str, Any]) -> None:
        offset, start, crc = (_integer(question, name) for name in ("follow", "start", "crc"))
        refusal = self._refusal_of(offset)
        if refusal is None and [crc] != await asyncio.to_thread(self._checksums, [(start, offset)]):
            refusal = f"the bytes before {offset} differ"
        if self.state is not FeederState.NEGOTIATING:
            return
        # Segments may have expired while the checksum was computed.
        refusal = refusal or self._refusal_of(offset)
        if refusal is not None:
            self._refuse(f"not a replica of this log: {refusal}")
            return
        self._broker_id = _integer(question, "brokerId")
        self._write_control(follow=offset)
        self._is_checked = True
        self._feed_from(offset)

    def _checksums(self, ranges: list[tuple[int, int]]) -> list[int | None]:
        return [self._source.checksum(start, end) for start, end in ranges]

    def _refuse(self, reason: str) -> None:
        if self.state is not FeederState.CLOSED:
            self._write_control(error=reason)
            self.close(reason)

    def _write_control(self, **fields: object) -> None:
        if self._asked is not None:
            fields["number"] = self._asked
        self._write(wire.encode_control(fields))

    # Reports

    def _take_reports(self, received: bytearray) -> None:
        """Take all complete reports; only the last one matters."""
        one = wire.CHECKED_REPORT_SIZE if self._is_checked else wire.REPORT_SIZE
        size = len(received) // one * one
        if not size:
            return
        last = received[size - one : size]
        del received[:size]
        if self._is_checked:
            offset = wire.decode_checked_report(last)
        else:
            (offset,) = wire.REPORT.unpack(last)
        if offset == self.acked:
            return
        if offset < self.acked:
            self.close(f"reports {offset} after {self.acked}")
        elif offset > self.sent:
            self.close(f"reports {offset}, but was sent only {self.sent}")
        elif offset == self.sent or self._source.is_boundary(offset):
            self.acked = offset
            samples = self._samples
            while samples and samples[0][0] <= offset:
                samples.popleft()
            self._host.reported(self)

    # Feeding

    def pump(self) -> None:
        """Write frames up to the log's end, or until the socket's buffer is full."""
        if self.state is not FeederState.FEEDING or self._is_paused or self._task is not None:
            return
        source, transport = self._source, self._transport
        end, stop = source.end, self.sent + _MAX_PUMPED
        while self.sent < end:
            if self.sent >= stop:
                self.log_grew()
                return
            body = source.slice(self.sent, self._max_body())
            if not body:
                self._log_is_gone()
                return
            if source.must_wait(self.sent, len(body)):
                self._task = self._loop.create_task(self._bring_in())
                return
            self._send_next(body)
            if self._is_paused or transport.get_write_buffer_size() > _MAX_UNSENT:
                return

    def _pump_later(self) -> None:
        self._is_pumping_later = False
        self.pump()

    def _max_body(self) -> int:
        return wire.MAX_CHECKED_BODY if self._is_checked else wire.MAX_PLAIN_BODY

    def _send_next(self, body: memoryview) -> None:
        """Send a frame with the bytes that follow, all or, to a Java replica, some of them."""
        if not self._is_checked:
            body = body[: self._plain_size(len(body))]
        self._note_sample(self.sent + len(body))
        self._write_frame(self.sent, body)
        self.sent += len(body)

    def _plain_size(self, available: int) -> int:
        """Return the size of the next frame to a Java replica: whole records, if they fit."""
        max_size = self._host.config.ha_transfer_batch_size
        if self.sent >= self._cut_until:
            if self.sent + min(available, max_size) == self._source.end:
                return min(available, max_size)  # the log ends after a record
            size = self._source.whole_records(self.sent, max_size)
            self._cut_until = self.sent + size
        # A record that is too large takes several frames.
        return min(self._cut_until - self.sent, available)

    async def _bring_in(self) -> None:
        """Read cold pages in a thread, then pump again."""
        try:
            await asyncio.to_thread(self._source.bring_in, self.sent, _MAX_BROUGHT_IN)
        except OSError as error:
            logger.warning("reading the log at %d for %s: %s", self.sent, self.address, error)
        finally:
            self._task = None
        self._pump_cold()

    def _pump_cold(self) -> None:
        """Send at least one frame, even if its pages were dropped again, then pump."""
        if self.state is not FeederState.FEEDING:
            return
        body = self._source.slice(self.sent, self._max_body())
        if not body:
            self._log_is_gone()
            return
        self._send_next(body)
        self.pump()

    def _log_is_gone(self) -> None:
        """Tell a replica that lagged for so long that its next segment expired."""
        reason = (
            f"offset {self.sent} has expired: the log begins at {self._source.first}; empty the "
            "replica's store and start it again"
        )
        if self._is_checked:
            self._write_control(error=reason)
        self.close(reason)

    def _write_frame(self, offset: int, body: memoryview | bytes) -> None:
        if self._is_checked:
            header = wire.encode_checked_header(offset, body)
        else:
            header = wire.encode_plain_header(offset, len(body))
        self._wrote_at = self._loop.time()
        self._transport.writelines((header, body))

    def _write(self, data: bytes) -> None:
        self._wrote_at = self._loop.time()
        self._transport.write(data)

    def _note_sample(self, end: int) -> None:
        samples, now = self._samples, self._loop.time()
        if len(samples) < _MAX_SAMPLES and (not samples or now - samples[-1][1] >= _SAMPLE_SECONDS):
            samples.append((end, now))
        elif samples:
            samples[-1] = (end, samples[-1][1])

    # Silence

    def _check_silence(self) -> None:
        """Send a heartbeat if the line was silent, and close it if the replica was too long."""
        if self.state is FeederState.CLOSED:
            return
        config, now = self._host.config, self._loop.time()
        if now - self._heard_at > config.ha_housekeeping_interval / 1000:
            self.close(f"silent for {now - self._heard_at:.0f} s")
            return
        interval = config.ha_send_heartbeat_interval / 1000
        if self.state is FeederState.FEEDING and now - self._wrote_at >= interval:
            self._write_frame(self.sent, b"")
        self._timer = self._loop.call_later(min(interval, 1.0), self._check_silence)

    def _enter(self, state: FeederState) -> None:
        assert state in _TRANSITIONS[self.state], (self.state, state)
        self.state = state


def _ranges(value: object) -> list[tuple[int, int]]:
    """Return the ranges of a question. Raises WireError."""
    if not isinstance(value, list) or len(value) > _MAX_CHECKSUMS:
        raise wire.WireError(f"checksums: not a list of at most {_MAX_CHECKSUMS} ranges")
    ranges = []
    for item in value:
        if (
            not isinstance(item, list)
            or len(item) != 2
            or not all(type(bound) is int for bound in item)
            or not 0 <= item[1] - item[0] <= MAX_CHECKED
        ):
            raise wire.WireError("checksums: a range is not [start, end], or too long")
        ranges.append((item[0], item[1]))
    return ranges


def _integer(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int:
        raise wire.WireError(f"{name} is not a whole number")
    return value
