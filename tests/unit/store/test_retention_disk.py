"""How full a disk is."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyromq.store.retention import used_percent


@pytest.mark.parametrize(
    ("blocks", "free", "available", "percent"),
    [
        (1000, 1000, 1000, 0),
        (1000, 999, 999, 1),  # rounded up
        (1000, 100, 100, 90),
        (1000, 99, 99, 91),
        (1000, 100, 50, 95),  # 900 of the 950 that may be used
        (1000, 0, 0, 100),
        (0, 0, 0, 0),  # a disk that has no blocks, such as /proc
    ],
)
def test_as_rocketmq_counts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    blocks: int,
    free: int,
    available: int,
    percent: int,
) -> None:
    numbers = SimpleNamespace(f_blocks=blocks, f_bfree=free, f_bavail=available)
    monkeypatch.setattr(os, "statvfs", lambda path: numbers)
    assert used_percent(tmp_path) == percent


def test_a_directory_to_come_is_measured_where_it_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    statvfs = os.statvfs

    def remember(path: Path) -> os.statvfs_result:
        asked.append(path)
        return statvfs(path)

    monkeypatch.setattr(os, "statvfs", remember)
    assert 0 <= used_percent(tmp_path / "not" / "yet") <= 100
    assert asked == [tmp_path]
