from __future__ import annotations

import pytest

from pyromq.admin import Admin, NotFoundError, PartialFailureError, UnreachableError
from pyromq.admin.errors import UnknownBrokerError
from pyromq.testing import Cluster

NOWHERE = "127.0.0.1:1"


async def test_settings_of_a_broker_change(rocketmq: Cluster, admin: Admin) -> None:
    (broker,) = rocketmq.brokers
    done = await admin.configuration.update_broker("fileReservedTime", "49", broker=broker.address)

    assert done == [broker.address]
    found = await admin.configuration.broker(broker.address)
    assert found.settings["fileReservedTime"] == "49"
    assert found.settings["brokerName"] == "broker-0"
    assert found.master is None


@pytest.mark.rocketmq(replicas=1)
async def test_a_cluster_has_masters_and_replicas(rocketmq: Cluster, admin: Admin) -> None:
    (master,) = rocketmq.brokers
    (replica,) = master.replicas

    found = await admin.configuration.cluster("DefaultCluster")

    assert {each.address: each.master for each in found} == {
        master.address: None,
        replica.address: master.address,
    }
    done = await admin.configuration.update_broker(
        "fileReservedTime", "50", cluster="DefaultCluster"
    )
    assert done == [master.address]


async def test_settings_of_name_servers(rocketmq: Cluster, admin: Admin) -> None:
    assert await admin.configuration.update_name_servers("clusterTest", "true") == [
        rocketmq.namesrv
    ]
    (found,) = await admin.configuration.name_servers()
    assert found.settings["clusterTest"] == "true"


async def test_keys_and_values(admin: Admin) -> None:
    await admin.configuration.put_value("space", "b", "2")
    await admin.configuration.put_value("space", "a", "1=ä")
    assert await admin.configuration.values("space") == {"a": "1=ä", "b": "2"}
    assert await admin.configuration.get_value("space", "a") == "1=ä"

    await admin.configuration.delete_value("space", "a")
    await admin.configuration.delete_value("space", "a")
    with pytest.raises(NotFoundError, match="'a' in 'space'"):
        await admin.configuration.get_value("space", "a")
    assert await admin.configuration.values("nothing") == {}


async def test_write_permission(rocketmq: Cluster, admin: Admin, rocketmq_topic: str) -> None:
    (wiped,) = await admin.configuration.wipe_write_permission("broker-0")
    assert wiped.name_server == rocketmq.namesrv
    assert wiped.topics > 0
    assert [each.permission for each in (await admin.topics.route(rocketmq_topic)).queues] == [4]

    (added,) = await admin.configuration.add_write_permission("broker-0")
    assert added.topics == wiped.topics
    assert [each.permission for each in (await admin.topics.route(rocketmq_topic)).queues] == [6]
    for call in (
        admin.configuration.wipe_write_permission("broker-9"),
        admin.configuration.add_write_permission("broker-9"),
    ):
        with pytest.raises(UnknownBrokerError, match="broker-0"):
            await call


async def test_a_dead_name_server_is_reported_after_the_others_changed(rocketmq: Cluster) -> None:
    async with Admin([NOWHERE, rocketmq.namesrv]) as admin:
        with pytest.raises(PartialFailureError) as error:
            await admin.configuration.put_value("space", "key", "value")
        assert error.value.done == (rocketmq.namesrv,)
        assert isinstance(error.value.failures[NOWHERE], UnreachableError)
        # Reading needs only one of them.
        assert await admin.configuration.get_value("space", "key") == "value"


async def test_order_of_a_topic(admin: Admin) -> None:
    await admin.configuration.put_order("orders", "broker-0:2")
    assert await admin.configuration.add_order("orders", "broker-1", 3) == "broker-0:2;broker-1:3"
    assert await admin.configuration.add_order("orders", "broker-0", 1) == "broker-0:1;broker-1:3"
    await admin.configuration.delete_order("orders")
    with pytest.raises(NotFoundError):
        await admin.configuration.get_order("orders")
    assert await admin.configuration.add_order("orders", "broker-1", 3) == "broker-1:3"
