from __future__ import annotations

import platform

import pytest

from pyromq.cli.doctor import software
from pyromq.cli.doctor.finding import Finding, Level
from pyromq.cli.doctor.software import examine_software
from pyromq.protocol import kernel


def findings() -> dict[str, Finding]:
    return {each.check: each for each in examine_software()}


def test_this_installation() -> None:
    found = findings()
    assert found["python"].what == f"CPython {platform.python_version()}"
    assert found["uvloop"].level is Level.OK
    assert (found["compiled kernel"].level is Level.OK) == (kernel.load("log_piece") is not None)


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "find_spec", lambda _name: None)
    monkeypatch.setattr(kernel, "load", lambda _name: None)
    monkeypatch.setattr(platform, "python_implementation", lambda: "PyPy")
    levels = {check: each.level for check, each in findings().items()}
    assert levels == {
        "pyromq": Level.OK,
        "python": Level.WARN,
        "compiled kernel": Level.WARN,
        "uvloop": Level.WARN,
        "isal": Level.WARN,
    }
