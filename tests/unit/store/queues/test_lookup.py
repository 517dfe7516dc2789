"""Looking up records and times, against a plain reference of RocketMQ's search."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.message_store import MessageStore
from pyromq.store.queues import lookup
from tests.support.examples import examples
from tests.support.stores import (
    BORN_HOST_V6,
    QUEUE_ENTRIES,
    SEGMENT,
    TOPIC,
    body_for,
    open_store,
    put,
)

START = 1_700_000_000_000


def stored_at(store: MessageStore, times: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Store a message at each time."""
    for time in times:
        monkeypatch.setattr("pyromq.store.chunk.now_ms", lambda time=time: time)
        put(store)
        store.seal()


def nearest(times: list[int], first: int, wanted: int) -> int:
    """RocketMQ's bisection over the store times of one file's messages."""
    low, high = first, len(times) - 1
    left = right = None
    while low <= high:
        middle = (low + high) // 2
        if times[middle] == wanted:
            return middle
        if times[middle] > wanted:
            high, right = middle - 1, middle
        else:
            low, left = middle + 1, middle
    if left is None:
        return right if right is not None else 0
    if right is None:
        return left
    return right if abs(wanted - times[left]) > abs(wanted - times[right]) else left


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    gaps=st.lists(st.integers(0, 5), min_size=1, max_size=QUEUE_ENTRIES),
    first=st.integers(0, 3),
)
def test_times_are_rounded_as_rocketmq_does(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    gaps: list[int],
    first: int,
) -> None:
    times = [START + sum(gaps[: n + 1]) for n in range(len(gaps))]
    store = open_store(tmp_path_factory.mktemp("lookup"))
    stored_at(store, times, monkeypatch)
    queue = store.queue(TOPIC, 0)
    queue.min_offset = min(first, len(times) - 1)
    for wanted in range(START - 2, times[-1] + 3):
        expected = nearest(times, queue.min_offset, wanted)
        assert lookup.offset_by_time(queue, store._log, wanted, queue.next_offset) == expected, (
            wanted
        )
    store.stop()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_store(tmp_path)
    yield store
    store.stop()


def test_rounding_by_hand(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    stored_at(store, [START, START + 10, START + 20], monkeypatch)
    for wanted, expected in (
        (0, 0),
        (START - 1, 0),
        (START, 0),
        (START + 4, 0),
        (START + 5, 0),
        (START + 6, 1),
        (START + 10, 1),
        (START + 15, 1),
        (START + 16, 2),
        (START + 20, 2),
        (1 << 62, 2),
        (-1, 0),
    ):
        assert store.offset_by_time(TOPIC, 0, wanted) == expected, wanted


def test_the_nearest_message_may_be_in_any_file(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the files' own times say nothing, as after they were copied."""
    stored_at(store, [START + 10 * n for n in range(3 * QUEUE_ENTRIES)], monkeypatch)
    files = store.queue(TOPIC, 0).segments.files
    assert len(files) == 3
    for modified in (0, (START + 1_000_000) * 1_000_000):
        for file in files:
            os.utime(file.path, ns=(modified, modified))
        for offset in range(3 * QUEUE_ENTRIES):
            for distance in (-4, 0, 1, 5):
                wanted = START + 10 * offset + distance
                assert store.offset_by_time(TOPIC, 0, wanted) == offset, (offset, distance)
        assert store.offset_by_time(TOPIC, 0, 1 << 62) == 3 * QUEUE_ENTRIES - 1
        assert store.offset_by_time(TOPIC, 0, 0) == 0


def test_equal_times_in_two_files_are_found_in_the_first(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [START + n for n in range(QUEUE_ENTRIES - 1)] + [START + 50] * QUEUE_ENTRIES
    stored_at(store, times, monkeypatch)
    assert store.offset_by_time(TOPIC, 0, START + 50) == QUEUE_ENTRIES - 1


def test_an_empty_queue_and_one_with_a_file_made_ahead(store: MessageStore) -> None:
    queue = store.queue(TOPIC, 0)
    assert store.offset_by_time(TOPIC, 0, START) == 0
    queue.extend(QUEUE_ENTRIES + 1)
    assert store.offset_by_time(TOPIC, 0, START) == 0
    put(store)
    assert store.offset_by_time(TOPIC, 0, 1 << 62) == 0


def test_messages_that_left_the_log_are_not_asked_for_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "store", mapped_file_size_consume_queue=2000)
    for number in range(6):
        monkeypatch.setattr(
            "pyromq.store.chunk.now_ms",
            lambda number=number: START + 10 * number,
        )
        put(store, body_for(store, SEGMENT // 2))
        store.seal()
    monkeypatch.undo()
    store.stop()
    (tmp_path / "store/commitlog" / f"{0:020d}").unlink()
    again = open_store(tmp_path / "store", mapped_file_size_consume_queue=2000)
    first = again.min_offset(TOPIC, 0)
    assert first == 1
    queue = again.queue(TOPIC, 0)
    queue.min_offset = 0
    assert lookup.offset_by_time(queue, again._log, START - 5, queue.next_offset) == first
    assert lookup.offset_by_time(queue, again._log, START + 30, queue.next_offset) == 3
    queue.min_offset = first
    assert again.earliest_time(TOPIC, 0) == START + 10
    again.stop()


def test_store_times_of_records_with_long_hosts(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyromq.store.chunk.now_ms", lambda: START)
    physical = put(store, b"x", born_host=BORN_HOST_V6)
    store.seal()
    record = store.read_record(physical)
    assert record is not None
    assert lookup.store_timestamp(store._log, physical, len(record)) == START
    assert lookup.store_timestamp(store._log, physical, len(record) + 1) is None
    assert lookup.store_timestamp(store._log, -1, 100) is None
    assert store.earliest_time(TOPIC, 0) == START


def test_a_record_is_found_where_it_begins_only(store: MessageStore) -> None:
    first = put(store, b"a" * 50)
    second = put(store, b"b" * 50)
    store.seal()
    size = second - first
    found = [offset for offset in range(2 * size + 10) if lookup.record_at(store._log, offset)]
    assert found == [first, second]


def test_a_record_is_fetched_from_wherever_it_is(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, b"one")
    second = put(store, body_for(store, 300))
    put(store, b"three")
    store.seal()
    record = store.read_record(second)
    assert record is not None
    assert store.fetch_record(second) == record
    brought: list[tuple[int, int]] = []
    monkeypatch.setattr(MappedFile, "is_in_memory", lambda *_: False)
    monkeypatch.setattr(MappedFile, "bring_in", lambda _, start, end: brought.append((start, end)))
    assert store.fetch_record(second) == record
    assert brought[-1] == (second, second + len(record))
    brought.clear()
    for offset in (second + 1, -1, 2 * SEGMENT, 2**62, store.max_physical_offset):
        assert store.fetch_record(offset) is None
    assert len(brought) <= 1  # of what is there, no more than a record's beginning


def test_a_record_that_expires_while_it_is_fetched_is_none(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset = put(store, b"one")
    store.seal()
    record = store.read_record(offset)

    def gone(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(MappedFile, "is_in_memory", lambda *_: False)
    monkeypatch.setattr(MappedFile, "bring_in", gone)
    # The file is unlinked, but its mapping still has what was in it.
    assert store.fetch_record(offset) == record


def test_a_search_goes_on_while_its_queue_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "store")
    stored_at(store, [START + 10 * n for n in range(5)], monkeypatch)
    search, first = store.time_search(TOPIC, 0, START + 1000), store.earliest_search(TOPIC, 0)
    put(store)  # its entry is not in the file yet
    assert search() == 4
    assert first() == START
    assert store.time_search("Nowhere", 0, START)() == 0
    assert store.earliest_search("Nowhere", 0)() is None
    store.stop()
