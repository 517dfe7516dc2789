from __future__ import annotations

import pytest

from pyromq.admin import Admin
from pyromq.admin.errors import UnknownTopicError
from pyromq.admin.groups.connections import NotOnlineError, all_brokers, brokers_of_group
from pyromq.client import Message, Producer, PushConsumer
from pyromq.protocol.wire.bodies import ConsumeType
from pyromq.testing import Cluster


@pytest.mark.rocketmq(brokers=2)
async def test_members_of_a_group(rocketmq: Cluster, admin: Admin, rocketmq_topic: str) -> None:
    async with PushConsumer(
        rocketmq.namesrv,
        group="readers",
        subscriptions={rocketmq_topic: "a || b"},
        handler=lambda _: None,
    ) as consumer:
        found = await admin.connections.consumers("readers")
        at_one = await admin.connections.consumers("readers", broker=rocketmq.brokers[1].address)

    assert [client.client_id for client in found.clients] == [consumer.client_id]
    assert [client.client_id for client in at_one.clients] == [consumer.client_id]
    assert (found.clients[0].language, found.clients[0].version_name) == ("PYTHON", "V4_9_7")
    assert found.min_version == found.clients[0].version
    assert found.consume_type is ConsumeType.CONSUME_PASSIVELY
    subscription = found.subscription(rocketmq_topic)
    assert subscription is not None
    assert (subscription.expression, subscription.tags) == ("a || b", ("a", "b"))
    assert found.subscription("other") is None


async def test_a_group_without_members(admin: Admin, rocketmq_topic: str) -> None:
    assert await admin.connections.find_consumers("nobody") is None
    with pytest.raises(NotOnlineError, match="'nobody' is not online"):
        await admin.connections.consumers("nobody")
    with pytest.raises(NotOnlineError, match="producer group 'nobody'"):
        await admin.connections.producers("nobody", rocketmq_topic)
    with pytest.raises(UnknownTopicError):
        await admin.connections.producers("nobody", "nowhere")


async def test_members_of_a_producer_group(
    rocketmq: Cluster, admin: Admin, rocketmq_topic: str
) -> None:
    async with Producer(rocketmq.namesrv, group="makers") as producer:
        await producer.send(Message(rocketmq_topic, b"x"))
        (client,) = await admin.connections.producers("makers", rocketmq_topic)
        assert client.client_id == producer.client_id


@pytest.mark.rocketmq(brokers=2)
async def test_brokers_of_a_group_without_a_retry_topic_are_all(
    rocketmq: Cluster, admin: Admin
) -> None:
    addresses = {broker.address for broker in rocketmq.brokers}
    assert set(await brokers_of_group(admin.session, "nobody")) == addresses
    assert set((await all_brokers(admin.session)).values()) == addresses
