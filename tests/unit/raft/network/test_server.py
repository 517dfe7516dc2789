"""The port of a node, with a node that is scripted by the test."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import orjson
import pytest

from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import FLAG_ONEWAY, RemotingCommand
from pyromq.raft.format import Columns, Run, join_entries
from pyromq.raft.messages import (
    Code,
    Entry,
    HeartbeatRequest,
    HeartbeatResponse,
    PushRequest,
    PushResponse,
    PushType,
    Request,
    Response,
    TransferRequest,
    TransferResponse,
    VoteRequest,
    VoteResponse,
)
from pyromq.raft.network.binary_push import GREETING, decode_answer, encode_push, names_of
from pyromq.raft.network.json_bodies import (
    CHECKSUM,
    RaftCode,
    checksum_of,
    code_of,
    decode_response,
    encode_request,
)
from pyromq.raft.network.server import RaftServer, Reply
from tests.support.loops import on_both_loops
from tests.support.patience import until
from tests.support.raft_nodes import RawPeer

PEERS = {"n0": ("10.0.0.1", 1), "n1": ("10.0.0.2", 2), "n2": ("10.0.0.3", 3)}
BASE: dict[str, Any] = {
    "group": "g",
    "local_id": "n1",
    "remote_id": "n0",
    "leader_id": "n1",
    "term": 3,
}
BEAT = HeartbeatRequest(**BASE)
VOTE = VoteRequest(ledger_end_index=1, ledger_end_term=1, **BASE)


class Node:
    """Answers at once, or later."""

    def __init__(self) -> None:
        self.term = 4
        self.leader: str | None = "n1"
        self.requests: list[Request] = []
        self.replies: list[Reply] = []
        self.answers: list[Response | None] = []
        self.chunks = 0
        self.left: list[str] = []

    def sender_left(self, peer: str) -> None:
        self.left.append(peer)

    def requested(self, request: Request, reply: Reply) -> None:
        self.requests.append(request)
        self.replies.append(reply)
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            reply.send(answer)

    def chunk_ended(self) -> None:
        self.chunks += 1

    def committed_entry(self, index: int) -> Entry | None:
        return Entry(5, 1, 0, 51, b"abc") if index == 5 else None


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[RawPeer, Node]]:
    node = Node()
    server = RaftServer("g", "n0", PEERS, node)
    port = await server.start("127.0.0.1", 0)
    client = RawPeer(port)
    await client.open()
    try:
        yield client, node
    finally:
        await client.close()
        await server.stop()


def frame(request: Request, opaque: int = 1, flag: int = 0) -> bytes:
    body = encode_request(request)
    return RemotingCommand(code_of(request), opaque=opaque, body=body, flag=flag).encode()


def outside(code: int, **fields: Any) -> bytes:
    body = orjson.dumps({"group": "g", "remoteId": "n0", **fields})
    return RemotingCommand(code, opaque=9, body=body).encode()


def run() -> Run:
    columns = Columns(7, np.array([3]), np.array([0]), np.array([60]))
    return Run(7, 1, 0, join_entries(columns, [bytes(12)]))


def binary(opaque: int = 1, leader: str = "n1") -> bytes:
    names = names_of("g", leader, "n0")
    assert names is not None
    request = PushRequest(type=PushType.APPEND, commit_index=6, run=run(), **BASE)
    return b"".join(encode_push(names, request, opaque))


@on_both_loops
async def test_requests_of_nodes_are_answered_in_one_chunk() -> None:
    async with serving() as (client, node):
        node.answers = [HeartbeatResponse(), VoteResponse(term=4), PushResponse(term=3, index=7)]
        client.write(frame(BEAT, 1), frame(VOTE, 2), binary(3))
        await until(lambda: len(client.answers) == 3)
        assert node.requests[:2] == [BEAT, VOTE]
        assert isinstance(node.requests[2], PushRequest)
        assert node.requests[2].run == run()
        beat, vote, pushed = client.answers
        assert [each.opaque for each in client.answers] == [1, 2, 3]
        assert [each.code for each in client.answers] == [200, 200, 200]
        assert beat.ext_fields == {GREETING: "1", CHECKSUM: str(checksum_of(200, 1, beat.body))}
        assert decode_response(RaftCode.HEART_BEAT, beat.body) == HeartbeatResponse()
        assert decode_response(RaftCode.VOTE, vote.body).term == 4
        assert decode_answer(pushed.body) == PushResponse(term=3, index=7)
        assert node.chunks >= 1


@on_both_loops
async def test_the_end_of_a_leaders_connection_is_reported() -> None:
    async with serving() as (client, node):
        client.write(frame(VOTE, 1))
        await until(lambda: node.requests)
        await client.close()
    assert node.left == [], "it has sent no heartbeat"
    async with serving() as (client, node):
        client.write(frame(BEAT, 1), frame(BEAT, 2))
        await until(lambda: len(node.requests) == 2)
        assert node.left == []
        await client.close()
        await until(lambda: node.left)
        assert node.left == ["n1"]


@on_both_loops
async def test_an_answer_may_come_later() -> None:
    async with serving() as (client, node):
        client.write(frame(BEAT, 1), binary(2), binary(3))
        await until(lambda: len(node.replies) == 3)
        for reply, answer in zip(
            node.replies[1:], (PushResponse(index=1), PushResponse(index=2)), strict=True
        ):
            reply.send(answer)
        await until(lambda: len(client.answers) == 2)
        assert [each.opaque for each in client.answers] == [2, 3]
        await client.close()
        node.replies[0].send(HeartbeatResponse())  # nobody is there


@on_both_loops
async def test_nobody_waits_for_the_answer_to_a_oneway_request() -> None:
    async with serving() as (client, node):
        node.answers = [HeartbeatResponse(), HeartbeatResponse()]
        client.write(frame(BEAT, 1, FLAG_ONEWAY), frame(BEAT, 2))
        await until(lambda: client.answers)
        assert [each.opaque for each in client.answers] == [2]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group": "h"}, Code.UNKNOWN_GROUP),
        ({"remote_id": "n2"}, Code.UNKNOWN_MEMBER),
        ({"remote_id": ""}, Code.UNKNOWN_MEMBER),
        ({"local_id": "n7"}, Code.UNKNOWN_MEMBER),
        ({"local_id": "n0"}, Code.UNKNOWN_MEMBER),
        ({"local_id": ""}, Code.UNKNOWN_MEMBER),
    ],
)
@on_both_loops
async def test_a_misrouted_request_does_not_reach_the_node(
    changes: dict[str, Any], code: Code, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as (client, node):
        with caplog.at_level(logging.WARNING):
            for _ in range(20):
                client.write(frame(HeartbeatRequest(**{**BASE, **changes})))
            await until(lambda: len(client.answers) == 20)
        answer = decode_response(RaftCode.HEART_BEAT, client.answers[0].body)
        assert answer == HeartbeatResponse(code=code, term=4, leader_id="n1")
        assert node.requests == []
        assert len(caplog.records) == 1
        assert "refused" in caplog.text


@on_both_loops
async def test_a_binary_push_of_a_stranger_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (client, node):
        with caplog.at_level(logging.WARNING):
            client.write(binary(1, leader="n9"), binary(2, leader="n0"), binary(3)[:-1] + b"x")
            await until(lambda: len(client.answers) == 3)
        codes = [decode_answer(each.body).code for each in client.answers]
        assert codes == [Code.UNEXPECTED_ARGUMENT] * 3
        assert node.requests == []
        assert len(caplog.records) == 1


@on_both_loops
async def test_a_bad_body_is_answered_once_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (client, node):
        node.answers = [HeartbeatResponse()]
        with caplog.at_level(logging.WARNING):
            for body in (b"", b"[]", b'{"term":"x"}', b"\xff\xfe"):
                client.write(RemotingCommand(RaftCode.HEART_BEAT, body=body).encode())
            client.write(frame(BEAT))
            await until(lambda: len(client.answers) == 5)
        codes = [decode_response(RaftCode.HEART_BEAT, each.body).code for each in client.answers]
        assert codes == [Code.UNEXPECTED_ARGUMENT] * 4 + [Code.SUCCESS]
        assert len(caplog.records) == 1


@on_both_loops
async def test_a_frame_with_a_wrong_checksum_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (client, node):
        node.answers = [HeartbeatResponse()]
        body = encode_request(BEAT)
        good = {CHECKSUM: str(checksum_of(RaftCode.HEART_BEAT, 1, body))}
        with caplog.at_level(logging.WARNING):
            for opaque, fields in ((2, good), (1, {CHECKSUM: "7"}), (1, good)):
                client.write(
                    RemotingCommand(
                        RaftCode.HEART_BEAT, opaque=opaque, body=body, ext_fields=fields
                    ).encode()
                )
            await until(lambda: len(client.answers) == 3)
        codes = [decode_response(RaftCode.HEART_BEAT, each.body).code for each in client.answers]
        assert codes == [Code.UNEXPECTED_ARGUMENT] * 2 + [Code.SUCCESS]
        assert node.requests == [BEAT]
        assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        bytes(60),
    ],
)
@on_both_loops
async def test_bytes_that_are_no_frame_close(data: bytes) -> None:
    async with serving() as (client, node):
        client.write(data)
        await until(lambda: client.is_closed)
        assert node.requests == []


@pytest.mark.parametrize("field", [{"opaque": 2**40}, {"opaque": "1"}, {"flag": "x"}])
@on_both_loops
async def test_a_header_that_java_could_not_read_closes(field: dict[str, Any]) -> None:
    header = orjson.dumps({"code": 51002, "opaque": 1, "flag": 0, **field})
    async with serving() as (client, node):
        client.write((4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
        await until(lambda: client.is_closed)
        assert node.requests == []


@on_both_loops
async def test_an_unknown_request_is_not_supported() -> None:
    async with serving() as (client, _):
        client.write(RemotingCommand(RequestCode.SEND_MESSAGE, opaque=5).encode())
        await until(lambda: client.answers)
        assert client.answers[0].code == 3


@on_both_loops
async def test_an_outside_client_may_order_a_transfer() -> None:
    order = TransferRequest(
        group="g",
        local_id="",
        remote_id="n0",
        leader_id=None,
        term=3,
        transfer_id="n0",
        transferee_id="n2",
        take_leadership_ledger_index=0,
    )
    async with serving() as (client, node):
        node.answers = [TransferResponse(term=4, code=Code.NOT_LEADER)]
        client.write(frame(order))
        await until(lambda: client.answers)
        assert node.requests == [order]
        answer = decode_response(RaftCode.LEADERSHIP_TRANSFER, client.answers[0].body)
        assert answer.code is Code.NOT_LEADER


async def ask(client: RawPeer, code: int, **fields: Any) -> dict[str, Any]:
    client.answers.clear()
    client.write(outside(code, **fields))
    await until(lambda: client.answers)
    assert client.answers[0].opaque == 9
    answer: dict[str, Any] = orjson.loads(client.answers[0].body)
    return answer


@on_both_loops
async def test_outside_clients_learn_the_peers_and_entries() -> None:
    async with serving() as (client, node):
        metadata = await ask(client, RaftCode.METADATA)
        assert metadata == {
            "code": 200,
            "group": "g",
            "term": -1,
            "leaderId": "n1",
            "peers": {"n0": "10.0.0.1:1", "n1": "10.0.0.2:2", "n2": "10.0.0.3:3"},
        }
        refused = await ask(client, RaftCode.GET, beginIndex=5)
        assert (refused["code"], refused["leaderId"]) == (Code.NOT_LEADER, "n1")
        node.leader = "n0"
        found = await ask(client, RaftCode.GET, beginIndex=5)
        assert (found["code"], found["entries"][0]["body"]) == (200, "YWJj")
        beyond = await ask(client, RaftCode.GET, beginIndex=6)
        assert beyond["code"] == Code.INDEX_OUT_OF_RANGE
        assert node.requests == []


@on_both_loops
async def test_outside_clients_cannot_write(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (client, node):
        node.leader = "n0"
        with caplog.at_level(logging.WARNING):
            for code in (RaftCode.APPEND, RaftCode.PULL):
                assert (await ask(client, code, body="eA=="))["code"] == Code.UNSUPPORTED
        assert len(caplog.records) == 2
        assert (await ask(client, RaftCode.APPEND, group="h"))["code"] == Code.UNKNOWN_GROUP
        bad = await ask(client, RaftCode.GET, beginIndex="x")
        assert bad["code"] == Code.UNEXPECTED_ARGUMENT
        assert node.requests == []
