from __future__ import annotations

import pytest

from pyromq.admin import Admin, AdminError
from pyromq.admin.errors import UnknownClusterError, UnknownGroupError
from pyromq.admin.groups.connections import NotOnlineError
from pyromq.admin.groups.groups import GroupSettings
from pyromq.client import Message, Producer, PullConsumer, PushConsumer, StartFrom
from pyromq.protocol.wire.bodies import ConsumeType, MessageQueue
from pyromq.testing import Cluster
from tests.support.patience import until

CLUSTER = "DefaultCluster"


@pytest.mark.rocketmq(brokers=2)
async def test_the_life_of_a_group(rocketmq: Cluster, admin: Admin) -> None:
    addresses = [broker.address for broker in rocketmq.brokers]
    assert await admin.groups.update(GroupSettings("billing"), broker=addresses[0]) == [
        addresses[0]
    ]
    (only,) = await admin.groups.settings("billing")
    assert (only.cluster, only.broker_name) == (CLUSTER, "broker-0")
    changed = GroupSettings("billing", retry_max_times=3, consume_broadcast_enable=False)
    assert await admin.groups.update(changed, cluster=CLUSTER) == addresses
    assert [each.settings for each in await admin.groups.settings("billing")] == [changed] * 2
    assert "billing" in await admin.groups.names()

    assert await admin.groups.delete("billing", broker=addresses[0]) == [addresses[0]]
    assert "billing" not in await admin.groups.names(addresses[0])
    assert await admin.groups.delete("billing", cluster=CLUSTER, remove_offsets=True) == addresses
    assert "billing" not in await admin.groups.names()


async def test_wrong_names(admin: Admin) -> None:
    await admin.groups.update(GroupSettings("billing"), cluster=CLUSTER)
    with pytest.raises(UnknownGroupError, match="did you mean 'billing'"):
        await admin.groups.settings("biling")
    with pytest.raises(AdminError, match="illegal characters"):
        await admin.groups.update(GroupSettings("bill ing"), cluster=CLUSTER)
    with pytest.raises(UnknownClusterError):
        await admin.groups.update(GroupSettings("x"), cluster="Default")
    with pytest.raises(UnknownGroupError, match=r"has not consumed anything$"):
        await admin.groups.progress("billing")
    with pytest.raises(NotOnlineError):
        await admin.groups.status("billing")


async def test_progress_of_an_offline_group(
    rocketmq: Cluster, admin: Admin, rocketmq_topic: str
) -> None:
    queue = MessageQueue(rocketmq_topic, "broker-0", 0)
    async with Producer(rocketmq.namesrv) as producer:
        for _ in range(5):
            await producer.send(Message(rocketmq_topic, b"x"), queue)
    async with PullConsumer(rocketmq.namesrv, rocketmq_topic, group="readers") as consumer:
        await consumer.commit(queue, 2)

    progress = await admin.groups.progress("readers")

    found = {each.queue: each for each in progress.queues}[queue]
    assert (found.broker_offset, found.consumer_offset, found.diff) == (5, 2, 3)
    assert found.last_timestamp > 0
    assert progress.diff_total == 3
    assert found.client_ip == ""
    with pytest.raises(UnknownGroupError, match="has not consumed topic 'other'"):
        await admin.groups.progress("readers", "other")


async def test_members_report(rocketmq: Cluster, admin: Admin, rocketmq_topic: str) -> None:
    async with PushConsumer(
        rocketmq.namesrv,
        group="readers",
        subscriptions=rocketmq_topic,
        handler=lambda _: None,
        commit_interval=0.1,
        start_from=StartFrom.FIRST,
    ) as consumer:
        await until(lambda: _owns(admin, 5))
        status = await admin.groups.status("readers", stacks=True)
        progress = await admin.groups.progress("readers", owners=True)
        summary = await admin.groups.summary("readers")
        everything = await admin.groups.summaries()
        connections = await admin.groups.connections("readers")

    (member,) = status.members
    assert member.info is not None
    assert member.info.client_id == consumer.client_id
    assert member.info.stacks
    assert status.same_subscription
    assert status.problems == ()
    assert {each.client_id for each in progress.queues} == {consumer.client_id}
    assert progress.queues[0].client_ip == consumer.client_id.partition("@")[0]
    assert (summary.count, summary.version) == (1, "V4_9_7")
    assert summary.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert summary in everything
    assert len(connections.clients) == 1
    with pytest.raises(AdminError):
        await admin.groups.running_info("readers", "nobody@1")
    offline = await admin.groups.summary("readers")
    assert (offline.count, offline.version) == (0, "")


async def _owns(admin: Admin, queues: int) -> bool:
    return len(await admin.groups.owners("readers")) == queues
