"""The server: order, runs and answers, errors of handlers, bytes that are no frame."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import (
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
from pyromq.remoting.connection import Connection
from pyromq.remoting.errors import RemotingClosedError, RemotingTimeoutError
from tests.support.loops import on_both_loops
from tests.support.patience import DEADLINE, until
from tests.unit.remoting.talking import (
    ECHO,
    HOT,
    MIB,
    OTHER_HOT,
    Log,
    connected,
    connection_of,
    echo,
    hot_echo,
    raw_json,
    request,
    server_log,
    serving,
    wired,
)

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


async def test_all_answers_of_a_chunk_leave_in_one_write_after_its_end() -> None:
    events: list[str] = []

    def end_chunk() -> None:
        events.append(f"{len(wire.written)}")

    connection, wire = await wired(hot_handlers={HOT: hot_echo}, on_chunk_end=end_chunk)
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
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
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
        return command.answer(ext_fields={"field": "\x01" * MAX_FRAME})

    def too_large(_: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.answer(body=bytes(MAX_FRAME))

    async with (
        serving({1: surrogate, 2: too_long, 3: too_large, ECHO: echo}) as server,
        connected(server) as client,
    ):
        for code in (1, 2, 3):
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
            f"limit {MAX_FRAME}: closed"
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
        with pytest.raises(
            RemotingTimeoutError, match=f"{client.address} gave no response"
        ) as info:
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
                assert line == f"{client.address}: ending the chunk failed: closed"
        failing = False
        async with connected(server) as client:
            assert (await client.ask(request(ECHO, 1))).opaque == 1
            assert (await client.ask(request(1, 2))).opaque == 2
