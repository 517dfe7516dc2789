"""A live promotion: a replica on a copy of its master's store takes over.

Without replication: the copy is what a replica would have received.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.config import load_broker_properties
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.java.properties import parse_properties
from pyromq.protocol.message.properties import decode_properties
from pyromq.protocol.message.record import decode_records
from pyromq.protocol.message.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from pyromq.protocol.wire.bodies import ClusterInfo, TopicRouteData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.promotion import PromoteBrokerRequestHeader, PromotionReport
from pyromq.remoting.client import RemotingClient
from pyromq.store.config import BrokerRole
from tests.support.patience import DEADLINE, PATIENT_PROPERTIES, until
from tests.support.requests import pull_request, send_request

WAITING = str(PULL_SUSPEND | PULL_SUBSCRIPTION)


class Pair:
    """A NameServer, a master, and a place for its replica."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.client = RemotingClient()
        self.name_server = NameServer(
            NamesrvConfig(
                listen_port=0,
                bind_address="127.0.0.1",
                kv_config_path=str(root / "kvConfig.json"),
                config_store_path=str(root / "namesrv.properties"),
            )
        )
        self.brokers: list[Broker] = []

    async def start(self) -> Broker:
        await self.name_server.start()
        return await self.start_broker("master", brokerRole="ASYNC_MASTER")

    async def start_broker(self, name: str, **settings: str) -> Broker:
        """Start a broker with its own file, or with the one that it left."""
        file = self.root / f"{name}.conf"
        if not file.exists():
            table = {
                **PATIENT_PROPERTIES,
                "namesrvAddr": f"127.0.0.1:{self.name_server.port}",
                "storePathRootDir": str(self.root / name),
                "brokerName": "broker-a",
                "mappedFileSizeCommitLog": "1048576",
                "mappedFileSizeConsumeQueue": "2000",
                "maxHashSlotNum": "64",
                "maxIndexNum": "64",
                "messageDelayLevel": "10ms 1h",
                "listenPort": "0",
                "bindAddress": "127.0.0.1",
                "brokerIP1": "127.0.0.1",
                "brokerIP2": "127.0.0.1",
                **settings,
            }
            file.write_text("".join(f"{key}={value}\n" for key, value in table.items()))
        loaded = load_broker_properties(parse_properties(file.read_bytes()))
        broker = Broker(loaded.broker, loaded.store, config_file=file)
        self.brokers.append(broker)
        await broker.start()
        return broker

    async def start_replica(self) -> Broker:
        """Start a replica on a copy of the stopped master's store."""
        if not (self.root / "replica").exists():
            shutil.copytree(self.root / "master", self.root / "replica")
        return await self.start_broker("replica", brokerRole="SLAVE", brokerId="2")

    async def stop_broker(self, broker: Broker) -> None:
        self.brokers.remove(broker)
        await broker.stop()

    async def stop(self) -> None:
        for broker in self.brokers:
            await broker.stop()
        await self.client.close()
        await self.name_server.stop()

    async def ask(self, broker: Broker, request: RemotingCommand) -> RemotingCommand:
        return await self.client.request(broker.address, request, DEADLINE)

    async def send(self, broker: Broker, body: bytes, properties: str = "") -> RemotingCommand:
        return await self.ask(broker, send_request(body=body, queueId="0", properties=properties))

    async def bodies(self, broker: Broker) -> list[bytes]:
        answer = await self.ask(broker, pull_request())
        return [record.body for record in decode_records(answer.body)]

    async def promote(self, broker: Broker, *, force: bool = False) -> PromotionReport:
        header = PromoteBrokerRequestHeader("SYNC_MASTER", force)
        request = RemotingCommand(RequestCode.PROMOTE_BROKER, ext_fields=header.encode())
        answer = await self.ask(broker, request)
        report = PromotionReport.decode(answer.body)
        assert (answer.code == ResponseCode.SUCCESS) is report.promoted
        return report

    async def addresses(self) -> dict[int, str]:
        """The brokers of the name, by id, as `mqadmin clusterList` sees them."""
        request = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = await self.client.request(f"127.0.0.1:{self.name_server.port}", request, DEADLINE)
        info = ClusterInfo.decode(answer.body)
        return info.broker_addr_table["broker-a"].broker_addrs

    async def route(self, topic: str) -> TopicRouteData:
        fields = {"topic": topic}
        request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields=fields)
        answer = await self.client.request(f"127.0.0.1:{self.name_server.port}", request, DEADLINE)
        return TopicRouteData.decode(answer.body)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    await pair.stop()


async def test_a_replica_takes_over(pair: Pair) -> None:
    master = await pair.start()
    for number in range(3):
        assert (await pair.send(master, b"%d" % number)).code == ResponseCode.SUCCESS
    await pair.stop_broker(master)
    replica = await pair.start_replica()

    assert await pair.addresses() == {2: replica.address}
    assert await pair.bodies(replica) == [b"0", b"1", b"2"]
    assert (await pair.send(replica, b"no")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    consumer = RemotingClient()
    waiting = asyncio.create_task(
        consumer.request(
            replica.address,
            pull_request(queueOffset="3", sysFlag=WAITING, suspendTimeoutMillis="60000"),
            DEADLINE,
        )
    )

    report = await pair.promote(replica)

    assert report.promoted
    assert report.role == "SYNC_MASTER"
    assert replica.store is not None
    assert report.log_end == replica.store.max_physical_offset
    assert await pair.addresses() == {0: replica.address}
    route = await pair.route("T")
    assert [broker.broker_addrs for broker in route.broker_datas] == [{0: replica.address}]
    assert (await pair.send(replica, b"3")).ext_fields["queueOffset"] == "3"
    assert [record.body for record in decode_records((await waiting).body)] == [b"3"]
    await consumer.close()

    # A restart keeps the role.
    await pair.stop_broker(replica)
    again = await pair.start_replica()
    assert (again.role.current, again.role.broker_id) == (BrokerRole.SYNC_MASTER, 0)
    assert await pair.bodies(again) == [b"0", b"1", b"2", b"3"]


async def test_a_promotion_is_refused_while_the_master_answers(pair: Pair) -> None:
    master = await pair.start()
    await pair.send(master, b"0")
    await pair.stop_broker(master)
    shutil.copytree(pair.root / "master", pair.root / "replica")
    master = await pair.start_broker("master")
    replica = await pair.start_replica()

    report = await pair.promote(replica)

    assert not report.promoted
    failed = {check.detail for check in report.checks if not check.passed}
    # It may have connected to the master by now.
    assert failed - {"the connection to the master is alive"} == {
        f"{master.address} answers as ASYNC_MASTER"
    }
    assert await pair.addresses() == {0: master.address, 2: replica.address}
    assert (await pair.promote(master)).promoted is False
    assert master.role.current is BrokerRole.ASYNC_MASTER

    # Cut off from the NameServer, it still answers.
    assert master._registration is not None
    await master._registration.stop()
    assert await pair.addresses() == {2: replica.address}
    assert (await pair.promote(replica)).promoted is False

    forced = await pair.promote(replica, force=True)
    assert forced.promoted
    assert await pair.addresses() == {0: replica.address}
    # A SYNC_MASTER without a replica.
    assert (await pair.send(replica, b"1")).code == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_delayed_messages_and_transactions_continue(pair: Pair) -> None:
    master = await pair.start()
    await pair.send(master, b"first")
    await pair.send(master, b"late", "DELAY\x012")
    half = await pair.send(master, b"half", "TRAN_MSG\x01true\x02PGROUP\x01producers")
    assert half.code == ResponseCode.SUCCESS
    await pair.stop_broker(master)
    replica = await pair.start_replica()
    # The hour is over.
    assert replica.delay is not None
    replica.delay._delays = type(replica.delay._delays)("1ms 1ms")
    assert await pair.bodies(replica) == [b"first"]

    await pair.promote(replica)

    await until(lambda: replica.store is not None and replica.store.max_offset("T", 0) == 2)
    assert await pair.bodies(replica) == [b"first", b"late"]
    assert replica.transactions.is_open(0)
    stored = await pair.send(replica, b"soon", "DELAY\x011")
    assert stored.code == ResponseCode.SLAVE_NOT_AVAILABLE  # a SYNC_MASTER without a replica
    await until(lambda: replica.store is not None and replica.store.max_offset("T", 0) == 3)


async def test_a_master_becomes_a_replica_and_writes_nothing(pair: Pair) -> None:
    master = await pair.start()
    await pair.send(master, b"0", "DELAY\x012")
    await master.become_replica(3)
    assert master.store is not None
    end = master.store.max_physical_offset
    assert await pair.addresses() == {3: master.address}

    assert (await pair.send(master, b"no")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    heartbeat = b'{"clientID":"c","consumerDataSet":[{"groupName":"g"}],"producerDataSet":[]}'
    answer = await pair.ask(master, RemotingCommand(RequestCode.HEART_BEAT, body=heartbeat))
    assert answer.code == ResponseCode.SUCCESS
    assert master.store.max_physical_offset == end
    assert "%RETRY%g" not in master.topics

    await master.become_master(BrokerRole.ASYNC_MASTER)
    assert await pair.addresses() == {0: master.address}
    record = (await pair.send(master, b"yes", "KEYS\x01k")).ext_fields
    assert record["queueOffset"] == "0"
    (stored,) = decode_records((await pair.ask(master, pull_request())).body)
    assert decode_properties(stored.raw_properties.decode())["KEYS"] == "k"


async def test_the_kind_of_master_changes_live(pair: Pair) -> None:
    master = await pair.start()
    request = RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerRole=SYNC_MASTER")
    assert (await pair.ask(master, request)).code == ResponseCode.SUCCESS
    assert master.role.current is BrokerRole.SYNC_MASTER

    request = RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerRole=SLAVE")
    refused = await pair.ask(master, request)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark is not None
    assert "pyromq broker promote" in refused.remark
    assert master.role.current is BrokerRole.SYNC_MASTER
