from __future__ import annotations

from pyromq.cli.doctor.finding import Level, fail, ok, warn


def test_levels() -> None:
    assert ok("a", "b").level is Level.OK
    assert warn("a", "b", "c", "d").level is Level.WARN
    assert fail("a", "b", "c", "d").to_json() == {
        "check": "a",
        "level": "fail",
        "what": "b",
        "why": "c",
        "advice": "d",
    }
