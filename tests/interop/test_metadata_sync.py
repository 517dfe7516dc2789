"""Tables of a master and its replica, one of which is RocketMQ's.

Java's replica copies the tables of our master into its own files; ours copies those of Java's
master, with access control. Neither log is copied here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.services.metadata_sync import MetadataSync
from pyromq.broker.state.tables import BrokerTables
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.wire import acl
from pyromq.protocol.wire.bodies import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from tests.support.apache_rocketmq import QUICK_JVM_OPTIONS, ApacheRocketMQ, java_or_skip
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE, until
from tests.support.requests import send_request

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

ACCESS_KEY, SECRET_KEY = "replica", "12345678"
ACCOUNTS = f"""\
accounts:
  - accessKey: {ACCESS_KEY}
    secretKey: {SECRET_KEY}
    admin: true
"""


@pytest.fixture(autouse=True)
def java() -> None:
    java_or_skip()


class Files:
    """The tables in a directory `config`, as either broker writes them."""

    def __init__(self, store: Path) -> None:
        self._directory = store / "config"

    def tables(self) -> list[Any] | None:
        """Return topics, groups, consumer offsets and delay offsets; None while one is missing."""
        try:
            return [
                TopicConfigSerializeWrapper.decode(self._read("topics.json")),
                SubscriptionGroupWrapper.decode(self._read("subscriptionGroup.json")),
                ConsumerOffsetSerializeWrapper.decode(self._read("consumerOffset.json")),
                DelayOffsetSerializeWrapper.decode(self._read("delayOffset.json")),
            ]
        except (FileNotFoundError, ValueError):  # Java writes some of them in place
            return None

    def _read(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()


async def fill(client: RemotingClient, master: str) -> None:
    """Give a master a topic, a group, offsets and a delayed message; delete another topic."""

    async def ask(code: RequestCode, body: bytes = b"", **fields: str) -> None:
        command = RemotingCommand(code, ext_fields=fields, body=body)
        answer = await client.request(master, command, DEADLINE)
        assert answer.code == ResponseCode.SUCCESS, answer

    for topic in ("orders", "deleted"):
        await ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            topic=topic,
            defaultTopic="TBW102",
            readQueueNums="5",
            writeQueueNums="3",
            perm="6",
            topicFilterType="SINGLE_TAG",
            topicSysFlag="1",
            order="false",
        )
    await ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="deleted")
    group = SubscriptionGroupConfig("g", retry_max_times=3, which_broker_when_consume_slowly=2)
    await ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group.encode())
    for queue_id, offset in (("0", "12"), ("2", "4294967297")):
        await ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup="g",
            topic="orders",
            queueId=queue_id,
            commitOffset=offset,
        )
    delayed = send_request(topic="orders", properties="DELAY\x011")
    assert (await client.request(master, delayed, DEADLINE)).code == ResponseCode.SUCCESS


@pytest.fixture
async def name_server(tmp_path: Path) -> AsyncIterator[NameServer]:
    server = NameServer(
        NamesrvConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            kv_config_path=str(tmp_path / "kvConfig.json"),
            config_store_path=str(tmp_path / "namesrv.properties"),
        )
    )
    await server.start()
    yield server
    await server.stop()


async def test_java_s_replica_copies_the_tables_of_our_master(
    tmp_path: Path, name_server: NameServer
) -> None:
    names = f"127.0.0.1:{name_server.port}"
    master = Broker(
        local_broker(broker_name="broker-a", namesrv_addr=names),
        small_store(tmp_path / "ours", message_delay_level="10ms 20ms"),
    )
    replica = ApacheRocketMQ(
        store=tmp_path / "java",
        broker_only=True,
        namesrv_address=names,
        broker_name="broker-a",
        broker_properties={"brokerRole": "SLAVE", "brokerId": "1"},
        jvm_options=QUICK_JVM_OPTIONS,
    )
    client = RemotingClient()
    await master.start()
    try:
        await fill(client, master.address)
        await until(lambda: master.delay_offsets.get(1) == 1)
        await asyncio.to_thread(replica.start)
        files = Files(tmp_path / "java")
        await until(lambda: files.tables() == tables_of(master.tables))
        # It notices changes as well.
        master.topics.delete("orders")
        master.groups.find("later")
        master.offsets.commit("later", "TBW102", 0, 1)
        await until(lambda: files.tables() == tables_of(master.tables))
    finally:
        await asyncio.to_thread(replica.kill)
        await client.close()
        await master.stop()


def tables_of(tables: BrokerTables) -> list[Any]:
    return [
        tables.topics.snapshot(),
        tables.groups.snapshot(),
        ConsumerOffsetSerializeWrapper.decode(tables.offsets.snapshot().encode()),
        tables.delay_offsets.table(),
    ]


class CaughtUp:
    """The store of a replica that has the master's whole log."""

    min_physical_offset = 0
    max_physical_offset = flushed_offset = 1 << 40
    queue_count = 0

    def __init__(self) -> None:
        self.removed: list[str] = []

    def max_offset(self, topic: str, queue_id: int) -> int:
        return 1 << 40

    def remove_old_queues(self, topic: str, end: int, timestamp: int) -> int:
        assert end < self.max_physical_offset
        assert timestamp > 0
        self.removed.append(topic)
        return 1


async def test_our_replica_copies_the_tables_of_java_s_master(tmp_path: Path) -> None:
    master = ApacheRocketMQ(
        store=tmp_path / "java",
        jvm_options=QUICK_JVM_OPTIONS,
        broker_properties={
            "aclEnable": "true",
            "messageDelayLevel": " ".join(["1s"] * 18),
            "flushConsumerOffsetInterval": "500",
            "flushDelayOffsetInterval": "500",
        },
        files={"conf/plain_acl.yml": ACCOUNTS},
    )
    admin = RemotingClient(
        before_request=lambda _, command: acl.sign(
            command.ext_fields, command.body, ACCESS_KEY, SECRET_KEY
        )
    )
    client = RemotingClient()
    tables = BrokerTables.of(local_broker(), small_store(tmp_path / "ours"))
    store = CaughtUp()

    def sync(**settings: str) -> MetadataSync:
        return MetadataSync(
            local_broker(**settings),
            tables,
            store,
            client,
            master_address=lambda: master.broker_address,
            own_address="127.0.0.1:1",
            timeout=DEADLINE,
        )

    try:
        await asyncio.to_thread(master.start)
        await fill(admin, master.broker_address)
        keys = {"replication_access_key": ACCESS_KEY, "replication_secret_key": SECRET_KEY}
        signed = sync(**keys)
        java, ours = Files(tmp_path / "java"), Files(tmp_path / "ours")

        async def is_copied() -> bool:
            if await signed.sync_now():  # in its first second Java has no runtime information
                return False
            for table in (tables.topics, tables.groups, tables.offsets, tables.delay_offsets):
                await table.file.saved()
            found = java.tables()
            return (
                found is not None
                and found[3].offset_table.get(1) == 1
                and found == tables_of(tables) == ours.tables()
            )

        await until(is_copied)
        assert tables.offsets.queues("g", "orders") == {0: 12, 2: 4294967297}
        orders, group = tables.topics.get("orders"), tables.groups.get("g")
        assert orders is not None
        assert group is not None
        assert (orders.read_queue_nums, orders.write_queue_nums) == (5, 3)
        assert (group.retry_max_times, group.which_broker_when_consume_slowly) == (3, 2)
        assert store.removed == []
        # A topic that vanishes counts as deleted.
        command = RemotingCommand(
            RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "orders"}
        )
        await admin.request(master.broker_address, command, DEADLINE)
        assert await signed.sync_now() == []
        assert store.removed == ["orders"]
        assert "orders" not in tables.topics
        # Without, or with false keys, Java answers nothing.
        before = tables_of(tables)
        for settings in ({}, {**keys, "replication_secret_key": "87654321"}):
            faults = await sync(**settings).sync_now()
            assert len(faults) == 6, faults
        assert tables_of(tables) == before
    finally:
        await asyncio.to_thread(master.kill)
        await client.close()
        await admin.close()
