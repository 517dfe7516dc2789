from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyromq.client.consumer.push.options import Order
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import RequestCode
from tests.support.patience import until
from tests.unit.client.consumer.push.consuming import FIRST, SECOND, TOPICS, Handler, make
from tests.unit.client.fake_cluster import running_cluster


async def test_offsets_are_reset_for_assigned_queues_only() -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        for body in (b"one", b"two"):
            await broker.put("t", 0, body)
        async with make(cluster, handler) as consumer:
            await until(lambda: len(handler.seen) == 2)
            await consumer.reset_offsets({FIRST: 1, MessageQueue("t", "elsewhere", 0): 7})
            await until(lambda: handler.seen == [b"one", b"two", b"two"])
        assert broker.offsets["g", "t", 0] == 2
        assert ("g", "t", 7) not in broker.offsets


async def test_an_orderly_queue_is_released_once_its_handler_returns() -> None:
    handler = Handler()
    handler.gate.clear()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        await broker.put("t", 0, b"slow")
        async with make(cluster, handler, order=Order.ORDERLY) as consumer:
            await until(lambda: handler.seen == [b"slow"])
            await consumer.unsubscribe("t")
            assert FIRST not in consumer.assignment()
            assert broker.locks["t", 0] == consumer.client_id
            # The queue comes back while the old handler is still running: pulling waits.
            await consumer.subscribe("t")
            await asyncio.sleep(0.02)
            assert handler.seen == [b"slow"]
            handler.gate.set()
            await until(lambda: consumer.offsets().get(FIRST) == 1)
        assert handler.seen == [b"slow"]


async def test_a_queue_is_committed_and_released_once_its_handlers_return() -> None:
    handler = Handler()
    handler.gate.clear()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        for body in (b"begun", b"begun, too", b"not begun"):
            await broker.put("t", 0, body)
        async with make(cluster, handler, max_handlers=2) as consumer:
            await until(lambda: len(handler.seen) == 2)
            await consumer.unsubscribe("t")
            assert FIRST not in consumer.assignment()
            assert broker.locks["t", 0] == consumer.client_id
            assert ("t", 1) not in broker.locks
            handler.gate.set()
            await until(lambda: ("t", 0) not in broker.locks)
            assert broker.offsets["g", "t", 0] == 2
            assert handler.seen == [b"begun", b"begun, too"]
            await consumer.subscribe("t")
            await until(lambda: len(handler.seen) == 3)
        assert broker.locks == {}


async def test_a_hanging_handler_delays_the_release_for_the_grace_only() -> None:
    handler = Handler()
    handler.gate.clear()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        await broker.put("t", 0, b"hangs")
        async with make(cluster, handler, close_grace=0.05) as consumer:
            await until(lambda: handler.seen == [b"hangs"])
            await consumer.unsubscribe("t")
            await until(lambda: ("t", 0) not in broker.locks)
            handler.gate.set()
            await consumer.subscribe("t")
            # The result was ignored: the message is not committed and comes again.
            await until(lambda: handler.seen == [b"hangs", b"hangs"])


@pytest.mark.parametrize("ends_by", ["cancel", "close"])
async def test_an_assignment_is_not_left_half_done(
    ends_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        await broker.put("t", 0, b"one")
        consumer = make(cluster, handler, commit_interval=60.0)
        await consumer.start()
        await until(lambda: consumer.offsets().get(FIRST) == 1)
        store = consumer._offsets.store
        is_reached, goes_on = asyncio.Event(), asyncio.Event()

        async def slow_store(offsets: Any) -> None:
            is_reached.set()
            await goes_on.wait()
            await store(offsets)

        monkeypatch.setattr(consumer._offsets, "store", slow_store)
        if ends_by == "cancel":
            change = asyncio.create_task(consumer.unsubscribe("t"))
            await is_reached.wait()
            change.cancel()
            await asyncio.gather(change, return_exceptions=True)
        else:
            consumer._membership._topics = {"%RETRY%g"}
            del consumer._membership._shares["t"]
            consumer.members_changed()
            await is_reached.wait()
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0.01)
        goes_on.set()
        await closing
        assert broker.offsets["g", "t", 0] == 1


async def test_a_reset_survives_a_handler_that_returns_later() -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        for body in (b"one", b"two", b"three"):
            await broker.put("t", 0, body)
        async with make(
            cluster, handler, order=Order.ORDERLY, commit_interval=60.0, pull_batch_size=1
        ) as consumer:
            await until(lambda: consumer.offsets().get(FIRST) == 3)
            handler.gate.clear()
            await broker.put("t", 0, b"four")
            await until(lambda: handler.seen[-1] == b"four")
            await consumer.reset_offsets({FIRST: 1})
            handler.gate.set()
            await until(lambda: handler.seen[4:] == [b"two", b"three", b"four"])
            commits = [
                int(request.ext_fields["commitOffset"])
                for request in broker.seen(RequestCode.UPDATE_CONSUMER_OFFSET)
                if request.ext_fields["queueId"] == "0" and request.ext_fields["topic"] == "t"
            ]
            assert commits == [0, 1]  # before the first pull, and the reset


async def test_a_silent_broker_does_not_block_the_start() -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        broker.silent.add(RequestCode.QUERY_CONSUMER_OFFSET)
        async with make(cluster, handler, request_timeout=0.05):
            assert not broker.seen(RequestCode.PULL_MESSAGE)
            broker.silent.clear()
            await broker.put("t", 0, b"one")
            await until(lambda: handler.seen == [b"one"])


async def test_limits_of_a_topic_are_divided_among_its_queues() -> None:
    async with (
        running_cluster(TOPICS.copy()) as cluster,
        make(cluster, Handler(), max_cached_messages_of_topic=10) as consumer,
    ):

        def limits() -> dict[MessageQueue, int]:
            return {
                queue: process_queue.limits.messages
                for queue, process_queue in consumer._queues.process_queues().items()
                if process_queue is not None
            }

        retry_queue = MessageQueue("%RETRY%g", "b0", 0)
        await until(lambda: limits() == {retry_queue: 10, FIRST: 5, SECOND: 5})
        await consumer.reset_offsets({FIRST: 0})
        await until(lambda: limits() == {retry_queue: 10, FIRST: 5, SECOND: 5})
        cluster.topics["t"] = {"b0": 1}
        await consumer._session.routes.refresh("t")
        consumer.members_changed()
        await until(lambda: limits() == {retry_queue: 10, FIRST: 10})
