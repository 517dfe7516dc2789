from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.protocol.message.message_id import encode_host
from pyromq.store import chunk, growth
from pyromq.store.config import MessageStoreConfig
from pyromq.store.growth import QueueGrowth
from pyromq.store.message_store import MessageStore
from pyromq.store.results import PutError

HOST = encode_host("127.0.0.1", 10911)


def open_store(root: Path) -> MessageStore:
    store = MessageStore(
        MessageStoreConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=1024 * 1024,
            mapped_file_size_consume_queue=20 * 100,
            max_hash_slot_num=64,
            max_index_num=64,
            # Queues stay dirty unless a test flushes them.
            flush_interval_consume_queue=1_000_000,
        ),
        HOST,
    )
    store.start()
    return store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_store(tmp_path)
    yield store
    store.stop()


def put(store: MessageStore, topic: str, *bodies: bytes, queue_id: int = 0) -> int:
    """Store messages; bytes of their records."""
    before = store.max_physical_offset
    for body in bodies:
        store.put(store.queue(topic, queue_id), body, b"", 0, 0, 0, 0, HOST, 0)
    store.seal()
    return store.max_physical_offset - before


def test_each_message_is_counted_once_with_the_size_of_its_record(store: MessageStore) -> None:
    size = put(store, "T", b"one", b"three")
    other = put(store, "T", b"four", queue_id=1)

    assert set(store.growth.take()) == {
        QueueGrowth("T", 0, 2, size),
        QueueGrowth("T", 1, 1, other),
    }
    assert list(store.growth.take()) == []
    size = put(store, "T", b"more")
    assert list(store.growth.take()) == [QueueGrowth("T", 0, 1, size)]


def test_a_queue_that_was_flushed_meanwhile_is_handed_over_anew(store: MessageStore) -> None:
    put(store, "T", b"one")
    list(store.growth.take())
    store.queue("T", 0).dirty = False  # as the flush does
    assert list(store.growth.take()) == []

    size = put(store, "T", b"two")

    assert list(store.growth.take()) == [QueueGrowth("T", 0, 1, size)]


def test_many_messages_over_several_files(store: MessageStore) -> None:
    size = put(store, "T", *(b"x" * (number % 7) for number in range(350)))

    assert list(store.growth.take()) == [QueueGrowth("T", 0, 350, size)]


def test_what_is_not_sealed_is_counted_later(store: MessageStore) -> None:
    size = put(store, "T", b"one")
    before = store.max_physical_offset
    store.put(store.queue("T", 0), b"pending", b"", 0, 0, 0, 0, HOST, 0)

    assert list(store.growth.take()) == [QueueGrowth("T", 0, 1, size)]
    store.seal()
    assert list(store.growth.take()) == [QueueGrowth("T", 0, 1, store.max_physical_offset - before)]


def test_what_was_there_at_the_start_is_not_counted(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, "T", b"one", b"two")
    store.stop()

    store = open_store(tmp_path)
    try:
        assert list(store.growth.take()) == []
        size = put(store, "T", b"three")
        assert list(store.growth.take()) == [QueueGrowth("T", 0, 1, size)]
    finally:
        store.stop()


def test_a_topic_that_is_deleted_and_made_again(store: MessageStore) -> None:
    put(store, "T", b"one")
    store.remove_topic("T")
    assert list(store.growth.take()) == []

    size = put(store, "T", b"new")

    assert list(store.growth.take()) == [QueueGrowth("T", 0, 1, size)]


def test_only_slow_seals_are_kept(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, "T", b"makes room")
    store.growth.slow_seals.clear()
    now = iter([0, growth.SLOW_SEAL_NS - 1, 5_000_000, 17_900_000])
    monkeypatch.setattr("pyromq.store.chunk.monotonic_ns", lambda: next(now))

    put(store, "T", b"quick")
    put(store, "T", b"slow")

    assert store.growth.slow_seals == [12]


async def test_puts_may_come_while_it_is_counted(store: MessageStore) -> None:
    sizes = {queue_id: put(store, "T", b"one", queue_id=queue_id) for queue_id in range(3)}
    counted = []
    for item in store.growth.take():
        counted.append(item)
        await asyncio.sleep(0)
        sizes[item.queue_id] += put(store, "T", b"more", queue_id=item.queue_id)

    counted += store.growth.take()

    assert sum(item.messages for item in counted) == 6
    assert sum(item.size for item in counted) == sum(sizes.values())


def test_refused_puts_are_counted(store: MessageStore) -> None:
    with pytest.raises(PutError):
        put(store, "T", b"x" * 5 * 1024 * 1024)

    assert store.growth.refused_puts == 1
    assert list(store.growth.take()) == []


def test_very_many_messages_come_in_parts(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "_MAX_COUNTED", 4)
    size = put(store, "T", *[b"x"] * 10)

    parts = store.growth.take()
    assert next(parts).messages == 4
    store.remove_topic("T")
    assert list(parts) == []

    again = put(store, "T", *[b"x"] * 10)
    assert again == size
    assert [part.messages for part in store.growth.take()] == [4, 4, 2]


def test_slow_appends_are_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    growing = growth.Growth()
    growing.slow_seal(3_000_000)
    assert caplog.text == ""
    growing.slow_seal(501_000_000)
    assert "append of a chunk took 501 ms, expected at most 500 ms" in caplog.text
    assert growing.slow_seals == [3, 501]


def test_room_that_took_long_makes_the_page_cache_busy(caplog: pytest.LogCaptureFixture) -> None:
    growing = growth.Growth(page_cache_busy_ms=1000)
    growing.room_made(900_000)
    assert growing.slow_seals == []
    growing.room_made(1_000_000_000)
    assert growing.busy_until == -math.inf
    assert "making room in the log took 1000 ms" in caplog.text
    before = time.monotonic()
    growing.room_made(1_001_000_000)
    assert before <= growing.busy_until <= time.monotonic()
    assert growing.slow_seals == [1000, 1001]


def test_a_new_segment_that_takes_long_is_noticed(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the store: a put that rolls to the next segment, on a slow disk."""
    clock = itertools.count(0, 1_100_000_000)
    monkeypatch.setattr(chunk, "monotonic_ns", lambda: next(clock))
    put(store, "T", b"one")
    assert store.growth.busy_until > 0


@pytest.mark.parametrize("count", [3, 200])
def test_records_are_counted_by_size(store: MessageStore, count: int) -> None:
    """Few are counted one by one, many with numpy."""
    store.growth.count_sizes((200.0, 1000.0))
    put(store, "T", *[b"small"] * count)
    put(store, "T", *[b"x" * 500] * 2, b"x" * 5000)
    buckets = [0, 0, 0]
    for each in store.growth.take():
        assert each.buckets is not None
        buckets = [total + more for total, more in zip(buckets, each.buckets, strict=True)]
    assert buckets == [count, 2, 1]
    put(store, "T", *[b"small"] * count)
    assert [each.buckets for each in store.growth.take()] == [[count, 0, 0]]


def test_seals_are_timed_on_request(store: MessageStore) -> None:
    times: list[int] = []
    put(store, "T", b"untimed")
    store.growth.time_seals(times.append)
    put(store, "T", b"timed")
    assert len(times) == 1
    assert times[0] > 0
