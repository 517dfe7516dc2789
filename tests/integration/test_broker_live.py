"""Brokers and a NameServer in one process, on real sockets, seen by a real client."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.broker import Broker
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.route_table import BrokerIdentity
from pyromq.nameserver.server import NameServer
from pyromq.protocol.message.message_id import decode_message_id
from pyromq.protocol.message.record import decode_records, encode_inner_message
from pyromq.protocol.wire.bodies import ClusterInfo, TopicRouteData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import Encoding, RemotingCommand
from pyromq.remoting.client import RemotingClient
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE, until
from tests.support.requests import pull_request, raw_frame, send_request

BOTH_ENCODINGS = (Encoding.JSON, Encoding.ROCKETMQ)


class Cluster:
    """A NameServer, the brokers that were started, and a client of them all."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.client = RemotingClient()
        self.name_server = NameServer(
            NamesrvConfig(
                listen_port=0, bind_address="127.0.0.1", kv_config_path=str(root / "kv.json")
            )
        )
        self.brokers: list[Broker] = []

    async def start_broker(self, name: str, **settings: Any) -> Broker:
        config = local_broker(
            **{
                "broker_name": name,
                "namesrv_addr": f"127.0.0.1:{self.name_server.port}",
                **settings,
            }
        )
        broker = Broker(config, small_store(self.root / name))
        await broker.start()
        self.brokers.append(broker)
        return broker

    async def ask_name_server(self, request: RemotingCommand) -> RemotingCommand:
        return await self.client.request(f"127.0.0.1:{self.name_server.port}", request)

    async def broker_names(self) -> set[str]:
        answer = await self.ask_name_server(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        return set(ClusterInfo.decode(answer.body).broker_addr_table)

    async def route(self, topic: str) -> TopicRouteData | None:
        answer = await self.ask_name_server(
            RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic})
        )
        return TopicRouteData.decode(answer.body) if answer.code == 0 else None

    async def ask(self, broker: Broker, request: RemotingCommand) -> RemotingCommand:
        return await self.client.request(broker.address, request, DEADLINE)

    async def stop(self) -> None:
        for broker in self.brokers:
            await broker.stop()
        await self.client.close()
        await self.name_server.stop()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    running = Cluster(tmp_path)
    await running.name_server.start()
    yield running
    await running.stop()


@pytest.mark.parametrize("encoding", BOTH_ENCODINGS)
@pytest.mark.parametrize(
    "code",
    [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE],
)
async def test_a_message_goes_in_and_comes_out(
    cluster: Cluster, code: RequestCode, encoding: Encoding
) -> None:
    broker = await cluster.start_broker("a")
    is_batch = code == RequestCode.SEND_BATCH_MESSAGE
    places = []
    for number in range(4):
        body = b"body %d" % number
        request = send_request(
            code,
            encode_inner_message(body, b"TAGS\x01red") if is_batch else body,
            queueId="0",
            properties="" if is_batch else "TAGS\x01red",
            encoding=encoding,
        )
        answer = await cluster.ask(broker, request)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.ext_fields["queueOffset"] == str(number)
        places.append(answer.ext_fields["msgId"])

    for pull_encoding in BOTH_ENCODINGS:
        pulled = await cluster.ask(
            broker, pull_request(encoding=pull_encoding, subscription="red || blue")
        )
        records = decode_records(pulled.body)
        assert [record.body for record in records] == [b"body %d" % n for n in range(4)]
        assert [record.message_id for record in records] == places
    host, port, offset = decode_message_id(places[2])
    assert (host, port) == ("127.0.0.1", broker.port)
    viewed = await cluster.ask(
        broker,
        RemotingCommand(
            RequestCode.VIEW_MESSAGE_BY_ID, ext_fields={"offset": str(offset)}, encoding=encoding
        ),
    )
    assert decode_records(viewed.body) == [records[2]]


@pytest.mark.parametrize("encoding", BOTH_ENCODINGS)
async def test_oneway_messages_come_out_too(cluster: Cluster, encoding: Encoding) -> None:
    broker = await cluster.start_broker("a")
    for number in range(20):
        await cluster.client.send_oneway(
            broker.address, send_request(body=b"%d" % number, queueId="0", encoding=encoding)
        )
    assert broker.store is not None
    store = broker.store
    await until(lambda: store.max_offset("T", 0) == 20)

    pulled = await cluster.ask(broker, pull_request(encoding=encoding))

    assert [record.body for record in decode_records(pulled.body)] == [b"%d" % n for n in range(20)]


@pytest.mark.parametrize("encoding", BOTH_ENCODINGS)
async def test_a_pull_waits_for_its_message(cluster: Cluster, encoding: Encoding) -> None:
    broker = await cluster.start_broker("a")
    await cluster.ask(broker, send_request(body=b"old", queueId="0"))
    waiting = asyncio.create_task(
        cluster.ask(broker, pull_request(sysFlag="6", queueOffset="1", encoding=encoding))
    )
    await until(lambda: len(broker.long_poll))

    await cluster.ask(broker, send_request(body=b"new", queueId="0"))

    (record,) = decode_records((await waiting).body)
    assert record.body == b"new"


async def test_many_pulls_wait_beside_each_other(cluster: Cluster) -> None:
    broker = await cluster.start_broker("a")
    await cluster.ask(broker, send_request(body=b"old", queueId="0"))
    waiting = [
        asyncio.create_task(cluster.ask(broker, pull_request(sysFlag="6", queueOffset="1")))
        for _ in range(50)
    ]
    await until(lambda: len(broker.long_poll) == 50)

    await cluster.ask(broker, send_request(body=b"new", queueId="0"))

    answers = await asyncio.gather(*waiting)
    assert {decode_records(answer.body)[0].body for answer in answers} == {b"new"}
    assert len({answer.opaque for answer in answers}) == 50


async def test_a_client_that_leaves_is_forgotten_while_it_waits(cluster: Cluster) -> None:
    broker = await cluster.start_broker("a")
    await cluster.ask(broker, send_request(queueId="0"))
    leaving = RemotingClient()
    waiting = asyncio.create_task(
        leaving.request(broker.address, pull_request(sysFlag="6", queueOffset="1"), DEADLINE)
    )
    await until(lambda: len(broker.long_poll))

    await leaving.close()
    await asyncio.gather(waiting, return_exceptions=True)

    await until(lambda: not len(broker.long_poll))


async def test_a_new_topic_is_routed_to_its_broker(cluster: Cluster) -> None:
    broker = await cluster.start_broker("a")
    assert await cluster.route("T") is None
    await cluster.ask(broker, send_request(defaultTopicQueueNums="16"))

    await until(lambda: cluster.name_server.routes.route("T"))
    route = await cluster.route("T")
    assert route is not None
    assert [(q.broker_name, q.write_queue_nums) for q in route.queue_datas] == [("a", 8)]
    assert route.broker_datas[0].broker_addrs == {0: broker.address}


async def test_two_brokers_share_a_topic_and_leave_one_by_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await cluster.start_broker("a"), await cluster.start_broker("b")
    assert await cluster.broker_names() == {"a", "b"}
    for broker, body in ((first, b"in a"), (second, b"in b")):
        assert (await cluster.ask(broker, send_request(body=body, queueId="0"))).code == 0
    for broker, body in ((first, b"in a"), (second, b"in b")):
        pulled = await cluster.ask(broker, pull_request())
        assert [record.body for record in decode_records(pulled.body)] == [body]

    left = []
    unregister = cluster.name_server.routes.unregister

    def note(identity: BrokerIdentity) -> None:
        left.append(identity.broker_name)
        unregister(identity)

    monkeypatch.setattr(cluster.name_server.routes, "unregister", note)
    await first.stop()
    assert left == ["a"]
    assert await cluster.broker_names() == {"b"}
    await second.stop()
    assert await cluster.broker_names() == set()


async def test_a_restarted_broker_serves_what_it_had(cluster: Cluster) -> None:
    broker = await cluster.start_broker("a")
    await cluster.ask(broker, send_request(body=b"kept", queueId="0"))
    port = broker.port
    await broker.stop()

    again = await cluster.start_broker("a", listen_port=port)

    assert again.port == port
    pulled = await cluster.ask(again, pull_request())
    assert [record.body for record in decode_records(pulled.body)] == [b"kept"]
    route = await cluster.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: again.address}


async def test_a_killed_nameserver_does_not_hinder_a_broker(cluster: Cluster) -> None:
    broker = await cluster.start_broker("a")
    await cluster.name_server.stop()

    assert (await cluster.ask(broker, send_request(queueId="0"))).code == ResponseCode.SUCCESS
    async with asyncio.timeout(DEADLINE):
        await broker.stop()


async def test_hostile_clients_do_not_disturb_others(cluster: Cluster) -> None:
    broker = await cluster.start_broker("a")
    await cluster.ask(broker, send_request(queueId="0"))
    header = {"code": 310, "opaque": 1, "flag": 0, "extFields": send_request().ext_fields}
    hostile = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 64,
        b"\xff" * 64,
        struct.pack(">II", 17 * 1024 * 1024, 10) + b"x" * 10,
        raw_frame(b"{"),
        raw_frame(b"[]"),
        raw_frame({**header, "opaque": "x"}),
        raw_frame({**header, "flag": []}),
        raw_frame({**header, "extFields": 5}),
    ]
    for data in hostile:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(data)
        async with asyncio.timeout(DEADLINE):
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()

    answer = await cluster.ask(broker, send_request(queueId="0"))
    assert answer.ext_fields["queueOffset"] == "1"


async def test_frames_may_come_byte_by_byte(cluster: Cluster) -> None:
    broker = await cluster.start_broker("a")
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    data = b"".join(
        send_request(body=b"%d" % n, queueId="0", encoding=e).encode()
        for n, e in enumerate(BOTH_ENCODINGS)
    )
    for byte in data:
        writer.write(bytes((byte,)))
        await writer.drain()
        await asyncio.sleep(0)
    for _ in range(2):
        (length,) = struct.unpack(">I", await reader.readexactly(4))
        await reader.readexactly(length)
    writer.close()
    await writer.wait_closed()

    pulled = await cluster.ask(broker, pull_request())
    assert [record.body for record in decode_records(pulled.body)] == [b"0", b"1"]


async def test_a_topic_is_known_when_its_first_message_is_answered(cluster: Cluster) -> None:
    broker = await cluster.start_broker("a")
    for number in range(20):
        topic = f"Fresh{number}"
        answer = await cluster.ask(broker, send_request(topic=topic, queueId="0"))
        assert answer.code == ResponseCode.SUCCESS
        assert await cluster.route(topic) is not None
