"""pyromq as a child process, with the attributes of `ApacheRocketMQ`: tests run against either.

Called by the interop tests; every call blocks.
"""

from __future__ import annotations

import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.patience import PATIENT_PROPERTIES

_NAMESRV_LINE = re.compile(r"The Name Server boot success.* listening on \S+:(\d+)")
_BROKER_LINE = re.compile(r"The broker\[(\S+), (\S+)\] boot success")
_START_SECONDS = 150.0


class PyromqServer:
    """pyromq on free ports for as long as the `with` block runs.

    `pyromq standalone`, or only the NameServer (`namesrv_only`), or only a broker that registers
    at the NameServer at `namesrv_address`. `broker_properties` are settings of the broker,
    `namesrv_properties` those of a NameServer alone. After
    start(): `namesrv_address`, and with a broker `broker_address` and `broker_name`, the first
    one's if standalone runs several `brokers`. A store given by the caller stays; another one is
    deleted with the server.
    """

    def __init__(
        self,
        *,
        store: Path | None = None,
        namesrv_only: bool = False,
        namesrv_address: str = "",
        broker_properties: Mapping[str, str] | None = None,
        namesrv_properties: Mapping[str, str] | None = None,
        brokers: int = 1,
    ) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="pyromq-interop-"))
        self.store = store or self._scratch / "store"
        self._log = self._scratch / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.namesrv_address = namesrv_address
        self.broker_address = ""
        self.broker_name = ""
        self._runs_broker = not namesrv_only
        config = self._scratch / "properties"
        if namesrv_only:
            self._command = ["namesrv", "--port", "0", "-c", str(config)]
            config.write_text(f"kvConfigPath={self._scratch / 'kvConfig.json'}\n")
        elif namesrv_address:
            self._command = ["broker", "-n", namesrv_address, "-c", str(config)]
            config.write_text(f"listenPort=0\nbrokerIP1=127.0.0.1\nstorePathRootDir={self.store}\n")
        else:
            self._command = ["standalone", "--namesrv-port", "0", "--broker-port", "0"]
            self._command += ["--data", str(self.store), "-c", str(config)]
            self._command += ["--brokers", str(brokers)]
            config.touch()
        properties = dict(namesrv_properties or {})
        if self._runs_broker:
            properties = {**PATIENT_PROPERTIES, **(broker_properties or {})}
        with config.open("a") as file:
            file.writelines(f"{key}={value}\n" for key, value in properties.items())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        finally:
            self.clean_up()

    def start(self) -> None:
        """Start, and read from the boot lines which ports it got."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pyromq", *self._command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_read_lines, args=(self._process, lines), daemon=True).start()
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                self.kill()
                raise AssertionError(f"pyromq did not start:\n{self.log()}")
            if found := _NAMESRV_LINE.search(line):
                self.namesrv_address = f"127.0.0.1:{found[1]}"
                if not self._runs_broker:
                    return
            elif found := _BROKER_LINE.search(line):
                self.broker_name, self.broker_address = found[1], found[2]
                return

    def stop(self) -> None:
        """End it as an operator would; it must end by itself and in peace."""
        code = self._end(signal.SIGTERM)
        assert code in (0, None), f"pyromq ended with exit code {code}:\n{self.log()}"

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def clean_up(self) -> None:
        """End it if it still runs, and delete what it leaves, but not the caller's store."""
        self.kill()
        shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def broker_pid(self) -> int | None:
        """The process that runs it, whatever it runs."""
        return self._process.pid if self._process is not None else None

    def log(self) -> str:
        """The end of what it wrote to its log."""
        return self._log.read_text(errors="replace")[-4000:]

    def _end(self, how: signal.Signals) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.send_signal(how)
        try:
            return process.wait(30.0)
        finally:
            process.kill()
            process.wait()


def _read_lines(process: subprocess.Popen[bytes], lines: queue.SimpleQueue[str | None]) -> None:
    assert process.stdout is not None
    with process.stdout as stream:
        for line in stream:
            lines.put(line.decode(errors="replace"))
    lines.put(None)
