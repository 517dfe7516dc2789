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


def _slowed(fsync: Callable[[Any], None], file: Path) -> Callable[[Any], None]:
    def slow(descriptor: Any) -> None:
        try:
            seconds = float(file.read_text() or 0)
        except FileNotFoundError:
            seconds = 0.0
        time.sleep(seconds)
        fsync(descriptor)

    return slow


if __name__ == "__main__":
    timing = json.loads(sys.argv.pop(1))
    pyromq.cli.broker.Broker = functools.partial(  # type: ignore[misc,assignment]
        Broker, raft_timing=timing
    )
    if SLOW_DISK in os.environ:
        slow_file = Path(os.environ[SLOW_DISK])
        os.fsync = _slowed(os.fsync, slow_file)
        os.fdatasync = _slowed(os.fdatasync, slow_file)
    main()
