from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

from bench import pypi_clients
from bench.cases import CLIENT_TITLES
from bench.client import CASES


def test_every_case_has_a_title_in_the_report() -> None:
    assert [f"client-{case.name}" for case in CASES] == list(CLIENT_TITLES)


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
