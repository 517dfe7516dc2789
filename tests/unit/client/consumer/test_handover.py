from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest

from pyromq.client.consumer import handover as handover_module
from pyromq.client.consumer.handover import Handover
from pyromq.client.consumer.membership import Membership
from pyromq.client.options import Settings
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import ConsumerData, HeartbeatData, MessageQueue
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from tests.support.patience import DEADLINE, until
from tests.unit.client.fake_cluster import FakeBroker, FakeCluster, running_cluster

TOPICS = {"t": {"b0": 2}}
FIRST, SECOND = (MessageQueue("t", "b0", number) for number in range(2))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover_module, "_CLEAN_LEAVE_SECONDS", 0.0)


class Member:
    def __init__(self, cluster: FakeCluster, patience: float) -> None:
        self.session = Session(
            Settings.of(cluster.namesrv, {}),
            lambda client_id: HeartbeatData(client_id, consumer_data_set=[ConsumerData("g")]),
            handlers={
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda *_: (
                    self.membership.members_changed()
                )
            },
        )
        self.membership = Membership(self.session, "g", ["t"], self._assign)
        self.handover = Handover(self.session, "g", self.membership, patience=patience)
        self.waits = 0

    async def take(self, queue: MessageQueue) -> None:
        await self.handover.take(queue, self._waiting)

    async def _assign(self, queues: Collection[MessageQueue]) -> None:
        pass

    async def _waiting(self) -> None:
        self.waits += 1


@asynccontextmanager
async def member_of(cluster: FakeCluster, patience: float = DEADLINE) -> AsyncIterator[Member]:
    member = Member(cluster, patience)
    member.session.start()
    try:
        await member.membership.join()
        yield member
        await member.handover.close()
    finally:
        await member.membership.stop()
        await member.session.close(consumer_group="g")


def others(broker: FakeBroker, *names: str) -> None:
    """Members that exist only in the broker's list."""
    for name in names:
        broker.members[name] = broker.writers[0]


async def test_a_queue_is_taken_once_its_owner_releases_it() -> None:
    async with (
        running_cluster(TOPICS.copy()) as cluster,
        member_of(cluster) as one,
        member_of(cluster) as two,
    ):
        await one.take(FIRST)
        await two.take(SECOND)
        taking = asyncio.create_task(two.take(FIRST))
        await until(lambda: two.waits)
        await asyncio.sleep(0.05)
        assert not taking.done()
        await one.handover.release([FIRST, SECOND])
        await taking
        assert cluster.brokers[0].locks == dict.fromkeys(
            [("t", 0), ("t", 1)], two.session.client_id
        )
        assert (one.waits, two.waits) == (0, 1)


async def test_close_releases_everything() -> None:
    async with running_cluster(TOPICS.copy()) as cluster:
        async with member_of(cluster) as one:
            await one.take(FIRST)
            await one.take(SECOND)
            assert len(cluster.brokers[0].locks) == 2
        assert cluster.brokers[0].locks == {}


async def test_a_cancelled_caller_leaves_no_lock() -> None:
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        async with member_of(cluster) as one:
            broker.silent.add(RequestCode.LOCK_BATCH_MQ)
            taking = asyncio.create_task(one.take(FIRST))
            await until(lambda: broker.seen(RequestCode.LOCK_BATCH_MQ))
            broker.locks["t", 0] = one.session.client_id  # the response was lost
            taking.cancel()
            await asyncio.wait([taking])
            await one.handover.release([FIRST])
            assert broker.locks == {}


async def test_the_lock_of_a_dead_member_is_not_waited_for() -> None:
    async with running_cluster(TOPICS.copy()) as cluster, member_of(cluster) as one:
        broker = cluster.brokers[0]
        others(broker, "dead", "alive")
        broker.locks |= {("t", 0): "dead", ("t", 1): "alive"}
        broker.notify_members()
        await until(lambda: one.membership._seen["t"] >= {"dead", "alive"})
        taking = [asyncio.create_task(one.take(queue)) for queue in (FIRST, SECOND)]
        await until(lambda: one.waits == 2)
        del broker.members["dead"]
        broker.notify_members()
        await taking[0]
        assert broker.locks == {("t", 0): one.session.client_id, ("t", 1): "alive"}
        assert not taking[1].done()
        taking[1].cancel()


async def test_a_lone_member_does_not_wait() -> None:
    async with running_cluster(TOPICS.copy()) as cluster, member_of(cluster) as one:
        broker = cluster.brokers[0]
        broker.locks["t", 0] = "died before we came"
        await one.take(FIRST)
        others(broker, "dead")
        broker.notify_members()
        await until(lambda: "dead" in one.membership._seen["t"])
        broker.locks["t", 1] = "dead"
        del broker.members["dead"]
        broker.notify_members()
        await until(lambda: "dead" in one.membership.departed())
        await one.take(SECOND)
        assert one.waits == 0
        # The next member waits for us, not for the lease of the dead one.
        assert broker.locks == {
            ("t", 0): "died before we came",
            ("t", 1): one.session.client_id,
        }


async def test_waiting_for_a_lock_is_limited(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover_module, "RENEW_SECONDS", 0.01)
    async with running_cluster(TOPICS.copy()) as cluster, member_of(cluster, 0.05) as one:
        broker = cluster.brokers[0]
        others(broker, "hangs")
        broker.locks["t", 0] = "hangs"
        await one.take(FIRST)
        assert "still locked after 0.05 s" in caplog.text
        # It gets the lock as soon as it is free.
        del broker.locks["t", 0]
        await until(lambda: broker.locks.get(("t", 0)) == one.session.client_id)


async def test_a_broker_without_locks_is_not_waited_for() -> None:
    async with running_cluster(TOPICS.copy()) as cluster, member_of(cluster) as one:
        others(cluster.brokers[0], "another")
        cluster.brokers[0].refusals[RequestCode.LOCK_BATCH_MQ] = [
            (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no")
        ]
        await one.take(FIRST)
        await one.take(MessageQueue("t", "no-master", 0))
        assert one.waits == 0


async def test_thousands_of_queues_share_requests() -> None:
    queues = [MessageQueue("t", "b0", number) for number in range(2500)]
    async with running_cluster({"t": {"b0": 2500}}) as cluster, member_of(cluster) as one:
        broker = cluster.brokers[0]
        others(broker, "another")
        broker.locks |= {("t", number): "another" for number in range(0, 2500, 2)}
        taking = [asyncio.create_task(one.take(queue)) for queue in queues]
        await until(lambda: sum(task.done() for task in taking) == 1250)
        assert one.waits == 1250
        assert len(broker.seen(RequestCode.LOCK_BATCH_MQ)) <= 3 + 2 * 50
        broker.locks = {at: who for at, who in broker.locks.items() if who != "another"}
        await asyncio.wait(taking)
        assert len(broker.locks) == 2500
