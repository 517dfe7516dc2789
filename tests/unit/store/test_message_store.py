"""The store's door: puts, batches, seals, limits, full disks, restarts, and a model of it."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyromq.protocol.java_hash import java_hash
from pyromq.protocol.record import (
    BLANK,
    BLANK_MAGIC,
    BLANK_SIZE,
    decode_record,
    encode_inner_message,
)
from pyromq.protocol.sysflag import BORN_HOST_V6, STORE_HOST_V6
from pyromq.store.allocation import AllocationService
from pyromq.store.message_store import MessageStore
from pyromq.store.results import GetStatus, PutError, PutStatus, StoreError
from tests.support import stores
from tests.support.examples import examples
from tests.support.patience import wait_until
from tests.support.stores import (
    BORN_HOST,
    BORN_TIME,
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
    properties_of,
    put,
    put_batch,
    read_all,
    small_config,
)

ENOSPC = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_store(tmp_path / "store")
    yield store
    store.stop()


def reopened(store: MessageStore, **changes: Any) -> MessageStore:
    """The same directory again, after a clean stop."""
    store.stop()
    return open_store(store.config.root, **changes)


# One message and one batch


def test_a_message_comes_out_as_it_went_in(store: MessageStore) -> None:
    physical = put(store, b"hello", queue_id=3, tags="TagA", keys="k1 k2", sys_flag=1)
    assert store.read_record(physical) is None, "it is not sealed"
    (record,) = read_all(store, queue_id=3)
    assert (record.topic, record.queue_id, record.queue_offset) == (TOPIC, 3, 0)
    assert (record.body, record.flag, record.sys_flag, record.reconsume_times) == (
        b"hello",
        3,
        1,
        2,
    )
    assert record.properties == {"TAGS": "TagA", "KEYS": "k1 k2"}
    assert record.born_host == ("127.0.0.1", 40404)
    assert record.store_host == ("127.0.0.1", 10911)
    assert (record.physical_offset, record.born_timestamp) == (physical, BORN_TIME)
    assert record.prepared_transaction_offset == 0
    assert store.read_record(physical) is not None


@pytest.mark.parametrize("store_host", [stores.STORE_HOST, stores.STORE_HOST_V6])
@pytest.mark.parametrize("born_host", [stores.BORN_HOST, stores.BORN_HOST_V6])
def test_hosts_of_both_kinds_survive_both_restarts(
    tmp_path: Path, store_host: bytes, born_host: bytes
) -> None:
    store = MessageStore(small_config(tmp_path / "store"), store_host)
    store.start()
    put(store, b"one", born_host=born_host)
    put_batch(store, [b"two", b""], born_host=born_host, tags="T")
    put(store, b"four")
    store.seal()
    copy = killed_copy(store, tmp_path / "copy")
    store.stop()
    for root in (store.config.root, copy):
        again = open_store(root)
        records = audit(again)
        assert [record.body for record in records] == [b"one", b"two", b"", b"four"]
        for record in records[:3]:
            v6 = BORN_HOST_V6 if len(born_host) == 20 else 0
            v6 |= STORE_HOST_V6 if len(store_host) == 20 else 0
            assert record.sys_flag == v6
            assert record.born_host[1] == 40404
            assert record.store_host[1] == 10911
        again.stop()


def test_a_batch_is_its_messages_with_consecutive_offsets(store: MessageStore) -> None:
    put(store, b"before")
    offsets = put_batch(store, [b"a", b"bb", b""], tags="TagB", properties=b"CLUSTER\x01c")
    put(store, b"after")
    records = read_all(store)
    assert [record.body for record in records] == [b"before", b"a", b"bb", b"", b"after"]
    assert [record.physical_offset for record in records[1:4]] == offsets
    assert all(r.properties == {"TAGS": "TagB", "CLUSTER": "c"} for r in records[1:4])
    audit(store)


def test_an_empty_batch_is_refused(store: MessageStore) -> None:
    with pytest.raises(PutError) as refused:
        put_batch(store, [])
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL
    put(store)
    assert bodies(store) == [b"body"]


@pytest.mark.parametrize(
    "own",
    [
        b"TAGS\x01a\x02TAGS\x01b",
        b"TAGS\x01a\x02",
        b"xTAGS\x01a",
        b"xTAGS\x01a\x02TAGS\x01b",
        b"TAGS\x01b\x02xTAGS\x01a",
        b"TAGS\x01",
        b"TAGS\x01\x02A\x01b",
        b"KEYS\x01TAGS\x01a",
        "TAGS\x01Grüße\U0001f600".encode(),
        b"TAGS\x01\xff\xfe",
        b"\x02TAGS\x01a\x02\x02",
    ],
)
@pytest.mark.parametrize("shared", [b"", b"CLUSTER\x01c", b"A\x01b\x02TAGS\x01shared"])
def test_tags_of_a_batch_are_the_same_when_made_from_the_log(
    tmp_path: Path, own: bytes, shared: bytes
) -> None:
    store = open_store(tmp_path / "store")
    queue = store.queue(TOPIC, 0)
    store.put_batch(queue, encode_inner_message(b"b", own), shared, 0, 0, BORN_HOST, 0)
    store.seal()
    entry = queue.entry(0)
    copy = killed_copy(store, tmp_path / "copy")
    store.stop()
    again = open_store(copy)
    assert again.queue(TOPIC, 0).entry(0) == entry
    again.stop()


def test_a_torn_batch_is_refused_whole(store: MessageStore) -> None:
    first = encode_inner_message(b"first", b"")
    batch = first + encode_inner_message(b"second", b"A\x01b")
    queue = store.queue(TOPIC, 0)
    for length in range(1, len(batch)):
        if length == len(first):
            continue
        with pytest.raises(PutError) as refused:
            store.put_batch(queue, batch[:length], b"", 0, 0, BORN_HOST, 0)
        assert refused.value.status is PutStatus.MESSAGE_ILLEGAL
        assert (store.max_physical_offset, queue.next_offset) == (0, 0)
    put(store, b"good")
    assert bodies(store) == [b"good"]


@pytest.mark.parametrize("at", [0, 16])
@pytest.mark.parametrize("value", [-(1 << 31), -1, 0, 21, 22, 24, 26, 28, 1000, (1 << 31) - 1])
def test_lengths_of_a_batch_that_lie_are_refused(store: MessageStore, at: int, value: int) -> None:
    batch = bytearray(encode_inner_message(b"first", b"") + encode_inner_message(b"second", b""))
    if struct.unpack_from(">i", batch, at)[0] == value:
        return
    struct.pack_into(">i", batch, at, value)
    with pytest.raises(PutError) as refused:
        store.put_batch(store.queue(TOPIC, 0), bytes(batch), b"", 0, 0, BORN_HOST, 0)
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL
    assert (store.max_physical_offset, store.max_offset(TOPIC, 0)) == (0, 0)


@pytest.mark.parametrize("own_length", [32_767, 32_768, 65_535])
@pytest.mark.parametrize("shared", [b"", b"CLUSTER\x01DefaultCluster"])
def test_a_batch_with_too_long_properties_is_refused_or_survives_a_crash(
    tmp_path: Path, own_length: int, shared: bytes
) -> None:
    """A record that recovery would not take ends the log for all that was stored behind it."""
    store = open_store(tmp_path / "store", mapped_file_size_commit_log=1024 * 1024)
    queue = store.queue(TOPIC, 0)
    own = b"A\x01" + b"a" * (own_length - 2)
    batch = struct.pack(">iiiii", 26 + own_length, 0, 0, 0, 4) + b"long"
    batch += struct.pack(">H", own_length) + own
    fits = own_length + len(shared) + bool(shared) <= 32_767
    if fits:
        store.put_batch(queue, batch, shared, 0, 0, BORN_HOST, 0)
    else:
        with pytest.raises(PutError) as refused:
            store.put_batch(queue, batch, shared, 0, 0, BORN_HOST, 0)
        assert refused.value.status in (
            PutStatus.PROPERTIES_SIZE_EXCEEDED,
            PutStatus.MESSAGE_ILLEGAL,
        )
    put(store, b"behind")
    store.seal()
    copy = killed_copy(store, tmp_path / "copy")
    store.stop()
    again = open_store(copy, mapped_file_size_commit_log=1024 * 1024)
    assert bodies(again) == ([b"long"] if fits else []) + [b"behind"]
    again.stop()


def test_properties_of_one_message_have_a_limit(store: MessageStore) -> None:
    queue = store.queue(TOPIC, 0)
    for length, fits in ((32_767, True), (32_768, False)):
        properties = b"A\x01" + b"a" * (length - 2)
        if fits:
            store.put(queue, b"", properties, 0, 0, 0, 0, BORN_HOST, 0)
            continue
        with pytest.raises(PutError) as refused:
            store.put(queue, b"", properties, 0, 0, 0, 0, BORN_HOST, 0)
        assert refused.value.status is PutStatus.PROPERTIES_SIZE_EXCEEDED
        assert str(length) in str(refused.value)
    assert len(audit(store)) == 1


@pytest.mark.parametrize("limit", [100, 40_000])
def test_a_body_above_max_message_size_is_refused(tmp_path: Path, limit: int) -> None:
    store = open_store(tmp_path, max_message_size=limit)
    put(store, b"x" * limit)
    with pytest.raises(PutError) as refused:
        put(store, b"x" * (limit + 1))
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL
    with pytest.raises(PutError):
        put_batch(store, [b"x" * (limit + 1)])
    assert [len(body) for body in bodies(store)] == [limit]
    store.stop()


@pytest.mark.parametrize("field", ["flag", "sys_flag", "born", "reconsume"])
@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1])
def test_a_number_that_does_not_fit_leaves_nothing_behind(
    store: MessageStore, field: str, value: int
) -> None:
    numbers = {"flag": 0, "sys_flag": 0, "born": 0, "reconsume": 0} | {field: value}
    queue = store.queue(TOPIC, 0)
    with pytest.raises(struct.error):
        store.put(queue, b"b", b"", 0, numbers["flag"], numbers["sys_flag"], numbers["born"],
                  BORN_HOST, numbers["reconsume"])  # fmt: skip
    put(store, b"good")
    assert bodies(store) == [b"good"]
    audit(store)


# Seals


def test_what_was_gathered_is_seen_by_every_read(store: MessageStore) -> None:
    physical = put(store, b"one", keys="k")
    assert store.max_offset(TOPIC, 0) == 1
    assert store.read_record(physical) is None, "it is not sealed"
    put(store, b"two")
    assert store.get(TOPIC, 0, 1, 32).status is GetStatus.FOUND
    put(store, b"three")
    assert store.offset_by_time(TOPIC, 0, FOREVER) == 2


def test_one_chunk_tells_each_watched_queue_once(tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []
    store = MessageStore(
        small_config(tmp_path), STORE_HOST, lambda queue: told.append((queue.topic, queue.queue_id))
    )
    store.start()
    for queue_id in (0, 1):
        store.queue(TOPIC, queue_id).watched = True
    for queue_id in (0, 1, 2, 0, 1, 2):
        put(store, queue_id=queue_id)
    assert told == []
    store.seal()
    assert told == [(TOPIC, 0), (TOPIC, 1)]
    store.seal()
    assert len(told) == 2
    store.stop()


def test_a_put_that_fails_behind_a_roll_does_not_hide_what_was_sent_before(
    store: MessageStore,
) -> None:
    """A roll writes the log's part of the chunk; the entries must follow with the seal."""
    put(store, body_for(store, SEGMENT - 200))
    store.seal()
    put(store, b"acknowledged")
    queue = store.queue(TOPIC, 0)
    with pytest.raises(struct.error):
        store.put(queue, b"x" * 500, b"", 0, 1 << 40, 0, 0, BORN_HOST, 0)
    store.seal()
    assert queue.entry(1) is not None
    assert bodies(store)[1:] == [b"acknowledged"]
    assert store.get(TOPIC, 0, 1, 1).status is GetStatus.FOUND


def test_a_full_disk_for_entries_behind_a_roll_does_not_hide_what_was_sent_before(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, body_for(store, SEGMENT - 200))
    put(store, b"acknowledged")
    other = store.queue("Other", 0)

    def refuse(*_: object) -> None:
        raise PutError(PutStatus.CREATE_MAPEDFILE_FAILED, "full")

    monkeypatch.setattr(type(other), "extend", refuse)
    with pytest.raises(PutError):
        put(store, b"x" * 500, topic="Other")
    monkeypatch.undo()
    store.seal()
    assert bodies(store)[1:] == [b"acknowledged"]


# Segments


@pytest.mark.parametrize("rest", [BLANK_SIZE, BLANK_SIZE + 1, 91, 200])
def test_the_blank_record_fills_what_is_left(tmp_path: Path, rest: int) -> None:
    store = open_store(tmp_path / "store")
    put(store, body_for(store, SEGMENT - rest))
    assert store.max_physical_offset == SEGMENT - rest
    second = put(store, b"x" * 200)
    assert second == SEGMENT
    store.seal()
    first_file = (tmp_path / "store/commitlog" / f"{0:020d}").read_bytes()
    assert BLANK.unpack_from(first_file, SEGMENT - rest) == (rest, BLANK_MAGIC)
    copy = killed_copy(store, tmp_path / "copy")
    store.stop()
    for root in (store.config.root, copy):
        again = open_store(root)
        assert [record.physical_offset for record in audit(again)] == [0, SEGMENT]
        assert put(again, b"third") == again.queue(TOPIC, 0).fixed_size + 200 + SEGMENT
        again.stop()


@pytest.mark.parametrize("rest", range(BLANK_SIZE))
def test_a_record_never_takes_the_place_of_the_blank_one(tmp_path: Path, rest: int) -> None:
    store = open_store(tmp_path)
    put(store, b"first")
    used = store.max_physical_offset
    assert put(store, body_for(store, SEGMENT - used - rest)) == SEGMENT
    assert len(audit(store)) == 2
    store.stop()


def test_the_largest_record_of_a_segment_and_one_byte_more(store: MessageStore) -> None:
    largest = SEGMENT - BLANK_SIZE
    with pytest.raises(PutError) as refused:
        put(store, body_for(store, largest + 1))
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL
    assert put(store, body_for(store, largest)) == 0
    assert put(store, body_for(store, largest)) == SEGMENT
    assert put(store, b"") == 2 * SEGMENT
    assert len(audit(store)) == 3


def test_a_batch_does_not_cross_a_segment(store: MessageStore) -> None:
    put(store, body_for(store, SEGMENT - 1000))
    offsets = put_batch(store, [b"x" * 100] * 9)
    assert offsets[0] == SEGMENT, "the batch did not go to the next segment as a whole"
    assert len(audit(store)) == 10


def test_batches_fill_many_segments_of_log_and_queue(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sent = []
    for number in range(60):
        chunk = [b"%d-%d" % (number, i) + b"." * (number * 17) for i in range(number % 29 + 1)]
        put_batch(store, chunk)
        sent += chunk
        if number % 3:
            store.seal()
    assert bodies(store) == sent
    assert len(audit(store)) == len(sent) > 4 * QUEUE_ENTRIES
    assert store.max_physical_offset > 5 * SEGMENT
    again = reopened(store)
    assert bodies(again) == sent
    again.stop()


def test_one_chunk_over_several_segments_of_log_and_queue(store: MessageStore) -> None:
    sent = [b"%02d" % number * 1000 for number in range(5 * QUEUE_ENTRIES)]
    for body in sent:
        put(store, body)
    store.seal()
    assert store.max_physical_offset > SEGMENT
    assert bodies(store) == sent
    audit(store)


def test_a_batch_larger_than_a_segment_is_refused(store: MessageStore) -> None:
    with pytest.raises(PutError) as refused:
        put_batch(store, [b"x" * 10_000] * 7)
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL
    assert store.max_offset(TOPIC, 0) == 0


def test_records_longer_than_a_piece_of_the_log(tmp_path: Path) -> None:
    changes = {
        "mapped_file_size_commit_log": 12 * 1024 * 1024,
        "max_message_size": 6 * 1024 * 1024,
    }
    store = open_store(tmp_path / "store", **changes)
    sent = [b"small", os.urandom(1024) * 4100, b"small", os.urandom(1024) * 5000, b"last"]
    for body in sent:
        put(store, body, keys=f"k{len(body)}")
        store.seal()
    copy = killed_copy(store, tmp_path / "copy")
    assert [len(record.body) for record in audit(store)] == [len(body) for body in sent]
    store.stop()
    again = open_store(copy, **changes)
    assert [record.body for record in audit(again)] == sent
    again.stop()


# A full disk


class Disk:
    """os.posix_fallocate with a switch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self._real = os.posix_fallocate
        monkeypatch.setattr(os, "posix_fallocate", self._fallocate)
        monkeypatch.setattr("pyromq.store.dispatch._RETRY_SECONDS", 0.01)

    def _fallocate(self, descriptor: int, offset: int, length: int) -> None:
        if self.full:
            raise ENOSPC
        self._real(descriptor, offset, length)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_full_disk_refuses_until_there_is_room(tmp_path: Path, disk: Disk) -> None:
    store = open_store(tmp_path / "store")
    disk.full = True
    for _ in range(3):
        with pytest.raises(PutError) as refused:
            put(store, b"refused")
        assert refused.value.status is PutStatus.CREATE_MAPEDFILE_FAILED
        assert "No space left" in str(refused.value)
    store.seal()
    assert store.get(TOPIC, 0, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
    disk.full = False
    put(store, b"taken")
    assert bodies(store) == [b"taken"]
    audit(store)
    again = reopened(store)
    assert bodies(again) == [b"taken"]
    again.stop()


@pytest.mark.parametrize("batch", [False, True])
def test_a_disk_that_fills_up_while_sending(tmp_path: Path, disk: Disk, batch: bool) -> None:
    store = open_store(tmp_path / "store")
    sent: list[bytes] = []
    refused: list[PutStatus] = []
    for number in range(300):
        disk.full = number % 100 >= 20
        chunk = [b"%d.%d" % (number, i) * 50 for i in range(number % 4 + 1)]
        try:
            if batch:
                put_batch(store, chunk, queue_id=0)
                sent += chunk
            else:
                for body in chunk:
                    put(store, body)
                    sent.append(body)
        except PutError as error:
            refused.append(error.status)
        if number % 5 == 0:
            store.seal()
            assert store.max_offset(TOPIC, 0) == len(sent)
    assert len(refused) > 20
    assert set(refused) == {PutStatus.CREATE_MAPEDFILE_FAILED}
    store.seal()
    disk.full = False
    copy = killed_copy(store, tmp_path / "copy")
    assert bodies(store) == sent
    store.stop()
    again = open_store(copy)
    assert bodies(again) == sent
    audit(again)
    again.stop()


def test_the_blank_record_of_a_segment_from_before_is_no_write_into_a_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not the allocation thread was there first."""
    store = open_store(tmp_path / "store")
    put(store, body_for(store, SEGMENT - 300))
    store.seal()
    copy = killed_copy(store, tmp_path / "copy")
    store.stop()
    monkeypatch.setattr(AllocationService, "follow", lambda self, file, position: None)
    again = open_store(copy)
    assert put(again, b"x" * 400) == SEGMENT  # the fixture of all tests checks the write
    assert len(audit(again)) == 2
    again.stop()


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
    assert (store.max_offset("Nowhere", 0), store.min_offset("Nowhere", 0)) == (0, -1)
    assert store.offset_by_time("Nowhere", 0, 0) == 0
    assert store.earliest_time("Nowhere", 0) == -1
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
    end, before = store.max_physical_offset, store.earliest_time(TOPIC, 0) - 1
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


# Against a plain model


class StoreMachine(RuleBasedStateMachine):
    """Any order of puts, batches, seals, gets, restarts and kills, against plain lists."""

    topics = ("TopicA", "TopicB")

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="pyromq-model-"))
        self.generation = 0
        self.store = self.opened(self.directory / "0")
        self.sealed: dict[tuple[str, int], list[bytes]] = {}
        self.gathered: list[tuple[tuple[str, int], bytes]] = []

    def opened(self, root: Path) -> MessageStore:
        return open_store(
            root,
            mapped_file_size_commit_log=4096,
            mapped_file_size_consume_queue=60,
            flush_interval_commit_log=1,
            flush_interval_consume_queue=1,
            max_message_size=5000,
        )

    def expected(self, name: tuple[str, int]) -> list[bytes]:
        return self.sealed.get(name, []) + [body for at, body in self.gathered if at == name]

    def model_seal(self) -> None:
        for name, body in self.gathered:
            self.sealed.setdefault(name, []).append(body)
        self.gathered.clear()

    names = st.tuples(st.sampled_from(topics), st.integers(0, 1))
    some_bodies = st.one_of(st.binary(max_size=60), st.integers(0, 4200).map(lambda n: b"z" * n))

    @rule(name=names, body=some_bodies, tags=st.sampled_from(["", "TagA", "Grüße"]))
    def put(self, name: tuple[str, int], body: bytes, tags: str) -> None:
        size = self.store.queue(*name).fixed_size + len(body) + len(properties_of(tags, "k"))
        if size > 4096 - BLANK_SIZE:
            with pytest.raises(PutError):
                put(self.store, body, topic=name[0], queue_id=name[1], tags=tags, keys="k")
            return
        put(self.store, body, topic=name[0], queue_id=name[1], tags=tags, keys="k")
        self.gathered.append((name, body))

    @rule(name=names, some=st.lists(st.binary(max_size=200), min_size=1, max_size=9))
    def put_batch(self, name: tuple[str, int], some: list[bytes]) -> None:
        put_batch(self.store, some, topic=name[0], queue_id=name[1], tags="B", properties=b"C\x01d")
        self.gathered += [(name, body) for body in some]

    @rule()
    def seal(self) -> None:
        self.store.seal()
        self.model_seal()

    @rule(name=names, offset=st.integers(-2, 40), count=st.integers(-1, 40))
    def get(self, name: tuple[str, int], offset: int, count: int) -> None:
        expected = self.expected(name)
        result = self.store.get(*name, offset, count)
        self.model_seal()
        if 0 <= offset < len(expected):
            assert result.status is GetStatus.FOUND
            found = log_bodies(b"".join(result.pieces))
            assert 1 <= len(found) <= max(1, count)
            assert found == expected[offset : offset + len(found)]
            assert result.next_offset == offset + len(found)
        else:
            assert result.status is not GetStatus.FOUND
            assert result.count == 0

    @rule()
    def restart(self) -> None:
        self.store.stop()
        self.model_seal()
        self.store = self.opened(self.store.config.root)

    @precondition(lambda self: self.generation < 6)
    @rule(torn=st.binary(max_size=100))
    def kill(self, torn: bytes) -> None:
        """Only what was sealed is there afterwards, whatever stands behind it."""
        self.store.seal()
        self.model_seal()
        self.generation += 1
        end = self.store.max_physical_offset
        copy = killed_copy(self.store, self.directory / str(self.generation))
        self.store.stop()
        shutil.rmtree(self.store.config.root)
        last = copy / "commitlog" / f"{end - end % 4096:020d}"
        if last.exists():
            with last.open("r+b") as file:
                file.seek(end % 4096)
                file.write(torn[: 4096 - end % 4096])
        self.store = self.opened(copy)
        assert self.store.max_physical_offset == end

    @invariant()
    def ends_agree(self) -> None:
        for topic in self.topics:
            for queue_id in (0, 1):
                name = (topic, queue_id)
                assert self.store.max_offset(*name) == len(self.expected(name))

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            self.model_seal()
            records = audit(self.store)
            assert len(records) == sum(len(some) for some in self.sealed.values())
            for name, expected in self.sealed.items():
                assert bodies(self.store, *name) == expected
        finally:
            self.store.stop()
            shutil.rmtree(self.directory)


def log_bodies(data: bytes) -> list[bytes]:
    found = []
    while data:
        record = decode_record(data)
        found.append(record.body)
        data = data[record.size :]
    return found


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=examples(40),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("born_host", [BORN_HOST, stores.BORN_HOST_V6])
def test_store_times_by_place(tmp_path: Path, born_host: bytes) -> None:
    store = open_store(tmp_path)
    physical = put(store, b"x", born_host=born_host)
    assert store.store_time(physical) == -1, "it is not sealed yet"
    store.seal()
    data = store.read_record(physical)
    assert data is not None
    assert store.store_time(physical) == decode_record(data).store_timestamp
    assert store.store_time(physical + len(data)) == -1
    store.stop()


def test_queues_are_found_and_not_made(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.find_queue(TOPIC, 0) is None
    assert list(store.queues()) == []
    put(store, b"x")
    found = store.find_queue(TOPIC, 0)
    assert found is not None
    assert found is store.queue(TOPIC, 0)
    store.stop()
