from __future__ import annotations

import pytest

from pyromq.admin import Admin, AdminError, PartialFailureError
from pyromq.admin.errors import UnknownClusterError
from pyromq.testing import Cluster
from tests.unit.admin.dead_brokers import dead_broker


@pytest.mark.rocketmq(brokers=2)
async def test_targets(rocketmq: Cluster, admin: Admin) -> None:
    first, second = (broker.address for broker in rocketmq.brokers)
    clean = admin.maintenance.clean_unused_topics
    assert (await clean(broker=second)).brokers == (second,)
    assert set((await clean(cluster="DefaultCluster")).brokers) == {first, second}
    assert set((await clean()).brokers) == {first, second}
    with pytest.raises(UnknownClusterError):
        await clean(cluster="nowhere")


async def test_every_clean_up_is_accepted(rocketmq: Cluster, admin: Admin) -> None:
    (broker,) = rocketmq.brokers
    for clean in (
        admin.maintenance.clean_expired_queues,
        admin.maintenance.clean_unused_topics,
        admin.maintenance.delete_expired_logs,
    ):
        assert (await clean(broker=broker.address)).brokers == (broker.address,)


async def test_a_dead_broker_is_reported_after_the_others_are_clean(
    rocketmq: Cluster, admin: Admin
) -> None:
    (alive,) = rocketmq.brokers
    async with dead_broker(rocketmq.namesrv, "broker-1") as dead:
        with pytest.raises(PartialFailureError) as error:
            await admin.maintenance.clean_expired_queues()
    assert error.value.done == (alive.address,)
    assert set(error.value.failures) == {dead}


@pytest.mark.rocketmq(brokers=0)
async def test_nothing_to_clean(admin: Admin) -> None:
    with pytest.raises(AdminError, match="no broker"):
        await admin.maintenance.delete_expired_logs()
