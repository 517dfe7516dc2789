from __future__ import annotations

import pytest

from bench import micro_acl


def test_every_way_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A send that is refused, or not answered, fails the measurement."""
    for name, value in (("ROUNDS", 2), ("CHUNKS", 2), ("CALLS", 5)):
        monkeypatch.setattr(micro_acl, name, value)
    micro_acl.main()
    printed = capsys.readouterr().out
    for line in ("signature, in Python", "access control strict", "  cost of compatible"):
        assert line in printed
