from __future__ import annotations

import pytest

from pyromq.client.consumer.lite_pull.consumer import LitePullConsumer
from pyromq.client.consumer.lite_pull.subscriber import Mode
from pyromq.client.consumer.subscription import Subscription
from pyromq.client.errors import ClientStateError, TopicNotFoundError
from pyromq.protocol.wire.bodies import HeartbeatData
from pyromq.protocol.wire.codes import RequestCode
from tests.support.patience import until
from tests.unit.client.consumer.lite_pull.reading import FIRST, PULL, QUEUE, fill
from tests.unit.client.fake_cluster import running_cluster


async def test_topics_and_filters_can_be_added_and_removed() -> None:
    async with (
        running_cluster({"t": {"b0": 1}, "u": {"b0": 1}, "v": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        broker = cluster.brokers[0]
        await fill(cluster, 1, tags="BB")
        await fill(cluster, 1, tags="Aa")
        for topic in "uv":
            await broker.put(topic, 0, topic.encode())
        await consumer.subscribe({"t": "Aa", "u": Subscription.sql("a = 1")})
        got = [await anext(consumer) for _ in range(2)]
        assert sorted((m.topic, m.tags) for m in got) == [("t", "Aa"), ("u", "")]
        kinds = {p.ext_fields["topic"]: p.ext_fields["expressionType"] for p in broker.seen(PULL)}
        assert kinds == {"t": "TAG", "u": "SQL92"}
        await consumer.subscribe("v")
        assert (await anext(consumer)).topic == "v"
        await consumer.unsubscribe("t", "u")
        assert [queue.topic for queue in consumer.assignment()] == ["v"]
        (data,) = HeartbeatData.decode(
            broker.seen(RequestCode.HEART_BEAT)[-1].body
        ).consumer_data_set
        assert [subscription.topic for subscription in data.subscription_data_set] == ["v"]


async def test_a_changed_filter_takes_effect_at_once() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        await consumer.subscribe({"t": "Aa"})
        await until(lambda: bool(cluster.brokers[0].seen(PULL)))
        await consumer.subscribe({"t": "C"})
        await until(lambda: cluster.brokers[0].seen(PULL)[-1].ext_fields["subscription"] == "C")
        await fill(cluster, 1, tags="Aa")
        await fill(cluster, 1, tags="C")
        assert (await anext(consumer)).tags == "C"


async def test_two_members_share_the_queues() -> None:
    async with running_cluster({"t": {"b0": 4}}) as cluster:
        first = LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST)
        second = LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST)
        async with first, second:
            await first.subscribe("t")
            assert len(first.assignment()) == 4
            await second.subscribe("t")
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
            for queue_id in range(4):
                await fill(cluster, 5, queue_id)
            got = [await anext(consumer) for consumer in (first, second) for _ in range(10)]
            assert len({(m.queue.queue_id, m.queue_offset) for m in got}) == 20
        heartbeat = HeartbeatData.decode(cluster.brokers[0].seen(RequestCode.HEART_BEAT)[0].body)
        (consumer_data,) = heartbeat.consumer_data_set
        assert consumer_data.group_name == "g"
        assert consumer_data.subscription_data_set[0].topic == "t"


async def test_a_failed_first_subscription_leaves_the_choice_open() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        await fill(cluster, 1)
        with pytest.raises(TopicNotFoundError):
            await consumer.subscribe(["t", "missing"])
        modes = [consumer._subscriber.mode]
        assert consumer.assignment() == []
        await consumer.assign([QUEUE])
        assert (await anext(consumer)).body == b"0"
        modes.append(consumer._subscriber.mode)
        assert modes == [Mode.UNDECIDED, Mode.ASSIGNED]


async def test_a_consumer_either_subscribes_or_assigns() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        async with LitePullConsumer(cluster.namesrv) as consumer:
            with pytest.raises(ClientStateError, match="nothing was subscribed"):
                await consumer.unsubscribe("t")
            await consumer.subscribe("t")
            assert consumer._subscriber.mode is Mode.SUBSCRIBED
            with pytest.raises(ClientStateError, match="subscribe was called"):
                await consumer.assign([QUEUE])
        async with LitePullConsumer(cluster.namesrv) as consumer:
            await consumer.assign([QUEUE])
            with pytest.raises(ClientStateError, match="assign was called"):
                await consumer.subscribe("t")
