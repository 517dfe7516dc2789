from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import ssl
import sys
import termios
from pathlib import Path

import pytest

from pyromq.tls.client import client_tls
from pyromq.tls.transport import _end_of_records
from tests.support.certificates import Certificates
from tests.support.loops import on_both_loops
from tests.support.patience import DEADLINE, until
from tests.unit.tls.serving import closed, echoing

MIB = 1024 * 1024


def unread(end: socket.socket) -> int:
    """How many bytes the kernel holds for a socket."""
    return int.from_bytes(fcntl.ioctl(end.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


@on_both_loops
async def test_any_number_of_bytes_goes_both_ways(tmp_path: Path) -> None:
    certs = Certificates(tmp_path)
    async with echoing(certs.settings()) as echoes:
        for size in (1, 100, 16_384, 16_385, 65_536, 65_537, 3 * MIB + 1):
            data = os.urandom(size)
            assert await echoes.ask(data, certs.tls()) == data
        assert echoes.tls.handshakes.completed == 7


@on_both_loops
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_hello_in_single_bytes(tmp_path: Path, version: ssl.TLSVersion) -> None:
    """Steps of the handshake are taken for complete records only."""
    certs = Certificates(tmp_path)
    tls = client_tls(certs.tls())
    assert tls is not None
    tls.context.maximum_version = version
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls.context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    async with echoing(certs.settings()) as echoes:
        reader, writer = await echoes.connect()
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                for byte in outgoing.read():
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0)
                async with asyncio.timeout(DEADLINE):
                    incoming.write(await reader.read(65_536))
        client.write(b"request")
        writer.write(outgoing.read())
        while True:
            async with asyncio.timeout(DEADLINE):
                incoming.write(await reader.read(65_536))
            with contextlib.suppress(ssl.SSLWantReadError):
                assert client.read(100) == b"request"
                break
        assert echoes.served[0].transport.get_extra_info(
            "ssl_object"
        ).version() == version.name.replace("_", ".")
        await closed(writer)


@on_both_loops
async def test_everything_of_one_read_is_one_chunk(tmp_path: Path) -> None:
    certs = Certificates(tmp_path)
    async with echoing(certs.settings()) as echoes:
        reader, writer = await echoes.connect(certs.tls())
        writer.write(b"first")
        assert await reader.readexactly(5) == b"first"
        (served,) = echoes.served
        served.transport.pause_reading()
        assert not served.transport.is_reading()
        for number in range(50):  # a record each
            writer.write(b"%03d" % number)
        end = served.transport.get_extra_info("socket")
        await until(lambda: unread(end) >= 50 * (3 + 22))  # each has a header and a tag
        assert served.chunks == [b"first"]
        served.transport.resume_reading()
        await reader.readexactly(150)
        assert served.chunks[1] == b"".join(b"%03d" % number for number in range(50))
        await closed(writer)


@on_both_loops
async def test_backpressure_is_that_of_the_socket(tmp_path: Path) -> None:
    certs = Certificates(tmp_path)
    async with echoing(certs.settings()) as echoes:
        reader, writer = await echoes.connect(certs.tls())
        writer.write(b"x")
        await reader.readexactly(1)
        (served,) = echoes.served
        served.transport.set_write_buffer_limits(high=65_536)
        data = os.urandom(1 * MIB)
        count = 0
        while "paused" not in served.events:
            served.transport.writelines([data[:1000], memoryview(data)[1000:]])
            count += 1
            await asyncio.sleep(0)
        assert served.transport.get_write_buffer_size() > 65_536
        async with asyncio.timeout(DEADLINE):
            for _ in range(count):
                assert await reader.readexactly(len(data)) == data
        await until(lambda: served.events[-1] == "resumed")
        assert served.transport.get_write_buffer_size() == 0
        await closed(writer)


@on_both_loops
async def test_a_close_is_said_and_heard(tmp_path: Path) -> None:
    """The last bytes arrive, and the peer knows that nothing was cut off."""
    certs = Certificates(tmp_path)
    async with echoing(certs.settings()) as echoes:
        reader, writer = await echoes.connect(certs.tls())
        writer.write(b"x")
        await reader.readexactly(1)
        transport = echoes.served[0].transport
        transport.write(b"last words")
        assert transport.can_write_eof()
        transport.write_eof()
        transport.write(b"nobody hears this")
        async with asyncio.timeout(DEADLINE):
            assert await reader.read() == b"last words"
        transport.close()
        assert transport.is_closing()
        await closed(writer)
        await until(lambda: echoes.served[0].events[-1] == "lost")

        reader, writer = await echoes.connect(certs.tls())
        writer.write(b"y")
        await reader.readexactly(1)
        await closed(writer)
        await until(lambda: echoes.served[1].events[-1] == "lost")


@on_both_loops
async def test_a_damaged_record_closes_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certs = Certificates(tmp_path)
    async with echoing(certs.settings()) as echoes:
        tls = client_tls(certs.tls())
        assert tls is not None
        reader, writer = await echoes.connect(certs.tls())
        writer.write(b"x")
        await reader.readexactly(1)
        raw = writer.get_extra_info("socket")
        os.write(raw.fileno(), b"\x17\x03\x03\x00\x20" + b"\0" * 32)
        await until(lambda: echoes.served[0].events[-1] == "lost")
        assert echoes.served[0].chunks == [b"x"]
        assert "TLS failed: decryption failed or bad record mac" in caplog.text
        await closed(writer)


@on_both_loops
async def test_a_handshake_that_does_not_end_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certs = Certificates(tmp_path)
    settings = certs.settings()
    object.__setattr__(settings, "tls_handshake_seconds", 0.05)
    async with echoing(settings) as echoes:
        reader, writer = await echoes.connect()
        writer.write(certs.client_hello()[:20])
        async with asyncio.timeout(DEADLINE):
            assert await reader.read() == b""
        assert "TLS handshake failed: no handshake in 0.05 s: closed" in caplog.text
        await closed(writer)
        await until(lambda: echoes.served[0].events == ["made", "lost"])
        assert (len(echoes.tls.handshakes), echoes.tls.handshakes.failed) == (0, 1)


@on_both_loops
async def test_a_client_that_goes_during_its_handshake(tmp_path: Path) -> None:
    certs = Certificates(tmp_path)
    first = certs.client_hello()
    async with echoing(certs.settings()) as echoes:
        for _ in range(20):
            _, writer = await echoes.connect()
            writer.write(first)
            await asyncio.sleep(0)
            writer.transport.abort()
        await until(lambda: len(echoes.served) == 20)
        await until(lambda: all(each.events[-1] == "lost" for each in echoes.served))
        assert len(echoes.tls.handshakes) == 0
        assert await echoes.ask(b"next", certs.tls()) == b"next"


@pytest.mark.parametrize(
    ("held", "end"),
    [
        (b"", 0),
        (b"\x16\x03\x01", 0),
        (b"\x16\x03\x01\x00\x02a", 0),
        (b"\x16\x03\x01\x00\x02ab", 7),
        (b"\x16\x03\x01\x00\x02abc", 7),
        (b"\x16\x03\x01\x00\x02ab\x14\x03\x03\x00\x01x\x16\x03", 13),
        (b"\x16\x03\x01\xff\xffab", 7),
    ],
)
def test_the_end_of_complete_records(held: bytes, end: int) -> None:
    assert _end_of_records(held) == end
