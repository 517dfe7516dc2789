"""Apache RocketMQ and pyromq, started as users start them, in their own processes.

Both write below the given directory. The benchmark measures the broker's process: without Java's
NameServer, a separate process, but with pyromq's, which is part of the broker's. pyromq runs from
the sources of a tree, so two trees can be compared. Called by bench/__main__.py and by the cases
that start servers themselves.
"""

from __future__ import annotations

import shutil
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import orjson

from bench.cases import JAVA, PYROMQ
from bench.frames import QUEUES, create_topic_request, max_offset_request, send_ring
from tests.support.apache_rocketmq import (
    VERSION,
    ApacheRocketMQ,
    ChildProcess,
    classpath,
    free_port,
)
from tests.support.downloads import DownloadError

#: The options of RocketMQ's runbroker.sh for Java 9 and later, with a smaller heap than its 8 GiB
#: to leave room for the page cache, and without AlwaysPreTouch, which would slow down Java's start
#: and inflate its memory.
JAVA_OPTIONS = (
    "-server",
    "-Xms4g",
    "-Xmx4g",
    "-Xmn2g",
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:MaxDirectMemorySize=15g",
)

_START_LIMIT_SECONDS = 90.0
_STOP_LIMIT_SECONDS = 30.0
_POLL_SECONDS = 0.002
_INDEX_LIMIT_SECONDS = 30.0
REPOSITORY = Path(__file__).resolve().parents[1]
_INDEX_HEAD_SIZE = 40
_INDEX_COUNT_AT = 36
_FIRST_SEND_TOPIC = "BenchmarkFirst"


class ServerError(RuntimeError):
    """A server did not start, did not respond, or responded wrongly."""


class NotInstalledError(ServerError):
    """A contender cannot be had on this machine; the text says why."""


class System(Protocol):
    """A system under test: one process, or one with its replicas."""

    name: str
    port: int
    #: Processes that are measured together with the one that `start` returns.
    replica_pids: tuple[int, ...]

    def prepare(self) -> None:
        """Install the system. Raises NotInstalledError."""

    def start(self, data: Path) -> int:
        """Start the processes and return the pid to measure, without waiting."""

    def wait_until_ready(self, pid: int) -> None:
        """Block until the system accepts messages."""

    def create_topics(self, topics: Iterable[str]) -> None:
        """Create topics with QUEUES queues."""

    def stored(self, topic: str) -> int | None:
        """Return the number of messages of a topic, or None if the system does not know."""

    def check(self, sent: int) -> None:
        """Check what the system knows of all messages; raise ServerError."""

    def output(self) -> str:
        """Return the end of the processes' output."""

    def stop(self) -> None:
        """Stop all processes."""


class Server:
    """A RocketMQ broker under test: what Java's and pyromq's have in common."""

    def __init__(self, name: str, settings: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.port = 0
        self.replica_pids: tuple[int, ...] = ()
        self.namesrv = ""
        self.store = Path()  # root of RocketMQ's store layout
        self._settings = dict(settings or {})

    def prepare(self) -> None:
        """Install the server."""

    def start(self, data: Path) -> int:
        """Start the processes and return the pid to measure, without waiting."""
        raise NotImplementedError

    def wait_until_ready(self, pid: int) -> None:
        """Wait until a send to a new topic succeeds."""
        wait_for_first_send(self, pid)

    def create_topics(self, topics: Iterable[str]) -> None:
        """Create topics."""
        for topic in topics:
            create_topic(self.port, topic)

    def stored(self, topic: str) -> int:
        """Return the number of messages in all consume queues of a topic."""
        return sum(stored_per_queue(self.port, topic))

    def check(self, sent: int) -> None:
        """Check that both keys of each message, its own and the producer's, are indexed."""
        wait_for_keys(self.name, self.store, (sent + 1) * 2)  # with the first send

    def output(self) -> str:
        """Return the end of the processes' output."""
        raise NotImplementedError

    def log(self) -> str:
        """Return the broker's whole log."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop all processes."""
        raise NotImplementedError


class JavaServer(Server):
    """Apache RocketMQ: a NameServer and a broker, with their default settings."""

    def __init__(
        self,
        log_level: str = "WARN",
        settings: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
    ) -> None:
        """`files` are written below ROCKETMQ_HOME."""
        super().__init__(JAVA, settings)
        self._files = files
        self._log_level = log_level
        self._java: ApacheRocketMQ | None = None

    def prepare(self) -> None:
        """Fetch the jars."""
        with needing("java"):
            for part in ("namesrv", "broker"):
                classpath(f"org.apache.rocketmq:rocketmq-{part}:{VERSION}")

    def start(self, data: Path) -> int:
        """Start both processes together."""
        self.store = data
        self._java = ApacheRocketMQ(
            store=data,
            broker_properties=self._settings,
            jvm_options=JAVA_OPTIONS,
            log_level=self._log_level,
            patient=False,
            files=self._files,
        )
        self._java.start(wait=False)
        self.port = int(self._java.broker_address.rpartition(":")[2])
        self.namesrv = self._java.namesrv_address
        assert self._java.broker_pid is not None
        return self._java.broker_pid

    def output(self) -> str:
        """Return the end of both outputs."""
        return _tail(self._java.output_log) if self._java else ""

    def log(self) -> str:
        """Return the broker's log."""
        return self._java.broker_log.read_text(errors="replace") if self._java else ""

    def stop(self) -> None:
        """Stop both processes."""
        if self._java is not None:
            self._java.stop()
            self._java = None


class PyromqServer(Server):
    """Pyromq: NameServer and broker in one process, as `make run` starts them."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        name: str = PYROMQ,
        tree: Path = REPOSITORY,
        is_pure: bool = False,
    ) -> None:
        super().__init__(name, settings)
        self._process: ChildProcess | None = None
        self._environment = {
            "PYTHONPATH": str(tree / "src"),
            "PYROMQ_PURE": "1" if is_pure else "",
            "PYTHONDONTWRITEBYTECODE": "",  # as after an installation
        }

    def start(self, data: Path) -> int:
        """Start the process."""
        self.port = free_port(-2, 1)
        namesrv_port = free_port()
        self.namesrv = f"127.0.0.1:{namesrv_port}"
        self.store = data / "store"
        data.mkdir(parents=True, exist_ok=True)
        command = [
            str(Path(sys.executable).parent / "pyromq"),
            "standalone",
            "--namesrv-port",
            str(namesrv_port),
            "--broker-port",
            str(self.port),
            "--data",
            str(self.store),
        ]
        if self._settings:
            file = data / "broker.properties"
            file.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
            command += ["-c", str(file)]
        self._process = ChildProcess(
            self.name, command, self.store.with_name("output.log"), self._environment
        )
        return self._process.process.pid

    def output(self) -> str:
        """Return the end of the output."""
        return _tail(self.store.with_name("output.log"))

    def log(self) -> str:
        """Return the whole output."""
        return self.store.with_name("output.log").read_text(errors="replace")

    def stop(self) -> None:
        """Stop the process with SIGTERM, as an operator would."""
        process, self._process = self._process, None
        if process is not None and not process.end(signal.SIGTERM, _STOP_LIMIT_SECONDS):
            raise ServerError(
                f"pyromq did not stop within {_STOP_LIMIT_SECONDS:g} s of SIGTERM; it was killed"
            )


@contextmanager
def needing(*programs: str) -> Iterator[None]:
    """Turn missing programs and failed downloads into NotInstalledError."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        raise NotInstalledError(f"{' and '.join(missing)} not found on PATH")
    try:
        yield
    except FileNotFoundError as error:  # a tool that is needed for a download only
        raise NotInstalledError(f"{error.filename} not found on PATH") from error
    except DownloadError as error:
        raise NotInstalledError(str(error).splitlines()[0]) from error


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:] if log.is_file() else ""


def wait_for_first_send(server: Server, pid: int) -> None:
    """Wait until a send to a new topic succeeds."""
    frame = bytes(send_ring(_FIRST_SEND_TOPIC, 1, 128, 99, int(time.time() * 1000)).data)

    def send() -> None:
        answer = exchange(server.port, frame)
        if answer["code"] != 0:
            raise ConnectionError(str(answer))

    wait_until(server, pid, send)


def wait_until(server: System, pid: int, attempt: Callable[[], None]) -> None:
    """Call a function until it raises no OSError, as long as the process lives."""
    deadline = time.monotonic() + _START_LIMIT_SECONDS
    while True:
        try:
            return attempt()
        except OSError as error:
            last = error
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            raise ServerError(f"{server.name} exited during start-up:\n{server.output()}")
        if time.monotonic() > deadline:
            raise ServerError(
                f"{server.name} accepted no message within {_START_LIMIT_SECONDS:g} s; "
                f"last: {last}\n{server.output()}"
            )
        time.sleep(_POLL_SECONDS)


def create_topic(port: int, topic: str) -> None:
    """Create a topic with the benchmark's number of queues."""
    answer = exchange(port, create_topic_request(topic))
    if answer["code"] != 0:
        raise ServerError(f"creating topic {topic} was refused: {answer}")


def stored_per_queue(port: int, topic: str) -> list[int]:
    """Return the number of messages in each consume queue."""
    counts = []
    for queue in range(QUEUES):
        answer = exchange(port, max_offset_request(topic, queue))
        if answer["code"] != 0:
            raise ServerError(f"max offset of {topic}:{queue} was refused: {answer}")
        counts.append(int(answer["extFields"]["offset"]))
    return counts


def indexed_keys(store: Path) -> int:
    """Return the number of keys in the key index, from its file headers."""
    total = 0
    for file in (store / "index").glob("*"):
        with file.open("rb") as head:
            (count,) = struct.unpack_from(">I", head.read(_INDEX_HEAD_SIZE), _INDEX_COUNT_AT)
        total += max(0, count - 1)  # a file's count starts at 1
    return total


def wait_for_keys(name: str, store: Path, expected: int) -> None:
    """Wait until the key index holds the expected number of keys. Raises ServerError."""
    deadline = time.monotonic() + _INDEX_LIMIT_SECONDS
    while (found := indexed_keys(store)) < expected:
        if time.monotonic() > deadline:
            raise ServerError(f"{name}: the key index holds {found} keys of {expected}")
        time.sleep(0.1)


def exchange(port: int, frame: bytes, timeout: float = 5.0) -> dict[str, Any]:
    """Send a request on a new connection and return the response's header."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout) as connection,
        connection.makefile("rb") as answers,
    ):
        connection.sendall(frame)
        prefix = answers.read(8)
        if len(prefix) < 8:
            raise ConnectionError("closed before the response arrived")
        _, header = struct.unpack(">II", prefix)
        decoded: dict[str, Any] = orjson.loads(answers.read(header & 0xFFFFFF))
        return decoded
