from __future__ import annotations

import errno

import pytest

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


def test_bytes_in_flight_are_limited_for_java_s_peers_too() -> None:
    script = in_step("node n0 of 3 max_bytes_in_flight=96")
    pushed = [effect for effect in script.input("chunk 5") if "n1" in effect]
    assert pushed == [f"to n1: push APPEND t0 {index}/0 commit 0" for index in (1, 2)]
    assert "to n1: push APPEND t0 3/0 commit 1" not in script.input("n1 answers push 200 0-0")


def test_another_form_of_pushes_is_due_at_once() -> None:
    script = in_step("node n0 of 3")
    script.input("n1 answers heartbeat 200")
    script.input("chunk 2")
    assert script.core.deadline() > 0
    script.input("n1 takes runs")
    assert script.core.deadline() == 0
    assert script.input("tick 1") == ["to n1: push APPEND t0 run 1-2 commit 0"]
    assert script.core.deadline() > 1


def test_entries_that_cannot_be_read_are_tried_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    script = in_step("node n0 of 3")
    for line in ("n1 takes runs", "n1 answers heartbeat 200", "n2 answers heartbeat 200"):
        script.input(line)
    with monkeypatch.context() as patched:
        patched.setattr(script.ledger, "run", fail)
        assert script.input("chunk 2") == ["ledger failed: too many open files"]
        script.input("tick 500")
        script.input("n1 answers push 406 0-0")
        script.input("n1 answers push 200 0-0")
        assert script.input("n1 answers push 200 0-0") == []
    assert script.input("tick 1000")[0] == "to n1: push COMPARE t0 2/0 commit 0"
    script.input("n1 answers push 406 0-0")
    script.input("n1 answers push 200 0-0")
    effects = script.input("n1 answers push 200 0-0")
    assert effects == ["to n1: push APPEND t0 run 1-2 commit 0", "ledger works"]
