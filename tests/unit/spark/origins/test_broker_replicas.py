"""A master and its replica as an origin: the same records from either, and losses from none."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pyromq.client.consumer.subscription import Subscription
from pyromq.protocol.message.bulk import read_columns
from pyromq.protocol.wire.codes import RequestCode
from pyromq.spark.origins import broker as broker_module
from pyromq.spark.origins import window
from pyromq.spark.origins.broker import BrokerOrigin, ConnectionSettings
from pyromq.spark.origins.origin import Bounds, Queue, QueueRange, RecordBlock, UnreachableError
from tests.support.patience import DEADLINE
from tests.unit.client.fake_cluster import FakeBroker, FakeCluster, cluster_in_a_thread

QUEUE = Queue("t", "b1", 0)
COUNT = 30


class Pair:
    """Two brokers with 30 messages, and a NameServer."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.master = cluster.brokers[1]
        self.replica = FakeBroker(cluster, "b1", 1)
        cluster.brokers.append(self.replica)
        cluster.call(self._start())

    async def _start(self) -> None:
        await self.replica.start()
        for broker in (self.master, self.replica):
            for number in range(COUNT):
                await broker.put("t", 0, b"%d" % number)

    def stop_master(self, *, is_listed: bool) -> None:
        self.master.is_listed = is_listed
        self.cluster.call(self.master.stop())

    def start_master(self) -> None:
        self.master.is_listed = True
        self.cluster.call(self.master.restart())

    def origin(self, *, patience: float = DEADLINE, tags: str = "") -> BrokerOrigin:
        settings = ConnectionSettings(
            (self.cluster.namesrv,), request_timeout=DEADLINE, reconnect_timeout=patience
        )
        return BrokerOrigin(settings, subscription=Subscription.tags(tags) if tags else None)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with cluster_in_a_thread({"t": {"b1": 1}}, brokers=2) as cluster:
        yield Pair(cluster)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "_RECONNECT_PAUSE", 0.01)


def offsets_of(block: object) -> list[int]:
    assert isinstance(block, RecordBlock), block
    offsets: list[int] = read_columns(block.buffer, block.starts).column("queue_offset").tolist()
    return offsets


def read(origin: BrokerOrigin, start: int = 0, end: int = COUNT) -> list[int]:
    return [
        offset
        for block in origin.blocks(QueueRange(QUEUE, start, end))
        for offset in offsets_of(block)
    ]


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_read_goes_on_from_the_replica(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, is_listed: bool
) -> None:
    """Whether or not the NameServers have noticed."""
    monkeypatch.setattr(window, "_PULL_MESSAGES", 4)
    for limit in ("_MIN_PULLS", "_MAX_PULLS", "_MAX_SMALL_PULLS"):
        monkeypatch.setattr(window, limit, 1)  # not everything is there before the master stops
    origin = pair.origin()
    found: list[int] = []
    for block in origin.blocks(QueueRange(QUEUE, 0, COUNT)):
        found += offsets_of(block)
        if len(found) == 4:
            pair.stop_master(is_listed=is_listed)
    assert found == list(range(COUNT))
    assert pair.replica.seen(RequestCode.PULL_MESSAGE)
    assert read(origin) == found
    origin.close()


def test_a_refused_connection_costs_no_time(pair: Pair) -> None:
    pair.stop_master(is_listed=True)
    origin = pair.origin()
    began = time.monotonic()
    assert read(origin) == list(range(COUNT))
    # Without the replica, the read would wait for the master for this long.
    assert time.monotonic() - began < DEADLINE / 2
    origin.close()


@pytest.mark.parametrize("tags", ["", "none || other"])
@pytest.mark.parametrize("is_listed", [True, False])
def test_a_replica_that_lacks_records_loses_none(pair: Pair, is_listed: bool, tags: str) -> None:
    del pair.replica.queues["t", 0][-10:]
    pair.stop_master(is_listed=is_listed)
    hasty = pair.origin(patience=0.05, tags=tags)
    with pytest.raises(UnreachableError, match="lacks offset"):
        read(hasty, 25)
    hasty.close()
    origin = pair.origin(tags=tags)
    blocks = origin.blocks(QueueRange(QUEUE, 0, COUNT))
    found = offsets_of(next(blocks))
    assert found == list(range(20))
    pair.start_master()
    found += [offset for block in blocks for offset in offsets_of(block)]
    assert found == list(range(COUNT))
    origin.close()


def test_only_a_master_tells_where_a_queue_ends(pair: Pair) -> None:
    del pair.replica.queues["t", 0][-10:]
    origin = pair.origin()
    assert origin.bounds([QUEUE]) == {QUEUE: Bounds(0, 30)}
    assert origin.latest_bounds([QUEUE]) == ({QUEUE: Bounds(0, 30)}, frozenset())
    pair.stop_master(is_listed=False)
    origin.close()
    origin = pair.origin()
    wanted = rf"b1 has no master: only replica {pair.replica.address} \(id 1\)"
    with pytest.raises(UnreachableError, match=wanted):
        origin.bounds([QUEUE])
    with pytest.raises(UnreachableError, match=wanted):
        origin.offsets_at({QUEUE: 1})
    assert origin.latest_bounds([QUEUE]) == ({QUEUE: Bounds(0, 20)}, frozenset({QUEUE}))
    pair.start_master()
    assert origin.latest_bounds([QUEUE]) == ({QUEUE: Bounds(0, 30)}, frozenset())
    origin.close()


def test_a_running_stream_asks_the_replica_at_once(pair: Pair) -> None:
    pair.stop_master(is_listed=True)
    origin = pair.origin()
    began = time.monotonic()
    assert origin.latest_bounds([QUEUE]) == ({QUEUE: Bounds(0, 30)}, frozenset({QUEUE}))
    assert time.monotonic() - began < DEADLINE / 2
    pair.cluster.call(pair.replica.stop())
    origin.close()
    hasty = BrokerOrigin(ConnectionSettings((pair.cluster.namesrv,), request_timeout=0.1))
    with pytest.raises(UnreachableError, match=pair.master.address):
        hasty.latest_bounds([QUEUE])
    hasty.close()


def test_commits_go_to_a_replica_only_without_a_master(pair: Pair) -> None:
    origin = pair.origin()
    origin.commit_offsets("g", {QUEUE: 3})
    pair.stop_master(is_listed=False)
    origin.close()
    origin = pair.origin()
    origin.commit_offsets("g", {QUEUE: 4})
    origin.close()
    assert pair.master.offsets == {("g", "t", 0): 3}
    assert pair.replica.offsets == {("g", "t", 0): 4}
