"""Crashes of the raft log: kills at every step, power cuts, damaged files, and random histories."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyromq.raft import log as log_module
from pyromq.raft import truncation_file
from pyromq.raft.format import Entry
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.results import StoreError
from tests.crash.raft_history import History, reopen
from tests.support.crash import seeds
from tests.support.power_cut import Disk
from tests.support.raft_logs import DATA_FILE, entries_of

STEPS = 60
#: Each step is a dozen kills.
KILLED_STEPS = 20
Content = dict[str, bytes]


@pytest.mark.parametrize("seed", range(6))
def test_a_random_history_matches_the_model(seed: int, tmp_path: Path) -> None:
    live_without_crashes(seed, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(200))
def test_many_random_histories_match_the_model(seed: int, tmp_path: Path) -> None:
    live_without_crashes(seed, tmp_path)


def live_without_crashes(seed: int, directory: Path) -> None:
    history = History(directory / "log", random.Random(seed))
    for _ in range(2 * STEPS):
        history.step()
    history.log.stop()


@pytest.mark.parametrize("seed", [1, 3])  # every operation is in one of them
def test_a_kill_at_any_step_leaves_one_of_two_states(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_everywhere(seed, tmp_path, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(30))
def test_many_kills_leave_one_of_two_states(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_everywhere(seed, tmp_path, monkeypatch)


def kill_everywhere(seed: int, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open a copy of the files as they were before every write of a history."""
    history = History(directory / "log", random.Random(seed))
    seen: set[int] = set()
    found: list[tuple[str, Content, list[Entry], list[Entry]]] = []

    def note() -> None:
        content = files_below(history.directory)
        if (key := hash(frozenset(content.items()))) not in seen:
            seen.add(key)
            found.append((history.name, content, history.before, history.after))

    with monkeypatch.context() as patched:
        for target, name in (
            (MappedFile, "write"),
            (MappedFile, "write_large"),
            (MappedFile, "empty_from"),
            (MappedFile, "unlink"),
            (MappedFile, "sync"),
            (truncation_file, "write_file"),
            (log_module, "sync_directory"),
            (truncation_file, "sync_directory"),
        ):
            patched.setattr(target, name, noting(note, getattr(target, name)))
        for _ in range(KILLED_STEPS):
            history.step()
            note()
        history.log.stop()
    copy = directory / "copy"
    for number, (name, content, before, after) in enumerate(found):
        restore(content, copy)
        log = reopen(copy)
        left = entries_of(log)
        log.stop()
        assert is_allowed(name, left, before, after), (number, name)
        shutil.rmtree(copy)
    assert len(found) > KILLED_STEPS


def noting(note: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*arguments: Any, **named: Any) -> Any:
        note()
        return function(*arguments, **named)

    return noted


def is_allowed(name: str, left: list[Entry], before: list[Entry], after: list[Entry]) -> bool:
    """Whether a kill during an operation may leave these entries."""
    if name in ("_lead", "_follow", "_copy"):
        return len(left) >= len(before) and left == after[: len(left)]
    if name == "_expire":
        return len(left) >= len(after) and left == before[len(before) - len(left) :]
    return left in (before, after)


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_leaves_what_was_flushed(seed: int, tmp_path: Path) -> None:
    lose_power(seed, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(300))
def test_many_power_cuts_leave_what_was_flushed(seed: int, tmp_path: Path) -> None:
    lose_power(seed, tmp_path)


def lose_power(seed: int, directory: Path) -> None:
    """Lose power at a random moment, three times on one disk."""
    chooser = random.Random(seed)
    root = directory / "0"
    root.mkdir()
    for generation in range(1, 4):
        disk = Disk(root, chooser)
        with disk.recording():
            history = History(disk.root / "log", chooser)
            promise = Promise(history)
            disk.on_cut = promise.note
            disk.cut_at = disk.events + chooser.randint(1, 150)
            for _ in range(STEPS):
                if disk.remains is not None:
                    break
                history.step()
            disk.cut()
            history.log.stop()
        root = disk.restore(directory / str(generation))
        log = reopen(root / "log")
        left, lost = entries_of(log), log.must_catch_up
        log.stop()
        promise.check(left)
        assert not lost


class Promise:
    """What a power cut must leave, noted at the cut."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._flushed_index = -1
        self._states: tuple[dict[int, Entry], ...] = ()
        self._name = ""

    def note(self) -> None:
        history = self._history
        self._name = history.name
        # A truncation is under way before it moves the mark back.
        ends = [entries[-1].index if entries else -1 for entries in (history.before, history.after)]
        self._flushed_index = min(history.log.flushed_index, *ends)
        self._states = tuple(
            {**history.expired, **{entry.index: entry for entry in entries}}
            for entries in (history.before, history.after)
        )
        self._first = [
            entries[0].index if entries else -1 for entries in (history.before, history.after)
        ]

    def check(self, left: list[Entry]) -> None:
        """The entries are the beginning of a state, and whatever was flushed is among them."""
        assert any(
            all(state.get(entry.index) == entry for entry in left) for state in self._states
        ), self._name
        end = left[-1].index if left else -1
        if self._flushed_index >= 0:
            assert end >= self._flushed_index, self._name
            assert left[0].index <= max(self._first), self._name


@pytest.mark.parametrize("seed", range(10))
def test_damage_never_makes_up_entries(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage_files(seed, tmp_path, caplog)


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(300))
def test_much_damage_never_makes_up_entries(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage_files(seed, tmp_path, caplog)


def damage_files(seed: int, directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Change some bytes of any file; what is read of the last three data files is right."""
    chooser = random.Random(seed)
    history = History(directory / "log", chooser)
    for _ in range(STEPS):
        history.step()
    history.log.stop()
    for name in ("checkpoint", "checkpoint.bak"):  # all bodies are checked without them
        (history.directory / name).unlink(missing_ok=True)
    known = {entry.index: entry for entry in history.entries}
    for number in range(12):
        copy = directory / f"copy-{number}"
        shutil.copytree(history.directory, copy)
        damage(chooser, copy)
        caplog.clear()
        with reading(copy) as log:
            if log is None:
                continue
            assert len(caplog.records) <= 2, caplog.text
            checked = log.files.segments.end_offset - 3 * DATA_FILE
            for index in range(max(0, log.begin_index), log.end_index + 1):
                if known[index].position >= checked:
                    assert entry_of(log.entry(index)) == known[index]
            log.append_bodies(max(1, log.end_term), [b"continues"])


def damage(chooser: random.Random, directory: Path) -> None:
    path = chooser.choice(sorted(path for path in directory.rglob("*") if path.is_file()))
    content = bytearray(path.read_bytes())
    if not content:
        return
    start = chooser.randrange(len(content))
    length = chooser.choice((1, 4, 48, 512, len(content)))
    kind = chooser.choice(("zeros", "noise", "ones"))
    length = min(length, len(content) - start)
    noise = chooser.randbytes(length)
    piece = {"zeros": bytes(length), "noise": noise, "ones": b"\xff" * length}[kind]
    content[start : start + len(piece)] = piece
    path.write_bytes(content)


@contextmanager
def reading(directory: Path) -> Iterator[log_module.RaftLog | None]:
    """A log on damaged files, or None if it says that it cannot be trusted."""
    try:
        log = reopen(directory)
    except StoreError as error:
        if "remove the node's directory" not in str(error):
            raise
        yield None
        return
    yield log
    log.stop()


def entry_of(entry: Entry) -> Entry:
    return Entry(entry.index, entry.term, entry.position, bytes(entry.body))


def files_below(directory: Path) -> Content:
    content = {}
    for path in sorted(directory.rglob("*")):
        try:
            if path.is_file():
                content[str(path.relative_to(directory))] = path.read_bytes()
        except FileNotFoundError:  # the allocation thread has removed it
            continue
    return content


def restore(content: Content, directory: Path) -> None:
    for name, data in content.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
