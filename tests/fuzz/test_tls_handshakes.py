"""Hostile bytes after 0x16: no crash, no exception of the loop, bounded memory, and good clients
are served throughout."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from pathlib import Path

import pytest

from pyromq.tls.client import client_tls
from tests.support.certificates import Certificates
from tests.support.damage import damaged
from tests.support.loops import on_both_loops
from tests.support.patience import DEADLINE, until
from tests.unit.tls.serving import Echoes, closed, echoing

HANDSHAKES = 300


def hostile(hello: bytes, chance: random.Random) -> bytes:
    """A first flight that is no good, and begins as TLS does."""
    kind = chance.randrange(5)
    if kind == 0:
        return b"\x16" + chance.randbytes(chance.randrange(600))
    if kind == 1:
        return hello[: chance.randrange(1, len(hello))]
    if kind == 2:
        return b"\x16" + damaged(chance, hello)[1:]
    if kind == 3:  # a length that is a lie
        size = chance.choice((0, 1, len(hello), 16_384, 18_432, 18_433, 65_535))
        return hello[:3] + size.to_bytes(2, "big") + hello[5:]
    return hello + chance.randbytes(chance.randrange(1, 40_000))


async def attack(echoes: Echoes, data: bytes, chance: random.Random) -> None:
    reader, writer = await echoes.connect()
    with contextlib.suppress(OSError):
        cut = chance.randrange(len(data) + 1)
        for part in (data[:cut], data[cut:]):
            writer.write(part)
            await writer.drain()
        writer.write_eof()
        async with asyncio.timeout(DEADLINE):
            while await reader.read(65_536):
                pass
    await closed(writer)


@pytest.mark.parametrize("seed", [1, 2])
@on_both_loops
async def test_bad_handshakes_change_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    certs = Certificates(tmp_path)
    hello = certs.client_hello()
    async with echoing(certs.settings("permissive")) as echoes:
        for number in range(HANDSHAKES):
            await attack(echoes, hostile(hello, chance), chance)
            if number % 50 == 0:
                assert await echoes.ask(b"good", certs.tls()) == b"good"
                assert await echoes.ask(b"plain") == b"plain"
        await until(lambda: all(each.events[-1] == "lost" for each in echoes.served))
        assert len(echoes.tls.handshakes) == 0
        chunks = [each.chunks for each in echoes.served if each.chunks]
        assert chunks == [[b"good"], [b"plain"]] * (HANDSHAKES // 50)


@pytest.mark.parametrize("seed", [1, 2])
@on_both_loops
async def test_bad_records_after_the_handshake(tmp_path: Path, seed: int) -> None:
    """Nothing that was damaged on the way is ever passed on."""

    chance = random.Random(seed)
    certs = Certificates(tmp_path)
    tls = client_tls(certs.tls())
    assert tls is not None
    async with echoing(certs.settings()) as echoes:
        for _ in range(30):
            reader, writer = await echoes.connect()
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = tls.context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await asyncio.wait_for(reader.read(65_536), DEADLINE))
            writer.write(outgoing.read())
            client.write(b"request")
            record = outgoing.read()
            writer.write(damaged(chance, record))
            writer.write_eof()
            with contextlib.suppress(OSError):
                await asyncio.wait_for(reader.read(), DEADLINE)
            await closed(writer)
        await until(lambda: all(each.events[-1] == "lost" for each in echoes.served))
        assert {chunk for each in echoes.served for chunk in each.chunks} <= {b"request"}
