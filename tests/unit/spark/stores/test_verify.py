"""Comparisons without Spark; tests/unit/spark/jobs/test_verify.py covers the command."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyromq.spark.stores.verify import verify_stores
from tests.support.stores import TOPIC, small_config
from tests.unit.spark.stores.test_builds import no_spark, write_store

__all__ = ["no_spark"]

SESSION: Any = SimpleNamespace()


@pytest.mark.usefixtures("no_spark")
def test_differences_belong_to_their_store(tmp_path: Path) -> None:
    roots = [write_store(tmp_path / name) for name in ("sound", "damaged")]
    path = min((roots[1] / "consumequeue" / TOPIC / "1").iterdir())
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)
    report = tmp_path / "report.jsonl"
    sound, damaged = verify_stores(SESSION, [small_config(root) for root in roots], report=report)
    assert (sound.root, sound.differences, sound.shown) == (roots[0], 0, ())
    assert (damaged.root, damaged.differences) == (roots[1], 1)
    assert len(damaged.shown) == len(report.read_text().splitlines()) == 1
    assert damaged.rebuilt.entries == 120
