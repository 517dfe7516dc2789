"""The start of a store: what a member of a raft group finds after a stop, a kill, and a change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pyromq.store.message_store import MessageStore
from pyromq.store.results import StoreError
from tests.support.agreed_stores import commit, lead, log_of, open_leader, open_member
from tests.support.stores import SEGMENT, TOPIC, bodies, killed_copy, open_store, put


def fill(store: MessageStore, count: int, first: int = 0) -> None:
    """Put numbered messages into three queues, and commit them."""
    for number in range(first, first + count):
        put(store, b"%d " % number * 200, queue_id=number % 3, keys=f"k{number}")
        store.seal()
    commit(store)


def counts(store: MessageStore) -> list[int]:
    return [store.max_offset(TOPIC, queue) for queue in range(3)]


def test_a_stopped_member_continues(tmp_path: Path) -> None:
    store = open_leader(tmp_path)
    fill(store, 300)
    before = [bodies(store, queue_id=queue) for queue in range(3)]
    store.stop()
    again = open_member(tmp_path)
    assert [bodies(again, queue_id=queue) for queue in range(3)] == before
    lead(again, 2)
    fill(again, 3, 300)
    assert counts(again) == [101, 101, 101]
    again.stop()


def test_a_killed_member_knows_what_was_committed(tmp_path: Path) -> None:
    """Its queues tell more than its checkpoint, which is older."""
    store = open_leader(tmp_path / "store")
    fill(store, 300)
    put(store, b"not committed", queue_id=0)
    store.seal()
    root = killed_copy(store, tmp_path / "killed")
    store.stop()
    again = open_member(root)
    assert counts(again) == [100, 100, 100]
    assert log_of(again).committed_index == 299
    assert log_of(again).end_index == 300
    commit(again)
    assert bodies(again)[-1] == b"not committed"
    again.stop()


def test_lost_queues_are_rebuilt_from_the_committed_entries(tmp_path: Path) -> None:
    store = open_leader(tmp_path)
    fill(store, 200)
    before = [bodies(store, queue_id=queue) for queue in range(3)]
    put(store, b"not committed", queue_id=0)
    store.seal()
    store.stop()
    shutil.rmtree(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "index", ignore_errors=True)
    again = open_member(tmp_path)
    assert [bodies(again, queue_id=queue) for queue in range(3)] == before
    again.stop()


def test_a_commit_log_from_before_the_group_is_closed_once(tmp_path: Path) -> None:
    old = open_store(tmp_path)
    put(old, b"old")
    old.stop()
    for term in (1, 2):
        store = open_leader(tmp_path, term=term)
        put(store, b"new %d" % term)
        store.seal()
        commit(store)
        assert log_of(store).begin_position == SEGMENT
        store.stop()
    store = open_member(tmp_path)
    assert bodies(store) == [b"old", b"new 1", b"new 2"]
    store.stop()


def test_a_killed_store_can_join_a_group(tmp_path: Path) -> None:
    old = open_store(tmp_path / "old")
    put(old, b"old")
    old.seal()
    root = killed_copy(old, tmp_path / "killed")
    old.stop()
    store = open_leader(root)
    put(store, b"new")
    store.seal()
    commit(store)
    assert bodies(store) == [b"old", b"new"]
    store.stop()


def test_a_missing_old_segment_is_refused(tmp_path: Path) -> None:
    old = open_store(tmp_path)
    for _ in range(5):
        put(old, b"x" * 30_000)
    old.stop()
    open_leader(tmp_path).stop()
    last = sorted((tmp_path / "commitlog").iterdir())[-1]
    last.unlink()
    with pytest.raises(StoreError, match="the raft group's log begins at"):
        open_member(tmp_path)
