"""The TLS layer of one accepted connection: the protocol of a socket, the transport of a server.

    HANDSHAKE -> OPEN -> CLOSED

The event loops have such a layer, too, but theirs runs handshakes on the loop's thread, cannot take
over bytes that were already read, and hands each TLS record to the protocol alone. This one
decrypts everything that a read of the socket delivered and passes it on as one chunk, and writes
the records of all responses of a chunk together.

Invariants
1. Nothing is decrypted or passed on before the handshake has ended. Its steps run in a thread
   (`handshakes`), one at a time and only for complete records: a peer that sends single bytes
   costs no step.
2. Encryption happens in `write`; the socket's transport has the only buffer, so water marks and
   backpressure are those of a plain connection.
3. The buffers of OpenSSL never shrink: they are filled with at most `_SLICE` bytes at a time.

Runs on the loop, except `_step`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any, Final, NamedTuple, Protocol, cast

from pyromq.base.log_lines import RARELY
from pyromq.protocol.message.message_id import format_address
from pyromq.tls.errors import describe
from pyromq.tls.handshakes import Handshakes

logger = logging.getLogger(__name__)

_HEADER: Final = 5
#: The largest record that OpenSSL accepts, and the most plain text in one.
_MAX_RECORD: Final = _HEADER + 16384 + 2048
_MAX_PLAIN: Final = 16384
_SLICE: Final = 64 * 1024


class ServedProtocol(Protocol):
    """A protocol of a server, which is there before it is known whether its client uses TLS."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the plain transport of a new connection; nothing may be written to it yet."""

    def connection_secured(self, transport: asyncio.Transport) -> None:
        """Use this transport from now on: the handshake has ended."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything."""

    def data_received(self, data: bytes) -> None:
        """Take bytes."""

    def pause_writing(self) -> None:
        """Stop writing."""

    def resume_writing(self) -> None:
        """Write again."""


class _State(Enum):
    HANDSHAKE = auto()
    OPEN = auto()
    CLOSED = auto()


class _Step(NamedTuple):
    is_done: bool
    error: Exception | None
    output: bytes


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """Decrypts for `inner`, and encrypts what it writes."""

    def __init__(
        self,
        raw: asyncio.Transport,
        inner: ServedProtocol,
        context: ssl.SSLContext,
        handshakes: Handshakes,
    ) -> None:
        super().__init__()
        self._raw = raw
        self._inner = inner
        self._context = context
        self._handshakes = handshakes
        self._state = _State.HANDSHAKE
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl: ssl.SSLObject | None = None
        #: Received bytes of the handshake that are not a complete record yet.
        self._held = b""
        self._is_stepping = False
        handshakes.begin(self)
        self._timer = asyncio.get_running_loop().call_later(
            handshakes.seconds, self.give_up, f"no handshake in {handshakes.seconds:g} s"
        )

    # The socket's side

    def data_received(self, data: bytes) -> None:
        """Decrypt and pass on, or continue the handshake."""
        if self._state is _State.OPEN:
            self._decrypt(data)
        elif self._state is _State.HANDSHAKE:
            self._held += data
            self._continue_handshake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the inner protocol."""
        self._leave_handshake(is_good=False)
        self._state = _State.CLOSED
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on that the peer does not read."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the peer reads again."""
        self._inner.resume_writing()

    # Handshake

    def give_up(self, reason: str) -> None:
        """Close the connection before its handshake has ended."""
        if self._state is _State.HANDSHAKE:
            logger.warning(
                "%s: TLS handshake failed: %s: closed",
                self._peer,
                reason,
                extra={**RARELY, "kind": "handshake"},
            )
            self._close_raw(self._raw.close)

    @property
    def _peer(self) -> str:
        peer = self._raw.get_extra_info("peername")
        return format_address(peer[0], peer[1]) if peer else "a client that has gone"

    def _continue_handshake(self) -> None:
        if self._is_stepping:
            return
        end = _end_of_records(self._held)
        if not end:
            return
        # Nothing else must touch the buffers of OpenSSL while the thread uses them.
        self._incoming.write(self._held[:end])
        self._held = self._held[end:]
        self._is_stepping = True
        self._raw.pause_reading()
        self._handshakes.run(self._step, self._stepped)

    def _step(self) -> _Step:
        """Do what the received bytes allow. Runs in a thread."""
        if self._state is _State.CLOSED:
            return _Step(is_done=False, error=None, output=b"")
        error: Exception | None = None
        try:
            if self._ssl is None:
                self._ssl = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return _Step(is_done=False, error=None, output=self._outgoing.read())
        except (OSError, ValueError) as caught:
            error = caught
        return _Step(is_done=error is None, error=error, output=self._outgoing.read())

    def _stepped(self, step: _Step) -> None:
        self._is_stepping = False
        if self._state is _State.CLOSED or self._raw.is_closing():
            return
        if step.output:  # if the handshake failed, the alert that says why
            self._raw.write(step.output)
        if step.error is not None:
            self.give_up(describe(step.error))
            return
        self._raw.resume_reading()
        if not step.is_done:
            self._continue_handshake()
            return
        self._leave_handshake(is_good=True)
        self._state = _State.OPEN
        self._inner.connection_secured(self)
        held, self._held = self._held, b""
        if held or self._incoming.pending:  # requests that came with the end of the handshake
            self._decrypt(held)

    def _leave_handshake(self, *, is_good: bool) -> None:
        self._timer.cancel()
        self._handshakes.end(self, is_good=is_good)

    # Data

    def _decrypt(self, data: bytes) -> None:
        """Pass on the plain text of everything that has arrived."""
        assert self._ssl is not None
        read, incoming = self._ssl.read, self._incoming
        pieces: list[bytes] = []
        fault: Exception | None = None
        is_over = False
        position = 0
        try:
            while not is_over:
                incoming.write(data if len(data) <= _SLICE else data[position : position + _SLICE])
                position += _SLICE
                try:
                    while incoming.pending:
                        piece = read(_MAX_PLAIN)
                        if not piece:  # the peer said that it closes
                            is_over = True
                            break
                        pieces.append(piece)
                except ssl.SSLWantReadError:
                    pass  # a record that is not complete yet
                if position >= len(data):
                    break
        except OSError as error:
            fault = error
        if self._outgoing.pending:  # an update of the keys, or an alert
            self._raw.write(self._outgoing.read())
        if fault is not None:
            logger.warning(
                "%s: %s: closed",
                self._peer,
                describe(fault),
                extra={**RARELY, "kind": "tls"},
            )
        if pieces:
            self._inner.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if fault is not None or is_over:
            self._close_raw(self._raw.close)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Encrypt and send."""
        if self._state is not _State.OPEN or not data:
            return
        assert self._ssl is not None
        encrypt, outgoing = self._ssl.write, self._outgoing
        try:
            if len(data) <= _SLICE:
                encrypt(data)
                self._raw.write(outgoing.read())
                return
            records = []
            view = memoryview(data)
            for position in range(0, len(view), _SLICE):
                encrypt(view[position : position + _SLICE])
                records.append(outgoing.read())
            self._raw.writelines(records)
        except OSError:  # a request before a damaged record: nothing can be answered any more
            self._close_raw(self._raw.close)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        """Encrypt and send several buffers."""
        for data in list_of_data:
            self.write(data)

    # The rest of a transport

    def close(self) -> None:
        """Say that the connection ends, send what is buffered, and close."""
        self._say_end()
        self._close_raw(self._raw.close)

    def abort(self) -> None:
        """Close immediately."""
        self._close_raw(self._raw.abort)

    def write_eof(self) -> None:
        """Say that nothing more will be sent."""
        self._say_end()
        with contextlib.suppress(OSError):  # the peer has gone, as the next read will find out
            self._raw.write_eof()

    def can_write_eof(self) -> bool:
        """Return True."""
        return True

    def is_closing(self) -> bool:
        """Return whether the connection is closed or being closed."""
        return self._raw.is_closing()

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        self._raw.resume_reading()

    def is_reading(self) -> bool:
        """Return whether the socket is read."""
        return self._raw.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the water marks of the socket's buffer."""
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return how many encrypted bytes wait until the peer reads."""
        return self._raw.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return `ssl_object`, or what the socket's transport knows."""
        return self._ssl if name == "ssl_object" else self._raw.get_extra_info(name, default)

    def _say_end(self) -> None:
        if self._state is not _State.OPEN or self._raw.is_closing():
            return
        self._state = _State.CLOSED
        assert self._ssl is not None
        with contextlib.suppress(OSError):  # it waits for the peer's answer, which nobody needs
            self._ssl.unwrap()
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def _close_raw(self, close: Callable[[], None]) -> None:
        self._leave_handshake(is_good=False)
        self._state = _State.CLOSED
        close()


def _end_of_records(held: bytes) -> int:
    """Return where the last complete record ends; bytes that are none are complete, too."""
    end = 0
    while len(held) >= end + _HEADER:
        size = _HEADER + int.from_bytes(held[end + 3 : end + 5], "big")
        if size > _MAX_RECORD:
            return len(held)  # OpenSSL says what is wrong with it
        if len(held) < end + size:
            break
        end += size
    return end


def as_transport(transport: asyncio.BaseTransport) -> asyncio.Transport:
    """Return a transport as what it is: uvloop's do not derive from asyncio's class."""
    return cast(asyncio.Transport, transport)
