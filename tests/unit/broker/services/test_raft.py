"""What the broker does with the events of its node; whole groups are in tests/integration."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.client import Message
from pyromq.protocol.message.record import decode_record
from pyromq.protocol.names import RAFT_TOPIC
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.results import PutError, PutStatus
from tests.support.patience import until
from tests.support.raft_brokers import RaftBrokers


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[RaftBrokers]:
    group = await RaftBrokers(tmp_path, count=1).start()
    yield group
    await group.stop()


async def test_old_entries_are_committed_behind_an_entry_of_the_leader(tmp_path: Path) -> None:
    """Java counts them; that can take a committed entry back (docs/adr, dledger-rules)."""
    group = await RaftBrokers(tmp_path).start()
    async with group.producer() as producer:
        for number in range(5):
            await group.sent(producer, Message("T", b"%d" % number))
    await group.settled()
    for node in group.ids:
        await group.brokers.pop(node).stop()
        shutil.rmtree(tmp_path / node / "consumequeue")
        for path in (tmp_path / node / f"dledger-{node}").glob("checkpoint*"):
            path.unlink()
        (tmp_path / node / f"dledger-{node}" / "currterm").write_text("currTerm=7\nvoteLeader=\n")
    for node in group.ids[:2]:
        await group.start_broker(node)
    leader = await group.leader()
    log = group.log(leader)
    assert log.end_index == 5
    assert log.end_term >= 7
    own = decode_record(bytes(log.entry(5).body))
    assert (own.topic, own.physical_offset) == (RAFT_TOPIC, log.place(5).position + 48)
    store = group.brokers[leader].store
    assert store is not None
    assert sum(store.max_offset("T", queue) for queue in range(8)) == 5
    assert RAFT_TOPIC not in store.queue_counts()
    async with group.producer() as producer:
        await group.sent(producer, Message("T", b"next"))
    await group.stop()


async def test_committed_messages_wait_for_room_on_the_disk(
    group: RaftBrokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_full = True
    real = ConsumeQueue.extend

    def extend(self: ConsumeQueue, count: int = 1) -> None:
        if is_full:
            raise PutError(PutStatus.CREATE_MAPEDFILE_FAILED, "disk full")
        real(self, count)

    monkeypatch.setattr("pyromq.broker.services.raft._RETRY_SECONDS", 0.01)
    monkeypatch.setattr(ConsumeQueue, "extend", extend)
    async with group.producer() as producer:
        await group.sent(producer, Message("T", b"one"))
    store = group.brokers["n0"].store
    assert store is not None
    assert sum(store.max_offset("T", queue) for queue in range(8)) == 0
    assert caplog.text.count("wait for room on the disk") >= 1
    is_full = False
    await until(lambda: sum(store.max_offset("T", queue) for queue in range(8)) == 1)


async def test_a_broker_whose_committed_entries_are_gone_stops(group: RaftBrokers) -> None:
    raft = group.brokers["n0"].raft
    assert raft is not None
    raft.committed_lost(4, 9)
    assert "the leader removed entries 5 to 9, which were committed" in group.failures["n0"]
    store = group.brokers["n0"].store
    assert store is not None
    assert store.agreement is not None
    assert not store.agreement.is_leading


async def test_figures_and_following(group: RaftBrokers) -> None:
    raft = group.brokers["n0"].raft
    assert raft is not None
    assert not raft.is_following()
    figures = raft.figures()
    assert (figures["role"], figures["brokerId"]) == ("SYNC_MASTER", 0)
    assert figures["raft"]["peers"] == []
    assert await raft.transfer("n0") is not None
