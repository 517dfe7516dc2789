from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers.heartbeat import HeartbeatHandlers
from pyromq.broker.parts import build_parts
from pyromq.broker.services.flow_control import Lanes
from pyromq.broker.services.long_poll import LongPoll
from pyromq.broker.state.connections import CLIENT_EXPIRY, ConsumerTable, ProducerTable
from pyromq.broker.state.tables import BrokerTables
from pyromq.protocol.java.fastjson import BodyError
from pyromq.protocol.wire.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from pyromq.protocol.wire.codes import PROTOCOL_VERSION, LanguageCode, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.headers import HeaderError
from pyromq.remoting.client import RemotingClient
from pyromq.remoting.server import RemotingServer
from pyromq.remoting.service import Service
from pyromq.store.growth import Growth
from tests.support.brokers import small_store
from tests.support.patience import DEADLINE, until
from tests.unit.broker.fakes import FakeConnection

CONFIG = BrokerConfig(
    broker_name="broker-a", broker_ip1="127.0.0.1", broker_ip2="127.0.0.1", namesrv_addr=None
)


class Broker:
    """The handlers with real tables."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        config = dataclasses.replace(CONFIG, **settings)
        self.now = 1000.0
        self.consumers = ConsumerTable(lambda: self.now)
        self.producers = ProducerTable(lambda: self.now)
        self.lanes = Lanes(config)
        store_config = small_store(directory)
        tables = BrokerTables.of(config, store_config)
        self.topics, self.groups = tables.topics, tables.groups
        store: Any = SimpleNamespace(config=store_config, growth=Growth())
        parts = build_parts(
            config,
            store,
            dataclasses.replace(tables, consumers=self.consumers, producers=self.producers),
            lanes=self.lanes,
            long_poll=LongPoll(config),
            store_host=bytes(8),
            address="127.0.0.1:10911",
            announce=AsyncMock(),
        )
        self.notices = parts.notices
        self.handlers = HeartbeatHandlers(parts)

    def beat(
        self,
        connection: FakeConnection,
        client_id: str = "c1",
        *,
        group: str | None = "g",
        topics: tuple[str, ...] = ("t",),
        producer: str | None = None,
        unit_mode: bool = False,
    ) -> RemotingCommand:
        heartbeat = HeartbeatData(client_id)
        if group is not None:
            subscriptions = [SubscriptionData(topic) for topic in topics]
            heartbeat.consumer_data_set.append(
                ConsumerData(group, subscription_data_set=subscriptions, unit_mode=unit_mode)
            )
        if producer is not None:
            heartbeat.producer_data_set.append(ProducerData(producer))
        request = RemotingCommand(
            RequestCode.HEART_BEAT,
            opaque=7,
            body=heartbeat.encode(),
            language=LanguageCode.JAVA,
            version=400,
        )
        answer = self.handlers.heart_beat(connection, request)
        assert isinstance(answer, RemotingCommand)
        return answer

    def members(self, group: str = "g") -> list[str]:
        request = RemotingCommand(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext_fields={"consumerGroup": group}
        )
        answer = self.handlers.consumer_list(FakeConnection(), request)
        return GetConsumerListByGroupResponseBody.decode(answer.body).consumer_id_list

    async def close(self) -> None:
        await self.notices.stop()
        await self.lanes.stop()
        await self.topics.file.close()
        await self.groups.file.close()

    def leave(self, connection: FakeConnection, **fields: str) -> RemotingCommand:
        request = RemotingCommand(
            RequestCode.UNREGISTER_CLIENT, ext_fields={"clientID": "c1", **fields}
        )
        return self.handlers.unregister_client(connection, request)


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


def notices(connection: FakeConnection) -> list[str]:
    sent = [command.ext_fields["consumerGroup"] for command in connection.sent]
    for command in connection.sent:
        assert command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        assert command.is_oneway
        assert not command.is_response
    del connection.sent[:]
    return sent


def test_heartbeat_registers_and_creates_group_and_retry_topic(broker: Broker) -> None:
    connection = FakeConnection()
    answer = broker.beat(connection, producer="p")
    assert (answer.code, answer.opaque, answer.remark) == (ResponseCode.SUCCESS, 7, None)
    assert answer.version == PROTOCOL_VERSION
    assert "g" in broker.groups
    assert broker.topics.get("%RETRY%g") == TopicConfig("%RETRY%g", 1, 1, 6)
    assert broker.members() == ["c1"]
    (producer,) = broker.producers.members("p")
    assert (producer.client_id, producer.language, producer.version) == (
        "c1",
        LanguageCode.JAVA,
        400,
    )
    assert broker.consumers.subscription("g", "t") == SubscriptionData("t")


def test_retry_topic_has_the_groups_queues_and_unit_flag(broker: Broker) -> None:
    broker.groups.update(SubscriptionGroupConfig("g", retry_queue_nums=3))
    broker.beat(FakeConnection(), unit_mode=True)
    assert broker.topics.get("%RETRY%g") == TopicConfig("%RETRY%g", 3, 3, 6, topic_sys_flag=2)


def test_members_are_notified_of_changes_only(broker: Broker) -> None:
    one, two = FakeConnection(), FakeConnection()
    broker.beat(one)
    assert notices(one) == ["g"]
    broker.beat(two, "c2")
    assert (notices(one), notices(two)) == (["g"], ["g"])
    broker.beat(one)
    broker.beat(two, "c2")
    assert (notices(one), notices(two)) == ([], [])
    broker.beat(one, topics=("t", "u"))
    assert (notices(one), notices(two)) == (["g"], ["g"])


def test_leaving_notifies_the_others(broker: Broker) -> None:
    one, two = FakeConnection(), FakeConnection()
    broker.beat(one, producer="p")
    broker.beat(two, "c2")
    notices(one), notices(two)
    answer = broker.leave(one, producerGroup="p", consumerGroup="g")
    assert answer.code == ResponseCode.SUCCESS
    assert (notices(one), notices(two)) == ([], ["g"])
    assert broker.members() == ["c2"]
    assert broker.producers.groups() == []
    broker.leave(one, consumerGroup="g")
    assert notices(two) == []


def test_leaving_creates_no_group(broker: Broker) -> None:
    broker.leave(FakeConnection(), consumerGroup="never-seen")
    assert "never-seen" not in broker.groups


def test_a_lost_connection_notifies_the_others(broker: Broker) -> None:
    one, two = FakeConnection(), FakeConnection()
    broker.beat(one, producer="p")
    broker.beat(two, "c2")
    notices(two)
    one.close()
    broker.handlers.disconnected(one)
    assert notices(two) == ["g"]
    assert broker.producers.groups() == []
    broker.handlers.disconnected(FakeConnection())


def test_closed_members_are_not_written_to(broker: Broker) -> None:
    one, two = FakeConnection(), FakeConnection()
    broker.beat(one)
    one.close()
    broker.beat(two, "c2")
    assert notices(two) == ["g"]


def test_silent_clients_are_dropped(broker: Broker) -> None:
    one, two = FakeConnection(), FakeConnection()
    broker.beat(one, producer="p")
    broker.now += CLIENT_EXPIRY + 1
    broker.beat(two, "c2")
    notices(two)
    broker.handlers.expire()
    assert one.closed
    assert notices(two) == ["g"]
    assert broker.members() == ["c2"]
    assert broker.producers.groups() == []


def test_notices_can_be_switched_off_for_the_broker(tmp_path: Path) -> None:
    broker = Broker(tmp_path, notify_consumer_ids_changed_enable=False)
    one = FakeConnection()
    broker.beat(one)
    assert notices(one) == []


def test_notices_can_be_switched_off_for_a_group(broker: Broker) -> None:
    broker.groups.update(SubscriptionGroupConfig("g", notify_consumer_ids_changed_enable=False))
    one, two = FakeConnection(), FakeConnection()
    broker.beat(one)
    broker.beat(two, "c2")
    broker.leave(one, consumerGroup="g")
    assert notices(one) == notices(two) == []


def test_unknown_group_joins_without_retry_topic_when_creation_is_off(tmp_path: Path) -> None:
    broker = Broker(tmp_path, auto_create_subscription_group=False)
    one = FakeConnection()
    assert broker.beat(one).code == ResponseCode.SUCCESS
    assert broker.members() == ["c1"]
    assert "%RETRY%g" not in broker.topics
    assert notices(one) == ["g"]


def test_an_illegal_group_name_creates_no_topic(broker: Broker) -> None:
    before = len(broker.topics)
    assert broker.beat(FakeConnection(), group="../../x").code == ResponseCode.SUCCESS
    assert len(broker.topics) == before


def test_a_group_without_retries_gets_no_retry_topic(broker: Broker) -> None:
    broker.groups.update(SubscriptionGroupConfig("g", retry_queue_nums=0))
    broker.beat(FakeConnection())
    assert "%RETRY%g" not in broker.topics


def test_a_group_whose_name_is_too_long_for_a_topic_joins_without_one(broker: Broker) -> None:
    before = len(broker.topics)
    group = "g" * 127
    assert broker.beat(FakeConnection(), group=group).code == ResponseCode.SUCCESS
    assert broker.members(group) == ["c1"]
    assert len(broker.topics) == before


def large_heartbeat(count: int = 500) -> RemotingCommand:
    heartbeat = HeartbeatData("c1", producer_data_set=[ProducerData("p")])
    for number in range(count):
        subscriptions = [SubscriptionData(f"t{number}"), SubscriptionData(f"%RETRY%g{number}")]
        heartbeat.consumer_data_set.append(
            ConsumerData(f"g{number}", subscription_data_set=subscriptions)
        )
    return RemotingCommand(RequestCode.HEART_BEAT, opaque=8, body=heartbeat.encode())


async def test_a_heartbeat_of_many_groups_yields_to_the_loop(broker: Broker) -> None:
    connection = FakeConnection()
    beating = broker.handlers.heart_beat(connection, large_heartbeat())
    assert not isinstance(beating, RemotingCommand)
    done = asyncio.ensure_future(beating)
    counts = set()
    while not done.done():
        counts.add(len(broker.consumers))
        await asyncio.sleep(0)
    assert (done.result().code, done.result().opaque) == (ResponseCode.SUCCESS, 8)
    assert counts >= {32, 64, 96, 480}
    assert len(broker.consumers) == 500
    assert broker.members("g499") == ["c1"]
    assert "%RETRY%g499" in broker.topics
    assert [member.client_id for member in broker.producers.members("p")] == ["c1"]
    await until(lambda: len(connection.sent) == 500)
    assert len(set(notices(connection))) == 500
    await broker.close()


async def test_a_client_that_disconnects_meanwhile_is_not_registered(broker: Broker) -> None:
    connection = FakeConnection()
    beating = broker.handlers.heart_beat(connection, large_heartbeat())
    assert not isinstance(beating, RemotingCommand)
    done = asyncio.ensure_future(beating)
    while not len(broker.consumers):  # noqa: ASYNC110 - in the first turn that can be
        await asyncio.sleep(0)
    connection.close()
    broker.handlers.disconnected(connection)
    await done
    assert len(broker.consumers) == 0
    assert broker.producers.groups() == []
    await broker.close()


async def test_a_large_malformed_heartbeat_is_an_error(broker: Broker) -> None:
    request = RemotingCommand(RequestCode.HEART_BEAT, body=b"{" * 20_000)
    beating = broker.handlers.heart_beat(FakeConnection(), request)
    assert not isinstance(beating, RemotingCommand)
    with pytest.raises(BodyError):
        await beating
    await broker.close()


def heartbeat_of(groups: int, subscriptions: int = 0, first: int = 0) -> RemotingCommand:
    wanted = [SubscriptionData(f"t{number}") for number in range(subscriptions)]
    members = [
        ConsumerData(f"g{first + number}", subscription_data_set=wanted) for number in range(groups)
    ]
    body = HeartbeatData("c1", consumer_data_set=members).encode()
    return RemotingCommand(RequestCode.HEART_BEAT, body=body)


@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        (heartbeat_of(21), "names 21 groups, limit 20 (maxGroupsPerHeartbeat)"),
        (heartbeat_of(2, 16), "has 32 subscriptions, limit 30 (maxSubscriptionsPerHeartbeat)"),
        (
            RemotingCommand(RequestCode.HEART_BEAT, body=HeartbeatData("c" * 2000).encode()),
            "client id has 2000 characters, limit 1024",
        ),
        (
            RemotingCommand(
                RequestCode.HEART_BEAT,
                body=HeartbeatData("c", [ProducerData("p" * 300)]).encode(),
            ),
            "name has 300 characters, limit 255",
        ),
    ],
)
def test_a_heartbeat_above_the_limits_is_refused(
    tmp_path: Path, request_: RemotingCommand, fault: str
) -> None:
    broker = Broker(tmp_path, max_groups_per_heartbeat=20, max_subscriptions_per_heartbeat=30)
    groups, topics = len(broker.groups), len(broker.topics)
    with pytest.raises(RequestError) as refused:
        broker.handlers.heart_beat(FakeConnection(), request_)
    assert fault in refused.value.remark
    assert (len(broker.groups), len(broker.topics), len(broker.consumers)) == (groups, topics, 0)
    assert broker.producers.groups() == []


def test_a_connection_has_a_limited_number_of_groups(tmp_path: Path) -> None:
    broker = Broker(tmp_path, max_groups_per_connection=5)
    connection = FakeConnection()
    broker.beat(connection, producer="p")
    broker.handlers.heart_beat(connection, heartbeat_of(3))
    broker.handlers.heart_beat(connection, heartbeat_of(3))
    with pytest.raises(RequestError, match=r"has 6 groups, limit 5 \(maxGroupsPerConnection\)"):
        broker.handlers.heart_beat(connection, heartbeat_of(1, first=3))
    assert len(broker.consumers) == 4
    broker.handlers.heart_beat(FakeConnection(), heartbeat_of(1, first=3))
    assert len(broker.consumers) == 5


async def test_heartbeats_at_the_same_time_share_the_limit_of_their_connection(
    tmp_path: Path,
) -> None:
    broker = Broker(tmp_path, max_groups_per_connection=600)
    connection = FakeConnection()

    async def beat(first: int) -> RemotingCommand:
        request = heartbeat_of(400, 1, first)
        assert len(request.body) > 16 * 1024
        answer = broker.handlers.heart_beat(connection, request)
        assert not isinstance(answer, RemotingCommand)
        return await answer

    outcomes = await asyncio.gather(beat(0), beat(400), beat(800), return_exceptions=True)
    # Depending on the others, a late one is refused as a whole or in part.
    assert 400 <= len(broker.consumers) <= 600
    assert any("limit 600 (maxGroupsPerConnection)" in str(each) for each in outcomes)
    await broker.close()


def test_a_full_broker_creates_neither_group_nor_topic(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.beat(FakeConnection(), group="first")
    full = Broker(
        tmp_path,
        max_subscription_groups=len(broker.groups) + 1,
        max_topics=len(broker.topics) + 1,
    )
    full.groups.load()
    full.topics.load()
    assert full.beat(FakeConnection(), group="second").code == ResponseCode.SUCCESS
    answer = full.beat(FakeConnection(), group="third")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "group third not created: the broker has " in (answer.remark or "")
    assert "(maxSubscriptionGroups)" in (answer.remark or "")
    assert "third" not in full.groups
    assert full.consumers.find("third") is None
    assert full.beat(FakeConnection(), group="first").code == ResponseCode.SUCCESS


def test_a_group_without_room_for_its_retry_topic_still_joins(tmp_path: Path) -> None:
    broker = Broker(tmp_path, max_topics=0)
    answer = broker.beat(FakeConnection())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "topic %RETRY%g not created" in (answer.remark or "")
    assert broker.members() == ["c1"]


def test_subscriptions_take_a_limited_part_of_memory(tmp_path: Path) -> None:
    broker = Broker(tmp_path, max_subscription_bytes=15_000)
    one = FakeConnection()
    assert broker.beat(one, group="g", topics=("t" * 10_000,)).remark is None
    answer = broker.beat(FakeConnection(), group="h", topics=("u" * 10_000,))
    assert "all subscriptions take 22050 bytes" in (answer.remark or "")
    assert "limit 15000 (maxSubscriptionBytes)" in (answer.remark or "")
    assert broker.consumers.find("h") is None
    assert broker.beat(one, group="g", topics=("t" * 10_000,)).remark is None
    broker.handlers.disconnected(one)
    assert broker.beat(FakeConnection(), group="h", topics=("u" * 10_000,)).remark is None


def test_list_of_a_group_without_members_is_an_error(broker: Broker) -> None:
    with pytest.raises(RequestError, match="no consumer for this group, absent") as raised:
        broker.members("absent")
    assert raised.value.code is ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"\xff", b'{"clientID":"c","consumerDataSet":3}']
)
def test_bad_heartbeats_are_errors(broker: Broker, body: bytes) -> None:
    with pytest.raises(BodyError):
        broker.handlers.heart_beat(
            FakeConnection(), RemotingCommand(RequestCode.HEART_BEAT, body=body)
        )


def test_leaving_without_client_id_is_an_error(broker: Broker) -> None:
    with pytest.raises(HeaderError, match="clientID"):
        broker.handlers.unregister_client(
            FakeConnection(), RemotingCommand(RequestCode.UNREGISTER_CLIENT)
        )


@pytest.mark.parametrize(
    "subscription", ["null", '{"topic":"t"}', '{"topic":"t","expressionType":"TAG"}']
)
def test_tag_subscriptions_are_fine(broker: Broker, subscription: str) -> None:
    body = f'{{"clientId":"c","group":"g","subscriptionData":{subscription}}}'.encode()
    request = RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, body=body)
    answer = broker.handlers.check_client_config(FakeConnection(), request)
    assert answer.code == ResponseCode.SUCCESS


def test_other_subscriptions_are_refused(broker: Broker) -> None:
    body = b'{"subscriptionData":{"topic":"t","expressionType":"SQL92","subString":"a > 1"}}'
    request = RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, body=body)
    with pytest.raises(RequestError, match="SQL92"):
        broker.handlers.check_client_config(FakeConnection(), request)


def test_sql_subscriptions_are_compiled(tmp_path: Path) -> None:
    broker = Broker(tmp_path, enable_property_filter=True)

    def check(expression: str, kind: str = "SQL92") -> RemotingCommand:
        subscription = SubscriptionData("t", expression, expression_type=kind)
        body = CheckClientRequestBody("c1", "g", subscription).encode()
        request = RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, body=body)
        return broker.handlers.check_client_config(FakeConnection(), request)

    assert check("a > 1").code == ResponseCode.SUCCESS
    for expression, kind, cause in (
        ("a >", "SQL92", "Invalid MessageSelector. .*found the end at character 4"),
        ("", "SQL92", "the expression is empty"),
        ("a", "XPATH", "TAG or SQL92"),
    ):
        with pytest.raises(RequestError, match=cause) as refused:
            check(expression, kind)
        assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_members_are_notified_over_the_wire(broker: Broker) -> None:
    server = RemotingServer(host="127.0.0.1")
    await server.start(
        Service(broker.handlers.routes().plain, on_disconnect=broker.handlers.disconnected)
    )
    address = f"127.0.0.1:{server.port}"
    heard: asyncio.Queue[str] = asyncio.Queue()

    def notified(_: object, notice: RemotingCommand) -> None:
        heard.put_nowait(notice.ext_fields["consumerGroup"])

    one = RemotingClient({RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: notified})
    two = RemotingClient()
    async with asyncio.timeout(DEADLINE):
        for client, client_id in ((one, "c1"), (two, "c2")):
            body = HeartbeatData(client_id, consumer_data_set=[ConsumerData("g")]).encode()
            answer = await client.request(
                address, RemotingCommand(RequestCode.HEART_BEAT, body=body)
            )
            assert answer.code == ResponseCode.SUCCESS
            assert await heard.get() == "g"
        assert broker.members() == ["c1", "c2"]
        await two.close()
        assert await heard.get() == "g"
        assert broker.members() == ["c1"]
        await one.close()
        await server.stop()
        await broker.topics.file.close()
        await broker.groups.file.close()
