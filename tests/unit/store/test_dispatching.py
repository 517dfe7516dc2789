"""Entries for records that somebody else put."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.results import PutError, PutStatus, StoreError
from tests.support.agreed_stores import agreement_of, commit, log_of, open_leader
from tests.support.stores import TOPIC, bodies, open_store, put


def test_what_a_full_disk_left_out_is_dispatched_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_leader(tmp_path)
    real = ConsumeQueue.extend
    is_full = True

    def extend(self: ConsumeQueue, count: int = 1) -> None:
        if is_full and self.queue_id == 1:
            raise PutError(PutStatus.CREATE_MAPEDFILE_FAILED, "disk full")
        real(self, count)

    for number in range(4):
        put(store, b"%d" % number, queue_id=number % 2)
    store.seal()
    monkeypatch.setattr(ConsumeQueue, "extend", extend)
    with pytest.raises(PutError):
        commit(store)
    is_full = False
    agreement_of(store).advance()
    assert bodies(store, queue_id=0) == [b"0", b"2"]
    assert bodies(store, queue_id=1) == [b"1", b"3"]
    store.stop()


def test_long_polls_are_woken(tmp_path: Path) -> None:
    store = open_leader(tmp_path)
    arrived: list[ConsumeQueue] = []
    agreement_of(store)._dispatch._on_arrival = arrived.append
    queue = store.queue(TOPIC, 0)
    queue.watched = True
    put(store, b"one")
    store.seal()
    assert not arrived
    commit(store)
    assert arrived == [queue]
    store.stop()


def test_a_commit_log_without_a_record_is_an_error(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"one")
    store.seal()
    dispatch = store.replication.log._dispatch
    dispatch.position = 5
    with pytest.raises(StoreError, match="there is no record at 5"):
        dispatch.catch_up(store.max_physical_offset)
    store.stop()


def test_the_timestamp_is_that_of_the_last_message(tmp_path: Path) -> None:
    store = open_leader(tmp_path)
    physical = put(store, b"one")
    store.seal()
    commit(store)
    assert agreement_of(store)._dispatch.timestamp == store.store_time(physical)
    assert store._log.watermarks.written_timestamp == store.store_time(physical)
    assert log_of(store).committed_index == 0
    store.stop()
