"""The remoting client against a small server whose behaviour each test scripts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import (
    MAX_FRAME,
    FrameReader,
    RemotingCommand,
    RequestError,
    split_frames,
)
from pyromq.remoting import client as client_module
from pyromq.remoting.client import (
    RemotingClient,
    RemotingClosedError,
    RemotingConnectError,
    RemotingTimeoutError,
    ServerConnection,
)
from tests.support.clocks import held_loop, on_held_loop
from tests.support.loops import on_both_loops
from tests.support.patience import DEADLINE, until

Script = Callable[["Peer"], Awaitable[None]]


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.frames = FrameReader()
        self.commands: list[RemotingCommand] = []
        self.chunks = 0

    async def next(self) -> RemotingCommand | None:
        while not self.commands:
            data = await self.reader.read(1 << 16)
            if not data:
                return None
            self.chunks += 1
            self.commands += self.frames.feed(data)
        return self.commands.pop(0)

    def send(self, command: RemotingCommand) -> None:
        self.writer.write(command.encode())


class FakeServer:
    def __init__(self, script: Script, host: str) -> None:
        self.script, self.host = script, host
        self.peers: list[Peer] = []

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, self.host, 0)
        port = self.server.sockets[0].getsockname()[1]
        self.address = f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self.peers.append(peer)
        try:
            await self.script(peer)
        except ConnectionError:
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def serving(script: Script, host: str = "127.0.0.1") -> AsyncIterator[FakeServer]:
    server = FakeServer(script, host)
    await server.start()
    try:
        async with asyncio.timeout(DEADLINE):
            yield server
    finally:
        server.server.close()
        for peer in server.peers:
            peer.writer.transport.abort()
        await server.server.wait_closed()


@contextlib.asynccontextmanager
async def closing(client: RemotingClient) -> AsyncIterator[RemotingClient]:
    try:
        yield client
    finally:
        await client.close()


async def echo(peer: Peer) -> None:
    while (command := await peer.next()) is not None:
        if not command.is_oneway:
            peer.send(command.answer(body=command.body))


async def silent(peer: Peer) -> None:
    while await peer.next() is not None:
        pass


def command(body: bytes = b"", code: int = RequestCode.HEART_BEAT) -> RemotingCommand:
    return RemotingCommand(code=code, body=body)


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def test_concurrent_requests_share_one_connection_and_get_their_own_answers() -> None:
    async with serving(echo) as server, closing(RemotingClient()) as client:
        answers = await asyncio.gather(
            *(client.request(server.address, command(b"%d" % number)) for number in range(100))
        )
        assert [answer.body for answer in answers] == [b"%d" % number for number in range(100)]
        assert len(server.peers) == 1


async def test_each_connection_that_was_made_is_told() -> None:
    made: list[str] = []
    async with serving(echo) as server, closing(RemotingClient(on_connect=made.append)) as client:
        for _ in range(2):
            await client.request(server.address, command())
        assert made == [server.address]
        server.peers[0].writer.transport.abort()
        await until(lambda: client.ready(server.address) is None)
        await client.request(server.address, command())
        assert made == [server.address] * 2


async def test_requests_of_one_turn_leave_in_one_write() -> None:
    async with serving(echo) as server, closing(RemotingClient()) as client:
        await client.request(server.address, command())
        before = server.peers[0].chunks
        await asyncio.gather(*(client.request(server.address, command()) for _ in range(50)))
        assert server.peers[0].chunks == before + 1


async def test_half_of_the_requests_that_follow_responses_leave_early() -> None:
    writes: list[int] = []

    class Transport(asyncio.Transport):
        def write(self, data: Any) -> None:
            frames, _, _ = split_frames(bytes(data))
            writes.append(len(frames))

    def numbered(opaque: int) -> RemotingCommand:
        return RemotingCommand(RequestCode.HEART_BEAT, opaque=opaque)

    connection = ServerConnection("server", {}, MAX_FRAME, lambda _: None)
    connection.connection_made(Transport())

    async def ask(times: int) -> None:
        for _ in range(times):
            opaque = connection.next_opaque()
            await connection.call(opaque, numbered(opaque).encode(), 0, 3.0)

    asking = [asyncio.create_task(ask(2)) for _ in range(5)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert writes == [5]
    connection.data_received(b"".join(numbered(n).answer().encode() for n in range(1, 6)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert writes == [5, 3, 2]
    connection.data_received(numbered(6).answer().encode())
    await asking[0]
    later = asyncio.create_task(ask(1))  # not called by the response
    await asyncio.sleep(0)
    assert writes == [5, 3, 2]
    await asyncio.sleep(0)
    assert writes == [5, 3, 2, 1]
    for task in (*asking, later):
        task.cancel()


async def test_answers_may_come_in_any_order() -> None:
    async def reverse(peer: Peer) -> None:
        requests = [await peer.next() for _ in range(3)]
        for request in reversed(requests):
            assert request is not None
            peer.send(request.answer(body=request.body))
        await peer.next()

    async with serving(reverse) as server, closing(RemotingClient()) as client:
        answers = await asyncio.gather(
            *(client.request(server.address, command(body)) for body in (b"a", b"b", b"c"))
        )
        assert [answer.body for answer in answers] == [b"a", b"b", b"c"]


async def test_ipv6() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    async with serving(echo, "::1") as server, closing(RemotingClient()) as client:
        answer = await client.request(server.address, command(b"six"))
        assert answer.body == b"six"


async def test_error_answers_are_answers() -> None:
    async def refuse(peer: Peer) -> None:
        request = await peer.next()
        assert request is not None
        peer.send(request.answer(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]"))
        await peer.next()

    async with serving(refuse) as server, closing(RemotingClient()) as client:
        answer = await client.request(server.address, command())
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_BUSY, "[OVERLOAD]")


async def test_oneway_sets_the_flag_and_waits_for_nothing_and_close_sends_it() -> None:
    seen: list[RemotingCommand] = []

    async def keep(peer: Peer) -> None:
        while (request := await peer.next()) is not None:
            seen.append(request)

    async with serving(keep) as server:
        client = RemotingClient()
        await client.send_oneway(server.address, command(b"gone"))
        await client.close()
        await until(lambda: bool(seen))
        assert seen[0].is_oneway
        assert seen[0].body == b"gone"


async def test_no_answer_in_time_names_address_and_request() -> None:
    async with serving(silent) as server, closing(RemotingClient()) as client:
        with pytest.raises(RemotingTimeoutError) as caught:
            await client.request(server.address, command(), timeout=0.05)
        assert caught.value.address == server.address
        assert server.address in str(caught.value)
        assert "HEART_BEAT" in str(caught.value)


async def test_a_connection_that_fell_silent_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cable that was cut, a firewall that forgot us: nobody tells, no answer ever comes."""
    monkeypatch.setattr(client_module, "SILENT_SECONDS", DEADLINE)

    async def first_falls_silent(peer: Peer) -> None:
        if len(server.peers) == 1:
            request = await peer.next()
            assert request is not None
            peer.send(request.answer())
            await silent(peer)
        else:
            await echo(peer)

    async with serving(first_falls_silent) as server, closing(RemotingClient()) as client:
        await client.request(server.address, command(), DEADLINE)
        waiting = asyncio.create_task(client.request(server.address, command(), DEADLINE))
        for _ in range(2):
            with pytest.raises(RemotingTimeoutError):
                await client.request(server.address, command(), 0.1)
        # Not long enough yet: the same connection.
        assert len(server.peers) == 1
        monkeypatch.setattr(client_module, "SILENT_SECONDS", 0.25)
        with pytest.raises(RemotingTimeoutError):
            await client.request(server.address, command(), 0.1)
        with pytest.raises(RemotingClosedError, match="silent"):
            await waiting
        answer = await client.request(server.address, command(b"again"), DEADLINE)
        assert answer.body == b"again"
        assert len(server.peers) == 2


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_answer_that_came_while_the_loop_was_blocked_counts(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """An application may block its loop; the broker is not to blame (uvloop looks at its
    timers before it looks at its sockets).
    """
    listener = socket.create_server(("127.0.0.1", 0))
    is_answered = threading.Event()

    def serve() -> None:
        peer, _ = listener.accept()
        frames = FrameReader()
        with peer:
            while data := peer.recv(1 << 16):
                for request in frames.feed(data):
                    peer.sendall(request.answer().encode())
                    is_answered.set()

    async def main() -> RemotingCommand:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        async with closing(RemotingClient()) as client:
            await client.request(address, command(), DEADLINE)
            is_answered.clear()
            waiting = asyncio.create_task(client.request(address, command(), 0.05))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            is_answered.wait(DEADLINE)
            time.sleep(0.3)  # noqa: ASYNC251 - that is the point
            return await waiting

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            assert runner.run(main()).code == ResponseCode.SUCCESS
    finally:
        listener.close()
        thread.join()


@on_held_loop
async def test_one_answer_that_is_missing_breaks_no_connection() -> None:
    """As long as others are answered, the server is there."""
    loop = held_loop()

    async def answer_heartbeats(peer: Peer) -> None:
        while (request := await peer.next()) is not None:
            if request.code == RequestCode.HEART_BEAT:
                peer.send(request.answer())

    async with serving(answer_heartbeats) as server, closing(RemotingClient()) as client:
        await client.request(server.address, command(), DEADLINE)
        ignored = command(code=RequestCode.PULL_MESSAGE)
        patience = 2 * client_module.SILENT_SECONDS
        waiting = asyncio.create_task(client.request(server.address, ignored, patience))
        for _ in range(10):
            assert not waiting.done()
            await client.request(server.address, command(), DEADLINE)
            await loop.pass_time(patience / 9)
        with pytest.raises(RemotingTimeoutError):
            await waiting
        await client.request(server.address, command(), DEADLINE)
        assert len(server.peers) == 1


async def test_late_answer_is_dropped_and_the_connection_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def late(peer: Peer) -> None:
        first = await peer.next()
        second = await peer.next()
        assert first is not None
        assert second is not None
        peer.send(first.answer(body=b"late"))
        peer.send(second.answer(body=b"second"))
        await peer.next()

    caplog.set_level(logging.DEBUG, "pyromq.remoting.client")
    async with serving(late) as server, closing(RemotingClient()) as client:
        await client.connect(server.address)
        with pytest.raises(RemotingTimeoutError):
            await client.request(server.address, command(), timeout=0.05)
        assert (await client.request(server.address, command())).body == b"second"
        assert any("is late" in record.message for record in caplog.records)


@pytest.mark.parametrize("address", ["nowhere", ":1", "127.0.0.1:0", "127.0.0.1:99999", ""])
async def test_what_is_no_address_cannot_be_connected_to(address: str) -> None:
    """A NameServer may tell anything."""
    client = RemotingClient()
    with pytest.raises(RemotingConnectError, match="not an address"):
        await client.request(address, RemotingCommand(RequestCode.HEART_BEAT))
    await client.close()


async def test_refused_connection_names_the_address() -> None:
    address = free_address()
    async with closing(RemotingClient()) as client:
        with pytest.raises(RemotingConnectError) as caught:
            await client.request(address, command())
        assert address in str(caught.value)


@pytest.mark.parametrize("address", ["no.such.host.invalid:1", f"{'a' * 80}.invalid:1"])
async def test_unknown_host_is_a_connect_error(address: str) -> None:
    async with closing(RemotingClient()) as client:
        with pytest.raises(RemotingConnectError):
            await client.request(address, command(), timeout=DEADLINE)


async def test_connect_time_out() -> None:
    # A listener whose backlog is full leaves the next connection without an answer.
    with socket.socket() as listener, contextlib.ExitStack() as fillers:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        async with closing(RemotingClient(connect_timeout=0.05)) as client:
            with pytest.raises(RemotingConnectError, match=r"within 0\.05 s"):
                await client.request(address, command(), timeout=DEADLINE)


@on_both_loops
async def test_a_connection_that_is_lost_before_a_frame_leaves() -> None:
    """Frames leave at the end of a loop iteration; an unhandled error there fails this test."""

    hung_up = asyncio.Event()

    async def hung_up_on(peer: Peer) -> None:
        with contextlib.suppress(ConnectionError):
            await peer.next()
        hung_up.set()

    async with serving(hung_up_on) as server, closing(RemotingClient()) as client:
        connection = await client.connect(server.address)
        connection._transport.abort()
        answer = connection.call(1, b"frame", 10, DEADLINE)
        with pytest.raises(RemotingClosedError, match="was lost"):
            await answer
        # Python 3.11.7 reports a server's handler that is cancelled as an unhandled error.
        await hung_up.wait()


async def test_lost_connection_fails_all_requests_at_once_and_the_next_one_reconnects() -> None:
    async def hang_up_first(peer: Peer) -> None:
        if len(server.peers) > 1:
            await echo(peer)
        for _ in range(3):
            await peer.next()

    async with serving(hang_up_first) as server, closing(RemotingClient()) as client:
        results = await asyncio.gather(
            *(client.request(server.address, command(), timeout=DEADLINE) for _ in range(3)),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [RemotingClosedError] * 3
        assert server.address in str(results[0])
        assert (await client.request(server.address, command(b"again"))).body == b"again"


async def test_garbage_from_the_server_closes_the_connection_with_its_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def garbage(peer: Peer) -> None:
        await peer.next()
        peer.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.next()

    async with serving(garbage) as server, closing(RemotingClient()) as client:
        with pytest.raises(RemotingClosedError, match="no RocketMQ frame"):
            await client.request(server.address, command(), timeout=DEADLINE)
        assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1


async def test_one_caller_that_gives_up_does_not_end_the_others_attempt() -> None:
    async with serving(echo) as server, closing(RemotingClient()) as client:
        first = asyncio.create_task(client.request(server.address, command(b"1")))
        second = asyncio.create_task(client.request(server.address, command(b"2")))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).body == b"2"
        with pytest.raises(asyncio.CancelledError):
            await first


async def ask(peer: Peer, request: RemotingCommand) -> RemotingCommand:
    """Let the client speak first, then send it a request and take its answer."""
    first = await peer.next()
    assert first is not None
    peer.send(first.answer())
    peer.send(request)
    answer = await peer.next()
    assert answer is not None
    return answer


def notify(flag: int = 0) -> RemotingCommand:
    return RemotingCommand(
        code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        opaque=77,
        ext_fields={"consumerGroup": "g"},
        flag=flag,
    )


async def answer_to_server_request(
    handler: Callable[..., object] | None,
) -> tuple[RemotingCommand, str]:
    answers: list[RemotingCommand] = []

    async def script(peer: Peer) -> None:
        answers.append(await ask(peer, notify()))

    handlers = {int(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED): handler} if handler else None
    async with (
        serving(script) as server,
        closing(RemotingClient(handlers)) as client,  # type: ignore[arg-type]
    ):
        await client.request(server.address, command())
        await until(lambda: bool(answers))
        return answers[0], server.address


async def test_requests_of_the_server_go_to_their_handler() -> None:
    seen: list[tuple[str, str]] = []

    def handler(address: str, request: RemotingCommand) -> RemotingCommand:
        seen.append((address, request.ext_fields["consumerGroup"]))
        return request.answer(body=b"done")

    answer, address = await answer_to_server_request(handler)
    assert (answer.is_response, answer.opaque, answer.body) == (True, 77, b"done")
    assert seen == [(address, "g")]


async def test_coroutine_handlers_answer_later() -> None:
    async def handler(address: str, request: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(0)
        return request.answer(body=b"later")

    answer, _ = await answer_to_server_request(handler)
    assert answer.body == b"later"


async def test_server_request_without_handler_is_refused() -> None:
    answer, _ = await answer_to_server_request(None)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == "request type 40 not supported"


async def test_handler_that_refuses_or_fails_answers_so(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(address: str, request: RemotingCommand) -> RemotingCommand:
        raise RequestError(ResponseCode.NO_MESSAGE, "nothing here")

    async def fail(address: str, request: RemotingCommand) -> RemotingCommand:
        raise LookupError("broken")

    answer, _ = await answer_to_server_request(refuse)
    assert (answer.code, answer.remark) == (ResponseCode.NO_MESSAGE, "nothing here")
    answer, _ = await answer_to_server_request(fail)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "LookupError: broken")
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1


async def test_oneway_requests_of_the_server_get_no_answer() -> None:
    frames: list[RemotingCommand | None] = []

    async def script(peer: Peer) -> None:
        first = await peer.next()
        assert first is not None
        peer.send(notify(flag=2))
        peer.send(first.answer())
        frames.append(await peer.next())

    async with serving(script) as server, closing(RemotingClient()) as client:
        await client.request(server.address, command())
        await client.send_oneway(server.address, command(b"next"))
        await until(lambda: bool(frames))
        assert frames[0] is not None
        assert frames[0].body == b"next"


async def test_senders_wait_while_the_peer_does_not_read() -> None:
    reading = asyncio.Event()

    async def slow(peer: Peer) -> None:
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await reading.wait()
        peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
        await echo(peer)

    big = bytes(1 << 20)
    async with serving(slow) as server, closing(RemotingClient()) as client:
        requests = [
            asyncio.create_task(client.request(server.address, command(big), timeout=DEADLINE))
            for _ in range(32)
        ]
        # The first turn fills the socket; whoever comes after it has to wait.
        await asyncio.sleep(0.1)
        late = asyncio.create_task(client.send_oneway(server.address, command(big)))
        await asyncio.sleep(0.05)
        assert not late.done()
        reading.set()
        answers = await asyncio.gather(*requests)
        await late
        assert all(len(answer.body) == len(big) for answer in answers)


async def test_close_fails_what_is_open_and_refuses_what_comes_after() -> None:
    async with serving(silent) as server:
        client = RemotingClient()
        request = asyncio.create_task(client.request(server.address, command(), timeout=DEADLINE))
        await until(lambda: bool(server.peers and server.peers[0].chunks))
        await client.close()
        with pytest.raises(RemotingClosedError):
            await request
        with pytest.raises(RemotingClosedError, match="was closed"):
            await client.request(server.address, command())


async def test_close_while_connecting_ends_the_attempt() -> None:
    async with serving(silent) as server:
        client = RemotingClient()
        request = asyncio.create_task(client.request(server.address, command()))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(RemotingClosedError):
            await request


async def test_command_that_cannot_be_encoded_leaves_the_connection_usable() -> None:
    async with serving(echo) as server, closing(RemotingClient()) as client:
        bad = RemotingCommand(code=1, ext_fields={"a": object()})  # type: ignore[dict-item]
        with pytest.raises(TypeError):
            await client.request(server.address, bad)
        assert (await client.request(server.address, command(b"fine"))).body == b"fine"


@on_held_loop
async def test_time_outs_on_a_standing_connection_are_each_their_own() -> None:
    """One timer serves all requests of a time-out: none is early, none forgotten."""
    loop = held_loop()

    async def answers_some(peer: Peer) -> None:
        while (asked := await peer.next()) is not None:
            if asked.body != b"ignored":
                peer.send(asked.answer(body=asked.body))

    async with serving(answers_some) as server, closing(RemotingClient()) as client:
        await client.request(server.address, command(b"hello"))
        for timeout in (1.0, 1.0, 2.0):
            whole, answered, half = (
                asyncio.create_task(client.request(server.address, command(body), timeout=seconds))
                for body, seconds in (
                    (b"ignored", timeout),
                    (b"answered", timeout),
                    (b"ignored", timeout / 2),
                )
            )
            assert (await answered).body == b"answered"
            await loop.pass_time(timeout * 0.4)
            assert not whole.done()
            assert not half.done()
            await loop.pass_time(timeout * 0.2)
            assert not whole.done()
            with pytest.raises(RemotingTimeoutError, match=f"{timeout / 2:g} s"):
                await half
            await loop.pass_time(timeout * 0.39)
            assert not whole.done()
            await loop.pass_time(timeout * 0.02)
            with pytest.raises(RemotingTimeoutError, match=f"{timeout:g} s"):
                await whole


async def test_a_request_that_is_given_up_leaves_nothing_behind() -> None:
    async with serving(silent) as server, closing(RemotingClient()) as client:
        connection = await client.connect(server.address)
        for timeout in (0.05, None):
            opaque = connection.next_opaque()
            asked = RemotingCommand(RequestCode.HEART_BEAT, opaque=opaque)
            answer = connection.call(opaque, asked.encode(), asked.code, timeout)
            answer.cancel()
            await until(lambda: not connection._pending and not connection._pending.deadlines)


async def test_raw_calls_give_the_frame_as_it_came() -> None:
    async with serving(echo) as server, closing(RemotingClient()) as client:
        assert client.ready(server.address) is None
        connection = await client.connect(server.address)
        assert client.ready(server.address) is connection
        opaque = connection.next_opaque()
        asked = RemotingCommand(RequestCode.HEART_BEAT, opaque=opaque, body=b"raw")
        _, header, body = await connection.call(opaque, asked.encode(), asked.code, 3.0)
        assert (header["opaque"], body) == (opaque, b"raw")
        await client.close()
        assert not connection.takes_frames
        with pytest.raises(RemotingClosedError):
            connection.call(1, b"", 0, 1.0)


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":0,"flag":1,"opaque":[]}',
        b'{"code":0,"flag":"x","opaque":1}',
        b'{"code":0,"flag":1}',
        b'{"code":"0","flag":1,"opaque":1}',
        b'{"flag":0,"opaque":1}',
    ],
)
async def test_answers_that_make_no_sense_close_the_connection(header: bytes) -> None:
    async def nonsense(peer: Peer) -> None:
        await peer.next()
        peer.writer.write(struct.pack(">II", 4 + len(header), len(header)) + header)
        await peer.next()

    async with serving(nonsense) as server, closing(RemotingClient()) as client:
        with pytest.raises(RemotingClosedError, match="no RocketMQ frame"):
            await client.request(server.address, command(), timeout=DEADLINE)
        assert client.ready(server.address) is None


async def test_every_request_can_be_changed_before_it_leaves() -> None:
    seen: list[str] = []

    def sign(address: str, request: RemotingCommand) -> None:
        seen.append(address)
        request.ext_fields["Signature"] = f"of {request.body!r}"

    async def shows_signature(peer: Peer) -> None:
        while (asked := await peer.next()) is not None:
            if not asked.is_oneway:
                peer.send(asked.answer(ext_fields=asked.ext_fields))

    async with (
        serving(shows_signature) as server,
        closing(RemotingClient(before_request=sign)) as client,
    ):
        for _ in range(2):
            answer = await client.request(server.address, command(b"x"))
            assert answer.ext_fields == {"Signature": "of b'x'"}
        await client.send_oneway(server.address, command(b"y"))
        assert seen == [server.address] * 3


@pytest.mark.parametrize(
    "scenario",
    [
        test_concurrent_requests_share_one_connection_and_get_their_own_answers,
        test_requests_of_one_turn_leave_in_one_write,
        test_oneway_sets_the_flag_and_waits_for_nothing_and_close_sends_it,
        test_no_answer_in_time_names_address_and_request,
        test_refused_connection_names_the_address,
        test_connect_time_out,
        test_lost_connection_fails_all_requests_at_once_and_the_next_one_reconnects,
        test_coroutine_handlers_answer_later,
        test_a_request_that_is_given_up_leaves_nothing_behind,
        test_raw_calls_give_the_frame_as_it_came,
        test_senders_wait_while_the_peer_does_not_read,
        test_close_fails_what_is_open_and_refuses_what_comes_after,
        test_close_while_connecting_ends_the_attempt,
    ],
    ids=lambda scenario: scenario.__name__.removeprefix("test_"),
)
def test_on_uvloop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Its transports and callbacks differ from asyncio's."""
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
