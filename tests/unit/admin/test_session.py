from __future__ import annotations

import asyncio

import pytest

from pyromq.admin import Admin, AdminError, NotFoundError, RefusedError, UnreachableError
from pyromq.admin.errors import (
    PartialFailureError,
    UnknownBrokerError,
    UnknownClusterError,
    UnknownTopicError,
    UnreadableAnswerError,
    UnsupportedRequestError,
)
from pyromq.admin.session import read_body, read_header, read_text
from pyromq.client import ClientStateError
from pyromq.protocol.wire.bodies import ClusterInfo
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import GetMaxOffsetResponseHeader
from pyromq.testing import Cluster
from tests.unit.admin.dead_brokers import ADDRESS as NOWHERE
from tests.unit.admin.dead_brokers import dead_broker


async def test_a_name_server_that_is_down_is_skipped(rocketmq: Cluster) -> None:
    async with Admin(f"{NOWHERE};{rocketmq.namesrv}") as admin:
        address, _ = await admin.session.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert address == rocketmq.namesrv
    async with Admin(NOWHERE) as admin:
        with pytest.raises(UnreachableError, match="check that it runs") as error:
            await admin.session.cluster_info()
        assert error.value.address == NOWHERE
    async with Admin(f"{NOWHERE};127.0.0.1:2") as admin:
        with pytest.raises(UnreachableError, match=r"127.0.0.1:1, 127.0.0.1:2"):
            await admin.session.cluster_info()


async def test_a_name_server_that_has_just_started_is_not_the_last_word(
    rocketmq: Cluster, rocketmq_topic: str
) -> None:
    async with (
        Cluster(brokers=0) as empty,
        Admin(f"{empty.namesrv};{NOWHERE};{rocketmq.namesrv}") as admin,
    ):
        route = await admin.session.find_route(rocketmq_topic)
        assert route is not None
        assert await admin.session.find_route("nothing") is None


async def test_refusals(rocketmq: Cluster, admin: Admin) -> None:
    with pytest.raises(UnsupportedRequestError):
        await admin.session.ask(rocketmq.namesrv, RequestCode.SEND_MESSAGE)
    with pytest.raises(RefusedError):
        await admin.session.ask(rocketmq.brokers[0].address, RequestCode.GET_MAX_OFFSET)
    answer = await admin.session.ask(rocketmq.namesrv, RequestCode.SEND_MESSAGE, accept=(3,))
    assert answer.code == 3


async def test_a_closed_admin_is_refused(rocketmq: Cluster) -> None:
    admin = Admin(rocketmq.namesrv)
    with pytest.raises(ClientStateError):
        await admin.session.cluster_info()
    await admin.start()
    await admin.close()
    await admin.close()
    with pytest.raises(ClientStateError):
        await admin.session.cluster_info()


@pytest.mark.rocketmq(replicas=1)
async def test_masters_and_replicas(rocketmq: Cluster, admin: Admin) -> None:
    (master,) = rocketmq.brokers
    (replica,) = master.replicas
    session = admin.session
    assert await session.masters_of_cluster("DefaultCluster") == [master.address]
    assert await session.all_of_cluster("DefaultCluster") == [master.address, replica.address]
    assert await session.targets(None, "DefaultCluster") == [master.address]
    assert await session.targets(None, "DefaultCluster", replicas=True) == [
        master.address,
        replica.address,
    ]
    assert await session.targets("x:1", None) == ["x:1"]
    assert await session.master_of_broker("broker-0") == master.address
    assert await session.masters_of_topic("TBW102") == {"broker-0": master.address}
    with pytest.raises(UnknownBrokerError):
        await session.master_of_broker("broker-1")
    with pytest.raises(UnknownClusterError):
        await session.masters_of_cluster("nowhere")
    with pytest.raises(AdminError, match="either"):
        await session.targets("x:1", "DefaultCluster")


async def test_a_broker_without_a_master(rocketmq: Cluster, admin: Admin) -> None:
    async with dead_broker(rocketmq.namesrv, "broker-1", broker_id=2):
        with pytest.raises(NotFoundError, match="no master"):
            await admin.session.master_of_broker("broker-1")


async def test_unknown_topics_are_suggested(admin: Admin) -> None:
    with pytest.raises(UnknownTopicError, match="BenchmarkTest"):
        await admin.session.route("BenchmarkTets")


async def test_every_address_is_asked_whatever_becomes_of_the_others(admin: Admin) -> None:
    asked = []

    async def call(address: str) -> str:
        await asyncio.sleep(0)
        asked.append(address)
        if address == "bad":
            raise AdminError("no")
        return address.upper()

    assert await admin.session.on_each("x", ["a", "b", "a"], call) == {"a": "A", "b": "B"}
    asked.clear()
    with pytest.raises(PartialFailureError) as error:
        await admin.session.on_each("x", ["bad", "a"], call)
    assert sorted(asked) == ["a", "bad"]
    assert error.value.done == ("a",)
    with pytest.raises(AdminError, match=r"^no$"):
        await admin.session.on_each("x", ["bad"], call)

    async def bug(_: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await admin.session.on_each("x", ["a", "b"], bug)


async def test_many_items_keep_their_order_and_report_progress(admin: Admin) -> None:
    reports = []

    async def call(number: int) -> int:
        await asyncio.sleep(0.001 * (number % 3))
        return -number

    results = await admin.session.for_all(
        range(50), call, lambda done, total: reports.append((done, total))
    )
    assert results == [-number for number in range(50)]
    assert reports == [(done, 50) for done in range(1, 51)]
    assert await admin.session.for_all([], call) == []

    async def fail(_: int) -> None:
        raise AdminError("no")

    with pytest.raises(AdminError, match="no"):
        await admin.session.for_all([1, 2], fail)


def test_answers_that_cannot_be_read() -> None:
    answer = RemotingCommand(0, body=b"\xff{")
    with pytest.raises(UnreadableAnswerError, match="x:1"):
        read_body(ClusterInfo, "x:1", answer)
    with pytest.raises(UnreadableAnswerError):
        read_header(GetMaxOffsetResponseHeader, "x:1", answer)
    with pytest.raises(UnreadableAnswerError):
        read_text("x:1", answer)
    assert read_body(ClusterInfo, "x:1", RemotingCommand(0)) == ClusterInfo()
    assert read_text("x:1", RemotingCommand(0, body="ä".encode())) == "ä"
