"""Runs NATS with JetStream, and speaks its protocol for the load generator.

`nats-server` comes from the Go module proxy and is built into .cache. It runs with its default
settings and one stream in files; publishers wait for the stream's acknowledgements. Messages carry
no headers, in NATS's favour: RocketMQ's carry keys and tags, and the keys are indexed. Called by
bench/compare.py and bench/load.py.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import orjson

from bench.frames import Encoding, Ring, make_ring
from bench.servers import ServerError, needing, wait_until
from tests.support.apache_rocketmq import ChildProcess, free_port
from tests.support.downloads import download

VERSION: Final = "v2.15.2"
_CACHE: Final = Path(__file__).resolve().parents[1] / ".cache" / "nats"
_STREAM: Final = "BENCHMARK"
_PREFIX: Final = "topics"
_LIMIT_SECONDS: Final = 30.0


class NatsError(ServerError):
    """The server refused a request."""


def installed() -> Path:
    """Build the server unless it is there; return its path. Raises NotInstalledError."""
    program = _CACHE / VERSION / "nats-server"
    program.parent.mkdir(parents=True, exist_ok=True)
    with (program.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            with needing("go"):
                download(
                    "nats-server from the Go proxy",
                    ["go", "install", f"github.com/nats-io/nats-server/v2@{VERSION}"],
                    program.parent,
                    {**os.environ, "GOBIN": str(program.parent), "GOFLAGS": "-mod=mod"},
                )
    return program


class NatsServer:
    """One server with JetStream; the subjects of its stream are the benchmark's topics."""

    name = "nats"
    replica_pids: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.port = 0
        self._log = Path()
        self._process: ChildProcess | None = None

    def prepare(self) -> None:
        """Build the server."""
        installed()

    def start(self, data: Path) -> int:
        """Start the process and return its pid, without waiting."""
        self.port = free_port()
        data.mkdir(parents=True, exist_ok=True)
        self._log = data / "output.log"
        command = [
            *(str(installed()), "--jetstream", "--store_dir", str(data)),
            *("--addr", "127.0.0.1", "--port", str(self.port)),
        ]
        self._process = ChildProcess("nats", command, self._log)
        return self._process.process.pid

    def wait_until_ready(self, pid: int) -> None:
        """Create the stream as soon as the server accepts the request."""
        wait_until(self, pid, self._create_stream)

    def create_topics(self, topics: Iterable[str]) -> None:
        """Do nothing: the stream takes all subjects."""

    def stored(self, topic: str) -> int:
        """Return the number of messages on a subject."""
        subject = f"{_PREFIX}.{topic}"
        state = _request(self.port, f"STREAM.INFO.{_STREAM}", {"subjects_filter": subject})["state"]
        return int(state.get("subjects", {}).get(subject, 0))

    def check(self, sent: int) -> None:
        """Do nothing: there is no index of keys."""

    def _create_stream(self) -> None:
        """Create the stream in files, for all subjects of the benchmark."""
        settings = {"name": _STREAM, "subjects": [f"{_PREFIX}.>"], "storage": "file"}
        _request(self.port, f"STREAM.CREATE.{_STREAM}", settings)

    def output(self) -> str:
        """Return the end of the output."""
        return self._log.read_text(errors="replace")[-2000:] if self._log.is_file() else ""

    def stop(self) -> None:
        """Stop the process."""
        process, self._process = self._process, None
        if process is not None:
            process.end(signal.SIGTERM, _LIMIT_SECONDS)


def connect(port: int, number: int) -> socket.socket:
    """Connect and subscribe to the acknowledgements of a connection's messages."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=_LIMIT_SECONDS)
    connection.sendall(
        b'CONNECT {"verbose":false,"headers":true}\r\nSUB _INBOX.%d.* 1\r\nPING\r\n' % number
    )
    greeting = b""
    while not greeting.endswith(b"PONG\r\n"):
        more = connection.recv(65536)
        if not more or b"-ERR" in more:
            raise ConnectionError(f"NATS refused the connection: {greeting + more!r}")
        greeting += more
    return connection


def publish_ring(subject: str, frames: int, body_size: int, connection: int) -> Ring:
    """Build messages whose acknowledgements name their slot."""
    bodies = random.Random(connection)
    return make_ring(
        [
            f"PUB {_PREFIX}.{subject} _INBOX.{connection}.{slot:06d} {body_size}\r\n".encode()
            + bodies.randbytes(body_size)
            + b"\r\n"
            for slot in range(frames)
        ],
        1,
        Encoding.NATS,
    )


def _request(port: int, subject: str, content: dict[str, Any]) -> dict[str, Any]:
    """Send a request to JetStream's API; return the response."""
    body = orjson.dumps(content)
    with connect(port, 0) as connection:
        head = f"PUB $JS.API.{subject} _INBOX.0.1 {len(body)}\r\n"
        connection.sendall(head.encode() + body + b"\r\n")
        with connection.makefile("rb") as lines:
            while not (line := lines.readline()).startswith(b"MSG "):
                if not line:
                    raise ConnectionError("NATS closed the connection")
            answer: dict[str, Any] = orjson.loads(lines.read(int(line.split()[-1])))
    if "error" in answer:
        raise NatsError(f"{subject}: {answer['error']}")
    return answer
