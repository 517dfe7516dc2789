"""Bad input: what is wrong is said by a typed exception, or tried again; nothing stops silently."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from pyromq.client import (
    AnswerError,
    Batching,
    BrokerError,
    ClientStateError,
    IllegalMessageError,
    LitePullConsumer,
    Message,
    MessageQueue,
    NameServerError,
    OptionError,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RemotingConnectError,
    RemotingError,
    RocketMQError,
    StartFrom,
    Subscription,
    TopicNotFoundError,
)
from pyromq.protocol.wire.bodies import BrokerData, QueueData, TopicRouteData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import FrameReader, RemotingCommand
from tests.clients.cases import TAKES_PLAIN, Case, Inbox, against_all_brokers, numbered
from tests.support.apache_rocketmq import free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def ignore(_: ReceivedMessage) -> None:
    pass


# Addresses


@pytest.mark.parametrize("address", ["", "nothing", "host:port", "127.0.0.1:70000", ";"])
def test_impossible_addresses(address: str) -> None:
    for make in (
        lambda: Producer(address),
        lambda: PullConsumer(address, "t"),
        lambda: LitePullConsumer(address, group="g"),
        lambda: PushConsumer(address, group="g", handler=ignore, subscriptions={"t": "*"}),
    ):
        with pytest.raises(OptionError, match="namesrv"):
            make()


async def test_nobody_at_the_address() -> None:
    address = f"127.0.0.1:{free_port()}"
    async with Producer(address) as producer:
        with pytest.raises(NameServerError, match=address) as failure:
            await producer.send(Message("t", b"x"))
        assert isinstance(failure.value.causes[address], RemotingConnectError)
    async with PullConsumer(address, "t") as pull:
        with pytest.raises(NameServerError, match=address):
            await pull.queues()
    async with LitePullConsumer(address, group="g") as lite:
        with pytest.raises(NameServerError, match=address):
            await lite.subscribe("t")
    with pytest.raises(NameServerError, match=address):
        await PushConsumer(address, group="g", handler=ignore, subscriptions={"t": "*"}).start()


async def test_one_of_two_name_servers_is_enough(case: Case) -> None:
    dead = f"127.0.0.1:{free_port()}"
    for namesrv in (f"{dead};{case.namesrv}", f"{case.namesrv};{dead}"):
        async with Producer(namesrv) as producer:
            await producer.send(Message(case.topic, b"x"))


async def test_a_broker_that_is_not_there() -> None:
    """The NameServer names a broker that nobody can reach."""
    address = f"127.0.0.1:{free_port()}"
    async with (
        server(name_server_of(address)) as namesrv,
        Producer(namesrv, retries=1) as producer,
    ):
        with pytest.raises(RemotingConnectError, match=address):
            await producer.send(Message("t", b"x"))


# Names, bodies, options


@against_all_brokers
async def test_topics_that_are_not_there(case: Case) -> None:
    async with PullConsumer(case.namesrv, "no-such-topic") as pull:
        with pytest.raises(TopicNotFoundError, match="no-such-topic"):
            await pull.queues()
    async with LitePullConsumer(case.namesrv, group=case.group) as lite:
        with pytest.raises(TopicNotFoundError, match="no-such-topic"):
            await lite.subscribe("no-such-topic")
    async with Producer(case.namesrv) as producer:
        queue = MessageQueue(case.topic, "no-such-broker", 0)
        with pytest.raises(TopicNotFoundError, match="no-such-broker"):
            await producer.send(Message(case.topic, b"x"), queue)


@pytest.mark.parametrize("name", ["", "with space", "umläut", "x" * 256, "a/b", "new\nline"])
async def test_illegal_names(name: str) -> None:
    with pytest.raises(IllegalMessageError):
        Producer("127.0.0.1:1", group=name)
    with pytest.raises(IllegalMessageError):
        PullConsumer("127.0.0.1:1", name)
    with pytest.raises(IllegalMessageError):
        PushConsumer("127.0.0.1:1", group="g", handler=ignore, subscriptions={name: "*"})
    async with Producer("127.0.0.1:1") as producer:
        with pytest.raises(IllegalMessageError):
            await producer.send(Message(name, b"x"))


@pytest.mark.parametrize("batching", [None, Batching()], ids=["single", "batched"])
async def test_messages_that_no_broker_takes(case: Case, batching: Batching | None) -> None:
    topic = case.topic
    bad = [
        Message(topic, b""),
        Message(topic, b"x" * (4 * 1024 * 1024 + 1)),
        Message(topic, b"x", properties={"a\x01b": "c"}),
        Message(topic, b"x", properties={"a": "b\x02c"}),
        Message(topic, b"x", properties={"": "c"}),
        Message(topic, b"x", properties={"a": "b" * 40_000}),
        Message(topic, b"x", tags="a\x01b"),
        Message(topic, b"x", keys=["a\x02b"]),
    ]
    async with Producer(case.namesrv, batching=batching) as producer:
        for message in bad:
            with pytest.raises(IllegalMessageError):
                await producer.send(message)
            with pytest.raises(IllegalMessageError):
                await producer.send_batch([Message(topic, b"good"), message])
            with pytest.raises(IllegalMessageError):
                await producer.send_oneway(message)
        with pytest.raises(IllegalMessageError, match="one topic"):
            await producer.send_batch([Message(topic, b"x"), Message(f"{topic}2", b"x")])
        with pytest.raises(IllegalMessageError, match="delayed"):
            await producer.send_batch([Message(topic, b"x", delay_level=1)])
        result = await producer.send(Message(topic, b"good"))
    assert result.queue_offset == 0
    # Nothing of the bad ones was stored, nor what was in a batch with them.
    assert [message.body for message in await case.wait_stored(1)] == [b"good"]


async def test_what_a_broker_refuses(case: Case) -> None:
    """Things that only the broker can judge: its code and remark come back."""
    async with Producer(case.namesrv) as producer:
        with pytest.raises(BrokerError) as refused:
            await producer.send(Message("SCHEDULE_TOPIC_XXXX", b"x"))
        assert refused.value.address == case.cluster.broker_address()
        assert refused.value.remark
        await producer.send(Message(case.topic, b"still good"))
    async with LitePullConsumer(
        case.namesrv, group=case.group, start_from=StartFrom.FIRST
    ) as consumer:
        with pytest.raises(BrokerError) as refused:
            await consumer.subscribe({case.topic: Subscription.sql("a >> 1")})
        assert refused.value.remark


async def test_impossible_offsets(case: Case) -> None:
    async with PullConsumer(case.namesrv, case.topic) as consumer:
        queue = (await consumer.queues())[0]
        for offset, count, wait in ((-1, 32, 0.0), (0, 0, 0.0), (0, 32, -1.0)):
            with pytest.raises(OptionError):
                await consumer.pull(queue, offset, count, wait=wait)
        with pytest.raises(ClientStateError, match="group"):
            await consumer.commit(queue, 0)


# Life


async def test_clients_that_were_not_started_or_are_closed(case: Case) -> None:
    producer = Producer(case.namesrv)
    pull = PullConsumer(case.namesrv, case.topic)
    lite = LitePullConsumer(case.namesrv, group=case.group)
    push = PushConsumer(
        case.namesrv, group=case.group, handler=ignore, subscriptions={case.topic: "*"}
    )
    for problem in ("not started", "closed"):
        for action in (
            lambda: producer.send(Message(case.topic, b"x")),
            lambda: producer.send_batch([Message(case.topic, b"x")]),
            lambda: producer.send_oneway(Message(case.topic, b"x")),
            lambda: producer.queues(case.topic),
            lambda: pull.queues(),
            lambda: pull.pull(MessageQueue(case.topic, "broker-a", 0), 0),
            lambda: lite.subscribe(case.topic),
            lambda: lite.poll(0),
            lambda: push.subscribe(case.topic),
        ):
            with pytest.raises(ClientStateError, match=problem):
                await action()
        for client in (producer, pull, lite, push):
            if problem == "not started":
                await client.start()
            # Closing is possible any number of times, also at once.
            await asyncio.gather(client.close(), client.close())
    for client in (producer, pull, lite, push):
        with pytest.raises(ClientStateError, match="closed"):
            await client.start()


async def test_closing_in_the_middle(case: Case) -> None:
    """Whoever waits for something when a client is closed gets an answer, soon."""
    pull = PullConsumer(case.namesrv, case.topic)
    await pull.start()
    queue = (await pull.queues())[0]
    waiting = asyncio.create_task(pull.pull(queue, 0, wait=20.0))
    lite = LitePullConsumer(case.namesrv, group=case.group)
    await lite.start()
    await lite.subscribe(case.topic)
    reading = asyncio.create_task(anext(lite, None))
    await asyncio.sleep(0.1)
    began = time.monotonic()
    await asyncio.gather(pull.close(), lite.close())
    with pytest.raises(RocketMQError):
        await waiting
    assert await reading is None
    assert time.monotonic() - began < 15.0


# Handlers


@pytest.mark.parametrize("kind", ["coroutine", "function"])
async def test_a_handler_that_raises_anything(
    case: Case, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [ValueError("bad"), KeyError("x"), RecursionError(), TimeoutError(), OSError(5, "io")]
    inbox = Inbox()
    loop = asyncio.get_running_loop()

    def fail(message: ReceivedMessage) -> None:
        loop.call_soon_threadsafe(inbox.put, message)
        if message.reconsume_times == 0:
            raise errors[int(message.body.split(b"-")[1]) % len(errors)]

    async def handle(message: ReceivedMessage) -> None:
        fail(message)

    async with PushConsumer(
        case.namesrv,
        group=case.group,
        handler=handle if kind == "coroutine" else fail,
        subscriptions={case.topic: "*"},
        start_from=StartFrom.FIRST,
    ):
        await case.send(numbered(5))
        await inbox.until(
            lambda got: sum(message.reconsume_times == 1 for message in got.messages) >= 5
        )
    failures = [record for record in caplog.records if "handler failed" in record.getMessage()]
    assert len(failures) == 5
    await case.until_committed(5)


# Servers that are none


async def read_forever(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass


async def say_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await read_forever(reader)


async def close_at_once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


def say(data: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            await read_forever(reader)

    return serve


def answer_with(body: bytes, ext_fields: dict[str, str] | None = None) -> Serve:
    """A good frame with anything inside."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        while data := await reader.read(65536):
            for command in frames.feed(data):
                if not command.is_oneway:
                    answer = command.answer(ResponseCode.SUCCESS, ext_fields=ext_fields, body=body)
                    writer.write(answer.encode())

    return serve


def name_server_of(*addresses: str) -> Serve:
    """Says that all topics are at these brokers."""
    route = TopicRouteData(
        queue_datas=[QueueData(f"broker-{number}", 1, 1, 6, 0) for number in range(len(addresses))],
        broker_datas=[
            BrokerData("DefaultCluster", f"broker-{number}", {0: address})
            for number, address in enumerate(addresses)
        ],
    )
    return answer_with(route.encode())


@contextlib.asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[str]:
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError):
            await serve(reader, writer)
        writer.close()

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        for writer in writers:
            writer.transport.abort()
        await listening.wait_closed()


WRONG_SERVERS: dict[str, Serve] = {
    "nothing": say_nothing,
    "closes": close_at_once,
    "http": say(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
    "zeros": say(bytes(1000)),
    "huge frame": say(b"\x7f\xff\xff\xff" + b"x" * 100),
    "no json": say(b"\x00\x00\x00\x0c\x00\x00\x00\x08garbage!"),
    "empty body": answer_with(b""),
    "no object": answer_with(b"[1, 2, 3]"),
    "wrong types": answer_with(b'{"queueDatas": 7, "brokerDatas": "x"}', {"offset": "x"}),
}


@pytest.mark.parametrize("kind", WRONG_SERVERS)
async def test_a_name_server_that_is_none(kind: str) -> None:
    async with server(WRONG_SERVERS[kind]) as address:
        async with Producer(address, request_timeout=0.5) as producer:
            with pytest.raises(NameServerError, match=address):
                await producer.send(Message("t", b"x"))
        with pytest.raises(NameServerError, match=address):
            await PushConsumer(
                address,
                group="g",
                handler=ignore,
                subscriptions={"t": "*"},
                request_timeout=0.5,
            ).start()


@pytest.mark.parametrize("kind", WRONG_SERVERS)
async def test_a_broker_that_is_none(kind: str) -> None:
    async with (
        server(WRONG_SERVERS[kind]) as broker,
        server(name_server_of(broker)) as namesrv,
    ):
        async with Producer(namesrv, send_timeout=0.5, retries=1) as producer:
            with pytest.raises((RemotingError, AnswerError), match=broker):
                await producer.send(Message("t", b"x"))
        async with PullConsumer(namesrv, "t", request_timeout=0.5) as consumer:
            queue = MessageQueue("t", "broker-0", 0)
            queues: list[MessageQueue] = []
            while queue not in queues:
                with contextlib.suppress(NameServerError):  # a machine that stalls is too late
                    queues = await consumer.queues()
            with pytest.raises((RemotingError, AnswerError), match=broker):
                await consumer.max_offset(queue)
            with pytest.raises((RemotingError, AnswerError), match=broker):
                await consumer.pull(queue, 0)


@pytest.mark.parametrize("cluster", TAKES_PLAIN, indirect=True)
async def test_a_good_broker_beside_a_bad_one(case: Case) -> None:
    """Sends go to the good one, whatever the other does."""
    good = case.cluster.broker_address()
    for kind in ("nothing", "closes", "http", "no json"):
        async with (
            server(WRONG_SERVERS[kind]) as bad,
            server(name_server_of(bad, good)) as namesrv,
            # Only who says nothing lets that much time pass. The wrong servers speak no TLS.
            Producer(namesrv, send_timeout=3.0, tls=False) as producer,
        ):
            results = [await producer.send(Message(case.topic, b"x")) for _ in range(4)]
        assert {result.queue.broker_name for result in results} == {"broker-1"}, kind


async def test_a_consumer_outlives_a_broker_that_loses_its_mind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Pulls that are answered with garbage are logged and tried again; the consumer lives."""
    caplog.set_level(logging.WARNING)
    pulls = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal pulls
        frames = FrameReader()
        while data := await reader.read(65536):
            for command in frames.feed(data):
                if command.code == RequestCode.PULL_MESSAGE:
                    pulls += 1
                    writer.write(
                        command.answer(
                            ResponseCode.SUCCESS,
                            ext_fields={
                                "suggestWhichBrokerId": "0",
                                "nextBeginOffset": "1",
                                "minOffset": "0",
                                "maxOffset": "1",
                            },
                            body=b"no records at all",
                        ).encode()
                    )
                elif not command.is_oneway:
                    writer.write(_sane(command).encode())

    async with (
        server(serve) as broker,
        server(name_server_of(broker)) as namesrv,
        LitePullConsumer(namesrv, start_from=StartFrom.FIRST) as consumer,
    ):
        await consumer.subscribe("t")
        assert await consumer.poll(1.5) == []
        assert pulls >= 2
    assert broker in caplog.text


def _sane(command: RemotingCommand) -> RemotingCommand:
    """What a broker answers to everything but pulls."""
    return command.answer(ResponseCode.SUCCESS, ext_fields={"offset": "0"})
