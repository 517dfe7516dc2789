"""A truncated store ends exactly at the offset, and nothing else of it is lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pyromq.protocol.message.record import MessageRecord
from pyromq.protocol.message.units import CHECKPOINT
from pyromq.store.message_store import MessageStore
from pyromq.store.offline import truncate
from pyromq.store.offline.check import check_store
from pyromq.store.offline.truncate import truncate_store
from pyromq.store.results import StoreError
from tests.golden.test_store import STORES, GoldenStore
from tests.support.stores import (
    FOREVER,
    SEGMENT,
    STORE_HOST,
    TOPIC,
    killed_copy,
    log_records,
    open_store,
    put,
    small_config,
)
from tests.support.truncation import (
    LATE_TOPIC,
    assert_truncated,
    consumer_offsets,
    expected_offsets,
    fill,
    interesting_offsets,
    write_tables,
    written_store,
)

KINDS = (
    "everything",
    "first-segment",
    "middle",
    "segment-start",
    "blank-record",
    "after-segment-start",
    "last-segment-start",
    "last-record",
)


class Written:
    """Two copies of the same messages: stopped cleanly, and killed."""

    def __init__(self, directory: Path) -> None:
        self.clean, self.killed = directory / "clean", directory / "killed"
        store = open_store(self.clean)
        fill(store)
        self.records = log_records(store)
        killed_copy(store, self.killed)
        store.stop()
        self.offsets = interesting_offsets(self.records)
        for root in (self.clean, self.killed):
            write_tables(root)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("written"))


@pytest.fixture
def root(written: Written, tmp_path: Path) -> Path:
    shutil.copytree(written.clean, tmp_path / "store")
    return tmp_path / "store"


def contents(root: Path) -> dict[str, bytes]:
    """Every file except the lock, by name."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize("state", ["clean", "killed"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_log_ends_exactly_there(
    written: Written,
    state: str,
    kind: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    root = tmp_path / "store"
    shutil.copytree(written.clean if state == "clean" else written.killed, root)
    offset = written.offsets[kind]
    cut = [record for record in written.records if record.physical_offset >= offset]
    plan = truncate_store(small_config(root), offset, apply=True)
    assert (plan.messages, plan.is_unclean) == (len(cut), state == "killed")
    assert (plan.first_timestamp, plan.last_timestamp) == (
        cut[0].store_timestamp,
        cut[-1].store_timestamp,
    )
    assert sum(queue.entries for queue in plan.queues) == len(cut)
    assert "rebuilding it from the log" not in caplog.text, "queues were rebuilt, not cut"
    assert not (root / "abort").exists()
    assert consumer_offsets(root) == expected_offsets(written.records, offset)
    last = max((root / "commitlog").iterdir())
    assert int(last.name) == offset - offset % SEGMENT
    assert_truncated(root, written.records, offset)


@pytest.mark.parametrize("name", STORES)
def test_stores_of_java(name: str, tmp_path: Path) -> None:
    golden = GoldenStore(name, tmp_path / "golden")
    store = MessageStore(golden.config(), STORE_HOST)
    store.start()
    records = log_records(store)
    store.stop()
    size = golden.config().mapped_file_size_commit_log
    starts = [record.physical_offset for record in records if record.physical_offset % size == 0]
    for number, offset in enumerate({records[len(records) // 2].physical_offset, *starts}):
        copy = GoldenStore(name, tmp_path / str(number))
        truncate_store(copy.config(), offset, apply=True)
        assert list(check_store(copy.root, copy.config())) == []
        store = MessageStore(copy.config(), STORE_HOST)
        store.start()
        try:
            assert store.max_physical_offset == offset
            kept = [record for record in records if record.physical_offset < offset]
            assert log_records(store) == kept
        finally:
            store.stop()


def test_a_dry_run_changes_nothing(written: Written, root: Path) -> None:
    before = contents(root)
    offset = written.offsets["middle"]
    plan = truncate_store(small_config(root), offset)
    assert contents(root) == before
    assert list(root.parent.iterdir()) == [root]
    done = truncate_store(small_config(root), offset, apply=True)
    assert (done.queues, done.tables, done.index_files) == (
        plan.queues,
        plan.tables,
        plan.index_files,
    )
    assert plan.index_files > 0
    assert plan.backup == root.parent


def test_a_second_run_has_nothing_to_do(written: Written, root: Path) -> None:
    offset = written.offsets["segment-start"]
    truncate_store(small_config(root), offset, apply=True)
    before = contents(root)
    plan = truncate_store(small_config(root), offset, apply=True)
    assert not plan.is_needed
    assert contents(root) == before
    assert len(list(root.parent.iterdir())) == 2, "a second backup"


def test_offsets_that_are_refused(written: Written, root: Path) -> None:
    before = contents(root)
    config = small_config(root)
    last = written.records[-1]
    end = last.physical_offset + last.size
    with pytest.raises(StoreError, match=f"after the log, which ends at {end}"):
        truncate_store(config, end + 1, apply=True)
    with pytest.raises(StoreError, match=f"after the log, which ends at {end}"):
        truncate_store(config, 1 << 50, apply=True)
    inside = last.physical_offset + 7
    with pytest.raises(StoreError, match=f"boundary below is {last.physical_offset}$"):
        truncate_store(config, inside, apply=True)
    with pytest.raises(StoreError, match=f"boundary below is {written.offsets['blank-record']}$"):
        truncate_store(config, 2 * SEGMENT - 1, apply=True)
    min((root / "commitlog").iterdir()).unlink()
    with pytest.raises(StoreError, match=f"before the log, which starts at {SEGMENT}"):
        truncate_store(config, SEGMENT - 1, apply=True)
    del before[f"commitlog/{0:020}"]
    assert contents(root) == before
    assert list(root.parent.iterdir()) == [root]


def test_a_log_that_starts_later(written: Written, root: Path) -> None:
    min((root / "commitlog").iterdir()).unlink()
    truncate_store(small_config(root), SEGMENT, apply=True)
    store = open_store(root)
    assert (store.min_physical_offset, store.max_physical_offset) == (SEGMENT, SEGMENT)
    # Entries of expired messages tell where the queues continue.
    expired = [r for r in written.records if r.physical_offset < SEGMENT and r.queue_id == 1]
    assert store.max_offset(TOPIC, 1) == len(expired)
    assert put(store, b"more", queue_id=1) == SEGMENT
    store.seal()
    store.stop()
    assert list(check_store(root, small_config(root))) == []


def test_a_queue_without_entries_is_removed(written: Written, root: Path) -> None:
    assert (root / "consumequeue" / LATE_TOPIC).is_dir()
    truncate_store(small_config(root), written.offsets["first-segment"], apply=True)
    assert not (root / "consumequeue" / LATE_TOPIC).exists()


def test_the_checkpoint_does_not_vouch_for_later_messages(written: Written, root: Path) -> None:
    """Else a crash of the replica that gets other messages there would not be recovered from."""
    offset = written.offsets["middle"]
    path = root / "checkpoint"
    path.write_bytes(CHECKPOINT.pack(*[FOREVER] * 3).ljust(4096, b"\0"))
    truncate_store(small_config(root), offset, apply=True)
    kept = max(r.store_timestamp for r in written.records if r.physical_offset < offset)
    assert max(CHECKPOINT.unpack_from(path.read_bytes())) <= kept


def test_a_torn_end_is_cut_and_kept_in_the_backup(written: Written, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(written.killed, root)
    last = written.records[-1]
    torn = last.physical_offset + last.size - 3
    segment = root / "commitlog" / f"{torn - torn % SEGMENT:020}"
    data = bytearray(segment.read_bytes())
    data[last.physical_offset % SEGMENT + 100] ^= 1
    segment.write_bytes(data)
    config = small_config(root)
    with pytest.raises(StoreError, match=f"ends at {last.physical_offset}$"):
        truncate_store(config, last.physical_offset + last.size)
    plan = truncate_store(config, last.physical_offset, apply=True)
    assert (plan.size, plan.data_end) == (0, last.physical_offset + last.size)
    saved = (plan.backup / "commitlog" / segment.name).read_bytes()
    assert saved[last.physical_offset % SEGMENT :] == data[last.physical_offset % SEGMENT :]
    assert_truncated(root, written.records, last.physical_offset)


def test_a_killed_store_that_ends_there_is_recovered(written: Written, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(written.killed, root)
    shutil.rmtree(root / "consumequeue")
    last = written.records[-1]
    end = last.physical_offset + last.size
    plan = truncate_store(small_config(root), end, apply=True)
    assert (plan.size, plan.is_needed, plan.needs_backup) == (0, True, True)
    assert_truncated(root, written.records, end)


def test_a_store_in_use_is_refused(written: Written, root: Path) -> None:
    store = open_store(root)
    with pytest.raises(StoreError, match="in use by another broker"):
        truncate_store(store.config, written.offsets["middle"])
    store.stop()


def test_several_log_directories(tmp_path: Path) -> None:
    root = tmp_path / "store"
    paths = [tmp_path / "one", tmp_path / "two"]
    settings = {"store_path_commit_log": ",".join(map(str, paths))}
    records = written_store(root, **settings)
    offset = interesting_offsets(records)["middle"]
    assert all(len(list(path.iterdir())) > 1 for path in paths)
    plan = truncate_store(small_config(root, **settings), offset, apply=True)
    names = [int(path.name) for directory in paths for path in directory.iterdir()]
    assert sorted(names) == list(range(0, offset, SEGMENT))
    assert len(list((plan.backup / "commitlog").iterdir())) > 1
    assert_truncated_in(root, records, offset, settings)


def assert_truncated_in(
    root: Path, records: list[MessageRecord], offset: int, settings: dict[str, Any]
) -> None:
    store = open_store(root, **settings)
    kept = [record for record in records if record.physical_offset < offset]
    assert store.max_physical_offset == offset
    assert log_records(store) == kept
    store.stop()
    assert list(check_store(root, small_config(root, **settings))) == []


def test_segments_elsewhere_are_missed(tmp_path: Path) -> None:
    """Without the settings, a log of several directories may look shorter than it is."""
    root = tmp_path / "store"
    records = written_store(root)
    other = tmp_path / "other"
    other.mkdir()
    for path in sorted((root / "commitlog").iterdir())[2:]:
        path.rename(other / path.name)
    with pytest.raises(StoreError, match="several commit log directories"):
        truncate_store(small_config(root), records[3].physical_offset, apply=True)


def test_read_only_segments_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    records = written_store(root)
    old = tmp_path / "old"
    old.mkdir()
    for path in sorted((root / "commitlog").iterdir())[:2]:
        path.rename(old / path.name)
    config = small_config(root, read_only_commit_log_store_paths=str(old))
    before = contents(root)
    with pytest.raises(StoreError, match="readOnlyCommitLogStorePaths"):
        truncate_store(config, records[3].physical_offset, apply=True)
    assert contents(root) == before
    truncate_store(config, 2 * SEGMENT, apply=True)
    settings = {"read_only_commit_log_store_paths": str(old)}
    assert_truncated_in(root, records, 2 * SEGMENT, settings)


def test_files_that_cannot_be_written_are_refused(
    written: Written, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As any user but root would find them."""
    monkeypatch.setattr("os.access", lambda path, _: "consumequeue" not in str(path))
    with pytest.raises(StoreError, match="consumequeue cannot be written"):
        truncate_store(small_config(root), written.offsets["middle"], apply=True)
    assert list(root.parent.iterdir()) == [root]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mapped_file_size_consume_queue": 4000}, "consumequeue do not have 4000 bytes"),
        ({"max_hash_slot_num": 17}, "maxHashSlotNum=17"),
        ({"mapped_file_size_commit_log": 4096}, "has 65536 bytes, not 4096"),
    ],
)
def test_other_sizes_are_refused_before_anything_is_cut(
    written: Written, root: Path, changes: dict[str, Any], reason: str
) -> None:
    before = contents(root)
    with pytest.raises(StoreError, match=reason):
        truncate_store(small_config(root, **changes), written.offsets["middle"], apply=True)
    assert contents(root) == before


@pytest.mark.parametrize("enabled", [True, False])
def test_extensions_are_cut(enabled: bool, tmp_path: Path) -> None:
    """Also if they are switched off by now."""
    root = tmp_path / "store"
    settings: dict[str, Any] = {
        "enable_consume_queue_ext": True,
        "mapped_file_size_consume_queue_ext": 400,
    }
    records = written_store(root, **settings)
    offset = interesting_offsets(records)["middle"]
    units = sorted((root / "consumequeue_ext" / TOPIC / "0").iterdir())
    config = small_config(root, **settings if enabled else {})
    truncate_store(config, offset, apply=True)
    assert 0 < len(list((root / "consumequeue_ext" / TOPIC / "0").iterdir())) < len(units)
    assert_truncated(root, records, offset, **settings)


def test_a_store_without_an_index_gets_none(tmp_path: Path) -> None:
    root = tmp_path / "store"
    records = written_store(root, message_index_enable=False)
    truncate_store(small_config(root), records[100].physical_offset, apply=True)
    assert list((root / "index").iterdir()) == []


def test_the_backup_goes_where_it_is_told(written: Written, root: Path, tmp_path: Path) -> None:
    plan = truncate_store(
        small_config(root),
        written.offsets["middle"],
        apply=True,
        backup_directory=tmp_path / "far" / "away",
    )
    assert plan.backup.parent == tmp_path / "far" / "away"
    assert plan.backup.name.startswith(f"store.truncated-{plan.offset}-")
    for inside in (root, root / "config"):
        with pytest.raises(StoreError, match="cannot be inside the store"):
            truncate_store(small_config(root), 0, backup_directory=inside)


def test_a_start_that_fails_is_told(
    written: Written, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: MessageStore) -> None:
        raise StoreError("in use by another broker")

    monkeypatch.setattr(MessageStore, "start", refuse)
    offset = written.offsets["middle"]
    with pytest.raises(StoreError, match=f"is truncated to {offset}, but the store does not start"):
        truncate_store(small_config(root), offset, apply=True)
    monkeypatch.undo()
    truncate_store(small_config(root), offset, apply=True)
    assert_truncated(root, written.records, offset)


def test_damage_before_the_offset_is_told(
    written: Written, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of segments before those that the plan examines."""
    monkeypatch.setattr("pyromq.store.offline.truncate_plan._CHECKED_SEGMENTS", 1)
    damaged = written.records[3].physical_offset
    segment = root / "commitlog" / f"{0:020}"
    data = bytearray(segment.read_bytes())
    data[damaged + 90] ^= 1
    segment.write_bytes(data)
    with pytest.raises(StoreError, match=f"now ends at {damaged}"):
        truncate_store(small_config(root), written.offsets["segment-start"], apply=True)


STEPS = ("_mark", "_cut_log", "_cut_queues", "_write_tables", "_unmark", "_complete")


@pytest.mark.parametrize("completed_by", ["start", "run"])
@pytest.mark.parametrize("kind", ["middle", "segment-start"])
@pytest.mark.parametrize("step", STEPS)
def test_an_interruption_before_each_step(
    written: Written,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    kind: str,
    completed_by: str,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    offset = written.offsets[kind]
    monkeypatch.setattr(truncate, step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        truncate_store(small_config(root), offset, apply=True)
    monkeypatch.undo()
    last = written.records[-1]
    old_end = last.physical_offset + last.size
    is_cut = STEPS.index(step) > STEPS.index("_cut_log")
    if completed_by == "start":
        open_store(root).stop()
        assert_truncated(root, written.records, offset if is_cut else old_end)
        return
    plan = truncate_store(small_config(root), offset, apply=True)
    assert plan.log_end == (offset if is_cut else old_end)
    assert consumer_offsets(root) == expected_offsets(written.records, offset)
    assert not (root / "abort").exists()
    assert_truncated(root, written.records, offset)
