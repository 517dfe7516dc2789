from __future__ import annotations

from tests.raft.script import Script


def leader(line: str) -> Script:
    script = Script(line)
    script.input("tick 0")
    script.input("n1 answers vote ACCEPT t0")
    return script


def in_step(line: str) -> Script:
    script = leader(line)
    script.input("propose")
    script.input("n1 answers push 406 -1--1")
    script.input("n1 answers push 200 0-0")
    return script


def test_batches_are_filled_to_their_limit() -> None:
    script = in_step("node n0 of 3 batch_push=True max_batch_bytes=96 max_pushes_in_flight=1")
    pushed = script.input("propose")
    assert pushed[-1] == "to n1: push APPEND t0 1/0 commit 0"
    for _ in range(3):
        script.input("propose")
    effects = script.input("n1 answers push 200 0-1")
    assert "to n1: push APPEND t0 2/0 3/0 commit 0" in effects


def test_a_follower_with_lost_entries_is_compared() -> None:
    script = in_step("node n0 of 3")
    script.input("n1 answers heartbeat 200")
    assert "to n1: push COMMIT t0 commit 0" in script.input("tick 1001")
    assert script.input("n1 answers push 200 -1--1") == ["to n1: push COMPARE t0 0/0 commit 0"]


def test_java_s_rule_skips_truncate() -> None:
    script = leader("node n0 of 3 truncate_after_compare=False")
    script.input("propose")
    assert script.input("n1 answers push 200 0-0") == ["committed 0"]
