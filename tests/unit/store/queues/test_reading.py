"""Which records one pull carries: limits, cold messages, deleted segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.record import decode_records
from pyromq.protocol.message.units import PRE_BLANK_ENTRY
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.message_store import MessageStore
from pyromq.store.queues import reading
from pyromq.store.results import GetStatus
from tests.support.stores import (
    QUEUE_ENTRIES,
    SEGMENT,
    STORE_HOST,
    TOPIC,
    body_for,
    open_store,
    put,
    small_config,
)


class Everything:
    reads_records = False

    def rules_out(self, store_timestamp: int, bit_map: bytes) -> bool:
        return False

    def matches(
        self, tags_code: int, physical_offset: int, size: int, read: Callable[[int, int], bytes]
    ) -> bool:
        return True


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_store(tmp_path, mapped_file_size_consume_queue=20 * 1000)
    yield store
    store.stop()


@pytest.mark.parametrize("message_filter", [None, Everything()])
@pytest.mark.parametrize("interleaved", [False, True])
def test_both_ways_of_reading_give_the_same(
    store: MessageStore, message_filter: Everything | None, interleaved: bool
) -> None:
    for number in range(40):
        put(store, b"%d" % number * 150)
        if interleaved and number % 3 == 0:
            put(store, b"between", topic="Other")
    store.seal()
    for offset in range(40):
        for count in (1, 2, 31, 32, 33):
            result = store.get(TOPIC, 0, offset, count, message_filter)
            expected = min(count, 32, 40 - offset)
            assert (result.status, result.count) == (GetStatus.FOUND, expected)
            records = decode_records(b"".join(result.pieces))
            assert [r.queue_offset for r in records] == list(range(offset, offset + expected))
            assert result.size == sum(record.size for record in records)
            assert result.next_offset == offset + expected
            assert not result.suggest_replica


@pytest.mark.parametrize("message_filter", [None, Everything()])
def test_cold_messages_have_their_own_limits(
    tmp_path: Path, message_filter: Everything | None
) -> None:
    store = open_store(
        tmp_path, mapped_file_size_consume_queue=2000, max_transfer_bytes_on_message_in_disk=900
    )
    for _ in range(40):
        put(store, b"x" * 100)
    store.seal()
    store._reader._memory = 0
    result = store.get(TOPIC, 0, 0, 32, message_filter)
    assert (result.status, result.count, result.next_offset) == (GetStatus.FOUND, 4, 4)
    assert result.suggest_replica
    store._reader._cold_limits = (8, 1 << 20)
    assert store.get(TOPIC, 0, 0, 32, message_filter).count == 8
    store._reader._cold_limits = (0, 0)
    assert store.get(TOPIC, 0, 0, 32, message_filter).count == 1, "one is always carried"
    store.stop()


@pytest.mark.parametrize(("in_memory", "suggested"), [(0, True), (7, True), (8, False)])
def test_the_last_message_examined_decides_who_should_serve(
    tmp_path: Path, in_memory: int, suggested: bool
) -> None:
    """As in RocketMQ; the first one decides about the limits."""
    store = open_store(tmp_path, mapped_file_size_consume_queue=2000)
    for _ in range(16):
        put(store, bytes(100))
    store.seal()
    store._reader._memory = in_memory * (store.max_physical_offset // 16)
    store._reader._cold_limits = (8, 1 << 20)
    result = store.get(TOPIC, 0, 0, 32, Everything())
    # The ninth was examined and did not fit; eight records are between its start and the end.
    assert result.count == 8
    assert result.suggest_replica is suggested
    store.stop()


def without_first_segment(tmp_path: Path) -> MessageStore:
    store = open_store(tmp_path, mapped_file_size_consume_queue=2000)
    for _ in range(6):
        put(store, body_for(store, SEGMENT // 3))
    store.seal()
    first = store._log.segments.files.pop(0)
    first.delete()
    return store


@pytest.mark.parametrize("message_filter", [None, Everything()])
def test_a_segment_that_was_deleted_is_passed_over(
    tmp_path: Path, message_filter: Everything | None
) -> None:
    store = without_first_segment(tmp_path)
    result = store.get(TOPIC, 0, 0, 32, message_filter)
    records = decode_records(b"".join(result.pieces))
    assert result.status is GetStatus.FOUND
    assert [record.queue_offset for record in records] == [2, 3, 4, 5]
    assert result.next_offset == 6
    store.stop()


def test_nothing_left_in_what_was_looked_at(tmp_path: Path) -> None:
    store = without_first_segment(tmp_path)
    result = store.get(TOPIC, 0, 0, 2)
    assert (result.status, result.count, result.next_offset) == (
        GetStatus.MESSAGE_WAS_REMOVING,
        0,
        2,
    )
    store.stop()


def test_an_entry_that_points_nowhere_gives_no_record(store: MessageStore) -> None:
    for _ in range(5):
        put(store)
    store.seal()
    file = store.queue(TOPIC, 0).segments.files[0]
    file.write(40, PRE_BLANK_ENTRY)
    result = store.get(TOPIC, 0, 2, 1)
    assert (result.status, result.count, result.next_offset) == (
        GetStatus.MESSAGE_WAS_REMOVING,
        0,
        3,
    )
    before = store.get(TOPIC, 0, 0, 32)
    assert (before.count, before.next_offset) == (2, 2)
    behind = store.get(TOPIC, 0, 2, 32)
    records = decode_records(b"".join(behind.pieces))
    assert [record.queue_offset for record in records] == [3, 4]
    assert behind.next_offset == 5


def test_a_queue_file_that_is_gone_is_skipped(store: MessageStore) -> None:
    put(store)
    store.seal()
    queue = store.queue(TOPIC, 0)
    file = queue.segments.files.pop()
    result = store.get(TOPIC, 0, 0, 32)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_FOUND_NULL, 1000)
    queue.segments.files.append(file)


class Picky:
    """Reads every record; rules out what has no bit map of its own."""

    reads_records = True

    def __init__(self, wanted: bytes) -> None:
        self.wanted = wanted
        self.read = 0

    def rules_out(self, store_timestamp: int, bit_map: bytes) -> bool:
        assert store_timestamp > 0
        return bit_map == b"\0"

    def matches(
        self,
        tags_code: int,
        physical_offset: int,
        size: int,
        read: Callable[[int, int], bytes],
    ) -> bool:
        assert tags_code == java_hash("tag")
        self.read += 1
        return self.wanted in read(physical_offset, size)


def test_a_filter_that_reads_records_looks_at_fewer_of_them(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_RECORD_FILTER_SECONDS", 60.0)
    for number in range(300):
        put(store, b"%03d" % number, tags="tag")
    store.seal()
    picky = Picky(b"250")
    result = store.get(TOPIC, 0, 0, 32, picky)
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 200)
    assert picky.read == 200
    result = store.get(TOPIC, 0, result.next_offset, 32, picky)
    assert [record.body for record in decode_records(b"".join(result.pieces))] == [b"250"]


def test_a_filter_that_is_slow_leaves_the_rest_to_the_next_pull(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_RECORD_FILTER_SECONDS", 0.0)
    for number in range(3):
        put(store, b"%03d" % number, tags="tag")
    store.seal()
    result = store.get(TOPIC, 0, 0, 32, Picky(b"002"))
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 1)
    result = store.get(TOPIC, 0, 2, 32, Picky(b"002"))
    assert (result.status, result.next_offset) == (GetStatus.FOUND, 3)


def test_what_a_bit_map_rules_out_is_not_read(tmp_path: Path) -> None:
    maps = {"yes": b"\1", "no": b"\0"}
    config = small_config(tmp_path, enable_consume_queue_ext=True)
    store = MessageStore(
        config, STORE_HOST, bit_map_of=lambda topic, properties: maps[properties["KEYS"]]
    )
    store.start()
    for number in range(20):
        put(store, b"%d" % number, tags="tag", keys="no" if number % 4 else "yes")
    store.seal()
    picky = Picky(b"")
    result = store.get(TOPIC, 0, 0, 32, picky)
    bodies = [record.body for record in decode_records(b"".join(result.pieces))]
    store.stop()
    assert bodies[:2] == [b"0", b"4"]
    assert picky.read == len(bodies)
    assert result.next_offset == QUEUE_ENTRIES, "as far as one file of the queue goes"


@pytest.mark.parametrize(("block", "pieces"), [(4096, [(0, 4096)]), (8192, [(0, 8192)]), (512, 4)])
def test_what_is_read_from_the_disk_at_once(
    store: MessageStore,
    monkeypatch: pytest.MonkeyPatch,
    block: int,
    pieces: list[tuple[int, int]] | int,
) -> None:
    """With all that lies between and behind in the block; what lies farther apart one by one."""
    for _ in range(4):
        put(store, body_for(store, 200))
        put(store, body_for(store, 700, topic="Other"), topic="Other")
    put(store, bytes(20_000))
    store.seal()
    monkeypatch.setattr(reading, "_WARM_BYTES", 0)
    monkeypatch.setattr(reading, "_EXTENT", block)
    monkeypatch.setattr(MappedFile, "is_in_memory", lambda *_: False)
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(MappedFile, "bring_in", lambda _, start, end: asked.append((start, end)))
    result = store.get(TOPIC, 0, 0, 4, may_wait=True)
    assert result.status is GetStatus.NOT_IN_MEMORY
    assert result.bring_in is not None
    result.bring_in()
    one_by_one = [(number * 900, number * 900 + 200) for number in range(4)]
    assert asked == (pieces if isinstance(pieces, list) else one_by_one)


def test_which_records_would_have_to_be_waited_for(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = put(store, b"small")
    large = put(store, bytes(20_000))
    store.seal()
    in_memory: set[int] = set()

    def is_in_memory(_: MappedFile, start: int, end: int) -> bool:
        return set(range(start // 4096, (end - 1) // 4096 + 1)) <= in_memory

    monkeypatch.setattr(MappedFile, "is_in_memory", is_in_memory)
    # What was written a moment ago is in memory: nobody asks.
    assert not store.is_cold(small)
    monkeypatch.setattr(reading, "_WARM_BYTES", -1)
    assert store.is_cold(small)
    assert store.is_cold(large)
    in_memory |= {0}
    assert not store.is_cold(small)
    assert store.is_cold(large)  # its beginning is there, not its end
    in_memory |= set(range(8))
    assert not store.is_cold(large)
    for nowhere in (-1, 2**62, store.max_physical_offset):
        assert not store.is_cold(nowhere)
