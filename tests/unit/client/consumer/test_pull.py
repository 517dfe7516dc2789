from __future__ import annotations

import asyncio
import zlib

import pytest

from pyromq.client.consumer.pull import PullConsumer
from pyromq.client.consumer.pull_request import ANONYMOUS_GROUP
from pyromq.client.consumer.queue_access import PullStatus
from pyromq.client.consumer.subscription import Subscription
from pyromq.client.errors import (
    AnswerError,
    ClientStateError,
    OptionError,
    TopicNotFoundError,
)
from pyromq.protocol.errors import RocketMQError
from pyromq.protocol.wire.bodies import HeartbeatData, MessageQueue
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from tests.support.patience import until
from tests.unit.client.fake_cluster import FakeCluster, running_cluster

PULL = RequestCode.PULL_MESSAGE
QUEUE = MessageQueue("t", "b0", 0)


async def fill(cluster: FakeCluster, count: int, queue_id: int = 0, tags: str = "") -> None:
    for number in range(count):
        properties = f"TAGS\x01{tags}".encode() if tags else b""
        await cluster.brokers[0].put("t", queue_id, b"%d" % number, raw_properties=properties)


async def test_pull_reads_from_any_offset() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        PullConsumer(cluster.namesrv, "t") as consumer,
    ):
        await fill(cluster, 5)
        result = await consumer.pull(QUEUE, 2, max_messages=2)
        assert result.status is PullStatus.FOUND
        assert [message.body for message in result.messages] == [b"2", b"3"]
        assert (result.next_offset, result.min_offset, result.max_offset) == (4, 0, 5)
        assert cluster.brokers[0].seen(PULL)[0].ext_fields["consumerGroup"] == ANONYMOUS_GROUP
        assert await consumer.queues() == [QUEUE]


async def test_pull_statuses_without_messages() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        PullConsumer(cluster.namesrv, "t") as consumer,
    ):
        await fill(cluster, 1)
        assert (await consumer.pull(QUEUE, 1)).status is PullStatus.NO_NEW_MESSAGE
        moved = await consumer.pull(QUEUE, 100)
        assert (moved.status, moved.next_offset) == (PullStatus.OFFSET_ILLEGAL, 1)


async def test_bodies_are_decompressed() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        PullConsumer(cluster.namesrv, "t") as consumer,
    ):
        await cluster.brokers[0].put("t", 0, zlib.compress(b"plain"), sys_flag=1)
        assert (await consumer.pull(QUEUE, 0)).messages[0].body == b"plain"


async def test_tags_are_compared_by_text_after_the_broker_compared_hashes() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        PullConsumer(cluster.namesrv, "t", subscription="Aa || other") as consumer,
    ):
        await fill(cluster, 1, tags="BB")  # the same hashCode as Aa
        await fill(cluster, 1, tags="Aa")
        result = await consumer.pull(QUEUE, 0)
        assert [message.tags for message in result.messages] == ["Aa"]
        assert result.next_offset == 2
        assert cluster.brokers[0].seen(PULL)[0].ext_fields["subscription"] == "Aa || other"


async def test_offsets_of_a_group() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        PullConsumer(cluster.namesrv, "t", group="g") as consumer,
    ):
        await fill(cluster, 3)
        assert await consumer.committed(QUEUE) is None
        await consumer.commit(QUEUE, 2)
        assert await consumer.committed(QUEUE) == 2
        assert (await consumer.min_offset(QUEUE), await consumer.max_offset(QUEUE)) == (0, 3)


async def test_committing_needs_a_group() -> None:
    async with PullConsumer("127.0.0.1:1", "t") as consumer:
        with pytest.raises(ClientStateError, match="no group"):
            await consumer.commit(QUEUE, 1)
        with pytest.raises(ClientStateError, match="no group"):
            await consumer.committed(QUEUE)


async def test_unreadable_answers_and_unknown_queues_are_typed_errors() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        PullConsumer(cluster.namesrv, "t") as consumer,
    ):
        cluster.brokers[0].refusals[PULL] = [(ResponseCode.SUCCESS, "no header")]
        with pytest.raises(AnswerError):
            await consumer.pull(QUEUE, 0)
        with pytest.raises(TopicNotFoundError, match="'gone'"):
            await consumer.pull(MessageQueue("t", "gone", 0), 0)


async def test_the_namespace_stays_hidden() -> None:
    async with (
        running_cluster({"tenant%t": {"b0": 1}}) as cluster,
        PullConsumer(cluster.namesrv, "t", group="g", namespace="tenant") as consumer,
    ):
        await cluster.brokers[0].put("tenant%t", 0, b"mine")
        assert await consumer.queues() == [QUEUE]
        (message,) = (await consumer.pull(QUEUE, 0)).messages
        assert (message.topic, message.queue) == ("t", QUEUE)
        await consumer.commit(QUEUE, 1)
        assert cluster.brokers[0].offsets == {("tenant%g", "tenant%t", 0): 1}


async def test_an_sql_expression_is_sent_to_the_broker() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        PullConsumer(cluster.namesrv, "t", subscription=Subscription.sql("a > 1")) as consumer,
    ):
        await fill(cluster, 1, tags="any")
        assert len((await consumer.pull(QUEUE, 0)).messages) == 1
        fields = cluster.brokers[0].seen(PULL)[0].ext_fields
        assert (fields["expressionType"], fields["subscription"]) == ("SQL92", "a > 1")


async def test_it_does_not_join_its_group() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        async with PullConsumer(cluster.namesrv, "t", group="g") as consumer:
            await consumer.pull(QUEUE, 0)
            await until(lambda: bool(cluster.brokers[0].seen(RequestCode.HEART_BEAT)))
            (beat,) = cluster.brokers[0].seen(RequestCode.HEART_BEAT)
            assert HeartbeatData.decode(beat.body).consumer_data_set == []
        with pytest.raises(ClientStateError, match="closed"):
            await consumer.pull(QUEUE, 0)


@pytest.mark.parametrize("arguments", [(-1, 32), (0, 0)])
async def test_impossible_numbers_are_refused(arguments: tuple[int, int]) -> None:
    async with PullConsumer("127.0.0.1:1", "t") as consumer:
        with pytest.raises(OptionError, match="at least"):
            await consumer.pull(QUEUE, *arguments)


async def test_close_ends_a_waiting_pull() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        async with PullConsumer(cluster.namesrv, "t") as consumer:
            waiting = asyncio.create_task(consumer.pull(QUEUE, 0, wait=60))
            await until(lambda: bool(cluster.brokers[0].seen(PULL)))
        with pytest.raises(RocketMQError):
            await waiting
