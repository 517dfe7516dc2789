"""A replica's appends: whatever way the master's bytes are cut, the files become the master's."""

from __future__ import annotations

import contextlib
import errno
import random
from pathlib import Path
from typing import Any

import pytest

from pyromq.protocol.message.record import MESSAGE_MAGIC
from pyromq.store.config import BrokerRole
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.check import check_store
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.replicated import BadBytesError
from pyromq.store.results import PutError, PutStatus, StoreError
from tests.support.stores import (
    SEGMENT,
    STORE_HOST,
    TOPIC,
    open_store,
    put,
    read_all,
    small_config,
)


def filled(root: Path, count: int = 200, seed: int = 1, **changes: Any) -> MessageStore:
    """A master's store over several segments."""
    store = open_store(root, **changes)
    rng = random.Random(seed)
    for number in range(count):
        put(
            store,
            rng.randbytes(rng.randrange(2000)),
            topic=f"topic-{rng.randrange(3)}",
            queue_id=rng.randrange(4),
            tags=rng.choice(["", "a", "b"]),
            keys=f"key-{number}",
        )
        if rng.random() < 0.5:
            store.seal()
    store.seal()
    return store


def replica(root: Path, **changes: Any) -> MessageStore:
    return open_store(root, broker_role=BrokerRole.SLAVE, **changes)


def log_of(store: MessageStore, start: int = 0) -> bytes:
    source = store.replication.source
    parts = []
    while start < source.end:
        parts.append(bytes(source.slice(start, 1 << 20)))
        start += len(parts[-1])
    return b"".join(parts)


def feed(store: MessageStore, data: bytes, sizes: Any, *, check_crc: bool = True) -> None:
    """Append bytes that arrive in pieces of these sizes."""
    log, pending, position = store.replication.log, b"", 0
    while position < len(data):
        size = sizes()
        pending += data[position : position + size]
        position += size
        taken = log.append(memoryview(pending), check_crc=check_crc)
        pending = pending[taken:]
    assert not pending


def files_of(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for folder in ("commitlog", "consumequeue")
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("check_crc", [True, False])
@pytest.mark.parametrize("largest", [1, 7, 100, 5000, 1 << 20])
def test_files_become_the_master_s_however_the_bytes_are_cut(
    tmp_path: Path, largest: int, check_crc: bool
) -> None:
    master = filled(tmp_path / "master", 40 if largest < 10 else 200)
    follower = replica(tmp_path / "replica")
    rng = random.Random(largest)
    feed(follower, log_of(master), lambda: rng.randint(1, largest), check_crc=check_crc)
    assert follower.max_physical_offset == master.max_physical_offset
    assert follower.replication.log.boundary == master.max_physical_offset
    topics = {queue.topic for queue in master.queues()}
    for topic in topics:
        for queue_id in range(4):
            assert read_all(follower, topic, queue_id) == read_all(master, topic, queue_id)
    for store in (master, follower):
        store.stop()
    assert files_of(tmp_path / "replica") == files_of(tmp_path / "master")
    assert list(check_store(tmp_path / "replica", follower.config)) == []


def test_large_pieces_and_small_ones_mix(tmp_path: Path) -> None:
    """Large pieces go to the file, small ones to its mapping."""
    large = {"mapped_file_size_commit_log": 1 << 20}
    master = filled(tmp_path / "master", 3000, **large)
    follower = replica(tmp_path / "replica", **large)
    rng = random.Random(1)
    feed(follower, log_of(master), lambda: rng.choice([100, 3000, 200_000, 500_000]))
    for store in (master, follower):
        store.stop()
    assert files_of(tmp_path / "replica") == files_of(tmp_path / "master")


def test_a_replica_refuses_messages_until_it_is_promoted(tmp_path: Path) -> None:
    master, follower = filled(tmp_path / "master"), replica(tmp_path / "replica")
    feed(follower, log_of(master), lambda: 4096)
    with pytest.raises(PutError) as refused:
        put(follower)
    assert refused.value.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "replica" in refused.value.reason
    follower.set_replica(False)
    put(follower, b"after the promotion")
    follower.seal()
    assert read_all(follower, TOPIC, 0)[-1].body == b"after the promotion"
    master.stop()
    follower.stop()
    assert list(check_store(tmp_path / "replica", follower.config)) == []


def test_a_promotion_completes_a_blank_record(tmp_path: Path) -> None:
    master, follower = filled(tmp_path / "master"), replica(tmp_path / "replica")
    data = log_of(master)[: SEGMENT - 3]
    taken = follower.replication.log.append(memoryview(data), check_crc=True)
    assert taken == len(data)
    assert follower.replication.log.boundary < taken
    follower.set_replica(False)
    assert follower.max_physical_offset == SEGMENT
    put(follower, b"next segment")
    follower.seal()
    master.stop()
    follower.stop()
    assert list(check_store(tmp_path / "replica", follower.config)) == []


@pytest.mark.parametrize("position", [0, 4, 5, 6, 7, 8, 30, 95])
def test_a_damaged_record_is_not_written(tmp_path: Path, position: int) -> None:
    """At the positions of size, magic, CRC, physical offset, and body."""
    master, follower = filled(tmp_path / "master"), replica(tmp_path / "replica")
    data = log_of(master)
    second = int.from_bytes(data[:4], "big")
    damaged = bytearray(data[:20_000])
    damaged[second + position] ^= 0x55
    log = follower.replication.log
    assert log.append(memoryview(damaged)[:second], check_crc=True) == second
    # A size that is too large makes a record look incomplete; the next bytes tell.
    damaged += bytes(SEGMENT)
    with pytest.raises(BadBytesError):
        log.append(memoryview(damaged)[second:], check_crc=True)
    assert log.end == second
    feed(follower, data[second:], lambda: 1 << 16)
    assert log.end == len(data)
    master.stop()
    follower.stop()


def test_other_bytes_are_refused(tmp_path: Path) -> None:
    follower = replica(tmp_path)
    for junk in (b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\xff" * 64):
        with pytest.raises(BadBytesError):
            follower.replication.log.append(memoryview(junk), check_crc=True)
    assert follower.max_physical_offset == 0
    follower.stop()


def test_an_empty_log_may_begin_at_any_segment(tmp_path: Path) -> None:
    master, follower = filled(tmp_path / "master"), replica(tmp_path / "replica")
    log = follower.replication.log
    with pytest.raises(StoreError, match="mappedFileSizeCommitLog"):
        log.begin_at(SEGMENT + 1)
    start = 2 * SEGMENT
    log.begin_at(start)
    feed(follower, log_of(master, start), lambda: 3000)
    assert follower.min_physical_offset == start
    assert follower.max_physical_offset == master.max_physical_offset
    for queue in follower.queues():
        ours = read_all(follower, queue.topic, queue.queue_id)
        theirs = read_all(master, queue.topic, queue.queue_id)
        assert ours == theirs[len(theirs) - len(ours) :]
        assert queue.min_offset == queue.next_offset - len(ours)
    master.stop()
    follower.stop()
    again = replica(tmp_path / "replica")
    assert again.max_physical_offset == master.max_physical_offset
    again.stop()


def test_a_log_that_received_nothing_may_begin_elsewhere(tmp_path: Path) -> None:
    follower = replica(tmp_path)
    log = follower.replication.log
    log.begin_at(0)
    assert log.is_empty
    log.begin_at(SEGMENT)
    assert log.end == SEGMENT
    assert log.is_empty
    log.begin_at(0)
    assert log.end == 0
    follower.stop()


def test_entries_that_could_not_be_written_follow_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, follower = filled(tmp_path / "master"), replica(tmp_path / "replica")
    data, log = log_of(master), follower.replication.log
    first = log.append(memoryview(data)[:20_000], check_crc=True)

    def full(*_: object) -> None:
        raise PutError(PutStatus.CREATE_MAPEDFILE_FAILED, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr("pyromq.store.queues.consume_queue.ConsumeQueue.extend", full)
        with pytest.raises(PutError):
            log.append(memoryview(data)[first:60_000], check_crc=True)
        stuck = log.end
        assert log.boundary == stuck > first  # the log has them
        with pytest.raises(PutError):
            log.append(memoryview(data)[stuck:70_000], check_crc=True)
        assert log.end == stuck
    assert log.append(memoryview(b""), check_crc=True) == 0  # no more bytes are needed for that
    assert sum(queue.next_offset for queue in follower.queues()) == data[:stuck].count(
        MESSAGE_MAGIC.to_bytes(4, "big")
    )
    feed(follower, data[log.end :], lambda: 5000)
    for queue in master.queues():
        assert read_all(follower, queue.topic, queue.queue_id) == read_all(
            master, queue.topic, queue.queue_id
        )
    master.stop()
    follower.stop()
    assert list(check_store(tmp_path / "replica", follower.config)) == []


def test_a_segment_may_end_after_entries_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records, the blank that ends their segment, and the next records, all in one append."""
    master, follower = filled(tmp_path / "master"), replica(tmp_path / "replica")
    data, log = log_of(master), follower.replication.log
    extend, calls = ConsumeQueue.extend, iter(range(1 << 20))

    def full_at_first(queue: ConsumeQueue, count: int = 1) -> None:
        if next(calls) < 2:
            raise PutError(PutStatus.CREATE_MAPEDFILE_FAILED, "no space left")
        extend(queue, count)

    monkeypatch.setattr(ConsumeQueue, "extend", full_at_first)
    while log.end < len(data):
        with contextlib.suppress(PutError):
            log.append(memoryview(data)[log.end :], check_crc=True)
    for queue in master.queues():
        assert read_all(follower, queue.topic, queue.queue_id) == read_all(
            master, queue.topic, queue.queue_id
        )
    master.stop()
    follower.stop()
    assert files_of(tmp_path / "replica") == files_of(tmp_path / "master")


def test_a_full_disk_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    master, follower = filled(tmp_path / "master"), replica(tmp_path / "replica")
    data, log = log_of(master), follower.replication.log

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr("pyromq.store.log.allocation.AllocationService.ensure", full)
        with pytest.raises(OSError, match="no space"):
            log.append(memoryview(data), check_crc=True)
    assert log.end == 0
    feed(follower, data, lambda: 5000)
    master.stop()
    follower.stop()
    assert files_of(tmp_path / "replica") == files_of(tmp_path / "master")


def test_long_polls_are_woken(tmp_path: Path) -> None:
    master = filled(tmp_path / "master")
    arrived: list[str] = []
    follower = MessageStore(
        small_config(tmp_path / "replica", broker_role=BrokerRole.SLAVE),
        STORE_HOST,
        lambda queue: arrived.append(queue.topic),
    )
    follower.start()
    follower.queue("topic-1", 2).watched = True
    feed(follower, log_of(master), lambda: 1 << 16)
    assert arrived
    assert set(arrived) == {"topic-1"}
    master.stop()
    follower.stop()
