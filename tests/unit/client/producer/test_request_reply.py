from __future__ import annotations

import asyncio
import zlib

import pytest

from pyromq.client.errors import (
    ClientStateError,
    IllegalMessageError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from pyromq.client.message import ClientMessage, Message
from pyromq.client.producer import request_reply
from pyromq.client.producer.producer import Producer
from pyromq.client.producer.request_reply import Requests, as_request, reply_to
from pyromq.client.received import ReceivedMessage, decode_messages
from pyromq.protocol.message.properties import decode_properties
from pyromq.protocol.message.record import MessageRecord, encode_record
from pyromq.protocol.message.sysflag import COMPRESSED
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import ReplyMessageRequestHeader
from tests.support.patience import DEADLINE, until
from tests.unit.client.fake_cluster import HOST, FakeBroker, running_cluster

REPLY = RequestCode.SEND_REPLY_MESSAGE_V2
TOPICS = {"t": {"b0": 1}, "cluster_REPLY_TOPIC": {"b0": 1, "b1": 1}}


def received(record: MessageRecord, cluster: str = "cluster") -> ReceivedMessage:
    """Return a stored message as a consumer gets it, with the cluster's name."""
    record.raw_properties += b"\x02CLUSTER\x01" + cluster.encode()
    queue = MessageQueue(record.topic, "b0", record.queue_id)
    (message,) = decode_messages(encode_record(record, HOST, HOST), queue)
    return message


async def next_request(broker: FakeBroker, number: int = 0) -> ReceivedMessage:
    await until(lambda: len(broker.queues["t", 0]) > number)
    return received(broker.queues["t", 0][number])


async def test_a_request_gets_its_reply() -> None:
    async with (
        running_cluster(TOPICS, brokers=2) as cluster,
        Producer(cluster.namesrv, group="asker") as asker,
        Producer(cluster.namesrv, group="replier") as replier,
    ):
        question = Message("t", b"6 * 7", tags="a")
        asking = asyncio.create_task(asker.request(question, DEADLINE))
        message = await next_request(cluster.brokers[0])
        assert message.system_properties["REPLY_TO_CLIENT"] == asker.client_id
        assert message.system_properties["TTL"] == str(int(DEADLINE * 1000))
        assert len(message.system_properties["CORRELATION_ID"]) == 36
        assert (message.tags, question.properties) == ("a", {})
        await replier.send(reply_to(message, b"42"))
        reply = await asking
        assert reply.body == b"42"
        assert reply.topic == "cluster_REPLY_TOPIC"
        correlation_id = message.system_properties["CORRELATION_ID"]
        assert reply.system_properties["CORRELATION_ID"] == correlation_id
        assert int(reply.system_properties["ARRIVE_TIME"]) > 0
        assert (reply.born_host, reply.store_host) == (("127.0.0.1", 5), ("::1", 6))
        assert reply.store_timestamp == 7
        answers = [broker.answers for broker in cluster.brokers]
        await until(lambda: any(answers))
        assert {a.code for some in answers for a in some} == {ResponseCode.SUCCESS}


async def test_all_brokers_of_the_reply_topic_know_the_requester() -> None:
    async with (
        running_cluster(TOPICS, brokers=2) as cluster,
        Producer(cluster.namesrv, group="asker") as asker,
        Producer(cluster.namesrv, group="replier") as replier,
    ):
        bodies = [b"%d" % number for number in range(6)]
        asking = [
            asyncio.create_task(asker.request(Message("t", body), DEADLINE)) for body in bodies
        ]
        for number in range(6):
            message = await next_request(cluster.brokers[0], number)
            assert all(asker.client_id in broker.clients for broker in cluster.brokers)
            await replier.send(reply_to(message, b"re " + message.body))
        assert [reply.body for reply in await asyncio.gather(*asking)] == [
            b"re " + body for body in bodies
        ]
        assert all(broker.seen(REPLY) for broker in cluster.brokers)


async def test_reply_topics_have_no_namespace() -> None:
    async with (
        running_cluster({**TOPICS, "ns%t": {"b0": 1}}, brokers=2) as cluster,
        Producer(cluster.namesrv, namespace="ns") as producer,
    ):
        asking = asyncio.create_task(producer.request(Message("t", b"?"), DEADLINE))
        await until(lambda: bool(cluster.brokers[0].queues["ns%t", 0]))
        message = received(cluster.brokers[0].queues["ns%t", 0][0])
        await producer.send(reply_to(message, b"!"))
        assert (await asking).body == b"!"


async def test_replies_are_not_batched() -> None:
    from pyromq.client.producer.accumulator import Batching

    async with (
        running_cluster(TOPICS, brokers=2) as cluster,
        Producer(cluster.namesrv, batching=Batching()) as producer,
    ):
        asking = asyncio.create_task(producer.request(Message("t", b"?"), DEADLINE))
        message = await next_request(cluster.brokers[0])
        with pytest.raises(IllegalMessageError, match="reply"):
            await producer.send_batch([reply_to(message, b"1"), reply_to(message, b"2")])
        await producer.send(reply_to(message, b"!"))
        assert (await asking).body == b"!"


async def test_a_request_without_a_reply_times_out() -> None:
    async with running_cluster(TOPICS, brokers=2) as cluster, Producer(cluster.namesrv) as producer:
        problem = "not stored"
        while "not stored" in problem:  # on a stalled machine the send uses up the time
            with pytest.raises(RequestTimeoutError) as caught:
                await producer.request(Message("t", b"?"), 0.05)
            problem = str(caught.value)
        assert problem == "request to topic 't': stored, but not replied to within 0.05 s"
        assert cluster.brokers[0].queues["t", 0]


async def test_a_request_that_is_not_stored_times_out() -> None:
    async with running_cluster(TOPICS, brokers=2) as cluster, Producer(cluster.namesrv) as producer:
        with pytest.raises(TopicNotFoundError):
            await producer.request(Message("nowhere", b"?"))
        with pytest.raises(IllegalMessageError):
            await producer.request(Message("t", b""))


async def test_without_a_reply_topic_the_brokers_of_the_topic_know_the_requester() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv) as producer,
    ):
        asking = asyncio.create_task(producer.request(Message("t", b"?"), DEADLINE))
        await until(lambda: producer.client_id in cluster.brokers[0].clients)
        asking.cancel()


async def test_closing_fails_requests_in_flight() -> None:
    async with running_cluster(TOPICS, brokers=2) as cluster:
        producer = Producer(cluster.namesrv)
        await producer.start()
        asking = asyncio.create_task(producer.request(Message("t", b"?"), DEADLINE))
        await next_request(cluster.brokers[0])
        await producer.close()
        with pytest.raises(ClientStateError, match="before the reply arrived"):
            await asking


def test_only_requests_are_replied_to() -> None:
    plain = MessageRecord(
        "t", 0, 0, 0, b"x", {}, 0, 0, 1, ("", 0), 2, ("", 0), 0, 0, 0, 0, "", b"a\x01b"
    )
    with pytest.raises(IllegalMessageError, match="no property CORRELATION_ID, REPLY_TO_CLIENT"):
        reply_to(received(plain), b"?")


def test_a_request_does_not_change_the_callers_message() -> None:
    message = Message("t", b"x", properties={"a": "b"})
    request = as_request(message, "id", "me", 1.5)
    assert message.properties == {"a": "b"}
    assert decode_properties(request.wire_properties("KEY")) == {
        "a": "b",
        "CORRELATION_ID": "id",
        "REPLY_TO_CLIENT": "me",
        "TTL": "1500",
        "UNIQ_KEY": "KEY",
        "WAIT": "true",
    }


def test_a_reply_is_not_a_request() -> None:
    reply = ClientMessage("t", b"x", system_properties={"MSG_TYPE": "reply"})
    with pytest.raises(IllegalMessageError, match=r"use Producer\.send"):
        as_request(reply, "id", "me", 1.5)


def pushed(properties: str, body: bytes = b"!", sys_flag: int = 0) -> RemotingCommand:
    header = ReplyMessageRequestHeader(
        "g", "c_REPLY_TOPIC", "TBW102", 4, 0, sys_flag, 1, 0, "nowhere", "", 2, properties
    )
    return RemotingCommand(
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext_fields=header.encode(), body=body
    )


async def test_unexpected_replies_are_dropped() -> None:
    requests = Requests()
    assert requests.take("b:1", pushed("")).code == ResponseCode.SUCCESS
    assert requests.take("b:1", pushed("CORRELATION_ID\x01gone")).code == ResponseCode.SUCCESS
    with requests.expect() as (correlation_id, reply):
        push = pushed(f"CORRELATION_ID\x01{correlation_id}", zlib.compress(b"long"), COMPRESSED)
        requests.take("b:1", push)
        requests.take("b:1", push)
        assert (await reply).body == b"long"
        assert (await reply).born_host == ("0.0.0.0", 0)
    assert not requests._waiting


async def test_a_request_does_not_wait_for_a_silent_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_reply, "_INTRODUCTION_SECONDS", 0.05)

    async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with running_cluster(TOPICS, brokers=2) as cluster:
        await cluster.brokers[1].stop()
        server = await asyncio.start_server(nothing, "127.0.0.1", 0)
        cluster.brokers[1].address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Producer(cluster.namesrv, request_timeout=30.0) as producer:
            for number in range(3):
                asking = asyncio.create_task(producer.request(Message("t", b"?"), DEADLINE))
                message = await next_request(cluster.brokers[0], number)
                # Replies may go there while the route lists it.
                queue = MessageQueue("cluster_REPLY_TOPIC", "b0", 0)
                await producer.send(reply_to(message, b"!"), queue)
                assert (await asking).body == b"!"
            assert cluster.brokers[1].address in producer._requests._introductions
        server.close()
        await server.wait_closed()


async def test_a_broker_that_lost_the_connection_is_introduced_before_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_reply, "_RETRY_SECONDS", 0.0)
    async with running_cluster(TOPICS, brokers=2) as cluster, Producer(cluster.namesrv) as producer:
        other = cluster.brokers[1]
        for _ in range(2):
            with pytest.raises(RequestTimeoutError):
                await producer.request(Message("t", b"?"), 0.1)
            assert producer.client_id in other.clients
            for writer in other.writers:
                writer.transport.abort()
            await until(lambda: not producer._session.is_known_to(other.address))
            other.clients.clear()
