"""TLS for the load generator: a socket that encrypts as the Java client does.

Each request is a TLS record of its own, because Java's client flushes each one; a read decrypts
everything that has arrived. Certificates are not verified: RocketMQ's test mode makes them at the
start. Used by bench/load.py.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
from types import TracebackType
from typing import Any, Final, Self, cast

from bench.answers import STALL_SECONDS, LoadError

#: For the servers of both contenders: plain and TLS connections, with certificates of test mode,
#: which is what Java does without any setting.
SETTINGS: Final = {"tls.server.mode": "permissive", "tls.test.mode.enable": "true"}

_LENGTH: Final = struct.Struct(">I")
#: Bytes of an incomplete record that may be waiting.
_MAX_RECORD: Final = 18 * 1024


class TlsSocket:
    """A connection with the methods of a socket that the generator uses."""

    def __init__(self, port: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self._raw = socket.create_connection(("127.0.0.1", port))
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing)
        while True:
            try:
                self._ssl.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._raw.sendall(self._outgoing.read())
                self._incoming.write(self._raw.recv(65_536))
        self._raw.sendall(self._outgoing.read())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._raw.close()

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._raw.fileno()

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Set an option of the socket."""
        self._raw.setsockopt(level, option, value)

    def setblocking(self, flag: bool) -> None:
        """Set whether the socket blocks."""
        self._raw.setblocking(flag)

    def send(self, frames: memoryview) -> int:
        """Send whole frames, each as a record; return when the socket has them all."""
        position, size = 0, len(frames)
        encrypt, unpack = self._ssl.write, _LENGTH.unpack_from
        while position < size:
            end = position + 4 + unpack(frames, position)[0]
            encrypt(frames[position:end])
            position = end
        records = memoryview(self._outgoing.read())
        while records:
            try:
                records = records[self._raw.send(records) :]
            except BlockingIOError:
                if not select.select((), (self._raw,), (), STALL_SECONDS)[1]:
                    raise LoadError(f"the server read nothing for {STALL_SECONDS:g} s") from None
        return size

    def recv_into(self, target: memoryview) -> int:
        """Read and decrypt what has arrived, at least one record; 0 if the server has closed."""
        count = 0
        while not count:
            try:
                data = self._raw.recv(max(4096, len(target) - _MAX_RECORD))
            except BlockingIOError:
                if not select.select((self._raw,), (), (), STALL_SECONDS)[0]:
                    raise LoadError(f"no response within {STALL_SECONDS:g} s") from None
                continue
            if not data:
                return 0
            self._incoming.write(data)
            try:
                while self._incoming.pending:
                    # With a buffer, it returns a number.
                    count += cast(int, self._ssl.read(_MAX_RECORD, target[count:]))
            except ssl.SSLWantReadError:
                pass
        return count


def connect(port: int, _number: int) -> Any:
    """Return a connection in place of a socket."""
    return TlsSocket(port)
