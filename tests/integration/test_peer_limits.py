"""What a hostile or careless peer can do to a broker on real sockets: little, and not for long."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from pyromq.broker.broker import Broker
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.wire.bodies import (
    ConsumerData,
    HeartbeatData,
    KVTable,
    SubscriptionData,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from pyromq.protocol.wire.bodies_admin import ConsumeStatsList
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import UpdateConsumerOffsetRequestHeader
from pyromq.remoting.client import RemotingClient
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE, until
from tests.support.requests import send_request


class Cluster:
    """A NameServer, a broker and a peer that may be hostile."""

    def __init__(self, broker: Broker, nameserver: NameServer, peer: RemotingClient) -> None:
        self.broker = broker
        self.nameserver = nameserver
        self.peer = peer

    async def ask(self, request: RemotingCommand) -> RemotingCommand:
        return await self.peer.request(f"127.0.0.1:{self.broker.port}", request, DEADLINE)


@asynccontextmanager
async def cluster(root: Path, **settings: Any) -> AsyncIterator[Cluster]:
    nameserver = NameServer(
        NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(root / "kv.json"))
    )
    await nameserver.start()
    address = f"127.0.0.1:{nameserver.port}"
    broker = Broker(local_broker(namesrv_addr=address, **settings), small_store(root / "store"))
    await broker.start()
    peer = RemotingClient()
    try:
        yield Cluster(broker, nameserver, peer)
    finally:
        await peer.close()
        await broker.stop()
        await nameserver.stop()


def heartbeat(*members: ConsumerData, client_id: str = "c") -> RemotingCommand:
    body = HeartbeatData(client_id, consumer_data_set=list(members)).encode()
    return RemotingCommand(RequestCode.HEART_BEAT, body=body)


async def test_heartbeats_of_very_many_groups_do_not_take_the_routes_away(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        topics = len(running.broker.topics)
        for first in range(0, 60_000, 20_000):
            groups = [
                ConsumerData(f"{'g' * 60}{number}") for number in range(first, first + 20_000)
            ]
            answer = await running.ask(heartbeat(*groups))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == (
                "the heartbeat names 20000 groups, limit 5000 (maxGroupsPerHeartbeat)"
            )
        assert len(running.broker.topics) == topics
        assert (await running.ask(send_request(topic="New", queueId="0"))).remark is None
        await until(lambda: running.nameserver.routes.route("New"))


async def test_a_broker_whose_topics_do_not_fit_as_json_is_found(tmp_path: Path) -> None:
    """70,000 retry topics of an earlier version: more than 16 MiB of JSON."""
    names = [f"%RETRY%{'g' * 60}{number}" for number in range(70_000)]
    table = {name: TopicConfig(name, 1, 1) for name in names}
    content = TopicConfigSerializeWrapper(table).encode()
    assert len(content) > 16 * 1024 * 1024
    path = tmp_path / "store" / "config" / "topics.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    async with cluster(tmp_path) as running:
        assert len(running.broker.topics) > 70_000
        route = running.nameserver.routes.route(names[-1])
        assert route is not None
        assert (await running.ask(send_request(topic="New", queueId="0"))).remark is None
        await until(lambda: running.nameserver.routes.route("New"))


@pytest.mark.parametrize("retry", [False, True])
async def test_a_full_broker_refuses_new_topics_and_serves_the_others(
    tmp_path: Path, retry: bool
) -> None:
    async with cluster(tmp_path) as running:
        assert (await running.ask(send_request(topic="Old", queueId="0"))).remark is None
    async with cluster(tmp_path, max_topics=1) as running:
        name = "%RETRY%group" if retry else "New"
        answer = await running.ask(send_request(topic=name, queueId="0"))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f"topic {name} not created: the broker has" in (answer.remark or "")
        assert "limit 1 (maxTopics)" in (answer.remark or "")
        assert (await running.ask(send_request(topic="Old", queueId="0"))).remark is None
        create = RemotingCommand(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            ext_fields={
                "topic": "New",
                "defaultTopic": "TBW102",
                "readQueueNums": "1",
                "writeQueueNums": "1",
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
            },
        )
        assert "(maxTopics)" in ((await running.ask(create)).remark or "")


async def test_a_heartbeat_with_very_many_expressions_leaves_nothing(tmp_path: Path) -> None:
    def sql(count: int) -> ConsumerData:
        wanted = [
            SubscriptionData(f"t{number}", f"a > {number}", expression_type="SQL92")
            for number in range(count)
        ]
        return ConsumerData("g", subscription_data_set=wanted)

    async with cluster(tmp_path, enable_property_filter=True) as running:
        answer = await running.ask(heartbeat(sql(80_000)))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "limit 8388608 (maxHeartbeatBodySize)" in (answer.remark or "")
        answer = await running.ask(heartbeat(sql(30_000)))
        assert "30000 subscriptions, limit 20000" in (answer.remark or "")
        assert running.broker.consumers.find("g") is None
        # As many as may be, of which half have a filter, none of which is ever needed.
        assert (await running.ask(heartbeat(sql(20_000)))).code == ResponseCode.SUCCESS
        assert running.broker.filters.find("t9999", "g") is not None
        assert running.broker.filters.find("t10000", "g") is None
        await running.peer.close()
        await until(lambda: running.broker.consumers.find("g") is None)
        await running.broker.filters.file.saved()
        saved = orjson.loads(running.broker.filters.file.path.read_bytes())
        assert list(saved["filterDataByTopic"]) == ["t9999"]


async def test_a_request_for_very_many_locks_locks_nothing(tmp_path: Path) -> None:
    def lock(count: int) -> RemotingCommand:
        queues = [{"topic": "t", "brokerName": "b", "queueId": number} for number in range(count)]
        body = {"clientId": "c", "consumerGroup": "g", "mqSet": queues}
        return RemotingCommand(RequestCode.LOCK_BATCH_MQ, body=orjson.dumps(body))

    async with cluster(tmp_path) as running:
        answer = await running.ask(lock(350_000))
        assert "limit 8388608 (maxHeartbeatBodySize)" in (answer.remark or "")
        answer = await running.ask(lock(70_000))
        assert "70000 queues, limit 65536 (maxQueuesPerLockRequest)" in (answer.remark or "")
        assert len(running.broker.queue_locks) == 0
        assert (await running.ask(lock(5000))).code == ResponseCode.SUCCESS
        assert len(running.broker.queue_locks) == 5000


def commit(group: str, topic: str, offset: int, queue_id: int = 0) -> RemotingCommand:
    header = UpdateConsumerOffsetRequestHeader(group, topic, queue_id, offset)
    return RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=header.encode())


async def test_commits_for_what_does_not_exist_leave_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        assert (await running.ask(send_request(topic="T", queueId="0"))).remark is None
        for number in range(200):
            answer = await running.ask(commit(f"g{number}", f"unknown{number}", 5))
            assert answer.code == ResponseCode.SUCCESS
            answer = await running.ask(commit(f"g{number}", "T", 5, queue_id=1000 + number))
            assert answer.code == ResponseCode.SUCCESS
        assert (await running.ask(commit("g", "T", 1))).code == ResponseCode.SUCCESS
        assert list(running.broker.offsets.pairs()) == [("T", "g")]


async def test_offsets_of_a_deleted_topic_are_forgotten(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        for topic in ("T", "U"):
            assert (await running.ask(send_request(topic=topic, queueId="0"))).remark is None
            assert (await running.ask(commit("g", topic, 1))).code == ResponseCode.SUCCESS
        delete = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "T"})
        assert (await running.ask(delete)).code == ResponseCode.SUCCESS
        assert list(running.broker.offsets.pairs()) == [("U", "g")]
    path = tmp_path / "store" / "config" / "consumerOffset.json"
    path.write_text('{"offsetTable":{"T@g":{0:1},"U@g":{0:1}}}')
    async with cluster(tmp_path) as running:
        assert list(running.broker.offsets.pairs()) == [("U", "g")]


async def test_two_groups_at_the_largest_offset_do_not_hide_the_others(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        for _ in range(3):
            assert (await running.ask(send_request(topic="T", queueId="0"))).remark is None
        for group, offset in (("honest", 1), ("first", 2**63 - 1), ("second", 2**63 - 1)):
            assert (await running.ask(heartbeat(ConsumerData(group)))).remark is None
            assert (await running.ask(commit(group, "T", offset))).remark is None
        answer = await running.ask(
            RemotingCommand(RequestCode.GET_BROKER_CONSUME_STATS, ext_fields={"isOrder": "false"})
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        found = ConsumeStatsList.decode(answer.body)
        # The honest group has two messages to read, the others none.
        assert found.total_diff == 2
        groups = {name for each in found.consume_stats_list for name in each}
        assert groups >= {"honest", "first", "second"}
        for group in ("honest", "first"):
            request = RemotingCommand(
                RequestCode.GET_CONSUME_STATS, ext_fields={"consumerGroup": group, "topic": "T"}
            )
            assert (await running.ask(request)).code == ResponseCode.SUCCESS
            request = RemotingCommand(
                RequestCode.QUERY_CONSUME_TIME_SPAN, ext_fields={"group": group, "topic": "T"}
            )
            assert (await running.ask(request)).code == ResponseCode.SUCCESS


async def test_half_messages_without_a_producer_are_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A message that was received, with all its properties, and sent on as it is."""
    settings = {
        "transaction_time_out": 0,
        "transaction_check_interval": 20,
        "transaction_check_max": 1_000_000,
    }
    async with cluster(tmp_path, **settings) as running:
        for _ in range(3):
            answer = await running.ask(
                send_request(
                    topic="T",
                    queueId="0",
                    bornTimestamp=str(time.time_ns() // 1_000_000),
                    properties="TRAN_MSG\x01true\x02PGROUP\x01nobody",
                )
            )
            assert answer.code == ResponseCode.SUCCESS

        async def counted() -> bool:
            answer = await running.ask(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
            return KVTable.decode(answer.body).table.get("halfMessagesWithoutProducer") == "3"

        await until(counted)
    line = "no producer to ask about 3 halves, the first is "
    assert any(line in message and "group nobody" in message for message in caplog.messages)
