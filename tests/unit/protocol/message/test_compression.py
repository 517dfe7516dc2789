"""Compressed bodies: every kind comes back whole, what is damaged or too large is refused."""

from __future__ import annotations

import zlib

import lz4.frame
import pytest
import zstandard

from pyromq.protocol.message import compression
from pyromq.protocol.message.compression import CompressionError, decompress
from pyromq.protocol.message.sysflag import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

BODY = b"pyromq " * 1000
ENCODED = {
    0: zlib.compress(BODY),
    COMPRESSION_ZLIB: zlib.compress(BODY),
    COMPRESSION_LZ4: lz4.frame.compress(BODY),
    COMPRESSION_ZSTD: zstandard.compress(BODY),
}


def test_a_plain_body_stays() -> None:
    assert decompress(BODY, COMPRESSION_LZ4) is BODY


@pytest.mark.parametrize("kind", ENCODED)
def test_every_kind(kind: int) -> None:
    assert decompress(ENCODED[kind], COMPRESSED | kind) == BODY


@pytest.mark.parametrize("kind", ENCODED)
def test_damage_is_refused(kind: int) -> None:
    for damaged in (b"", b"no such thing", ENCODED[kind][:-5]):
        with pytest.raises(CompressionError):
            decompress(damaged, COMPRESSED | kind)


@pytest.mark.parametrize("kind", ENCODED)
def test_growth_is_bounded(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_DECOMPRESSED", 1000)
    with pytest.raises(CompressionError, match="more than 1000"):
        decompress(ENCODED[kind], COMPRESSED | kind)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lz4.frame", None)
    with pytest.raises(CompressionError, match="LZ4 needs"):
        decompress(ENCODED[COMPRESSION_LZ4], COMPRESSED | COMPRESSION_LZ4)
