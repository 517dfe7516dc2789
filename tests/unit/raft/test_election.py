from __future__ import annotations

from pyromq.raft.messages import Envelope
from tests.raft.script import Script


def test_answers_of_earlier_rounds_do_not_count() -> None:
    script = Script("node n0 of 3")
    script.input("tick 0")
    answer = script._body(["n1", "answers", "vote", "ACCEPT", "t0"])
    script.input("tick 3000")
    script.input("tick 4000")
    assert script._body(["n1", "answers", "vote", "ACCEPT", "t0"]) != answer
    envelope_id, body = answer
    assert script.core.step(Envelope("n1", "n0", envelope_id, body), 4001) == []


def test_one_node_is_its_own_quorum() -> None:
    script = Script("node n0 of 1")
    assert "leader in term 0: 1 of 1 nodes accepted" in script.input("tick 0")
    assert script.input("propose") == ["entry 0/0", "committed 0"]


def test_a_node_leads_only_with_its_own_vote() -> None:
    """Else a restart cannot know that it led in the term, and has lost entries of it."""
    script = Script("node n0 of 5 term 1 vote n4")
    script.input("tick 0")
    for peer in ("n1", "n2", "n3"):
        assert script.input(f"{peer} answers vote ACCEPT t1") == []
    script.input("n4 answers vote REJECT_ALREADY_VOTED t1")
    assert script.input("tick 1000")[:2] == ["persist term 2 vote none", "persist term 2 vote n0"]


def test_time_decides_when_a_candidate_asks_again() -> None:
    script = Script("node n0 of 3")
    script.input("tick 0")
    deadline = script.core.deadline()
    assert 2000 <= deadline < 3000
    script.input(f"tick {deadline}")
    assert deadline + 300 <= script.core.deadline() < deadline + 1000


def test_nodes_ask_one_after_the_other_when_their_leader_has_ended() -> None:
    deadlines = []
    for node in ("n0", "n1", "n3", "n4"):
        script = Script(f"node {node} of 5 term 3 log 3")
        script.input("n2 heartbeat t3")
        assert script.core.deadline() == 6001
        script.input("n2 ended")
        deadlines.append(script.core.deadline())
    assert deadlines == [0, 150, 300, 450]


def test_a_late_hint_does_not_delay_a_candidacy() -> None:
    script = Script("node n2 of 3 term 3 log 3")
    script.input("n1 heartbeat t3")
    script.input("tick 6000")
    script.input("n1 ended")
    assert script.core.deadline() == 6001
    assert script.input("tick 6001")[0] == "candidate in term 3: no heartbeat for 6001 ms"
