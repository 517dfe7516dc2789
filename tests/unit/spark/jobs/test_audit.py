"""The command `audit`: its tables, its file, its exit code; no session is made."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from pyromq.spark.jobs import audit as job
from pyromq.spark.jobs.options import output_console
from pyromq.spark.origins.opening import StoreSource
from tests.unit.spark.stores.test_builds import no_spark, write_store

__all__ = ["no_spark"]


@pytest.fixture
def root(no_spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    @contextmanager
    def no_session(settings: object) -> Iterator[None]:
        yield None

    def no_duplicates(report: job.AuditReport, *_: object) -> None:
        report.duplicate_key_count = 0

    monkeypatch.setattr(job, "open_session", no_session)
    monkeypatch.setattr(job, "_add_duplicates", no_duplicates)
    monkeypatch.setattr("pyromq.spark.jobs.rebuild.bar_updater", lambda bars: None)
    return write_store(tmp_path / "store")


def invoke(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(job.command, [str(each) for each in arguments])


def test_a_sound_store(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    result = invoke("--store", root, "--json", file, "--strict")
    assert result.exit_code == 0, result.output
    assert "120 records" in result.output
    assert "127.0.0.1 (120 from)" in result.output
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
    assert "parts of 1 sources would be read" in result.output


def test_stores_with_the_same_name_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "store", tmp_path / "b" / "store"]
    assert [source.broker_name for source in sources(paths)] == [str(path) for path in paths]
    assert [source.broker_name for source in sources(paths[:1])] == ["store"]


def sources(paths: list[Path]) -> list[StoreSource]:
    found = job._store_sources(paths)
    return [source for source in found if isinstance(source, StoreSource)]


def test_keys_of_messages_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    keys = [job.DuplicateKey("T", "[/bold] [red] :smile:", 2)]
    job.show(job.AuditReport(duplicate_keys=keys, duplicate_key_count=1), output_console())
    assert "T [/bold] [red] :smile:: 2 messages" in capsys.readouterr().out


def test_times_that_no_clock_shows() -> None:
    assert job._time(1_700_000_000_000) == "2023-11-14 22:13:20Z"
    for milliseconds in (2**63 - 1, -(2**63)):
        assert job._time(milliseconds) == f"{milliseconds} ms"


def test_everything_is_shown() -> None:
    report = job.AuditReport(
        records=5,
        gaps=[job.Finding("T", "b", 0, number, number + 1) for number in range(0, 30, 2)],
        repeated_offsets=[job.Finding("T", "b", 1, 3, 5)],
        duplicate_keys=[job.DuplicateKey("T", "KEY", 2)],
        duplicate_key_count=1,
        damage=[("file at 3", "wrong")],
        damage_count=1,
        open_transactions=[job.OpenTransaction("b", 7, 1_700_000_000_000, "Paid", "pay", True)],
        dead_letters=[job.DeadLetters("workers", "T", 4)],
    )

    console = Console(width=200, record=True, file=io.StringIO())
    job.show(report, console)
    text = console.export_text()
    for expected in (
        "T@b:0 0 to 0",
        "...",
        "T@b:1 3 to 4",
        "T KEY: 2 messages",
        "file at 3: wrong",
        "half 7 at b since 2023-11-14 22:13:20Z, given up",
        "group workers, topic T: 4",
    ):
        assert expected in text
    assert "5 records = 0 messages of these topics + 5 of RocketMQ's own" in text
    assert not report.is_clean
