from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest

from pyromq.client.consumer.locks import QueueLocks
from pyromq.client.consumer.membership import Membership
from pyromq.client.consumer.process_queue import Limits, ProcessQueue
from pyromq.client.consumer.push import consumer as push_consumer_module
from pyromq.client.consumer.push import ownership as ownership_module
from pyromq.client.consumer.push.options import Order, PushSettings
from pyromq.client.consumer.push.ownership import (
    BroadcastingOwnership,
    Claim,
    ConcurrentOwnership,
    OrderlyOwnership,
    ownership_of,
)
from pyromq.protocol.wire.bodies import MessageModel, MessageQueue
from pyromq.protocol.wire.codes import RequestCode
from tests.support.patience import until
from tests.unit.client.consumer.push.consuming import FIRST, SECOND, TOPICS, Handler, make
from tests.unit.client.fake_cluster import running_cluster
from tests.unit.client.sessions import session_at


class Locks:
    """Locks of a broker: another member may hold some of them."""

    def __init__(self) -> None:
        self.others: set[MessageQueue] = set()
        self.unlocked: list[MessageQueue] = []

    async def lock(self, queue: MessageQueue) -> bool:
        return queue not in self.others

    async def renew(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, bool]:
        return {queue: queue not in self.others for queue in queues}

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        self.unlocked.extend(queues)


async def not_waited() -> None:
    raise AssertionError


async def test_an_orderly_claim_is_a_lock_that_must_be_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    locks = Locks()
    ownership = OrderlyOwnership(cast(QueueLocks, locks))
    locks.others.add(SECOND)
    assert await ownership.claim(SECOND, not_waited) is None
    claim = await ownership.claim(FIRST, not_waited)
    assert claim is not None
    process_queue = ProcessQueue(FIRST, 0, Limits())
    assert not ownership.is_valid(process_queue)
    process_queue.last_locked = claim.locked_at
    assert ownership.is_valid(process_queue)
    assert await ownership.renew({FIRST: process_queue}) == []
    # A renewal that comes too late does not bring the lock back.
    monkeypatch.setattr(ownership_module, "VALID_SECONDS", -1.0)
    assert await ownership.renew({FIRST: process_queue}) == [FIRST]
    assert process_queue.last_locked is None
    await ownership.release([FIRST])
    await ownership.close([])
    await ownership.close([SECOND])
    assert locks.unlocked == [FIRST, SECOND]


async def test_broadcasting_needs_no_claim() -> None:
    ownership = BroadcastingOwnership()
    process_queue = ProcessQueue(FIRST, 0, Limits())
    assert await ownership.claim(FIRST, not_waited) == Claim(None)
    assert ownership.is_valid(process_queue)
    assert await ownership.renew({FIRST: process_queue}) == []
    await ownership.release([FIRST])
    await ownership.close([FIRST])


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, ConcurrentOwnership),
        ({"order": Order.ORDERLY}, OrderlyOwnership),
        ({"model": MessageModel.BROADCASTING}, BroadcastingOwnership),
        ({"model": MessageModel.BROADCASTING, "order": Order.ORDERLY}, BroadcastingOwnership),
    ],
)
async def test_settings_choose_the_rules(options: dict[str, Any], kind: type) -> None:
    async with session_at("127.0.0.1:1") as session:
        membership = Membership(session, "g", ["t"], not_waited)  # type: ignore[arg-type]
        ownership = ownership_of(PushSettings(**options), session, "g", membership)
        assert type(ownership) is kind


async def test_an_orderly_consumer_waits_for_locks_and_releases_them() -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        broker.locks["t", 0] = "somebody else"
        for number in (0, 1):
            await broker.put("t", number, b"%d" % number)
        async with make(cluster, handler, order=Order.ORDERLY) as consumer:
            await until(lambda: handler.seen == [b"1"])
            assert broker.locks["t", 1] == consumer.client_id
            del broker.locks["t", 0]
            await until(lambda: handler.seen == [b"1", b"0"])
        assert broker.locks == {}


async def test_a_lost_lock_restarts_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_consumer_module, "RENEW_SECONDS", 0.02)
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        await broker.put("t", 0, b"one")
        async with make(cluster, handler, order=Order.ORDERLY) as consumer:
            await until(lambda: handler.seen == [b"one"])
            # Another member takes over and consumes one message.
            await broker.put("t", 0, b"two")
            await until(lambda: consumer.offsets()[FIRST] == 2)
            broker.locks["t", 0] = "somebody else"
            await until(lambda: FIRST not in consumer.offsets())
            broker.offsets["g", "t", 0] = 3
            for body in (b"theirs", b"ours"):
                await broker.put("t", 0, body)
            del broker.locks["t", 0]
            await until(lambda: handler.seen[2:] == [b"ours"])


async def test_no_offset_is_committed_without_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The member that holds the lock may be further ahead."""
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        await broker.put("t", 0, b"one")
        async with make(
            cluster, handler, order=Order.ORDERLY, commit_interval=0.01, pull_batch_size=1
        ) as consumer:
            await until(lambda: broker.offsets.get(("g", "t", 0)) == 1)
            # As if this process had been stopped for a minute.
            monkeypatch.setattr(ownership_module, "VALID_SECONDS", -1.0)
            broker.offsets["g", "t", 0] = 5
            pulls = len(broker.seen(RequestCode.PULL_MESSAGE))
            consumer._queues.process_queues()[FIRST].put([], 3)  # type: ignore[union-attr]
            await broker.put("t", 0, b"two")
            await until(lambda: len(broker.seen(RequestCode.PULL_MESSAGE)) > pulls)
            await asyncio.sleep(0.05)
            for pull in broker.seen(RequestCode.PULL_MESSAGE)[pulls:]:
                assert not int(pull.ext_fields["sysFlag"]) & 1
        assert broker.offsets["g", "t", 0] == 5


async def test_a_locked_queue_does_not_block_the_start() -> None:
    async with running_cluster(TOPICS.copy()) as cluster:
        cluster.brokers[0].locks["t", 0] = "another"
        async with make(cluster, Handler(), order=Order.ORDERLY, request_timeout=60.0):
            assert cluster.brokers[0].seen(RequestCode.LOCK_BATCH_MQ)
