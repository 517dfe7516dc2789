from __future__ import annotations

import pytest

from pyromq.admin import Admin, AdminError, NotFoundError
from pyromq.admin.errors import UnknownBrokerError, UnknownClusterError, UnknownTopicError
from pyromq.admin.topics import TopicConfiguration
from pyromq.client import Message, Producer, PullConsumer
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.testing import Cluster

CLUSTER = "DefaultCluster"


@pytest.mark.rocketmq(brokers=2)
async def test_a_topic_of_a_cluster_is_on_every_master(rocketmq: Cluster, admin: Admin) -> None:
    change = await admin.topics.update(TopicConfiguration("orders", 2, 3), cluster=CLUSTER)

    assert set(change.brokers) == {broker.address for broker in rocketmq.brokers}
    # It can be used at once.
    route = await admin.topics.route("orders")
    assert [(each.broker_name, each.read_queues, each.write_queues) for each in route.queues] == [
        ("broker-0", 2, 3),
        ("broker-1", 2, 3),
    ]
    assert await admin.topics.clusters("orders") == [CLUSTER]
    assert "orders" in await admin.topics.names()
    assert "orders" in await admin.topics.names(CLUSTER)
    assert [each.queue for each in await admin.topics.status("orders")] == [
        MessageQueue("orders", broker, queue_id)
        for broker in ("broker-0", "broker-1")
        for queue_id in range(3)
    ]


async def test_status_counts_messages(rocketmq: Cluster, admin: Admin, rocketmq_topic: str) -> None:
    async with Producer(rocketmq.namesrv) as producer:
        queue = MessageQueue(rocketmq_topic, "broker-0", 1)
        for _ in range(3):
            await producer.send(Message(rocketmq_topic, b"x"), queue)

    status = {each.queue.queue_id: each for each in await admin.topics.status(rocketmq_topic)}
    assert (status[1].min_offset, status[1].max_offset) == (0, 3)
    assert status[1].last_updated > 0
    assert (status[0].max_offset, status[0].last_updated) == (0, 0)


async def test_an_unknown_topic_gets_suggestions(admin: Admin, rocketmq: Cluster) -> None:
    rocketmq.create_topic("invoices")
    for call in (
        admin.topics.route("invioces"),
        admin.topics.status("Invoice"),
        admin.topics.delete("invocies", CLUSTER),
    ):
        with pytest.raises(UnknownTopicError, match="did you mean 'invoices'") as error:
            await call
        assert error.value.suggestions == ("invoices",)


@pytest.mark.rocketmq(brokers=2)
async def test_permission_changes_at_one_broker(rocketmq: Cluster, admin: Admin) -> None:
    rocketmq.create_topic("orders", queues=4)
    first, second = rocketmq.brokers
    # The second broker has another number of queues, which must stay.
    await admin.topics.update(TopicConfiguration("orders", 6, 6), broker=second.address)

    (change,) = await admin.topics.set_permission("orders", 4, broker=second.address)

    assert (change.broker, change.before, change.after) == (second.address, 6, 4)
    assert (await admin.topics.configuration("orders", second.address)).read_queues == 6
    assert (await admin.topics.configuration("orders", first.address)).permission == 6
    changes = await admin.topics.set_permission("orders", 4, cluster=CLUSTER)
    assert {each.broker: each.before for each in changes} == {first.address: 6, second.address: 4}
    with pytest.raises(UnknownBrokerError):
        await admin.topics.set_permission("orders", 4, broker="127.0.0.1:1")


@pytest.mark.rocketmq(brokers=2)
async def test_order_of_one_broker_keeps_the_others(rocketmq: Cluster, admin: Admin) -> None:
    first, second = rocketmq.brokers
    change = await admin.topics.update(
        TopicConfiguration("orders", 2, 2, order=True), cluster=CLUSTER
    )
    assert change.order_configuration == "broker-0:2;broker-1:2"

    change = await admin.topics.update(
        TopicConfiguration("orders", 5, 5, order=True), broker=second.address
    )
    assert change.order_configuration == "broker-0:2;broker-1:5"
    assert await admin.configuration.get_order("orders") == "broker-0:2;broker-1:5"
    assert first.address not in change.brokers


async def test_a_deleted_topic_is_gone_everywhere(rocketmq: Cluster, admin: Admin) -> None:
    rocketmq.create_topic("orders")
    (broker,) = rocketmq.brokers

    deletion = await admin.topics.delete("orders", CLUSTER)

    assert deletion.brokers == (broker.address,)
    assert "orders" not in await admin.topics.names()
    with pytest.raises(NotFoundError):
        await admin.topics.configuration("orders", broker.address)


async def test_wrong_targets(admin: Admin, rocketmq: Cluster) -> None:
    configuration = TopicConfiguration("orders")
    with pytest.raises(UnknownClusterError, match="DefaultCluster"):
        await admin.topics.update(configuration, cluster="DefaultClustre")
    with pytest.raises(AdminError, match="either"):
        await admin.topics.update(configuration)
    with pytest.raises(AdminError, match="bad name"):
        await admin.topics.update(
            TopicConfiguration("bad name"), broker=rocketmq.brokers[0].address
        )
    with pytest.raises(UnknownClusterError):
        await admin.topics.names("nowhere")


async def test_allocation_follows_the_order_of_the_clients(
    admin: Admin, rocketmq_topic: str
) -> None:
    shares = await admin.topics.allocate(rocketmq_topic, ["z", "a", "m"])
    assert {client: [each.queue_id for each in queues] for client, queues in shares.items()} == {
        "z": [0, 1],
        "a": [2],
        "m": [3],
    }


async def test_overview_names_cluster_and_groups(
    rocketmq: Cluster, admin: Admin, rocketmq_topic: str
) -> None:
    async with PullConsumer(rocketmq.namesrv, rocketmq_topic, group="readers") as consumer:
        await consumer.commit((await consumer.queues())[0], 0)

    found = {each.topic: each for each in await admin.topics.overview()}
    assert found[rocketmq_topic].cluster == CLUSTER
    assert found[rocketmq_topic].groups == ("readers",)
    assert found["TBW102"].groups == ()
    assert await admin.topics.groups(rocketmq_topic) == ["readers"]


async def test_unit_flags_survive(rocketmq: Cluster, admin: Admin) -> None:
    (broker,) = rocketmq.brokers
    wanted = TopicConfiguration("orders", 1, 1, 6, unit=True, unit_subscription=True)
    assert wanted.system_flag == 3
    await admin.topics.update(wanted, broker=broker.address)

    assert await admin.topics.configuration("orders", broker.address) == wanted
    assert wanted in await admin.topics.configurations(broker.address)
