from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers.admin.topic import TopicAdminHandlers
from pyromq.broker.parts import build_parts
from pyromq.broker.services.flow_control import Lanes
from pyromq.broker.services.long_poll import LongPoll
from pyromq.broker.services.stats import BrokerStats
from pyromq.broker.services.topic_deletion import TopicDeletion
from pyromq.broker.state.groups import GroupTable
from pyromq.broker.state.offsets import ConsumerOffsetTable
from pyromq.broker.state.tables import BrokerTables
from pyromq.protocol.java.fastjson import BodyError
from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.wire.bodies import (
    SubscriptionGroupConfig,
    TopicConfig,
    TopicFilterType,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.headers import HeaderError
from pyromq.store.config import BrokerRole
from pyromq.store.growth import Growth
from tests.support.brokers import small_store
from tests.unit.broker.fakes import FakeConnection

CONFIG = BrokerConfig(
    broker_name="broker-a", broker_ip1="127.0.0.1", broker_ip2="127.0.0.1", namesrv_addr=None
)
TOPIC_FIELDS = {
    "topic": "orders",
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "3",
    "perm": "6",
    "topicFilterType": "MULTI_TAG",
    "topicSysFlag": "1",
    "order": "true",
}


class Broker:
    """The handlers with real tables."""

    def __init__(
        self, directory: Path, *, is_replica: bool = False, config: BrokerConfig = CONFIG
    ) -> None:
        self.stats = BrokerStats(Growth(), "cluster")
        role = BrokerRole.SLAVE if is_replica else BrokerRole.ASYNC_MASTER
        store_config = small_store(directory, broker_role=role)
        tables = BrokerTables.of(CONFIG, store_config)
        self.topics, self.groups, self.offsets = tables.topics, tables.groups, tables.offsets
        self.deleted = tables.deleted_topics
        self.min_physical_offset, self.max_physical_offset = 0, 100
        self.closed: list[str] = []
        self.removed: list[str] = []
        self.registered: list[int] = []
        self.connection = FakeConnection()
        store: Any = SimpleNamespace(config=store_config, growth=Growth())
        parts = build_parts(
            config,
            store,
            tables,
            lanes=Lanes(config),
            long_poll=LongPoll(config),
            store_host=encode_host("127.0.0.1", 10911),
            address="127.0.0.1:10911",
            announce=self.announce,
        )
        self.handlers = TopicAdminHandlers(
            dataclasses.replace(parts, stats=self.stats),
            TopicDeletion(self.topics, self.offsets, self.deleted, self),
        )

    def close_topic(self, topic: str) -> None:
        assert topic not in self.topics, "the topic goes first, so that nobody sends to it"
        self.closed.append(topic)

    def has_messages(self, topic: str) -> bool:
        return topic != "absent"

    def remove_topic(self, topic: str) -> None:
        assert not self.has_messages(topic) or self.closed[-1] == topic
        self.removed.append(topic)

    def remove_old_queues(self, topic: str, end: int, timestamp: int) -> int:
        raise AssertionError(f"only at a start: {topic}, {end}, {timestamp}")

    async def announce(self) -> None:
        self.registered.append(self.topics.data_version.counter)

    async def update_topic(self, **fields: str) -> RemotingCommand:
        request = RemotingCommand(
            RequestCode.UPDATE_AND_CREATE_TOPIC, opaque=3, ext_fields={**TOPIC_FIELDS, **fields}
        )
        return await self.handlers.update_topic(self.connection, request)

    async def delete_topic(self, topic: str) -> RemotingCommand:
        request = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": topic})
        return await self.handlers.delete_topic(self.connection, request)

    async def update_group(self, body: bytes) -> RemotingCommand:
        request = RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        return await self.handlers.update_group(self.connection, request)

    async def delete_group(self, **fields: str) -> RemotingCommand:
        request = RemotingCommand(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext_fields=fields)
        return await self.handlers.delete_group(self.connection, request)


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


async def test_topic_is_created_and_registered(broker: Broker) -> None:
    answer = await broker.update_topic()
    assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, 3)
    assert broker.topics.get("orders") == TopicConfig(
        "orders", 4, 3, 6, TopicFilterType.MULTI_TAG, 1, order=False
    )
    assert broker.registered == [1]
    await broker.update_topic(writeQueueNums="8")
    updated = broker.topics.get("orders")
    assert updated is not None
    assert updated.write_queue_nums == 8


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": ""},
        {"topic": "a/../b"},
        {"topic": "x" * 128},
        {"topic": "TBW102"},
        {"topic": "broker-a"},
        {"topic": "rmq_sys_x"},
        {"readQueueNums": "-1"},
        {"writeQueueNums": "-2147483648"},
        {"readQueueNums": "65537"},
        {"writeQueueNums": "2147483647"},
        {"perm": "16"},
        {"perm": "-1"},
        {"topicFilterType": "ANY"},
    ],
)
async def test_bad_topics_are_refused(broker: Broker, fields: dict[str, str]) -> None:
    before = broker.topics.snapshot()
    with pytest.raises(RequestError) as raised:
        await broker.update_topic(**fields)
    assert raised.value.code is ResponseCode.SYSTEM_ERROR
    assert broker.topics.snapshot() == before
    assert broker.registered == []


async def test_bad_number_names_the_field(broker: Broker) -> None:
    with pytest.raises(HeaderError, match="perm"):
        await broker.update_topic(perm="rw")


async def test_topic_is_deleted_with_its_queues(broker: Broker) -> None:
    await broker.update_topic()
    answer = await broker.delete_topic("orders")
    assert answer.code == ResponseCode.SUCCESS
    assert "orders" not in broker.topics
    assert broker.removed == ["orders"]
    assert broker.registered == [1, 2]
    assert b"orders" in broker.deleted.file.path.read_bytes()


async def test_deleting_an_unknown_topic_is_fine(broker: Broker) -> None:
    assert (await broker.delete_topic("absent")).code == ResponseCode.SUCCESS
    assert "absent" not in broker.deleted


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "DefaultCluster", "../x", ""])
async def test_system_topics_are_not_deleted(broker: Broker, topic: str) -> None:
    with pytest.raises(RequestError):
        await broker.delete_topic(topic)
    assert broker.removed == []


async def test_group_is_created_and_updated(broker: Broker) -> None:
    config = SubscriptionGroupConfig("payments", retry_max_times=3)
    assert (await broker.update_group(config.encode())).code == ResponseCode.SUCCESS
    assert broker.groups.get("payments") == config


@pytest.mark.parametrize(
    "body",
    [
        SubscriptionGroupConfig("a b").encode(),
        SubscriptionGroupConfig("").encode(),
        SubscriptionGroupConfig("g", retry_queue_nums=-1).encode(),
        SubscriptionGroupConfig("g", retry_queue_nums=65_537).encode(),
        SubscriptionGroupConfig("g", retry_max_times=-2).encode(),
    ],
)
async def test_bad_groups_are_refused(broker: Broker, body: bytes) -> None:
    with pytest.raises(RequestError):
        await broker.update_group(body)
    assert broker.groups.data_version.counter == 0


@pytest.mark.parametrize("body", [b"", b"{}", b"null", b"[1"])
async def test_malformed_groups_are_errors(broker: Broker, body: bytes) -> None:
    with pytest.raises(BodyError):
        await broker.update_group(body)


async def test_group_is_deleted_with_or_without_its_offsets(broker: Broker) -> None:
    for group in ("g", "h"):
        broker.groups.find(group)
        broker.offsets.commit(group, "t", 0, 5)
    await broker.delete_group(groupName="g")
    await broker.delete_group(groupName="h", removeOffset="true")
    assert "g" not in broker.groups
    assert "h" not in broker.groups
    assert broker.offsets.groups_of("t") == {"g"}


async def test_changes_of_groups_are_on_disk_before_the_response(
    broker: Broker, tmp_path: Path
) -> None:
    def saved() -> tuple[GroupTable, ConsumerOffsetTable]:
        directory = small_store(tmp_path).config_directory
        groups, offsets = GroupTable(CONFIG, directory), ConsumerOffsetTable(directory)
        groups.load()
        offsets.load()
        return groups, offsets

    await broker.update_group(SubscriptionGroupConfig("g", retry_max_times=3).encode())
    broker.offsets.commit("g", "t", 0, 5)
    assert saved()[0].get("g") == SubscriptionGroupConfig("g", retry_max_times=3)
    await broker.delete_group(groupName="g", removeOffset="true")
    groups, offsets = saved()
    assert "g" not in groups
    assert offsets.groups_of("t") == set()


async def test_replica_refuses_changes(tmp_path: Path) -> None:
    broker = Broker(tmp_path, is_replica=True)
    with pytest.raises(RequestError, match="Can't modify topic or subscription group from slave"):
        await broker.update_topic()
    with pytest.raises(RequestError, match="Can't modify topic or subscription group from slave"):
        await broker.delete_topic("orders")
    with pytest.raises(RequestError, match="Can't modify topic or subscription group from slave"):
        await broker.update_group(SubscriptionGroupConfig("g").encode())
    with pytest.raises(RequestError, match="Can't modify topic or subscription group from slave"):
        await broker.delete_group(groupName="g")


@pytest.mark.parametrize("forget", [False, True])
async def test_statistics_are_deleted_with_topics_and_groups(tmp_path: Path, forget: bool) -> None:
    config = dataclasses.replace(CONFIG, auto_delete_unused_stats=forget)
    broker = Broker(tmp_path, config=config)
    await broker.update_topic()
    await broker.update_group(SubscriptionGroupConfig("g").encode())
    broker.stats.pulled("g", "orders", 0, 1, 1)
    broker.stats.pulled("g", "other", 0, 1, 1)
    await broker.stats.count()

    await broker.delete_topic("orders")
    assert (broker.stats.view("GROUP_GET_NUMS", "orders@g") is None) is forget
    await broker.delete_group(groupName="g")
    assert (broker.stats.view("GROUP_GET_NUMS", "other@g") is None) is forget
