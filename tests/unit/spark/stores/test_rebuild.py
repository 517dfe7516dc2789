"""Rebuilds without Spark; tests/unit/spark/jobs/test_rebuild.py covers the command."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyromq.spark.stores.rebuild import locked_stores, rebuild_stores
from pyromq.store.results import StoreError
from tests.support.stores import small_config
from tests.unit.spark.stores.test_builds import no_spark, write_store
from tests.unit.store.offline.test_rebuild import derived

__all__ = ["no_spark"]

SESSION: Any = SimpleNamespace()


@pytest.mark.usefixtures("no_spark")
def test_missing_files_are_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_store(tmp_path / "store")
    before = derived(root)
    shutil.rmtree(root / "index")
    monkeypatch.chdir(tmp_path)
    (rebuilt,) = rebuild_stores(SESSION, [small_config(Path("store"))])
    assert (rebuilt.queues, rebuilt.entries, rebuilt.keys) == (3, 120, 240)
    assert derived(root) == before


@pytest.mark.usefixtures("no_spark")
def test_a_locked_store_is_rejected(tmp_path: Path) -> None:
    configs = [small_config(write_store(tmp_path / "store"))]
    with locked_stores(configs), pytest.raises(StoreError, match="in use"):
        rebuild_stores(SESSION, configs)
    with pytest.raises(StoreError), locked_stores([small_config(tmp_path)]):
        pass
