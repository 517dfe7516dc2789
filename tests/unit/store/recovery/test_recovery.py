"""Start after a clean stop, a kill or disk damage."""

from __future__ import annotations

import os
import shutil
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyromq.protocol.message.record import BLANK_SIZE, HEAD_SIZE_V4
from pyromq.protocol.message.units import CHECKPOINT, CONSUME_QUEUE_ENTRY, CONSUME_QUEUE_ENTRY_SIZE
from pyromq.store.index.file import IndexFileError
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.check import check_store
from pyromq.store.results import GetStatus, StoreError
from tests.support.patience import wait_until
from tests.support.stores import (
    FOREVER,
    QUEUE_ENTRIES,
    SEGMENT,
    TOPIC,
    audit,
    bodies,
    body_for,
    killed_copy,
    log_records,
    open_store,
    put,
    put_batch,
    read_all,
    small_config,
)

COUNT = 40
FIRST = f"{0:020d}"


def written(root: Path, count: int = COUNT, **changes: Any) -> tuple[Path, list[bytes]]:
    """Make a killed store with two queues and another topic; return the bodies of queue 0."""
    store = open_store(root / "running", **changes)
    for number in range(count):
        body = b"%04d" % number * 300
        put(store, body, queue_id=number % 2, tags=f"tag{number % 3}", keys=f"k{number}")
        if number % 5 == 0:
            store.seal()
    put(store, b"the last one", topic="Other")
    store.seal()
    sent = bodies(store)
    copy = killed_copy(store, root / "killed")
    store.stop()
    return copy, sent


def derived(root: Path) -> dict[str, bytes]:
    """Return the entries of every consume queue, ignoring preallocated files."""
    queues: dict[str, bytes] = {}
    for path in sorted((root / "consumequeue").rglob("*")):
        if path.is_file():
            name = str(path.parent.relative_to(root))
            queues[name] = queues.get(name, b"") + path.read_bytes()
    return {name: data.rstrip(b"\0") for name, data in queues.items()}


def patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def last_record(root: Path) -> tuple[int, int]:
    """Return offset and size of the last record in the log."""
    entry = (root / "consumequeue/Other/0" / FIRST).read_bytes()[:CONSUME_QUEUE_ENTRY_SIZE]
    physical, size, _ = CONSUME_QUEUE_ENTRY.unpack(entry)
    return physical, size


def segment_of(root: Path, physical: int, size: int = SEGMENT) -> tuple[Path, int]:
    return root / "commitlog" / f"{physical - physical % size:020d}", physical % size


# After a kill


def test_a_kill_loses_nothing_and_derived_files_are_equal(tmp_path: Path) -> None:
    root, sent = written(tmp_path)
    before = derived(root)
    store = open_store(root)
    assert len(audit(store)) == COUNT + 1
    assert bodies(store) == sent
    assert store.max_physical_offset == sum(last_record(root))
    store.stop()
    assert derived(root) == before


def zeroed(path: Path, at: int, size: int) -> None:
    patch(path, at, bytes(size))


def cut(path: Path, at: int, size: int) -> None:
    patch(path, at + size // 2, bytes(size - size // 2))


def flipped_body(path: Path, at: int, size: int) -> None:
    patch(path, at + HEAD_SIZE_V4, b"\xff")


def flipped_magic(path: Path, at: int, size: int) -> None:
    patch(path, at + 4, b"\0")


def longer(path: Path, at: int, size: int) -> None:
    patch(path, at, struct.pack(">i", size + 1))


def endless(path: Path, at: int, size: int) -> None:
    patch(path, at, struct.pack(">i", (1 << 31) - 1))


def negative(path: Path, at: int, size: int) -> None:
    patch(path, at, struct.pack(">i", -size))


def tiny(path: Path, at: int, size: int) -> None:
    patch(path, at, struct.pack(">i", 8))


def from_elsewhere(path: Path, at: int, size: int) -> None:
    patch(path, at + 28, struct.pack(">q", 12345))


def blank_in_the_middle(path: Path, at: int, size: int) -> None:
    patch(path, at, struct.pack(">II", 50, 0xCBD43194))


@pytest.mark.parametrize(
    "damage",
    [
        zeroed,
        cut,
        flipped_body,
        flipped_magic,
        longer,
        endless,
        negative,
        tiny,
        from_elsewhere,
        blank_in_the_middle,
    ],
)
@pytest.mark.parametrize("clean", [False, True])
def test_a_torn_last_record_is_where_the_log_ends(
    tmp_path: Path, damage: Callable[[Path, int, int], None], clean: bool
) -> None:
    root, sent = written(tmp_path)
    if clean:
        open_store(root).stop()
    physical, size = last_record(root)
    path, at = segment_of(root, physical)
    damage(path, at, size)
    store = open_store(root)
    assert store.max_physical_offset == physical
    assert len(audit(store)) == COUNT
    assert bodies(store) == sent
    assert store.max_offset("Other", 0) == 0
    rest = path.read_bytes()[at:]
    assert not any(rest), "stale bytes after the end"
    assert put(store, b"again", topic="Other") == physical
    store.seal()
    audit(store)
    store.stop()


@pytest.mark.parametrize("clean", [False, True])
def test_a_stale_record_after_the_end_is_never_mistaken_for_a_new_one(
    tmp_path: Path, clean: bool
) -> None:
    """Valid records follow a damaged one: a new record of its size must not revive them."""
    root, _ = written(tmp_path)
    if clean:
        open_store(root).stop()
    store = open_store(tmp_path / "running")
    records = log_records(store)
    store.stop()
    damaged = records[-6]
    path, at = segment_of(root, damaged.physical_offset)
    flipped_body(path, at, damaged.size)
    store = open_store(root)
    assert store.max_physical_offset == damaged.physical_offset
    kept = len(audit(store))
    assert kept == COUNT + 1 - 6
    put(store, body_for(store, damaged.size))
    store.seal()
    again_root = killed_copy(store, tmp_path / "again")
    store.stop()
    again = open_store(again_root)
    assert len(audit(again)) == kept + 1
    again.stop()


def test_a_damaged_record_of_an_earlier_segment_ends_the_log_there(tmp_path: Path) -> None:
    root, _ = written(tmp_path, 150)
    files = sorted(path.name for path in (root / "commitlog").iterdir())
    assert len(files) > 2
    flipped_body(root / "commitlog" / files[1], 0, 0)
    store = open_store(root)
    assert store.max_physical_offset == SEGMENT
    assert {record.physical_offset < SEGMENT for record in audit(store)} == {True}
    put(store, b"next")
    put(store, body_for(store, SEGMENT - BLANK_SIZE))
    assert bodies(store)[-2] == b"next"
    audit(store)
    store.stop()


@pytest.mark.parametrize("size", [0, SEGMENT])
def test_a_preallocated_segment(tmp_path: Path, size: int) -> None:
    root, sent = written(tmp_path, 10)
    ahead = root / "commitlog" / f"{SEGMENT:020d}"
    ahead.unlink(missing_ok=True)
    ahead.write_bytes(bytes(size))
    store = open_store(root)
    assert bodies(store) == sent
    audit(store)
    store.stop()
    assert not ahead.exists()


def test_a_kill_between_roll_and_first_record(tmp_path: Path) -> None:
    store = open_store(tmp_path / "running")
    put(store, body_for(store, SEGMENT - BLANK_SIZE))
    store.seal()
    store._log.make_room(500)
    root = killed_copy(store, tmp_path / "killed")
    store.stop()
    again = open_store(root)
    assert again.max_physical_offset == SEGMENT
    assert put(again, b"next") == SEGMENT
    assert len(audit(again)) == 2
    again.stop()


@pytest.mark.parametrize("real", range(1, QUEUE_ENTRIES + 1))
def test_a_preallocated_queue_file_without_entries(tmp_path: Path, real: int) -> None:
    """Kill the store between reserving room for a batch of entries and writing them."""
    store = open_store(tmp_path / "running")
    for number in range(real):
        put(store, b"%d" % number)
    store.seal()
    put_batch(store, [b"lost"] * (QUEUE_ENTRIES + 1))
    killed = killed_copy(store, tmp_path / "killed")
    store.stop()
    again = open_store(killed)
    assert bodies(again) == [b"%d" % number for number in range(real)]
    put(again, b"next")
    assert read_all(again)[-1].queue_offset == real
    audit(again)
    again.stop()


@pytest.mark.parametrize("real", range(1, QUEUE_ENTRIES + 1))
def test_a_clean_stop_with_a_preallocated_queue_file(tmp_path: Path, real: int) -> None:
    """A full disk may leave a new queue file without entries behind."""
    store = open_store(tmp_path)
    for number in range(real):
        put(store, b"%d" % number)
    store.seal()
    store.queue(TOPIC, 0).extend(QUEUE_ENTRIES + 1)
    store.stop()
    again = open_store(tmp_path)
    assert bodies(again) == [b"%d" % number for number in range(real)]
    put(again, b"next")
    assert read_all(again)[-1].queue_offset == real
    audit(again)
    again.stop()


# Consume queues and index


def remove_queue(root: Path) -> None:
    shutil.rmtree(root / f"consumequeue/{TOPIC}/0")


def remove_all_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


def remove_last_queue_file(root: Path) -> None:
    max((root / f"consumequeue/{TOPIC}/0").iterdir()).unlink()


def remove_first_queue_file(root: Path) -> None:
    min((root / f"consumequeue/{TOPIC}/0").iterdir()).unlink()


def empty_last_queue_file(root: Path) -> None:
    max((root / f"consumequeue/{TOPIC}/0").iterdir()).write_bytes(b"")


def zero_all_queue_files(root: Path) -> None:
    for path in (root / "consumequeue").rglob("0" * 10 + "*"):
        path.write_bytes(bytes(path.stat().st_size))


def garbage_in_queue_files(root: Path) -> None:
    for path in (root / f"consumequeue/{TOPIC}").rglob("0" * 10 + "*"):
        path.write_bytes(os.urandom(path.stat().st_size))


def entries_behind_the_log(root: Path) -> None:
    path = root / f"consumequeue/Other/0/{FIRST}"
    patch(path, CONSUME_QUEUE_ENTRY_SIZE, CONSUME_QUEUE_ENTRY.pack(1 << 40, 100, 0) * 3)


def remove_index(root: Path) -> None:
    shutil.rmtree(root / "index")


def remove_checkpoint(root: Path) -> None:
    (root / "checkpoint").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "damage",
    [
        remove_queue,
        remove_all_queues,
        remove_last_queue_file,
        remove_first_queue_file,
        empty_last_queue_file,
        zero_all_queue_files,
        garbage_in_queue_files,
        entries_behind_the_log,
        remove_index,
        remove_checkpoint,
    ],
)
def test_derived_files_are_rebuilt_after_a_kill(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    root, sent = written(tmp_path)
    before = derived(root)
    damage(root)
    store = open_store(root)
    assert len(audit(store)) == COUNT + 1
    assert bodies(store) == sent
    store.stop()
    assert derived(root) == before


@pytest.mark.parametrize(
    "damage", [remove_queue, remove_all_queues, remove_last_queue_file, zero_all_queue_files]
)
def test_queues_are_rebuilt_despite_a_late_checkpoint(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """The walk starts in the last segment, but the queues lack earlier entries."""
    root, sent = written(tmp_path, 150)
    far = 1 << 60
    (root / "checkpoint").write_bytes(CHECKPOINT.pack(far, far, 0).ljust(4096, b"\0"))
    damage(root)
    store = open_store(root)
    assert bodies(store) == sent
    assert len(audit(store)) == 151
    store.stop()


@pytest.mark.parametrize(
    "checkpoint",
    [
        b"",
        b"\0" * 7,
        b"\xff" * 4096,
        b"\x7f" * 4096,
        CHECKPOINT.pack(-(1 << 63), (1 << 63) - 1, 0),
        CHECKPOINT.pack((1 << 63) - 1, (1 << 63) - 1, (1 << 63) - 1),
        CHECKPOINT.pack(-(1 << 63), -(1 << 63), -(1 << 63)),
        os.urandom(4096),
    ],
)
def test_any_checkpoint_is_accepted(tmp_path: Path, checkpoint: bytes) -> None:
    root, sent = written(tmp_path, 150)
    (root / "checkpoint").write_bytes(checkpoint)
    store = open_store(root)
    assert len(audit(store)) == 151
    assert bodies(store) == sent
    store.stop()


@pytest.mark.parametrize("clean", [False, True])
def test_a_missing_index_is_rebuilt(tmp_path: Path, clean: bool) -> None:
    root, _ = written(tmp_path, 150)
    if clean:
        open_store(root).stop()
    far = 1 << 60
    (root / "checkpoint").write_bytes(CHECKPOINT.pack(far, far, 0).ljust(4096, b"\0"))
    remove_index(root)
    store = open_store(root)
    wait_until(lambda: store.dispatch_behind == 0)
    assert store.query(TOPIC, "k0", 64, 0, FOREVER) == [0]
    assert len(store.query(TOPIC, "k149", 64, 0, FOREVER)) == 1
    store.stop()


def test_keys_are_found_once_after_restarts(tmp_path: Path) -> None:
    root, _ = written(tmp_path)
    for _ in range(3):
        store = open_store(root)
        wait_until(lambda store=store: store.dispatch_behind == 0)  # type: ignore[misc]
        for number in range(COUNT):
            assert len(store.query(TOPIC, f"k{number}", 64, 0, FOREVER)) == 1, number
        store.stop()


def test_the_index_resumes_after_the_files_that_were_kept(tmp_path: Path) -> None:
    """Only a message whose keys span two files may be found twice."""
    store = open_store(
        tmp_path / "running", flush_interval_commit_log=1, flush_interval_consume_queue=1
    )
    for number in range(100):
        put(store, keys=f"k{number}")
    store.seal()
    checkpoint = store.config.root / "checkpoint"
    wait_until(checkpoint.exists)
    wait_until(lambda: CHECKPOINT.unpack_from(checkpoint.read_bytes())[2] > 0)
    root = killed_copy(store, tmp_path / "killed")
    store.stop()
    again = open_store(root)
    wait_until(lambda: again.dispatch_behind == 0)
    found = [again.query(TOPIC, f"k{number}", 64, 0, FOREVER) for number in range(100)]
    assert all(len(set(places)) == 1 for places in found)
    assert sum(len(places) for places in found) <= 101
    again.stop()


# Damage that a start detects


def topics_table(root: Path, *topics: str) -> None:
    (root / "config").mkdir(exist_ok=True)
    table = ",".join(f'"{topic}":{{}}' for topic in topics)
    (root / "config/topics.json").write_text(f'{{"topicConfigTable":{{{table}}}}}')


def cut_queue_file(root: Path) -> None:
    path = min((root / f"consumequeue/{TOPIC}/0").iterdir())
    path.write_bytes(path.read_bytes()[:-7])


def gap_between_queue_files(root: Path) -> None:
    sorted((root / f"consumequeue/{TOPIC}/0").iterdir())[1].unlink()


def hole_in_queue(root: Path) -> None:
    files = sorted((root / f"consumequeue/{TOPIC}/0").iterdir())
    last = next(path for path in reversed(files) if any(path.read_bytes()))
    patch(last, 0, bytes(CONSUME_QUEUE_ENTRY_SIZE))


def swapped_queues(root: Path) -> None:
    topic = root / f"consumequeue/{TOPIC}"
    (topic / "0").rename(topic / "x")
    (topic / "1").rename(topic / "0")
    (topic / "x").rename(topic / "1")


@pytest.mark.parametrize(
    "damage",
    [
        remove_queue,
        remove_last_queue_file,
        remove_first_queue_file,
        empty_last_queue_file,
        garbage_in_queue_files,
        entries_behind_the_log,
        cut_queue_file,
        gap_between_queue_files,
        hole_in_queue,
        swapped_queues,
    ],
)
@pytest.mark.parametrize("clean", [False, True])
def test_a_damaged_queue_is_rebuilt_at_any_start(
    tmp_path: Path,
    damage: Callable[[Path], None],
    clean: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    root, sent = written(tmp_path)
    if clean:
        open_store(root).stop()
    else:
        far = 1 << 42
        (root / "checkpoint").write_bytes(CHECKPOINT.pack(far, far, 0).ljust(4096, b"\0"))
    topics_table(root, TOPIC, "Other")
    before = derived(root)
    damage(root)
    caplog.clear()
    store = open_store(root)
    assert bodies(store) == sent
    assert len(audit(store)) == COUNT + 1
    store.stop()
    assert derived(root) == before
    if clean:
        assert "is damaged, rebuilding it from the log" in caplog.text
    assert list(check_store(root, small_config(root))) == []


def test_only_the_damaged_queue_is_rebuilt(tmp_path: Path) -> None:
    root, _ = written(tmp_path)
    open_store(root).stop()
    kept = list((root / f"consumequeue/{TOPIC}/1").iterdir())
    inodes = [path.stat().st_ino for path in kept]
    cut_queue_file(root)
    store = open_store(root)
    audit(store)
    store.stop()
    assert [path.stat().st_ino for path in kept] == inodes


def test_a_deleted_topic_stays_deleted_after_a_clean_stop(tmp_path: Path) -> None:
    root, _ = written(tmp_path)
    store = open_store(root)
    store.remove_topic("Other")
    put(store, b"behind its last message")
    store.seal()
    store.stop()
    topics_table(root, TOPIC)
    store = open_store(root)
    assert store.max_offset("Other", 0) == 0
    assert "Other" not in store.queue_counts()
    store.stop()


def cut_index_file(root: Path) -> None:
    path = sorted((root / "index").iterdir())[1]
    path.write_bytes(path.read_bytes()[:-4])


def garbage_index_header(root: Path) -> None:
    patch(sorted((root / "index").iterdir())[1], 0, b"\xff" * 40)


@pytest.mark.parametrize("damage", [cut_index_file, garbage_index_header])
@pytest.mark.parametrize("clean", [False, True])
def test_a_damaged_index_file_is_rebuilt(
    tmp_path: Path,
    damage: Callable[[Path], None],
    clean: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    root, _ = written(tmp_path, 200)
    if clean:
        open_store(root).stop()
    assert len(list((root / "index").iterdir())) > 2
    damage(root)
    store = open_store(root)
    wait_until(lambda: store.dispatch_behind == 0)
    for number in range(200):
        assert set(store.query(TOPIC, f"k{number}", 64, 0, FOREVER)), number
    audit(store)
    store.stop()
    if clean:
        assert "or one before it, is damaged" in caplog.text
    assert list(check_store(root, small_config(root))) == []


def test_other_index_settings_are_rejected(tmp_path: Path) -> None:
    root, _ = written(tmp_path, 200)
    with pytest.raises(IndexFileError, match="maxHashSlotNum"):
        open_store(root, max_hash_slot_num=32)
    open_store(root).stop()


def test_an_index_ahead_of_the_log_is_truncated(tmp_path: Path) -> None:
    root, _ = written(tmp_path, 200)
    open_store(root).stop()
    physical, _size = last_record(root)
    files = sorted((root / "commitlog").iterdir())
    files[-1].unlink()
    store = open_store(root)
    assert store.max_physical_offset < physical
    audit(store)
    assert put(store, b"next", keys="next") < physical
    store.seal()
    wait_until(lambda: store.dispatch_behind == 0)
    assert len(store.query(TOPIC, "next", 64, 0, FOREVER)) == 1
    store.stop()
    assert list(check_store(root, small_config(root))) == []


@pytest.mark.parametrize(
    ("enabled", "safe", "walked"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_message_index_safe_includes_the_index(
    tmp_path: Path, enabled: bool, safe: bool, walked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    root, _ = written(tmp_path, 150)
    far = 1 << 60
    (root / "checkpoint").write_bytes(CHECKPOINT.pack(far, far, 0).ljust(4096, b"\0"))
    store = open_store(root, message_index_enable=enabled, message_index_safe=safe)
    store.stop()
    assert ("checking the log from 0" in caplog.text) == walked


def test_recovery_fsyncs_its_writes(tmp_path: Path) -> None:
    root, _ = written(tmp_path)
    remove_all_queues(root)
    store = open_store(root)
    wait_until(lambda: not any(queue.dirty for queue in store.queues()))
    store.stop()


# Files that do not fit


@pytest.mark.parametrize("size", [1, SEGMENT - 1, SEGMENT + 1])
def test_a_segment_of_a_wrong_size_is_rejected(tmp_path: Path, size: int) -> None:
    root, _ = written(tmp_path)
    path = root / "commitlog" / FIRST
    path.write_bytes(path.read_bytes().ljust(SEGMENT + 1, b"\0")[:size])
    with pytest.raises(StoreError, match=f"{FIRST} has {size} bytes"):
        open_store(root)
    assert path.stat().st_size == size, "the file was touched"


def test_another_segment_size_is_rejected(tmp_path: Path) -> None:
    root, sent = written(tmp_path)
    with pytest.raises(StoreError, match="segment size"):
        open_store(root, mapped_file_size_commit_log=2 * SEGMENT)
    with pytest.raises(StoreError, match="segment size"):
        open_store(root, mapped_file_size_consume_queue=40)
    store = open_store(root)
    assert bodies(store) == sent
    store.stop()


def test_a_missing_segment_in_the_middle_is_rejected(tmp_path: Path) -> None:
    root, _ = written(tmp_path, 150)
    (root / "commitlog" / f"{SEGMENT:020d}").unlink()
    with pytest.raises(StoreError, match="missing"):
        open_store(root)


def test_a_missing_first_segment_has_expired(tmp_path: Path) -> None:
    root, sent = written(tmp_path, 150)
    (root / "commitlog" / FIRST).unlink()
    store = open_store(root)
    first = store.min_offset(TOPIC, 0)
    assert first
    assert bodies(store) == sent[first:]
    assert store.get(TOPIC, 0, 0, 32).status is GetStatus.OFFSET_TOO_SMALL
    assert store.min_physical_offset == SEGMENT
    assert store.max_offset(TOPIC, 0) == len(sent)
    audit(store)
    store.stop()


def test_a_log_without_segments_starts_over(tmp_path: Path) -> None:
    root, _ = written(tmp_path)
    shutil.rmtree(root / "commitlog")
    store = open_store(root)
    assert (store.max_physical_offset, store.max_offset(TOPIC, 0)) == (0, 0)
    put(store, b"first")
    assert bodies(store) == [b"first"]
    audit(store)
    store.stop()


@pytest.mark.parametrize("clean", [True, False])
def test_queues_of_old_messages_are_rebuilt(tmp_path: Path, clean: bool) -> None:
    """Includes queues without messages in the last segments, which alone are read."""
    store = open_store(tmp_path)
    put(store, b"long ago", topic="Old")
    while store.max_physical_offset < 5 * SEGMENT:
        put(store, b"x" * (SEGMENT // 4))
        store.seal()
    store.stop()
    before = derived(tmp_path)
    assert "consumequeue/Old/0" in before
    if not clean:
        (tmp_path / "abort").touch()
        far = 1 << 60
        (tmp_path / "checkpoint").write_bytes(CHECKPOINT.pack(far, far, 0).ljust(4096, b"\0"))
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_store(tmp_path)
    store.stop()
    assert derived(tmp_path) == before


def test_the_crc_need_not_be_checked(tmp_path: Path) -> None:
    root, _ = written(tmp_path)
    physical, size = last_record(root)
    path, at = segment_of(root, physical)
    flipped_body(path, at, size)
    store = open_store(root, check_crc_on_recover=False)
    assert store.max_physical_offset == physical + size
    store.stop()


def test_repeated_restarts_and_kills(tmp_path: Path) -> None:
    store: MessageStore = open_store(tmp_path / "0")
    sent: list[bytes] = []
    for turn in range(1, 9):
        for number in range(7):
            body = b"%d.%d" % (turn, number) * (turn * 90)
            put(store, body)
            sent.append(body)
        store.seal()
        root = store.config.root
        if turn % 2:
            root = killed_copy(store, tmp_path / str(turn))
        store.stop()
        store = open_store(root)
        assert bodies(store) == sent
        assert len(audit(store)) == len(sent)
    store.stop()


def test_a_clean_start_reads_no_more_of_a_long_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the last clean segments are read: neither time nor memory grows."""
    reads: list[tuple[Path, int]] = []
    read = MappedFile.read

    def counted(self: MappedFile, start: int, end: int) -> bytes:
        # Not the index lane, which starts as soon as recovery is done.
        if threading.current_thread() is threading.main_thread():
            reads.append((self.path, max(0, end - start)))
        return read(self, start, end)

    looked_at = []
    for count in (10, 200):
        settings = {"mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": 20 * 256}
        store = open_store(tmp_path / str(count), **settings)
        for _ in range(count):
            put(store, body_for(store, 4096 - BLANK_SIZE))
        store.seal()
        wait_until(lambda store=store: store.dispatch_behind == 0)  # type: ignore[misc]
        store.stop()
        assert len(list(store.config.commit_log_directory.iterdir())) == count
        reads.clear()
        with monkeypatch.context() as patched:
            patched.setattr(MappedFile, "read", counted)
            again = open_store(store.config.root, **settings)
        of_log = [each for each in reads if each[0].parent == again.config.commit_log_directory]
        of_queues = len(reads) - len(of_log)
        assert len(again._log.segments.files) == count
        assert len(bodies(again)) == count
        again.stop()
        looked_at.append((len({path for path, _ in of_log}), sum(size for _, size in of_log)))
        assert of_queues < 100, "entries are found by bisection"
    short, long = looked_at
    assert long == short
    assert 1 <= long[0] <= 4
