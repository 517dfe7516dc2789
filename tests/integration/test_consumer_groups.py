"""Broker features behind consumer groups on real sockets: retries, dead letters, locks, replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.message.record import MessageRecord, decode_records
from pyromq.protocol.wire.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageModel,
    MessageQueue,
    ProducerData,
    SubscriptionData,
    UnlockBatchRequestBody,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import ConsumerSendMsgBackRequestHeader, ReplyMessageRequestHeader
from pyromq.remoting.client import RemotingClient
from pyromq.store.config import FlushDiskType
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE, until
from tests.support.requests import pull_request, send_request

QUICK_LEVELS = " ".join(["1s"] * 18)
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


@asynccontextmanager
async def running(root: Path, namesrv_address: str | None = None) -> AsyncIterator[Broker]:
    """A broker with synchronous flushes and short delays."""
    config = local_broker(
        broker_name="broker-a",
        namesrv_addr=namesrv_address,
    )
    store = small_store(
        root, message_delay_level=QUICK_LEVELS, flush_disk_type=FlushDiskType.SYNC_FLUSH
    )
    broker = Broker(config, store)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    made = RemotingClient()
    yield made
    await made.close()


async def ask(client: RemotingClient, broker: Broker, request: RemotingCommand) -> RemotingCommand:
    return await client.request(broker.address, request, DEADLINE)


async def beat(
    client: RemotingClient, broker: Broker, client_id: str, group: str = "g"
) -> RemotingCommand:
    consumer = ConsumerData(group, subscription_data_set=[SubscriptionData("T")])
    heartbeat = HeartbeatData(client_id, [ProducerData("p")], [consumer])
    answer = await ask(
        client, broker, RemotingCommand(RequestCode.HEART_BEAT, body=heartbeat.encode())
    )
    assert answer.code == ResponseCode.SUCCESS
    return answer


async def receive(client: RemotingClient, broker: Broker, topic: str, offset: int) -> MessageRecord:
    """Wait for the message at an offset of queue 0."""
    async with asyncio.timeout(DEADLINE):
        while True:
            request = pull_request(
                consumerGroup="g", topic=topic, queueOffset=str(offset), sysFlag="6"
            )
            answer = await ask(client, broker, request)
            if answer.code == ResponseCode.SUCCESS:
                return decode_records(answer.body)[0]


async def send_back(client: RemotingClient, broker: Broker, record: MessageRecord) -> None:
    header = ConsumerSendMsgBackRequestHeader(
        record.physical_offset, "g", 0, origin_topic="T", max_reconsume_times=2
    )
    request = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=header.encode())
    answer = await ask(client, broker, request)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)


async def test_retries_end_as_dead_letters_across_broker_restarts(
    tmp_path: Path, client: RemotingClient
) -> None:
    async with running(tmp_path) as broker:
        sent = await ask(client, broker, send_request(body=b"never handled", queueId="0"))
        await beat(client, broker, "c")
        await send_back(client, broker, await receive(client, broker, "T", 0))
    for retry in range(2):
        async with running(tmp_path) as broker:
            await beat(client, broker, "c")
            record = await receive(client, broker, "%RETRY%g", retry)
            assert record.body == b"never handled"
            assert record.reconsume_times == retry + 1
            assert record.properties["RETRY_TOPIC"] == "T"
            assert record.properties["ORIGIN_MESSAGE_ID"] == sent.ext_fields["msgId"]
            await send_back(client, broker, record)
    async with running(tmp_path) as broker:
        await beat(client, broker, "c")
        dead = await receive(client, broker, "%DLQ%g", 0)
        assert (dead.body, dead.reconsume_times) == (b"never handled", 3)
        assert dead.properties["ORIGIN_MESSAGE_ID"] == sent.ext_fields["msgId"]
        store = broker.store
        assert store is not None
        assert store.max_offset("%RETRY%g", 0) == 2
        assert store.max_offset("%DLQ%g", 0) == 1


async def test_a_dead_letter_topic_has_a_route_when_the_consumer_is_answered(
    tmp_path: Path, client: RemotingClient
) -> None:
    name_server = NameServer(
        NamesrvConfig(
            listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json")
        )
    )
    await name_server.start()
    address = f"127.0.0.1:{name_server.port}"
    async with running(tmp_path / "store", address) as broker:
        await ask(client, broker, send_request(queueId="0", reconsumeTimes="2"))
        await send_back(client, broker, await receive(client, broker, "T", 0))
        for topic in ("%RETRY%g", "%DLQ%g"):
            request = RemotingCommand(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic}
            )
            assert (await client.request(address, request)).code == ResponseCode.SUCCESS
    await name_server.stop()


async def lock(
    client: RemotingClient, broker: Broker, client_id: str, *queues: MessageQueue
) -> set[MessageQueue]:
    body = LockBatchRequestBody("g", client_id, set(queues)).encode()
    answer = await ask(client, broker, RemotingCommand(RequestCode.LOCK_BATCH_MQ, body=body))
    return LockBatchResponseBody.decode(answer.body).lock_ok_mq_set


async def test_queues_are_locked_until_they_are_unlocked(
    tmp_path: Path, client: RemotingClient
) -> None:
    queues = [MessageQueue("T", "broker-a", number) for number in range(2)]
    async with running(tmp_path) as broker:
        other = RemotingClient()
        assert await lock(other, broker, "c1", *queues) == set(queues)
        assert await lock(client, broker, "c2", *queues) == set()
        body = UnlockBatchRequestBody("g", "c1", {queues[0]}).encode()
        await ask(other, broker, RemotingCommand(RequestCode.UNLOCK_BATCH_MQ, body=body))
        assert await lock(client, broker, "c2", *queues) == {queues[0]}
        # A lost connection unlocks nothing: its client may still be working.
        await beat(other, broker, "c1")
        await other.close()
        await until(lambda: broker.consumers.find("g") is None)
        assert await lock(client, broker, "c2", *queues) == {queues[0]}


async def test_a_reply_reaches_the_requester(tmp_path: Path, client: RemotingClient) -> None:
    replies: list[RemotingCommand] = []

    def take(_: object, request: RemotingCommand) -> RemotingCommand:
        replies.append(request)
        return request.answer()

    requester = RemotingClient({RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: take})
    async with running(tmp_path) as broker:
        await beat(requester, broker, "asker")
        request = send_request(
            RequestCode.SEND_MESSAGE_V2,
            b"forty-two",
            topic=REPLY_TOPIC,
            queueId="0",
            properties="CORRELATION_ID\x01x\x02REPLY_TO_CLIENT\x01asker",
        )
        request.code = RequestCode.SEND_REPLY_MESSAGE_V2
        answer = await ask(client, broker, request)
        assert answer.code == ResponseCode.SUCCESS
        (reply,) = replies
        header = ReplyMessageRequestHeader.decode(reply.ext_fields)
        assert (reply.body, header.topic) == (b"forty-two", REPLY_TOPIC)
        assert "CORRELATION_ID\x01x" in (header.properties or "")
        stored = await receive(client, broker, REPLY_TOPIC, 0)
        assert (stored.body, stored.message_id) == (b"forty-two", answer.ext_fields["msgId"])

        await requester.close()
        await until(lambda: broker.producers.find_client("asker") is None)
        assert (await ask(client, broker, request)).code == ResponseCode.SYSTEM_ERROR


async def test_every_member_of_a_broadcasting_group_gets_every_message(
    tmp_path: Path, client: RemotingClient
) -> None:
    async with running(tmp_path) as broker:
        await ask(client, broker, send_request(queueId="0", body=b"for all"))
        other = RemotingClient()
        for member, client_id in ((client, "c1"), (other, "c2")):
            consumer = ConsumerData(
                "g",
                message_model=MessageModel.BROADCASTING,
                subscription_data_set=[SubscriptionData("T")],
            )
            body = HeartbeatData(client_id, [], [consumer]).encode()
            await ask(member, broker, RemotingCommand(RequestCode.HEART_BEAT, body=body))
        for member in (client, other):
            pull = pull_request(consumerGroup="g", sysFlag="2", subscription=None)
            answer = await ask(member, broker, pull)
            assert answer.code == ResponseCode.SUCCESS
            assert decode_records(answer.body)[0].body == b"for all"
        await other.close()
