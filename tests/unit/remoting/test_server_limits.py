"""The server and what all of its peers take together: connections, unfinished and unread bytes."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Iterator

import pytest

from pyromq.protocol.wire.frame import MAX_FRAME, RemotingCommand
from pyromq.remoting import unfinished as unfinished_module
from pyromq.remoting.connection import Connection
from pyromq.remoting.limits import PeerLimits, report_accept_faults
from pyromq.remoting.server import RemotingServer
from tests.support.clocks import held_loop, on_held_loop, settled
from tests.support.loops import on_both_loops
from tests.support.patience import until
from tests.unit.remoting.talking import (
    ECHO,
    MIB,
    Client,
    Log,
    connected,
    connection_of,
    echo,
    request,
    server_log,
    serving,
    slow_reader,
    wired,
)

# Connections


def server_of(connection: Connection) -> RemotingServer:
    assert isinstance(connection._host, RemotingServer)
    return connection._host


@on_both_loops
async def test_connections_are_capped_over_all_ports(caplog: Log) -> None:
    gone: list[Connection] = []
    limits = PeerLimits(max_connections=10)
    async with (
        serving(limits=limits, on_disconnect=gone.append) as main,
        serving(limits=limits, on_disconnect=gone.append) as fast,
        contextlib.AsyncExitStack() as peers,
    ):
        clients = [
            await peers.enter_async_context(connected(main if number % 2 else fast))
            for number in range(9)
        ]
        for number, client in enumerate(clients):
            assert (await client.ask(request(opaque=number))).opaque == number
        for server in (main, fast):
            async with connected(server) as refused:
                await refused.closed()
        line = (
            "connection from 127.0.0.1 refused: 9 connections from this address, limit 9 "
            "(maxConnectionsPerAddress)"
        )
        assert server_log(caplog) == [line, line]
        assert not gone
        # A place is free again.
        clients[0].writer.transport.abort()
        await until(lambda: gone)
        async with connected(main) as another:
            assert (await another.ask(request(opaque=7))).opaque == 7
        for client in clients[1:]:
            assert (await client.ask(request(opaque=8))).opaque == 8
    assert limits.connections == 0


@pytest.fixture
def few_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@on_both_loops
async def test_a_process_without_descriptors_says_so_and_serves_again(
    few_files: None, caplog: Log
) -> None:
    async with serving() as server, connected(server) as client:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.ExitStack() as stack:
            waiting = [stack.enter_context(socket.socket()) for _ in range(5)]
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
            for each in waiting:
                each.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    each.connect(("127.0.0.1", server.port))
            for number in range(20):
                assert (await client.ask(request(opaque=number))).opaque == number
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            # asyncio's loop looks again after a second.
            await until(lambda: len(server.connections) > 1)
            async with connected(server) as another:
                assert (await another.ask(request(opaque=1))).opaque == 1
    lines = server_log(caplog)
    assert all("accepting a connection failed" in line and "ulimit -n" in line for line in lines)
    assert all(record.exc_info is None for record in caplog.records)


def test_what_else_a_loop_reports_goes_where_it_went_before() -> None:
    seen: list[dict[str, object]] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: seen.append(context))
        report_accept_faults(loop)
        report_accept_faults(loop)
        loop.call_exception_handler({"message": "something else"})
        loop.set_exception_handler(None)

    asyncio.run(work())
    assert seen == [{"message": "something else"}]


# Unfinished frames


def beginning(size: int, frame_size: int = MAX_FRAME) -> bytes:
    """The first `size` bytes of a frame that is never whole."""
    whole = (frame_size - 4).to_bytes(4, "big") + (10).to_bytes(4, "big")
    return whole + bytes(size - len(whole))


async def sent(server: RemotingServer, client: Client, data: bytes) -> Connection:
    """Send something, and wait until the server has it."""
    connection = await connection_of(server, client)
    before = connection._gatherer.held
    client.writer.write(data)
    await until(lambda: connection.closed or connection._gatherer.held >= before + len(data))
    return connection


@on_both_loops
async def test_unfinished_frames_are_bounded_together(caplog: Log) -> None:
    limits = PeerLimits(max_received=8 * MIB)
    async with serving(limits=limits) as server, contextlib.AsyncExitStack() as peers:
        good = await peers.enter_async_context(connected(server))
        connections = []
        for _ in range(30):
            client = await peers.enter_async_context(connected(server))
            connections.append(await sent(server, client, beginning(MIB)))
            assert limits.received.total <= 8 * MIB
            assert limits.received.total == sum(each._gatherer.held for each in connections)
        await until(lambda: len(server.connections) < 10)
        assert [each.closed for each in connections][-1] is False
        assert connections[0].closed
        assert (await good.ask(request(body=bytes(4 * MIB)))).body == bytes(4 * MIB)
        assert "unfinished requests" in server_log(caplog)[0]
        assert "limit 8388608 (maxReceivedBytes)" in server_log(caplog)[0]
    assert limits.received.total == 0


@on_both_loops
async def test_whole_frames_leave_nothing_behind() -> None:
    limits = PeerLimits(max_received=8 * MIB)
    async with serving(limits=limits) as server, connected(server) as client:
        frame = request(body=bytes(100_000)).encode()
        for cut in (1, 3, 7, 8, 9, 50_000, len(frame) - 1):
            connection = await sent(server, client, frame[:cut])
            assert connection._received == limits.received.total == cut
            client.writer.write(frame[cut:])
            assert len((await client.read()).body) == 100_000
            assert connection._received == limits.received.total == 0


@on_held_loop
async def test_a_frame_that_comes_in_drops_is_closed_although_its_peer_is_never_silent(
    caplog: Log,
) -> None:
    loop = held_loop()
    async with (
        serving(limits=PeerLimits(frame_seconds=60), idle_seconds=120) as server,
        connected(server) as drops,
        connected(server) as talks,
    ):
        drops.writer.write(beginning(100))
        await settled()
        [connection] = [each for each in server.connections if each._received]
        frame = request(ECHO, 1, bytes(1000)).encode()
        talks.writer.write(frame[:500])
        for second in range(75):
            if not connection.closed:
                drops.writer.write(b"x")
            # A peer that always has an unfinished frame, but each time another one.
            talks.writer.write(frame[500:] + frame[:500])
            await talks.read()
            await loop.pass_time(1.0)
            assert connection.closed is (second > 65) or 58 < second < 67
        assert [each.remote_address for each in server.connections] == [talks.address]
        [line] = server_log(caplog)
        assert "limit 60 s (maxFrameSeconds)" in line


@on_held_loop
async def test_a_large_frame_on_a_slow_line_gets_its_time() -> None:
    loop = held_loop()
    connection, wire = await wired(limits=PeerLimits(frame_seconds=1))
    frame = request(ECHO, 1, bytes(4 * MIB)).encode()
    for start in range(0, len(frame), 128 * 1024):
        connection.data_received(frame[start : start + 128 * 1024])
        await loop.pass_time(1.9)
        server_of(connection)._close_slow_frames(loop.time())
        assert not connection.closed
    assert len(wire.written) == 1


@on_held_loop
async def test_the_time_that_the_server_does_not_read_is_not_the_frames() -> None:
    loop = held_loop()
    gate = asyncio.Event()

    async def wait(_: Connection, command: RemotingCommand) -> RemotingCommand:
        await gate.wait()
        return command.answer()

    connection, wire = await wired(handlers={ECHO: wait}, limits=PeerLimits(frame_seconds=60))
    for number in range(2):
        connection.data_received(request(ECHO, number, bytes(MAX_FRAME - 1000)).encode())
    connection.data_received(request(ECHO, 2, bytes(4000)).encode() + beginning(100))
    assert wire.is_paused
    server = server_of(connection)
    await loop.pass_time(100)
    server._close_slow_frames(loop.time())
    assert not connection.closed
    gate.set()
    await settled()
    assert not wire.is_paused
    server._close_slow_frames(loop.time())
    assert not connection.closed
    await loop.pass_time(100)
    server._close_slow_frames(loop.time())
    assert connection.closed


# Answers that are not read, and frames that wait for that


@on_both_loops
async def test_unread_answers_are_bounded_together(caplog: Log) -> None:
    handlers = {ECHO: lambda _, command: command.answer(body=bytes(MIB)), 1: echo}
    limits = PeerLimits(max_unsent=6 * MIB)
    async with serving(handlers, limits=limits) as server, contextlib.AsyncExitStack() as peers:
        good = await peers.enter_async_context(connected(server))
        for _ in range(12):
            client = await peers.enter_async_context(slow_reader(server))
            connection = await connection_of(server, client)
            client.write(*(request(ECHO, number) for number in range(20)))
            await until(lambda c=connection: c.closed or c._waiting)  # type: ignore[misc]
            assert sum(each.unsent for each in server.connections) <= 6 * MIB
        await until(lambda: len(server.connections) < 9)
        assert limits.unsent.total <= 6 * MIB
        assert (await good.ask(request(1, 5))).opaque == 5
        assert "limit 6291456 (maxUnsentBytes)" in server_log(caplog)[0]
        # The last one is still served when it reads.
        for number in range(20):
            assert (await client.read()).opaque == number
        assert limits.unsent.total <= 6 * MIB
    assert limits.unsent.total == 0


@on_both_loops
async def test_a_peer_that_passes_a_limit_alone_is_closed_in_the_middle_of_a_write() -> None:
    async def late(_: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.answer(body=bytes(8 * MIB))

    handlers = {ECHO: lambda _, command: command.answer(body=bytes(8 * MIB)), 1: late, 2: echo}
    async with serving(handlers, limits=PeerLimits(max_unsent=MIB)) as server:
        for code in (ECHO, 1):
            async with slow_reader(server) as client:
                connection = await connection_of(server, client)
                client.write(*(request(code, number) for number in range(3)))
                await until(lambda c=connection: c.closed)  # type: ignore[misc]
            await until(lambda: not server.connections)
        async with connected(server) as good:
            assert (await good.ask(request(2, 5))).opaque == 5
    assert server.limits.unsent.total == 0


@on_both_loops
async def test_frames_that_wait_for_a_slow_reader_are_counted() -> None:
    handlers = {ECHO: lambda _, command: command.answer(body=bytes(MIB))}
    limits = PeerLimits(max_received=3 * MIB)
    async with serving(handlers, limits=limits) as server, contextlib.AsyncExitStack() as peers:
        for _ in range(10):
            client = await peers.enter_async_context(slow_reader(server))
            connection = await connection_of(server, client)
            client.write(*(request(ECHO, number) for number in range(1000)))
            await until(lambda c=connection: c.closed or c._waiting)  # type: ignore[misc]
            assert limits.received.total <= 3 * MIB
        assert len(server.connections) < 6
        assert all(each._waiting for each in server.connections)


# Requests in progress


@on_both_loops
async def test_no_more_is_begun_of_a_chunk_than_may_be_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unfinished_module, "_MAX_UNFINISHED", 10)
    gate = asyncio.Event()
    begun, most = 0, 0

    async def wait(_: Connection, command: RemotingCommand) -> RemotingCommand:
        nonlocal begun, most
        begun += 1
        most = max(most, begun)
        await gate.wait()
        await asyncio.sleep(0)
        begun -= 1
        return command.answer()

    async with serving({ECHO: wait}) as server, connected(server) as client:
        client.write(*(request(ECHO, number) for number in range(500)))
        await until(lambda: begun == 11)
        connection = await connection_of(server, client)
        assert len(connection._waiting) == 489
        gate.set()
        assert {(await client.read()).opaque for _ in range(500)} == set(range(500))
        assert most == 11


@on_both_loops
async def test_large_requests_in_progress_on_all_connections_are_bounded() -> None:
    gate = asyncio.Event()
    begun = 0

    async def wait(_: Connection, command: RemotingCommand) -> RemotingCommand:
        nonlocal begun
        begun += 1
        await gate.wait()
        return command.answer()

    limits = PeerLimits(max_received=4 * MIB)
    async with (
        serving({ECHO: wait, 1: echo}, limits=limits) as server,
        connected(server) as good,
        contextlib.AsyncExitStack() as peers,
    ):
        clients = [await peers.enter_async_context(connected(server)) for _ in range(10)]
        for client in clients:
            client.write(*(request(ECHO, number, bytes(200_000)) for number in range(10)))
        await until(lambda: limits.is_overworked)
        for number in range(50):
            assert (await good.ask(request(1, number))).opaque == number
        # Each connection has at most one more chunk, as it is not read from after that.
        assert begun < 50
        assert limits.in_progress < 10 * MIB
        gate.set()
        for client in clients:
            assert {(await client.read()).opaque for _ in range(10)} == set(range(10))
    assert limits.in_progress == 0


@on_both_loops
async def test_queries_of_a_lost_connection_are_dropped_and_changes_carried_out() -> None:
    gate = asyncio.Event()
    begun: list[int] = []
    done: list[int] = []

    async def wait(_: Connection, command: RemotingCommand) -> RemotingCommand:
        begun.append(command.code)
        await gate.wait()
        done.append(command.code)
        return command.answer()

    gone: list[Connection] = []
    async with serving({1: wait, 2: wait}, queries={1}, on_disconnect=gone.append) as server:
        async with connected(server) as client:
            client.write(request(1, 1), request(2, 2), request(1, 3))
            await until(lambda: len(begun) == 3)
        await until(lambda: gone)
        await until(lambda: len(server.tasks) == 1)
        gate.set()
        await until(lambda: not server.tasks)
        assert done == [2]


# Answers


@on_both_loops
async def test_the_remark_of_an_error_does_not_echo_a_large_request(caplog: Log) -> None:
    def refuse(_: Connection, command: RemotingCommand) -> RemotingCommand:
        raise ValueError(f"{command.body.decode()} is no number")

    async with serving({ECHO: refuse}) as server, connected(server) as client:
        answer = await client.ask(request(body=b"9" * 5 * MIB))
        assert answer.remark is not None
        assert answer.remark.startswith("ValueError: 999")
        assert len(answer.remark) < 5000
        [line] = server_log(caplog)
        assert len(line) < 5000
