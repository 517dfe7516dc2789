from __future__ import annotations

import pytest

from tests.raft.script import Script


def follower(line: str) -> Script:
    script = Script(line)
    script.input("n1 heartbeat t1")
    return script


def test_java_s_rules_answer_any_term() -> None:
    """The settings that the simulator uses to show what they break."""
    compare = "n2 push COMPARE t9 0/0 commit -1"
    line = "node n0 of 3 term 1 log 0"
    assert follower(line).input(compare) == ["to n2: 407 t9 index 0 log 0-0"]
    java = follower(f"{line} check_term_of_pushes=False")
    assert java.input(compare) == ["to n2: 200 t9 index 0 log 0-0"]


def test_a_leader_can_remove_committed_entries_only_with_notice() -> None:
    script = follower("node n0 of 3 term 1 log 0 0")
    script.input("n1 push COMPARE t1 1/0 commit -1")
    script.input("n1 push COMMIT t1 commit 1")
    effects = script.input("n1 push TRUNCATE t1 1/1 commit -1")
    assert effects[0] == "lost committed entries 1 to 1"


def test_waiting_pushes_are_bounded() -> None:
    script = follower("node n0 of 3 term 1 max_waiting_pushes=1")
    script.input("n1 push COMPARE t1 0/1 commit -1")
    script.input("n1 push TRUNCATE t1 0/1 commit -1")
    assert script.input("n1 push APPEND t1 5/1 commit -1") == []
    assert script.input("n1 push APPEND t1 6/1 commit -1") == ["to n1: 421 t1 index 6 log 0-0"]


def test_waiting_pushes_are_limited_in_bytes() -> None:
    script = follower("node n0 of 3 term 1 log 1 max_waiting_bytes=100")
    assert script.input("n1 push APPEND t1 run 2/1 3/1 commit -1") == []
    assert script.input("n1 push APPEND t1 run 4/1 5/1 commit -1") == []
    effects = script.input("n1 push APPEND t1 run 6/1 commit -1")
    assert effects == ["to n1: 421 t1 index 6 log 0-0"]
    script.input("n1 push APPEND t1 1/1 commit -1")
    assert script.ledger.end_index == 5
    assert script.input("n1 push APPEND t1 run 7/1 commit -1") == [], "there is room again"


def test_entries_of_a_later_term_are_refused() -> None:
    for kind in ("COMPARE", "TRUNCATE", "APPEND"):
        script = follower("node n0 of 3 term 1 log 1")
        effects = script.input(f"n1 push {kind} t1 1/2 commit -1")
        assert effects == ["to n1: 411 t1 index 1 log 0-0"]


def test_a_log_without_a_common_entry_begins_again() -> None:
    """What precedes the leader's first entry was compared by nobody, though positions fit."""
    script = follower("node n0 of 3 term 1 log 0 0 0")
    script.input("n1 push COMPARE t1 2/1 commit -1")
    assert script.input("n1 push TRUNCATE t1 2/1 commit 2")[0] == "to n1: 200 t1 index 2 log 2-2"


@pytest.mark.parametrize("late", ["COMPARE t3 1/3", "APPEND t3 1/3 2/3", "APPEND t3 run 1/3 2/3"])
def test_late_pushes_before_the_begin_do_not_empty_a_log_in_step(late: str) -> None:
    """Their entries have expired: that they are not here proves nothing."""
    script = Script("node n0 of 3 term 3")
    script.input("n1 heartbeat t3")
    script.input("n1 push COMPARE t3 4/3 commit -1")
    script.input("n1 push TRUNCATE t3 0/3 commit -1")
    script.input("n1 push APPEND t3 1/3 2/3 3/3 4/3 commit 4")
    script.input("flush")
    script.ledger.expire_before(3)
    assert script.ledger.begin_index == 3
    assert script.input(f"n1 push {late} commit 4") == ["to n1: 406 t3 index 1 log 3-4"]
    assert script.input("n1 push TRUNCATE t3 0/3 commit 4") == ["to n1: 406 t3 index 0 log 3-4"]
