from __future__ import annotations

import pytest

from tests.raft.script import Script


def leader_in_term_4(line: str) -> Script:
    script = Script(f"node n0 of 3 term 4 log 0 {line}")
    script.input("tick 0")
    script.input("n1 answers vote ACCEPT t4")
    script.input("n1 answers push 200 0-0")
    return script


def test_an_old_entry_waits_for_an_own_one() -> None:
    script = leader_in_term_4("")
    assert script.input("n1 answers push 200 0-0") == ["ready"]
    assert (script.core.counted, script.core.committed) == (0, -1)
    assert script.core.has_uncommitted_tail


def test_pending_proposals_are_bounded() -> None:
    script = leader_in_term_4("max_pending_proposals=1")
    script.input("propose")
    assert script.input("propose") == ["refused LEADER_PENDING_FULL"]


def test_an_old_tail_keeps_no_proposal_out() -> None:
    script = leader_in_term_4("max_pending_proposals=0")
    script.input("n1 answers push 200 0-0")
    assert script.core.has_uncommitted_tail
    assert script.input("propose")[0] == "entry 1/4"


def test_terms_are_asked_for_up_to_the_first_own_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terms never fall in a log, so entries behind it need no look."""
    script = leader_in_term_4("")
    script.input("n1 answers push 200 0-0")
    asked: list[int] = []
    term_of = script.ledger.term_of

    def counted_term_of(index: int) -> int | None:
        asked.append(index)
        return term_of(index)

    monkeypatch.setattr(script.ledger, "term_of", counted_term_of)
    for index in range(1, 4):
        script.input("propose")
        assert f"committed {index}" in script.input("n1 answers push 200 0-0")
    assert asked == [0, 1]


def test_only_a_leader_s_entries_are_pushed() -> None:
    script = Script("node n0 of 3")
    with pytest.raises(AssertionError):
        script.core.appended(0)


def test_entries_of_another_term_are_refused() -> None:
    script = leader_in_term_4("")
    script.ledger.append_body(3, b"")
    with pytest.raises(AssertionError):
        script.core.appended(0)


def test_peers_that_take_runs_are_remembered() -> None:
    """Until the next connection, whoever leads meanwhile."""
    script = Script("node n0 of 3 term 4 log 0")
    script.input("n1 takes runs")
    script.input("tick 0")
    for line in ("vote ACCEPT t4", "push 200 0-0", "push 200 0-0"):
        script.input(f"n1 answers {line}")
    assert "to n1: push APPEND t4 run 1-2 commit -1" in script.input("chunk 2")
