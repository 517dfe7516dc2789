"""The audit of a store, in this process; tests/spark/test_store_files.py runs it on Spark."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyromq.spark.audit import auditor
from pyromq.spark.audit.auditor import audit, count_tasks, store_sources
from pyromq.spark.origins.opening import StoreSource
from tests.support.stores import TOPIC
from tests.unit.spark.stores.test_builds import no_spark, write_store

__all__ = ["no_spark"]


def test_stores_are_named_after_their_directories(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "store", tmp_path / "b" / "store"]
    assert names(paths) == [str(path) for path in paths]
    assert names(paths[:1]) == ["store"]


def names(paths: list[Path]) -> list[str]:
    return [each.broker_name for each in store_sources(paths) if isinstance(each, StoreSource)]


@pytest.mark.usefixtures("no_spark")
def test_a_store_with_saved_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_store(tmp_path / "store")
    table = {f"{TOPIC}@readers": {"0": 30, "1": 40}, "Other@readers": {"0": 1}}
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    monkeypatch.setattr(auditor, "_keys_frame", lambda *_: None)
    session: Any = SimpleNamespace()
    sources = store_sources([root])
    report = audit(session, sources)
    assert count_tasks(sources) == 1
    assert report.records == 120
    assert report.is_clean
    (topic,) = report.topics
    assert (topic.topic, topic.queues, topic.messages) == (TOPIC, 3, 120)
    assert topic.producers == {"127.0.0.1": 120}
    assert topic.consumers == {"readers": 10}
    assert audit(session, sources, topics=["Other"]).topics == []
    (root / "config" / "consumerOffset.json").write_text("{")
    assert audit(session, sources).topics[0].consumers == {}
