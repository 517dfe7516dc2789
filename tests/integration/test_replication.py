"""Masters and replicas over real sockets: what producers and consumers are told."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from pyromq.broker.broker import Broker
from pyromq.protocol.message.record import decode_records, encode_inner_message
from pyromq.protocol.wire.bodies import KVTable
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from pyromq.store.replication_settings import BrokerRole
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE, until
from tests.support.requests import pull_request, send_request

PATIENT_MS = 60_000
WAIT = "UNIQ_KEY\x01x\x02WAIT\x01"


class SilentReplica:
    """Follows a master in Java's way, and reports only when it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def follow(cls, broker: Broker) -> SilentReplica:
        replica = cls(*await asyncio.open_connection("127.0.0.1", broker.port + 1))
        assert broker.store is not None
        replica.report(broker.store.max_physical_offset)
        replication = broker.replication
        assert replication is not None
        await until(lambda: bool(replication.status()))
        return replica

    def report(self, offset: int) -> None:
        self._writer.write(struct.pack(">q", offset))

    async def received_to(self, offset: int) -> None:
        while True:
            start, size = struct.unpack(">qi", await self._reader.readexactly(12))
            await self._reader.readexactly(size)
            if start + size >= offset:
                return

    def close(self) -> None:
        self._writer.close()


@contextlib.asynccontextmanager
async def running(
    root: Path, role: BrokerRole = BrokerRole.SYNC_MASTER, **changes: object
) -> AsyncIterator[Broker]:
    config = local_broker(broker_name="b", broker_id=1 if role is BrokerRole.SLAVE else 0)
    broker = Broker(config, small_store(root, broker_role=role, **changes))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient()
    yield client
    await client.close()


def batch(wait: str) -> RemotingCommand:
    body = encode_inner_message(b"one", b"") + encode_inner_message(b"two", b"")
    return send_request(RequestCode.SEND_BATCH_MESSAGE, body, properties=f"WAIT\x01{wait}")


def end_of(broker: Broker) -> int:
    assert broker.store is not None
    return broker.store.max_physical_offset


async def test_without_a_replica_a_sync_master_says_so(
    tmp_path: Path, client: RemotingClient
) -> None:
    async with running(tmp_path) as broker:
        for request in (send_request(), send_request(), batch("true"), batch("true")):
            answer = await client.request(broker.address, request, DEADLINE)
            assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
            assert answer.ext_fields["msgId"]
        # Whoever does not want to wait is not told.
        for wait in ("false", "False"):
            for request in (send_request(properties=WAIT + wait), batch(wait)):
                answer = await client.request(broker.address, request, DEADLINE)
                assert answer.code == ResponseCode.SUCCESS
        assert broker.store is not None
        assert broker.store.max_offset("T", 1) == 12


async def test_sends_wait_for_the_replica_unless_they_do_not_want_to(
    tmp_path: Path, client: RemotingClient
) -> None:
    async with running(tmp_path, slave_timeout=PATIENT_MS) as broker:
        await client.request(broker.address, send_request(), DEADLINE)  # the topic
        replica = await SilentReplica.follow(broker)
        waiting = [
            asyncio.ensure_future(client.request(broker.address, request, DEADLINE))
            for request in (send_request(), batch("true"), send_request(properties=WAIT + "true"))
        ]
        for request in (send_request(properties=WAIT + "false"), batch("false")):
            answer = await client.request(broker.address, request, DEADLINE)
            assert answer.code == ResponseCode.SUCCESS
        assert not any(answer.done() for answer in waiting)
        await replica.received_to(end_of(broker))
        replica.report(end_of(broker))
        assert {(await answer).code for answer in waiting} == {ResponseCode.SUCCESS}
        replica.close()


async def test_a_replica_that_says_nothing_is_a_timeout(
    tmp_path: Path, client: RemotingClient
) -> None:
    async with running(tmp_path, slave_timeout=50) as broker:
        replica = await SilentReplica.follow(broker)
        for _ in range(3):
            answer = await client.request(broker.address, send_request(), DEADLINE)
            assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            assert answer.ext_fields["queueOffset"]
        replica.close()


async def test_the_kind_of_master_changes_while_it_runs(
    tmp_path: Path, client: RemotingClient
) -> None:
    async def change(role: str) -> None:
        body = f"brokerRole={role}\n".encode()
        request = RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, body=body)
        assert (await client.request(broker.address, request, DEADLINE)).code == 0

    async def code() -> int:
        return (await client.request(broker.address, send_request(), DEADLINE)).code

    async with running(tmp_path, BrokerRole.ASYNC_MASTER) as broker:
        assert await code() == ResponseCode.SUCCESS
        await change("SYNC_MASTER")
        assert await code() == ResponseCode.SLAVE_NOT_AVAILABLE
        await change("ASYNC_MASTER")
        assert await code() == ResponseCode.SUCCESS


async def test_a_replica_serves_what_its_master_stores(
    tmp_path: Path, client: RemotingClient
) -> None:
    async with (
        running(tmp_path / "a", slave_timeout=PATIENT_MS) as master,
        running(
            tmp_path / "b", BrokerRole.SLAVE, ha_master_address=f"127.0.0.1:{master.port + 1}"
        ) as replica,
    ):
        assert master.replication is not None
        await until(lambda: bool(master.replication and master.replication.status()))
        first = await client.request(master.address, send_request(), DEADLINE)
        assert first.code == ResponseCode.SUCCESS
        assert end_of(replica) == end_of(master)
        await until(lambda: replica.topics.get("T") is not None)
        # A long poll at the replica wakes up when the message arrives there.
        waiting = asyncio.ensure_future(
            client.request(
                replica.address,
                pull_request(topic="T", queueId="1", queueOffset="1", sysFlag="6"),
                DEADLINE,
            )
        )
        assert replica.store is not None
        queue = replica.store.queue("T", 1)
        await until(lambda: queue.watched)
        second = await client.request(
            master.address, send_request(body=b"the second one"), DEADLINE
        )
        assert second.code == ResponseCode.SUCCESS
        answer = await waiting
        assert answer.code == ResponseCode.SUCCESS
        assert [record.body for record in decode_records(answer.body)] == [b"the second one"]
        refused = await client.request(replica.address, send_request(), DEADLINE)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_replication_is_visible(tmp_path: Path, client: RemotingClient) -> None:
    async with (
        running(tmp_path / "a", slave_timeout=PATIENT_MS) as master,
        running(
            tmp_path / "b", BrokerRole.SLAVE, ha_master_address=f"127.0.0.1:{master.port + 1}"
        ) as replica,
    ):
        await until(lambda: bool(master.replication and master.replication.status()))
        await client.request(master.address, send_request(), DEADLINE)

        async def info(broker: Broker) -> dict[str, str]:
            request = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)
            answer = await client.request(broker.address, request, DEADLINE)
            return dict(KVTable.decode(answer.body).table)

        end = end_of(master)
        of_master, of_replica = await info(master), await info(replica)
        assert of_master["brokerRole"] == "SYNC_MASTER"
        assert of_master["replicaCount"] == "1"
        assert of_master["replicatedOffset"] == str(end)
        assert f"at: {end}, lagBytes: 0, lagMillis: 0" in of_master["replica1"]
        assert of_replica["brokerRole"] == "SLAVE"
        assert of_replica["replicationConnected"] == "true"
        assert of_replica["replicationMaster"] == f"127.0.0.1:{master.port + 1}"
        request = RemotingCommand(RequestCode.GET_REPLICATION_STATUS)
        figures = orjson.loads((await client.request(master.address, request, DEADLINE)).body)
        assert figures["logEnd"] == figures["replicated"] == end
        assert [each["broker_id"] for each in figures["replicas"]] == [1]
        figures = orjson.loads((await client.request(replica.address, request, DEADLINE)).body)
        assert figures["following"]["is_connected"]


async def test_a_replica_with_another_log_leaves_the_network(
    tmp_path: Path, client: RemotingClient
) -> None:
    failures: list[str] = []
    async with running(tmp_path / "b", BrokerRole.ASYNC_MASTER) as other:
        await client.request(other.address, send_request(), DEADLINE)
    async with running(tmp_path / "a", BrokerRole.ASYNC_MASTER) as master:
        await client.request(master.address, send_request(body=b"mine"), DEADLINE)
        store = small_store(
            tmp_path / "b",
            broker_role=BrokerRole.SLAVE,
            ha_master_address=f"127.0.0.1:{master.port + 1}",
        )
        config = local_broker(broker_name="b", broker_id=1)
        replica = Broker(config, store, on_failure=failures.append)
        await replica.start()
        await until(lambda: bool(failures))
        assert "pyromq store truncate" in failures[0]
        assert replica.failure == failures[0]
        await replica.stop()
        replica = Broker(config, store)
        await replica.start()
        await until(lambda: replica.failure is not None)
        await until(lambda: not any(server.connections for server in replica._servers))
        await replica.stop()
