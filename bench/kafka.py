"""Runs Apache Kafka, one broker in KRaft mode, from Maven Central, and its own client as a load.

Kafka runs with default settings and the JVM options of its own start script. Its client batches by
itself, with its default settings and without a limit on the messages in flight; the records have no
key and no headers, all in Kafka's favour. Called by bench/compare.py, bench/load.py and
bench/spark/__main__.py; every call blocks.
"""

from __future__ import annotations

import base64
import signal
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench.answers import LoadError
from bench.cases import KAFKA
from bench.frames import QUEUES
from bench.process import cpu_seconds
from bench.servers import ServerError, needing, wait_until
from tests.interop.java_programs import compiled
from tests.support.apache_rocketmq import ChildProcess, classpath, free_port

VERSION: Final = "4.3.1"
_SOURCES: Final = Path(__file__).parent / "java" / "kafka"

#: The options of kafka-server-start.sh and kafka-run-class.sh.
_JVM_OPTIONS: Final = (
    "-server",
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
_LIMIT_SECONDS: Final = 120.0


def kafka_classpath() -> str:
    """Return the jars of a broker."""
    return classpath(f"org.apache.kafka:kafka_2.13:{VERSION}")


class KafkaServer:
    """A broker that is its own controller, with its files in a directory."""

    name = KAFKA
    replica_pids: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.port = 0
        self._log = Path()
        self._child: ChildProcess | None = None

    @property
    def address(self) -> str:
        """Return the address for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Return the pid of the broker."""
        assert self._child is not None
        return self._child.process.pid

    def prepare(self) -> None:
        """Fetch the jars and compile the client."""
        with needing("java", "javac"):
            kafka_classpath()
            _program()

    def start(self, data: Path) -> int:
        """Format the directory and start the process; return its pid, without waiting."""
        data.mkdir(parents=True, exist_ok=True)
        self.port, controller = free_port(), free_port()
        settings = data / "server.properties"
        settings.write_text(
            "process.roles=broker,controller\n"
            "node.id=1\n"
            f"controller.quorum.bootstrap.servers=127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=PLAINTEXT://{self.address},"
            f"CONTROLLER://127.0.0.1:{controller}\n"
            "controller.listener.names=CONTROLLER\n"
            f"log.dirs={data / 'logs'}\n"
            f"num.partitions={QUEUES}\n"
            "offsets.topic.replication.factor=1\n"
            "transaction.state.log.replication.factor=1\n"
            "transaction.state.log.min.isr=1\n"
        )
        java = ["java", *_JVM_OPTIONS, "-cp", kafka_classpath()]
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        formatted = subprocess.run(
            [
                *(*java, "kafka.tools.StorageTool", "format", "--standalone"),
                *("--cluster-id", cluster, "--config", str(settings)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if formatted.returncode != 0:
            raise ServerError(formatted.stdout + formatted.stderr)
        self._log = data / "output.log"
        self._child = ChildProcess(self.name, [*java, "kafka.Kafka", str(settings)], self._log)
        return self.pid

    def wait_until_ready(self, pid: int) -> None:
        """Wait until the broker accepts connections."""
        wait_until(self, pid, lambda: socket.create_connection(("127.0.0.1", self.port)).close())

    def create_topics(self, topics: Iterable[str]) -> None:
        """Do nothing: Kafka creates topics when a client asks for them."""

    def stored(self, topic: str) -> int:
        """Return the number of messages of a topic."""
        return int(subprocess.check_output(_command("stored", self.port, topic), text=True))

    def check(self, sent: int) -> None:
        """Do nothing: there is no index of keys."""

    def output(self) -> str:
        """Return the end of the output."""
        return self._log.read_text(errors="replace")[-3000:] if self._log.is_file() else ""

    def stop(self) -> None:
        """Stop the process."""
        child, self._child = self._child, None
        if child is not None:
            child.end(signal.SIGTERM, _LIMIT_SECONDS)


class KafkaLoad:
    """A process with Kafka's client, which sends or receives as many messages as it is asked to."""

    unit = 1

    def __init__(self, kind: str, port: int, topic: str, body_size: int) -> None:
        command = _command(kind, port, topic, str(body_size))
        self._latencies: tuple[float, ...] = ()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, messages: int) -> None:
        """Send or receive messages; return when the client reports the last."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(_LIMIT_SECONDS, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(f"{messages}\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise LoadError("Kafka's client failed, or took too long")
        self._latencies = tuple(int(each) / 1e6 for each in line.split())

    def forget(self) -> int:
        """Do nothing: a refused message ends the client."""
        return 0

    def results(self) -> tuple[tuple[float, ...], int, int]:
        """Return the latencies of the last call of `run`."""
        return self._latencies, 0, 0

    def cpu(self) -> float:
        """Return the client's CPU time."""
        return cpu_seconds(self._process.pid)


def _command(kind: str, port: int, *arguments: str) -> list[str]:
    return ["java", "-cp", _program(), "KafkaBench", kind, f"127.0.0.1:{port}", *arguments]


def _program() -> str:
    quiet = "org.slf4j:slf4j-nop:1.7.36"
    return compiled(_SOURCES, f"org.apache.kafka:kafka-clients:{VERSION}", quiet)
