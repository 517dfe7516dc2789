from __future__ import annotations

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
