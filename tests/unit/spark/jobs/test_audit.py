"""The command `audit`: its tables, its file, its exit code, without a session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pyromq.spark.audit import auditor
from pyromq.spark.audit.report import AuditReport
from pyromq.spark.jobs import audit as job
from tests.unit.spark.stores.test_builds import write_store


@pytest.fixture
def root(no_spark: None, no_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def no_duplicates(report: AuditReport, *_: object) -> None:
        report.duplicate_key_count = 0

    monkeypatch.setattr(auditor, "_add_duplicate_keys", no_duplicates)
    return write_store(tmp_path / "store")


def invoke(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(job.command, [str(each) for each in arguments])


def test_a_sound_store(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    result = invoke("--store", root, "--json", file, "--strict")
    assert result.exit_code == 0, result.output
    assert "120 records" in result.output
    assert "127.0.0.1 (120 sent)" in result.output
    report = json.loads(file.read_bytes())
    assert report["records"] == 120
    assert report["gaps"] == report["damage"] == []
    [topic] = report["topics"]
    assert (topic["queues"], topic["messages"]) == (3, 120)


def test_damage_and_strictness(root: Path) -> None:
    segment = root / "commitlog" / f"{0:020d}"
    segment.write_bytes(segment.read_bytes().replace(b"body 7body 7", b"body 7bOdy 7"))
    result = invoke("--store", root)
    assert result.exit_code == 0
    assert "body CRC" in result.output
    assert invoke("--store", root, "--strict").exit_code == 1


def test_a_dry_run(root: Path) -> None:
    result = invoke("--store", root, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "would read 1 sources with 1 tasks" in result.output


def test_an_unwritable_file_is_rejected_before_the_job(root: Path, tmp_path: Path) -> None:
    result = invoke("--store", root, "--json", tmp_path / "none" / "audit.json")
    assert result.exit_code == 1
    assert "cannot write" in result.output
