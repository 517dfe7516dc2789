"""A replica, against pyromq's master and against a scripted Java master."""

from __future__ import annotations

import asyncio
import errno
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.replication import wire
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.message_store import MessageStore
from pyromq.store.replication_settings import BrokerRole
from tests.support.patience import until
from tests.support.replication import MasterSide, ReplicaSide, caught_up, log_bytes, pair
from tests.support.stores import SEGMENT, TOPIC, open_store, put, read_all


def fill(store: MessageStore, count: int, tag: str = "a") -> None:
    for number in range(count):
        put(store, f"{tag}-{number}".encode() * 50, queue_id=number % 4, keys=f"{tag}-{number}")
    store.seal()


class JavaMaster:
    """Speaks Java's format; the test says what it sends."""

    def __init__(self) -> None:
        self.requests: list[int] = []
        self.writer: asyncio.StreamWriter | None = None
        self.connections = 0
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        if self.writer is not None:
            self.writer.close()
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writer = writer
        try:
            while True:
                (offset,) = struct.unpack(">q", await reader.readexactly(8))
                if offset != -1:  # Java takes -1 for no request
                    self.requests.append(offset)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def send(self, offset: int, body: bytes) -> None:
        assert self.writer is not None
        self.writer.write(struct.pack(">qi", offset, len(body)) + body)


@pytest.fixture
async def java() -> AsyncIterator[JavaMaster]:
    master = JavaMaster()
    await master.start()
    yield master
    await master.stop()


@pytest.fixture
def master_log(tmp_path: Path) -> bytes:
    """The log of a master with a few segments."""
    store = open_store(tmp_path / "log")
    fill(store, 600)
    source, parts, offset = store.replication.source, [], 0
    while offset < source.end:
        parts.append(bytes(source.slice(offset, SEGMENT)))
        offset += len(parts[-1])
    store.stop()
    return b"".join(parts)


async def test_a_java_master_is_followed(
    tmp_path: Path, java: JavaMaster, master_log: bytes
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
    tmp_path: Path, java: JavaMaster, master_log: bytes
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


@pytest.mark.parametrize("fault", ["damaged", "repeated", "gap", "huge", "control", "cut"])
async def test_bad_bytes_of_a_java_master_leave_no_trace(
    tmp_path: Path, java: JavaMaster, master_log: bytes, fault: str
) -> None:
    replica = ReplicaSide(tmp_path / "replica", lambda: f"127.0.0.1:{java.port}")
    replica.replica.start()
    await until(lambda: java.requests == [0])
    size = int.from_bytes(master_log[:4], "big")
    java.send(0, master_log[:size])
    await until(lambda: replica.store.max_physical_offset == size)
    damaged = bytearray(master_log[size : 3 * size])
    damaged[100] ^= 1
    if fault == "damaged":
        java.send(size, bytes(damaged))
    elif fault == "repeated":
        java.send(0, master_log[:size])
    elif fault == "gap":
        java.send(2 * size, master_log[2 * size : 3 * size])
    elif fault == "huge":
        java.send(size, b"")
        assert java.writer is not None
        java.writer.write(struct.pack(">qi", size, 1 << 30))
    elif fault == "control":
        assert java.writer is not None
        java.writer.write(wire.encode_control({"version": 1}))
    else:
        assert java.writer is not None
        java.writer.write(struct.pack(">qi", size, size) + master_log[size : size + 5])
        java.writer.close()
    # It comes back and asks for what follows its last good record.
    await until(lambda: java.connections == 2 and len(java.requests) > 2)
    assert java.requests[-1] == replica.store.max_physical_offset == size
    java.send(size, master_log[size : 5 * size])
    await until(lambda: replica.store.max_physical_offset == 5 * size)
    await replica.stop()
    assert log_bytes(tmp_path / "replica")["0" * 20][: 5 * size] == master_log[: 5 * size]


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


async def test_only_flushed_bytes_are_reported_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, ha_report_flushed=True) as (master, replica):
        log = replica.store._log
        flush = CommitLog.flush
        with monkeypatch.context() as patched:
            patched.setattr(CommitLog, "flush", lambda it: None if it is log else flush(it))
            fill(master.store, 20)
            end = master.store.max_physical_offset
            await until(lambda: replica.store.max_physical_offset == end)
            assert master.master.status()[0].acked == 0
        fill(master.store, 1, "b")
        await caught_up(master, replica)
        assert replica.store.flushed_offset == master.store.max_physical_offset


async def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path) as (master, replica):
        fill(master.store, 10)
        await caught_up(master, replica)
        before = replica.store.max_physical_offset

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "no space left")

        with monkeypatch.context() as patched:
            patched.setattr(CommitLog, "append_raw", full)  # only replicas call it
            fill(master.store, 200, "b")
            link = replica.replica._link
            assert link is not None
            await until(lambda: link._is_full)
            assert replica.store.max_physical_offset == before
        await caught_up(master, replica)
        assert replica.replica._link is link
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
