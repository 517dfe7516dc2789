"""The command `archive`: its options and its output, without a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pyromq.spark.archive import archiver
from pyromq.spark.archive.archiver import Archived, ArchiveOptions
from pyromq.spark.columns import MAP, RAW
from pyromq.spark.jobs import archive as job
from pyromq.spark.options import Edge, Time, TopicPattern, Topics
from pyromq.spark.origins.opening import BrokerSource, StoreSource
from pyromq.spark.origins.origin import OriginError, Queue
from tests.unit.spark.archive.test_archiver import FakeSource
from tests.unit.spark.archive.test_compactor import here
from tests.unit.spark.fake_origin import FakeOrigin

A = Queue("Orders", "broker-a", 0)


class Calls:
    def __init__(self) -> None:
        self.all: list[tuple[Any, Any, ArchiveOptions, float | None]] = []
        self.error: Exception | None = None

    def run(
        self,
        session: object,
        source: Any,
        path: Path,
        options: ArchiveOptions,
        *,
        interval: float | None,
        stop: object,
        on_progress: Any,
    ) -> Archived:
        self.all.append((source, path, options, interval))
        if self.error is not None:
            raise self.error
        archived = Archived(commits=2, messages=10, files=3, bytes=4711, lost=1)
        on_progress(archived)
        return archived


@pytest.fixture
def calls(no_session: None, monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    monkeypatch.setattr(archiver, "run_archive", calls.run)
    monkeypatch.setattr(archiver, "check_topics", lambda source, options: None)
    return calls


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(job.command, [str(each) for each in arguments])


def test_topics_by_name(calls: Calls, tmp_path: Path) -> None:
    result = invoke(tmp_path, "--topic", "A", "--topic", "B", "--nameserver", "a:1;b:2")
    assert result.exit_code == 0, result.output
    assert "10 messages in 3 files (4711 bytes), 2 commits; 1 messages were lost" in result.output
    ((source, path, options, interval),) = calls.all
    assert isinstance(source, BrokerSource)
    assert source.settings.name_servers == ("a:1", "b:2")
    assert path == tmp_path
    assert interval is None
    assert options.wanted == Topics(("A", "B"))
    assert options.starting is Edge.EARLIEST
    assert options.fail_on_data_loss
    assert options.files is not None
    assert options.files.include_properties == RAW


def test_everything_else(calls: Calls, tmp_path: Path) -> None:
    result = invoke(
        *(tmp_path / "archive", "--pattern", "Or.*", "--interval", "2.5", "--tasks", "3"),
        *("--from", "2026-11-16T05:00:00", "--ignore-data-loss", "--properties", "map"),
        *("--compression", "zstd", "--max-records", "1000", "--file-size", "2"),
        *("--store-path", tmp_path, "--broker-name", "b"),
    )
    assert result.exit_code == 0, result.output
    ((source, _, options, interval),) = calls.all
    assert source == StoreSource(str(tmp_path), "b")
    assert interval == 2.5
    assert options.wanted == TopicPattern("Or.*")
    assert options.starting == Time(1794805200000)
    assert not options.fail_on_data_loss
    assert (options.tasks, options.max_records) == (3, 1000)
    assert options.files is not None
    assert options.files.include_properties == MAP
    assert options.files.compression == "zstd"
    assert options.files.file_bytes == 2 * 1024 * 1024


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --topic or --pattern"),
        (["--topic", "A", "--pattern", "B"], "give either --topic or --pattern"),
        (
            ["--topic", "A", "--once", "--interval", "1"],
            "are mutually exclusive",
        ),
        (["--topic", "A", "--broker-name", "b"], "needs --store-path"),
        (["--topic", "A", "--from", "yesterday"], "--from 'yesterday'"),
        (["--topic", "A", "--interval", "0"], "--interval"),
    ],
)
def test_contradictions(calls: Calls, tmp_path: Path, arguments: list[str], message: str) -> None:
    result = invoke(tmp_path, *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert calls.all == []


def test_errors_are_one_line(calls: Calls, tmp_path: Path) -> None:
    calls.error = OriginError("no broker answers")
    result = invoke(tmp_path, "--topic", "A", "--once")
    assert result.exit_code == 1
    assert result.output == "Error: no broker answers\n"


def test_ctrl_c_is_not_an_error(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(archiver, "run_archive", interrupted)
    result = invoke(tmp_path, "--topic", "A")
    assert result.exit_code == 0
    assert "committed messages are kept" in result.output


def test_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = FakeOrigin({A: (3, 45)})
    monkeypatch.setattr(job, "BrokerSource", lambda settings: FakeSource(origin))
    path = tmp_path / "archive"
    result = invoke(path, "--topic", "Orders", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "Orders@broker-a:0" in result.output
    assert "42 messages of 1 queues" in result.output
    assert not path.exists()
    with monkeypatch.context() as patch:
        patch.setattr(archiver, "fan_out", here)
        patch.setattr(archiver, "parallelism", lambda session: 1)
        source: Any = FakeSource(origin)
        archiver.run_archive(None, source, path, ArchiveOptions(Topics(("Orders",))))  # type: ignore[arg-type]
    origin.all[A] = origin.all[A]._replace(first=50, end=60)
    result = invoke(path, "--topic", "Orders", "--dry-run")
    assert "offsets 45 to 49 are lost" in result.output
    assert "10 messages of 1 queues" in result.output


def test_an_unknown_topic_creates_no_archive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = FakeSource(FakeOrigin({A: (0, 10)}))
    monkeypatch.setattr(job, "BrokerSource", lambda connection: source)
    result = invoke(tmp_path / "archive", "--topic", "nosuch")
    assert result.exit_code == 1
    assert "there is no topic 'nosuch'" in result.output
    assert "check --topic" in result.output
    assert not (tmp_path / "archive").exists()
