"""Bodies that a producer compressed, as they were before.

sysFlag says whether and how: zlib unless told otherwise; producers of 5.x may be told to
use LZ4 or ZSTD. These two are read when the packages `lz4` and `zstandard` are there
(`pip install 'pyromq[compression]'`). Pure.
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

#: A body that grows beyond this is taken for an attack.
MAX_DECOMPRESSED: Final = 64 * 1024 * 1024
_ZSTD_STEP: Final = 1024


class CompressionError(ValueError):
    """A body that is marked as compressed cannot be decompressed; says why."""


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The body as the application gave it to its producer."""
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
    pieces: list[bytes] = []
    size = 0
    try:
        # Bit by bit: this one takes no limit, and a few bytes can stand for a lot.
        for at in range(0, len(body), _ZSTD_STEP):
            pieces.append(decompressor.decompress(body[at : at + _ZSTD_STEP]))
            size += len(pieces[-1])
            if decompressor.eof or size > MAX_DECOMPRESSED:
                break
    except zstandard.ZstdError as error:
        raise CompressionError(f"ZSTD: {error}") from None
    return _checked(b"".join(pieces), decompressor.eof and size <= MAX_DECOMPRESSED, "ZSTD")


def _checked(whole: bytes, finished: bool, kind: str) -> bytes:
    if not finished:
        raise CompressionError(f"{kind}: it is cut off or larger than {MAX_DECOMPRESSED} bytes")
    return whole


def _missing(kind: str) -> CompressionError:
    return CompressionError(
        f"it is {kind}, which needs a package: pip install 'pyromq[compression]'"
    )


_READERS: Final = {COMPRESSION_LZ4: _lz4, COMPRESSION_ZSTD: _zstd}
