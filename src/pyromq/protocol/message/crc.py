"""CRC-32 of records and registrations, hardware-accelerated where possible.

`crc32` comes from `isal`, Intel's library. It takes a third of the time of zlib for a message of
256 bytes, and a quarter for larger ones (with PCLMULQDQ or PMULL instructions). Without a wheel for
the platform, zlib's function is used; results are the same.

Pure; callable from any thread.
"""

from __future__ import annotations

from typing import Final

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["CRC_MASK", "crc32"]

#: A record stores 31 bits, because Java has no unsigned integers.
CRC_MASK: Final = 0x7FFFFFFF
