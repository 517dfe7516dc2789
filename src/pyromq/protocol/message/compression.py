"""Decompress message bodies.

sysFlag says whether and how a body is compressed: zlib by default; producers of 5.x may be
configured for LZ4 or ZSTD. These two need the packages `lz4` and `zstandard` (`pip install
'pyromq[compression]'`). Pure.
"""

from __future__ import annotations

import zlib
from typing import Final

from pyromq.protocol.message.sysflag import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZSTD,
)

#: A body that decompresses to more bytes is treated as an attack.
MAX_DECOMPRESSED: Final = 64 * 1024 * 1024
#: Input bytes per call of the ZSTD decompressor.
_ZSTD_INPUT_SIZE: Final = 1024


class CompressionError(ValueError):
    """A compressed body that cannot be decompressed; the message says why."""


def decompress(body: bytes, sys_flag: int) -> bytes:
    """Return the body that the application passed to its producer."""
    if not sys_flag & COMPRESSED:
        return body
    return _READERS.get(sys_flag & COMPRESSION_MASK, _zlib)(body)


def _zlib(body: bytes) -> bytes:
    decompressor = zlib.decompressobj()
    try:
        whole = decompressor.decompress(body, MAX_DECOMPRESSED)
    except zlib.error as error:
        raise CompressionError(f"zlib: {error}") from None
    return _checked(whole, decompressor.eof, "zlib")


def _lz4(body: bytes) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        raise _missing("LZ4") from None
    decompressor = lz4.frame.LZ4FrameDecompressor()
    try:
        whole = decompressor.decompress(body, MAX_DECOMPRESSED)
    except (RuntimeError, EOFError) as error:
        raise CompressionError(f"LZ4: {error}") from None
    return _checked(whole, decompressor.eof, "LZ4")


def _zstd(body: bytes) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise _missing("ZSTD") from None
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    output: list[bytes] = []
    size = 0
    try:
        # In small portions: this API has no output limit, and a few bytes can expand to a lot.
        for at in range(0, len(body), _ZSTD_INPUT_SIZE):
            output.append(decompressor.decompress(body[at : at + _ZSTD_INPUT_SIZE]))
            size += len(output[-1])
            if decompressor.eof or size > MAX_DECOMPRESSED:
                break
    except zstandard.ZstdError as error:
        raise CompressionError(f"ZSTD: {error}") from None
    return _checked(b"".join(output), decompressor.eof and size <= MAX_DECOMPRESSED, "ZSTD")


def _checked(whole: bytes, finished: bool, kind: str) -> bytes:
    if not finished:
        raise CompressionError(f"{kind}: truncated, or more than {MAX_DECOMPRESSED} bytes")
    return whole


def _missing(kind: str) -> CompressionError:
    return CompressionError(f"{kind} needs an optional package: pip install 'pyromq[compression]'")


_READERS: Final = {COMPRESSION_LZ4: _lz4, COMPRESSION_ZSTD: _zstd}
