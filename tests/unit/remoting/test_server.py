"""The life of connections and of the server: silence, start, stop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import resource
import socket
import time
from collections.abc import Iterator

import pytest

from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    RemotingCommand,
    RequestError,
)
from pyromq.remoting import connection as connection_module
from pyromq.remoting.connection import Connection
from pyromq.remoting.runs import wants_answer
from pyromq.remoting.server import RemotingServer
from pyromq.remoting.service import Service
from tests.support.clocks import held_loop, on_held_loop
from tests.support.loops import on_both_loops
from tests.support.patience import DEADLINE, until
from tests.unit.remoting.talking import (
    ECHO,
    HOT,
    MIB,
    Client,
    Log,
    connected,
    connection_of,
    echo,
    hot_echo,
    request,
    server_log,
    serving,
    slow_reader,
    unsent,
)

# Silence


@on_both_loops
async def test_silent_connection_is_closed_with_one_line(caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    async with serving(idle_seconds=0.2) as server, connected(server) as client:
        assert (await client.ask(request(ECHO, 1))).opaque == 1
        await client.closed()
        await until(lambda: not server.connections)
        assert server_log(caplog) == [f"{client.address} was silent for 0.2 s: closed"]


@on_held_loop
async def test_connection_that_speaks_is_kept() -> None:
    loop = held_loop()
    async with (
        serving(idle_seconds=0.4) as server,
        connected(server) as client,
        connected(server) as silent,
    ):
        closing = asyncio.ensure_future(silent.closed())
        for n in range(20):
            assert (await client.ask(request(ECHO, n))).opaque == n
            await loop.pass_time(0.1)
        await closing
        assert (await client.ask(request(ECHO, 20))).opaque == 20


@on_held_loop
async def test_connection_that_is_spoken_to_is_kept() -> None:
    loop = held_loop()
    async with (
        serving(idle_seconds=0.4) as server,
        connected(server) as listener,
        connected(server) as silent,
    ):
        connection = await connection_of(server, listener)
        closing = asyncio.ensure_future(silent.closed())
        for _ in range(20):
            connection.send(request(40, flag=FLAG_ONEWAY))
            assert (await listener.read()).code == 40
            await loop.pass_time(0.1)
        await closing
        assert not connection.closed


@on_both_loops
async def test_silent_peer_that_does_not_read_is_cut_off(caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    handlers = {ECHO: lambda _, command: command.answer(body=bytes(MIB))}
    async with serving(handlers, idle_seconds=0.2) as server, slow_reader(server) as client:
        client.write(*(request(ECHO, n) for n in range(64)))
        await connection_of(server, client)
        await until(lambda: not server.connections)
        assert len(server_log(caplog)) == 1


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for a thousand connections with both their ends in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@on_both_loops
async def test_a_thousand_idle_connections(many_files: None, caplog: Log) -> None:
    gone: list[Connection] = []
    async with serving(on_disconnect=gone.append) as server, connected(server) as client:
        with contextlib.ExitStack() as stack:
            loop = asyncio.get_running_loop()
            for _ in range(1000):
                idle = stack.enter_context(socket.socket())
                idle.setblocking(False)
                await loop.sock_connect(idle, ("127.0.0.1", server.port))
            await until(lambda: len(server.connections) == 1001)
            for n in range(50):
                assert (await client.ask(request(ECHO, n))).opaque == n
        await until(lambda: len(gone) == 1000)
        assert len(server.connections) == 1
        assert (await client.ask(request(ECHO, 51))).opaque == 51
    assert server_log(caplog) == []


# Start and stop


@on_both_loops
async def test_stop_lets_the_last_answers_leave() -> None:
    async with serving() as server, connected(server) as client:
        client.write(request(body=bytes(100_000)))
        await until(lambda: any(unsent(each) or each.last_active for each in server.connections))
        assert len((await client.read()).body) == 100_000
        await server.stop()
        await client.closed()


@on_both_loops
async def test_stop_with_a_peer_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_CLOSE_SECONDS", 0.05)
    handlers = {ECHO: lambda _, command: command.answer(body=bytes(MIB))}
    async with serving(handlers) as server, slow_reader(server) as client:
        client.write(*(request(ECHO, n) for n in range(64)))
        connection = await connection_of(server, client)
        await until(lambda: connection._write_paused)
        await asyncio.wait_for(server.stop(), DEADLINE)
        assert not server.connections
        assert connection.closed


@on_both_loops
async def test_stop_cancels_what_is_under_way() -> None:
    cancelled = 0

    async def wait(_: Connection, command: RemotingCommand) -> RemotingCommand:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        finally:
            for _step in range(20):  # cleaning up takes a while
                await asyncio.sleep(0)
            cancelled += 1
        raise AssertionError("nobody sets the event")

    async with serving({1: wait}) as server, connected(server) as client:
        client.write(*(request(1, n) for n in range(10)))
        await until(lambda: len(server.tasks) == 10)
        await server.stop()
        assert not server.tasks
        assert cancelled == 10


@on_both_loops
async def test_a_request_that_is_cancelled_before_it_begins() -> None:
    async def answer() -> RemotingCommand:
        raise AssertionError("it has begun")

    async with serving() as server, connected(server) as client:
        connection = await connection_of(server, client)
        result = answer()
        connection.finish_later(request(ECHO, 1), result)
        (task,) = server.tasks
        task.cancel()
        await asyncio.wait((task,))
        # Python would warn about a coroutine that nobody awaits.
        assert inspect.getcoroutinestate(result) == inspect.CORO_CLOSED


@on_both_loops
async def test_connection_that_comes_while_stopping_is_closed() -> None:
    async with serving() as server:
        await server.stop()
        listener = socket.create_server(("127.0.0.1", 0))
        plain = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        listener.close()
        loop = asyncio.get_running_loop()
        with plain:
            await loop.connect_accepted_socket(lambda: Connection(server, loop), accepted)
            plain.setblocking(False)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(loop.sock_recv(plain, 1), DEADLINE) == b""
        assert not server.connections


@on_both_loops
async def test_server_may_start_again() -> None:
    server = RemotingServer(host="127.0.0.1")
    assert server.port == 0
    for _ in range(2):
        await server.start(Service({ECHO: echo}))
        async with connected(server) as client:
            assert (await client.ask(request(ECHO, 1))).opaque == 1
        await server.stop()
        await server.stop()
    server.bind()
    server.bind()
    server.close_socket()


@on_both_loops
async def test_a_port_is_free_again_although_the_server_closed_its_connections() -> None:
    """They stay in TIME_WAIT for a minute, at the port of the server."""
    first = RemotingServer(host="127.0.0.1", is_port_chosen=False)
    await serve_one(first)
    await serve_one(first)
    await serve_one(RemotingServer(host="127.0.0.1", port=first.port))


async def serve_one(server: RemotingServer) -> None:
    await server.start(Service({ECHO: echo}))
    async with connected(server) as client:
        await client.ask(request(ECHO, 1))
        await server.stop()


@on_both_loops
async def test_taken_port_is_named() -> None:
    async with serving() as server:
        second = RemotingServer(host="127.0.0.1", port=server.port)
        with pytest.raises(OSError, match=f"127.0.0.1:{server.port}"):
            await second.start(Service({}))
        await second.stop()


@on_both_loops
async def test_what_handlers_see_of_a_connection() -> None:
    async with serving() as server, connected(server) as client:
        connection = await connection_of(server, client)
        port = int(client.address.rpartition(":")[2])
        assert connection.remote_address == f"127.0.0.1:{port}"
        assert connection.born_host == bytes((127, 0, 0, 1)) + port.to_bytes(4, "big")
        assert not connection.closed


@on_both_loops
async def test_answers_are_not_held_back_to_be_sent_together() -> None:
    # Without this option a late answer waits for the peer's delayed acknowledgement, 40 ms.
    async with serving() as server, connected(server) as client:
        connection = await connection_of(server, client)
        accepted = connection._transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


@on_both_loops
async def test_ipv6() -> None:
    server = RemotingServer(host="::1")
    try:
        await server.start(Service({ECHO: echo}))
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    try:
        reader, writer = await asyncio.open_connection("::1", server.port)
        client = Client(reader, writer)
        assert (await client.ask(request(ECHO, 1))).opaque == 1
        [connection] = server.connections
        assert connection.remote_address.startswith("[::1]:")
        assert len(connection.born_host) == 20
        writer.transport.abort()
    finally:
        await server.stop()


def test_wants_answer() -> None:
    assert wants_answer((0, {}, b""))
    assert wants_answer((0, {"flag": 0}, b""))
    assert not wants_answer((0, {"flag": 2}, b""))
    assert not wants_answer((0, {"flag": 3}, b""))


@on_both_loops
async def test_requests_that_waited_too_long_are_refused_and_the_others_served() -> None:
    def stall(_: Connection, request: RemotingCommand) -> RemotingCommand:
        time.sleep(0.1)
        return request.answer()

    asked: list[tuple[int, int]] = []

    class Policy:
        shortest_limit = 0.01

        def refuse(self, code: int, waited: float, queue_size: int) -> RequestError | None:
            assert waited >= 0.01
            asked.append((code, queue_size))
            return RequestError(ResponseCode.SYSTEM_BUSY, "too late") if code == HOT else None

    server = RemotingServer(host="127.0.0.1")
    await server.start(
        Service(
            {ECHO: echo, RequestCode.QUERY_MESSAGE: stall},
            hot_handlers={HOT: hot_echo},
            late_requests=Policy(),
        )
    )
    async with connected(server) as slow, connected(server) as late:
        slow_side = await connection_of(server, slow)
        late_side = await connection_of(server, late)
        # uvloop's turns are watched behind one that was long.
        for _ in range(2):
            slow_side.data_received(request(RequestCode.QUERY_MESSAGE).encode())
        for _ in range(2):
            assert (await slow.read()).code == ResponseCode.SUCCESS
        asked.clear()
        # In one turn of the loop, as if both sockets had been readable.
        slow_side.data_received(request(RequestCode.QUERY_MESSAGE).encode())
        late_side.data_received(
            request(HOT, 1).encode()
            + request(HOT, 2, flag=FLAG_ONEWAY).encode()
            + request(ECHO, 3, b"still").encode()
            + request(HOT, 4, flag=FLAG_RESPONSE).encode()
        )

        assert (await slow.read()).code == ResponseCode.SUCCESS
        refused = await late.read()
        assert (refused.opaque, refused.code, refused.remark) == (
            1,
            ResponseCode.SYSTEM_BUSY,
            "too late",
        )
        assert (await late.read()).body == b"still"
        assert asked == [(HOT, 3), (HOT, 2), (ECHO, 1)]
        # In a later turn nothing is late any more.
        assert (await late.ask(request(HOT, 5))).code == ResponseCode.SUCCESS
    await server.stop()


@on_both_loops
async def test_a_drain_waits_for_what_is_under_way_and_takes_nobody_new() -> None:
    let_go = asyncio.Event()

    async def later(_: Connection, request: RemotingCommand) -> RemotingCommand:
        await let_go.wait()
        return request.answer(body=b"at last")

    server = RemotingServer(host="127.0.0.1")
    await server.start(Service({ECHO: echo, HOT: later}))
    async with connected(server) as client:
        client.write(request(HOT, 1))
        side = await connection_of(server, client)
        await until(lambda: side.is_busy)
        draining = asyncio.create_task(server.drain(DEADLINE))
        assert (await client.ask(request(ECHO, 2, b"served on"))).body == b"served on"
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)
        assert not draining.done()
        let_go.set()
        assert (await client.read()).body == b"at last"
        await draining
        await server.stop()
        await client.closed()


@on_both_loops
async def test_a_drain_does_not_wait_for_ever(caplog: Log) -> None:
    async def never(_: Connection, __: RemotingCommand) -> None:
        await asyncio.Event().wait()

    server = RemotingServer(host="127.0.0.1")
    await server.start(Service({ECHO: never}))
    async with connected(server) as client:
        client.write(request())
        side = await connection_of(server, client)
        await until(lambda: side.is_busy)
        with caplog.at_level(logging.WARNING):
            await server.drain(0.01)
        assert "still unanswered after 0.01 s" in caplog.text
        await server.stop()


@on_both_loops
async def test_a_stop_takes_no_answer_back_from_a_peer_that_goes_on_sending() -> None:
    server = RemotingServer(host="127.0.0.1")
    await server.start(Service({ECHO: echo}))
    answer_size = 100_000
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.settimeout(DEADLINE)
        await until(lambda: server.connections)
        peer.sendall(request(body=bytes(answer_size)).encode())
        await until(lambda: any(each.last_active for each in server.connections))
        await asyncio.to_thread(peer.recv, 1, socket.MSG_PEEK)
        stopping = asyncio.create_task(server.stop())
        peer.sendall(request(body=bytes(1000)).encode())  # nobody will answer this
        await asyncio.sleep(0)
        received = 0
        while data := await asyncio.to_thread(peer.recv, 65536):
            received += len(data)
        assert received >= answer_size
        await stopping
