from __future__ import annotations

import pytest

from pyromq.admin import Admin
from pyromq.admin.errors import UnknownBrokerError, UnknownClusterError
from pyromq.client import Message, Producer
from pyromq.testing import Cluster
from tests.support.patience import until
from tests.unit.admin.dead_brokers import dead_broker


@pytest.mark.rocketmq(brokers=2)
async def test_brokers_and_their_figures(rocketmq: Cluster, admin: Admin) -> None:
    assert await admin.cluster.names() == ["DefaultCluster"]
    assert await admin.cluster.name_servers() == [rocketmq.namesrv]
    assert [(each.broker_name, each.addresses) for each in await admin.cluster.brokers()] == [
        (broker.name, {0: broker.address}) for broker in rocketmq.brokers
    ]
    with pytest.raises(UnknownClusterError):
        await admin.cluster.brokers("nowhere")
    async with Producer(rocketmq.namesrv, group="makers") as producer:
        await producer.send(Message("broker-1", b"x"))
    found = {each.broker_name: each for each in await admin.cluster.overview()}
    assert found["broker-1"].in_today == 1
    assert found["broker-0"].in_today == 0
    assert found["broker-1"].version == "V4_9_7"
    assert 0 < found["broker-1"].disk_ratio < 1
    assert found["broker-1"].problem is None
    assert found["broker-0"].hours == 0.0


async def test_a_broker_that_does_not_answer_has_a_problem(rocketmq: Cluster, admin: Admin) -> None:
    async with dead_broker(rocketmq.namesrv, "broker-1") as address:
        alive, dead = await admin.cluster.overview()
        assert alive.problem is None
        assert (dead.address, dead.version) == (address, "")
        assert dead.problem is not None
        assert "does not answer" in dead.problem
        _, state = await admin.cluster.replication()
        assert (state.role, state.problem is None) == ("UNKNOWN", False)


async def test_runtime_values(rocketmq: Cluster, admin: Admin) -> None:
    (broker,) = rocketmq.brokers
    runtime = await admin.cluster.runtime(broker.address)
    assert runtime.values["brokerVersion"] == "407"
    assert runtime.number("brokerVersion") == 407
    assert runtime.number("missing") == runtime.number("putTps") == 0
    assert runtime.put_tps == runtime.get_tps == 0.0
    assert [each.address for each in await admin.cluster.runtimes("DefaultCluster")] == [
        broker.address
    ]


@pytest.mark.rocketmq(replicas=1)
async def test_replication_and_promotion(rocketmq: Cluster, admin: Admin) -> None:
    (master,) = rocketmq.brokers
    (replica,) = master.replicas
    async with Producer(rocketmq.namesrv) as producer:
        await producer.send(Message("broker-0", b"x"))

    async def is_caught_up() -> bool:
        first, _ = await admin.cluster.replication()
        return bool(first.replicas) and first.replicas[0].lag_bytes == 0

    await until(is_caught_up)
    first, second = await admin.cluster.replication("DefaultCluster")
    assert (first.address, first.role) == (master.address, "ASYNC_MASTER")
    assert first.replicas[0].position == first.log_end > 0
    assert (second.role, second.is_connected, second.log_end) == ("SLAVE", True, first.log_end)

    refused = await admin.cluster.promote(replica.address)
    assert not refused.promoted
    assert not all(check.passed for check in refused.checks)


@pytest.mark.rocketmq(replicas=1)
async def test_lags_of_brokers_that_do_not_tell_them(
    rocketmq: Cluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ's own masters: the ends of the logs are compared."""

    async def unsupported(_: str) -> None:
        return None

    monkeypatch.setattr(admin.cluster, "_figures", unsupported)
    (master,) = rocketmq.brokers
    (replica,) = master.replicas
    async with Producer(rocketmq.namesrv) as producer:
        await producer.send(Message("broker-0", b"x"))

    async def is_caught_up() -> bool:
        first, _ = await admin.cluster.replication()
        return first.replicas[0].lag_bytes == 0

    await until(is_caught_up)
    first, second = await admin.cluster.replication()
    assert (first.role, second.role) == ("MASTER", "SLAVE")
    (state,) = first.replicas
    assert (state.address, state.broker_id, state.lag_milliseconds) == (replica.address, 1, None)
    assert state.position == first.log_end == second.log_end > 0


@pytest.mark.rocketmq(brokers=2)
async def test_test_messages_reach_the_named_broker(rocketmq: Cluster, admin: Admin) -> None:
    results = [each async for each in admin.cluster.probe("broker-1", count=3, size=16)]
    assert [each.broker_name for each in results] == ["broker-1"] * 3
    assert [each.status for each in results] == ["SEND_OK"] * 3
    with pytest.raises(UnknownBrokerError):
        await anext(admin.cluster.probe("broker-9"))
    times = await admin.cluster.send_times(count=2, size=16)
    assert [(each.broker_name, each.sent, each.failed) for each in times] == [
        ("broker-0", 2, 0),
        ("broker-1", 2, 0),
    ]


async def test_producers_are_listed_while_they_are_connected(
    rocketmq: Cluster, admin: Admin, rocketmq_topic: str
) -> None:
    (broker,) = rocketmq.brokers
    async with Producer(rocketmq.namesrv, group="makers") as producer:
        await producer.send(Message(rocketmq_topic, b"x"))

        async def is_listed() -> bool:
            return bool(await admin.cluster.producers(broker.address))

        await until(is_listed)
        (found,) = await admin.cluster.producers(broker.address)
        assert (found.group, found.client_id) == ("makers", producer.client_id)
        assert found.language == "PYTHON"
