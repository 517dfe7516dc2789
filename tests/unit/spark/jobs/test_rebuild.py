"""The command `rebuild`: its options, what it prints, what it refuses; no session is made."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pyromq.spark.jobs import rebuild as job
from tests.support.stores import open_store, small_config
from tests.unit.spark.stores.test_builds import no_spark, write_store
from tests.unit.store.offline.test_rebuild import derived

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


def test_what_is_missing_is_made(root: Path) -> None:
    before = derived(root)
    shutil.rmtree(root / "consumequeue")
    result = invoke(root, "--config", write_config(root), "--index")
    assert result.exit_code == 0, result.output
    assert "0 consume queues with 0 entries, 240 keys in the index" in result.output
    result = invoke(root, "--config", write_config(root))
    assert result.exit_code == 0, result.output
    assert "3 consume queues with 120 entries, 240 keys in the index" in result.output
    assert derived(root) == before
    assert not list(root.glob("*.rebuilt*"))
    assert not (root / job.SCRATCH).exists()


def write_config(root: Path) -> Path:
    config = small_config(root)
    path = root.parent / "broker.conf"
    path.write_text(
        f"mappedFileSizeCommitLog={config.mapped_file_size_commit_log}\n"
        f"mappedFileSizeConsumeQueue={config.mapped_file_size_consume_queue}\n"
        f"maxHashSlotNum={config.max_hash_slot_num}\nmaxIndexNum={config.max_index_num}\n"
    )
    return path


def test_settings_are_taken_from_the_files(root: Path) -> None:
    before = derived(root)
    result = invoke(root)
    assert result.exit_code == 0, result.output
    assert derived(root) == before


def test_paths_may_be_relative(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = derived(root)
    monkeypatch.chdir(root.parent)
    result = invoke(root.name)
    assert result.exit_code == 0, result.output
    [config] = job.absolute([small_config(Path(root.name))])
    assert config.root == root
    assert derived(root) == before


def test_a_dry_run_changes_nothing(root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    result = invoke(root, "--dry-run", "--part-size", "1")
    assert result.exit_code == 0, result.output
    assert f"{root}: a log of 0 MiB from 0 on, 1 parts to decode" in result.output
    assert "nothing was changed" in result.output
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_a_store_in_use_is_refused(root: Path) -> None:
    store = open_store(root)
    result = invoke(root)
    store.stop()
    assert result.exit_code == 1
    assert "is in use by another broker" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{root}", "{root}"], "a store is named twice"),
        (["{root}/nowhere"], "is no directory"),
        (["{root}/config"], "no log found"),
        (["{root}", "-c", "{root}/missing.conf"], "missing.conf"),
        ([], "Missing argument"),
    ],
)
def test_mistakes_are_named(root: Path, arguments: list[str], message: str) -> None:
    (root / "config").mkdir(exist_ok=True)
    result = invoke(*[each.format(root=root) for each in arguments])
    assert result.exit_code != 0
    assert message in result.output


def test_what_fails_leaves_the_old_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = derived(root)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyromq.spark.stores.builds.build_stores", fail)
    result = invoke(root)
    assert result.exit_code != 0
    assert derived(root) == before
    assert not list(root.glob("*.rebuilt*"))
