"""Two brokers of one process: the second one plays the replica that copies the first one's tables.

Neither copies the other's log. Both get the same messages, so that their logs have the same
offsets.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.services.metadata_sync import MetadataSync
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.message.record import decode_records
from pyromq.protocol.wire.bodies import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    TopicConfig,
    TopicRouteData,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE, until
from tests.support.requests import pull_request, send_request


class Pair:
    """A master, a replica, their NameServer, and a client of all of them."""

    def __init__(self, root: Path) -> None:
        self.client = RemotingClient()
        self.name_server = NameServer(
            NamesrvConfig(
                listen_port=0, bind_address="127.0.0.1", kv_config_path=str(root / "kv.json")
            )
        )
        self.root = root

    async def start(self) -> None:
        await self.name_server.start()
        # The replica delivers nothing: its delay levels are too long.
        self.master = await self._start_broker("master", "10ms 20ms")
        self.replica = await self._start_broker("replica", "1h 2h")
        assert self.replica.store is not None
        self.sync = MetadataSync(
            local_broker(),
            self.replica.tables,
            self.replica.store,
            self.client,
            master_address=lambda: self.master.address,
            own_address=self.replica.address,
            timeout=DEADLINE,
        )

    async def _start_broker(self, name: str, delay_levels: str) -> Broker:
        address = f"127.0.0.1:{self.name_server.port}"
        broker = Broker(
            local_broker(broker_name=name, namesrv_addr=address, enable_property_filter=True),
            small_store(
                self.root / name,
                message_delay_level=delay_levels,
                flush_interval_commit_log=10,
                flush_commit_log_least_pages=0,
            ),
        )
        await broker.start()
        return broker

    async def stop(self) -> None:
        await self.sync.stop()
        await self.client.close()
        await self.replica.stop()
        await self.master.stop()
        await self.name_server.stop()

    async def ask(self, broker: Broker, request: RemotingCommand) -> RemotingCommand:
        return await self.client.request(broker.address, request, DEADLINE)

    async def succeed(self, broker: Broker, request: RemotingCommand) -> RemotingCommand:
        answer = await self.ask(broker, request)
        assert answer.code == ResponseCode.SUCCESS, answer
        return answer

    async def send(self, *brokers: Broker, **values: Any) -> None:
        for broker in brokers:
            await self.succeed(broker, send_request(**values))

    async def change_topic(self, code: RequestCode, topic: str) -> None:
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": "2",
            "writeQueueNums": "2",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        await self.succeed(self.master, RemotingCommand(code, ext_fields=fields))

    async def routed_to(self, topic: str) -> set[str]:
        answer = await self.client.request(
            f"127.0.0.1:{self.name_server.port}",
            RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic}),
            DEADLINE,
        )
        if answer.code != ResponseCode.SUCCESS:
            return set()
        return {queue.broker_name for queue in TopicRouteData.decode(answer.body).queue_datas}


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(tmp_path)
    await pair.start()
    yield pair
    await pair.stop()


async def test_the_replica_serves_what_the_master_knows(pair: Pair) -> None:
    await pair.change_topic(RequestCode.UPDATE_AND_CREATE_TOPIC, "orders")
    sql = SubscriptionData("orders", "a > 5", sub_version=1, expression_type="SQL92")
    heartbeat = HeartbeatData("c1", [], [ConsumerData("g", subscription_data_set=[sql])])
    await pair.succeed(
        pair.master, RemotingCommand(RequestCode.HEART_BEAT, body=heartbeat.encode())
    )
    commit = {"consumerGroup": "g", "topic": "orders", "queueId": "1", "commitOffset": "7"}
    await pair.succeed(
        pair.master, RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=commit)
    )
    pull = pull_request(topic="orders", group="g")
    assert (await pair.ask(pair.replica, pull)).code == ResponseCode.TOPIC_NOT_EXIST

    assert await pair.sync.sync_now() == []

    master, replica = pair.master.tables, pair.replica.tables
    assert replica.topics.snapshot() == master.topics.snapshot()
    assert replica.groups.snapshot() == master.groups.snapshot()
    assert replica.offsets.query("g", "orders", 1) == 7
    found = replica.filters.find("orders", "g")
    assert found is not None
    assert found.text == "a > 5"
    assert (await pair.ask(pair.replica, pull)).code != ResponseCode.TOPIC_NOT_EXIST
    # The NameServers learn of the new topics.
    await until(lambda: _equals(pair.routed_to("orders"), {"master", "replica"}))
    await pair.change_topic(RequestCode.DELETE_TOPIC_IN_BROKER, "orders")
    assert await pair.sync.sync_now() == []
    assert "orders" not in replica.topics
    assert (await pair.ask(pair.replica, pull)).code == ResponseCode.TOPIC_NOT_EXIST
    assert replica.offsets.groups_of("orders") == set()


async def test_a_recreated_topic_does_not_bring_old_messages_back(pair: Pair) -> None:
    both = (pair.master, pair.replica)
    for queue_id in ("0", "1"):
        await pair.send(*both, topic="orders", queueId=queue_id, body=b"old")
    pair.master.offsets.commit("g", "orders", 1, 1)
    assert await pair.sync.sync_now() == []
    assert pair.replica.offsets.query("g", "orders", 1) == 1

    await pair.change_topic(RequestCode.DELETE_TOPIC_IN_BROKER, "orders")
    store = pair.replica.store
    assert store is not None
    store.queue("orders", 0).delete()  # as dispatch does at a record with offset 0
    await pair.send(*both, topic="orders", queueId="0", body=b"new")
    assert (store.max_offset("orders", 0), store.max_offset("orders", 1)) == (1, 1)
    assert await pair.sync.sync_now() == []

    assert (store.max_offset("orders", 0), store.max_offset("orders", 1)) == (1, 0)
    pull = pull_request(topic="orders", queueId="1")
    assert (await pair.ask(pair.replica, pull)).code != ResponseCode.SUCCESS
    pull = pull_request(topic="orders", queueId="0")
    answer = await pair.succeed(pair.replica, pull)
    assert [record.body for record in decode_records(answer.body)] == [b"new"]
    assert pair.replica.offsets.groups_of("orders") == set()
    # A restart of the replica does not bring them back either.
    deleted = pair.replica.tables.deleted_topics
    assert deleted.snapshot() == pair.master.tables.deleted_topics.snapshot()


async def test_progress_follows_when_the_log_has_it(pair: Pair) -> None:
    both = (pair.master, pair.replica)
    await pair.send(*both, topic="orders", properties="DELAY\x011")
    await until(lambda: pair.master.delay_offsets.get(1) == 1)
    assert await pair.sync.sync_now() == []
    assert pair.replica.delay_offsets.get(1) == 0, "the delivered copy is not in its log"

    master, store = pair.master.store, pair.replica.store
    assert master is not None
    assert store is not None
    while store.max_physical_offset < master.max_physical_offset:
        await pair.send(pair.replica, topic="orders")

    async def is_copied() -> bool:
        assert await pair.sync.sync_now() == []
        return pair.replica.delay_offsets.get(1) == 1

    await until(is_copied)


async def test_a_master_that_goes_away_is_logged_once(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    assert await pair.sync.sync_now() == []
    before = pair.replica.topics.snapshot()
    await pair.master.cut_off()
    with caplog.at_level(logging.WARNING, "pyromq.broker.services.metadata_sync"):
        for _ in range(3):
            assert len(await pair.sync.sync_now()) == 6
    assert sum("failed" in record.getMessage() for record in caplog.records) == 6
    assert pair.replica.topics.snapshot() == before


async def test_seventy_thousand_topics_are_copied(pair: Pair) -> None:
    """Their JSON exceeds a frame: the master compresses it for pyromq, and refuses it to others."""
    table = pair.master.topics
    with contextlib.ExitStack() as quiet:
        quiet.callback(logging.disable, logging.NOTSET)
        logging.disable(logging.INFO)
        copy = table.snapshot()
        copy.topic_config_table |= {
            name: TopicConfig(name, 4, 4)
            for name in (f"a-topic-with-a-long-name-{number:040}" for number in range(70_000))
        }
        copy.data_version = copy.data_version.next(1)
        table.take_over(copy)
        assert await pair.sync.sync_now() == []
    assert pair.replica.topics.snapshot() == copy
    answer = await pair.ask(pair.master, RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "the table of topics not sent" in (answer.remark or "")


async def _equals(found: Any, expected: object) -> bool:
    return bool(await found == expected)
