"""One connection of a replica: bad bytes, a full disk, and what it reports."""

from __future__ import annotations

import asyncio
import errno
import struct
from pathlib import Path

import pytest

from pyromq.replication import wire
from pyromq.replication.link import LinkError
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.message_store import MessageStore
from tests.support.loops import on_both_loops
from tests.support.patience import until
from tests.support.replication import ReplicaSide, ScriptedMaster, caught_up, log_bytes, pair
from tests.support.stores import put


def fill(store: MessageStore, count: int, tag: str = "a") -> None:
    for number in range(count):
        put(store, f"{tag}-{number}".encode() * 50, queue_id=number % 4, keys=f"{tag}-{number}")
    store.seal()


@pytest.mark.parametrize("fault", ["damaged", "repeated", "gap", "huge", "control", "cut"])
async def test_bad_bytes_of_a_java_master_leave_no_trace(
    tmp_path: Path, java: ScriptedMaster, master_log: bytes, fault: str
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


@on_both_loops
async def test_a_question_on_a_closed_connection_gets_its_reason(tmp_path: Path) -> None:
    """The master may go while the replica computes a checksum, between two questions."""
    async with pair(tmp_path) as (master, replica):
        await until(lambda: replica.replica.status().is_connected)
        link = replica.replica._link
        assert link is not None
        await master.master.stop()
        await asyncio.wait((link.closed,))
        with pytest.raises(LinkError, match="closed by the master"):
            await link.ask(checksums=[])
