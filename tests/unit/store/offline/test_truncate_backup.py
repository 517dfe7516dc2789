from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from pyromq.protocol.message.record import MessageRecord
from pyromq.store.offline import truncate_backup
from pyromq.store.offline.dump import StoreFile
from pyromq.store.offline.truncate import truncate_store
from pyromq.store.offline.truncate_backup import data_blocks, require_room
from pyromq.store.results import StoreError
from tests.support.stores import SEGMENT, small_config
from tests.support.truncation import assert_truncated, interesting_offsets, written_store


class Cut:
    """A store, before and after it was truncated."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "the store"
        self.records: list[MessageRecord] = written_store(self.root)
        self.log = b"".join(
            path.read_bytes() for path in sorted((self.root / "commitlog").iterdir())
        )
        self.tables = {
            path.name: path.read_bytes() for path in (self.root / "config").iterdir()
        } | {"checkpoint": (self.root / "checkpoint").read_bytes()}
        self.offset = interesting_offsets(self.records)["middle"]
        self.end = self.records[-1].physical_offset + self.records[-1].size
        self.plan = truncate_store(small_config(self.root), self.offset, apply=True)
        self.backup = self.plan.backup


@pytest.fixture
def cut(tmp_path: Path) -> Cut:
    return Cut(tmp_path)


def test_it_has_every_byte_that_is_cut(cut: Cut) -> None:
    base = cut.offset - cut.offset % SEGMENT
    paths = sorted((cut.backup / "commitlog").iterdir())
    assert [int(path.name) for path in paths] == list(range(base, len(cut.log), SEGMENT))
    saved = b"".join(path.read_bytes() for path in paths)
    assert saved[cut.offset - base :] == cut.log[cut.offset :]
    assert not any(saved[: cut.offset - base])


def test_it_has_the_tables_as_they_were(cut: Cut) -> None:
    saved = {path.name: path.read_bytes() for path in (cut.backup / "config").iterdir()}
    saved["checkpoint"] = (cut.backup / "checkpoint").read_bytes()
    assert saved == cut.tables


def test_it_says_what_it_is(cut: Cut) -> None:
    facts = json.loads((cut.backup / "truncated.json").read_bytes())
    assert facts["store"] == str(cut.root)
    assert (facts["offset"], facts["endOffset"]) == (cut.offset, cut.end)
    assert facts["messages"] == cut.plan.messages == len(list(cut_records(cut)))
    assert sum(queue["entries"] for queue in facts["queues"]) == facts["messages"]
    assert facts["tables"]["delayOffset.json"] == [{"name": "level 3", "before": 7, "after": 0}]


def cut_records(cut: Cut) -> Iterator[int]:
    return (r.physical_offset for r in cut.records if r.physical_offset >= cut.offset)


def test_dump_shows_its_messages(cut: Cut) -> None:
    found = []
    for path in sorted((cut.backup / "commitlog").iterdir()):
        with StoreFile.open(path) as file:
            items = list(file.items(max(cut.offset, int(path.name))))
        found += [item["physicalOffset"] for item in items if item["type"] == "message"]
    assert found == list(cut_records(cut))


def test_the_readme_puts_it_back(cut: Cut) -> None:
    """By its own words."""
    text = (cut.backup / "README.txt").read_text()
    copying = re.search(r"^    (dd .*\\\n.*)$", text, re.MULTILINE)
    ending = re.search(r"^    (touch .*)$", text, re.MULTILINE)
    assert copying is not None
    assert ending is not None
    for command in (copying[1], ending[1]):
        subprocess.run(command, shell=True, cwd=cut.backup, check=True, capture_output=True)
    for path in sorted((cut.backup / "commitlog").iterdir())[1:]:
        shutil.copy(path, cut.root / "commitlog")
    truncate_store(small_config(cut.root), cut.end, apply=True)
    assert_truncated(cut.root, cut.records, cut.end)


def test_two_backups_in_one_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        @staticmethod
        def now(zone: object) -> datetime:
            return datetime(2026, 11, 18, 9, 30, 5, 999)

    monkeypatch.setattr(truncate_backup, "datetime", Clock)
    names = [truncate_backup._new_directory(tmp_path, "s").name for _ in range(3)]
    time = "20261118T093005Z"
    assert names == [f"s-{time}", f"s-{time}-2", f"s-{time}-3"]


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    records = written_store(root)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: usage._replace(free=1000) if path.exists() else 1 / 0
    )
    with pytest.raises(StoreError, match=r"takes \d+ bytes, and 1000 are free"):
        truncate_store(
            small_config(root),
            records[50].physical_offset,
            apply=True,
            backup_directory=tmp_path / "not" / "there",
        )
    assert list(tmp_path.iterdir()) == [root]
    require_room(tmp_path, 1000)


def test_a_disk_that_fills_up_leaves_the_store_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    records = written_store(root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    real, calls = os.pwrite, 0

    def full(descriptor: int, data: bytes, position: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return real(descriptor, data[:100], position)
        if calls == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data, position)

    monkeypatch.setattr(os, "pwrite", full)
    config = small_config(root)
    with pytest.raises(StoreError, match=r"No space left on device; nothing was changed"):
        truncate_store(config, records[50].physical_offset, apply=True)
    assert calls == 4
    assert list(tmp_path.iterdir()) == [root]
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_blocks_of_zeros_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    size = 1 << 20
    with path.open("wb") as file:
        file.truncate(20 * size)
        file.seek(7 * size + 5)
        file.write(b"data")
        file.seek(12 * size)
        file.write(bytes(100))
    blocks = list(data_blocks(path, 3))
    assert sum(data.count(b"data") for _, data in blocks) == 1
    assert len(blocks) == 1
    assert blocks[0][0] <= 7 * size + 5
    assert list(data_blocks(path, 8 * size)) == []
    assert list(data_blocks(path, 20 * size)) == []
