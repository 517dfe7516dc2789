"""After `keep_memory`, multi-megabyte buffers cause page faults only the first time."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from pyromq.base.process_memory import keep_memory

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
def test_page_faults_are_gone() -> None:
    def faults(keeping: bool) -> int:
        program = PROGRAM.format(keeping=keeping)
        done = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        )
        return int(done.stdout)

    assert faults(keeping=True) * 10 < faults(keeping=False)


EXCESS = """
import re
from pathlib import Path
from pyromq.base.process_memory import KEPT_BYTES, keep_memory, return_excess

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

assert keep_memory()
before = anonymous()
assert not return_excess()
held = []
for number in range(100):  # kept blocks lie between freed ones
    held.append(bytearray(2_000_000))
    held.append(bytearray(1000))
del held[::2]
assert anonymous() - before > 2 * KEPT_BYTES
assert return_excess()
print(anonymous() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are not asked")
def test_free_memory_between_used_blocks_is_returned() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXCESS], check=True, capture_output=True, text=True
    )
    assert int(done.stdout) < 16 * 1024 * 1024
