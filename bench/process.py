"""What /proc says of a server: processor time and memory of a process and its descendants;
and what the disk can do.

Called by bench/load.py and bench/__main__.py.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_RESTING_SHARE = 0.15  # of one core: an idle Java broker keeps its timers with 0.05 to 0.1
_REST_STEP_SECONDS = 0.5
_REST_LIMIT_SECONDS = 20.0


def cpu_seconds(pid: int, *, with_ended: bool = False) -> float:
    """User and system time of all threads, living and ended, since the process began.

    Descendants that live count; `with_ended` counts those that have ended, too.
    """
    return sum(_cpu_ticks(member, with_ended) for member in _family(pid)) / _TICKS_PER_SECOND


def memory_mib(pid: int) -> dict[str, float]:
    """Resident memory: all of it, and its anonymous and file-backed parts."""
    names = {"VmRSS": "rss_mib", "RssAnon": "anonymous_mib", "RssFile": "file_mib"}
    sums = dict.fromkeys(names.values(), 0.0)
    for member in _family(pid):
        for line in Path(f"/proc/{member}/status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key in names:
                sums[names[key]] += int(value.split()[0]) / 1024
    return sums


def wait_until_resting(pid: int) -> float:
    """Block until the server has done what it put off; return its CPU seconds when it came to rest.

    Work that a server does after it answered (flushing, consume queues, the key index) belongs
    to the messages that caused it, so the clock of a case runs until the server rests. What it
    spends on its timers while it rests is not counted.
    """
    deadline = time.monotonic() + _REST_LIMIT_SECONDS
    before = cpu_seconds(pid)
    while True:
        time.sleep(_REST_STEP_SECONDS)
        now = cpu_seconds(pid)
        if now - before <= _RESTING_SHARE * _REST_STEP_SECONDS or time.monotonic() > deadline:
            return before
        before = now


def _family(pid: int) -> list[int]:
    members = [pid]
    for member in members:
        for task in Path(f"/proc/{member}/task").iterdir():
            try:
                members += [int(child) for child in (task / "children").read_text().split()]
            except OSError:  # the thread ended meanwhile
                continue
    return members


def _cpu_ticks(pid: int, with_ended: bool) -> int:
    # The command's name may hold blanks and brackets: count fields after its last bracket.
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        if with_ended:  # a child that ended this moment is among its parent's
            return 0
        raise
    return sum(map(int, fields[11 : 15 if with_ended else 13]))


def syncs_per_second(directory: Path, seconds: float = 2.0, size: int = 20_000) -> float:
    """How often the disk can append so many bytes to a file and have them synced."""
    directory.mkdir(parents=True, exist_ok=True)
    data = bytes(size)
    with tempfile.TemporaryFile(dir=directory) as file:
        os.posix_fallocate(file.fileno(), 0, 64 * 1024 * 1024)
        count = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds and (count + 1) * size < 64 * 1024 * 1024:
            os.pwrite(file.fileno(), data, count * size)
            os.fdatasync(file.fileno())
            count += 1
        return count / (time.perf_counter() - began)
