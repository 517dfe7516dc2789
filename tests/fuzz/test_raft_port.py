"""Hostile bytes on the ports of a raft group, while entries are written.

Attacks are frames of genuine nodes that were damaged, replayed or sent to the wrong node, frames of
strangers with any values, and garbage. A port has no authentication, as in Java: a stranger who
forges the current leader's name and term is not stopped, so no attack does that. Nothing else may
change a log, lose an acknowledged entry, stop a node, or fill the log with lines.

An attack depends on its seed and number, and on the state of the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.raft.messages import (
    Entry,
    HeartbeatRequest,
    PushRequest,
    PushType,
    Request,
    VoteRequest,
)
from pyromq.raft.network.binary_push import encode_push, names_of
from pyromq.raft.network.json_bodies import (
    CHECKSUM,
    RaftCode,
    checksum_of,
    code_of,
    encode_request,
    entry_fields,
)
from tests.support.crash import seeds
from tests.support.damage import damaged
from tests.support.dledger import GROUP
from tests.support.examples import is_soak
from tests.support.loops import on_uvloop_often
from tests.support.patience import DEADLINE, until
from tests.support.raft_logs import entries_of
from tests.support.raft_nodes import OwnNode, group, leader_of, settled

CASES: Final = 4000
AT_ONCE: Final = 16
VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    -1,
    7,
    2**31,
    2**62,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    1.5,
    1e300,
    "",
    "n1",
    "x" * 300,
    "APPEND",
    [],
    [None],
    [[[]]],
    {},
    {"entry": {}},
)
#: Of nobody in the group.
NAMES: Final = ("", "h", "n9", "n00", "x" * 200)
NO_TERMS: Final[tuple[Any, ...]] = ("x", "3", 1.5, True, [], {}, -2, 2**63, 2**64 - 1)
JUNK: Final = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    b"",
    bytes(8),
    b"\xff" * 100,
    (2**24 + 5).to_bytes(4, "big") + bytes(100),
)


class Group:
    """Three nodes, a writer that must not be lied to, and the frames of an attacker."""

    def __init__(self, nodes: dict[str, OwnNode], seed: int) -> None:
        self.nodes = nodes
        self._seed = seed
        self.written = 0
        self.acknowledged: list[bytes] = []
        #: Genuine frames, to be replayed.
        self._recorded: list[bytes] = []

    async def work(self) -> None:
        """Write entries, and note those that are acknowledged."""
        while True:
            leader = await leader_of(self.nodes.values())
            term, log = leader.node.term, leader.log
            bodies = [b"entry %d" % (self.written + number) for number in range(10)]
            self.written += 10
            last = log.append_bodies(term, bodies) + 9
            leader.node.appended()

            def is_over() -> bool:
                return leader.node.term != term or log.committed_index >= last  # noqa: B023

            await until(is_over)
            if leader.node.term == term and log.committed_index >= last:
                self.acknowledged += bodies

    def attack(self, number: int) -> tuple[str, bytes]:
        """Return a node, and what is said to it."""
        rng = random.Random(f"{self._seed} {number}")
        target = rng.choice(list(self.nodes))
        frames = [self._frame(rng, target) for _ in range(rng.randrange(1, 5))]
        return target, b"".join(frames)

    def _frame(self, rng: random.Random, target: str) -> bytes:
        kind = rng.randrange(7)
        if kind == 0:
            return rng.choice(JUNK)
        if kind == 1:
            return rng.randbytes(rng.choice([1, 7, 8, 9, 100, 3000]))
        if kind == 2:
            ids: dict[str, Any] = {rng.choice(["group", "localId", "remoteId"]): rng.choice(NAMES)}
            return self._forged(rng, target, ids)
        if kind == 5:
            return self._forged(rng, target, {"term": rng.choice(NO_TERMS)})
        if kind == 3 and self._recorded:
            return rng.choice(self._recorded)
        if kind == 4:
            other = rng.choice([node for node in self.nodes if node != target])
            return self._genuine(rng, other)  # misrouted
        genuine = self._genuine(rng, target)
        if len(self._recorded) < 300:
            self._recorded.append(genuine)
        elif rng.random() < 0.05:
            self._recorded[rng.randrange(300)] = genuine
        return damaged(rng, genuine)

    def _genuine(self, rng: random.Random, target: str) -> bytes:
        """Return what another node could have sent to the target."""
        sender = rng.choice([node for node in self.nodes if node != target])
        leading = [node for node, each in self.nodes.items() if each.leads and node != target]
        kind = rng.randrange(4)
        if kind == 0 or not leading:
            return checked(self._vote(sender, target), rng.randrange(1 << 31))
        leader = self.nodes[leading[0]]
        base = base_of(leader.node_id, target, leader.node.term)
        log = leader.log
        if kind == 1 or log.end_index < 0:
            return checked(HeartbeatRequest(**base), rng.randrange(1 << 31))
        index = rng.randrange(log.begin_index, log.end_index + 1)
        if kind == 2:
            names = names_of(GROUP, leader.node_id, target)
            assert names is not None
            run = log.run(index, rng.choice([100, 1000]))
            push = PushRequest(
                type=PushType.APPEND, commit_index=log.committed_index, run=run, **base
            )
            return b"".join(encode_push(names, push, rng.randrange(1 << 31)))
        stored = log.entry(index)
        entry = Entry(index, stored.term, stored.position, stored.size, bytes(stored.body))
        kinds = [PushType.APPEND, PushType.COMPARE, PushType.COMMIT]
        push_type = rng.choice(kinds)
        entries = () if push_type is PushType.COMMIT else (entry,)
        push = PushRequest(
            type=push_type, commit_index=log.committed_index, entries=entries, **base
        )
        return checked(push, rng.randrange(1 << 31))

    def _vote(self, sender: str, target: str) -> VoteRequest:
        node = self.nodes[sender]
        return VoteRequest(
            ledger_end_index=node.log.end_index,
            ledger_end_term=node.log.end_term,
            **base_of(sender, target, node.node.term),
        )

    def _forged(self, rng: random.Random, target: str, wrong: dict[str, Any]) -> bytes:
        """Return any body; what is `wrong` with it must be noticed."""
        ids = {"group": GROUP, "localId": rng.choice(list(self.nodes)), "remoteId": target}
        fields: dict[str, Any] = {
            "leaderId": rng.choice(list(self.nodes)),
            "term": rng.choice([0, 1, 100, 2**60]),
            "type": rng.choice(["APPEND", "COMPARE", "TRUNCATE", "COMMIT"]),
            "entry": entry_fields(Entry(rng.randrange(100), 0, 0, 50, b"xx")),
            "ledgerEndIndex": 2**40,
            "ledgerEndTerm": 2**40,
            "transferId": target,
            "transfereeId": rng.choice(list(self.nodes)),
            "takeLeadershipLedgerIndex": 0,
            "beginIndex": rng.choice([0, 5, -1, 2**62]),
        }
        for _ in range(rng.randrange(4)):
            fields[rng.choice(list(fields))] = rng.choice(VALUES)
        body = orjson.dumps({**fields, **ids, **wrong})
        code = rng.choice([*RaftCode, 70010, 1, 310])
        return RemotingCommand(code, opaque=rng.randrange(1 << 31), body=body).encode()


def base_of(sender: str, target: str, term: int) -> dict[str, Any]:
    return {
        "group": GROUP,
        "local_id": sender,
        "remote_id": target,
        "leader_id": sender,
        "term": term,
    }


def checked(request: Request, opaque: int) -> bytes:
    """Return the frame of a node of ours, with its checksum."""
    code, body = code_of(request), encode_request(request)
    fields = {CHECKSUM: str(checksum_of(code, opaque, body))}
    return RemotingCommand(code, opaque=opaque, body=body, ext_fields=fields).encode()


async def say(port: int, data: bytes) -> None:
    """Say it, and read until the node closes, or has answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    # uvloop raises RuntimeError for a transport that is closed already.
    with contextlib.suppress(OSError, RuntimeError):
        writer.write(data)
        writer.write_eof()
        while await asyncio.wait_for(reader.read(1 << 18), DEADLINE):
            pass
    writer.transport.abort()


async def attack_often(base: Path, caplog: pytest.LogCaptureFixture, seed: int, count: int) -> None:
    async with group(base) as nodes:
        target = Group(nodes, seed)
        working = asyncio.ensure_future(target.work())
        await until(lambda: target.acknowledged)
        numbers = iter(range(count))

        async def attacker() -> None:
            for number in numbers:
                node, data = target.attack(number)
                await say(nodes[node].node.address[1], data)
                assert not any(each.recorder.failures for each in nodes.values()), (seed, number)

        await asyncio.gather(*(attacker() for _ in range(AT_ONCE)))
        before = len(target.acknowledged)
        await until(lambda: len(target.acknowledged) > before or working.done())
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await settled(nodes.values())
        logs = [entries_of(node.log) for node in nodes.values()]
        assert logs[0] == logs[1] == logs[2]
        stored = [bytes(entry.body) for entry in logs[0]]
        assert set(stored) >= set(target.acknowledged)
        assert len(stored) == len(set(stored))
    assert not [record for record in caplog.records if record.exc_info]
    # One per node and kind of request in a minute; those about bytes that are no frames are
    # limited where lines are written (`base.log_lines`).
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("pyromq.raft")]
    refusals = [line for line in lines if "refused" in line]
    assert 0 < len(refusals) <= 3 * (len(RaftCode) + 1) * 3, refusals


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


@on_uvloop_often
async def test_hostile_bytes_change_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await attack_often(tmp_path, caplog, seed=20_261_117, count=CASES)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", seeds(10) if is_soak() else [0])
async def test_many_hostile_bytes_change_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    await attack_often(tmp_path, caplog, seed, 10 * CASES)
