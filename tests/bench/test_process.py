from __future__ import annotations

import os
import subprocess
import sys

from bench.process import cpu_seconds, memory_mib


def test_time_and_memory_of_descendants_are_counted() -> None:
    work = "data = b'x' * (64 << 20); sum(range(10**7))"
    script = f"import sys; {work}; print(flush=True); sys.stdin.read()"
    before_cpu, before = cpu_seconds(os.getpid()), memory_mib(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        of_child = cpu_seconds(child.pid)
        assert of_child > 0
        # Both sides are sums of clock ticks as floats: half a tick is left for their rounding.
        assert cpu_seconds(os.getpid()) > before_cpu + of_child - 0.005
        assert memory_mib(os.getpid())["anonymous_mib"] > before["anonymous_mib"] + 60
        child.communicate()


def test_several_processes_are_measured_together() -> None:
    mine = os.getpid()
    alone, twice = cpu_seconds(mine), cpu_seconds(mine, mine)
    assert twice >= 2 * alone
    assert memory_mib(mine, mine)["rss_mib"] > 1.9 * memory_mib(mine)["rss_mib"]


def test_resident_memory_is_the_sum_of_its_parts() -> None:
    memory = memory_mib(os.getpid())
    assert memory["rss_mib"] >= memory["anonymous_mib"] + memory["file_mib"] - 0.1
