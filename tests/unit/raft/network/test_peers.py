"""Connections to peers, against servers that are scripted by the test."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from pyromq.protocol.wire.frame import FrameReader, RemotingCommand
from pyromq.raft.format import Run
from pyromq.raft.messages import (
    Code,
    Failed,
    HeartbeatRequest,
    HeartbeatResponse,
    PushRequest,
    PushResponse,
    PushType,
    Response,
)
from pyromq.raft.network import peers as peers_module
from pyromq.raft.network.binary_push import GREETING, encode_answer
from pyromq.raft.network.json_bodies import (
    CHECKSUM,
    BodyError,
    RaftCode,
    check_frame,
    checksum_of,
    decode_fields,
)
from pyromq.raft.network.peers import LinkState, Peer, PeerKind
from tests.support.apache_rocketmq import free_port
from tests.support.clocks import held_loop, on_held_loop
from tests.support.loops import on_both_loops
from tests.support.patience import DEADLINE, until

BASE: dict[str, Any] = {
    "group": "g",
    "local_id": "n0",
    "remote_id": "n1",
    "leader_id": "n0",
    "term": 3,
}
BEAT = HeartbeatRequest(**BASE)
RUN = Run(0, 1, 0, bytes(100))


def push(run: Run | None = None) -> PushRequest:
    return PushRequest(type=PushType.APPEND, commit_index=0, run=run, **BASE)


class Events:
    """Keeps what peers say."""

    def __init__(self) -> None:
        self.answers: dict[int, Response | Failed] = {}
        self.batches: list[int] = []
        self.runs: list[bool] = []

    def answered(self, peer: str, answers: list[tuple[int, Response | Failed]]) -> None:
        assert peer == "n1"
        self.batches.append(len(answers))
        for request_id, answer in answers:
            assert request_id not in self.answers
            self.answers[request_id] = answer

    def takes_runs(self, peer: str, *, is_able: bool) -> None:
        assert peer == "n1"
        self.runs.append(is_able)


class Server(asyncio.Protocol):
    """The other end: keeps requests, answers when it is told to."""

    def __init__(self) -> None:
        self.requests: list[RemotingCommand] = []
        self.reader = FrameReader()
        self.transports: list[asyncio.Transport] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transports.append(transport)  # type: ignore[arg-type]
        self.reader = FrameReader()

    def data_received(self, data: bytes) -> None:
        self.requests += self.reader.feed(data)

    def write(self, data: bytes) -> None:
        self.transports[-1].write(data)

    def answer(self, number: int, body: bytes = b'{"code":200}', *, is_ours: bool = False) -> None:
        request = self.requests[number]
        fields = {GREETING: "1"} if is_ours else {}
        self.write(request.answer(200, ext_fields=fields, body=body).encode())


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Peer, Server, Events]]:
    loop = asyncio.get_running_loop()
    server, events = Server(), Events()
    listening = await loop.create_server(lambda: server, "127.0.0.1", 0)
    address = listening.sockets[0].getsockname()
    peer = Peer("g", "n0", "n1", address, events)
    try:
        yield peer, server, events
    finally:
        await peer.stop()
        listening.close()
        await listening.wait_closed()


async def soon(condition: Callable[[], object]) -> None:
    """Wait for a condition while the loop's clock stands still."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0)


def is_in(peer: Peer, state: LinkState) -> bool:
    return peer.state is state


def send(peer: Peer, request_id: int, request: Any = BEAT) -> None:
    peer.send(request_id, request)
    peer.flush()


@on_both_loops
async def test_requests_wait_for_the_connection_and_are_answered() -> None:
    async with connected() as (peer, server, events):
        send(peer, 11)
        send(peer, 12)
        assert peer.state is LinkState.CONNECTING
        await until(lambda: len(server.requests) == 2)
        assert [each.code for each in server.requests] == [RaftCode.HEART_BEAT] * 2
        assert decode_fields(server.requests[0].body)["remoteId"] == "n1"
        first = server.requests[0]
        header = {"code": first.code, "opaque": first.opaque, "extFields": first.ext_fields}
        check_frame(header, first.body)
        with pytest.raises(BodyError):
            check_frame(header, first.body + b" ")
        server.answer(1, b'{"code":416,"term":-1}')
        await until(lambda: 12 in events.answers)
        server.answer(0)
        await until(lambda: 11 in events.answers)
        assert events.answers == {
            11: HeartbeatResponse(),
            12: HeartbeatResponse(code=Code.TERM_NOT_READY),
        }
        assert (peer.kind, events.runs, peer.pending) == (PeerKind.DLEDGER, [], 0)


@on_both_loops
async def test_frames_of_one_flush_arrive_in_order() -> None:
    async with connected() as (peer, server, _):
        send(peer, 1)
        await until(lambda: len(server.requests) == 1)
        for number in range(2, 40):
            peer.send(number, push())
        assert len(server.requests) == 1
        peer.flush()
        await until(lambda: len(server.requests) == 39)
        opaques = [each.opaque for each in server.requests]
        assert opaques == sorted(opaques)


@on_both_loops
async def test_a_peer_of_ours_gets_runs_after_its_greeting() -> None:
    async with connected() as (peer, server, events):
        send(peer, 1)
        await until(lambda: len(server.requests) == 1)
        send(peer, 2, push(RUN))  # it has not greeted
        await until(lambda: events.answers.get(2) == Failed())
        server.answer(0, is_ours=True)
        await until(lambda: 1 in events.answers)
        assert (events.runs, peer.kind) == ([True], PeerKind.PYROMQ)
        send(peer, 3, push(RUN))
        await until(lambda: len(server.requests) == 2)
        request = server.requests[1]
        assert (request.code, request.body[-100:]) == (70010, RUN.data)
        answer = PushResponse(term=3, index=0, count=1, begin_index=0, end_index=0)
        server.write(encode_answer(answer, request.opaque))
        await until(lambda: events.answers.get(3) == answer)
        # The next process at this address may be Java's.
        server.transports[-1].abort()
        await until(lambda: peer.state is LinkState.CLOSED)
        assert (events.runs, peer.kind) == ([True, False], PeerKind.UNKNOWN)


@on_both_loops
async def test_a_lost_connection_fails_its_requests_and_a_new_one_opens() -> None:
    async with connected() as (peer, server, events):
        send(peer, 1)
        await until(lambda: len(server.requests) == 1)
        server.transports[-1].abort()
        await until(lambda: events.answers.get(1) == Failed())
        numbers = iter(range(2, 100_000))

        def is_open() -> bool:
            send(peer, next(numbers))
            return len(server.transports) == 2

        await until(is_open)
        server.answer(0)  # a response of the old connection
        await until(lambda: len(server.requests) > 1)
        server.answer(1)
        await until(lambda: any(isinstance(each, Response) for each in events.answers.values()))


@on_held_loop
async def test_without_a_listener_requests_fail_and_attempts_back_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = Events()
    peer = Peer("g", "n0", "n1", ("127.0.0.1", free_port()), events)
    with caplog.at_level(logging.WARNING):
        for number, backoff in enumerate((0.1, 0.2, 0.4, 0.8, 1.0, 1.0)):
            send(peer, 3 * number)
            assert is_in(peer, LinkState.CONNECTING)
            await soon(lambda: is_in(peer, LinkState.CLOSED))
            await held_loop().pass_time(backoff - 0.01)
            send(peer, 3 * number + 1)
            assert is_in(peer, LinkState.CLOSED)
            assert 3 * number + 1 not in events.answers  # never within `send`
            await held_loop().pass_time(0.02)
        assert events.answers == {3 * n + k: Failed() for n in range(6) for k in (0, 1)}
    await peer.stop()
    lines = [each.getMessage() for each in caplog.records]
    assert len([line for line in lines if line.startswith("cannot connect to node n1")]) == 1


@on_both_loops
async def test_a_name_that_does_not_exist_fails() -> None:
    events = Events()
    peer = Peer("g", "n0", "n1", ("no.such.host.invalid", 1), events)
    send(peer, 1)
    await until(lambda: events.answers.get(1) == Failed())
    await peer.stop()


@on_held_loop
async def test_silence_fails_requests_and_closes() -> None:
    async with connected() as (peer, server, events):
        send(peer, 1)
        await soon(lambda: len(server.requests) == 1)
        for _ in range(5):
            await held_loop().pass_time(0.5)
        assert (events.answers, peer.state) == ({}, LinkState.OPEN)
        for _ in range(2):
            await held_loop().pass_time(0.5)
        assert (events.answers, peer.state) == ({1: Failed()}, LinkState.CLOSED)
        assert peer.pending == 0


@on_held_loop
async def test_a_slow_answer_fails_alone() -> None:
    """The peer talks, so the connection is good."""
    async with connected() as (peer, server, events):
        send(peer, 1)
        await soon(lambda: len(server.requests) == 1)
        for number in range(2, 12):
            await held_loop().pass_time(0.5)
            send(peer, number)
            await soon(lambda: len(server.requests) == number)  # noqa: B023
            server.answer(number - 1)
            await soon(lambda: number in events.answers)  # noqa: B023
        assert events.answers[1] == Failed()
        assert events.answers[11] == HeartbeatResponse()
        assert len(server.transports) == 1
        server.answer(0)  # late: dropped
        send(peer, 12)
        await soon(lambda: len(server.requests) == 12)
        assert events.answers[1] == Failed()


@on_held_loop
async def test_a_connection_that_nobody_needs_closes() -> None:
    async with connected() as (peer, server, events):
        send(peer, 1)
        await soon(lambda: len(server.requests) == 1)
        server.answer(0)
        await soon(lambda: 1 in events.answers)
        await held_loop().pass_time(59)
        assert is_in(peer, LinkState.OPEN)
        await held_loop().pass_time(2)
        assert is_in(peer, LinkState.CLOSED)
        assert events.answers == {1: HeartbeatResponse()}
        send(peer, 2)  # at once: nothing has failed
        await soon(lambda: len(server.requests) == 2)


@on_both_loops
async def test_a_peer_that_does_not_read_bounds_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "MAX_UNSENT", 1 << 20)
    async with connected() as (peer, server, events):
        send(peer, 1)
        await until(lambda: len(server.requests) == 1)
        server.answer(0, is_ours=True)
        await until(lambda: 1 in events.answers)
        server.transports[-1].pause_reading()
        run = Run(0, 1, 0, bytes(1 << 16))
        for number in range(2, 1000):
            send(peer, number, push(run))
        await until(lambda: len(events.answers) > 500)
        assert peer.pending < 500
        send(peer, 2000)  # heartbeats still go
        await asyncio.sleep(0)
        assert 2000 not in events.answers
        before = peer.pending
        server.transports[-1].resume_reading()
        await until(lambda: len(server.requests) == before + 1)
        assert server.requests[-1].code == RaftCode.HEART_BEAT


@on_both_loops
async def test_too_many_requests_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "MAX_PENDING", 10)
    async with connected() as (peer, server, events):
        send(peer, 0)
        await until(lambda: len(server.requests) == 1)
        for number in range(1, 100):
            send(peer, number)
        await until(lambda: len(events.answers) == 90)
        assert peer.pending == 10


@on_both_loops
async def test_too_many_requests_for_a_connection_fail() -> None:
    async with connected() as (peer, server, events):
        for number in range(100):
            peer.send(number, BEAT)
        await until(lambda: len(server.requests) == 64)
        assert len(events.answers) == 36


@pytest.mark.parametrize(
    "reply",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x09\x00\x00\x00\x05[1,2]",
        bytes(8) + b"\xff" * 100,
    ],
)
@on_both_loops
async def test_a_peer_that_is_none_is_closed(
    reply: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected() as (peer, server, events):
        with caplog.at_level(logging.WARNING):
            send(peer, 1)
            await until(lambda: len(server.requests) == 1)
            server.write(reply)
            await until(lambda: events.answers.get(1) == Failed())
            assert peer.state is LinkState.CLOSED
        assert len(caplog.records) == 1


@on_both_loops
async def test_a_bad_response_is_none(caplog: pytest.LogCaptureFixture) -> None:
    """Java answers with an empty body, and code 1 or 3, if it cannot handle a request."""
    async with connected() as (peer, server, events):
        with caplog.at_level(logging.WARNING):
            for number in range(3):
                send(peer, number)
            await until(lambda: len(server.requests) == 3)
            for number, body in enumerate((b"", b'{"term":"x"}', b'{"code":200}')):
                server.answer(number, body)
            request = RemotingCommand(RaftCode.VOTE, opaque=server.requests[2].opaque)
            server.write(request.encode())  # not a response
            await until(lambda: len(events.answers) == 3)
        assert events.answers == {0: Failed(), 1: Failed(), 2: HeartbeatResponse()}
        assert len(caplog.records) == 1


@on_both_loops
async def test_an_answer_to_another_push_acknowledges_nothing() -> None:
    async with connected() as (peer, server, events):
        send(peer, 1)
        await until(lambda: len(server.requests) == 1)
        server.answer(0, is_ours=True)
        await until(lambda: 1 in events.answers)
        for number in (2, 3, 4):
            send(peer, number, push(RUN))
        await until(lambda: len(server.requests) == 4)
        good = PushResponse(term=3, index=0, count=1, begin_index=0, end_index=0)
        for number, answer in (
            (1, replace(good, index=5)),
            (2, replace(good, index=5, code=Code.INCONSISTENT_STATE)),
            (3, good),
        ):
            server.write(encode_answer(answer, server.requests[number].opaque))
        await until(lambda: len(events.answers) == 4)
        assert events.answers[2] == Failed()
        assert events.answers[3] == replace(good, index=5, code=Code.INCONSISTENT_STATE)
        assert events.answers[4] == good


@on_both_loops
async def test_a_response_with_a_wrong_checksum_is_none() -> None:
    async with connected() as (peer, server, events):
        for number in (1, 2):
            send(peer, number)
        await until(lambda: len(server.requests) == 2)
        body = b'{"code":200,"term":-1}'
        for request in server.requests:
            fields = {CHECKSUM: str(checksum_of(200, server.requests[0].opaque, body))}
            server.write(request.answer(200, ext_fields=fields, body=body).encode())
        await until(lambda: len(events.answers) == 2)
        assert events.answers == {1: HeartbeatResponse(), 2: Failed()}


@on_both_loops
async def test_a_stopped_peer_says_nothing() -> None:
    async with connected() as (peer, server, events):
        send(peer, 1)
        await until(lambda: len(server.requests) == 1)
        await peer.stop()
        send(peer, 2)
        await asyncio.sleep(0)
        assert (events.answers, peer.state) == ({}, LinkState.CLOSED)
        await peer.stop()


@on_both_loops
async def test_a_peer_stops_while_it_connects() -> None:
    async with connected() as (peer, _, events):
        send(peer, 1)
        assert peer.state is LinkState.CONNECTING
        await peer.stop()
        await asyncio.sleep(0)
        assert events.answers == {}
