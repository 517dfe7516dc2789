"""Thousands of clients that never finish their handshake do not slow down the others.

The broker is a process of its own; peers that stall run in a second one, so that only the broker
is shared.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from pyromq.client import Message, Producer
from tests.interop.servers import PyromqServer
from tests.support.certificates import Certificates
from tests.support.patience import DEADLINE

#: More connections than handshakes may be in progress (maxTlsHandshakes, 1000).
STALLED = 1500
SENDS = 300
#: Other work of the machine may disturb some of them.
ATTEMPTS = 7
ROUNDS = 3

#: Opens connections, sends most of a ClientHello at once and then a byte at a time, and opens
#: another one for each that was closed, until its standard input closes.
_STALLING = """
import select, socket, sys, time
port, count, hello = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
peers, opened = {}, 0
def connect():
    peer = socket.create_connection(("127.0.0.1", port))
    peer.sendall(hello[:100])
    peer.setblocking(False)
    peers[peer] = 100
for _ in range(count):
    connect()
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.02)[0]:
    for peer, position in list(peers.items())[:50]:
        del peers[peer]
        try:
            if peer.recv(1, socket.MSG_DONTWAIT) == b"":
                raise OSError
        except BlockingIOError:
            try:
                peer.send(hello[position:position + 1])
                peers[peer] = min(position + 1, len(hello) - 2)
                continue
            except OSError:
                pass
        except OSError:
            pass
        peer.close()
        connect()
        opened += 1
print(opened, flush=True)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[PyromqServer, Certificates]]:
    certs = Certificates(tmp_path)
    properties = {"tls.config.file": certs["tls.properties"]}
    with PyromqServer(broker_properties=properties) as running:
        yield running, certs


async def p99(producer: Producer) -> float:
    """The 99th percentile of the time that a send takes, in seconds."""
    times = []
    for _ in range(SENDS):
        began = time.perf_counter()
        await producer.send(Message("t", b"x" * 100))
        times.append(time.perf_counter() - began)
    return sorted(times)[SENDS * 99 // 100]


@contextlib.asynccontextmanager
async def stalling(port: str, hello: bytes) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """Stall; yields a function that ends it and returns how many connections the broker closed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _STALLING, port, str(STALLED), hello.hex()),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    async def line() -> bytes:
        return await asyncio.wait_for(stdout.readline(), DEADLINE)

    async def end() -> int:
        stdin.close()
        return int(await line())

    try:
        assert await line() == b"ready\n"
        yield end
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_slow_handshakes_by_the_thousand(
    server: tuple[PyromqServer, Certificates],
) -> None:
    running, certs = server
    port = running.broker_address.rpartition(":")[2]
    async with Producer(running.namesrv_address, tls=certs.tls()) as producer:
        await producer.send(Message("t", b"first"))
        for _ in range(ROUNDS):
            # The same connections to nobody: their work on this machine is in both figures.
            with socket.create_server(("127.0.0.1", 0), backlog=2 * STALLED) as nobody:
                async with stalling(str(nobody.getsockname()[1]), certs.client_hello()):
                    quiet = statistics.median([await p99(producer) for _ in range(ATTEMPTS)])
            async with stalling(port, certs.client_hello()) as end:
                slow = statistics.median([await p99(producer) for _ in range(ATTEMPTS)])
                # A new client still gets in: the handshakes that stall make room.
                async with Producer(running.namesrv_address, tls=certs.tls()) as other:
                    await other.send(Message("t", b"new"))
                closed = await end()
            # A busy machine disturbs one half of a round more than the other, but not of each.
            if slow <= 2 * quiet + 0.010:
                break
        assert slow <= 2 * quiet + 0.010
        assert closed > 0, "no handshake was closed to make room"
    log = await asyncio.to_thread(running._log.read_text)
    assert "handshakes in progress (maxTlsHandshakes)" in log
