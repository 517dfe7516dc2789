from __future__ import annotations

import subprocess
import sys
import zlib

from hypothesis import given
from hypothesis import strategies as st

from pyromq.protocol.message import crc

WITHOUT_LIBRARY = """
import sys, zlib
sys.modules["isal"] = None
from pyromq.protocol.message import crc
from pyromq.protocol.message import record
assert crc.crc32 is zlib.crc32
print(record.body_crc(b"123456789"))
"""


@given(st.binary(max_size=5000), st.integers(0, 100))
def test_results_equal_zlib(content: bytes, start: int) -> None:
    assert crc.crc32(content) == zlib.crc32(content)
    assert crc.crc32(memoryview(content)[start:]) == zlib.crc32(content[start:])


def test_zlib_is_the_fallback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIBRARY], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == 0xCBF43926 & crc.CRC_MASK
