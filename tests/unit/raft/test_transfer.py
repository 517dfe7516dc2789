from __future__ import annotations

from tests.raft.script import Script


def test_an_order_without_an_answer_ends() -> None:
    script = Script("node n0 of 3")
    script.input("tick 0")
    script.input("n1 answers vote ACCEPT t0")
    script.input("n1 answers heartbeat 200")
    script.input("n2 transfer n0 to n1 t0 index -1")
    assert script.input("propose") == ["refused LEADER_TRANSFERRING"]
    assert "to n2: -1 t0" in script.input("tick 3000")


def test_an_order_for_others_is_refused() -> None:
    script = Script("node n0 of 3")
    effects = script.input("n1 transfer n1 to n2 t0 index -1")
    assert effects == ["to n1: 411 t0"]
