from __future__ import annotations

import zlib

import pytest

from pyromq.protocol.java.fastjson import BodyError
from pyromq.protocol.wire import large_bodies
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import MAX_FRAME, RemotingCommand, RequestError

ZLIB = {"compression": "zlib"}


def test_a_compressed_body_is_read_as_it_was() -> None:
    body = b'{"offsetTable":{}}' * 1000
    assert len(large_bodies.compressed(body)) < len(body) // 10
    assert large_bodies.decompressed(ZLIB, large_bodies.compressed(body)) == body


def test_only_the_field_says_that_a_body_is_compressed() -> None:
    assert large_bodies.accepts_compression({**ZLIB, "AccessKey": "k"})
    for other in ({}, {"compression": "lz4"}, {"Compression": "zlib"}):
        assert not large_bodies.accepts_compression(other)
        assert large_bodies.decompressed(other, b"x") == b"x"


def test_a_body_that_fits_leaves_room_for_its_header() -> None:
    body = bytes(large_bodies.MAX_BODY)
    assert large_bodies.fitting(body, "it") is body
    assert len(RemotingCommand(0, remark="r" * 4096, body=body).encode()) <= MAX_FRAME
    with pytest.raises(RequestError, match="the table not sent: ") as caught:
        large_bodies.fitting(body + b"x", "the table")
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    "body", [b"", b"{}", zlib.compress(b"x" * 999)[:-1], b"\x78\x01" + b"\xff" * 99]
)
def test_garbled_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        large_bodies.decompressed(ZLIB, body)


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_bodies, "MAX_DECOMPRESSED", 1000)
    assert large_bodies.decompressed(ZLIB, zlib.compress(bytes(1000))) == bytes(1000)
    with pytest.raises(BodyError, match="more than 1000"):
        large_bodies.decompressed(ZLIB, zlib.compress(bytes(1001)))
