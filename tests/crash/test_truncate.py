"""Kills and power cuts while a log is truncated.

Whenever it happens, the next start finds either the whole log or one that ends at the offset, and
in that case a complete backup; and the same command completes what it had begun.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyromq.protocol.message.record import MessageRecord
from pyromq.store.offline.truncate import truncate_store
from tests.support.crash import REPOSITORY, seeds
from tests.support.power_cut import Disk
from tests.support.stores import SEGMENT, open_store, small_config
from tests.support.truncation import (
    assert_truncated,
    consumer_offsets,
    expected_offsets,
    interesting_offsets,
    written_store,
)

#: Functions of `truncate`, each of which is a step; the process dies before it calls one.
STEPS = ("_mark", "_cut_log", "_cut_queues", "_write_tables", "_unmark", "_complete")

#: Truncates a store and dies when it calls a function for the n-th time.
PROGRAM = """
import os, signal, sys
from importlib import import_module
from pathlib import Path

from pyromq.store.offline.truncate import truncate_store
from tests.support.stores import small_config

root, offset, module, name, number = sys.argv[1:]
owner = import_module(module)
while "." in name:
    part, name = name.split(".", 1)
    owner = getattr(owner, part)
real, calls = getattr(owner, name), 0

def deadly(*arguments, **options):
    global calls
    calls += 1
    if calls == int(number):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **options)

setattr(owner, name, deadly)
truncate_store(small_config(Path(root)), int(offset), apply=True)
"""

TRUNCATE = "pyromq.store.offline.truncate"
#: Named points inside steps: module, function, and which call of it is the last.
POINTS = {
    "in-the-backup": ("pyromq.store.offline.truncate_backup", "_copy_segment", 2),
    "before-truncated.json": ("pyromq.store.offline.truncate_backup", "write_file", 6),
    "before-the-checkpoint": ("pyromq.store.log.checkpoint", "Checkpoint.save", 1),
    "between-segments": ("pyromq.store.log.mapped_file", "MappedFile.delete", 2),
    "between-queues": (TRUNCATE, "_cut_queue", 3),
    "between-tables": ("pyromq.store.offline.truncate_tables", "TableEdit.write", 2),
    "in-the-start": ("pyromq.store.recovery.recovery", "index_from", 1),
    **{f"before{step}": (TRUNCATE, step, 1) for step in STEPS},
}


class Written:
    """A cleanly stopped store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records: list[MessageRecord] = written_store(root)
        self.log = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
        self.end = self.records[-1].physical_offset + self.records[-1].size
        self.offsets = interesting_offsets(self.records)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("written") / "store")


@pytest.mark.parametrize("point", POINTS)
def test_kills(written: Written, point: str, tmp_path: Path) -> None:
    offset = written.offsets["segment-start" if len(point) % 2 else "middle"]
    root = tmp_path / "killed" / "store"
    shutil.copytree(written.root, root)
    module, name, number = POINTS[point]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root), str(offset), module, name, str(number)],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == -9, done.stderr.decode()
    check_remains(written, root.parent, offset, tmp_path)


def test_power_cuts(written: Written, tmp_path: Path) -> None:
    cut_power_often(written, tmp_path, random.Random(15), 12)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", seeds(10))
def test_many_power_cuts(written: Written, tmp_path: Path, seed: int) -> None:
    cut_power_often(written, tmp_path, random.Random(seed), 60)


def cut_power_often(written: Written, directory: Path, chooser: random.Random, rounds: int) -> None:
    """Cut the power at moments that are spread over the whole command."""
    last = 1_000_000
    for number in range(rounds):
        offset = chooser.choice(list(written.offsets.values()))
        scratch = directory / str(number)
        shutil.copytree(written.root, scratch / "disk" / "store")
        disk = Disk(scratch / "disk", chooser)
        # The first round is not cut: it tells how many moments there are.
        disk.cut_at = chooser.randint(1, last) if number else None
        with disk.recording():
            truncate_store(small_config(scratch / "disk" / "store"), offset, apply=True)
        last = disk.events if not number else last
        disk.cut()
        disk.restore(scratch / "restored")
        check_remains(written, scratch / "restored", offset, scratch)
        shutil.rmtree(scratch)


def check_remains(written: Written, remains: Path, offset: int, scratch: Path) -> None:
    """Start one copy of what is left, and truncate another one again."""
    copy = scratch / "copy"
    shutil.copytree(remains / "store", copy)
    store = open_store(copy)
    end = store.max_physical_offset
    store.stop()
    assert end in (offset, written.end)
    if end == offset:
        assert_backup_is_complete(written, remains, offset)
    assert_truncated(copy, written.records, end)
    root = remains / "store"
    truncate_store(small_config(root), offset, apply=True)
    assert consumer_offsets(root) == expected_offsets(written.records, offset)
    assert_truncated(root, written.records, offset)


def assert_backup_is_complete(written: Written, directory: Path, offset: int) -> None:
    (facts,) = directory.glob("store.truncated-*/truncated.json")
    assert json.loads(facts.read_bytes())["offset"] == offset
    base = offset - offset % SEGMENT
    paths = sorted((facts.parent / "commitlog").iterdir())
    saved = b"".join(path.read_bytes() for path in paths)
    assert saved[offset - base :] == written.log[offset:]
    assert (facts.parent / "config" / "consumerOffset.json").exists()
