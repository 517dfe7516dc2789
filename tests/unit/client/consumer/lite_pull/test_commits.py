from __future__ import annotations

import pytest

from pyromq.client.consumer.lite_pull.consumer import LitePullConsumer
from pyromq.client.errors import (
    BrokerError,
)
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import ResponseCode
from tests.support.patience import until
from tests.unit.client.consumer.lite_pull.reading import COMMIT, FIRST, PULL, QUEUE, fill
from tests.unit.client.fake_cluster import running_cluster, running_pair


async def test_consumed_offsets_are_committed_while_running() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(
            cluster.namesrv, group="g", start_from=FIRST, commit_interval=0.01
        ) as consumer,
    ):
        await fill(cluster, 3)
        await consumer.assign([QUEUE])
        for _ in range(3):
            await anext(consumer)
        await until(lambda: cluster.brokers[0].offsets == {("g", "t", 0): 2})


async def test_filtered_messages_are_committed_over() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        await fill(cluster, 1, tags="Aa")
        await fill(cluster, 3, tags="BB")
        async with LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer:
            await consumer.assign([QUEUE], {"t": "Aa"})
            await anext(consumer)
        assert cluster.brokers[0].offsets == {("g", "t", 0): 4}


async def test_without_auto_commit_only_explicit_commits_happen() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        offsets = cluster.brokers[0].offsets
        await fill(cluster, 5)
        async with LitePullConsumer(
            cluster.namesrv,
            group="g",
            start_from=FIRST,
            auto_commit=False,
            commit_interval=0.001,
        ) as consumer:
            await consumer.subscribe("t")
            for _ in range(2):
                await anext(consumer)
            assert offsets == {}
            await consumer.commit()  # messages handed out count
            assert offsets == {("g", "t", 0): 2}
            assert await consumer.committed(QUEUE) == 2
            await consumer.commit({QUEUE: 1})
            assert offsets == {("g", "t", 0): 1}
            await consumer.commit()
            assert offsets == {("g", "t", 0): 2}
            await anext(consumer)
        assert offsets == {("g", "t", 0): 2}


@pytest.mark.parametrize(("refusals", "committed"), [(2, {("g", "t", 0): 1}), (3, {})])
async def test_a_failed_commit_is_raised_and_retried_on_close(
    caplog: pytest.LogCaptureFixture, refusals: int, committed: dict[tuple[str, str, int], int]
) -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        async with LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer:
            await fill(cluster, 2)
            await consumer.assign([QUEUE])
            await anext(consumer)
            cluster.brokers[0].refusals[COMMIT] = [
                (ResponseCode.SYSTEM_ERROR, "not now")
            ] * refusals
            with pytest.raises(BrokerError, match="not now"):
                await consumer.commit()
        assert caplog.text.count("commit failed") == refusals
        assert cluster.brokers[0].offsets == committed


async def test_a_group_that_starts_at_the_end_commits_its_start() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        await fill(cluster, 3)
        async with LitePullConsumer(cluster.namesrv, group="g") as consumer:
            await consumer.subscribe("t")
            await until(lambda: bool(cluster.brokers[0].seen(PULL)))
        assert cluster.brokers[0].offsets == {("g", "t", 0): 3}


async def test_a_returned_master_gets_what_was_committed_to_the_replica() -> None:
    async with running_pair({"t": {"b1": 1}}) as (cluster, master, replica):
        for number in range(4):
            await master.put("t", 0, b"%d" % number)
        async with LitePullConsumer(
            cluster.namesrv,
            group="g",
            start_from=FIRST,
            commit_interval=0.01,
            pull_batch_size=1,
            heartbeat_interval=0.05,
        ) as consumer:
            await consumer.assign([MessageQueue("t", "b1", 0)])
            for _ in range(2):
                await anext(consumer)
            await until(lambda: master.offsets == {("g", "t", 0): 1})
            await master.stop()
            master.is_listed = False
            await consumer._session.routes.refresh("t")
            for _ in range(2):
                await anext(consumer)
            await until(lambda: replica.offsets == {("g", "t", 0): 3})
            await master.restart()
            master.is_listed = True
            await until(lambda: master.offsets == {("g", "t", 0): 3})
            # So does one that forgot it, as a killed broker does.
            await master.stop()
            master.offsets.clear()
            await master.restart()
            await until(lambda: master.offsets == {("g", "t", 0): 3})
