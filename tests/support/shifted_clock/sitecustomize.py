"""Shifts the wall clock of a child process: its parent writes by how much, at any moment.

Python imports this module at its start if this folder is in PYTHONPATH. The file that
PYROMQ_TEST_CLOCK names holds the shift in nanoseconds, as a little-endian i64; `ShiftedClock` in
tests/support/replication_faults.py writes it. Monotonic clocks stay as they are.
"""

from __future__ import annotations

import mmap
import os
import struct
import time


def _shift_clock(path: str) -> None:
    with open(path, "rb") as file:
        shift = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)
    real, read = time.time_ns, struct.Struct("<q").unpack_from

    def time_ns() -> int:
        return int(real() + read(shift)[0])

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


if _path := os.environ.get("PYROMQ_TEST_CLOCK"):
    _shift_clock(_path)
