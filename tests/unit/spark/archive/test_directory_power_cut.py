"""Cut the power at any instant of a commit: fsynced changes survive, of all others any subset.

The steps of `durable_files` run and are recorded. A cut keeps every change of a directory that was
fsynced afterwards, and keeps or drops each other change independently, which is worse than what a
journalling filesystem does. The archive must then recover as after a kill.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyromq.spark.archive import durable_files
from pyromq.spark.archive.directory import ArchiveDirectory, Compaction, data_directory
from pyromq.spark.archive.manifest import ARCHIVE, COMPACT
from pyromq.spark.origins.origin import Queue, QueueRange
from tests.unit.spark.archives import HOUR, contents, stage

QUEUE = Queue("Orders", "broker-a", 0)
#: Cuts at each step, each losing other changes.
CUTS = 12


class Tree:
    """Files and directories, by their paths below a root."""

    def __init__(self, root: Path) -> None:
        self.files: dict[Path, bytes] = {}
        self.directories = {Path()}
        for path in sorted(root.rglob("*")):
            place = path.relative_to(root)
            if path.is_dir():
                self.directories.add(place)
            else:
                self.files[place] = path.read_bytes()

    def put(self, path: Path, content: bytes | None) -> None:
        """Create a file if its directory exists."""
        if content is not None and path.parent in self.directories:
            self.files[path] = content

    def make(self, path: Path) -> None:
        """Create a directory if its parent exists."""
        if path.parent in self.directories:
            self.directories.add(path)

    def exchange(self, one: Path, other: Path) -> None:
        """Swap two directories."""
        if {one, other} <= self.directories:
            names = {one: other, other: one}
            moved = {
                path: names[path.parent] / path.name for path in self.files if path.parent in names
            }
            self.files = {moved.get(path, path): each for path, each in self.files.items()}

    def write_to(self, root: Path) -> None:
        """Write the tree to disk."""
        for directory in sorted(self.directories):
            (root / directory).mkdir(parents=True)
        for path, content in self.files.items():
            (root / path).write_bytes(content)


@dataclass
class Change:
    """A change of entries in some directories."""

    directories: set[Path]
    apply: Callable[[Tree], object]
    is_synced: bool = False


class PowerOff(BaseException):
    """The power is off: nothing handles it."""


class Disk:
    """Records what `durable_files` does below a root; cuts the power before the n-th step."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, steps: int) -> None:
        self._root = root
        self._before = Tree(root)
        self._changes: list[Change] = []
        self._steps = steps
        # The names of staged files survive only once their directory is fsynced.
        for path in [path for path in self._before.files if "staging" in path.parts]:
            content = self._before.files.pop(path)
            self._change(lambda tree, at=path, data=content: tree.put(at, data), path)  # type: ignore[misc]
        for name in ("rename", "link", "remove", "remove_tree", "make_directories", "exchange"):
            patch.setattr(durable_files, name, self._noting(name, getattr(durable_files, name)))
        patch.setattr(durable_files, "sync_directory", self._sync)
        self._write_file = durable_files.write_file
        patch.setattr(durable_files, "write_file", self._write)

    def left_by_a_cut(self, choice: random.Random) -> Tree:
        """Return what is on the disk after a cut."""
        tree = copy.deepcopy(self._before)
        for change in self._changes:
            if change.is_synced or choice.random() < 0.5:
                change.apply(tree)
        return tree

    def _change(self, apply: Callable[[Tree], object], *paths: Path) -> None:
        self._changes.append(Change({path.parent for path in paths}, apply))

    def _step(self) -> None:
        if not self._steps:
            raise PowerOff
        self._steps -= 1

    def _noting(self, name: str, function: Callable[..., None]) -> Callable[..., None]:
        def call(*paths: Path) -> None:
            self._step()
            getattr(self, f"_note_{name}")(*(path.relative_to(self._root) for path in paths))
            function(*paths)

        return call

    def _sync(self, path: Path) -> None:
        self._step()
        for change in self._changes:
            change.is_synced |= path.relative_to(self._root) in change.directories

    def _write(self, path: Path, content: bytes) -> None:
        # Two steps: rename a temporary file whose content is fsynced, fsync the directory.
        self._step()
        place = path.relative_to(self._root)
        self._change(lambda tree: tree.put(place, content), place)
        self._write_file(path, content)
        self._sync(path.parent)

    def _note_rename(self, path: Path, target: Path) -> None:
        self._change(lambda tree: tree.put(target, tree.files.pop(path, None)), path, target)

    def _note_link(self, path: Path, target: Path) -> None:
        self._change(lambda tree: tree.put(target, tree.files.get(path)), target)

    def _note_remove(self, path: Path) -> None:
        self._change(lambda tree: tree.files.pop(path, None), path)

    def _note_remove_tree(self, path: Path) -> None:
        for file in sorted((self._root / path).rglob("*")):
            self._note_remove(file.relative_to(self._root))

    def _note_make_directories(self, path: Path) -> None:
        for directory in reversed([path, *path.parents][:-1]):
            if not (self._root / directory).exists():
                self._change(lambda tree, at=directory: tree.make(at), directory)  # type: ignore[misc]

    def _note_exchange(self, one: Path, other: Path) -> None:
        self._change(lambda tree: tree.exchange(one, other), one, other)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def cut_everywhere(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    set_up: Callable[[ArchiveDirectory], Callable[[], object]],
    check: Callable[[ArchiveDirectory], None],
) -> int:
    """Cut the power before each step of the call that `set_up` returns; count the steps."""
    choice = random.Random(7)
    for step in range(100):
        archive = ArchiveDirectory(root / "archive")
        archive.create()
        commit = set_up(archive)
        with monkeypatch.context() as patch:
            disk = Disk(archive.path, patch, step)
            try:
                commit()
            except PowerOff:
                finished = False
            else:
                finished = True
        for _ in range(CUTS):
            disk.left_by_a_cut(choice).write_to(root / "after")
            check(ArchiveDirectory(root / "after"))
            shutil.rmtree(root / "after")
        shutil.rmtree(archive.path)
        if finished:
            return step
    raise AssertionError("it does not end")


def test_an_archive_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = set()

    def set_up(archive: ArchiveDirectory) -> Callable[[], object]:
        archive.commit_archive(stage(archive, "old"), [QueueRange(QUEUE, 0, 3)])
        staged = stage(archive, "new-1", "new-2")
        return lambda: archive.commit_archive(staged, [QueueRange(QUEUE, 3, 13)])

    def check(archive: ArchiveDirectory) -> None:
        assert "old" in contents(archive)
        state = archive.state()
        outcomes.add(state.number)
        if state.number == 1:
            assert contents(archive) == ["old"]
            assert state.positions == {QUEUE: 3}
            archive.commit_archive(stage(archive, "new-1", "new-2"), [QueueRange(QUEUE, 3, 13)])
        assert archive.state().positions == {QUEUE: 13}
        assert contents(archive) == ["new-1", "new-2", "old"]

    assert cut_everywhere(tmp_path, monkeypatch, set_up, check) > 5
    assert outcomes == {1, 2}


@pytest.mark.parametrize("swap", [True, False])
def test_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: bool) -> None:
    outcomes = set()

    def set_up(archive: ArchiveDirectory) -> Callable[[], object]:
        for number, content in enumerate(("a", "b", "kept")):
            archive.commit_archive(stage(archive, content), [QueueRange(QUEUE, number, number + 1)])
        staged = stage(archive, "a+b", kind=COMPACT)
        names = sorted(path.name for path in archive.path.glob(f"topic=Orders/hour={HOUR}/*"))
        compaction = Compaction(data_directory("Orders", HOUR), tuple(staged), tuple(names[:2]))
        return lambda: archive.commit_compaction(compaction, swap=swap)

    def check(archive: ArchiveDirectory) -> None:
        kind = archive.state().kind
        outcomes.add(kind)
        expected = ["a+b", "kept"] if kind == COMPACT else ["a", "b", "kept"]
        assert contents(archive) == expected
        archive.commit_archive(stage(archive, "next"), [QueueRange(QUEUE, 3, 4)])
        assert contents(archive) == sorted([*expected, "next"])

    assert cut_everywhere(tmp_path, monkeypatch, set_up, check) > 5
    assert outcomes == {ARCHIVE, COMPACT}
