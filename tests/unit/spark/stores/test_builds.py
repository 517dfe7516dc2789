"""Builds of several stores. Tasks run in this process, pickled and unpickled."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyromq.spark.audit import auditor
from pyromq.spark.stores import builds as store_builds
from pyromq.spark.stores import verify
from pyromq.spark.stores.builds import StoreBuild, build_stores, watched
from pyromq.store.offline.rebuild import Targets, put_in_place, rebuild_store
from tests.support.stores import open_store, put, small_config
from tests.unit.store.offline.test_rebuild import derived


def run_here(session: object, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Replace `fan_out` without Spark."""
    return [pickle.loads(pickle.dumps(work(pickle.loads(pickle.dumps(item))))) for item in items]


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (auditor, store_builds, verify):
        monkeypatch.setattr(module, "fan_out", run_here)
    for module in (store_builds, verify):
        monkeypatch.setattr(module, "parallelism", lambda session: 2)


def write_store(root: Path, count: int = 120) -> Path:
    store = open_store(root)
    for number in range(count):
        put(store, b"body %d" % number * 30, queue_id=number % 3, tags="t", keys=f"k{number} x")
        store.seal()
    store.stop()
    return root


def test_stores_of_any_number(no_spark: None, tmp_path: Path) -> None:
    roots = [write_store(tmp_path / f"store{number}", 70 + number) for number in range(3)]
    builds = []
    for root in roots:
        config = small_config(root)
        expected = rebuild_store(config)
        assert expected.entries
        targets = Targets.beside(config)
        targets.make()
        builds.append(StoreBuild(config, targets, root / "parts"))
    before = [derived(root) for root in roots]
    told: list[tuple[str, int, int]] = []
    tracker = SimpleNamespace(getActiveStageIds=list)
    session = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    made = build_stores(
        session,  # type: ignore[arg-type]
        builds,
        part_size=3000,
        progress=lambda *what: told.append(what),
    )
    for build in builds:
        put_in_place(build.config, build.targets)
    assert [derived(root) for root in roots] == before
    assert [(each.queues, each.entries, each.keys) for each in made] == [
        (3, 70 + number, 2 * (70 + number)) for number in range(3)
    ]
    assert {what for what, _, _ in told} == {"decoding logs", "writing queues and indexes"}
    assert all(done <= total for _, done, total in told)


def test_queues_or_index_only(no_spark: None, tmp_path: Path) -> None:
    config = small_config(write_store(tmp_path / "store"))
    for queues in (True, False):
        targets = Targets.beside(config, queues=queues, index=not queues)
        targets.make()
        build = StoreBuild(config, targets, tmp_path / "parts")
        [made] = build_stores(SimpleNamespace(), [build])  # type: ignore[arg-type]
        assert (made.entries > 0, made.keys > 0) == (queues, not queues)


def test_an_empty_log(no_spark: None, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    config = small_config(tmp_path)
    targets = Targets.beside(config)
    targets.make()
    build = StoreBuild(config, targets, tmp_path / "parts")
    [made] = build_stores(SimpleNamespace(), [build])  # type: ignore[arg-type]
    assert (made.log_end, made.queues, made.entries, made.keys) == (0, 0, 0, 0)


def test_progress_comes_from_spark() -> None:
    stage = SimpleNamespace(numCompletedTasks=3)
    tracker = SimpleNamespace(getActiveStageIds=lambda: [1, 2], getStageInfo={1: stage}.get)
    session = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    told: list[tuple[str, int, int]] = []
    seen = threading.Event()

    def progress(*what: Any) -> None:
        told.append(what)
        if what[1] == 3:
            seen.set()

    with watched(session, progress, "reading", 9):  # type: ignore[arg-type]
        assert seen.wait(60)
    assert told[0] == ("reading", 0, 9)
    assert told[-1] == ("reading", 9, 9)
    with watched(session, None, "reading", 9):  # type: ignore[arg-type]
        pass
