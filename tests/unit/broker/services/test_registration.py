from __future__ import annotations

import asyncio
import dataclasses
import logging
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.role import Role
from pyromq.broker.services import registration as module
from pyromq.broker.services.registration import Registration
from pyromq.broker.state.topics import TopicTable
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.wire.bodies import (
    BrokerData,
    DataVersion,
    KVTable,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import RegisterBrokerRequestHeader
from pyromq.remoting.client import RemotingClient
from pyromq.remoting.errors import RemotingConnectError
from pyromq.store.config import BrokerRole
from tests.support.patience import DEADLINE, until

ONE, TWO = "10.0.0.1:9876", "10.0.0.2:9876"
CONFIG = BrokerConfig(
    broker_name="broker-a",
    broker_ip1="127.0.0.1",
    broker_ip2="127.0.0.1",
    namesrv_addr=f"{ONE};{TWO}",
    broker_id=3,
)


class FakeNameServer:
    """Keeps the newest registration of the broker, as the real one does."""

    def __init__(self) -> None:
        self.reachable = True
        self.gate = asyncio.Event()
        self.gate.set()
        self.seen: list[RequestCode] = []
        self.header: RegisterBrokerRequestHeader | None = None
        self.body: RegisterBrokerBody | None = None
        self.order: KVTable | None = None
        self.addresses: dict[str, str] = {}
        self.refuse = False
        #: The id of the broker that left.
        self.unregistered = ""

    async def answer(self, request: RemotingCommand) -> RemotingCommand:
        await self.gate.wait()
        self.seen.append(RequestCode(request.code))
        if self.refuse:
            return request.answer(ResponseCode.SYSTEM_ERROR, "no")
        return getattr(self, RequestCode(request.code).name.lower())(request)  # type: ignore[no-any-return]

    def register_broker(self, request: RemotingCommand) -> RemotingCommand:
        self.header = RegisterBrokerRequestHeader.decode(request.ext_fields)
        assert self.header.body_crc32 == zlib.crc32(request.body) & 0x7FFFFFFF
        self.body = RegisterBrokerBody.decode(request.body, compressed=self.header.compressed)
        order = self.order.encode() if self.order else b""
        return request.answer(ext_fields=self.addresses, body=order)

    def query_data_version(self, request: RemotingCommand) -> RemotingCommand:
        asked = DataVersion.decode(request.body)
        changed = self.body is None or self.version != asked
        return request.answer(ext_fields={"changed": str(changed).lower()})

    def unregister_broker(self, request: RemotingCommand) -> RemotingCommand:
        self.header = self.body = None
        self.unregistered = request.ext_fields["brokerId"]
        return request.answer()

    @property
    def version(self) -> DataVersion:
        assert self.body is not None
        return self.body.topic_config_serialize_wrapper.data_version

    @property
    def topics(self) -> dict[str, TopicConfig]:
        assert self.body is not None
        return self.body.topic_config_serialize_wrapper.topic_config_table


class Cluster:
    """A broker's registration with two fake NameServers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.servers = {ONE: FakeNameServer(), TWO: FakeNameServer()}
        self.one, self.two = self.servers.values()
        self.running: list[Registration] = []
        self.configure()

    def configure(self, **settings: Any) -> None:
        config = dataclasses.replace(CONFIG, **settings)
        self.topics = TopicTable(config, self.directory, now=lambda: 1000)
        role = BrokerRole.SLAVE if config.broker_id else BrokerRole.ASYNC_MASTER
        self.role = Role(role, config.broker_id)
        self.registration = Registration(
            config,
            self.topics,
            self,
            broker_address="127.0.0.1:10911",
            ha_address="127.0.0.1:10912",
            role=self.role,
        )
        self.running.append(self.registration)

    async def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout: float,  # noqa: ASYNC109 - the client's interface
    ) -> RemotingCommand:
        server = self.servers[address]
        if not server.reachable:
            raise RemotingConnectError(address, f"cannot connect to {address}")
        async with asyncio.timeout(timeout):
            return await server.answer(command)


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    # Only tests that are about the period let one pass.
    monkeypatch.setattr(module, "_MIN_PERIOD_SECONDS", 1000.0)
    monkeypatch.setattr(module, "_MAX_PERIOD_SECONDS", 1000.0)
    monkeypatch.setattr(module, "_RETRY_SECONDS", 1000.0)
    cluster = Cluster(tmp_path)
    yield cluster
    for registration in cluster.running:
        await registration.stop()


def let_periods_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MIN_PERIOD_SECONDS", "_MAX_PERIOD_SECONDS", "_RETRY_SECONDS"):
        monkeypatch.setattr(module, name, 0.01)


async def test_registers_everywhere_at_start(cluster: Cluster) -> None:
    await cluster.registration.start()
    await until(lambda: cluster.one.body is not None and cluster.two.body is not None)
    header = cluster.one.header
    assert header is not None
    assert header == RegisterBrokerRequestHeader(
        broker_name="broker-a",
        broker_addr="127.0.0.1:10911",
        cluster_name="DefaultCluster",
        ha_server_addr="127.0.0.1:10912",
        broker_id=3,
        compressed=False,
        body_crc32=header.body_crc32,
    )
    assert cluster.one.topics == cluster.topics.snapshot().topic_config_table
    assert cluster.one.body == cluster.two.body


async def test_compressed_body(cluster: Cluster) -> None:
    cluster.configure(compressed_register=True)
    await cluster.registration.start()
    await cluster.registration.register_now()
    assert cluster.one.header is not None
    assert cluster.one.header.compressed
    assert cluster.one.topics == cluster.topics.snapshot().topic_config_table


async def test_a_large_table_is_compressed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_LARGE_BODY", 8000)
    await cluster.registration.start()
    assert cluster.one.header is not None
    assert not cluster.one.header.compressed
    for number in range(100):
        cluster.topics.update(TopicConfig(f"t{number}"))
    await cluster.registration.register_now()
    assert cluster.one.header.compressed
    assert cluster.one.topics == cluster.topics.snapshot().topic_config_table
    assert "of the maximum" not in caplog.text
    monkeypatch.setattr(module, "_LARGE_BODY", 100)
    for number in range(2):
        cluster.topics.update(TopicConfig(f"u{number}"))
        await cluster.registration.register_now()
    assert caplog.text.count("of the maximum: delete unused topics") == 1


async def test_a_table_that_does_not_fit_is_not_sent(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_MAX_BODY", 200)
    await cluster.registration.start()
    assert cluster.one.seen == []
    assert f"remove unused topics from {cluster.topics.file.path}" in caplog.text


async def test_restricted_broker_registers_its_own_permission(cluster: Cluster) -> None:
    cluster.configure(broker_permission=4)
    await cluster.registration.start()
    await cluster.registration.register_now()
    assert {topic.perm for topic in cluster.one.topics.values()} == {4}
    template = cluster.topics.get("TBW102")
    assert template is not None
    assert template.perm == 7, "the broker's own table keeps the topic's permission"


async def test_change_of_topics_is_registered_at_once(cluster: Cluster) -> None:
    await cluster.registration.start()
    cluster.topics.create_for_send("orders", "TBW102", 4)
    await until(lambda: "orders" in cluster.one.topics and "orders" in cluster.two.topics)


async def test_changes_during_a_registration_share_the_next_one(cluster: Cluster) -> None:
    await cluster.registration.start()
    await cluster.registration.register_now()
    before = len(cluster.one.seen)
    cluster.one.gate.clear()
    cluster.topics.update(TopicConfig("first"))
    await asyncio.sleep(0)
    for number in range(100):
        cluster.topics.update(TopicConfig(f"t{number}"))
    cluster.one.gate.set()
    await cluster.registration.register_now()
    assert "t99" in cluster.one.topics
    assert len(cluster.one.seen) - before <= 3


async def test_register_now_returns_after_the_answer(cluster: Cluster) -> None:
    await cluster.registration.start()
    await until(lambda: cluster.two.body is not None)
    cluster.topics.update(TopicConfig("orders"))
    await cluster.registration.register_now()
    assert "orders" in cluster.one.topics
    assert "orders" in cluster.two.topics


async def test_a_registration_that_began_after_the_change_is_enough(cluster: Cluster) -> None:
    await cluster.registration.start()
    await cluster.registration.register_now()
    await until(lambda: cluster.two.body is not None)
    before = len(cluster.one.seen)
    cluster.one.gate.clear()
    cluster.topics.update(TopicConfig("orders"))
    first, _ = cluster.registration._name_servers
    version = cluster.topics.data_version
    await until(lambda: first.running_attempt(version) is not None)

    waiting = asyncio.create_task(cluster.registration.register_now())
    await asyncio.sleep(0)
    assert not waiting.done()
    cluster.one.gate.set()
    await waiting

    assert "orders" in cluster.one.topics
    assert "orders" in cluster.two.topics
    assert len(cluster.one.seen) - before == 1


async def test_unreachable_server_delays_nobody(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.one.reachable = False
    with caplog.at_level(logging.WARNING):
        await cluster.registration.start()
        cluster.topics.update(TopicConfig("orders"))
        await cluster.registration.register_now()
    assert "orders" in cluster.two.topics
    assert [ONE in record.message for record in caplog.records] == [True]


async def test_hanging_server_delays_nobody(cluster: Cluster) -> None:
    cluster.one.gate.clear()
    await cluster.registration.start()
    cluster.topics.update(TopicConfig("orders"))
    await cluster.registration.register_now()
    assert "orders" in cluster.two.topics
    assert cluster.one.body is None
    cluster.one.gate.set()
    await until(lambda: cluster.one.body is not None and "orders" in cluster.one.topics)


async def test_start_ends_when_all_servers_fail(cluster: Cluster) -> None:
    cluster.one.reachable = False
    cluster.two.refuse = True
    await cluster.registration.start()
    assert cluster.one.body is None
    assert cluster.two.body is None


async def test_broker_without_name_servers(cluster: Cluster) -> None:
    cluster.configure(namesrv_addr=None)
    await cluster.registration.start()
    cluster.topics.update(TopicConfig("orders"))
    await cluster.registration.register_now()
    await cluster.registration.stop()
    assert cluster.one.seen == []


async def test_registers_each_period_and_retries(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_periods_pass(monkeypatch)
    cluster.one.reachable = False
    await cluster.registration.start()
    await until(lambda: len(cluster.two.seen) >= 3)
    assert set(cluster.two.seen) == {RequestCode.REGISTER_BROKER}
    cluster.one.reachable = True
    await until(lambda: cluster.one.body is not None)


async def test_unchanged_servers_are_skipped_unless_forced(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_periods_pass(monkeypatch)
    cluster.configure(force_register=False)
    await cluster.registration.start()
    await until(lambda: len(cluster.one.seen) >= 4)
    assert cluster.one.seen[0] is RequestCode.REGISTER_BROKER
    assert set(cluster.one.seen[1:]) == {RequestCode.QUERY_DATA_VERSION}
    # A NameServer that was restarted empty is registered at again, the other is not.
    cluster.one.body = None
    await until(lambda: cluster.one.body is not None)
    await until(lambda: len(cluster.two.seen) >= 2)
    assert cluster.two.seen.count(RequestCode.REGISTER_BROKER) == 1


async def test_other_version_in_the_answer_counts_as_changed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_periods_pass(monkeypatch)
    cluster.configure(force_register=False)
    monkeypatch.setattr(
        cluster.one,
        "query_data_version",
        lambda request: request.answer(
            ext_fields={"changed": "false"}, body=DataVersion(1, 99).encode()
        ),
    )
    await cluster.registration.start()
    await until(lambda: cluster.one.seen.count(RequestCode.REGISTER_BROKER) >= 2)


async def test_order_topics_come_from_the_first_server(cluster: Cluster) -> None:
    cluster.one.order = KVTable({"orders": "broker-a:4"})
    cluster.two.order = KVTable({"payments": "broker-a:4"})
    for name in ("orders", "payments"):
        cluster.topics.update(TopicConfig(name))
    await cluster.registration.start()
    await cluster.registration.register_now()
    await until(lambda: cluster.topics.is_order_topic("orders"))
    await cluster.registration.register_now()
    assert not cluster.topics.is_order_topic("payments")


async def test_masters_addresses_are_kept(cluster: Cluster) -> None:
    addresses = {"masterAddr": "10.0.0.9:10911", "haServerAddr": "10.0.0.9:10912"}
    cluster.one.addresses = cluster.two.addresses = addresses
    await cluster.registration.start()
    assert cluster.registration.master_address == "10.0.0.9:10911"
    assert cluster.registration.master_ha_address == "10.0.0.9:10912"

    cluster.one.addresses = cluster.two.addresses = {}
    await cluster.registration.register_now()

    assert cluster.registration.master_address is None
    assert cluster.registration.last_master_address == "10.0.0.9:10911"
    assert cluster.registration.master_ha_address == "10.0.0.9:10912"


async def test_a_changed_id_is_registered_and_unregistered(cluster: Cluster) -> None:
    await cluster.registration.start()
    assert cluster.one.header is not None
    assert cluster.one.header.broker_id == 3

    cluster.role.change(BrokerRole.ASYNC_MASTER, 0)
    await cluster.registration.register_now()
    assert cluster.one.header.broker_id == 0

    await cluster.registration.stop()
    assert cluster.one.unregistered == "0"


@pytest.mark.parametrize(
    "answer", [{"ext_fields": {"changed": "perhaps"}}, {"ext_fields": {}}, {"body": b"garbage"}]
)
async def test_answers_that_cannot_be_read_are_survived(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]
) -> None:
    let_periods_pass(monkeypatch)
    cluster.configure(force_register=False)
    for name in ("query_data_version", "register_broker"):
        monkeypatch.setattr(cluster.one, name, lambda request: request.answer(**answer))
    await cluster.registration.start()
    await until(lambda: len(cluster.one.seen) >= 4)
    assert cluster.two.body is not None


async def test_stop_unregisters_where_the_broker_is_known(cluster: Cluster) -> None:
    cluster.two.reachable = False
    await cluster.registration.start()
    await cluster.registration.stop()
    assert cluster.one.seen[-1] is RequestCode.UNREGISTER_BROKER
    assert cluster.one.body is None
    assert cluster.two.seen == []


async def test_stop_releases_those_who_wait(cluster: Cluster) -> None:
    await cluster.registration.start()
    await cluster.registration.register_now()
    cluster.one.gate.clear()
    waiter = asyncio.create_task(cluster.registration.register_now())
    await asyncio.sleep(0)
    cluster.one.gate.set()
    await cluster.registration.stop()
    async with asyncio.timeout(DEADLINE):
        await waiter


async def test_nobody_waits_for_a_registration_after_the_stop(cluster: Cluster) -> None:
    await cluster.registration.start()
    await cluster.registration.register_now()
    await cluster.registration.stop()
    cluster.topics.update(TopicConfig("late"))
    async with asyncio.timeout(DEADLINE):
        await cluster.registration.register_now()


async def test_nobody_waits_for_a_registration_during_the_stop(cluster: Cluster) -> None:
    await cluster.registration.start()
    await cluster.registration.register_now()
    cluster.one.gate.clear()
    stopping = asyncio.create_task(cluster.registration.stop())
    await until(lambda: cluster.two.seen[-1] is RequestCode.UNREGISTER_BROKER)
    async with asyncio.timeout(DEADLINE):
        await cluster.registration.register_now()
    cluster.one.gate.set()
    await stopping


def test_period_is_bounded() -> None:
    assert (module._MIN_PERIOD_SECONDS, module._MAX_PERIOD_SECONDS) == (10.0, 60.0)


async def test_real_name_server_knows_the_broker(tmp_path: Path) -> None:
    name_server = NameServer(
        NamesrvConfig(
            listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json")
        )
    )
    await name_server.start()
    client = RemotingClient()
    for compressed in (False, True):
        config = dataclasses.replace(
            CONFIG,
            namesrv_addr=f"127.0.0.1:{name_server.port}",
            broker_id=0,
            compressed_register=compressed,
        )
        topics = TopicTable(config, tmp_path / "config")
        registration = Registration(
            config,
            topics,
            client,
            broker_address="127.0.0.1:10911",
            ha_address="127.0.0.1:10912",
            role=Role(),
        )
        await registration.start()
        topics.create_for_send("orders", "TBW102", 4)
        await registration.register_now()
        route = name_server.routes.route("orders")
        assert route is not None
        assert route.broker_datas == [
            BrokerData("DefaultCluster", "broker-a", {0: "127.0.0.1:10911"})
        ]
        assert route.queue_datas == [QueueData("broker-a", 4, 4, 6, 0)]
        await registration.stop()
        assert name_server.routes.route("orders") is None
        await topics.file.close()
    await client.close()
    await name_server.stop()


async def test_other_name_servers(cluster: Cluster) -> None:
    cluster.configure(namesrv_addr=ONE)
    await cluster.registration.set_name_servers([ONE])  # before the start: nothing is sent
    await cluster.registration.start()
    await until(lambda: cluster.one.body is not None)
    seen = len(cluster.one.seen)
    await cluster.registration.set_name_servers([TWO, ONE])
    assert cluster.two.body is not None
    assert len(cluster.one.seen) == seen  # it stays as it is
    await cluster.registration.set_name_servers([TWO])
    assert cluster.one.unregistered == "3"
    cluster.topics.update(TopicConfig("new"))
    await cluster.registration.register_now()
    assert "new" in cluster.two.topics
    assert cluster.one.seen[-1] is RequestCode.UNREGISTER_BROKER


async def test_name_servers_that_are_found_after_the_start(cluster: Cluster) -> None:
    cluster.configure(namesrv_addr=None)
    await cluster.registration.start()
    assert cluster.one.body is None
    cluster.one.reachable = False
    await cluster.registration.set_name_servers([ONE, TWO])
    await until(lambda: cluster.two.body is not None)
