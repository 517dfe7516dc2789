from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

from bench import pypi_clients
from bench.client import CASES, JAVA_BOUNDS, PYPI_BOUNDS, ClientBound, Results, render

FIGURES = {"rate": 100.0, "cpu_us": 10.0, "rss_mib": 100.0, "start_s": 1.0, "broker_us": 5.0}


def results() -> Results:
    """Every bound exactly kept."""
    made: Results = {case.name: {"java": dict(FIGURES), "pyromq": dict(FIGURES)} for case in CASES}
    del made["accumulate"]["java"]
    for bound in JAVA_BOUNDS:
        made[bound.case]["pyromq"][bound.figure] = FIGURES[bound.figure] * bound.limit
    for bound in PYPI_BOUNDS:
        rate = made[bound.case]["pyromq"]["rate"] / bound.limit
        made[bound.case]["rocketmq"] = {**FIGURES, "rate": rate}
    return made


def test_everything_kept() -> None:
    text, kept = render(results(), "pyromq", {"rocketmq": None})
    assert kept
    assert "MISSED" not in text
    assert "3.0 x the rate of rocketmq (PyPI), bound >= 3" in text


@pytest.mark.parametrize("bound", JAVA_BOUNDS, ids=str)
def test_every_bound_can_be_missed(bound: ClientBound) -> None:
    made = results()
    figures = made[bound.case]["pyromq"]
    factor = 1.01 if bound.at_most else 0.99
    figures[bound.figure] *= factor
    text, kept = render(made, "pyromq", {})
    assert not kept
    assert "MISSED" in text


def test_the_other_clients_can_be_too_quick() -> None:
    made = results()
    made["push"]["rocketmq"]["rate"] *= 1.01
    text, kept = render(made, "pyromq", {})
    assert not kept
    assert "MISSED  push consumption" in text


def test_what_does_not_install_is_named_and_costs_nothing() -> None:
    made = results()
    del made["send"]["rocketmq"], made["push"]["rocketmq"]
    text, kept = render(made, "java", {"rocketmq": "no such library"})
    assert kept
    assert "rocketmq (PyPI) is missing from the comparison: no such library" in text


def test_a_package_that_cannot_be_installed_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pypi_clients, "PACKAGES", ("not a package",))
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'first line'; echo 'it is broken'; exit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    found = pypi_clients.install(tmp_path, Console(quiet=True))
    assert found["not a package"].problem == "it is broken"
