"""A Java broker under our NameServer, and our broker under Java's, seen by the Java client."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.protocol.wire.bodies import (
    ClusterInfo,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicRouteData,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient, RemotingError
from tests.interop.client_programs import java_driver
from tests.interop.java_programs import javac_or_skip
from tests.interop.servers import PyromqServer
from tests.support.apache_rocketmq import QUICK_JVM_OPTIONS, ApacheRocketMQ, java_or_skip
from tests.support.patience import DEADLINE

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

#: Both forms in which a Java broker writes its registration.
REGISTRATIONS = {"plain": "false", "compressed": "true"}


@pytest.fixture(autouse=True)
def java() -> None:
    java_or_skip()
    javac_or_skip()


@pytest.fixture
def our_nameserver() -> Iterator[PyromqServer]:
    with PyromqServer(namesrv_only=True) as server:
        yield server


@pytest.mark.parametrize("form", REGISTRATIONS)
async def test_java_broker_under_our_nameserver(our_nameserver: PyromqServer, form: str) -> None:
    address = our_nameserver.namesrv_address
    broker = ApacheRocketMQ(
        broker_only=True,
        namesrv_address=address,
        jvm_options=QUICK_JVM_OPTIONS,
        broker_properties={"compressedRegister": REGISTRATIONS[form]},
    )
    try:
        broker.start()
        assert await brokers(address) == {"broker-a": broker.broker_address}
        if form == "plain":
            await asyncio.to_thread(assert_messages_pass, address)
    finally:
        broker.kill()
    await until_gone(address)


async def test_our_broker_under_java_nameserver() -> None:
    nameserver = ApacheRocketMQ(namesrv_only=True)
    try:
        nameserver.start()
        address = nameserver.namesrv_address
        await until_it_answers(address)
        with PyromqServer(namesrv_address=address) as broker:
            assert await brokers(address) == {broker.broker_name: broker.broker_address}
            await asyncio.to_thread(assert_messages_pass, address)
        assert await brokers(address) == {}
    finally:
        nameserver.kill()


async def test_our_broker_with_very_many_topics_under_java_nameserver(tmp_path: Path) -> None:
    """Java's NameServer reads no frame above 16 MiB: the registration comes compressed."""
    names = [f"%RETRY%{'g' * 60}{number}" for number in range(70_000)]
    topics = TopicConfigSerializeWrapper({name: TopicConfig(name, 3, 2) for name in names})
    content = topics.encode()
    assert len(content) > 16 * 1024 * 1024
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_bytes(content)
    nameserver = ApacheRocketMQ(namesrv_only=True)
    try:
        nameserver.start()
        address = nameserver.namesrv_address
        await until_it_answers(address)
        with PyromqServer(namesrv_address=address, store=tmp_path / "store") as broker:
            assert await brokers(address) == {broker.broker_name: broker.broker_address}
            for name in (names[0], names[-1], "TBW102"):
                (queues,) = (await route(address, name)).queue_datas
                assert queues.broker_name == broker.broker_name
            (queues,) = (await route(address, names[7])).queue_datas
            assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (3, 2, 6)
    finally:
        nameserver.kill()


async def route(namesrv: str, topic: str) -> TopicRouteData:
    client = RemotingClient()
    try:
        command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic})
        answer = await client.request(namesrv, command, timeout=DEADLINE)
    finally:
        await client.close()
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return TopicRouteData.decode(answer.body)


def assert_messages_pass(namesrv: str) -> None:
    """Produce to a topic that is made by the first send, and consume it."""
    bodies = [f"message {number}" for number in range(6)]
    with java_driver() as driver:
        driver.producer("producer", namesrv, "producers")
        sent = driver.send("producer", "UnderAnother", [{"body": body} for body in bodies])
        assert {result["status"] for result in sent} == {"SEND_OK"}
        driver.consumer("consumer", namesrv, "under_another", "UnderAnother")
        received = driver.wait_bodies("consumer", bodies)
    assert Counter(line["body"] for line in received) == Counter(bodies)


async def brokers(namesrv: str) -> dict[str, str]:
    """The masters that a NameServer knows."""
    client = RemotingClient()
    try:
        command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = await client.request(namesrv, command, timeout=DEADLINE)
    finally:
        await client.close()
    assert answer.code == ResponseCode.SUCCESS
    info = ClusterInfo.decode(answer.body)
    return {name: data.broker_addrs[0] for name, data in info.broker_addr_table.items()}


async def until_gone(namesrv: str) -> None:
    """A broker whose connection broke is forgotten, not only after two minutes of silence."""
    deadline = time.monotonic() + DEADLINE
    while await brokers(namesrv):
        assert time.monotonic() < deadline, "the NameServer keeps a broker that is dead"
        await asyncio.sleep(0.05)


async def until_it_answers(namesrv: str) -> None:
    """Java listens a moment after its process exists."""
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            await brokers(namesrv)
        except RemotingError:
            assert time.monotonic() < deadline, "the Java NameServer did not start"
            await asyncio.sleep(0.05)
        else:
            return
