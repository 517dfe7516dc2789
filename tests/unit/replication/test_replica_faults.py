"""A replica whose connections are damaged, or whose disk is full: it comes back by itself."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from pyromq.replication import replica as replica_module
from pyromq.replication import wire
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.replicated import ReplicatedLog
from pyromq.store.results import PutError, PutStatus, StoreError
from tests.support.patience import until
from tests.support.proxy import TO_CLIENT, Corrupt, Duplicate, Fault, Proxy, first
from tests.support.replication import MasterSide, ReplicaSide, caught_up, log_bytes, pair
from tests.support.stores import read_all
from tests.unit.replication.test_replica import fill

#: A question begins after the enquiry.
_QUESTION_AT = len(wire.ENQUIRY)


async def follow_through(tmp_path: Path, *to_target: Fault) -> None:
    """Damage what a replica with messages says when it comes back; it must follow all the same."""
    async with pair(tmp_path, ha_housekeeping_interval=1500) as (master, replica):
        fill(master.store, 60)
        await caught_up(master, replica)
        await replica.stop()
        fill(master.store, 60, "b")
        with Proxy(master.address, first(to_target=to_target)) as proxy:
            again = ReplicaSide(
                tmp_path / "replica", lambda: proxy.address, ha_housekeeping_interval=1500
            )
            again.replica.start()
            end = master.store.max_physical_offset
            await until(lambda: again.store.max_physical_offset == end or again.stopped)
            assert again.stopped == []
            assert len(proxy.happened()) == len(to_target)
            await again.stop()
    assert log_bytes(tmp_path / "replica") == log_bytes(tmp_path / "master")


@pytest.mark.parametrize("place", range(8, 60, 3))
async def test_a_damaged_question_stops_no_replica(tmp_path: Path, place: int) -> None:
    """Checksums of another range must not look like another log."""
    await follow_through(tmp_path, Corrupt(_QUESTION_AT + place, 1))


async def test_a_repeated_question_stops_no_replica(tmp_path: Path) -> None:
    """The answer to the repetition must not be taken for that to the next question."""
    size = len(wire.encode_question({"checksums": [[0, 10_000]], "number": 1}))
    for more in range(-3, 6):
        await follow_through(tmp_path / str(more), Duplicate(_QUESTION_AT, size + more))


async def test_a_segment_that_ends_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some records of a frame are appended, others are not: none is appended twice."""
    async with pair(tmp_path) as (master, replica):
        fill(master.store, 10)
        await caught_up(master, replica)
        append, calls = CommitLog.append_raw, iter(range(1 << 20))

        def full_now_and_then(log: CommitLog, data: memoryview, timestamp: int) -> None:
            if next(calls) % 3 == 1:
                raise OSError(28, "no space left")
            append(log, data, timestamp)

        monkeypatch.setattr(CommitLog, "append_raw", full_now_and_then)
        link = replica.replica._link
        fill(master.store, 900, "b")
        await caught_up(master, replica)
        assert replica.replica._link is link
    assert log_bytes(tmp_path / "replica") == log_bytes(tmp_path / "master")


async def test_entries_without_room_are_added_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master sends nothing more meanwhile."""
    async with pair(tmp_path) as (master, replica):
        fill(master.store, 10)
        await caught_up(master, replica)

        def full(*_: object) -> None:
            raise PutError(PutStatus.CREATE_MAPEDFILE_FAILED, "no space left")

        with monkeypatch.context() as patched:
            own = {id(queue) for queue in replica.store.queues()}
            extend = ConsumeQueue.extend
            patched.setattr(
                ConsumeQueue,
                "extend",
                lambda queue, count=1: full() if id(queue) in own else extend(queue, count),
            )
            fill(master.store, 40, "b")
            end = master.store.max_physical_offset
            await until(lambda: replica.store.max_physical_offset == end)
            await until(lambda: master.master.status()[0].acked == end)
        await until(lambda: read_all(replica.store) == read_all(master.store))


@pytest.mark.parametrize(
    "error",
    [
        StoreError("rebuild the queues"),
        PutError(PutStatus.CREATE_MAPEDFILE_FAILED, "no space left"),
        OSError(28, "no space left"),
        KeyError("a bug"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_no_error_ends_the_attempts_to_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    master = MasterSide(tmp_path / "master")
    await master.start()
    fill(master.store, 20)
    replica = ReplicaSide(tmp_path / "replica", lambda: master.address)
    failed = asyncio.Event()

    def fail(_: ReplicatedLog) -> None:
        failed.set()
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(ReplicatedLog, "finish", fail)
        replica.replica.start()
        await failed.wait()
    await caught_up(master, replica)
    await replica.stop()
    await master.stop()


async def test_what_is_not_flushed_is_not_reported_when_a_connection_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With haReportFlushed, the first offset of a connection counts as a report too."""
    async with pair(tmp_path, ha_report_flushed=True, flush_commit_log_least_pages=0) as (
        master,
        replica,
    ):
        log, flush = replica.store._log, CommitLog.flush
        fill(master.store, 20)
        await caught_up(master, replica)
        with monkeypatch.context() as patched:
            patched.setattr(CommitLog, "flush", lambda it: None if it is log else flush(it))
            before = replica.store.max_physical_offset
            fill(master.store, 20, "b")
            end = master.store.max_physical_offset
            await until(lambda: replica.store.max_physical_offset == end)
            link = replica.replica._link
            assert link is not None
            link.close("a test")
            began = time.monotonic()
            # It connects again in less than a second, but has nothing to say.
            await until(lambda: time.monotonic() > began + 1.0)
            assert master.store.replication.replicated_offset == before
        await caught_up(master, replica)
        assert replica.store.flushed_offset == end


async def test_a_master_that_is_silent_for_a_while_is_not_taken_for_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's format has no checksums; but a Java master may take the place of ours."""
    monkeypatch.setattr(replica_module, "_HELLO_SECONDS", 0.1)
    monkeypatch.setattr(replica_module, "_MAX_BACKOFF", 0.1)
    async with pair(tmp_path) as (master, replica):
        with Proxy(master.address) as proxy:
            again = ReplicaSide(tmp_path / "again", lambda: proxy.address)
            again.replica.start()
            fill(master.store, 20)
            await caught_up(master, again)
            proxy.stall(TO_CLIENT)
            proxy.cut()
            await until(lambda: proxy.connections > 3)
            assert again.examined == []
            proxy.resume()
            fill(master.store, 20, "b")
            await caught_up(master, again)
            proxy.stall(TO_CLIENT)
            proxy.cut()
            await until(lambda: bool(again.examined))
            await again.stop()
        await caught_up(master, replica)
