"""The power goes at any instant of a commit: what was synced is there, of the rest any part.

The steps of `durable_files` are done and written down. A cut keeps every change of a directory
that was synced afterwards, and takes or leaves each of the others by itself, which is worse than
what a journalling filesystem does. What is found then must be carried on with as after a kill.
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
#: Cuts at each step, each with other changes that are lost.
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
        """Make a file, where its directory is there."""
        if content is not None and path.parent in self.directories:
            self.files[path] = content

    def make(self, path: Path) -> None:
        """Make a directory, where the one above is there."""
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
        """Make it real."""
        for directory in sorted(self.directories):
            (root / directory).mkdir(parents=True)
        for path, content in self.files.items():
            (root / path).write_bytes(content)


@dataclass
class Change:
    """One entry of some directories that became another one."""

    directories: set[Path]
    carry_out: Callable[[Tree], object]
    is_synced: bool = False


class PowerOff(BaseException):
    """Nothing happens any more: nothing handles it."""


class Disk:
    """Writes down what `durable_files` does below a root; goes off before the n-th step."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, steps: int) -> None:
        self._root = root
        self._before = Tree(root)
        self._changes: list[Change] = []
        self._steps = steps
        # Names of staged files are on the disk only when somebody has synced them.
        for path in [path for path in self._before.files if "staging" in path.parts]:
            content = self._before.files.pop(path)
            self._change(lambda tree, at=path, data=content: tree.put(at, data), path)  # type: ignore[misc]
        for name in ("rename", "link", "remove", "remove_tree", "make_directories", "exchange"):
            patch.setattr(durable_files, name, self._noting(name, getattr(durable_files, name)))
        patch.setattr(durable_files, "sync_directory", self._sync)

    def left_by_a_cut(self, choice: random.Random) -> Tree:
        """What is on the disk now."""
        tree = copy.deepcopy(self._before)
        for change in self._changes:
            if change.is_synced or choice.random() < 0.5:
                change.carry_out(tree)
        return tree

    def _change(self, carry_out: Callable[[Tree], object], *paths: Path) -> None:
        self._changes.append(Change({path.parent for path in paths}, carry_out))

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

    def _note_rename(self, path: Path, target: Path) -> None:
        if path.suffix == ".tmp":
            # Made a moment ago, with what it holds synced.
            content = (self._root / path).read_bytes()
            self._change(lambda tree: tree.put(target, content), target)
        else:
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
    """Cut `set_up`'s call before each of its steps; check what is there then. Returns the steps."""
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
    raise AssertionError("it never ends")


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
