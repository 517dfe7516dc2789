from __future__ import annotations

from pathlib import Path

from pyromq.store.acknowledgement import AckOutcome
from pyromq.store.config import FlushDiskType
from tests.support.patience import until
from tests.support.stores import open_store, put
from tests.unit.store.test_acknowledgement import Gate


async def test_chunks_wait_at_the_gates_that_are_required(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    replicas = Gate()
    assert not store.has_gate
    put(store)
    assert store.end_chunk() is None

    store.replication.require_replicas(replicas)
    assert store.has_gate
    assert store.end_chunk() is None  # nothing was put since
    put(store)
    waiting = store.end_chunk()
    assert waiting is replicas.futures[0]
    assert store.end_chunk() is None  # one waiter per chunk

    store.replication.require_replicas(None)
    put(store)
    assert store.end_chunk() is None
    store.stop()


async def test_a_chunk_waits_for_fsync_and_replica(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    replicas = Gate()
    store.replication.require_replicas(replicas)
    put(store)
    waiting = store.end_chunk()
    assert waiting is not None
    await until(lambda: store.flushed_offset == store.max_physical_offset)
    assert not waiting.done()
    replicas.futures[0].set_result(AckOutcome.STORED)
    assert await waiting is AckOutcome.STORED
    store.stop()


async def test_appends_are_announced_once_per_chunk(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    ends: list[int] = []
    store.replication.on_append(lambda: ends.append(store.replication.source.end))
    for _ in range(3):
        put(store)
        put(store)
        store.seal()
    assert ends == sorted(set(ends))
    assert (len(ends), ends[-1]) == (3, store.max_physical_offset)
    store.replication.on_append(None)
    put(store)
    store.seal()
    assert len(ends) == 3
    store.stop()


async def test_what_is_on_disk_can_be_awaited(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store)
    store.seal()
    assert await store.replication.flushed(store.max_physical_offset) is AckOutcome.STORED
    assert store.flushed_offset == store.max_physical_offset
    store.stop()


async def test_the_replicated_mark(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store)
    store.seal()
    assert store.replication.replicated_offset == 0
    store.replication.move_replicated(10)
    assert store.replication.replicated_offset == 10
    store.stop()
