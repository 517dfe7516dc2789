from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyromq.cli.doctor.finding import Finding, Level
from pyromq.cli.doctor.stores import examine_store
from pyromq.store.message_store import MessageStore
from tests.support.stores import SEGMENT, open_store, put, small_config


def findings(root: Path) -> dict[str, Finding]:
    return {each.check: each for each in examine_store(small_config(root))}


def fill(root: Path) -> MessageStore:
    store = open_store(root)
    for number in range(150):
        put(store, b"%d " % number * 200)
    store.seal()
    return store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path).stop()
    return tmp_path


def test_a_running_store(tmp_path: Path) -> None:
    store = fill(tmp_path)
    try:
        found = findings(tmp_path)
        assert f"process {os.getpid()} runs on" in found["store"].what
        assert f"ends at {store.max_physical_offset};" in found["log"].what
    finally:
        store.stop()
    assert {each.level for each in findings(tmp_path).values()} == {Level.OK}
    assert "stopped cleanly" in findings(tmp_path)["store"].what


def test_a_killed_broker(root: Path) -> None:
    (root / "abort").touch()
    found = findings(root)
    assert (found["store"].level, found["log"].level) == (Level.WARN, Level.OK)


def test_damage_in_the_last_segment(root: Path) -> None:
    last = max((root / "commitlog").iterdir(), key=lambda path: path.stat().st_blocks and path.name)
    with last.open("r+b") as file:
        file.seek(300)
        file.write(b"?")
    found = findings(root)["log"]
    assert found.level is Level.FAIL
    assert "body CRC" in found.what


def test_a_log_that_lacks_messages(root: Path) -> None:
    for path in sorted((root / "commitlog").iterdir())[1:]:
        path.unlink()
    assert int(SEGMENT) > 0
    found = findings(root)["log"]
    assert found.level is Level.FAIL
    assert "the queues refer to messages up to" in found.what


def test_no_log_at_all(root: Path) -> None:
    for path in (root / "commitlog").iterdir():
        path.unlink()
    assert findings(root)["log"].level is Level.FAIL


def test_an_interrupted_restore_and_an_empty_store(tmp_path: Path) -> None:
    assert findings(tmp_path)["log"].what == "the log is empty"
    (tmp_path / "restoring").touch()
    assert findings(tmp_path)["store"].level is Level.FAIL
