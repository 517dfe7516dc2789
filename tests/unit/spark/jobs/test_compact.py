"""The command `compact`: its options and its output, without a session."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pyromq.spark.archive import archiver, compactor
from pyromq.spark.archive.directory import ArchiveDirectory
from pyromq.spark.jobs import compact as job
from pyromq.spark.origins.origin import Queue
from tests.unit.spark.archive.test_compactor import archive_all, here
from tests.unit.spark.fake_origin import FakeOrigin

A = Queue("Orders", "broker-a", 0)
B = Queue("Payments", "broker-a", 0)


@pytest.fixture
def archive(no_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (archiver, compactor):
        monkeypatch.setattr(module, "fan_out", here)
        monkeypatch.setattr(module, "parallelism", lambda session: 2)
    archive_all(FakeOrigin({A: (0, 100), B: (0, 100)}), tmp_path, 5)
    return tmp_path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(job.command, [str(each) for each in arguments])


def test_merge(archive: Path) -> None:
    dry = invoke(archive, "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "10 files would become 2" in dry.output
    assert len(ArchiveDirectory(archive).files()) == 10
    result = invoke(archive)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("merged 10 files (")
    assert len(ArchiveDirectory(archive).files()) == 2
    again = invoke(archive)
    assert again.exit_code == 0
    assert "nothing to merge" in again.output


def test_some_topics(archive: Path) -> None:
    assert "5 files would become 1" in invoke(archive, "--topic", "Orders", "--dry-run").output


def test_hours_that_are_over(archive: Path) -> None:
    # The messages are of 2023.
    assert "10 files" in invoke(archive, "--older-than", "1", "--dry-run").output
    hours = (2023 - 1970) * 366 * 24 * 2
    assert "0 files" in invoke(archive, "--older-than", hours, "--dry-run").output


def test_no_archive(tmp_path: Path) -> None:
    result = invoke(tmp_path)
    assert result.exit_code == 1
    assert "is not an archive" in result.output
