"""Bulk reads give the same records as usual ones, as many as fit, and leave odd cases to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.protocol.message.record import MessageRecord, decode_records
from pyromq.store.message_store import MessageStore
from pyromq.store.queues import bulk_reading
from tests.support.stores import SEGMENT, TOPIC, body_for, open_store, put, read_all

MEGABYTE = 1 << 20


def all_in_bulk(
    store: MessageStore, max_count: int, max_bytes: int, offset: int = 0
) -> list[MessageRecord]:
    records: list[MessageRecord] = []
    while (planned := store.plan_bulk(TOPIC, 0, offset, max_count, max_bytes)) is not None:
        found = planned.read()
        assert found is not None
        read = decode_records(found.records)
        assert len(read) == found.messages <= max_count
        assert sum(record.size for record in read) == len(found.records)
        assert found.messages == 1 or len(found.records) <= max_bytes
        records += read
        offset += found.messages
    return records


@pytest.mark.parametrize("interleaved", [0, 1, 40_000])
@pytest.mark.parametrize(("max_count", "max_bytes"), [(1000, MEGABYTE), (3, MEGABYTE), (1000, 500)])
@pytest.mark.parametrize("min_view_size", [1, bulk_reading._MIN_VIEW_SIZE])
def test_the_same_records_as_usual(
    tmp_path: Path,
    interleaved: int,
    max_count: int,
    max_bytes: int,
    min_view_size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_reading, "_MIN_VIEW_SIZE", min_view_size)
    store = open_store(tmp_path, mapped_file_size_consume_queue=20 * 20)
    for number in range(60):
        put(store, b"x" * (number * 7))
        if interleaved:
            put(store, b"y" * interleaved, queue_id=1)
    store.seal()
    expected = read_all(store)
    assert len(expected) == 60
    assert all_in_bulk(store, max_count, max_bytes) == expected
    assert all_in_bulk(store, max_count, max_bytes, offset=33) == expected[33:]
    store.stop()


def test_many_pieces_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_reading, "_MAX_GAP", 10)
    monkeypatch.setattr(bulk_reading, "_MAX_CALLS", 3)
    store = open_store(tmp_path, mapped_file_size_consume_queue=20 * 1000)
    for _ in range(10):
        put(store)
        put(store, queue_id=1)
    store.seal()
    planned = store.plan_bulk(TOPIC, 0, 0, 100, MEGABYTE)
    assert planned is not None
    found = planned.read()
    assert found is not None
    assert found.messages == 3
    assert all_in_bulk(store, 100, MEGABYTE) == read_all(store)
    store.stop()


def test_a_message_above_the_limit_comes_alone(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"x" * 5000)
    put(store, b"small")
    store.seal()
    assert [len(record.body) for record in all_in_bulk(store, 10, 1000)] == [5000, 5]
    store.stop()


@pytest.mark.parametrize("offset", [-1, 2, 100])
def test_offsets_that_the_queue_does_not_have_are_left_to_others(
    tmp_path: Path, offset: int
) -> None:
    store = open_store(tmp_path)
    put(store)
    put(store)
    store.seal()
    assert store.plan_bulk(TOPIC, 0, offset, 10, MEGABYTE) is None
    assert store.plan_bulk("Nothing", 0, 0, 10, MEGABYTE) is None
    store.stop()


def test_a_deleted_segment_is_left_to_others(tmp_path: Path) -> None:
    store = open_store(tmp_path, mapped_file_size_consume_queue=2000)
    for _ in range(6):
        put(store, body_for(store, SEGMENT // 3))
    store.seal()
    planned = store.plan_bulk(TOPIC, 0, 0, 10, MEGABYTE)
    assert planned is not None
    store._log.segments.files.pop(0).delete()
    assert planned.read() is None, "deleted behind the plan's back"
    again = store.plan_bulk(TOPIC, 0, 0, 10, MEGABYTE)
    assert again is not None
    assert again.read() is None
    assert len(all_in_bulk(store, 10, MEGABYTE, offset=2)) == 4
    store.stop()


def test_what_is_not_committed_is_left_to_others(tmp_path: Path) -> None:
    store = open_store(tmp_path, transient_store_pool_enable=True, transient_store_pool_size=2)
    put(store)
    store.seal()
    planned = store.plan_bulk(TOPIC, 0, 0, 10, MEGABYTE)
    assert planned is not None
    store._log.commit()
    again = store.plan_bulk(TOPIC, 0, 0, 10, MEGABYTE)
    assert again is not None
    found = again.read()
    assert found is not None
    assert found.messages == 1
    assert planned._replace(log_end=0).read() is None
    store.stop()


def test_files_that_are_gone_or_short_are_left_to_others(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store)
    store.seal()
    planned = store.plan_bulk(TOPIC, 0, 0, 10, MEGABYTE)
    assert planned is not None
    assert planned._replace(queue_file=tmp_path / "none").read() is None
    assert planned._replace(log_files=()).read() is None
    store.stop()
