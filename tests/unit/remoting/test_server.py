"""The server shell: order, runs, errors, back-pressure, silence and stopping, on both loops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from pyromq.protocol.codes import RequestCode, ResponseCode
from pyromq.protocol.frame import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    MAX_FRAME,
    Encoding,
    FrameError,
    FrameReader,
    RawFrame,
    RemotingCommand,
    RequestError,
    frame_prefix,
)
from pyromq.remoting import server as server_module
from pyromq.remoting.errors import RemotingClosedError, RemotingTimeoutError
from pyromq.remoting.server import MAX_UNSENT, Connection, RemotingServer, wants_answer
from tests.support.clocks import held_loop, on_held_loop
from tests.support.loops import on_both_loops
from tests.support.patience import DEADLINE, until

ECHO = RequestCode.HEART_BEAT
HOT = RequestCode.SEND_MESSAGE
OTHER_HOT = RequestCode.PULL_MESSAGE
MIB = 1024 * 1024

Log = pytest.LogCaptureFixture


class Client:
    """A client that does exactly what a test says, bytes and all."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._frames = FrameReader(max_frame=1 << 30)
        self._commands: list[RemotingCommand] = []

    def write(self, *commands: RemotingCommand) -> None:
        self.writer.write(b"".join(command.encode() for command in commands))

    async def read(self) -> RemotingCommand:
        """The next command; ConnectionError when the server has closed the connection."""
        while not self._commands:
            data = await asyncio.wait_for(self.reader.read(1 << 18), DEADLINE)
            if not data:
                raise ConnectionResetError("closed by the server")
            self._commands += self._frames.feed(data)
        return self._commands.pop(0)

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        self.write(command)
        return await self.read()

    async def closed(self) -> None:
        """Wait until the server has closed, and check that nothing more came."""
        with pytest.raises(ConnectionError):
            await self.read()

    @property
    def address(self) -> str:
        host, port = self.writer.get_extra_info("sockname")[:2]
        return f"{host}:{port}"


@contextlib.asynccontextmanager
async def serving(
    handlers: dict[int, Any] | None = None, **options: Any
) -> AsyncIterator[RemotingServer]:
    server = RemotingServer(handlers or {ECHO: echo}, host="127.0.0.1", **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
        assert not server.connections
        assert not server.tasks


@contextlib.asynccontextmanager
async def connected(server: RemotingServer, **options: Any) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, **options)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def connection_of(server: RemotingServer, client: Client) -> Connection:
    await until(lambda: client.address in {each.remote_address for each in server.connections})
    return next(each for each in server.connections if each.remote_address == client.address)


def echo(_: Connection, request: RemotingCommand) -> RemotingCommand:
    return request.answer(body=request.body)


def hot_echo(_: Connection, frames: list[RawFrame], answers: list[bytes]) -> None:
    for frame in frames:
        _, header, body = frame
        if wants_answer(frame):
            answer = RemotingCommand(0, opaque=header["opaque"], flag=FLAG_RESPONSE, body=body)
            answers.append(answer.encode())


def request(code: int = ECHO, opaque: int = 0, body: bytes = b"", **rest: Any) -> RemotingCommand:
    return RemotingCommand(code, opaque=opaque, body=body, **rest)


def raw_json(header: bytes) -> bytes:
    return frame_prefix(0, len(header), 0) + header


def server_log(caplog: Log) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith(("pyromq", "asyncio")) and record.levelno > logging.DEBUG
    ]


# Order, runs and answers


@on_both_loops
async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving(hot_handlers={HOT: hot_echo}) as server, connected(server) as client:
        sent = [request(HOT if n % 3 else ECHO, n, b"%d" % n) for n in range(1000)]
        client.write(*sent)
        answers = [await client.read() for _ in sent]
        assert [answer.opaque for answer in answers] == list(range(1000))
        assert [answer.body for answer in answers] == [command.body for command in sent]
        assert all(answer.is_response for answer in answers)


@on_both_loops
async def test_request_in_single_bytes() -> None:
    async with serving() as server, connected(server) as client:
        client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request(opaque=5, body=b"slow").encode():
            client.writer.write(bytes((byte,)))
            await client.writer.drain()
            await asyncio.sleep(0)
        assert (await client.read()).body == b"slow"


class Wire(asyncio.Transport):
    """A transport without a socket: counts what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 4711)})
        self.written: list[bytes] = []
        self.is_closed = False
        self.unread = 0
        self.is_paused = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.unread

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


async def wired(**options: Any) -> tuple[Connection, Wire]:
    """A connection without a socket, for tests that count its calls."""
    wire = Wire()
    server = RemotingServer(options.pop("handlers", {ECHO: echo}), **options)
    connection = Connection(server, asyncio.get_running_loop())
    connection.connection_made(wire)
    return connection, wire


async def test_all_answers_of_a_chunk_leave_in_one_write_after_its_end() -> None:
    events: list[str] = []
    connection, wire = await wired(
        hot_handlers={HOT: hot_echo}, on_chunk_end=lambda: events.append(f"{len(wire.written)}")
    )
    sent = [request(HOT if n % 3 else ECHO, n) for n in range(100)]
    connection.data_received(b"".join(command.encode() for command in sent))
    assert len(wire.written) == 1
    assert [a.opaque for a in FrameReader().feed(wire.written[0])] == list(range(100))
    # Before the write, once.
    assert events == ["0"]


async def test_a_client_that_does_not_read_is_known_as_congested() -> None:
    connection, _ = await wired()
    assert not connection.congested
    connection.pause_writing()
    assert connection.congested
    connection.resume_writing()
    assert not connection.congested


async def test_requests_of_a_hot_code_come_in_runs() -> None:
    runs: list[list[int]] = []

    def hot(_: Connection, frames: list[RawFrame], answers: list[bytes]) -> None:
        runs.append([header["opaque"] for _, header, _ in frames])

    connection, wire = await wired(hot_handlers={HOT: hot, OTHER_HOT: hot})
    codes = [HOT, HOT, ECHO, HOT, OTHER_HOT, OTHER_HOT, HOT]
    sent = [request(code, n) for n, code in enumerate(codes)]
    # An answer of the peer is none of a hot handler's, whatever its code.
    sent.insert(1, request(HOT, 99, flag=FLAG_RESPONSE))
    connection.data_received(b"".join(command.encode() for command in sent))
    assert runs == [[0], [1], [3], [4, 5], [6]]
    assert [answer.opaque for answer in FrameReader().feed(b"".join(wire.written))] == [2]


async def test_runs_are_bounded() -> None:
    runs: list[tuple[int, int]] = []

    def hot(_: Connection, frames: list[RawFrame], answers: list[bytes]) -> None:
        runs.append((frames[0][1]["code"], len(frames)))

    connection, _ = await wired(hot_handlers={HOT: hot, OTHER_HOT: hot}, max_runs={OTHER_HOT: 3})
    for code in (HOT, OTHER_HOT):
        connection.data_received(request(code).encode() * 7)
    connection.data_received(request(HOT).encode() * 600)
    assert runs == [
        (HOT, 7),
        (OTHER_HOT, 3),
        (OTHER_HOT, 3),
        (OTHER_HOT, 1),
        (HOT, 256),
        (HOT, 256),
        (HOT, 88),
    ]


async def test_one_end_of_chunk_for_a_chunk_without_answers() -> None:
    ends: list[int] = []
    connection, wire = await wired(
        hot_handlers={HOT: hot_echo}, on_chunk_end=lambda: ends.append(1)
    )
    connection.data_received(request(HOT, flag=FLAG_ONEWAY).encode() * 10)
    assert ends == [1]
    assert wire.written == []


@on_both_loops
async def test_oneway_requests_get_no_answer(caplog: Log) -> None:
    seen: list[int] = []

    def note(_: Connection, command: RemotingCommand) -> RemotingCommand:
        seen.append(command.opaque)
        if command.opaque == 2:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "nobody will hear")
        if command.opaque == 3:
            raise KeyError("nobody will hear")
        return command.answer()

    async def later(_: Connection, command: RemotingCommand) -> RemotingCommand:
        return note(_, command)

    handlers = {ECHO: echo, 1000: note, 1001: later}
    async with (
        serving(handlers, hot_handlers={HOT: hot_echo}) as server,
        connected(server) as client,
    ):
        client.write(
            *(request(1000, n, flag=FLAG_ONEWAY) for n in range(4)),
            *(request(1001, n, flag=FLAG_ONEWAY) for n in range(4)),
            request(4242, flag=FLAG_ONEWAY),
            request(HOT, flag=FLAG_ONEWAY),
            request(ECHO, 77),
        )
        assert (await client.read()).opaque == 77
        await until(lambda: len(seen) == 8 and not server.tasks)
        assert (await client.ask(request(ECHO, 78))).opaque == 78
    # Failures of requests whose sender does not listen are in the log at least.
    assert len(server_log(caplog)) == 2


@on_both_loops
async def test_unknown_code() -> None:
    async with serving(hot_handlers={HOT: hot_echo}) as server, connected(server) as client:
        for code in (0, 9999, -1, 0x7FFFFFFF):
            answer = await client.ask(request(code, 7))
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED == 3
            assert answer.opaque == 7
            assert answer.remark == f" request type {code} not supported"
        assert (await client.ask(request(body=b"still here"))).body == b"still here"


@on_both_loops
async def test_answers_use_the_request_s_encoding() -> None:
    async def later(_: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.answer()

    def refuse(_: Connection, command: RemotingCommand) -> RemotingCommand:
        raise RequestError(ResponseCode.NO_PERMISSION, "no")

    async with serving({ECHO: echo, 1: later, 2: refuse}) as server, connected(server) as client:
        for encoding in Encoding:
            for code in (ECHO, 1, 2, 4242):
                answer = await client.ask(request(code, 3, encoding=encoding))
                assert answer.encoding is encoding
                assert answer.opaque == 3


# Errors of handlers


@on_both_loops
async def test_request_error_is_the_answer(caplog: Log) -> None:
    def refuse(_: Connection, command: RemotingCommand) -> RemotingCommand:
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, "no such topic")

    async def refuse_later(_: Connection, command: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(0)
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, "no such topic")

    async with serving({1: refuse, 2: refuse_later}) as server, connected(server) as client:
        for code in (1, 2):
            answer = await client.ask(request(code, 5))
            assert (answer.code, answer.remark, answer.opaque) == (17, "no such topic", 5)
    assert server_log(caplog) == []


@on_both_loops
@pytest.mark.parametrize(
    "error",
    [ValueError("bad number"), KeyError("key"), RecursionError("deep"), OSError(5, "disk")],
    ids=lambda error: type(error).__name__,
)
async def test_any_other_error_is_a_system_error_and_one_line(
    error: Exception, caplog: Log
) -> None:
    def fail(_: Connection, command: RemotingCommand) -> RemotingCommand:
        raise error

    async def fail_later(_: Connection, command: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(0)
        raise error

    async with (
        serving({1: fail, 2: fail_later, ECHO: echo}) as server,
        connected(server) as client,
    ):
        for code in (1, 2):
            caplog.clear()
            answer = await client.ask(request(code, 5))
            assert (answer.code, answer.opaque) == (ResponseCode.SYSTEM_ERROR, 5)
            assert answer.remark == f"{type(error).__name__}: {error}"
            [line] = server_log(caplog)
            assert line == f"{client.address}: request {code} failed: {answer.remark}"
        assert (await client.ask(request(body=b"on"))).body == b"on"


@on_both_loops
@pytest.mark.parametrize("encoding", list(Encoding), ids=lambda encoding: encoding.name)
async def test_answer_that_cannot_be_written_is_a_system_error(encoding: Encoding) -> None:
    def surrogate(_: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.answer(remark="\ud800")

    async def too_long(_: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.answer(remark="\x01" * MAX_FRAME)

    async with (
        serving({1: surrogate, 2: too_long, ECHO: echo}) as server,
        connected(server) as client,
    ):
        for code in (1, 2):
            answer = await client.ask(request(code, 5, encoding=encoding))
            assert (answer.code, answer.opaque) == (ResponseCode.SYSTEM_ERROR, 5)
        assert (await client.ask(request(body=b"on"))).body == b"on"


@on_both_loops
async def test_handlers_may_answer_later_or_not_at_all() -> None:
    gate = asyncio.Event()

    async def wait(_: Connection, command: RemotingCommand) -> RemotingCommand:
        await gate.wait()
        return command.answer(body=b"late")

    def never(_: Connection, command: RemotingCommand) -> None:
        return None

    async def never_later(_: Connection, command: RemotingCommand) -> None:
        return None

    handlers = {ECHO: echo, 1: wait, 2: never, 3: never_later}
    async with serving(handlers) as server, connected(server) as client:
        client.write(request(1, 1), request(2, 2), request(3, 3), request(ECHO, 4))
        assert (await client.read()).opaque == 4
        gate.set()
        late = await client.read()
        assert (late.opaque, late.body) == (1, b"late")


@on_both_loops
async def test_handler_may_close_the_connection() -> None:
    def close(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        connection.close()
        connection.send(command.answer())  # nothing after a close
        return command.answer()

    async with serving({1: close, ECHO: echo}) as server, connected(server) as client:
        client.write(request(1), request(ECHO))
        await client.closed()


@on_both_loops
async def test_late_answer_to_a_lost_connection_is_dropped() -> None:
    gate = asyncio.Event()

    async def wait(_: Connection, command: RemotingCommand) -> RemotingCommand:
        await gate.wait()
        return command.answer()

    async with serving({1: wait}) as server:
        async with connected(server) as client:
            client.write(request(1))
            await until(lambda: server.tasks)
        await until(lambda: not server.connections)
        gate.set()
        await until(lambda: not server.tasks)


@on_both_loops
async def test_failing_hot_handler_closes_its_connection_only(caplog: Log) -> None:
    def fail(_: Connection, frames: list[RawFrame], answers: list[bytes]) -> None:
        answers.append(b"half an answer")
        raise KeyError("opaque")

    ends: list[int] = []
    async with (
        serving(
            hot_handlers={HOT: hot_echo, OTHER_HOT: fail}, on_chunk_end=lambda: ends.append(1)
        ) as server,
        connected(server) as client,
        connected(server) as other,
    ):
        client.write(request(HOT, 1), request(OTHER_HOT, 2), request(HOT, 3))
        # What was done before is answered.
        assert (await client.read()).opaque == 1
        await client.closed()
        assert ends == [1]
        [line] = server_log(caplog)
        assert client.address in line
        assert (await other.ask(request(HOT, 4))).opaque == 4


@on_both_loops
async def test_hot_handler_that_refuses_a_frame_is_answered_up_to_it(caplog: Log) -> None:
    def refuse(connection: Connection, frames: list[RawFrame], answers: list[bytes]) -> None:
        hot_echo(connection, frames[:2], answers)
        raise FrameError("the third is of no use")

    async with (
        serving(hot_handlers={HOT: refuse}) as server,
        connected(server) as client,
    ):
        client.write(*(request(HOT, n) for n in range(4)))
        assert [(await client.read()).opaque for _ in range(2)] == [0, 1]
        await client.closed()
        assert server_log(caplog) == [
            f"{client.address} sent no RocketMQ frame: the third is of no use: closed"
        ]


# Bytes that are no frame


BAD_BYTES = {
    "http": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "zeros": bytes(64),
    "too long": struct.pack(">II", 17 * MIB, 0),
    "longest": b"\xff" * 8,
    "header too long": struct.pack(">II", 20, 100) + bytes(16),
    "no encoding": frame_prefix(9, 2, 0) + b"{}",
    "no json": raw_json(b"{nonsense}"),
    "no object": raw_json(b"[]"),
    "no code": raw_json(b"{}"),
    "code is text": raw_json(b'{"code":"34"}'),
    "code is a list": raw_json(b'{"code":[34]}'),
    "code is a bomb": raw_json(b'{"code":' + b"[" * 1000 + b"]" * 1000 + b"}"),
    "code is huge": raw_json(b'{"code":99999999999}'),
    "code is null": raw_json(b'{"code":null}'),
    "flag is null": raw_json(b'{"code":34,"flag":null}'),
    "flag is text": raw_json(b'{"code":34,"flag":"1"}'),
    "hot flag is text": raw_json(b'{"code":10,"flag":"1"}'),
    "remark is a bomb": raw_json(b'{"code":34,"remark":' + b"[" * 1000 + b"]" * 1000 + b"}"),
    "extFields is a list": raw_json(b'{"code":34,"extFields":[]}'),
    "extField is a bomb": raw_json(
        b'{"code":34,"extFields":{"a":' + b"[" * 900 + b"]" * 900 + b"}}"
    ),
    "no utf-8": raw_json(b'{"code":34,"remark":"\xff"}'),
    "torn binary": frame_prefix(1, 5, 0) + bytes(5),
}


@on_both_loops
@pytest.mark.parametrize("data", list(BAD_BYTES.values()), ids=list(BAD_BYTES))
async def test_bytes_that_are_no_frame(data: bytes, caplog: Log) -> None:
    async with (
        serving(hot_handlers={HOT: hot_echo}) as server,
        connected(server) as client,
        connected(server) as other,
    ):
        # Frames before the bad bytes are good, and get their answers.
        good = request(HOT, 1).encode() + request(HOT, 2).encode() + request(ECHO, 3).encode()
        client.writer.write(good + data + request(ECHO, 4).encode())
        assert [(await client.read()).opaque for _ in range(3)] == [1, 2, 3]
        await client.closed()
        [line] = server_log(caplog)
        assert line.startswith(f"{client.address} sent no RocketMQ frame: ")
        assert line.endswith(": closed")
        assert (await other.ask(request(ECHO, 5))).opaque == 5


@on_both_loops
async def test_bad_frame_inside_a_run_does_not_spoil_those_before() -> None:
    async with serving(hot_handlers={HOT: hot_echo}) as server, connected(server) as client:
        good = b"".join(request(HOT, n).encode() for n in range(5))
        client.writer.write(good + raw_json(b'{"opaque":5}') + good)
        assert [(await client.read()).opaque for _ in range(5)] == list(range(5))
        await client.closed()


@on_both_loops
async def test_frame_limit_is_exact() -> None:
    async with serving(max_frame=1000) as server:
        empty = len(request().encode())
        async with connected(server) as client:
            assert len((await client.ask(request(body=bytes(1000 - empty)))).body) == 1000 - empty
            client.write(request(body=bytes(1001 - empty)))
            await client.closed()


@on_both_loops
async def test_too_long_a_frame_is_refused_before_it_is_there(caplog: Log) -> None:
    async with serving() as server, connected(server) as client:
        client.writer.write(struct.pack(">I", 17 * MIB))
        await client.writer.drain()
        connection = await connection_of(server, client)
        client.writer.write(bytes(4))
        await client.closed()
        assert connection.closed
        [line] = server_log(caplog)
        assert line == (
            f"{client.address} sent no RocketMQ frame: frame of {17 * MIB + 4} bytes, "
            f"at most {MAX_FRAME} are allowed: closed"
        )


# Requests to the client


def asker(answers: list[object], timeout: float = DEADLINE) -> Callable[..., Any]:
    async def ask(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        try:
            answers.append(await connection.request(request(39, 0, b"ask"), timeout))
        except Exception as error:
            answers.append(error)
        return command.answer()

    return ask


@on_both_loops
@pytest.mark.parametrize("code", [0, HOT, OTHER_HOT, ECHO, 4242])
async def test_request_to_the_client(code: int) -> None:
    answers: list[Any] = []
    hot = {HOT: hot_echo, OTHER_HOT: hot_echo}
    async with (
        serving({1: asker(answers), ECHO: echo}, hot_handlers=hot) as server,
        connected(server) as client,
    ):
        client.write(request(1, 8))
        asked = await client.read()
        assert (asked.code, asked.body, asked.is_response) == (39, b"ask", False)
        # The answer's code may be that of a hot request, and hot requests stand around it.
        client.write(request(HOT, 20), asked.answer(code, "done", body=b"told"), request(HOT, 21))
        got = [await client.read() for _ in range(3)]
        assert sorted(answer.opaque for answer in got) == [8, 20, 21]
    [answer] = answers
    assert (answer.code, answer.remark, answer.body) == (code, "done", b"told")


@on_both_loops
async def test_many_requests_to_the_client_keep_apart() -> None:
    async with serving() as server, connected(server) as client:
        connection = await connection_of(server, client)
        asking = [
            asyncio.ensure_future(connection.request(request(39, 0, b"%d" % n), DEADLINE))
            for n in range(50)
        ]
        asked = [await client.read() for _ in asking]
        assert len({command.opaque for command in asked}) == 50
        client.write(*(command.answer(body=b"re:" + command.body) for command in reversed(asked)))
        answers = await asyncio.gather(*asking)
        assert [answer.body for answer in answers] == [b"re:%d" % n for n in range(50)]


@on_both_loops
async def test_request_to_a_silent_client_times_out() -> None:
    async with serving() as server, connected(server) as client:
        connection = await connection_of(server, client)
        with pytest.raises(RemotingTimeoutError, match=f"{client.address} gave no answer") as info:
            await connection.request(request(39), 0.01)
        assert info.value.address == client.address
        # Its answer comes too late, and harms nobody.
        client.write((await client.read()).answer(), request(ECHO, 9))
        assert (await client.read()).opaque == 9


@on_both_loops
async def test_answer_to_nothing_is_ignored() -> None:
    async with serving(hot_handlers={HOT: hot_echo}) as server, connected(server) as client:
        client.write(
            request(HOT, 1, flag=FLAG_RESPONSE),
            request(ECHO, -5, flag=FLAG_RESPONSE),
            request(ECHO, 2),
        )
        assert (await client.read()).opaque == 2


@on_both_loops
async def test_lost_connection_fails_what_is_pending() -> None:
    gone: list[Connection] = []
    async with serving(on_disconnect=gone.append) as server:
        async with connected(server) as client:
            connection = await connection_of(server, client)
            asking = [
                asyncio.ensure_future(connection.request(request(39), DEADLINE)) for _ in range(3)
            ]
            await client.read()
        for pending in asking:
            with pytest.raises(RemotingClosedError, match="the connection was lost") as info:
                await pending
            assert info.value.address == connection.remote_address
        assert gone == [connection]
        with pytest.raises(RemotingClosedError, match="the connection is closed"):
            await connection.request(request(39), DEADLINE)
        connection.send(request(39))
        connection.close()
        connection.abort()


# Back-pressure


def slow_reader(server: RemotingServer) -> contextlib.AbstractAsyncContextManager[Client]:
    """A client whose socket takes little and who reads nothing unless asked."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.connect(("127.0.0.1", server.port))
    return connected_by(plain)


@contextlib.asynccontextmanager
async def connected_by(plain: socket.socket) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(sock=plain, limit=1024)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


def unsent(connection: Connection) -> int:
    assert connection._transport is not None
    return connection._transport.get_write_buffer_size()


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
    monkeypatch.setattr(server_module, "_MAX_UNFINISHED", 10)
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


# The end of a chunk


@on_both_loops
async def test_answers_do_not_leave_when_the_chunk_cannot_be_ended(caplog: Log) -> None:
    failing = True

    def end() -> None:
        if failing:
            raise OSError(28, "No space left on device")

    async def later(_: Connection, command: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(0)
        return command.answer()

    handlers = {ECHO: echo, 1: later}
    async with serving(handlers, hot_handlers={HOT: hot_echo}, on_chunk_end=end) as server:
        for code in (ECHO, HOT, 1):
            caplog.clear()
            async with connected(server) as client:
                client.write(request(code))
                await client.closed()
                [line] = server_log(caplog)
                assert line == f"{client.address}: the chunk could not be ended: closed"
        failing = False
        async with connected(server) as client:
            assert (await client.ask(request(ECHO, 1))).opaque == 1
            assert (await client.ask(request(1, 2))).opaque == 2


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
    monkeypatch.setattr(server_module, "_CLOSE_SECONDS", 0.05)
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
            for _ in range(20):  # tidying up takes a while
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
    server = RemotingServer({ECHO: echo}, host="127.0.0.1")
    assert server.port == 0
    for _ in range(2):
        await server.start()
        async with connected(server) as client:
            assert (await client.ask(request(ECHO, 1))).opaque == 1
        await server.stop()
        await server.stop()
    server.bind()
    server.bind()
    server.close_socket()


@on_both_loops
async def test_taken_port_is_named() -> None:
    async with serving() as server:
        second = RemotingServer({}, host="127.0.0.1", port=server.port)
        with pytest.raises(OSError, match=f"127.0.0.1:{server.port}"):
            await second.start()
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
        assert connection._transport is not None
        accepted = connection._transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


@on_both_loops
async def test_ipv6() -> None:
    server = RemotingServer({ECHO: echo}, host="::1")
    try:
        await server.start()
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

    def refuse(code: int, waited: float, behind: int) -> RequestError | None:
        assert waited >= 0.01
        asked.append((code, behind))
        return RequestError(ResponseCode.SYSTEM_BUSY, "too late") if code == HOT else None

    server = RemotingServer(
        {ECHO: echo, RequestCode.QUERY_MESSAGE: stall},
        host="127.0.0.1",
        hot_handlers={HOT: hot_echo},
    )
    server.lateness.limit = 0.01
    server.refuse_late = refuse
    await server.start()
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

    server = RemotingServer({ECHO: echo, HOT: later}, host="127.0.0.1")
    await server.start()
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

    server = RemotingServer({ECHO: never}, host="127.0.0.1")
    await server.start()
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
    server = RemotingServer({ECHO: echo}, host="127.0.0.1")
    await server.start()
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
