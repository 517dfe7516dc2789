"""Scenarios as scripts, in the manner of etcd's interaction tests: one node, its peers by hand.

A script is a text file. Lines that start with `>` are inputs, the lines below them the effects,
and `#` starts a comment. The first line has the node: `node n0 of 3 lost term 1 vote n0 log 0 0 1`
(a term for each entry; `lost` if it must catch up) and settings as name=value. Inputs:

    > tick 2000                              the clock is at 2000 ms
    > n1 vote t1 log 3/1                     a candidate, with end index and term of its log
    > n1 heartbeat t1
    > n1 push APPEND t1 4/1 5/1 commit 3     entries as index/term@position
    > n1 push APPEND t1 run 4/1 5/1 commit 3
    > n1 takes runs                          or: n1 takes entries
    > n1 answers vote ACCEPT t1              the answer to the last request of that kind
    > n1 answers heartbeat 416 t1
    > n1 answers push 406 0-3                begin and end index of the follower
    > n1 answers transfer 200
    > n1 transfer n0 to n1 t1 index 3
    > propose
    > chunk 3                                the caller has written three entries
    > flush                                  all entries are durable
    > disk fails                             or: disk works
    > n1 fails                               the last request to n1 failed
    > n1 ended                               the process of n1, perhaps the leader, has ended

`PYROMQ_REWRITE=1 pytest tests/raft/test_scenarios.py` writes the effects; read the diff.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyromq.raft.core import Core
from pyromq.raft.member import (
    CaughtUp,
    Committed,
    CommittedLost,
    Effect,
    LeaderReady,
    LedgerFailed,
    LedgerWorks,
    Persist,
    Persisted,
    RoleChanged,
    Send,
    Settings,
)
from pyromq.raft.messages import (
    NONE,
    Body,
    Code,
    Entry,
    Envelope,
    Failed,
    HeartbeatRequest,
    HeartbeatResponse,
    PushRequest,
    PushResponse,
    PushType,
    TransferRequest,
    TransferResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from tests.raft.memory_ledger import HEADER, MemoryLedger, run_of

GROUP = "g"
_KINDS = {
    VoteRequest: "vote",
    HeartbeatRequest: "heartbeat",
    PushRequest: "push",
    TransferRequest: "transfer",
}


def run(path: Path) -> str:
    """Return the script with the effects that happen."""
    lines = list[str]()
    node: Script | None = None
    for line in path.read_text().splitlines():
        if line.startswith("node "):
            node = Script(line)
            lines.append(line)
        elif line.startswith(">"):
            assert node is not None
            lines.append(line)
            lines += [f"  {effect}" for effect in node.input(line[1:])] or ["  nothing"]
        elif not line.startswith("  "):
            lines.append(line)
    return "\n".join(lines) + "\n"


class Script:
    """One node of a script."""

    def __init__(self, line: str) -> None:
        words = line.split()
        options = dict(word.split("=") for word in words if "=" in word)
        words = [word for word in words if "=" not in word]
        self._name = words[1]
        names = tuple(f"n{each}" for each in range(int(words[3])))
        settings = Settings(group=GROUP, self_id=self._name, peers=names)
        settings = replace(settings, **{key: _value(text) for key, text in options.items()})
        term = int(words[words.index("term") + 1]) if "term" in words else 0
        vote = words[words.index("vote") + 1] if "vote" in words else None
        self._disk_fails = False
        self.ledger = MemoryLedger(lambda: self._disk_fails)
        self._now = 0
        for each in words[words.index("log") + 1 :] if "log" in words else []:
            self.ledger.append_body(int(each), b"")
        self.ledger.flush()
        self._sent: dict[tuple[str, str], int] = {}
        self._last: dict[str, int] = {}
        persisted = Persisted(term, vote, must_catch_up="lost" in words)
        self.core = Core(settings, persisted, self.ledger, random.Random(7), 0)

    def input(self, line: str) -> list[str]:
        """Apply one line; return the effects."""
        words = line.split()
        if words[0] == "tick":
            self._now = int(words[1])
            effects = self.core.tick(self._now)
        elif words[0] == "propose":
            result, effects = self.core.propose(b"", self._now)
            told = [
                f"refused {result.name}" if isinstance(result, Code) else f"entry {_of(result)}"
            ]
            return told + [self._text(effect) for effect in effects]
        elif words[0] == "chunk":
            assert self.core.append_refusal() is None
            for _ in range(int(words[1])):
                self.ledger.append_body(self.core.term, b"")
            effects = self.core.appended(self._now)
        elif words[0] == "disk":
            self._disk_fails = words[1] == "fails"
            effects = []
        elif words[1:2] == ["takes"]:
            self.core.set_takes_runs(words[0], takes=words[2] == "runs")
            effects = []
        elif words[1:] == ["ended"]:
            effects = self.core.leader_ended(words[0], self._now)
        elif words[0] == "flush":
            self.ledger.flush()
            effects = self.core.flushed(self._now)
        else:
            request_id, body = self._body(words)
            envelope = Envelope(words[0], self._name, request_id, body)
            effects = self.core.step(envelope, self._now)
        return [self._text(effect) for effect in effects]

    def _body(self, words: list[str]) -> tuple[int, Body]:
        sender, kind, *rest = words
        if kind == "fails":
            return self._last[sender], Failed()
        if kind == "answers":
            return self._sent[sender, rest[0]], _answer(rest, self.core.term)
        term = next((int(word[1:]) for word in rest if re.fullmatch(r"t\d+", word)), NONE)
        base: dict[str, Any] = {
            "group": GROUP,
            "local_id": sender,
            "remote_id": self._name,
            "leader_id": sender,
            "term": term,
        }
        if kind == "vote":
            index, _, end_term = rest[-1].partition("/")
            return 1, VoteRequest(
                **base, ledger_end_index=int(index), ledger_end_term=int(end_term)
            )
        if kind == "heartbeat":
            return 1, HeartbeatRequest(**base)
        if kind == "transfer":
            return 1, TransferRequest(
                **base,
                transfer_id=rest[0],
                transferee_id=rest[2],
                take_leadership_ledger_index=int(rest[-1]),
            )
        entries = tuple(_entry(word) for word in rest if "/" in word)
        push = PushRequest(
            **base, type=PushType[rest[0]], commit_index=int(rest[-1]), entries=entries
        )
        return 1, replace(push, entries=(), run=run_of(entries)) if "run" in rest else push

    def _text(self, effect: Effect) -> str:
        if isinstance(effect, Send):
            envelope = effect.envelope
            kind = _KINDS.get(type(envelope.body))
            if kind:
                self._sent[envelope.recipient, kind] = envelope.request_id
                self._last[envelope.recipient] = envelope.request_id
            return f"to {envelope.recipient}: {_body_text(envelope.body)}"
        if isinstance(effect, Persist):
            return f"persist term {effect.term} vote {effect.vote or 'none'}"
        if isinstance(effect, RoleChanged):
            return f"{effect.role.value} in term {effect.term}: {effect.reason}"
        if isinstance(effect, LeaderReady):
            return "ready"
        if isinstance(effect, Committed):
            return f"committed {effect.index}"
        if isinstance(effect, CaughtUp):
            return "caught up"
        if isinstance(effect, LedgerFailed):
            return f"ledger failed: {effect.error.strerror}"
        if isinstance(effect, LedgerWorks):
            return "ledger works"
        assert isinstance(effect, CommittedLost)
        return f"lost committed entries {effect.index + 1} to {effect.committed}"


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.isdigit() else tuple(text.split(","))


def _entry(word: str) -> Entry:
    index, _, term = word.partition("/")
    term, _, pos = term.partition("@")
    return Entry(int(index), int(term), int(pos or int(index) * HEADER), HEADER, b"")


def _of(entry: Entry) -> str:
    return f"{entry.index}/{entry.term}"


def _answer(words: list[str], term: int) -> Body:
    kind, result, *rest = words
    if kind == "vote":
        return VoteResponse(vote_result=VoteResult[result], term=int(rest[0][1:]))
    if kind == "heartbeat":
        return HeartbeatResponse(code=Code(int(result)), term=int(rest[0][1:]) if rest else NONE)
    if kind == "transfer":
        return TransferResponse(code=Code(int(result)))
    begin, end = re.fullmatch(r"(-?\d+)-(-?\d+)", rest[0]).groups()  # type: ignore[union-attr]
    return PushResponse(
        code=Code(int(result)), term=term, begin_index=int(begin), end_index=int(end)
    )


def _body_text(body: Body) -> str:
    if isinstance(body, VoteRequest):
        return f"vote t{body.term} log {body.ledger_end_index}/{body.ledger_end_term}"
    if isinstance(body, HeartbeatRequest):
        return f"heartbeat t{body.term}"
    if isinstance(body, PushRequest):
        entries = "".join(f" {_of(entry)}" for entry in body.entries)
        if body.run:
            entries = f" run {body.first_index}-{body.last_index}"
        return f"push {body.type.name} t{body.term}{entries} commit {body.commit_index}"
    if isinstance(body, TransferRequest):
        return f"transfer to {body.transferee_id} index {body.take_leadership_ledger_index}"
    assert not isinstance(body, Failed)
    text = f"{body.code.value} t{body.term}"  # type: ignore[union-attr]
    if isinstance(body, VoteResponse):
        text = f"{body.vote_result.name} t{body.term}"
    elif isinstance(body, PushResponse):
        text += f" index {body.index} log {body.begin_index}-{body.end_index}"
    return text
