"""Pairs of any kind: masters and replicas of pyromq and of Java behind one interface, `Node`.

    with name_server() as namesrv, pair("pyromq", "java", tmp_path, namesrv) as (master, replica):
        ...
        replica.wait_for_log_end(master.log_end())
        master.stop()
        replica.stop()
        assert_same_logs(master.store, replica.store)      # tests/support/log_compare.py

pyromq's brokers are child processes (`pyromq broker -c FILE`) of this tree. `Node` and what Java's
replicas need to know are in tests/support/java_pair.py. Called by tests and the benchmark, on any
thread; every call blocks.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Literal

from tests.support.apache_rocketmq import ChildProcess, accepts, free_port, java_or_skip
from tests.support.java_pair import JavaNode, Node, NodeError, NodeSettings, Role

Kind = Literal["java", "pyromq"]
REPOSITORY: Final = Path(__file__).resolve().parents[2]
_STOP_SECONDS: Final = 30.0
_START_SECONDS: Final = 60.0


class PyromqNode(Node):
    """A broker of pyromq, of this tree or another one."""

    kind = "pyromq"

    def __init__(
        self,
        settings: NodeSettings,
        *,
        tree: Path = REPOSITORY,
        is_pure: bool = False,
        log_level: str = "INFO",
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", "pyromq"),
    ) -> None:
        """`environment` has more variables of the process, or other values.

        `program` is what Python runs: pyromq, or something that takes its arguments.
        """
        super().__init__(settings)
        self._program = program
        self._environment = pyromq_environment(tree, is_pure=is_pure) | dict(environment or {})
        self._log_level = log_level
        self._child: ChildProcess | None = None
        self._starts = 0

    @property
    def pid(self) -> int | None:
        """The Python process."""
        return self._child.process.pid if self._child is not None else None

    def log(self) -> str:
        """Return what it printed."""
        file = self._log_file()
        return file.read_text(errors="replace") if file.exists() else ""

    def has_ended(self) -> bool:
        """Ask the system."""
        return self._child is not None and self._child.process.poll() is not None

    def _launch(self) -> None:
        self._starts += 1
        config = self.directory / "broker.properties"
        config.write_text(
            "".join(f"{key}={value}\n" for key, value in self.all_properties().items())
        )
        command = [sys.executable, *self._program, "broker", "-c", str(config)]
        command += ["-n", self.settings.namesrv, "--log-level", self._log_level]
        self._child = ChildProcess(str(self), command, self._log_file(), self._environment)

    def _log_file(self) -> Path:
        return self.directory / f"broker-{self._starts}.log"

    def _end(self, how: signal.Signals) -> None:
        child, self._child = self._child, None
        assert child is not None
        if not child.end(how, _STOP_SECONDS):
            raise NodeError(
                f"{self} did not stop within {_STOP_SECONDS:g} s; it was killed:\n"
                f"{self.log()[-4000:]}"
            )
        if how is signal.SIGTERM and child.process.returncode:
            raise NodeError(
                f"{self} ended with exit code {child.process.returncode}:\n{self.log()[-4000:]}"
            )


def pyromq_environment(tree: Path = REPOSITORY, *, is_pure: bool = False) -> dict[str, str]:
    """Return the variables with which a child process runs the pyromq of a tree."""
    return {
        "PYTHONPATH": str(tree / "src"),
        "PYROMQ_PURE": "1" if is_pure else "",
        "PYTHONDONTWRITEBYTECODE": "",  # as after an installation
    }


@contextmanager
def name_server(environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a NameServer of pyromq, which brokers of any kind register at; yield its address."""
    address = f"127.0.0.1:{(port := free_port())}"
    with tempfile.TemporaryDirectory(prefix="pyromq-namesrv-") as scratch:
        config = Path(scratch, "namesrv.properties")
        config.write_text(f"kvConfigPath={Path(scratch, 'kvConfig.json')}\n")
        command = [sys.executable, "-m", "pyromq", "namesrv", "--port", str(port)]
        log = Path(scratch, "log")
        child = ChildProcess(
            "NameServer", [*command, "-c", str(config)], log, environment or pyromq_environment()
        )
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not accepts(address):
                if child.process.poll() is not None or time.monotonic() > deadline:
                    raise NodeError(f"the NameServer did not start:\n{log.read_text()}")
                time.sleep(0.02)
            yield address
        finally:
            child.end(signal.SIGTERM, _STOP_SECONDS)


def make_node(kind: Kind, settings: NodeSettings) -> Node:
    """Return a node that does not run yet. Skips the test if it needs Java and there is none."""
    if kind == "java":
        java_or_skip()
        return JavaNode(settings)
    return PyromqNode(settings)


@contextmanager
def pair(
    master: Kind,
    replica: Kind,
    directory: Path,
    namesrv: str,
    *,
    role: Role = Role.SYNC_MASTER,
    ha_master_address: str = "",
    **properties: str,
) -> Iterator[tuple[Node, Node]]:
    """Run a master and its replica, both with these settings; kill them at the end.

    `ha_master_address` is what the replica connects to instead of the master's own address.
    """
    first = make_node(
        master, NodeSettings(directory / "master", namesrv, role, properties=properties)
    )
    second = make_node(
        replica,
        NodeSettings(
            directory / "replica",
            namesrv,
            Role.SLAVE,
            ha_master_address=ha_master_address,
            properties=properties,
        ),
    )
    with ExitStack() as stack:
        stack.enter_context(first)
        stack.enter_context(second)
        yield first, second
