"""The command `verify`: what it prints, its report and its exit code; no session is made."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pyromq.spark.jobs import verify as job
from tests.support.stores import TOPIC, open_store, put
from tests.unit.spark.stores.test_builds import no_spark, write_store

__all__ = ["no_spark"]


@pytest.fixture
def root(no_spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    @contextmanager
    def no_session(settings: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr(job, "open_session", no_session)
    monkeypatch.setattr(job, "bar_updater", lambda bars: None)
    return write_store(tmp_path / "store")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(job.command, [str(each) for each in arguments])


def test_the_same(root: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    for more in ([], ["--scratch", scratch]):
        result = invoke(root, *more)
        assert result.exit_code == 0, result.output
        assert "3 consume queues with 120 entries and 240 keys compared, 0 diff" in result.output
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
    assert f"and {changed - job.SHOWN} more: all of them are in {report}" in result.output
    assert f"{changed} differences" in result.output
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [line["entry"] for line in lines] == list(range(changed))
    assert lines[0]["store"] == str(root)


def test_a_topic_that_was_deleted_and_created_again(root: Path) -> None:
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
