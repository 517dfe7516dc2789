from __future__ import annotations

import random

import pytest

from pyromq.raft.member import (
    Committed,
    LedgerFailed,
    LedgerWorks,
    Member,
    Persist,
    Role,
    RoleChanged,
    Settings,
    Trouble,
)
from tests.raft.memory_ledger import MemoryLedger


def member(size: int = 3) -> Member:
    peers = tuple(f"n{each}" for each in range(size))
    settings = Settings(group="g", self_id="n0", peers=peers)
    return Member(settings, MemoryLedger(), random.Random(1), term=1, vote=None, committed=-1)


@pytest.mark.parametrize(("size", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_quorum_is_more_than_half(size: int, quorum: int) -> None:
    assert member(size).settings.quorum == quorum


def test_a_higher_term_is_taken_by_next_term() -> None:
    node = member()
    node.become_candidate(5, "why")
    assert node.term == 1
    node.next_term()
    assert node.term == 5
    node.next_term()
    assert node.term == 6
    assert [type(effect) for effect in node.effects] == [RoleChanged, Persist, Persist]


def test_a_lower_term_changes_nothing() -> None:
    node = member()
    node.become_leader("why")
    node.become_candidate(0, "why")
    assert node.role is Role.LEADER


def test_a_node_votes_once_in_a_term() -> None:
    node = member()
    node.vote_for("n1")
    node.vote_for("n1")
    assert node.effects == [Persist(1, "n1")]
    with pytest.raises(AssertionError):
        node.vote_for("n2")


def test_the_commit_index_stops_at_the_end_and_never_falls() -> None:
    node = member()
    node.ledger.append_body(1, b"")
    node.commit(7)
    node.commit(-1)
    assert node.effects == [Committed(0)]


def test_a_series_of_failures_is_reported_once() -> None:
    node = member()
    trouble, error = Trouble(node), OSError("full")
    trouble.over()
    trouble.failed(error)
    trouble.failed(OSError("still full"))
    trouble.over()
    trouble.over()
    assert node.effects == [LedgerFailed(error), LedgerWorks()]
