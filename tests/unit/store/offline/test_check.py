"""A store is valid, or each violation is reported with its position."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pyromq.protocol.message.units import CHECKPOINT
from pyromq.store.offline.check import (
    Violation,
    ViolationKind,
    check_store,
    guess_config,
    is_unclean,
)
from tests.support.patience import wait_until
from tests.support.stores import TOPIC, killed_copy, open_store, put, small_config

COUNT = 150
FIRST = f"{0:020d}"


def write_store(root: Path) -> Path:
    store = open_store(root)
    for number in range(COUNT):
        put(
            store,
            b"%04d" % number * 300,
            queue_id=number % 2,
            tags=f"tag{number % 3}",
            keys=f"k{number} other",
        )
        store.seal()
    wait_until(lambda: store.dispatch_behind == 0)
    store.stop()
    return root


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("check") / "store")


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "store"))


def patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def found(root: Path) -> list[Violation]:
    """Given sizes and those derived from the files give the same result."""
    given = list(check_store(root, small_config(root)))
    assert {str(violation) for violation in check_store(root)} >= {
        str(violation) for violation in given if violation.kind.name not in ("FILE",)
    } - {str(violation) for violation in given if "index" in str(violation.file)}
    return given


def test_a_stopped_store_is_valid(root: Path) -> None:
    assert not is_unclean(root)
    assert found(root) == []


def test_an_empty_folder_is_valid(tmp_path: Path) -> None:
    assert list(check_store(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_changed(root: Path) -> None:
    def state() -> dict[Path, tuple[int, bytes]]:
        return {
            path: (path.stat().st_mtime_ns, path.read_bytes())
            for path in root.rglob("*")
            if path.is_file()
        }

    before = state()
    patched = root / "commitlog" / FIRST
    list(check_store(root))
    assert state() == before
    assert patched in before


def test_running_and_killed_stores_are_valid(tmp_path: Path) -> None:
    store = open_store(tmp_path / "running")
    for number in range(COUNT):
        put(store, b"%04d" % number * 300, queue_id=number % 2, keys=f"k{number}")
        if number % 7 == 0:
            store.seal()
            assert is_unclean(store.config.root)
            assert list(check_store(store.config.root, store.config)) == []
    store.seal()
    killed = killed_copy(store, tmp_path / "killed")
    store.stop()
    assert found(killed) == []


def flip_body(root: Path) -> None:
    patch(root / "commitlog" / FIRST, 100, b"\xff")


def flip_magic(root: Path) -> None:
    patch(root / "commitlog" / FIRST, 4, b"\0")


def zero_record(root: Path) -> None:
    patch(root / "commitlog" / FIRST, 0, bytes(400))


def stale_bytes(root: Path) -> None:
    last = max((root / "commitlog").iterdir())
    patch(last, last.stat().st_size - 30, b"\x01")


def cut_segment(root: Path) -> None:
    path = root / "commitlog" / FIRST
    path.write_bytes(path.read_bytes()[:-1])


def other_file(root: Path) -> None:
    (root / "commitlog" / "notes").write_text("mine")


def queue_file(root: Path, number: int = 0) -> Path:
    return sorted((root / "consumequeue" / TOPIC / "0").iterdir())[number]


def wrong_place(root: Path) -> None:
    patch(queue_file(root), 27, b"\x01")


def wrong_size(root: Path) -> None:
    patch(queue_file(root), 11, b"\x01")


def wrong_tags(root: Path) -> None:
    patch(queue_file(root), 19, b"\x01")


def hole(root: Path) -> None:
    patch(queue_file(root, 1), 20, bytes(20))


def swapped(root: Path) -> None:
    path = queue_file(root)
    data = path.read_bytes()
    patch(path, 0, data[20:40] + data[:20])


def missing_queue(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / TOPIC / "1")


def cut_queue(root: Path) -> None:
    for path in sorted((root / "consumequeue" / TOPIC / "1").iterdir())[3:]:
        path.unlink()


def gap_in_queue(root: Path) -> None:
    queue_file(root, 1).unlink()


def bad_queue_folder(root: Path) -> None:
    (root / "consumequeue" / TOPIC / "01").mkdir()


def bad_checkpoint(root: Path) -> None:
    (root / "checkpoint").write_bytes(CHECKPOINT.pack(1, -5, 0))


def short_checkpoint(root: Path) -> None:
    (root / "checkpoint").write_bytes(b"12345")


def bad_table(root: Path) -> None:
    (root / "config").mkdir(exist_ok=True)
    (root / "config/topics.json").write_text('{"topicConfigTable":')


@pytest.mark.parametrize(
    ("damage", "kind", "text"),
    [
        (flip_body, "BODY_CRC", "at 0: body CRC"),
        (flip_magic, "RECORD", "at 0: record: magic .* the next record is at"),
        (zero_record, "RECORD", "nothing was written here; the next record is at"),
        (stale_bytes, "LOG_END", "bytes after the end of the log"),
        (cut_segment, "FILE", "has 65535 bytes, expected 65536"),
        (other_file, "FILE", "notes at 0.* not a segment"),
        (wrong_place, "QUEUE_ENTRY", f"entry 1 of {TOPIC} queue 0 points at"),
        (wrong_size, "QUEUE_ENTRY", f"entry 0 of {TOPIC} queue 0 has size"),
        (wrong_tags, "QUEUE_ENTRY", f"entry 0 of {TOPIC} queue 0 has tags code"),
        (hole, "QUEUE_ENTRY", "follows a hole: entry 9 was never written"),
        (swapped, "QUEUE_ENTRY", "the message with offset 1"),
        (missing_queue, "MISSING_ENTRY", f"75 messages of {TOPIC} queue 1 have no entry"),
        (cut_queue, "MISSING_ENTRY", "have no entry, the first with offset 24"),
        (gap_in_queue, "FILE", "does not follow"),
        (bad_queue_folder, "FILE", "not a queue's folder"),
        (bad_checkpoint, "CHECKPOINT", "at 8: checkpoint: logicsMsgTimestamp is -5"),
        (short_checkpoint, "CHECKPOINT", "has 5 bytes"),
        (bad_table, "TABLE", r"topics\.json.*cannot be read"),
    ],
)
def test_damage_is_reported(
    root: Path, damage: Callable[[Path], None], kind: str, text: str
) -> None:
    damage(root)
    violations = found(root)
    named = [str(violation) for violation in violations if violation.kind.name == kind]
    assert named, violations
    assert any(re.search(text, name) for name in named), named


@pytest.mark.parametrize("cut", [50, 400, 1000])
def test_a_torn_tail_of_a_killed_store_is_not_a_violation(root: Path, cut: int) -> None:
    store = open_store(root)
    end = put(store, b"the last one" * 100)
    store.seal()
    size = store.max_physical_offset - end
    killed = killed_copy(store, root.parent / "killed")
    store.stop()
    segment = killed / "commitlog" / f"{end - end % 65536:020d}"
    patch(segment, end % 65536 + size - cut, bytes(cut))
    assert found(killed) == []
    (killed / "abort").unlink()
    assert found(killed) != []


@pytest.mark.parametrize("lost", [1, 2])
def test_torn_properties_of_the_last_record_are_not_a_violation(root: Path, lost: int) -> None:
    """A kill can interrupt a write at a page; the body's CRC does not cover what is missing."""
    store = open_store(root)
    put(store, b"whole", keys="whole")
    end = put(store, b"torn", tags="T", keys="k" * 1500)
    store.seal()
    log_end = store.max_physical_offset
    killed = killed_copy(store, root.parent / "killed")
    store.stop()
    segment = killed / "commitlog" / f"{end - end % 65536:020d}"
    cut = log_end % 65536 - log_end % 512 - (lost - 1) * 512
    patch(segment, cut, bytes(log_end % 65536 - cut))
    assert found(killed) == []
    (killed / "abort").unlink()
    assert found(killed) != []


def test_a_deleted_and_recreated_topic_is_valid(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(20):
        put(store, b"old %d" % number)
    store.remove_topic(TOPIC)
    for number in range(3):
        put(store, b"new %d" % number)
    store.seal()
    store.stop()
    assert found(tmp_path) == []


def write_deletion(root: Path, log_end: int, timestamp: int) -> None:
    (root / "config").mkdir(exist_ok=True)
    note = {"topics": {TOPIC: {"logEnd": log_end, "timestamp": timestamp}}}
    (root / "config/deletedTopics.json").write_text(json.dumps(note))


@pytest.mark.parametrize("new", [0, 1, 3])
def test_a_recreated_topic_with_fewer_messages_is_valid(tmp_path: Path, new: int) -> None:
    """Queues without messages since then, and queues with fewer than before."""
    store = open_store(tmp_path)
    for number in range(20):
        put(store, b"old %d" % number, queue_id=number % 4)
    store.remove_topic(TOPIC)
    end = store.max_physical_offset
    stored = store.chunk_time()
    for number in range(new):
        put(store, b"new %d" % number, queue_id=number)
    store.stop()
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config/topics.json").write_text(f'{{"topicConfigTable":{{"{TOPIC}":{{}}}}}}')

    def is_right() -> bool:
        return not list(check_store(tmp_path, small_config(tmp_path)))

    assert not is_right(), "no deletion is known"
    write_deletion(tmp_path, end, stored)
    assert is_right()
    assert found(tmp_path) == []
    write_deletion(tmp_path, end, 0)
    assert not is_right(), "after a power cut, the log may resume before the noted end"
    write_deletion(tmp_path, 1, stored)
    assert not is_right()
    (tmp_path / "config/deletedTopics.json").write_text('{"topics":[1]}')
    assert not is_right()


def test_a_deleted_topic_is_valid(root: Path) -> None:
    (root / "config").mkdir(exist_ok=True)
    (root / "config/topics.json").write_text('{"topicConfigTable":{"Other":{}}}')
    shutil.rmtree(root / "consumequeue" / TOPIC)
    assert found(root) == []


def test_a_log_with_expired_segments_is_valid(root: Path) -> None:
    (root / "commitlog" / FIRST).unlink()
    assert found(root) == []


def test_segments_of_all_directories_are_checked(tmp_path: Path) -> None:
    """Directories of storePathCommitLog and of readOnlyCommitLogStorePaths."""
    root, one, two, old = (tmp_path / name for name in ("store", "one", "two", "old"))
    paths = {"store_path_commit_log": f"{one},{two}"}
    store = open_store(root, **paths)
    for number in range(COUNT):
        put(store, b"%04d" % number * 500, keys=f"k{number}")
        store.seal()
    wait_until(lambda: store.dispatch_behind == 0)
    store.stop()
    old.mkdir()
    first = min([*one.iterdir(), *two.iterdir()], key=lambda path: path.name)
    first.rename(old / first.name)
    settings = small_config(root, **paths, read_only_commit_log_store_paths=str(old))
    assert list(check_store(root, settings)) == []
    for directory in (one, two, old):
        path = min(directory.iterdir())
        before = path.read_bytes()
        patch(path, 100, b"\xff")
        assert [violation.file for violation in check_store(root, settings)] == [path]
        path.write_bytes(before)


def test_progress_ends_at_the_end_of_the_log(root: Path) -> None:
    seen: list[tuple[int, int]] = []
    assert list(check_store(root, None, lambda done, total: seen.append((done, total)))) == []
    assert seen == sorted(seen)
    assert 0 < seen[-1][0] <= seen[-1][1]


def test_a_violation_says_where(tmp_path: Path) -> None:
    violation = Violation(ViolationKind.BODY_CRC, tmp_path / "file", 17, "why")
    assert str(violation) == f"{tmp_path / 'file'} at 17: body CRC: why"


def test_settings_are_guessed_from_the_files(root: Path, tmp_path: Path) -> None:
    guessed = guess_config(root)
    wanted = small_config(root, sync_flush_timeout=guessed.sync_flush_timeout)
    assert guessed == wanted
    unit_file = root / "consumequeue_ext" / TOPIC / "0" / FIRST
    unit_file.parent.mkdir(parents=True)
    unit_file.write_bytes(bytes(4096))
    guessed = guess_config(root)
    assert guessed.enable_consume_queue_ext
    assert guessed.mapped_file_size_consume_queue_ext == 4096
    assert not guess_config(tmp_path / "nothing").enable_consume_queue_ext
