"""After `keep_memory`, pieces of megabytes cost no page faults but the first time."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from pyromq.store.heap import keep_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [b"x" * 9_000_000 for _ in range(4)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if {keeping}:
    assert keep_memory()
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are not told")
def test_faults_are_gone() -> None:
    def faults(keeping: bool) -> int:
        program = PROGRAM.format(keeping=keeping)
        done = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        )
        return int(done.stdout)

    assert faults(keeping=True) * 10 < faults(keeping=False)
