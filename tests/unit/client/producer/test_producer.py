from __future__ import annotations

import asyncio

import pytest

from pyromq.client.errors import (
    AnswerError,
    BrokerError,
    ClientStateError,
    IllegalMessageError,
    OptionError,
)
from pyromq.client.message import Message
from pyromq.client.producer.accumulator import Batching
from pyromq.client.producer.producer import Producer
from pyromq.client.producer.sending import Outgoing
from pyromq.client.results import SendStatus
from pyromq.protocol.message.record import encode_inner_message
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader
from pyromq.remoting.client import RemotingConnectError, RemotingTimeoutError
from tests.support.patience import until
from tests.unit.client.fake_cluster import running_cluster

SEND = RequestCode.SEND_MESSAGE_V2
FIRST = MessageQueue("t", "b0", 0)


async def test_a_sent_message_is_stored_with_its_properties() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv, group="g") as producer,
    ):
        result = await producer.send(Message("t", b"hello", tags="a", keys="k", flag=9))
        (stored,) = cluster.brokers[0].queues["t", 0]
        assert stored.body == b"hello"
        assert stored.properties["TAGS"] == "a"
        assert stored.properties["UNIQ_KEY"] == result.msg_id
        assert result.queue == MessageQueue("t", "b0", 0)
        assert (result.queue_offset, result.status) == (0, SendStatus.SEND_OK)
        assert result.offset_msg_id == "OFFSETID"
        header = SendMessageRequestHeaderV2.decode(cluster.brokers[0].seen(SEND)[0].ext_fields)
        assert (header.producer_group, header.flag, header.broker_name) == ("g", 9, "b0")


async def test_encoded_messages_are_sent() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv) as producer,
    ):
        inner = encode_inner_message(b"1", b"a\x01b") + encode_inner_message(b"2", b"")
        batch = await producer.send_encoded(Outgoing.encoded("t", inner))
        alone = await producer.send_encoded(Outgoing.encoded("t", b"3", "TAGS\x01c"))
        stored = cluster.brokers[0].queues["t", 0]
        assert [message.body for message in stored] == [b"1", b"2", b"3"]
        assert stored[2].properties["TAGS"] == "c"
        assert (batch.queue_offset, alone.queue_offset) == (0, 2)


async def test_a_batch_is_stored_in_order_on_one_queue() -> None:
    async with (
        running_cluster({"t": {"b0": 4}}) as cluster,
        Producer(cluster.namesrv) as producer,
    ):
        bodies = [b"%d" % number for number in range(5)]
        results = await producer.send_batch(Message("t", body, tags="x") for body in bodies)
        stored = cluster.brokers[0].queues["t", results[0].queue.queue_id]
        assert [record.body for record in stored] == bodies
        assert [record.properties["UNIQ_KEY"] for record in stored] == [r.msg_id for r in results]
        assert [result.queue_offset for result in results] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("batch", [[], [Message("t", b"x"), Message("u", b"x")]])
async def test_a_batch_has_one_topic(batch: list[Message]) -> None:
    async with Producer("127.0.0.1:1") as producer:
        with pytest.raises(IllegalMessageError, match=r"must have one topic|at least one message"):
            await producer.send_batch(batch)


async def test_a_large_batch_is_split_and_stays_in_order_on_one_queue() -> None:
    async with (
        running_cluster({"t": {"b0": 4}}) as cluster,
        Producer(cluster.namesrv) as producer,
    ):
        bodies = [bytes([number]) * (1 << 20) for number in range(10)]
        results = await producer.send_batch([Message("t", body) for body in bodies])
        (queue,) = {result.queue for result in results}
        assert [r.body for r in cluster.brokers[0].queues["t", queue.queue_id]] == bodies
        assert [result.queue_offset for result in results] == list(range(10))
        assert len(cluster.brokers[0].seen(RequestCode.SEND_BATCH_MESSAGE)) == 4


@pytest.mark.parametrize(
    "message", [Message("t", b"x", delay_level=1), Message("%RETRY%t", b"x"), Message("t", b"")]
)
async def test_messages_not_allowed_in_a_batch_are_refused(message: Message) -> None:
    async with Producer("127.0.0.1:1") as producer:
        with pytest.raises(IllegalMessageError):
            await producer.send_batch([message])


async def test_oneway_arrives_even_if_the_producer_closes_at_once() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        async with Producer(cluster.namesrv) as producer:
            await producer.send_oneway(Message("t", b"gone"))
        await until(lambda: bool(cluster.brokers[0].queues["t", 0]))
        assert cluster.brokers[0].seen(SEND)[0].is_oneway


async def test_a_busy_broker_is_avoided() -> None:
    async with (
        running_cluster({"t": {"b0": 1, "b1": 1}}, brokers=2) as cluster,
        Producer(cluster.namesrv) as producer,
    ):
        cluster.brokers[1].refusals[SEND] = [(ResponseCode.SYSTEM_BUSY, "busy")] * 9
        results = [await producer.send(Message("t", b"x")) for _ in range(4)]
        assert {result.queue.broker_name for result in results} == {"b0"}


async def test_the_same_unique_key_is_sent_at_each_attempt() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv) as producer,
    ):
        cluster.brokers[0].refusals[SEND] = [(ResponseCode.SYSTEM_BUSY, "busy")]
        await producer.send(Message("t", b"x"))
        first, second = (request.ext_fields["i"] for request in cluster.brokers[0].seen(SEND))
        assert first == second


async def test_a_broker_that_stays_busy_is_named() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv, retries=1) as producer,
    ):
        cluster.brokers[0].refusals[SEND] = [(ResponseCode.SYSTEM_BUSY, "busy")] * 3
        with pytest.raises(BrokerError, match="SYSTEM_BUSY") as caught:
            await producer.send(Message("t", b"x"))
        assert caught.value.address == cluster.brokers[0].address
        assert len(cluster.brokers[0].seen(SEND)) == 2


async def test_a_refused_message_is_not_retried() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv) as producer,
    ):
        cluster.brokers[0].refusals[SEND] = [(ResponseCode.MESSAGE_ILLEGAL, "bad")]
        with pytest.raises(BrokerError, match="MESSAGE_ILLEGAL"):
            await producer.send(Message("t", b"x"))
        assert len(cluster.brokers[0].seen(SEND)) == 1


async def test_the_status_tells_how_safely_a_message_is_stored() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv) as producer,
    ):
        header = SendMessageResponseHeader("ID", 0, 4).encode()
        cluster.brokers[0].refusals[SEND] = [
            (ResponseCode.FLUSH_SLAVE_TIMEOUT, "slow", header)  # type: ignore[list-item]
        ]
        result = await producer.send(Message("t", b"x"))
        assert (result.status, result.queue_offset) == (SendStatus.FLUSH_SLAVE_TIMEOUT, 4)


async def test_a_response_without_header_fields_is_an_answer_error() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv) as producer,
    ):
        cluster.brokers[0].refusals[SEND] = [(ResponseCode.SUCCESS, "no header")]
        with pytest.raises(AnswerError, match="cannot be decoded"):
            await producer.send(Message("t", b"x"))


async def test_a_dead_broker_is_a_connect_error() -> None:
    async with (
        running_cluster({"t": {"b1": 1}}, brokers=2) as cluster,
        Producer(cluster.namesrv, retries=0) as producer,
    ):
        await cluster.brokers[1].stop()
        with pytest.raises(RemotingConnectError):
            await producer.send(Message("t", b"x"))


@pytest.mark.parametrize("fixed", [None, MessageQueue("t", "b1", 0)], ids=["any queue", "fixed"])
async def test_a_failure_without_retries_makes_the_next_sends_look_for_the_master(
    fixed: MessageQueue | None,
) -> None:
    """Else a producer would send to a former leader until its route is old."""
    async with (
        running_cluster({"t": {"b1": 1}}, brokers=2) as cluster,
        Producer(cluster.namesrv, retries=0, route_interval=600) as producer,
    ):
        await producer.send(Message("t", b"x"), fixed)
        former = cluster.brokers[1].address
        await cluster.brokers[1].stop()
        await cluster.brokers[1].start()
        assert cluster.brokers[1].address != former

        async def is_sent() -> bool:
            try:
                await producer.send(Message("t", b"x"), fixed)
            except RemotingConnectError:
                return False
            return True

        await until(is_sent)


async def test_a_silent_broker_times_out() -> None:
    async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with running_cluster({"t": {"b1": 1}}, brokers=2) as cluster:
        await cluster.brokers[1].stop()
        server = await asyncio.start_server(nothing, "127.0.0.1", 0)
        cluster.brokers[1].address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Producer(cluster.namesrv, retries=0, send_timeout=0.1) as producer:
            with pytest.raises(RemotingTimeoutError):
                await producer.send(Message("t", b"x"))
        server.close()
        await server.wait_closed()


async def test_wrong_use_is_refused() -> None:
    with pytest.raises(OptionError, match="namesrv"):
        Producer("nowhere")
    with pytest.raises(OptionError, match="unknown option colour"):
        Producer("127.0.0.1:1", colour="blue")  # type: ignore[call-arg]
    with pytest.raises(OptionError, match="retries"):
        Producer("127.0.0.1:1", retries=-1)
    with pytest.raises(IllegalMessageError):
        Producer("127.0.0.1:1", group="no group")
    producer = Producer("127.0.0.1:1")
    with pytest.raises(ClientStateError, match="not started"):
        await producer.send(Message("t", b"x"))
    async with producer:
        pass
    with pytest.raises(ClientStateError, match="is closed"):
        await producer.send(Message("t", b"x"))
    with pytest.raises(ClientStateError, match="is closed"):
        await producer.start()


@pytest.mark.parametrize("batching", [None, Batching(linger=0)])
@pytest.mark.parametrize(
    "message",
    [
        Message("t", "text"),  # type: ignore[arg-type]
        Message("t", None),  # type: ignore[arg-type]
        Message("t", b"x", tags="\ud800"),
        Message("t", b"x", tags="\ud800", properties={"a": "b"}),
        Message("t", b"x", flag=1 << 31),
    ],
)
async def test_a_message_that_cannot_be_sent_is_illegal(
    message: Message, batching: Batching | None
) -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv, batching=batching) as producer,
    ):
        with pytest.raises(IllegalMessageError):
            await producer.send(message)
        with pytest.raises(IllegalMessageError):
            await producer.send_batch([message])
        assert cluster.brokers[0].queues["t", 0] == []


async def test_bytes_of_any_kind_are_a_body() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv) as producer,
    ):
        await producer.send(Message("t", bytearray(b"one")))  # type: ignore[arg-type]
        await producer.send_batch([Message("t", memoryview(b"two"))])  # type: ignore[arg-type]
        stored = cluster.brokers[0].queues["t", 0]
        assert [record.body for record in stored] == [b"one", b"two"]
