"""A store in a raft group: what is visible when, who is told, and the bytes in the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.protocol.message.entry import ENTRY_HEADER_SIZE
from pyromq.protocol.message.record import decode_record, encode_inner_message
from pyromq.raft.log import RaftLog
from pyromq.store import agreement
from pyromq.store.acknowledgement import AckOutcome
from pyromq.store.message_store import MessageStore
from pyromq.store.results import PutError, PutStatus
from tests.support.agreed_stores import (
    agreement_of,
    commit,
    lead,
    log_of,
    open_leader,
    open_member,
)
from tests.support.records import make_record
from tests.support.stores import (
    BORN_HOST,
    BORN_TIME,
    SEGMENT,
    TOPIC,
    bodies,
    put,
    put_batch,
)


def test_a_message_is_invisible_until_it_is_committed(tmp_path: Path) -> None:
    store = open_leader(tmp_path)
    physical = put(store, b"one")
    store.seal()
    assert store.max_offset(TOPIC, 0) == 0
    assert store.tail(TOPIC, 0).next_offset == 1
    assert store.read_record(physical) is None
    assert store.max_physical_offset == 0
    commit(store)
    assert bodies(store) == [b"one"]
    record = store.read_record(physical)
    assert record is not None
    assert decode_record(record).physical_offset == physical == ENTRY_HEADER_SIZE
    assert store.max_physical_offset == physical + len(record)
    store.stop()


async def test_responses_wait_for_the_commit(tmp_path: Path) -> None:
    store = open_leader(tmp_path)
    put(store, b"one")
    first = store.end_chunk()
    put(store, b"two")
    second = store.end_chunk()
    assert first is not None
    assert second is not None
    commit(store, 0)
    assert await first is AckOutcome.STORED
    assert not second.done()
    commit(store)
    assert await second is AckOutcome.STORED
    assert store.end_chunk() is None
    store.stop()


async def test_lost_leadership_ends_the_wait_and_refuses_messages(tmp_path: Path) -> None:
    store = open_leader(tmp_path)
    put(store, b"one")
    waiting = store.end_chunk()
    assert waiting is not None
    agreement_of(store).step_down()
    assert await waiting is AckOutcome.LEADERSHIP_LOST
    with pytest.raises(PutError) as caught:
        put(store, b"two")
    assert caught.value.status is PutStatus.SERVICE_NOT_AVAILABLE
    commit(store)  # the next leader had the entry
    assert bodies(store) == [b"one"]
    store.stop()


async def test_a_group_without_quorum_answers_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "QUORUM_SECONDS", 0.01)
    store = open_leader(tmp_path)
    put(store, b"one")
    waiting = store.end_chunk()
    assert waiting is not None
    assert await waiting is AckOutcome.QUORUM_TIMED_OUT
    store.stop()


def test_the_group_may_refuse_messages(tmp_path: Path) -> None:
    store = open_leader(tmp_path)
    put(store, b"one")
    agreement_of(store).refusal_of_group = lambda: "LEADER_TRANSFERRING"
    store.seal()  # asks again
    with pytest.raises(PutError) as caught:
        put(store, b"two")
    assert caught.value.status is PutStatus.OS_PAGECACHE_BUSY
    agreement_of(store).refusal_of_group = lambda: None
    put(store, b"three")
    commit_all(store)
    assert bodies(store) == [b"one", b"three"]
    store.stop()


def test_a_new_leader_numbers_on_from_what_is_committed(tmp_path: Path) -> None:
    store = open_leader(tmp_path)
    put(store, b"one")
    put(store, b"lost")
    store.seal()
    commit(store, 0)
    agreement_of(store).step_down()
    log_of(store).truncate(1)  # as the next leader demands
    assert store.tail(TOPIC, 0).next_offset == 2
    lead(store, 3)
    assert store.tail(TOPIC, 0).next_offset == 1
    put(store, b"two")
    commit_all(store)
    assert bodies(store) == [b"one", b"two"]
    assert [log_of(store).term(index) for index in range(2)] == [1, 3]
    store.stop()


@pytest.mark.parametrize("is_pure", [False, True])
def test_entries_are_where_dledger_puts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_pure: bool
) -> None:
    """The data files equal those of a log that got the same bodies one by one."""
    if is_pure:
        monkeypatch.setenv("PYROMQ_PURE", "1")
    store = open_leader(tmp_path / "store", term=7)
    number = 0
    for size in (10, 3000, 40_000, 1, 25_000, 64_000 - 500, 100):
        put(store, bytes([number]) * size, queue_id=number % 2, tags="a", keys=f"k{number}")
        put_batch(store, [b"b" * size for _ in range(3)] if size < 20_000 else [b"c"])
        number += 1
        store.seal()
    large = store.encode_batch(
        store.tail(TOPIC, 5),
        b"".join(encode_inner_message(b"x%d" % n, b"") for n in range(100)),
        b"",
        BORN_HOST,
    )
    while large.encode(7):
        pass
    offsets = store.put_encoded(store.tail(TOPIC, 5), large, 0, BORN_TIME, BORN_HOST, 0)
    commit_all(store)
    log = log_of(store)
    other = RaftLog(tmp_path / "other", data_file_size=SEGMENT)
    other.start()
    for index in range(log.next_index):
        entry = log.entry(index)
        assert decode_record(bytes(entry.body)).physical_offset == (
            entry.position + ENTRY_HEADER_SIZE
        )
        other.append_bodies(7, [bytes(entry.body)])
    assert other.written == log.written
    for mine, theirs in zip(log.files.files, other.files.files, strict=True):
        assert mine.read(0, SEGMENT) == theirs.read(0, SEGMENT)
    assert len(offsets) == 100
    assert bodies(store, queue_id=5) == [b"x%d" % n for n in range(100)]
    assert store.max_offset(TOPIC, 0) + store.max_offset(TOPIC, 1) == number + 4 * 3 + 3
    assert store.query(TOPIC, "k3", 10, 0, 1 << 62) or store.dispatch_behind >= 0
    other.stop()
    store.stop()


def test_an_entry_without_a_message_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_leader(tmp_path)
    put(store, b"one")
    commit_all(store)
    agreement_of(store).step_down()
    log_of(store).append_bodies(1, [b"from somebody else"])
    commit(store)
    lead(store, 2)
    put(store, b"two")
    commit_all(store)
    assert bodies(store) == [b"one", b"two"]
    assert "entry 1 at" in caplog.text
    store.stop()


def test_a_message_that_no_entry_can_hold_is_refused(tmp_path: Path) -> None:
    store = open_leader(tmp_path, mapped_file_size_commit_log=16 << 20, max_message_size=8 << 20)
    for body in (bytes(4 << 20), bytes(6 << 20)):
        with pytest.raises(PutError) as caught:
            put(store, body)
        assert caught.value.status is PutStatus.MESSAGE_ILLEGAL
    put(store, bytes((4 << 20) - 2000))
    commit_all(store)
    assert store.max_offset(TOPIC, 0) == 1
    store.stop()


def test_a_deleted_topic_takes_no_messages_and_begins_anew(tmp_path: Path) -> None:
    store = open_leader(tmp_path)
    tail = store.tail(TOPIC, 0)
    put(store, b"one")
    commit_all(store)
    store.close_topic(TOPIC)
    for each in (tail, store.tail(TOPIC, 0)):
        with pytest.raises(PutError):
            store.put(each, b"two", b"", 0, 0, 0, BORN_TIME, BORN_HOST, 0)
    store.remove_topic(TOPIC)
    put(store, b"three")
    commit_all(store)
    assert bodies(store) == [b"three"]
    store.stop()


def test_a_member_that_does_not_lead_shows_what_others_commit(tmp_path: Path) -> None:
    leader = open_leader(tmp_path / "leader")
    follower = open_member(tmp_path / "follower")
    for number in range(50):
        put(leader, b"message %d" % number, queue_id=number % 3)
        leader.seal()
    commit(leader)
    run = log_of(leader).run(0, 1 << 20)
    log_of(follower).append_raw(run.data)
    commit(follower, 29)
    assert sum(follower.max_offset(TOPIC, queue) for queue in range(3)) == 30
    commit(follower)
    for queue in range(3):
        assert bodies(follower, queue_id=queue) == bodies(leader, queue_id=queue)
    leader.stop()
    follower.stop()


def commit_all(store: MessageStore) -> None:
    """Write what is gathered, and commit it."""
    store.seal()
    commit(store)


@pytest.mark.parametrize("position", [1000, 3 * SEGMENT, 3 * SEGMENT + 1000])
def test_a_follower_may_begin_where_the_leader_does(tmp_path: Path, position: int) -> None:
    """A leader whose first files have expired fills a new node from its first entry on."""
    store = open_member(tmp_path)
    log = log_of(store)
    log.rebuild(7, position)
    record = make_record(
        physical_offset=position + ENTRY_HEADER_SIZE, topic=TOPIC, queue_id=0, queue_offset=5
    )
    log.append_bodies(1, [record])
    commit(store)
    assert store.max_offset(TOPIC, 0) == 6
    assert bodies(store) == [b"body"]
    store.stop()
    store = open_member(tmp_path)
    assert bodies(store) == [b"body"]
    store.stop()
