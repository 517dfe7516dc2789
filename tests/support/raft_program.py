"""pyromq's command line with other intervals of raft elections, and a disk that can be slow.

    python tests/support/raft_program.py '{"heartbeat_interval": 300}' broker -c FILE

The intervals are those of `pyromq.raft.member.Settings`, in milliseconds: RocketMQ has no keys for
them. While the file that PYROMQ_TEST_SLOW_DISK names has a number in it, each fsync takes so many
seconds more.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyromq.cli.broker
from pyromq.broker.broker import Broker
from pyromq.cli.main import main

SLOW_DISK = "PYROMQ_TEST_SLOW_DISK"


class _Disk:
    """The system's calls, slowed down."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def slowed(self, call: Callable[[Any], None]) -> Any:
        """Return a call that takes longer while the file says so."""

        def slow(descriptor: Any) -> None:
            time.sleep(self._seconds())
            call(descriptor)

        return slow

    def _seconds(self) -> float:
        try:
            return float(self._file.read_text() or 0)
        except FileNotFoundError:
            return 0.0


if __name__ == "__main__":
    timing = json.loads(sys.argv.pop(1))
    quick = functools.partial(Broker, raft_timing=timing)
    setattr(pyromq.cli.broker, "Broker", quick)  # noqa: B010 - mypy knows no such attribute
    if SLOW_DISK in os.environ:
        disk = _Disk(Path(os.environ[SLOW_DISK]))
        os.fsync, os.fdatasync = disk.slowed(os.fsync), disk.slowed(os.fdatasync)
    main()
