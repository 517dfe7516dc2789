from __future__ import annotations

import pytest

from pyromq.admin import Admin, NotFoundError
from pyromq.admin.errors import UnknownTopicError
from pyromq.admin.statistics import Period, QueueLag, Statistic
from pyromq.client import Message, Producer, PullConsumer, PushConsumer, StartFrom
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.testing import Cluster
from tests.support.patience import until


async def test_topics_with_and_without_groups(
    rocketmq: Cluster, admin: Admin, rocketmq_topic: str
) -> None:
    rocketmq.create_topic("idle")
    (broker,) = rocketmq.brokers
    async with Producer(rocketmq.namesrv) as producer:
        for _ in range(5):
            await producer.send(Message(rocketmq_topic, b"x"))
    received: list[object] = []
    async with PushConsumer(
        rocketmq.namesrv,
        group="readers",
        handler=received.append,
        subscriptions=[rocketmq_topic],
        start_from=StartFrom.FIRST,
        commit_interval=0.05,
    ):
        await until(lambda: len(received) == 5)

        async def is_consumed() -> bool:
            (row,) = await admin.statistics.topics(rocketmq_topic)
            return row.group == "readers" and row.lag == 0

        await until(is_consumed)
    async with Producer(rocketmq.namesrv) as producer:
        await producer.send(Message(rocketmq_topic, b"x"))

    rows = {each.topic: each for each in await admin.statistics.topics()}
    assert (rows[rocketmq_topic].group, rows[rocketmq_topic].lag) == ("readers", 1)
    assert (rows["idle"].group, rows["idle"].out_tps) == (None, None)
    assert not any(name.startswith("%RETRY%") for name in rows)
    # Brokers count every ten seconds.
    assert await admin.statistics.topics("idle", active_only=True) == []
    lags = await admin.statistics.broker_lags(broker.address)
    assert lags.total == 1
    assert sum(each.lag for each in lags.queues if each.queue.topic == rocketmq_topic) == 1
    ordered = await admin.statistics.broker_lags(broker.address, order=True)
    assert ordered.queues == ()


async def test_an_unknown_topic_is_refused(admin: Admin, rocketmq_topic: str) -> None:
    with pytest.raises(UnknownTopicError, match=rocketmq_topic):
        await admin.statistics.topics(rocketmq_topic[:-1])


async def test_a_statistic_that_was_never_counted(rocketmq: Cluster, admin: Admin) -> None:
    with pytest.raises(NotFoundError, match="TOPIC_PUT_NUMS of 'nothing'"):
        await admin.statistics.view(rocketmq.brokers[0].address, "TOPIC_PUT_NUMS", "nothing")


async def test_one_statistic(rocketmq: Cluster, admin: Admin, rocketmq_topic: str) -> None:
    async with Producer(rocketmq.namesrv) as producer:
        await producer.send(Message(rocketmq_topic, b"x"))
    address = rocketmq.brokers[0].address
    found = await admin.statistics.view(address, "TOPIC_PUT_NUMS", rocketmq_topic)
    assert found.last_day in (0, 1)  # brokers count every ten seconds


async def test_a_group_that_has_never_been_online_has_no_lag(
    rocketmq: Cluster, admin: Admin, rocketmq_topic: str
) -> None:
    async with PullConsumer(rocketmq.namesrv, rocketmq_topic, group="readers") as consumer:
        await consumer.commit((await consumer.queues())[0], 7)
    # Without its retry topic the group's lag is not known.
    (row,) = await admin.statistics.topics(rocketmq_topic)
    assert (row.group, row.lag) == ("readers", 0)


def test_the_last_day_is_the_longest_period_with_messages() -> None:
    none, some = Period(0, 0.0, 0.0), Period(3, 0.1, 1.0)
    assert Statistic(some, none, none).last_day == 3
    assert Statistic(some, Period(5, 0.0, 0.0), none).last_day == 5
    assert Statistic(some, Period(5, 0.0, 0.0), Period(9, 0.0, 0.0)).last_day == 9


def test_lag_of_a_queue() -> None:
    queue = MessageQueue("orders", "broker-0", 0)
    assert QueueLag("readers", queue, 5, 3, 0).lag == 2
    assert QueueLag("readers", queue, 5, 7, 0).lag == -2
