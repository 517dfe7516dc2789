from __future__ import annotations

import asyncio
import math

import pytest

from pyromq.client.consumer.lite_pull import readers as queue_readers
from pyromq.client.consumer.lite_pull.consumer import LitePullConsumer
from pyromq.client.consumer.subscription import Subscription
from pyromq.client.errors import (
    BrokerError,
    ClientStateError,
    OptionError,
)
from pyromq.client.hooks import Consuming
from pyromq.protocol.wire.codes import ResponseCode
from tests.support.patience import until
from tests.unit.client.consumer.lite_pull.reading import FIRST, PULL, QUEUE, fill
from tests.unit.client.fake_cluster import running_cluster


async def test_a_permanent_refusal_is_raised_to_the_reader() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, start_from=FIRST) as consumer,
    ):
        cluster.brokers[0].refusals[PULL] = [(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "bad tags")]
        await consumer.assign([QUEUE])
        with pytest.raises(BrokerError, match="bad tags"):
            await anext(consumer)


async def test_closing_ends_a_waiting_iteration() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        consumer = LitePullConsumer(cluster.namesrv)
        await consumer.start()
        await consumer.assign([QUEUE])

        async def read() -> list[bytes]:
            return [message.body async for message in consumer]

        reading = asyncio.create_task(read())
        await until(lambda: bool(cluster.brokers[0].seen(PULL)))
        await consumer.close()
        await consumer.close()
        assert await reading == []
        assert [messages async for messages in consumer.batches()] == []
        with pytest.raises(ClientStateError, match="closed"):
            await consumer.poll(0)


async def test_poll_returns_lists_of_one_queue_or_nothing_after_the_timeout() -> None:
    async with (
        running_cluster({"t": {"b0": 2}}) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        await fill(cluster, 40, 0)
        await fill(cluster, 3, 1)
        await consumer.subscribe("t")
        lists = [await consumer.poll() for _ in range(3)]
        assert sorted(map(len, lists)) == [3, 8, 32]
        assert all(len({message.queue for message in messages}) == 1 for messages in lists)
        assert await consumer.poll(0.01) == []
        assert await consumer.poll(0) == []
        for timeout in (-1, math.nan, math.inf):
            with pytest.raises(OptionError, match="timeout"):
                await consumer.poll(timeout)
        await consumer.commit()
        assert cluster.brokers[0].offsets == {("g", "t", 0): 40, ("g", "t", 1): 3}


async def test_polling_in_a_busy_loop_does_not_starve_the_pulls() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, start_from=FIRST) as consumer,
    ):
        await fill(cluster, 1)
        await consumer.assign([QUEUE])
        while not (messages := await consumer.poll(0)):
            pass
        assert messages[0].body == b"0"


async def test_a_batch_counts_as_consumed_when_the_next_is_requested() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(
            cluster.namesrv,
            group="g",
            start_from=FIRST,
            pull_batch_size=2,
            commit_interval=0.01,
        ) as consumer,
    ):
        await fill(cluster, 6)
        await consumer.assign([QUEUE])
        batches = consumer.batches()
        assert [m.body for m in await anext(batches)] == [b"0", b"1"]
        assert [m.body for m in await anext(batches)] == [b"2", b"3"]
        await until(lambda: cluster.brokers[0].offsets == {("g", "t", 0): 2})
        assert consumer.position(QUEUE) == 4


async def test_single_messages_and_lists_can_be_mixed() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        await fill(cluster, 5)
        await consumer.assign([QUEUE])
        assert (await anext(consumer)).body == b"0"
        assert (await anext(consumer)).body == b"1"
        assert [m.body for m in await consumer.poll()] == [b"2", b"3", b"4"]


async def test_hooks_see_each_batch() -> None:
    seen: list[tuple[str, int, bool]] = []

    class Hook:
        def before_consume(self, consuming: Consuming) -> None:
            seen.append(("before", len(consuming.messages), consuming.success))

        def after_consume(self, consuming: Consuming) -> None:
            seen.append(("after", len(consuming.messages), consuming.success))

    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(
            cluster.namesrv, group="g", start_from=FIRST, hooks=[Hook()], pull_batch_size=2
        ) as consumer,
    ):
        await fill(cluster, 4)
        await consumer.assign([QUEUE])
        for _ in range(3):
            await anext(consumer)
    assert seen == [
        ("before", 2, False), ("after", 2, True), ("before", 2, False), ("after", 2, False)
    ]  # fmt: skip


async def test_a_permanent_refusal_is_raised_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_readers, "_MAX_PAUSE_SECONDS", 0.01)
    refusal = (ResponseCode.SYSTEM_ERROR, "The broker does not support consumer to filter by SQL")
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, start_from=FIRST) as consumer,
    ):
        await fill(cluster, 1)
        cluster.brokers[0].refusals[PULL] = [refusal] * 2
        await consumer.assign([QUEUE], {"t": Subscription.sql("a = 1")})
        for _ in range(2):
            with pytest.raises(BrokerError, match="does not support"):
                await anext(consumer)
        assert (await anext(consumer)).body == b"0"


async def test_only_one_reader_may_wait() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv) as consumer,
    ):
        await consumer.assign([QUEUE])
        waiting = asyncio.create_task(anext(consumer))
        await asyncio.sleep(0)
        with pytest.raises(ClientStateError, match="one reader"):
            await consumer.poll(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert await consumer.poll(0) == []
