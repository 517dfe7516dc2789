from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.replication.acknowledged import ReplicaGate
from pyromq.store.acknowledgement import AckOutcome
from pyromq.store.message_store import MessageStore
from tests.support.stores import open_store, put


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    store = open_store(tmp_path, slave_timeout=20, ha_slave_fallbehind_max=10_000)
    for _ in range(3):
        put(store, bytes(100))
    store.seal()
    return store


async def test_a_chunk_passes_when_a_replica_has_it(store: MessageStore) -> None:
    gate = ReplicaGate(store.config, store.replication, lambda _: 0)
    end = store.max_physical_offset
    waiting = gate.wait(end)
    gate.reported(end - 1)
    assert not waiting.done()
    gate.reported(end)
    assert await waiting is AckOutcome.STORED
    assert store.replication.replicated_offset == end
    store.stop()


async def test_reports_never_move_the_mark_back(store: MessageStore) -> None:
    gate = ReplicaGate(store.config, store.replication, lambda _: 0)
    gate.reported(100)
    gate.reported(50)
    assert store.replication.replicated_offset == 100
    store.stop()


async def test_without_a_replica_at_hand_nothing_waits(store: MessageStore) -> None:
    lags: list[int | None] = [None, 10_000, 20_000]
    while lags:
        gate = ReplicaGate(store.config, store.replication, lambda _: lags.pop())
        waiting = gate.wait(store.max_physical_offset)
        assert waiting.done()
        assert waiting.result() is AckOutcome.NO_REPLICA
    store.stop()


async def test_a_replica_that_says_nothing_times_out(store: MessageStore) -> None:
    gate = ReplicaGate(store.config, store.replication, lambda _: 9_999)
    assert await gate.wait(store.max_physical_offset) is AckOutcome.REPLICA_TIMED_OUT
    store.stop()
