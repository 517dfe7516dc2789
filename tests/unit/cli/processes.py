"""`pyromq` as a child process, always ended with the test."""

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
    """A running command and what it has printed."""

    def __init__(self, process: subprocess.Popen[bytes], output: int) -> None:
        self.process = process
        self._output = output
        self.printed = ""

    def wait_for(self, text: str) -> str:
        """All that was printed, as soon as `text` is in it."""
        deadline = time.monotonic() + DEADLINE
        while text not in self.printed:
            if not self._read(deadline):
                raise AssertionError(f"{text!r} did not come, this did: {self.printed}")
        return self.printed

    def end(self, number: int = signal.SIGINT) -> int:
        """The exit code after this signal."""
        self.process.send_signal(number)
        return self.exit_code()

    def exit_code(self) -> int:
        """The exit code of a process that ends by itself."""
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
    """`pyromq` with these arguments; stdout and stderr are read as one."""
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
