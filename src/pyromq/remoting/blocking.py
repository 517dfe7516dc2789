"""A connection for programs without an event loop: a plain socket, one thread.

    with BlockingConnection("127.0.0.1:10911", timeout=10.0) as connection:
        response = connection.request(command)

Several requests may be in flight (`send`); their responses arrive in any order (`receive`). The
body of a response is read from the socket directly into its own buffer. For readers that move
gigabytes, such as Spark tasks; all other code uses `remoting.client`.

Invariants
1. A request ends with its response or with one RemotingError that names the address. After an error
   the connection is closed and cannot be used again.
2. Requests of the server are dropped.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple, Self

import numpy as np

from pyromq.base.sizes import MIB
from pyromq.protocol.wire.frame import (
    HEADER_LENGTH_MASK,
    MAX_FRAME,
    PREFIX,
    PREFIX_SIZE,
    TOTAL_SIZE,
    FrameError,
    RemotingCommand,
    decode_frame,
    pack_prefix,
)
from pyromq.remoting.address import parse_address
from pyromq.remoting.errors import (
    RemotingClosedError,
    RemotingConnectError,
    RemotingTimeoutError,
)
from pyromq.tls.client import ClientTls
from pyromq.tls.errors import describe, describe_connect

_MAX_OPAQUE: Final = 0x7FFFFFFF
#: Holds the bulk responses of one more round trip.
_RECEIVE_BUFFER: Final = 4 * MIB


class Reply(NamedTuple):
    """A response, and its body in a buffer of its own."""

    command: RemotingCommand
    body: memoryview


class BlockingConnection:
    """A connection to a server, for one thread."""

    def __init__(
        self,
        address: str,
        *,
        timeout: float = 10.0,
        tls: ClientTls | None = None,
        sign: Callable[[RemotingCommand], None] | None = None,
    ) -> None:
        """Connect. Raises RemotingConnectError.

        `timeout` applies to connecting and to each wait for the server. `sign` is called with each
        request before it is sent.
        """
        self.address = address
        self._timeout = timeout
        self._sign = sign
        self._opaque = 0
        self._has_heard = False
        host, port = parse_address(address)
        try:
            self._socket = socket.create_connection((host, port), timeout)
        except OSError as error:
            raise RemotingConnectError(address, f"cannot connect to {address}: {error}") from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
            if tls is not None:
                self._socket = tls.wrap(self._socket, host)
        except OSError as error:
            self._socket.close()
            reason = describe_connect(error) if tls is not None else error
            raise RemotingConnectError(address, f"cannot connect to {address}: {reason}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def request(self, command: RemotingCommand) -> RemotingCommand:
        """Send a request and return its response; no other request may be in flight."""
        opaque = self.send(command)
        while True:
            answer, body = self.receive()
            if answer.opaque == opaque:
                answer.body = bytes(body)
                return answer

    def send(self, command: RemotingCommand) -> int:
        """Send a request and return its opaque, which its response will have."""
        self._opaque = command.opaque = (self._opaque + 1) & _MAX_OPAQUE
        if self._sign is not None:
            self._sign(command)
        try:
            self._socket.sendall(command.encode())
        except TimeoutError:
            raise self._timed_out(f"does not read request {command.code}") from None
        except OSError as error:
            raise self._lost(describe(error)) from None
        return command.opaque

    def receive(self) -> Reply:
        """Return the next response."""
        while True:
            total, word = PREFIX.unpack(self._exactly(PREFIX_SIZE))
            header_length = word & HEADER_LENGTH_MASK
            body_length = total + TOTAL_SIZE - PREFIX_SIZE - header_length
            if body_length < 0 or total + TOTAL_SIZE > MAX_FRAME:
                raise self._lost(f"sent a frame of {total} bytes, header {header_length}")
            header = self._exactly(header_length)
            body = self._exactly(body_length)
            try:
                command = decode_frame(pack_prefix(4 + header_length, word) + bytes(header))
            except FrameError as error:
                raise self._lost(f"sent no RocketMQ frame: {error}") from None
            if command.is_response:
                return Reply(command, body)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _exactly(self, size: int) -> memoryview:
        # np.empty does not zero the memory: responses are megabytes long.
        view = np.empty(size, np.uint8).data
        position = 0
        try:
            while position < size:
                count = self._socket.recv_into(view[position:])
                if not count:
                    raise self._lost(self._closed_by_peer())
                position += count
                self._has_heard = True
        except TimeoutError:
            raise self._timed_out(f"was silent for {self._timeout:g} s") from None
        except OSError as error:
            raise self._lost(describe(error)) from None
        return view

    def _closed_by_peer(self) -> str:
        """Return how the peer closed; one that enforces TLS answers nothing to a plain client."""
        if self._has_heard or isinstance(self._socket, ssl.SSLSocket):
            return "closed the connection"
        return "closed the connection; it answered nothing and may want TLS"

    def _timed_out(self, what: str) -> RemotingTimeoutError:
        self.close()
        return RemotingTimeoutError(self.address, f"{self.address} {what}")

    def _lost(self, what: str) -> RemotingClosedError:
        self.close()
        return RemotingClosedError(self.address, f"connection to {self.address} was lost: {what}")
