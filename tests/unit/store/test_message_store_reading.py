"""The message store: getting, keys, topics, and its own life."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.record import (
    decode_record,
)
from pyromq.store.message_store import MessageStore
from pyromq.store.results import GetStatus, PutError, PutStatus, StoreError
from tests.support.patience import wait_until
from tests.support.stores import (
    FOREVER,
    QUEUE_ENTRIES,
    SEGMENT,
    STORE_HOST,
    TOPIC,
    audit,
    bodies,
    body_for,
    killed_copy,
    open_store,
    put,
    put_batch,
    read_all,
    reopened,
    small_config,
)

# Getting


def filled(store: MessageStore, count: int, size: int = 4) -> MessageStore:
    for number in range(count):
        put(store, b"%04d" % number + b"." * (size - 4))
    store.seal()
    return store


def test_offsets_around_the_ends(tmp_path: Path) -> None:
    store = open_store(tmp_path, mapped_file_size_consume_queue=20 * 100)
    assert store.get("Nowhere", 0, 0, 32).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    store.queue(TOPIC, 0)
    empty = store.get(TOPIC, 0, 5, 32)
    assert (empty.status, empty.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    filled(store, 10)
    for offset, status, following in (
        (-(1 << 63), GetStatus.OFFSET_TOO_SMALL, 0),
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (0, GetStatus.FOUND, 10),
        (9, GetStatus.FOUND, 10),
        (10, GetStatus.OFFSET_OVERFLOW_ONE, 10),
        (11, GetStatus.OFFSET_OVERFLOW_BADLY, 10),
        ((1 << 63) - 1, GetStatus.OFFSET_OVERFLOW_BADLY, 10),
    ):
        result = store.get(TOPIC, 0, offset, 32)
        assert (result.status, result.next_offset) == (status, following), offset
        assert (result.min_offset, result.max_offset) == (0, 10)
    assert (store.max_offset("Nowhere", 0), store.min_offset("Nowhere", 0)) == (0, None)
    assert store.offset_by_time("Nowhere", 0, 0) == 0
    assert store.earliest_time("Nowhere", 0) is None
    store.stop()


@pytest.mark.parametrize(
    ("max_count", "expected"),
    [(-(1 << 31), 1), (-1, 1), (0, 1), (1, 1), (7, 7), (32, 32), (33, 32), ((1 << 31) - 1, 32)],
)
def test_how_many_messages_one_get_carries(tmp_path: Path, max_count: int, expected: int) -> None:
    store = filled(open_store(tmp_path, mapped_file_size_consume_queue=20 * 100), 50)
    result = store.get(TOPIC, 0, 0, max_count)
    assert (result.status, result.count, result.next_offset) == (
        GetStatus.FOUND,
        expected,
        expected,
    )
    store.stop()


def test_how_many_bytes_one_get_carries(tmp_path: Path) -> None:
    changes = {"mapped_file_size_commit_log": 4 << 20, "mapped_file_size_consume_queue": 2000}
    store = open_store(tmp_path, **changes)
    for size in (100_000, 100_000, 100_000, 300_000, 10):
        put(store, b"x" * size)
    result = store.get(TOPIC, 0, 0, 32)
    assert (result.count, result.next_offset) == (2, 2)
    assert result.size <= 256 * 1024
    assert store.get(TOPIC, 0, 2, 32).count == 1
    assert store.get(TOPIC, 0, 3, 32).count == 1, "one message is always carried"
    assert store.get(TOPIC, 0, 4, 32).count == 1
    store.stop()


def test_a_get_stops_at_its_queue_segment_and_goes_on_behind_it(store: MessageStore) -> None:
    filled(store, 3 * QUEUE_ENTRIES)
    for offset in range(3 * QUEUE_ENTRIES):
        result = store.get(TOPIC, 0, offset, 32)
        expected = QUEUE_ENTRIES - offset % QUEUE_ENTRIES
        assert (result.status, result.count) == (GetStatus.FOUND, expected)


def test_a_get_over_the_end_of_a_log_segment(tmp_path: Path) -> None:
    store = open_store(tmp_path, mapped_file_size_consume_queue=2000)
    put(store, body_for(store, SEGMENT - 400))
    for _ in range(4):
        put(store, b"x" * 100)
    result = store.get(TOPIC, 0, 0, 32)
    assert (result.count, result.next_offset) == (5, 5)
    assert len(b"".join(result.pieces)) == result.size
    store.stop()


class TagFilter:
    reads_records = False

    def __init__(self, *tags: str) -> None:
        self.codes = {java_hash(tag) for tag in tags}
        self.seen = 0

    def rules_out(self, store_timestamp: int, bit_map: bytes) -> bool:
        return False

    def matches(
        self, tags_code: int, physical_offset: int, size: int, read: Callable[[int, int], bytes]
    ) -> bool:
        self.seen += 1
        record = decode_record(read(physical_offset, size))
        assert java_hash(record.properties.get("TAGS", "")) == tags_code
        return tags_code in self.codes


def test_a_filter_picks_and_says_how_far_it_looked(tmp_path: Path) -> None:
    store = open_store(
        tmp_path, mapped_file_size_consume_queue=20 * 2000, mapped_file_size_commit_log=1 << 20
    )
    for number in range(1000):
        put(store, b"%d" % number, tags="ab"[number % 2] if number < 100 else "c")
    first = store.get(TOPIC, 0, 0, 32, TagFilter("a"))
    assert (first.count, first.next_offset) == (32, 63)
    none = store.get(TOPIC, 0, 0, 32, TagFilter("nothing"))
    assert (none.status, none.count, none.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 0, 800)
    late = store.get(TOPIC, 0, 0, 32, TagFilter("c"))
    assert (late.count, late.next_offset) == (32, 132)
    rest = store.get(TOPIC, 0, 999, 32, TagFilter("a"))
    assert (rest.status, rest.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 1000)
    store.stop()


def test_nothing_is_read_where_no_record_begins(store: MessageStore) -> None:
    filled(store, 3)
    size = store.max_physical_offset // 3
    for offset in (-1, 1, size - 1, size + 1, 3 * size, SEGMENT, 1 << 62, -(1 << 62)):
        assert store.read_record(offset) is None, offset
    assert [store.read_record(n * size) is not None for n in range(3)] == [True] * 3


# Keys, topics, life


def test_keys_are_found_with_their_topic_only(store: MessageStore) -> None:
    physical = [put(store, keys=f"common k{n}", topic=f"T{n % 2}") for n in range(10)]
    store.seal()
    wait_until(lambda: store.dispatch_behind == 0)
    assert store.query("T0", "common", 64, 0, FOREVER) == physical[::2][::-1]
    assert store.query("T1", "k3", 64, 0, FOREVER) == [physical[3]]
    assert store.query("T0", "k3", 64, 0, FOREVER) == []
    assert store.query("T0", "common", 2, 0, FOREVER) == physical[::2][::-1][:2]
    assert store.query("T0", "common", 64, 0, 1000) == []


def test_a_removed_topic_begins_at_zero_again(store: MessageStore) -> None:
    filled(store, 20)
    put(store, b"unsealed")
    put(store, b"other", topic="Other")
    store.remove_topic(TOPIC)
    assert store.get(TOPIC, 0, 0, 32).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert not (store.config.consume_queue_directory / TOPIC).exists()
    assert bodies(store, "Other") == [b"other"]
    put(store, b"new")
    assert bodies(store) == [b"new"]
    store.remove_topic("Nowhere")


def test_only_queues_that_are_older_in_the_log_and_by_time_are_removed(
    store: MessageStore,
) -> None:
    put(store, b"old", queue_id=0)
    put(store, b"old", queue_id=1)
    store.seal()
    earliest = store.earliest_time(TOPIC, 0)
    assert earliest is not None
    end, before = store.max_physical_offset, earliest - 1
    put(store, b"new", queue_id=1)
    put(store, b"other", topic="Other")
    store.seal()
    assert store.remove_old_queues(TOPIC, end, before) == 0
    assert store.remove_old_queues(TOPIC, end, FOREVER) == 1
    assert [store.max_offset(TOPIC, queue_id) for queue_id in (0, 1)] == [0, 2]
    assert store.max_offset("Other", 0) == 1
    assert store.remove_old_queues("Nowhere", end, FOREVER) == 0


def test_a_topic_made_anew_survives_a_crash(tmp_path: Path) -> None:
    """The log still holds the records of before, with the same queue offsets."""
    store = open_store(tmp_path / "store")
    filled(store, 20)
    store.remove_topic(TOPIC)
    for number in range(5):
        put(store, b"new %d" % number)
    store.seal()
    copy = killed_copy(store, tmp_path / "copy")
    store.stop()
    for root in (store.config.root, copy):
        again = open_store(root)
        assert bodies(again) == [b"new %d" % number for number in range(5)]
        put(again, b"next")
        assert read_all(again)[-1].queue_offset == 5
        again.stop()


def test_deleting_a_topic_while_its_queue_is_dirty(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush_interval_commit_log=1, flush_interval_consume_queue=1)
    for round_number in range(30):
        for queue_id in range(4):
            put(store, queue_id=queue_id)
        put(store, topic="Kept")
        store.seal()
        store.remove_topic(TOPIC)
        assert store.max_offset("Kept", 0) == round_number + 1
    again = reopened(store)
    assert again.max_offset("Kept", 0) == 30
    again.stop()


def test_a_clean_stop_leaves_nothing_to_repair(tmp_path: Path) -> None:
    store = filled(open_store(tmp_path / "store"), 30)
    before = bodies(store)
    assert (store.config.root / "abort").exists()
    store.stop()
    store.stop()
    assert not (store.config.root / "abort").exists()
    files = sorted(path.name for path in store.config.commit_log_directory.iterdir())
    assert files == [f"{0:020d}"], "a segment made ahead is still there"
    again = open_store(store.config.root)
    assert bodies(again) == before
    assert read_all(again)[-1].queue_offset == 29
    put(again, b"next")
    assert bodies(again) == [*before, b"next"]
    again.stop()


def test_puts_are_refused_before_start_and_after_stop(tmp_path: Path) -> None:
    store = MessageStore(small_config(tmp_path), STORE_HOST)
    for _ in range(2):
        with pytest.raises(PutError) as refused:
            put(store)
        assert refused.value.status is PutStatus.SERVICE_NOT_AVAILABLE
        with pytest.raises(PutError):
            put_batch(store, [b"x"])
        if store.max_physical_offset == 0:
            store.start()
            put(store, b"taken")
            store.stop()
    again = open_store(tmp_path)
    assert bodies(again) == [b"taken"]
    again.stop()


def try_to_open(root: str, answers: Any) -> None:
    try:
        store = open_store(Path(root))
    except StoreError as error:
        answers.put(str(error))
    else:
        store.stop()
        answers.put("opened")


def from_another_process(root: Path) -> str:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=try_to_open, args=(str(root), answers))
    process.start()
    answer: str = answers.get(timeout=60)
    process.join(60)
    answers.close()
    answers.join_thread()
    process.close()
    return answer


def test_another_process_is_refused(store: MessageStore) -> None:
    put(store, b"mine")
    assert "in use by another broker" in from_another_process(store.config.root)
    assert bodies(store) == [b"mine"]


def test_a_second_store_in_this_process_is_refused_and_does_not_unlock(
    store: MessageStore,
) -> None:
    second = MessageStore(small_config(store.config.root), STORE_HOST)
    with pytest.raises(StoreError, match="in use"):
        second.start()
    assert "in use by another broker" in from_another_process(store.config.root)
    put(store, b"mine")
    assert bodies(store) == [b"mine"]


def test_a_start_that_fails_lets_go_of_the_directory(tmp_path: Path) -> None:
    store = filled(open_store(tmp_path), 5)
    store.stop()
    extra = tmp_path / "commitlog" / f"{7:020d}"
    extra.write_bytes(b"x")
    with pytest.raises(StoreError):
        open_store(tmp_path)
    extra.unlink()
    assert from_another_process(tmp_path) == "opened"


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    store = filled(open_store(tmp_path), 12)
    store.stop()
    foreign = [
        tmp_path / "README",
        tmp_path / "commitlog/notes.txt",
        tmp_path / "commitlog/0000",
        tmp_path / "consumequeue/stray",
        tmp_path / f"consumequeue/{TOPIC}/stray",
        tmp_path / f"consumequeue/{TOPIC}/00/{0:020d}",
        tmp_path / f"consumequeue/{TOPIC}/-1/{0:020d}",
        tmp_path / f"consumequeue/{TOPIC}/0/stray",
        tmp_path / "consumequeue/lost+found/x/y",
        tmp_path / "index/stray",
    ]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not yours")
    again = open_store(tmp_path)
    assert len(audit(again)) == 12
    again.stop()
    assert all(path.read_bytes() == b"not yours" for path in foreign)
