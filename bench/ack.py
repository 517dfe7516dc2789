"""A program that acknowledges sends and stores nothing: the ceiling of the load generator.

`python -m bench.ack PORT` answers every request with a prepared response, found by the opaques of
the first and last request in a chunk. A contender whose rate comes near this one's is limited by
the generator. All requests of a connection have the same length, as bench/frames.py makes them.
Started by bench/compare.py.
"""

from __future__ import annotations

import select
import signal
import socket
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bench.cases import ACK
from bench.frames import OPAQUE_BASE, command
from bench.servers import REPOSITORY, wait_until
from tests.support.apache_rocketmq import ChildProcess, free_port

_RESPONSES: Final = 16_384
_BUFFER: Final = 1 << 20
_OPAQUE: Final = b'"opaque":'
_OPAQUE_DIGITS: Final = 6
_STOP_SECONDS: Final = 10.0


class AckServer:
    """The program as a contender."""

    name = ACK
    replica_pids: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.port = 0
        self._log = Path()
        self._child: ChildProcess | None = None

    def prepare(self) -> None:
        """Do nothing."""

    def start(self, data: Path) -> int:
        """Start the process."""
        data.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._log = data / "output.log"
        command_line = [sys.executable, "-m", "bench.ack", str(self.port)]
        self._child = ChildProcess(
            self.name, command_line, self._log, {"PYTHONPATH": str(REPOSITORY)}
        )
        return self._child.process.pid

    def wait_until_ready(self, pid: int) -> None:
        """Wait until it accepts connections."""
        wait_until(self, pid, lambda: socket.create_connection(("127.0.0.1", self.port)).close())

    def create_topics(self, topics: Iterable[str]) -> None:
        """Do nothing."""

    def stored(self, topic: str) -> None:
        """Return None: nothing is stored."""

    def check(self, sent: int) -> None:
        """Do nothing."""

    def output(self) -> str:
        """Return the end of the output."""
        return self._log.read_text(errors="replace")[-2000:] if self._log.is_file() else ""

    def stop(self) -> None:
        """Stop the process."""
        child, self._child = self._child, None
        if child is not None:
            child.end(signal.SIGTERM, _STOP_SECONDS)


def main() -> None:
    """Serve until killed."""
    with (
        socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener,
        select.epoll() as poll,
    ):
        serve(listener, poll)


def serve(listener: socket.socket, poll: select.epoll) -> None:
    """Accept connections and answer their requests."""
    poll.register(listener, select.EPOLLIN)
    connections: dict[int, Connection] = {}
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == listener.fileno():
                connection = Connection(listener.accept()[0])
                connections[connection.socket.fileno()] = connection
                poll.register(connection.socket, select.EPOLLIN)
            elif not connections[descriptor].answer():
                poll.unregister(descriptor)
                connections.pop(descriptor).socket.close()


class Connection:
    """A connection: the bytes that arrived, the length of its requests."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._length = 0  # of a request
        self._opaque_at = 0  # in a request

    def answer(self) -> bool:
        """Read what arrived and answer all complete requests; return False at the end."""
        try:
            got = self.socket.recv_into(self._view[self._filled :])
        except ConnectionResetError:
            return False
        self._filled += got
        if not self._length and self._filled >= 4:
            self._length = 4 + int(struct.unpack_from(">I", self._buffer)[0])
        if not got or not self._length:
            return bool(got)
        count, rest = divmod(self._filled, self._length)
        if count:
            self._send(count)
            if rest:
                self._buffer[:rest] = self._buffer[self._filled - rest : self._filled]
            self._filled = rest
        return True

    def _send(self, count: int) -> None:
        first, last = self._slot(0), self._slot(count - 1)
        data, size = _RESPONSE_BYTES, _RESPONSE_SIZE
        if last >= first:
            self.socket.sendall(data[first * size : (last + 1) * size])
        else:  # the ring started again
            before = count - last - 1
            self.socket.sendall(data[first * size : (first + before) * size])
            self.socket.sendall(data[: (last + 1) * size])

    def _slot(self, number: int) -> int:
        if not self._opaque_at:
            self._opaque_at = self._buffer.index(_OPAQUE) + len(_OPAQUE)
        start = number * self._length + self._opaque_at
        return int(self._buffer[start : start + _OPAQUE_DIGITS]) - OPAQUE_BASE


def _responses() -> tuple[memoryview, int]:
    """Build a broker's response for every opaque; return them back to back, and their size."""
    fields = {"queueId": "1", "msgId": "7F00000100002A9F" + 16 * "0", "queueOffset": "1234567"}
    built = [command(0, fields, b"", OPAQUE_BASE + slot) for slot in range(_RESPONSES)]
    return memoryview(b"".join(built)), len(built[0])


_RESPONSE_BYTES, _RESPONSE_SIZE = _responses()


if __name__ == "__main__":
    main()
