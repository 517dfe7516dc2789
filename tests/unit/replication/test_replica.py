"""A replica, against pyromq's master and against a scripted Java master."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pyromq.store.message_store import MessageStore
from pyromq.store.replication_settings import BrokerRole
from tests.support.patience import until
from tests.support.replication import (
    MasterSide,
    ReplicaSide,
    ScriptedMaster,
    caught_up,
    log_bytes,
    pair,
)
from tests.support.stores import SEGMENT, TOPIC, open_store, put, read_all


def fill(store: MessageStore, count: int, tag: str = "a") -> None:
    for number in range(count):
        put(store, f"{tag}-{number}".encode() * 50, queue_id=number % 4, keys=f"{tag}-{number}")
    store.seal()


async def test_a_java_master_is_followed(
    tmp_path: Path, java: ScriptedMaster, master_log: bytes
) -> None:
    replica = ReplicaSide(tmp_path / "replica", lambda: f"127.0.0.1:{java.port}")
    replica.replica.start()
    await until(lambda: java.requests == [0])
    assert replica.examined == [f"127.0.0.1:{java.port}"]
    java.send(0, b"")  # a heartbeat
    for start in range(0, len(master_log), 5000):
        end = min(start + 5000, len(master_log))
        # As a Java master, never across a segment.
        for begin, stop in ((start, end - end % SEGMENT), (max(start, end - end % SEGMENT), end)):
            if begin < stop <= end and begin >= start:
                java.send(begin, master_log[begin:stop])
    await until(lambda: replica.store.max_physical_offset == len(master_log))
    await until(lambda: java.requests[-1] == len(master_log))
    assert java.requests == sorted(java.requests)
    assert java.connections == 1
    await replica.stop()
    assert b"".join(log_bytes(tmp_path / "replica").values())[: len(master_log)] == master_log


async def test_an_empty_log_begins_where_a_java_master_begins(
    tmp_path: Path, java: ScriptedMaster, master_log: bytes
) -> None:
    replica = ReplicaSide(tmp_path / "replica", lambda: f"127.0.0.1:{java.port}")
    replica.replica.start()
    await until(lambda: java.requests == [0])
    java.send(SEGMENT, b"")
    java.send(SEGMENT, master_log[SEGMENT : SEGMENT + 9000])
    await until(lambda: replica.store.max_physical_offset > SEGMENT)
    assert replica.store.min_physical_offset == SEGMENT
    await until(lambda: java.requests[-1] > SEGMENT)
    await replica.stop()


async def test_a_restarted_replica_continues(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, replica):
        fill(master.store, 100)
        await caught_up(master, replica)
        await replica.stop()
        fill(master.store, 100, "b")
        again = ReplicaSide(tmp_path / "replica", lambda: master.address)
        again.replica.start()
        await caught_up(master, again)
        assert not again.stopped
        await again.stop()
    assert log_bytes(tmp_path / "replica") == log_bytes(tmp_path / "master")


async def test_a_replica_follows_a_master_that_moves(tmp_path: Path) -> None:
    address = [""]
    first = MasterSide(tmp_path / "master")
    await first.start()
    fill(first.store, 50)
    replica = ReplicaSide(tmp_path / "replica", lambda: address[0] or None)
    replica.replica.start()
    await asyncio.sleep(0)
    assert replica.replica.status().master is None
    address[0] = first.address
    await caught_up(first, replica)
    await first.stop()
    second = MasterSide(tmp_path / "master")
    await second.start()
    fill(second.store, 50, "b")
    address[0] = second.address
    await caught_up(second, replica)
    assert replica.replica.status().is_connected
    await replica.stop()
    await second.stop()


async def test_a_master_that_is_gone_is_looked_for(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, replica):
        fill(master.store, 10)
        await caught_up(master, replica)
        port = master.port
        await master.stop()
        await until(lambda: not replica.replica.status().is_connected)
        again = MasterSide(tmp_path / "master")
        await again.start(port)
        fill(again.store, 10, "b")
        await caught_up(again, replica)
        await replica.replica.stop()
        await again.stop()


@pytest.mark.parametrize("common", [0, 1, 90])
async def test_a_log_with_other_messages_stops_the_replica(tmp_path: Path, common: int) -> None:
    """Both begin alike; then each has messages of its own."""
    async with pair(tmp_path) as (master, replica):
        fill(master.store, common)
        if common:
            await caught_up(master, replica)
        await replica.stop()
        other = open_store(tmp_path / "replica")
        expected = other.max_physical_offset
        fill(other, 30, "other")
        other.stop()
        fill(master.store, 60, "mine")
        again = ReplicaSide(tmp_path / "replica", lambda: master.address)
        again.replica.start()
        await until(lambda: bool(again.stopped))
        assert f"--to {expected} --apply" in again.stopped[0]
        assert "differs" in again.stopped[0]
        assert again.replica.status().stopped == again.stopped[0]
        assert master.store.replication.replicated_offset <= expected
        await again.stop()


async def test_a_longer_log_stops_the_replica(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, replica):
        fill(master.store, 30)
        await caught_up(master, replica)
        await replica.stop()
        longer = open_store(tmp_path / "replica")
        end = longer.max_physical_offset
        fill(longer, 10, "more")
        longer.stop()
        again = ReplicaSide(tmp_path / "replica", lambda: master.address)
        again.replica.start()
        await until(lambda: bool(again.stopped))
        assert "is longer than" in again.stopped[0]
        assert f"--to {end} --apply" in again.stopped[0]
        await again.stop()


async def test_an_expired_offset_stops_the_replica(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, replica):
        fill(master.store, 30)
        await caught_up(master, replica)
        await replica.stop()
        fill(master.store, 600, "b")
        master.store._log.segments.take_first()
        again = ReplicaSide(tmp_path / "replica", lambda: master.address)
        again.replica.start()
        await until(lambda: bool(again.stopped))
        assert "no longer has offset" in again.stopped[0]
        assert "mv " in again.stopped[0]
        await again.stop()


async def test_another_segment_size_stops_the_replica(tmp_path: Path) -> None:
    master = MasterSide(tmp_path / "master")
    await master.start()
    replica = ReplicaSide(
        tmp_path / "replica", lambda: master.address, mapped_file_size_commit_log=2 * SEGMENT
    )
    replica.replica.start()
    await until(lambda: bool(replica.stopped))
    assert "mappedFileSizeCommitLog" in replica.stopped[0]
    await replica.stop()
    await master.stop()


async def test_an_empty_replica_gets_all_segments_that_are_left(tmp_path: Path) -> None:
    master = MasterSide(tmp_path / "master")
    await master.start()
    fill(master.store, 900)
    master.store._log.segments.take_first().unlink()
    replica = ReplicaSide(tmp_path / "replica", lambda: master.address)
    replica.replica.start()
    await caught_up(master, replica)
    assert replica.store.min_physical_offset == SEGMENT
    queues = {queue.queue_id for queue in master.store.queues()}
    for queue_id in queues:
        ours = read_all(replica.store, queue_id=queue_id)
        assert ours
        offset = ours[0].queue_offset
        assert ours == read_all(master.store, queue_id=queue_id, offset=offset)
    await replica.stop()
    await master.stop()
    assert log_bytes(tmp_path / "replica") == log_bytes(tmp_path / "master")


async def test_a_sync_master_and_its_replica(tmp_path: Path) -> None:
    async with pair(tmp_path, BrokerRole.SYNC_MASTER, slave_timeout=60_000) as (master, replica):
        await until(lambda: bool(master.master.status()))
        for number in range(50):
            put(master.store, b"%d" % number)
            waiting = master.store.end_chunk()
            assert waiting is not None
            assert (await waiting).name == "STORED"
            assert replica.store.max_physical_offset == master.store.max_physical_offset


async def test_an_empty_log_may_begin_far_away_and_then_nearer(tmp_path: Path) -> None:
    """Everything is indexed, and a stop does not visit each segment before the beginning."""
    store = open_store(tmp_path / "other", broker_role=BrokerRole.SLAVE)
    store.replication.log.begin_at(SEGMENT << 40)
    await until(lambda: store.dispatch_behind == 0)
    async with pair(tmp_path) as (master, _):
        fill(master.store, 20)
        store.replication.log.begin_at(0)
        data = master.store.replication.source.slice(0, SEGMENT)
        store.replication.log.append(data, check_crc=True)
        await until(lambda: bool(store.query(TOPIC, "a-7", 10, 0, 1 << 60)))
    store.stop()
