"""Runs `pyromq` as a child process and kills it at the end of the test."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.patience import DEADLINE


class Pyromq:
    """A running command and its output."""

    def __init__(self, process: subprocess.Popen[bytes], output: int) -> None:
        self.process = process
        self._output = output
        self.printed = ""

    def wait_for(self, text: str) -> str:
        """Wait until the output contains `text`; return the output."""
        deadline = time.monotonic() + DEADLINE
        while text not in self.printed:
            if not self._read(deadline):
                raise AssertionError(f"{text!r} is not in the output: {self.printed}")
        return self.printed

    def end(self, number: int = signal.SIGINT) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.exit_code()

    def exit_code(self) -> int:
        """Wait for the process to exit and return its exit code."""
        deadline = time.monotonic() + DEADLINE
        while self._read(deadline):
            pass
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._output], [], [], max(0, deadline - time.monotonic()))
        try:
            data = os.read(self._output, 65536) if ready else b""
        except OSError:  # a terminal whose other end was closed
            data = b""
        self.printed += data.decode(errors="replace")
        return bool(data)


@contextlib.contextmanager
def running(*arguments: str, directory: Path, terminal: bool = False) -> Iterator[Pyromq]:
    """Run `pyromq` with these arguments; stdout and stderr share one stream."""
    reading, writing = os.openpty() if terminal else os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "pyromq", *arguments],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=writing,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    )
    os.close(writing)
    try:
        yield Pyromq(process, reading)
    finally:
        process.kill()
        process.wait()
        os.close(reading)
