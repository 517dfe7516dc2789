"""Nodes over real sockets: single ones, with peers that the test plays, and groups of three."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.raft.format import Vote
from pyromq.raft.log import RaftLog
from pyromq.raft.member import Effect, Role
from pyromq.raft.messages import (
    Code,
    Envelope,
    HeartbeatRequest,
    PushRequest,
    PushType,
    Request,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from pyromq.raft.network.json_bodies import (
    code_of,
    decode_response,
    encode_request,
)
from pyromq.raft.node import NodeSettings, RaftNode
from pyromq.raft.vote_file import VoteFile
from tests.support.dledger import GROUP
from tests.support.loops import on_both_loops
from tests.support.patience import DEADLINE, until
from tests.support.raft_nodes import (
    OwnNode,
    RawPeer,
    Recorder,
    free_peers,
    group,
    leader_of,
    log_bytes,
    settled,
    write,
)


def frame(request: Request, opaque: int = 1) -> bytes:
    body = encode_request(request)
    return RemotingCommand(code_of(request), opaque=opaque, body=body).encode()


def base(term: int, sender: str = "n1") -> dict[str, Any]:
    return {
        "group": GROUP,
        "local_id": sender,
        "remote_id": "n0",
        "leader_id": sender,
        "term": term,
    }


async def alone(tmp_path: Path, **settings: Any) -> OwnNode:
    """Start node n0 of a group whose other nodes do not run."""
    node = OwnNode("n0", free_peers(3), tmp_path, **settings)
    await node.start()
    return node


async def connect(node: OwnNode) -> RawPeer:
    peer = RawPeer(node.node.address[1])
    await peer.open()
    return peer


async def ask(peer: RawPeer, request: Request) -> Any:
    """Send a request and return its answer."""
    peer.answers.clear()
    peer.write(frame(request))
    await until(lambda: peer.answers)
    return decode_response(code_of(request), peer.answers[0].body)


async def follow(node: OwnNode, peer: RawPeer, term: int) -> None:
    """Become the leader of a node."""

    async def is_following() -> bool:
        answer = await ask(peer, HeartbeatRequest(**base(term)))
        return answer.code is Code.SUCCESS

    await until(is_following)
    assert node.node.leader == "n1"


@on_both_loops
async def test_a_node_alone_in_its_group_leads_and_commits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = OwnNode("n0", free_peers(1), tmp_path)
    with caplog.at_level(logging.INFO, "pyromq.raft.node"):
        await node.start()
        await until(lambda: node.leads)
        assert node.append(5) == 4
        await until(lambda: node.recorder.committed_index == 4)
        assert node.log.committed_index == 4
        assert node.recorder.ready == [node.node.term]
        assert node.node.role is Role.LEADER
        await node.stop()
    changes = [each for each in caplog.records if " is leader of term " in each.getMessage()]
    assert len(changes) == 1
    assert node.recorder.failures == []


@on_both_loops
async def test_three_nodes_elect_and_replicate(tmp_path: Path) -> None:
    async with group(tmp_path) as nodes:
        for _ in range(5):
            await write(nodes.values(), 300, 50)
        leader = await write(nodes.values(), 10)
        await settled(nodes.values())
        status = leader.node.status()
        assert (status.role, status.leader) == (Role.LEADER, leader.node_id)
        assert status.committed_index == status.end_index == leader.log.end_index
        await until(lambda: all(each.lag == 0 for each in leader.node.status().peers))
        for peer in leader.node.status().peers:
            assert (peer.kind, peer.connected, peer.state) == ("pyromq", True, "APPEND")
            assert peer.last_contact is not None
        others = [each for each in nodes.values() if each is not leader]
        await until(lambda: all(each.node.leader == leader.node_id for each in others))
        assert all(each.node.append_refusal() is Code.NOT_LEADER for each in others)
        assert all(each.state is None for each in others[0].node.status().peers)
        written, end = leader.log.written, leader.log.end_index
    found = {log_bytes(each.directory, written, end) for each in nodes.values()}
    assert len(found) == 1


@on_both_loops
async def test_a_group_survives_the_stop_of_each_leader(tmp_path: Path) -> None:
    async with group(tmp_path) as nodes:
        for _ in range(3):
            leader = await write(nodes.values(), 100)
            await leader.stop()
            rest = [each for each in nodes.values() if each is not leader]
            await write(rest, 100)
            await leader.start()
            await settled(nodes.values())
        assert nodes["n0"].log.end_index >= 599
        terms = [each.log.end_term for each in nodes.values()]
        assert len(set(terms)) == 1


@on_both_loops
async def test_a_leader_that_has_ended_is_replaced_at_once(tmp_path: Path) -> None:
    """Without a time-out: three heartbeats would take longer than the test may."""
    async with group(tmp_path, core={"heartbeat_interval": 600_000}) as nodes:
        leader = await write(nodes.values(), 10)
        await settled(nodes.values())
        await leader.stop()
        rest = [each for each in nodes.values() if each is not leader]
        successor = await write(rest, 10)
        assert successor.node.term > 0


@on_both_loops
async def test_a_leader_that_answers_is_not_replaced(tmp_path: Path) -> None:
    """Only its connection has ended."""
    async with group(tmp_path, core={"heartbeat_interval": 600_000}) as nodes:
        leader = await write(nodes.values(), 10)
        await settled(nodes.values())
        term = leader.node.term
        for each in nodes.values():
            each.node.sender_left(leader.node_id)
            if each.node._look is not None:
                await each.node._look
        assert await write(nodes.values(), 10) is leader
        assert leader.node.term == term


@on_both_loops
async def test_leadership_is_transferred(tmp_path: Path) -> None:
    async with group(tmp_path) as nodes:
        leader = await write(nodes.values(), 10)
        assert await leader.node.transfer("n9") is Code.UNKNOWN_MEMBER
        other, third = (each for each in nodes.values() if each is not leader)
        assert await other.node.transfer(third.node_id) is Code.NOT_LEADER

        async def is_done() -> bool:
            leader = await leader_of(nodes.values())
            return leader is target or await leader.node.transfer("n1") is Code.SUCCESS

        target = nodes["n1"]
        await until(is_done)
        await write(nodes.values(), 10)


@on_both_loops
async def test_a_preferred_leader_takes_over(tmp_path: Path) -> None:
    async with group(tmp_path, preferred_leaders=("n1",)) as nodes:
        await write(nodes.values(), 10)
        await until(lambda: nodes["n1"].leads)


@on_both_loops
async def test_a_vote_is_durable_before_it_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    node = await alone(tmp_path)
    save = VoteFile.save

    def slow_save(votes: VoteFile, vote: Vote) -> None:
        save(votes, vote)
        happened.append(f"saved {vote.voted_for}")

    monkeypatch.setattr(VoteFile, "save", slow_save)
    peer = await connect(node)
    term = node.node.term + 5
    candidate = VoteRequest(ledger_end_index=-1, ledger_end_term=-1, **base(term))
    answer: VoteResponse = await ask(peer, candidate)
    assert answer.vote_result is VoteResult.REJECT_TERM_NOT_READY
    await until(lambda: node.node.term == term)
    answer = await ask(peer, candidate)
    if answer.vote_result is VoteResult.ACCEPT:
        assert happened[-1] == "saved n1"
        assert VoteFile(node.directory).load() == Vote(term, "n1")
    else:  # a stall: it was a candidate meanwhile
        assert answer.vote_result is VoteResult.REJECT_ALREADY_VOTED
    await peer.close()
    await node.stop()


@on_both_loops
async def test_a_vote_that_cannot_be_saved_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await alone(tmp_path)
    peer = await connect(node)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(VoteFile, "save", fail)
    term = node.node.term + 5
    peer.write(frame(VoteRequest(ledger_end_index=-1, ledger_end_term=-1, **base(term))))
    await until(lambda: node.recorder.failures)
    assert "cannot save the vote" in node.recorder.failures[0]
    assert node.node.append_refusal() is Code.INTERNAL_ERROR
    assert await node.node.transfer("n1") is Code.INTERNAL_ERROR
    # Nobody gets an answer any more.
    peer.answers.clear()
    peer.write(frame(HeartbeatRequest(**base(term))), b"\xff" * 64)
    await until(lambda: peer.is_closed)
    assert peer.answers == []
    assert len(node.recorder.failures) == 1
    await peer.close()
    await node.stop()


@on_both_loops
async def test_appends_of_one_iteration_are_one_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = OwnNode("n0", free_peers(1), tmp_path)
    await node.start()
    await until(lambda: node.leads)
    core, calls = node.node._core, list[int]()
    appended = core.appended

    def counted(now: int) -> list[Effect]:
        calls.append(now)
        return appended(now)

    monkeypatch.setattr(core, "appended", counted)
    for _ in range(20):
        node.append(1)
    await until(lambda: node.recorder.committed_index == 19)
    assert len(calls) == 1
    assert [each for each in node.recorder.events if each[0] == "committed"] == [("committed", 19)]
    await node.stop()


@on_both_loops
async def test_entries_of_a_leader_that_steps_down_at_once_are_not_pushed(tmp_path: Path) -> None:
    """A vote request may arrive between the append and the push of the same iteration."""
    async with group(tmp_path) as nodes:
        await write(nodes.values(), 1)
        leader = await leader_of(nodes.values())
        (other, *_) = (node for node in nodes if node != leader.node_id)
        last = leader.append(1)
        request = VoteRequest(
            **{**base(leader.node.term + 1, other), "remote_id": leader.node_id},
            ledger_end_index=last,
            ledger_end_term=leader.node.term,
        )
        leader.node._core.step(
            Envelope(other, leader.node_id, 1 << 40, request), leader.node._now()
        )
        assert leader.node.role is Role.CANDIDATE
        await write(nodes.values(), 1)
        await settled(nodes.values())
        assert not any(node.recorder.failures for node in nodes.values())


@on_both_loops
async def test_acknowledgement_waits_for_the_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_flush, flush = threading.Event(), RaftLog.flush

    def held_flush(log: RaftLog) -> None:
        assert may_flush.wait(40)
        flush(log)

    monkeypatch.setattr(RaftLog, "flush", held_flush)
    node = OwnNode("n0", free_peers(1), tmp_path, flush_before_ack=True)
    await node.start()
    await until(lambda: node.leads)
    node.append(3)
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert node.recorder.committed_index == -1
    may_flush.set()
    await until(lambda: node.recorder.committed_index == 2)
    assert node.log.flushed_index == 2
    await node.stop()


@on_both_loops
async def test_a_failed_fsync_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = OwnNode("n0", free_peers(1), tmp_path)
    await node.start()
    await until(lambda: node.leads)

    def fail(_: RaftLog) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(RaftLog, "flush", fail)
        node.append(1)
        await until(lambda: node.recorder.failures)
        assert "broken" in node.recorder.failures[0]
    await node.stop()


@on_both_loops
async def test_a_contradiction_in_committed_entries_ends_the_node(tmp_path: Path) -> None:
    """A leader that lost what it had committed must not take it from others."""
    node = await alone(tmp_path)
    peer = await connect(node)
    term = node.node.term + 5
    await follow(node, peer, term)
    log = node.log
    first = log.next_index
    log.append_bodies(term, [b"old", b"old"])
    log.commit(first + 1)
    stored = node.node.committed_entry(first)
    assert stored is not None
    other = type(stored)(stored.index, term, stored.pos, stored.size, b"new")
    push = {"commit_index": -1, "entries": (other,), **base(term)}
    answer = await ask(peer, PushRequest(type=PushType.COMPARE, **push))
    assert answer.code is Code.INCONSISTENT_STATE
    peer.write(frame(PushRequest(type=PushType.TRUNCATE, **push)))
    await until(lambda: node.recorder.failures)
    assert log.entry(first).body == b"old"
    await peer.close()
    await node.stop()


@on_both_loops
async def test_a_node_that_lost_entries_catches_up_before_it_votes(tmp_path: Path) -> None:
    async with group(tmp_path) as nodes:
        leader = await write(nodes.values(), 300)
        await settled(nodes.values())
        victim = next(each for each in nodes.values() if each is not leader)
        start = victim.log.place(150).position
        await victim.stop()
        (path,) = (victim.directory / "data").iterdir()
        content = path.read_bytes()
        path.write_bytes(content[:start] + bytes(len(content) - start))
        await victim.start()
        assert victim.log.end_index == 149
        assert victim.log.must_catch_up
        await until(lambda: not victim.log.must_catch_up)
        await write(nodes.values(), 10)
        await settled(nodes.values())


@on_both_loops
async def test_a_stalled_node_reads_before_it_gives_up_its_leader(tmp_path: Path) -> None:
    """The heartbeats that it seems to miss are in its socket."""
    node = await alone(tmp_path)
    peer = await connect(node)
    term = node.node.term + 5
    await follow(node, peer, term)
    stop = threading.Event()
    beat = frame(HeartbeatRequest(**base(term)))
    address = ("127.0.0.1", node.node.address[1])

    def send_beats() -> None:
        with socket.create_connection(address) as connection:
            while not stop.wait(0.02):
                connection.sendall(beat)

    thread = threading.Thread(target=send_beats)
    thread.start()
    try:
        await asyncio.sleep(0.1)
        before = len(node.recorder.roles)
        time.sleep(2.2)  # noqa: ASYNC251 - the subject: longer than three heartbeats
        for _ in range(20):
            await asyncio.sleep(0.002)
        assert node.recorder.roles[before:] == []
        assert node.node.role is Role.FOLLOWER
    finally:
        stop.set()
        thread.join()
        await peer.close()
        await node.stop()


@on_both_loops
async def test_events_after_a_stall_do_not_put_off_the_clock(tmp_path: Path) -> None:
    """A leader under load would send no heartbeat any more."""
    node = await alone(tmp_path)
    peer = await connect(node)
    term = node.node.term + 5
    await follow(node, peer, term)
    time.sleep(2.0)  # noqa: ASYNC251 - the subject: the follower's deadline passes

    async def has_ticked() -> bool:
        node.node.chunk_ended()  # as after each event
        await asyncio.sleep(0)
        return node.node.role is Role.CANDIDATE

    deadline = time.monotonic() + DEADLINE
    while not await has_ticked():
        assert time.monotonic() < deadline
    await peer.close()
    await node.stop()


@on_both_loops
async def test_requests_without_an_answer_are_forgotten(tmp_path: Path) -> None:
    node = await alone(tmp_path)
    peer = await connect(node)
    term = node.node.term + 5
    await follow(node, peer, term)
    replies = node.node._replies
    core = node.node._core
    step = core.step
    core.step = lambda *_: []  # type: ignore[method-assign]
    peer.write(frame(HeartbeatRequest(**base(term))))
    await until(lambda: len(replies) == 1)
    core.step = step  # type: ignore[method-assign]
    next(iter(replies.values())).since -= 10_000
    await until(lambda: not replies)  # it becomes a candidate at last, and ticks
    await peer.close()
    await node.stop()


async def test_a_node_must_be_in_its_list(tmp_path: Path) -> None:
    log = RaftLog(tmp_path, data_file_size=4096)
    peers = free_peers(2)
    settings = NodeSettings(group=GROUP, self_id="n5", peers=peers, directory=tmp_path)
    with pytest.raises(ValueError, match="n5 is not in the list"):
        RaftNode(settings, log, Recorder())


async def test_a_node_that_was_not_started_has_no_role(tmp_path: Path) -> None:
    log = RaftLog(tmp_path, data_file_size=4096)
    settings = NodeSettings(group=GROUP, self_id="n0", peers=free_peers(1), directory=tmp_path)
    node = RaftNode(settings, log, Recorder())
    assert (node.role, node.term, node.leader) == (Role.CANDIDATE, -1, None)
    assert node.append_refusal() is Code.INTERNAL_ERROR
    assert (node.status().role, node.status().peers) == (Role.CANDIDATE, ())
    await node.stop()


@on_both_loops
async def test_port_0_takes_a_free_port(tmp_path: Path) -> None:
    node = OwnNode("n0", {"n0": ("127.0.0.1", 0)}, tmp_path)
    await node.start()
    assert node.node.address[1] > 0
    peer = await connect(node)
    answer = await ask(peer, HeartbeatRequest(**base(0)))
    assert answer.code is Code.UNKNOWN_MEMBER
    await peer.close()
    await node.stop()
    await node.stop()


@on_both_loops
async def test_an_occupied_port_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        node = OwnNode("n0", {"n0": ("127.0.0.1", taken.getsockname()[1])}, tmp_path)
        with pytest.raises(OSError, match="in use"):
            await node.start()
        node.log.stop()
