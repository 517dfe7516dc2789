from __future__ import annotations

import pytest

from pyromq.cli.doctor.clocks import broker_time, compare_clock, examine_clock, kernel_state
from pyromq.cli.doctor.finding import Level

RUNTIME = {
    "bootTimestamp": "1000000",
    "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]",
}
TOLD = 1000 + 86400 + 2 * 3600 + 3 * 60 + 4


def test_a_broker_s_time() -> None:
    assert broker_time(RUNTIME) == TOLD
    assert broker_time({}) is None
    assert broker_time(RUNTIME | {"runtime": "long"}) is None
    assert broker_time(RUNTIME | {"bootTimestamp": "-1"}) is None


@pytest.mark.parametrize(
    ("asked", "level", "text"),
    [
        (TOLD + 0.5, Level.OK, "agrees"),
        (TOLD - 1.5, Level.OK, "agrees"),
        (TOLD - 10, Level.WARN, "9.9 s ahead"),
        (TOLD + 11, Level.WARN, "10.0 s behind"),
        (TOLD - 100, Level.FAIL, "99.9 s ahead"),
    ],
)
def test_differences(asked: float, level: Level, text: str) -> None:
    finding = compare_clock("b:1", RUNTIME, asked, asked + 0.1)
    assert finding.level is level
    assert text in finding.what


def test_a_slow_answer_is_no_difference() -> None:
    assert compare_clock("b:1", RUNTIME, TOLD - 50, TOLD + 50).level is Level.OK


def test_a_broker_that_does_not_tell() -> None:
    assert compare_clock("b:1", {}, 0, 0).level is Level.OK


def test_this_machine() -> None:
    assert {each.level for each in examine_clock(lambda: 5)} == {Level.WARN}
    assert {each.level for each in examine_clock(lambda: 0)} == {Level.OK}
    assert kernel_state() in {None, *range(6)}
    assert list(examine_clock())


def test_a_clock_that_jumps() -> None:
    now = [100.0]

    def sleep(_seconds: float) -> None:
        now[0] += 60

    found = list(examine_clock(lambda: 0, wall=lambda: now[0], steady=lambda: 1.0, sleep=sleep))
    assert found[-1].level is Level.FAIL
    assert "jumped by 60.0 s" in found[-1].what
