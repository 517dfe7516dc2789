from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from pyromq.raft.core import Core
from pyromq.raft.member import Persisted, Role, Send, Settings
from pyromq.raft.messages import (
    Code,
    Envelope,
    HeartbeatRequest,
    PushRequest,
    PushType,
    Request,
    Response,
    TransferRequest,
    VoteRequest,
)
from tests.raft.memory_ledger import MemoryLedger

BASE: dict[str, Any] = {
    "group": "g",
    "local_id": "n1",
    "remote_id": "n0",
    "leader_id": "n1",
    "term": 0,
}
REQUESTS: list[Request] = [
    VoteRequest(**BASE, ledger_end_index=-1, ledger_end_term=-1),
    HeartbeatRequest(**BASE),
    PushRequest(**BASE, type=PushType.COMMIT, commit_index=0),
    TransferRequest(**BASE, transfer_id="n0", transferee_id="n1", take_leadership_ledger_index=0),
]


def core() -> Core:
    settings = Settings(group="g", self_id="n0", peers=("n0", "n1", "n2"))
    return Core(settings, Persisted(), MemoryLedger(), random.Random(1), 0)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_misrouted_requests_are_refused(request_: Request) -> None:
    for wrong, code in (
        (replace(request_, remote_id="n2"), Code.UNKNOWN_MEMBER),
        (replace(request_, group="other"), Code.UNKNOWN_GROUP),
    ):
        (effect,) = core().step(Envelope("n1", "n0", 7, wrong), 0)
        assert isinstance(effect, Send)
        assert effect.envelope.request_id == 7
        assert isinstance(effect.envelope.body, Response)
        assert effect.envelope.body.code is code


def test_answers_to_nothing_are_ignored() -> None:
    node = core()
    for effect in core().step(Envelope("n1", "n0", 7, REQUESTS[0]), 0):
        if isinstance(effect, Send):
            assert node.step(Envelope("n1", "n0", 99, effect.envelope.body), 0) == []


def test_the_saved_commit_index_is_durable() -> None:
    ledger = MemoryLedger()
    ledger.append_body(0, b"")
    settings = Settings(group="g", self_id="n0", peers=("n0",))
    node = Core(settings, Persisted(), ledger, random.Random(1), 0)
    node.tick(0)
    assert node.role is Role.LEADER
    assert (node.committed, node.durable_committed) == (0, -1)
    ledger.flush()
    assert node.durable_committed == 0
