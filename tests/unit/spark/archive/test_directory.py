from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyromq.spark.archive import directory as archive_directory
from pyromq.spark.archive import durable_files
from pyromq.spark.archive.directory import (
    ArchiveDirectory,
    ArchiveError,
    Compaction,
    StagedFile,
    data_directory,
)
from pyromq.spark.archive.manifest import ARCHIVE, COMPACT, AddedFile, Manifest
from pyromq.spark.columns import MAP
from pyromq.spark.origins.origin import LostRecords, Queue, QueueRange
from tests.unit.spark.archives import HOUR, NEXT_HOUR, contents, stage

QUEUE = Queue("Orders", "broker-a", 0)
OTHER = Queue("Orders", "broker-a", 1)
STEPS = (
    "rename",
    "link",
    "remove",
    "remove_tree",
    "make_directories",
    "sync_directory",
    "exchange",
)


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveDirectory:
    directory = ArchiveDirectory(tmp_path / "archive")
    directory.create()
    return directory


class Killed(BaseException):
    """The process dies here: nothing handles it."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test cannot see what is fsynced, and fsync is slow."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@contextmanager
def killed_before(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Die before the n-th change of the directory in the `with` block; yield the changes done."""
    done: list[str] = []
    write_file = durable_files.write_file

    def stopping(name: str, function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            if len(done) == step:
                raise Killed
            done.append(name)
            function(*arguments)

        return call

    def write(path: Path, content: bytes) -> None:
        # Die at the worst instant: the temporary file is complete, but not renamed.
        path.with_name(path.name + ".tmp").write_bytes(content)
        stopping("write_file", write_file)(path, content)

    with monkeypatch.context() as patch:
        for name in STEPS:
            patch.setattr(durable_files, name, stopping(name, getattr(durable_files, name)))
        patch.setattr(durable_files, "write_file", write)
        yield done


def crash_points(
    run: Callable[[], object], monkeypatch: pytest.MonkeyPatch, set_up: Callable[[], object]
) -> Iterator[list[str]]:
    """Run and kill repeatedly, one step further each time; yield the steps done each time."""
    for step in range(100):
        set_up()
        with killed_before(step, monkeypatch) as done:
            try:
                run()
            except Killed:
                pass
            else:
                assert step > 5
                return
        yield done
    raise AssertionError("it never ends")


def test_a_commit_moves_files_and_positions(archive: ArchiveDirectory) -> None:
    staged = stage(archive, "one", "two")
    lost = [LostRecords(QUEUE, 3, 4, "they have expired")]
    manifest = archive.commit_archive(staged, [QueueRange(QUEUE, 0, 7)], lost=lost, properties=MAP)
    assert manifest.number == 1
    assert archive.state() == manifest
    assert manifest.positions == {QUEUE: 7}
    assert manifest.lost == tuple(lost)
    assert manifest.properties == MAP
    assert contents(archive) == ["one", "two"]
    assert [(file.topic, file.hour, file.bytes) for file in archive.files()] == [
        ("Orders", HOUR, 3),
        ("Orders", NEXT_HOUR, 3),
    ]
    assert {path.suffix for path in archive.path.glob("_pyromq/**/*") if path.is_file()} == {
        ".json",
        ".lock",
    }


def test_positions_of_other_queues_stay(archive: ArchiveDirectory) -> None:
    archive.commit_archive(stage(archive, "a"), [QueueRange(QUEUE, 0, 1)])
    archive.commit_archive(stage(archive, "b"), [QueueRange(OTHER, 5, 6)])
    assert archive.state().positions == {QUEUE: 1, OTHER: 6}
    assert archive.peek() == archive.state()


def test_every_crash_point_of_an_archive_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = ArchiveDirectory(tmp_path / "archive")
    staged: list[StagedFile] = []

    def set_up() -> None:
        shutil.rmtree(archive.path, ignore_errors=True)
        archive.create()
        archive.commit_archive(stage(archive, "old"), [QueueRange(QUEUE, 0, 3)])
        staged[:] = stage(archive, "new-1", "new-2", "new-3")

    def commit() -> None:
        archive.commit_archive(staged, [QueueRange(QUEUE, 3, 18)])

    outcomes = set()
    everything = ["new-1", "new-2", "new-3", "old"]
    for done in crash_points(commit, monkeypatch, set_up):
        seen = contents(archive)
        decided = archive.peek()
        # A reader sees old files and complete files of a decided commit, nothing else.
        assert "old" in seen
        assert set(seen) <= (set(everything) if decided.number == 2 else {"old"})
        # The next process applies a decided commit.
        state = ArchiveDirectory(archive.path).state()
        assert state == decided
        outcomes.add(state.number)
        if state.number == 1:
            assert state.positions == {QUEUE: 3}
            assert contents(archive) == ["old"], done
            archive.commit_archive(
                stage(archive, "new-1", "new-2", "new-3"), [QueueRange(QUEUE, 3, 18)]
            )
        assert archive.state().positions == {QUEUE: 18}
        assert contents(archive) == everything, done
    assert outcomes == {1, 2}


def test_a_crash_while_a_pending_commit_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = ArchiveDirectory(tmp_path / "archive")

    def set_up() -> None:
        shutil.rmtree(archive.path, ignore_errors=True)
        archive.create()
        staged = stage(archive, "1", "2", "3")
        with killed_before(3, monkeypatch), pytest.raises(Killed):
            archive.commit_archive(staged, [QueueRange(QUEUE, 0, 3)])
        assert archive.peek().number == 1

    for _ in crash_points(archive.state, monkeypatch, set_up):
        assert archive.state().number == 1
        assert contents(archive) == ["1", "2", "3"]


def test_files_of_a_pending_commit_are_not_removed(
    archive: ArchiveDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = stage(archive, "1", "2")
    with killed_before(3, monkeypatch), pytest.raises(Killed):
        archive.commit_archive(staged, [QueueRange(QUEUE, 0, 2)])
    assert archive.peek().number == 1
    archive.new_staging(ARCHIVE)
    assert contents(archive) == ["1", "2"]


def compacted(archive: ArchiveDirectory) -> Compaction:
    staged = stage(archive, "a+b", kind=COMPACT)
    names = sorted(path.name for path in archive.path.glob(f"topic=Orders/hour={HOUR}/*"))
    return Compaction(data_directory("Orders", HOUR), tuple(staged), tuple(names[:2]))


@pytest.mark.parametrize("swap", [True, False])
def test_every_crash_point_of_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: bool
) -> None:
    archive = ArchiveDirectory(tmp_path / "archive")
    compaction: list[Compaction] = []
    before, after = ["a", "b", "kept"], ["a+b", "kept"]

    def set_up() -> None:
        shutil.rmtree(archive.path, ignore_errors=True)
        archive.create()
        for number, content in enumerate(("a", "b", "kept")):
            archive.commit_archive(stage(archive, content), [QueueRange(QUEUE, number, number + 1)])
        compaction[:] = [compacted(archive)]

    def commit() -> None:
        archive.commit_compaction(compaction[0], swap=swap)

    outcomes = set()
    for done in crash_points(commit, monkeypatch, set_up):
        if swap:
            assert contents(archive) in (before, after), done
        decided = archive.peek()
        # The next process applies it: here the archiver.
        archive.commit_archive(stage(archive, "next"), [QueueRange(QUEUE, 3, 4)])
        outcomes.add(decided.kind)
        expected = sorted([*(after if decided.kind == COMPACT else before), "next"])
        assert contents(archive) == expected, done
        assert archive.state().positions == {QUEUE: 4}
        assert not list(archive.path.glob("_pyromq/swap/*/*"))
    assert outcomes == {ARCHIVE, COMPACT}


def test_compaction_rejects_files_that_are_gone(archive: ArchiveDirectory) -> None:
    for number, content in enumerate(("a", "b")):
        archive.commit_archive(stage(archive, content), [QueueRange(QUEUE, number, number + 1)])
    compaction = compacted(archive)
    archive.commit_compaction(compaction)
    with pytest.raises(ArchiveError, match="is gone"):
        archive.commit_compaction(compaction)
    assert contents(archive) == ["a+b"]


def test_a_range_must_start_at_the_position(archive: ArchiveDirectory) -> None:
    archive.commit_archive(stage(archive, "a"), [QueueRange(QUEUE, 0, 5)])
    for start in (4, 6):
        with pytest.raises(ArchiveError, match=f"up to offset 5, not {start}"):
            archive.commit_archive(stage(archive, "b"), [QueueRange(QUEUE, start, 9)])
    assert contents(archive) == ["a"]
    archive.commit_archive(
        stage(archive, "b"), [QueueRange(QUEUE, 0, 2)], resets={QUEUE: "recreated"}
    )
    assert archive.state().positions == {QUEUE: 2}


def test_topics_with_special_characters(archive: ArchiveDirectory) -> None:
    (staged,) = stage(archive, "a")
    retry = staged._replace(topic="%RETRY%group|x")
    archive.commit_archive([retry], [QueueRange(QUEUE, 0, 1)])
    (file,) = archive.files()
    assert file.topic == "%RETRY%group|x"
    assert file.path.parent.parent.name == "topic=%25RETRY%25group%7Cx"


def test_old_manifests_are_removed(
    archive: ArchiveDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_directory, "MAX_KEPT_MANIFESTS", 3)
    for number in range(6):
        archive.commit_archive([], [QueueRange(QUEUE, number, number + 1)])
    names = sorted(path.name for path in (archive.path / "_pyromq/commits").iterdir())
    assert names == ["0000000004.json", "0000000005.json", "0000000006.json"]
    assert archive.state().positions == {QUEUE: 6}


def test_data_without_manifests_is_rejected(archive: ArchiveDirectory) -> None:
    archive.commit_archive(stage(archive, "a"), [QueueRange(QUEUE, 0, 1)])
    for path in (archive.path / "_pyromq/commits").iterdir():
        path.unlink()
    # New files would get the names of existing ones.
    with pytest.raises(ArchiveError, match="already exists"):
        archive.commit_archive(stage(archive, "b"), [QueueRange(QUEUE, 0, 1)])
    assert contents(archive) == ["a"]
    shutil.rmtree(archive.path / "_pyromq")
    with pytest.raises(ArchiveError, match="Use a new directory"):
        archive.create()
    with pytest.raises(ArchiveError, match="is not an archive"):
        archive.need()


def test_an_unreadable_manifest_is_named(archive: ArchiveDirectory) -> None:
    (archive.path / "_pyromq/commits/0000000007.json").write_bytes(b"{}")
    with pytest.raises(ArchiveError, match=r"0000000007\.json is not a readable manifest"):
        archive.state()


def test_a_commit_whose_files_were_removed(archive: ArchiveDirectory) -> None:
    added = AddedFile("topic=a/hour=b/1.parquet", "_pyromq/staging/archive-1/x.staged", 1, 1)
    pending = Manifest(1, ARCHIVE, 0, added=(added,))
    (archive.path / "_pyromq/commits/0000000001.pending").write_bytes(pending.encode())
    with pytest.raises(ArchiveError, match=r"cannot apply commit 1 of "):
        archive.state()


def test_staged_files_of_earlier_runs_are_removed(archive: ArchiveDirectory) -> None:
    (left,) = stage(archive, "left behind")
    (compacting,) = stage(archive, "in work", kind=COMPACT)
    stage(archive, "new")
    assert not Path(left.path).exists()
    assert Path(compacting.path).exists()


def test_one_archiver_at_a_time(archive: ArchiveDirectory) -> None:
    code = (
        "import sys; from pyromq.spark.archive.directory import ArchiveDirectory\n"
        "with ArchiveDirectory(sys.argv[1]).working('archive'):\n"
        "    print('locked', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(archive.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"locked\n"
        with (
            pytest.raises(ArchiveError, match=f"another process runs `archive`.*{child.pid}"),
            archive.working(ARCHIVE),
        ):
            pass
        with archive.working(COMPACT):  # a different lock
            pass
        child.kill()
    # The kernel releases the lock of a dead process.
    with archive.working(ARCHIVE):
        assert str(os.getpid()) in (archive.path / "_pyromq/archive.lock").read_text()


def test_check_swap_tries_it(archive: ArchiveDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    archive.check_swap()

    def cannot(one: Path, other: Path) -> None:
        raise durable_files.CannotExchangeError(22, "no")

    monkeypatch.setattr(durable_files, "exchange", cannot)
    with pytest.raises(durable_files.CannotExchangeError):
        archive.check_swap()
    assert not list((archive.path / "_pyromq/swap").iterdir())


def test_peek_of_nothing_changes_nothing(tmp_path: Path) -> None:
    archive = ArchiveDirectory(tmp_path / "none")
    assert archive.peek().number == 0
    assert not archive.path.exists()


def test_peek_while_a_manifest_is_renamed(
    archive: ArchiveDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.commit_archive([], [QueueRange(QUEUE, 0, 1)])
    commits = archive.path / "_pyromq/commits"
    (commits / "0000000001.json").rename(commits / "0000000001.pending")
    read_bytes = Path.read_bytes

    def renamed_meanwhile(path: Path) -> bytes:
        if path.suffix == ".pending":
            path.rename(path.with_suffix(".json"))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", renamed_meanwhile)
    assert archive.peek().number == 1
