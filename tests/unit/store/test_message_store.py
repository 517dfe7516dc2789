"""The message store: lifecycle, reads of a chunk that is not sealed, a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pyromq.protocol.message.sysflag import BORN_HOST_V6, STORE_HOST_V6
from pyromq.store.log.allocation import AllocationService
from pyromq.store.message_store import MessageStore
from pyromq.store.results import GetStatus, PutError, PutStatus, StoreError
from tests.support import stores
from tests.support.stores import (
    BORN_TIME,
    FOREVER,
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

ENOSPC = OSError(errno.ENOSPC, "No space left on device")


# One message


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


# Seals


def test_what_was_gathered_is_seen_by_every_read(store: MessageStore) -> None:
    physical = put(store, b"one", keys="k")
    assert store.max_offset(TOPIC, 0) == 1
    assert store.read_record(physical) is None, "it is not sealed"
    put(store, b"two")
    assert store.get(TOPIC, 0, 1, 32).status is GetStatus.FOUND
    put(store, b"three")
    assert store.offset_by_time(TOPIC, 0, FOREVER) == 2


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
        monkeypatch.setattr("pyromq.store.index.lane._RETRY_SECONDS", 0.01)

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


# Lifecycle


def test_a_store_starts_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(StoreError, match="is RUNNING and cannot become LOADING"):
        store.start()
    put(store)
    store.stop()
    store.stop()
    with pytest.raises(StoreError, match="is CLOSED and cannot become LOADING"):
        store.start()


def test_a_start_that_fails_closes_the_store(tmp_path: Path) -> None:
    running = open_store(tmp_path)
    second = MessageStore(small_config(tmp_path), STORE_HOST)
    with pytest.raises(StoreError, match="is in use by another broker"):
        second.start()
    second.stop()
    put(running)
    assert bodies(running) == [b"body"]
    with pytest.raises(PutError, match="not running"):
        put(second)
