"""The command `verify`: its output, its report and its exit code, without a session."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pyromq.spark.jobs import verify as job
from pyromq.spark.stores.verify import MAX_SHOWN
from tests.support.stores import TOPIC, open_store, put
from tests.unit.spark.stores.test_builds import write_store


@pytest.fixture
def root(no_spark: None, no_session: None, tmp_path: Path) -> Path:
    return write_store(tmp_path / "store")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(job.command, [str(each) for each in arguments])


def test_no_differences(root: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    for more in ([], ["--scratch", scratch]):
        result = invoke(root, *more)
        assert result.exit_code == 0, result.output
        assert "3 consume queues with 120 entries and 240 keys, 0 diff" in result.output
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not list(scratch.iterdir())
    assert not list(root.glob("verify.*"))


def test_differences(root: Path, tmp_path: Path) -> None:
    changed = 0
    for path in sorted((root / "consumequeue" / TOPIC / "1").iterdir())[:-1]:
        content = bytearray(path.read_bytes())
        for position in range(7, len(content), 20):
            content[position] ^= 1
            changed += 1
        path.write_bytes(content)
    report = tmp_path / "report.jsonl"
    result = invoke(root, "--report", report)
    assert result.exit_code == 1
    assert f"and {changed - MAX_SHOWN} more: see {report}" in result.output
    assert f"{changed} differences" in result.output
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [line["entry"] for line in lines] == list(range(changed))
    assert lines[0]["store"] == str(root)


def test_a_recreated_topic(root: Path) -> None:
    store = open_store(root)
    end = store.max_physical_offset
    store.remove_topic(TOPIC)
    put(store, b"new", keys="k")
    store.stop()
    assert invoke(root).exit_code == 1
    note = {"topics": {TOPIC: {"logEnd": end, "timestamp": int(time.time() * 1000)}}}
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "deletedTopics.json").write_text(json.dumps(note))
    result = invoke(root)
    assert result.exit_code == 0, result.output


def test_a_store_in_use(root: Path) -> None:
    store = open_store(root)
    put(store, b"more", keys="k")
    store.seal()
    result = invoke(root)
    store.stop()
    assert result.exit_code == 0, result.output


def test_a_dry_run_and_mistakes(root: Path) -> None:
    result = invoke(root, "--dry-run")
    assert result.exit_code == 0
    assert "nothing was read" in result.output
    (root / "commitlog").rename(root / "elsewhere")
    result = invoke(root)
    assert result.exit_code == 1
    assert "no log found" in result.output
