from __future__ import annotations

import asyncio
import json
import logging
import tracemalloc

import pytest

from pyromq.broker.state.queue_locks import LEASE_SECONDS, QueueLockTable
from pyromq.protocol.wire.bodies import LockBatchRequestBody, MessageQueue
from tests.unit.broker.fakes import FakeConnection

ONE, TWO, THREE = (MessageQueue("t", "broker-a", number) for number in range(3))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def locks(clock: Clock) -> QueueLockTable:
    return QueueLockTable(clock)


def test_a_free_queue_is_locked_for_one_client(locks: QueueLockTable) -> None:
    assert locks.lock("g", {ONE, TWO}, "c1") == {ONE, TWO}
    assert locks.lock("g", {TWO, THREE}, "c2") == {THREE}
    assert [locks.owner("g", queue) for queue in (ONE, TWO, THREE)] == ["c1", "c1", "c2"]


def test_the_owner_may_lock_a_queue_again(locks: QueueLockTable) -> None:
    assert locks.lock("g", {ONE}, "c1") == {ONE}
    assert locks.lock("g", {ONE}, "c1") == {ONE}
    assert len(locks) == 1


def test_groups_are_independent(locks: QueueLockTable) -> None:
    assert locks.lock("g", {ONE}, "c1") == {ONE}
    assert locks.lock("h", {ONE}, "c2") == {ONE}


def test_queues_of_other_brokers_and_topics_are_other_queues(locks: QueueLockTable) -> None:
    others = {MessageQueue("t", "broker-b", 0), MessageQueue("u", "broker-a", 0)}
    assert locks.lock("g", {ONE}, "c1") == {ONE}
    assert locks.lock("g", others, "c2") == others


def test_a_lock_may_end_with_its_connection(locks: QueueLockTable) -> None:
    connection = FakeConnection()
    locks.lock("g", {ONE}, "c1", connection)
    locks.lock("g", {TWO}, "c1")
    assert locks.lock("g", {ONE, TWO}, "c2") == set()
    connection.close()
    assert locks.lock("g", {ONE, TWO}, "c2") == {ONE}


def test_a_renewed_lock_ends_with_the_new_connection(
    locks: QueueLockTable,
) -> None:
    old, new = FakeConnection(), FakeConnection()
    locks.lock("g", {ONE}, "c1", old)
    locks.lock("g", {ONE}, "c1", new)
    old.close()
    assert locks.owner("g", ONE) == "c1"
    new.close()
    assert locks.owner("g", ONE) is None


def test_a_lock_ends_when_its_owner_is_silent(locks: QueueLockTable, clock: Clock) -> None:
    locks.lock("g", {ONE}, "c1")
    clock.now += LEASE_SECONDS
    assert locks.lock("g", {ONE}, "c2") == set()
    clock.now += 0.001
    assert locks.owner("g", ONE) is None
    assert locks.lock("g", {ONE}, "c2") == {ONE}
    assert locks.lock("g", {ONE}, "c1") == set()


def test_each_request_of_the_owner_renews_its_lock(locks: QueueLockTable, clock: Clock) -> None:
    locks.lock("g", {ONE}, "c1")
    for _ in range(3):
        clock.now += LEASE_SECONDS - 1
        assert locks.lock("g", {ONE}, "c1") == {ONE}
    assert locks.lock("g", {ONE}, "c2") == set()


def test_the_owner_returns_after_its_lease(locks: QueueLockTable, clock: Clock) -> None:
    locks.lock("g", {ONE}, "c1")
    clock.now += 2 * LEASE_SECONDS
    assert locks.lock("g", {ONE}, "c1") == {ONE}
    assert locks.lock("g", {ONE}, "c2") == set()


def test_an_unlocked_queue_is_free(locks: QueueLockTable) -> None:
    locks.lock("g", {ONE, TWO}, "c1")
    locks.unlock("g", {ONE}, "c1")
    assert locks.lock("g", {ONE, TWO}, "c2") == {ONE}
    locks.unlock("g", {TWO}, "c1")
    locks.unlock("g", {ONE}, "c2")
    assert len(locks) == 0


def test_a_client_cannot_unlock_queues_of_others(locks: QueueLockTable) -> None:
    locks.lock("g", {ONE}, "c1")
    locks.unlock("g", {ONE, TWO}, "c2")
    locks.unlock("h", {ONE}, "c1")
    assert locks.owner("g", ONE) == "c1"


async def test_expired_locks_are_dropped(locks: QueueLockTable, clock: Clock) -> None:
    locks.lock("g", {ONE, TWO}, "c1")
    clock.now += LEASE_SECONDS - 1
    locks.lock("g", {ONE}, "c1")
    locks.lock("h", {ONE}, "c2")
    clock.now += 2
    await locks.expire()
    assert len(locks) == 2
    assert locks.owner("g", ONE) == "c1"
    clock.now += LEASE_SECONDS
    await locks.expire()
    assert len(locks) == 0


def test_an_empty_request_leaves_no_group(locks: QueueLockTable) -> None:
    assert locks.lock("g", set(), "c1") == set()
    assert len(locks) == 0
    assert locks.owner("g", ONE) is None


def test_all_queues_of_a_request_are_one_log_line(
    locks: QueueLockTable, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    many = [MessageQueue("t", "broker-a", number) for number in range(100)]
    locks.lock("g", many, "c1")
    locks.lock("g", many, "c1")
    locks.lock("g", many[:1], "c2")
    locks.unlock("g", many[:2], "c1")
    locks.unlock("g", many[:1], "c1")
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("group g: locked for c1: queue 0 of topic t, queue 1 of topic t, ")
    assert lines[0].endswith("queue 15 of topic t and 84 others")
    assert lines[1:] == [
        "group g: not locked for c2: queue 0 of topic t (c1 holds it)",
        "group g: unlocked by c1: queue 0 of topic t, queue 1 of topic t",
        "group g: not unlocked by c1: queue 0 of topic t (not locked)",
    ]


def test_the_number_of_locks_is_capped(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    locks = QueueLockTable(clock, max_locks=lambda: 3)
    queues = [MessageQueue("t", "b", number) for number in range(5)]
    assert len(locks.lock("g", queues, "c1")) == 3
    assert "2 others" not in caplog.text
    assert "the broker has 3 locks, limit 3 (maxQueueLocks)" in caplog.text
    assert len(locks.lock("g", queues, "c1")) == 3, "its own are renewed"
    assert locks.lock("h", queues, "c2") == set()
    locks.unlock("g", queues[:1], "c1")
    assert len(locks) == 2
    assert len(locks.lock("h", queues, "c2")) == 1
    clock.now += LEASE_SECONDS + 1
    assert len(locks.lock("g", queues[1:3], "c3")) == 2, "locks that have ended change hands"
    assert len(locks) == 3


async def test_expiry_yields_to_the_loop(locks: QueueLockTable, clock: Clock) -> None:
    locks.lock("g", [MessageQueue("t", "b", number) for number in range(20_000)], "c1")
    clock.now += LEASE_SECONDS + 1
    expiring = asyncio.ensure_future(locks.expire())
    sizes = set()
    while not expiring.done():
        sizes.add(len(locks))
        await asyncio.sleep(0)
    assert len(sizes) >= 4
    assert len(locks) == 0


def test_a_lock_takes_little_memory(locks: QueueLockTable) -> None:
    queues = [{"topic": "t", "brokerName": "broker-a", "queueId": n} for n in range(20_000)]
    body = json.dumps({"consumerGroup": "g", "clientId": "c1", "mqSet": queues}).encode()
    tracemalloc.start()
    request = LockBatchRequestBody.decode(body)
    locks.lock(request.consumer_group, request.mq_set, request.client_id)
    del request
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(locks) == 20_000
    assert size / len(locks) < 160
