"""The server and clients that do not read, or ask for more than can be done."""

from __future__ import annotations

import asyncio

import pytest

from pyromq.protocol.wire.frame import (
    MAX_FRAME,
    RawFrame,
    RemotingCommand,
)
from pyromq.remoting import unfinished as unfinished_module
from pyromq.remoting.connection import MAX_UNSENT, Connection
from tests.support.loops import on_both_loops
from tests.support.patience import until
from tests.unit.remoting.talking import (
    ECHO,
    HOT,
    MIB,
    Log,
    connected,
    connection_of,
    echo,
    request,
    server_log,
    serving,
    slow_reader,
    unsent,
    wired,
)

# Back-pressure


@on_both_loops
@pytest.mark.parametrize("code", [HOT, ECHO])
async def test_slow_reader(code: int) -> None:
    handled = 0

    def large(_: Connection, command: RemotingCommand) -> RemotingCommand:
        nonlocal handled
        handled += 1
        return command.answer(body=bytes(MIB))

    def large_hot(connection: Connection, frames: list[RawFrame], answers: list[bytes]) -> None:
        for _, header, _ in frames:
            answers.append(large(connection, request(HOT, header["opaque"])).encode())

    async with (
        serving({ECHO: large, 1: echo}, hot_handlers={HOT: large_hot}, max_runs={HOT: 2}) as server,
        slow_reader(server) as client,
        connected(server) as other,
    ):
        count = 20
        client.write(*(request(code, n) for n in range(count)))
        connection = await connection_of(server, client)
        await until(lambda: connection._write_paused)
        # Another client is served as ever, and nothing more is done for this one.
        stopped_at = handled
        assert stopped_at < 12
        for n in range(20):
            assert (await other.ask(request(1, n))).opaque == n
        assert handled == stopped_at
        assert unsent(connection) <= MAX_UNSENT + 2 * MIB + 65_536
        # It reads again, and gets everything, in order.
        for n in range(count):
            answer = await client.read()
            assert (answer.opaque, len(answer.body)) == (n, MIB)
            assert unsent(connection) <= MAX_UNSENT + 2 * MIB + 65_536
        assert handled == count
        assert (await client.ask(request(1, 99))).opaque == 99


@on_both_loops
async def test_nothing_is_read_from_a_peer_that_does_not_read() -> None:
    async with serving({ECHO: echo}) as server, slow_reader(server) as client:
        connection = await connection_of(server, client)
        command = request(body=bytes(MIB)).encode()
        written = 0
        while not connection._write_paused:
            client.writer.write(command)
            written += 1
            await asyncio.sleep(0)
        # What follows stays in the client's own buffer: the server's are full.
        for _ in range(40):
            client.writer.write(command)
            written += 1
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert client.writer.transport.get_write_buffer_size() > 0
        assert unsent(connection) <= MAX_UNSENT + 2 * MIB
        for _ in range(written):
            assert len((await client.read()).body) == MIB


@on_both_loops
async def test_slow_reader_that_goes_away() -> None:
    gone: list[Connection] = []
    handlers = {ECHO: lambda _, command: command.answer(body=bytes(MIB))}
    async with serving(handlers, on_disconnect=gone.append) as server:
        async with slow_reader(server) as client:
            client.write(*(request(ECHO, n) for n in range(64)))
            connection = await connection_of(server, client)
            await until(lambda: connection._write_paused)
        await until(lambda: gone)
        assert connection._waiting == []


@on_both_loops
async def test_unfinished_coroutines_of_a_connection_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unfinished_module, "_MAX_UNFINISHED", 10)
    gate = asyncio.Event()
    begun = 0

    async def wait(_: Connection, command: RemotingCommand) -> RemotingCommand:
        nonlocal begun
        begun += 1
        await gate.wait()
        return command.answer()

    async with (
        serving({1: wait, ECHO: echo}) as server,
        connected(server) as client,
        connected(server) as other,
    ):
        chunk = b"".join(request(1, n, bytes(8000)).encode() for n in range(100))
        client.writer.write(chunk * 100)
        await until(lambda: begun > 10)
        for n in range(20):
            assert (await other.ask(request(ECHO, n))).opaque == n
        # At most one more chunk of what a loop reads at once.
        assert begun < 100
        gate.set()
        for n in range(10_000):
            assert (await client.read()).opaque == n % 100


async def test_a_connection_with_large_requests_under_way_is_not_read_from() -> None:
    gates = [asyncio.Event(), asyncio.Event()]

    async def wait(_: Connection, command: RemotingCommand) -> RemotingCommand:
        await gates[command.opaque % 2].wait()
        return command.answer()

    connection, wire = await wired(handlers={ECHO: wait})
    large = bytes(MAX_FRAME - 1024)
    for number in range(2):
        connection.data_received(request(ECHO, number, large).encode())
    assert not wire.is_paused
    for number in range(2, 6):
        connection.data_received(request(ECHO, number, bytes(1024)).encode())
    assert wire.is_paused
    gates[0].set()
    await until(lambda: len(wire.written) == 3)
    await until(lambda: not wire.is_paused)
    gates[1].set()
    await until(lambda: len(wire.written) == 6)
    assert not wire.is_paused


async def test_a_client_that_leaves_very_much_unread_is_closed(caplog: Log) -> None:
    connection, wire = await wired()
    wire.unread = 64 * MIB
    connection.send(request(ECHO, 1))
    assert not wire.is_closed
    wire.unread += 1
    connection.send(request(ECHO, 2))
    assert wire.is_closed
    assert connection.closed
    connection.send(request(ECHO, 3))
    assert len(wire.written) == 2
    assert "has not read" in server_log(caplog)[-1]


@pytest.mark.parametrize("parts", [[b"1"], [b"1", b"2"], [bytes(70_000)], [b"1", b"2", bytes(MIB)]])
async def test_frames_in_parts(parts: list[bytes]) -> None:
    connection, wire = await wired()
    connection.write_parts(parts)
    assert b"".join(wire.written) == b"".join(parts)
    wire.unread = 65 * MIB
    connection.write_parts(parts)
    assert connection.closed
    written = len(wire.written)
    connection.write_parts(parts)
    assert len(wire.written) == written


async def test_late_answers_do_not_pile_up_for_ever() -> None:
    gate = asyncio.Event()

    async def wait(_: Connection, command: RemotingCommand) -> RemotingCommand:
        await gate.wait()
        return command.answer()

    connection, wire = await wired(handlers={ECHO: wait})
    connection.data_received(request(ECHO, 1).encode())
    wire.unread = 65 * MIB
    gate.set()
    await until(lambda: wire.is_closed)


@on_both_loops
async def test_late_answers_wait_as_they_are_until_the_peer_reads() -> None:
    body = bytes(MIB)

    async def large(_: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.answer(body=body)

    async with serving({ECHO: large}) as server, slow_reader(server) as client:
        client.write(*(request(ECHO, number) for number in range(50)))
        connection = await connection_of(server, client)
        await until(lambda: len(connection._parked) > 40)
        # Only what was written before the peer was full takes memory of its own.
        assert unsent(connection) < 8 * MIB
        assert all(answer.body is body for _, answer in connection._parked)
        assert connection.is_busy
        for number in range(50):
            answer = await client.read()
            assert (answer.opaque, len(answer.body)) == (number, MIB)
        assert not connection.is_busy
        # More than 64 MiB of them are too many, though.
        client.write(*(request(ECHO, number) for number in range(100)))
        await until(lambda: connection.closed)
        assert not connection._parked
