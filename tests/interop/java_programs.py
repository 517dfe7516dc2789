"""Compiles and runs the small Java programs of these tests, on the real Maven artifacts.

Called by the interop tests and by tests/golden/capture.py, on any thread; every call blocks.
Nothing of pyromq is imported: what Java says must not depend on what is being judged.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.apache_rocketmq import CACHE, VERSION, classpath

CLIENT = f"org.apache.rocketmq:rocketmq-client:{VERSION}"
BROKER = f"org.apache.rocketmq:rocketmq-broker:{VERSION}"
TOOLS = f"org.apache.rocketmq:rocketmq-tools:{VERSION}"

INTEROP_SOURCES = Path(__file__).parent / "java"

#: Small and quick to start: these programs live for seconds.
JVM_OPTIONS = (
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dfile.encoding=UTF-8",
    # Rebalancing every second instead of every twenty.
    "-Drocketmq.client.rebalance.waitInterval=1000",
    "-Drocketmq.client.logLevel=WARN",
    *(
        f"--add-{how}=java.base/{package}=ALL-UNNAMED"
        for how in ("exports", "opens")
        for package in ("java.nio", "sun.nio.ch", "jdk.internal.ref")
    ),
)

Line = dict[str, Any]


def javac_or_skip() -> None:
    """Skip the running test without a Java compiler; fail it in CI."""
    import pytest

    if shutil.which("javac") is None:
        reason = "javac not found on PATH: a JDK is needed to build the Java client program"
        if os.environ.get("CI") == "true":
            pytest.fail(reason + " (CI=true: a skip is a failure)")
        pytest.skip(reason)


def compiled(directory: Path, *artifacts: str) -> str:
    """Return the class path that runs the programs in `directory`, compiled unless they are."""
    sources = sorted(directory.glob("*.java"))
    libraries = classpath(*artifacts)
    digest = hashlib.sha256(libraries.encode())
    for source in sources:
        digest.update(source.read_bytes())
    classes = CACHE / "classes" / digest.hexdigest()[:16]
    classes.parent.mkdir(parents=True, exist_ok=True)
    with (classes.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not classes.exists():
            fresh = Path(tempfile.mkdtemp(dir=classes.parent))
            done = subprocess.run(
                ["javac", "-nowarn", "-encoding", "UTF-8", "-cp", libraries, "-d", fresh, *sources],
                check=False,
                capture_output=True,
                text=True,
            )
            if done.returncode != 0:
                shutil.rmtree(fresh)
                raise RuntimeError(f"javac refused {directory}:\n{done.stderr[-3000:]}")
            # Netty logs at DEBUG to standard output unless someone says otherwise.
            (fresh / "logback.xml").write_text('<configuration><root level="OFF"/></configuration>')
            fresh.rename(classes)
    return f"{classes}{os.pathsep}{libraries}"


class JavaProgram:
    """One run of a program's main class, which prints one JSON object per line.

    `lines()` waits for the end; `wait_for(event)` for a line `{"event": event}`. Leaving the
    `with` block ends the process if it still runs.
    """

    def __init__(
        self, class_path: str, main: str, arguments: Sequence[str], options: Iterable[str] = ()
    ) -> None:
        self._home = tempfile.mkdtemp(prefix="java-program-")
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._printed: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._seen: list[Line] = []
        self.command = f"{main} {' '.join(arguments)}"
        self.process = subprocess.Popen(
            [
                "java",
                *JVM_OPTIONS,
                f"-Duser.home={self._home}",
                f"-Drocketmq.client.logRoot={self._home}",
                *options,
                "-cp",
                class_path,
                main,
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._stderr.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def wait_for(self, event: str, timeout: float = 150.0) -> None:
        """Block until the program reports the event; fail when it ends or takes too long."""
        deadline = time.monotonic() + timeout
        while (line := self._next(deadline)) is not None:
            if line.get("event") == event:
                return
            self._seen.append(line)
        raise AssertionError(f"{self.command} ended before {event!r}: {self._errors()}")

    def lines(self, timeout: float = 150.0, expected_code: int = 0) -> list[Line]:
        """Wait for the end; return all lines but events. The exit code must be the expected one."""
        deadline = time.monotonic() + timeout
        while (line := self._next(deadline)) is not None:
            self._seen.append(line)
        code = self.process.wait(timeout=max(0.1, deadline - time.monotonic()))
        messages = [line for line in self._seen if "event" not in line]
        if code != expected_code:
            raise AssertionError(
                f"{self.command} ended with exit code {code} instead of {expected_code} "
                f"after {len(messages)} lines: {self._errors()}"
            )
        return messages

    def _next(self, deadline: float) -> Line | None:
        try:
            return self._printed.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise AssertionError(f"{self.command} took too long: {self._errors()}") from None

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._printed.put(json.loads(line))
        self._printed.put(None)

    def _errors(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read()[-3000:].decode(errors="replace")


def run_program(
    class_path: str, main: str, arguments: Sequence[str], options: Iterable[str] = ()
) -> list[Line]:
    """Run a program to its end; return what it printed."""
    with JavaProgram(class_path, main, arguments, options) as program:
        return program.lines()


def interop_client(*arguments: str, options: Iterable[str] = ()) -> JavaProgram:
    """Start tests/interop/java/InteropClient.java; see there for its commands."""
    return JavaProgram(compiled(INTEROP_SOURCES, CLIENT), "InteropClient", arguments, options)
