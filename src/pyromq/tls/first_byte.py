"""Tells TLS from plain connections on one port, by the first byte of each.

    0x16   a TLS handshake: the connection continues behind a `TlsTransport`
    other  plain; closed without an answer if the mode is enforcing

A plain frame cannot begin with 0x16: it would be longer than 369 MB. The inner protocol exists from
the start, so limits and idle times count from the moment a client connects. After the first byte a
plain connection is what it would be without TLS: this class is not on its path any more.

Runs on the loop.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final, cast

from pyromq.base.log_lines import RARELY
from pyromq.protocol.message.message_id import format_address
from pyromq.tls.handshakes import Handshakes
from pyromq.tls.settings import TlsMode
from pyromq.tls.transport import ServedProtocol, TlsTransport, as_transport

logger = logging.getLogger(__name__)

HANDSHAKE: Final = 0x16


class FirstByte(asyncio.Protocol):
    """The protocol of a connection until its first byte arrives."""

    #: Set by `connection_made`.
    _raw: asyncio.Transport

    def __init__(
        self,
        inner: ServedProtocol,
        mode: TlsMode,
        context: Callable[[], ssl.SSLContext],
        handshakes: Handshakes,
    ) -> None:
        """`context` returns the context of new connections."""
        self._inner = inner
        self._mode = mode
        self._context = context
        self._handshakes = handshakes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let the inner protocol admit the client."""
        self._raw = as_transport(transport)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Decide, and step aside."""
        raw, inner = self._raw, self._inner
        if raw.is_closing():
            return
        if data[0] == HANDSHAKE:
            secured = TlsTransport(raw, inner, self._context(), self._handshakes)
            raw.set_protocol(secured)
            secured.data_received(data)
        elif self._mode is TlsMode.ENFORCING:
            peer = raw.get_extra_info("peername")
            logger.warning(
                "%s speaks no TLS: closed (tls.server.mode=enforcing)",
                format_address(peer[0], peer[1]) if peer else "a client",
                extra={**RARELY, "kind": "enforcing"},
            )
            raw.abort()
        else:
            raw.set_protocol(cast(asyncio.Protocol, inner))
            inner.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the inner protocol."""
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Tell the inner protocol."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Tell the inner protocol."""
        self._inner.resume_writing()
