"""Brokers that replicate, each in its own process: what all kinds have in common, and Java's.

    master = JavaNode(NodeSettings(directory / "master", namesrv, Role.SYNC_MASTER))
    replica = JavaNode(NodeSettings(directory / "replica", namesrv, Role.SLAVE))

`tests/support/replication_nodes.py` adds pyromq's. A node has three neighbouring ports for as long
as it exists (listenPort, the fast one two below, the replication port one above) and one
directory: settings, logs and `store`. Both stay when it is stopped or killed, so that start()
brings the same broker back.

Facts of Java 4.9.7 that a test must know: a replica asks for the first time five seconds after it
has connected; an empty one gets the newest segment only; segments must have the same size on both
sides; it learns the master's address when it registers at the NameServer (at start, ten seconds
later, then every thirty), unless `ha_master_address` is set.

Called by tests and the benchmark, on any thread; every call blocks. Nothing of pyromq is
imported, so that the judge shares no code with what it judges.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support.apache_rocketmq import (
    QUICK_JVM_OPTIONS,
    ApacheRocketMQ,
    accepts,
    ask,
    cluster_info,
    free_port,
)
from tests.support.patience import DEADLINE, PATIENT_PROPERTIES, wait_until

#: Fast port and replication port, seen from listenPort.
NEIGHBOURS: Final = (-2, 1)
#: A Java replica may need 30 s to find its master and 5 s to ask; then it copies.
COPY_SECONDS: Final = 3 * DEADLINE
#: Cheap to make, and small enough that tests fill several.
SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": str(4 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 8192),
    "maxHashSlotNum": "4096",
    "maxIndexNum": "65536",
}
_GET_BROKER_RUNTIME_INFO: Final = 28
_POLL_SECONDS: Final = 0.02
_START_SECONDS: Final = 150.0


class Role(StrEnum):
    """The values of brokerRole."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class NodeError(RuntimeError):
    """A node did not start, stop or copy; the text has the end of its log."""


@dataclass(slots=True)
class NodeSettings:
    """Where and as what a node runs. Changes count from its next start on."""

    directory: Path
    namesrv: str
    role: Role = Role.ASYNC_MASTER
    #: 0 is a master's; None makes it 1 for a replica.
    broker_id: int | None = None
    broker_name: str = "pair"
    #: 0 finds free ones.
    port: int = 0
    #: A fixed address to replicate from, such as a proxy's, instead of what the NameServer says.
    ha_master_address: str = ""
    #: Any other settings of the broker.
    properties: Mapping[str, str] = field(default_factory=dict)
    #: Whether the broker refuses nothing because it waited, whatever the machine does.
    patient: bool = True
    #: Whether files are small; else they have RocketMQ's sizes.
    small_files: bool = True


class Node(ABC):
    """A broker of a pair."""

    #: "java" or "pyromq".
    kind: str

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self.port = settings.port or free_port(*NEIGHBOURS)
        self.address = f"127.0.0.1:{self.port}"
        self.ha_address = f"127.0.0.1:{self.port + 1}"
        self.directory = settings.directory
        #: The root of RocketMQ's store layout.
        self.store = settings.directory / "store"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def role(self) -> Role:
        """As what it runs, or will run from the next start on."""
        return self.settings.role

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """The process, or None while it does not run."""

    @property
    def runs(self) -> bool:
        """Whether it was started and not stopped since."""
        return self.pid is not None

    @abstractmethod
    def has_ended(self) -> bool:
        """Return whether the process ended by itself."""

    @abstractmethod
    def log(self) -> str:
        """Return what it has logged since its last start, after a stop since the one before."""

    def start(self, *, wait: bool = True) -> None:
        """Start it on its directory and ports; wait until it serves and is registered."""
        if self.runs:
            raise NodeError(f"{self} runs already")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._launch()
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self.kill()
                raise

    def stop(self) -> None:
        """End it as an operator does, also if it is paused. Raises NodeError if that fails."""
        if self.runs:
            if not self.has_ended():
                self.resume()
            self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash does, also if it is paused."""
        if self.runs:
            self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Make it as silent as one behind a cut cable, until resume()."""
        self._signal(signal.SIGSTOP)
        # One thread takes the signal and stops the others; on a busy machine that takes a while.
        wait_until(self._is_stopped)

    def resume(self) -> None:
        """Let it go on after pause()."""
        self._signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Delete its store, as the loss of its disk does."""
        if self.runs:
            raise NodeError(f"{self} still runs")
        shutil.rmtree(self.store, ignore_errors=True)

    def wait_ready(self) -> None:
        """Block until it accepts connections and the NameServer knows it."""
        deadline = time.monotonic() + _START_SECONDS
        wanted = f'"{self.address}"'.encode()
        while not (accepts(self.address) and wanted in cluster_info(self.settings.namesrv)):
            if self.has_ended():
                raise NodeError(f"{self} ended while starting:\n{self.log()[-4000:]}")
            if time.monotonic() > deadline:
                raise NodeError(
                    f"{self} was not ready within {_START_SECONDS:g} s:\n{self.log()[-4000:]}"
                )
            time.sleep(_POLL_SECONDS)

    def runtime_info(self, timeout: float = DEADLINE) -> dict[str, str]:
        """Return the table of GET_BROKER_RUNTIME_INFO. Raises OSError if it does not answer."""
        deadline = time.monotonic() + DEADLINE
        while True:
            header, body = ask(self.address, _GET_BROKER_RUNTIME_INFO, timeout=timeout)
            if header["code"] == 0:
                break
            # In its first second Java has no statistics yet, and fails on that.
            if time.monotonic() > deadline:
                raise NodeError(f"{self} told nothing about itself: {header}")
            time.sleep(_POLL_SECONDS)
        table: dict[str, str] = json.loads(body)["table"]
        return table

    def log_end(self) -> int:
        """Return the offset after the last byte of its log."""
        return int(self.runtime_info()["commitLogMaxOffset"])

    def dispatch_behind(self) -> int:
        """Return how many bytes of its log are not in consume queues and key index yet."""
        return int(self.runtime_info()["dispatchBehindBytes"])

    def wait_for_log_end(self, offset: int, timeout: float = COPY_SECONDS) -> None:
        """Block until its log reaches an offset and everything in it is dispatched.

        It may be away or restart meanwhile.
        """
        deadline = time.monotonic() + timeout
        last = "it never answered"
        while time.monotonic() < deadline:
            try:
                table = self.runtime_info(timeout=5.0)
            except OSError as error:
                last = str(error)
            else:
                end, behind = int(table["commitLogMaxOffset"]), int(table["dispatchBehindBytes"])
                if end >= offset and behind == 0:
                    return
                last = f"its log ends at {end}, {behind} bytes not dispatched"
            time.sleep(_POLL_SECONDS)
        raise NodeError(
            f"{self} did not reach {offset} within {timeout:g} s: {last}\n{self.log()[-4000:]}"
        )

    def all_properties(self) -> dict[str, str]:
        """Return the settings of its next start."""
        settings = self.settings
        broker_id = settings.broker_id
        if broker_id is None:
            broker_id = 1 if settings.role is Role.SLAVE else 0
        master = settings.ha_master_address
        return {
            **(PATIENT_PROPERTIES if settings.patient else {}),
            **(SMALL_FILES if settings.small_files else {}),
            "brokerClusterName": "DefaultCluster",
            "brokerName": settings.broker_name,
            "brokerId": str(broker_id),
            "brokerRole": str(settings.role),
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": str(self.port),
            "namesrvAddr": settings.namesrv,
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            **({"haMasterAddress": master} if master else {}),
            **settings.properties,
        }

    @abstractmethod
    def _launch(self) -> None:
        """Start the process, without waiting."""

    @abstractmethod
    def _end(self, how: signal.Signals) -> None:
        """End the process and forget it."""

    def _is_stopped(self) -> bool:
        """Whether no thread runs any more."""
        for stat in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with contextlib.suppress(FileNotFoundError):  # a thread that has ended
                if stat.read_text().rpartition(")")[2].split()[0] not in "Tt":
                    return False
        return True

    def _signal(self, how: signal.Signals) -> None:
        # After its end, the pid may belong to someone else.
        if self.pid is None or self.has_ended():
            raise NodeError(f"{self} does not run:\n{self.log()[-4000:]}")
        os.kill(self.pid, how)

    def __str__(self) -> str:
        return f"{self.kind} {self.role} at {self.address}"


class JavaNode(Node):
    """A broker of Apache RocketMQ. Its logs stay in its directory, one per start."""

    kind = "java"

    def __init__(
        self,
        settings: NodeSettings,
        *,
        jvm_options: Sequence[str] = QUICK_JVM_OPTIONS,
        log_level: str = "INFO",
    ) -> None:
        super().__init__(settings)
        self._jvm_options = jvm_options
        self._log_level = log_level
        self._java: ApacheRocketMQ | None = None
        self._starts = 0

    @property
    def pid(self) -> int | None:
        """The JVM."""
        return self._java.broker_pid if self._java is not None else None

    def log(self) -> str:
        """Return Java's log, and what the JVM printed."""
        if self._java is not None:
            files = [self._java.broker_log, self._java.output_log]
        else:
            files = [self.directory / f"broker-{self._starts}.log"]
        return "".join(file.read_text(errors="replace") for file in files if file.exists())

    def has_ended(self) -> bool:
        """Ask the system."""
        return self._java is not None and self._java.has_ended()

    def _launch(self) -> None:
        self._starts += 1
        properties = self.all_properties()
        java = ApacheRocketMQ(
            broker_only=True,
            namesrv_address=self.settings.namesrv,
            broker_name=self.settings.broker_name,
            broker_port=self.port,
            store=self.store,
            broker_properties=properties,
            jvm_options=self._jvm_options,
            log_level=self._log_level,
            patient=False,  # the properties say it already
        )
        java.start(wait=False)
        self._java = java

    def _end(self, how: signal.Signals) -> None:
        java = self._java
        assert java is not None
        text = self.log()
        try:
            if how is signal.SIGTERM:
                java.stop()
            else:
                java.kill()
        finally:
            self._java = None
            (self.directory / f"broker-{self._starts}.log").write_text(text)
