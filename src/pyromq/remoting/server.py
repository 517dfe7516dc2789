"""The listening side of a server: takes the port, accepts connections, closes them.

    server = RemotingServer(host="0.0.0.0", port=10911)
    server.bind()                # the port is ours, nothing is served yet
    await server.start(service)  # `remoting.service`: what to do with requests

With `tls`, the first byte of a connection tells whether it is encrypted (`tls.first_byte`).

The server closes a connection that was silent for `idle_seconds`, and one whose frame takes too
long to arrive, with one log line each. Requests are handled in `remoting.connection`.

Everything runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from pyromq.protocol.message.message_id import format_address
from pyromq.protocol.wire.frame import MAX_FRAME
from pyromq.remoting.connection import Connection
from pyromq.remoting.lateness import Lateness
from pyromq.remoting.limits import PeerLimits, report_accept_faults
from pyromq.remoting.service import Service
from pyromq.tls.server import ServerTls
from pyromq.tls.settings import TlsMode

logger = logging.getLogger(__name__)

IDLE_SECONDS: Final = 120.0
#: Checks for silent connections within the time that they may be silent.
_IDLE_CHECKS: Final = 12
#: How long a stopping server waits for requests in progress that it has cancelled.
_CANCEL_SECONDS: Final = 2.0
_DRAIN_POLL_SECONDS: Final = 0.005


def bound_socket(
    host: str,
    port: int,
    prepare: Callable[[socket.socket], None] | None = None,
    *,
    is_chosen: bool = True,
) -> socket.socket:
    """Return a socket that owns a port and does not listen yet. Raises OSError with the address.

    `prepare` is called with the socket before it is bound. A port that nobody has chosen must be
    free: with SO_REUSEADDR, another socket that does not listen yet could share it, and one of the
    two would fail to listen.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is given explicitly.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if is_chosen:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if prepare is not None:
            prepare(bound)
        bound.bind((host, port))
        # Its connections inherit this: in TIME_WAIT they must not keep the port from a restart.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, error.strerror, format_address(host, port)) from error
    return bound


class RemotingServer:
    """Listens on one port and serves every connection to it."""

    def __init__(
        self,
        *,
        host: str = "0.0.0.0",  # noqa: S104 - a server is there to be reached
        port: int = 0,
        idle_seconds: float = IDLE_SECONDS,
        max_frame: int = MAX_FRAME,
        limits: PeerLimits | None = None,
        is_port_chosen: bool = True,
        tls: ServerTls | None = None,
        tls_mode: TlsMode | None = None,
    ) -> None:
        """`limits` are shared by all ports of a process; `is_port_chosen`: see `bound_socket`.

        `tls` must be loaded before the start; without it, connections are plain. `tls_mode` is
        that of the port, by default tls.server.mode.
        """
        self._tls = tls
        self._tls_mode = tls_mode
        self.max_frame = max_frame
        self.limits = limits or PeerLimits()
        self.lateness = Lateness()
        self.connections: set[Connection] = set()
        #: Requests in progress.
        self.tasks: set[asyncio.Task[None]] = set()
        self.stopping = False
        #: Handles all requests; see `serve`.
        self.service: Service[Connection] = Service(handlers={})
        self._host = host
        self._port = port
        self._is_port_chosen = is_port_chosen and port != 0
        self._idle_seconds = idle_seconds
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """Return the bound port, or the configured one before `bind`."""
        return self._port

    def serve(self, service: Service[Connection]) -> None:
        """Handle requests of all connections with `service` from now on."""
        self.service = service

    def bind(self) -> None:
        """Take the port without listening yet. Raises OSError if it is not available."""
        if self._socket is not None:
            return
        self._socket = bound_socket(
            self._host,
            self._port,
            self.limits.sockets.set_buffers,
            is_chosen=self._is_port_chosen,
        )
        self._port = self._socket.getsockname()[1]
        self._is_port_chosen = True  # the next start takes the same one

    async def start(self, service: Service[Connection]) -> None:
        """Listen and serve. Raises OSError if the port is not available."""
        self.bind()
        assert self._socket is not None
        self.stopping = False
        self.serve(service)
        loop = asyncio.get_running_loop()
        new_connection = partial(Connection, self, loop)
        # asyncio's loop accepts, and logs failures, as many times in a row as its backlog says.
        self._server = await loop.create_server(
            new_connection
            if self._tls is None
            else self._tls.protect(new_connection, self._tls_mode),
            sock=self._socket,
            backlog=1,
        )
        self._socket.listen(self.limits.sockets.backlog)
        report_accept_faults(loop)
        policy = service.late_requests
        if policy is not None:
            self.lateness.start(loop, lambda: policy.shortest_limit)
        self._close_idle(loop)

    async def drain(self, seconds: float, service: Service[Connection] | None = None) -> None:
        """Accept no new connections and wait until every received request is answered.

        Open connections are still served, with `service` if given. After `seconds` the remaining
        requests are abandoned.
        """
        if service is not None:
            self.serve(service)
        if self._server is not None:
            self._server.close()
        await asyncio.sleep(0)  # read what the sockets already have
        deadline = asyncio.get_running_loop().time() + seconds
        while any(connection.is_busy for connection in self.connections):
            if asyncio.get_running_loop().time() > deadline:
                logger.warning("requests still unanswered after %g s: closed", seconds)
                return
            await asyncio.sleep(_DRAIN_POLL_SECONDS)

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
        closing = [asyncio.ensure_future(each.end()) for each in self.connections]
        if closing:
            await asyncio.wait(closing)
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None
        self.close_socket()

    def close_socket(self) -> None:
        """Release the port."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _close_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close silent connections and slow frames, now and at regular intervals."""
        oldest = loop.time() - self._idle_seconds
        for connection in list(self.connections):
            if connection.last_active >= oldest:
                continue
            if connection.closed:  # the peer does not read its last responses
                connection.abort()
            else:
                logger.info(
                    "%s was silent for %g s: closed", connection.remote_address, self._idle_seconds
                )
                connection.close()
        self._close_slow_frames(loop.time())
        patience = min(self._idle_seconds, self.limits.frame_seconds or self._idle_seconds)
        self._idle_timer = loop.call_later(patience / _IDLE_CHECKS, self._close_idle, loop)

    def _close_slow_frames(self, now: float) -> None:
        """Close connections that trickle a frame in; such a peer is never silent."""
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
