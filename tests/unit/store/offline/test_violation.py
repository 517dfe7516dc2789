"""A violation as text."""

from __future__ import annotations

from pathlib import Path

from pyromq.store.offline.violation import Violation, ViolationKind


def test_a_violation_as_text() -> None:
    violation = Violation(ViolationKind.BODY_CRC, Path("log/file"), 17, "why")
    assert str(violation) == "log/file at 17: body CRC: why"
    assert len({kind.value for kind in ViolationKind}) == len(ViolationKind)
