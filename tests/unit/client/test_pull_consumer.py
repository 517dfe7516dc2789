from __future__ import annotations

import asyncio
import zlib

import pytest

from pyromq.client import pull_consumer as pull_consumer_module
from pyromq.client.errors import AnswerError, BrokerError, ClientStateError, TopicNotFoundError
from pyromq.client.pull_consumer import PullConsumer
from pyromq.client.queue_access import ANONYMOUS_GROUP, PullStatus
from pyromq.client.start_from import StartFrom
from pyromq.protocol.bodies import HeartbeatData, MessageQueue
from pyromq.protocol.codes import RequestCode, ResponseCode
from tests.unit.client.fake_cluster import FakeCluster, running_cluster, until

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


async def test_pull_says_what_it_did_not_find() -> None:
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
        PullConsumer(cluster.namesrv, "t", tags="Aa || other") as consumer,
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


async def test_without_a_group_nothing_can_be_committed() -> None:
    async with PullConsumer("127.0.0.1:1", "t") as consumer:
        with pytest.raises(ClientStateError, match="no group"):
            await consumer.commit(QUEUE, 1)
        with pytest.raises(ClientStateError, match="no group"):
            await consumer.subscribe()


async def test_iteration_reads_assigned_queues_in_order_and_waits_for_more() -> None:
    async with (
        running_cluster({"t": {"b0": 2}}) as cluster,
        PullConsumer(cluster.namesrv, "t", start_from=StartFrom.FIRST) as consumer,
    ):
        await fill(cluster, 40, queue_id=0)
        await fill(cluster, 40, queue_id=1)
        await consumer.assign(await consumer.queues())
        messages = [await anext(consumer) for _ in range(80)]
        for queue_id in range(2):
            bodies = [m.body for m in messages if m.queue.queue_id == queue_id]
            assert bodies == [b"%d" % number for number in range(40)]
        waiting = asyncio.create_task(anext(consumer))
        await cluster.brokers[0].put("t", 1, b"late")
        assert (await waiting).body == b"late"


async def test_start_from_last_sees_only_what_comes() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        PullConsumer(cluster.namesrv, "t", start_from=StartFrom.LAST) as consumer,
    ):
        await fill(cluster, 3)
        await consumer.assign([QUEUE])
        await until(lambda: bool(cluster.brokers[0].seen(PULL)))
        await cluster.brokers[0].put("t", 0, b"new")
        assert (await anext(consumer)).body == b"new"


async def test_a_group_goes_on_where_it_ended() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        await fill(cluster, 10)
        async with PullConsumer(
            cluster.namesrv, "t", group="g", start_from=StartFrom.FIRST
        ) as consumer:
            await consumer.subscribe()
            async for message in consumer:
                if message.body == b"3":
                    break
        assert cluster.brokers[0].offsets == {("g", "t", 0): 4}
        assert cluster.brokers[0].members == {}
        async with PullConsumer(cluster.namesrv, "t", group="g") as consumer:
            await consumer.subscribe()
            assert (await anext(consumer)).body == b"4"


async def test_a_message_whose_handling_failed_comes_again() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        await fill(cluster, 10)

        async def fail_at_3() -> None:
            async with PullConsumer(
                cluster.namesrv, "t", group="g", start_from=StartFrom.FIRST
            ) as consumer:
                await consumer.subscribe()
                async for message in consumer:
                    if message.body == b"3":
                        raise LookupError

        with pytest.raises(LookupError):
            await fail_at_3()
        assert cluster.brokers[0].offsets == {("g", "t", 0): 3}


async def test_consumed_offsets_are_committed_while_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pull_consumer_module, "COMMIT_SECONDS", 0.01)
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        PullConsumer(cluster.namesrv, "t", group="g", start_from=StartFrom.FIRST) as consumer,
    ):
        await fill(cluster, 3)
        await consumer.assign([QUEUE])
        for _ in range(3):
            await anext(consumer)
        await until(lambda: cluster.brokers[0].offsets == {("g", "t", 0): 2})


async def test_messages_that_the_filter_left_out_are_passed_over() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        await fill(cluster, 1, tags="Aa")
        await fill(cluster, 3, tags="BB")
        async with PullConsumer(
            cluster.namesrv, "t", group="g", tags="Aa", start_from=StartFrom.FIRST
        ) as consumer:
            await consumer.assign([QUEUE])
            await anext(consumer)
        assert cluster.brokers[0].offsets == {("g", "t", 0): 4}


async def test_two_members_share_and_each_message_goes_to_one() -> None:
    async with running_cluster({"t": {"b0": 4}}) as cluster:
        first = PullConsumer(cluster.namesrv, "t", group="g", start_from=StartFrom.FIRST)
        second = PullConsumer(cluster.namesrv, "t", group="g", start_from=StartFrom.FIRST)
        async with first, second:
            await first.subscribe()
            assert len(first.assignment()) == 4
            await second.subscribe()
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
            for queue_id in range(4):
                await fill(cluster, 5, queue_id)
            got = [await anext(consumer) for consumer in (first, second) for _ in range(10)]
            assert len({(m.queue.queue_id, m.queue_offset) for m in got}) == 20
        heartbeat = HeartbeatData.decode(cluster.brokers[0].seen(RequestCode.HEART_BEAT)[0].body)
        (consumer_data,) = heartbeat.consumer_data_set
        assert consumer_data.group_name == "g"
        assert consumer_data.subscription_data_set[0].topic == "t"


async def test_messages_of_a_queue_that_was_given_up_are_dropped() -> None:
    async with (
        running_cluster({"t": {"b0": 2}}) as cluster,
        PullConsumer(cluster.namesrv, "t", group="g", start_from=StartFrom.FIRST) as consumer,
    ):
        await fill(cluster, 5, queue_id=0)
        await consumer.assign([QUEUE])
        assert (await anext(consumer)).body == b"0"
        await fill(cluster, 1, queue_id=1)
        other = MessageQueue("t", "b0", 1)
        await consumer.assign([other])
        assert (await anext(consumer)).queue == other


async def test_a_broker_in_trouble_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pull_consumer_module, "_FIRST_PAUSE_SECONDS", 0.01)
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        PullConsumer(cluster.namesrv, "t", start_from=StartFrom.FIRST) as consumer,
    ):
        await fill(cluster, 1)
        cluster.brokers[0].refusals[PULL] = [(ResponseCode.SYSTEM_BUSY, "busy")] * 3
        await consumer.assign([QUEUE])
        assert (await anext(consumer)).body == b"0"
        assert caplog.text.count("SYSTEM_BUSY") == 3


async def test_what_stays_refused_ends_the_iteration() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        PullConsumer(cluster.namesrv, "t", start_from=StartFrom.FIRST) as consumer,
    ):
        cluster.brokers[0].refusals[PULL] = [(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "bad tags")]
        await consumer.assign([QUEUE])
        with pytest.raises(BrokerError, match="bad tags"):
            await anext(consumer)


async def test_closing_wakes_a_waiting_iteration() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        consumer = PullConsumer(cluster.namesrv, "t")
        await consumer.start()
        await consumer.assign([QUEUE])
        waiting = asyncio.create_task(anext(consumer))
        await until(lambda: bool(cluster.brokers[0].seen(PULL)))
        await consumer.close()
        with pytest.raises(ClientStateError, match="closed"):
            await waiting
        with pytest.raises(ClientStateError, match="closed"):
            await anext(consumer)


async def test_answers_that_cannot_be_read_and_unknown_queues_are_typed_errors() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        PullConsumer(cluster.namesrv, "t") as consumer,
    ):
        cluster.brokers[0].refusals[PULL] = [(ResponseCode.SUCCESS, "no header")]
        with pytest.raises(AnswerError):
            await consumer.pull(QUEUE, 0)
        with pytest.raises(TopicNotFoundError, match="'gone'"):
            await consumer.pull(MessageQueue("t", "gone", 0), 0)
