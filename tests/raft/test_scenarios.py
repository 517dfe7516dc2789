"""Every rule of DLedger's election and replication as a script (`tests/raft/script.py`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.raft.script import run

SCRIPTS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    result = run(path)
    if os.environ.get("PYROMQ_REWRITE"):
        path.write_text(result)
    assert result == path.read_text()


def test_there_are_scenarios() -> None:
    assert len(SCRIPTS) >= 8
