"""Runs Apache Kafka, one broker in KRaft mode; fetches it and Spark's connector from Maven Central.

    with KafkaBroker(directory) as kafka:
        read_from(kafka.address)

Kafka runs with default settings and the JVM options of its own start script. Called by
bench/spark/__main__.py; every call blocks.
"""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench.spark.cases import QUEUES
from tests.support.apache_rocketmq import ChildProcess, classpath, free_port

KAFKA_VERSION: Final = "4.3.1"
#: The newest version on Maven Central; it also runs on Spark 4.3.
CONNECTOR_VERSION: Final = "4.2.0"
#: The connector's dependencies that Spark does not contain. The token provider is not available
#: in the same version.
CONNECTOR: Final = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)

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


class KafkaError(RuntimeError):
    """Kafka did not start; the text is the end of its output."""


def connector_jars() -> list[str]:
    """Return the jars that a session needs for the format "kafka"."""
    return classpath(*CONNECTOR, is_whole=True).split(os.pathsep)


def kafka_classpath() -> str:
    """Return the jars of a broker."""
    return classpath(f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}")


class KafkaBroker:
    """A broker that is its own controller, with its files in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._child: ChildProcess | None = None
        self.address = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Return the pid of the broker."""
        assert self._child is not None
        return self._child.process.pid

    def start(self) -> None:
        """Format the directory, start the process, wait until it accepts connections."""
        self._directory.mkdir(parents=True, exist_ok=True)
        port, controller = free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        settings = self._directory / "server.properties"
        settings.write_text(
            "process.roles=broker,controller\n"
            "node.id=1\n"
            f"controller.quorum.bootstrap.servers=127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=PLAINTEXT://{self.address},"
            f"CONTROLLER://127.0.0.1:{controller}\n"
            "controller.listener.names=CONTROLLER\n"
            f"log.dirs={self._directory / 'logs'}\n"
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
            raise KafkaError(formatted.stdout + formatted.stderr)
        log = self._directory / "output.log"
        self._child = ChildProcess("kafka", [*java, "kafka.Kafka", str(settings)], log)
        deadline = time.monotonic() + _LIMIT_SECONDS
        while not self._accepts(port):
            if self._child.process.poll() is not None or time.monotonic() > deadline:
                raise KafkaError(f"Kafka did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop the process."""
        child, self._child = self._child, None
        if child is not None:
            child.end(signal.SIGTERM, _LIMIT_SECONDS)

    @staticmethod
    def _accepts(port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0
