"""Measures CPU time and memory of a process and its descendants, from /proc, and the disk.

Called by bench/__main__.py, bench/load.py, most cases and bench/spark.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_RESTING_SHARE = 0.15  # of a core: an idle Java broker uses 0.05 to 0.1 for its timers
_REST_STEP_SECONDS = 0.5
_REST_LIMIT_SECONDS = 20.0


def cpu_seconds(*pids: int, with_ended: bool = False) -> float:
    """Return user and system time of all threads of these processes, past and present.

    Includes running descendants; `with_ended` adds descendants that have exited.
    """
    members = (member for pid in pids for member in _family(pid))
    return sum(_cpu_ticks(member, with_ended) for member in members) / _TICKS_PER_SECOND


def own_cpu() -> float:
    """Return user and system time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def memory_mib(*pids: int) -> dict[str, float]:
    """Return resident memory of processes: total, anonymous and file-backed."""
    names = {"VmRSS": "rss_mib", "RssAnon": "anonymous_mib", "RssFile": "file_mib"}
    sums = dict.fromkeys(names.values(), 0.0)
    for member in (member for pid in pids for member in _family(pid)):
        for line in Path(f"/proc/{member}/status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key in names:
                sums[names[key]] += int(value.split()[0]) / 1024
    return sums


def wait_until_resting(*pids: int) -> float:
    """Block until the server's processes are idle; return their CPU seconds at that moment.

    Work deferred until after the response (flushing, consume queues, the key index) belongs to the
    messages that caused it, so the CPU time of a case counts until the server is idle. The timers
    of an idle server do not count.
    """
    deadline = time.monotonic() + _REST_LIMIT_SECONDS
    resting = _RESTING_SHARE * _REST_STEP_SECONDS * len(pids)
    before = cpu_seconds(*pids)
    while True:
        time.sleep(_REST_STEP_SECONDS)
        now = cpu_seconds(*pids)
        if now - before <= resting or time.monotonic() > deadline:
            return before
        before = now


def _family(pid: int) -> list[int]:
    members = [pid]
    for member in members:
        for task in Path(f"/proc/{member}/task").iterdir():
            try:
                members += [int(child) for child in (task / "children").read_text().split()]
            except OSError:  # the thread has exited
                continue
    return members


def _cpu_ticks(pid: int, with_ended: bool) -> int:
    # The command's name may contain spaces and brackets: count fields after the last bracket.
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        if with_ended:  # a child that has just exited counts in its parent
            return 0
        raise
    return sum(map(int, fields[11 : 15 if with_ended else 13]))


def syncs_per_second(directory: Path, seconds: float = 2.0, size: int = 20_000) -> float:
    """Return how many appends of a size the disk can fsync per second."""
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
