"""The files of DLedger nodes: what Java wrote we read, and the same steps give the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.golden.golden_data import (
    LEDGER_DATA_FILE,
    LEDGER_INDEX_FILE,
    LEDGERS,
    read_index,
    unpack_store,
)
from tests.support.raft_logs import DATA_FILE, INDEX_FILE, Ledger, stored_bytes

assert (DATA_FILE, INDEX_FILE) == (LEDGER_DATA_FILE, LEDGER_INDEX_FILE)


@pytest.fixture(params=LEDGERS)
def name(request: pytest.FixtureRequest) -> str:
    """The name of a captured directory."""
    return f"ledger-{request.param}"


def test_entries_are_read_as_java_reads_them(name: str, tmp_path: Path) -> None:
    unpack_store(name, tmp_path)
    ledger = Ledger(tmp_path)
    assert ledger.dump() == read_index(name)["dump"]
    ledger.run("restart")  # what a start repairs is read once more
    assert ledger.dump() == read_index(name)["dump"]
    ledger.stop()


def test_the_same_steps_write_the_same_bytes(name: str, tmp_path: Path) -> None:
    unpack_store(name, tmp_path / "java")
    index: dict[str, Any] = read_index(name)
    ledger = Ledger(tmp_path / "ours")
    ledger.run(*index["steps"])
    if name == "ledger-revived":
        ledger.run("restart")
        assert ledger.log.end_index == 2, "what we truncate does not come back"
        return
    state = index["dump"][0]
    assert ledger.dump() == index["dump"]
    ledger.stop()
    ours = stored_bytes(tmp_path / "ours", state["written"], state["end"])
    assert ours == stored_bytes(tmp_path / "java", state["written"], state["end"])
    assert len(ours[0]) > 2000


def test_nothing_is_left_behind_the_end(name: str, tmp_path: Path) -> None:
    unpack_store(name, tmp_path)
    ledger = Ledger(tmp_path)
    files, written = ledger.log.files.files, ledger.log.written
    assert not any(files[-1].read(written - files[-1].base, files[-1].size))
    ledger.stop()
