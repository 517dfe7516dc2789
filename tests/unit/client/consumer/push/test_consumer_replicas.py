"""Push consumers while their master is away, and when it is back."""

from __future__ import annotations

import asyncio

import pytest

from pyromq.client.consumer import membership as membership_module
from pyromq.client.consumer.locks import RENEW_SECONDS
from pyromq.client.consumer.push import consumer as push_consumer_module
from pyromq.client.consumer.push import ownership as ownership_module
from pyromq.client.consumer.push.options import Order
from pyromq.client.session import away as away_module
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import LanguageCode, RequestCode
from tests.support.patience import until
from tests.unit.client.consumer.push.consuming import Handler, make
from tests.unit.client.fake_cluster import running_pair

TOPICS = {"t": {"b1": 1}, "%RETRY%g": {"b1": 1}}
QUEUE = MessageQueue("t", "b1", 0)
QUICK = {"commit_interval": 0.02, "route_interval": 0.05, "heartbeat_interval": 0.05}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "REBALANCE_SECONDS", 0.05)
    monkeypatch.setattr(away_module, "MAX_PAUSE_SECONDS", 0.05)


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("is_listed", [True, False])
async def test_a_consumer_goes_on_from_the_replica_and_returns(
    order: Order, is_listed: bool
) -> None:
    """Whether the NameServers notice that the master is away, or not."""
    handler = Handler()
    async with running_pair(TOPICS.copy()) as (cluster, master, replica):
        await master.put("t", 0, b"before")
        async with make(cluster, handler, order=order, **QUICK) as consumer:
            await until(lambda: master.offsets.get(("g", "t", 0)) == 1)
            await master.stop()
            master.is_listed = is_listed
            await replica.put("t", 0, b"meanwhile")
            await until(lambda: handler.seen == [b"before", b"meanwhile"])
            if not is_listed:
                await until(lambda: replica.offsets.get(("g", "t", 0)) == 2)
            # A killed broker has lost its last seconds.
            master.offsets["g", "t", 0] = 0
            pulls = len(master.seen(RequestCode.PULL_MESSAGE))
            await master.restart()
            master.is_listed = True
            await until(lambda: master.offsets["g", "t", 0] == 2)
            await until(lambda: not consumer._session.away)
            await replica.put("t", 0, b"after")
            async with master.arrived:  # either of them may hold the poll
                master.arrived.notify_all()
            await until(lambda: len(master.seen(RequestCode.PULL_MESSAGE)) > pulls)
            await until(lambda: master.offsets["g", "t", 0] == 3)
        assert handler.seen == [b"before", b"meanwhile", b"after"]


async def test_an_orderly_consumer_keeps_its_place_when_its_lock_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only a master has locks, so an orderly consumer waits; then it goes on where it was."""
    monkeypatch.setattr(push_consumer_module, "RENEW_SECONDS", 0.05)
    handler = Handler()
    async with running_pair(TOPICS.copy()) as (cluster, master, replica):
        await master.put("t", 0, b"before")
        async with make(cluster, handler, order=Order.ORDERLY, **QUICK):
            await until(lambda: master.offsets.get(("g", "t", 0)) == 1)
            await master.stop()
            master.is_listed = False
            await replica.put("t", 0, b"meanwhile")
            await until(lambda: replica.offsets.get(("g", "t", 0)) == 2)
            monkeypatch.setattr(ownership_module, "VALID_SECONDS", -1.0)
            await replica.put("t", 0, b"without a lock")
            await asyncio.sleep(0.1)
            assert handler.seen == [b"before", b"meanwhile"]
            asked = len(master.seen(RequestCode.LOCK_BATCH_MQ))
            await master.restart()
            master.is_listed = True
            # The lock is lost, and taken again; the master has an old offset.
            await until(lambda: len(master.seen(RequestCode.LOCK_BATCH_MQ)) > asked + 2)
            assert master.offsets["g", "t", 0] == 1
            monkeypatch.setattr(ownership_module, "VALID_SECONDS", 60.0)
            await until(lambda: master.offsets["g", "t", 0] == 3)
        assert handler.seen == [b"before", b"meanwhile", b"without a lock"]


async def test_a_master_that_forgot_a_commit_gets_it_again() -> None:
    """Although nothing new is consumed: the handler of the next message is still at work."""
    handler = Handler()
    async with running_pair(TOPICS.copy()) as (cluster, master, _):
        master.language = LanguageCode.JAVA
        await master.put("t", 0, b"consumed")
        async with make(cluster, handler, **QUICK):
            await until(lambda: master.offsets.get(("g", "t", 0)) == 1)
            handler.gate.clear()
            await master.put("t", 0, b"in hand")
            await until(lambda: handler.seen == [b"consumed", b"in hand"])
            await master.stop()
            master.offsets.clear()
            await master.restart()
            await until(lambda: master.offsets.get(("g", "t", 0)) == 1)
            handler.gate.set()


async def test_locks_are_asked_for_more_often_while_their_broker_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(push_consumer_module, "RETRY_SECONDS", 0.5)
    async with (
        running_pair(TOPICS.copy()) as (cluster, master, _),
        make(cluster, Handler(), order=Order.ORDERLY, **QUICK) as consumer,
    ):
        await until(lambda: QUEUE in consumer.offsets())
        for is_listed, seconds in ((True, RENEW_SECONDS), (False, 0.5), (True, RENEW_SECONDS)):
            master.is_listed = is_listed
            for topic in TOPICS:
                await consumer._session.routes.refresh(topic)
            await consumer._queues.renew_locks()
            assert consumer._seconds_to_renewal() == seconds
