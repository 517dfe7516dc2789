from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyromq.client.consumer.push.handling import Retry
from pyromq.client.consumer.push.options import Order
from pyromq.client.consumer.start_from import StartFrom
from pyromq.client.errors import (
    ClientStateError,
    IllegalMessageError,
    NameServerError,
    OptionError,
)
from pyromq.client.received import ReceivedMessage
from pyromq.protocol.wire.bodies import MessageModel, MessageQueue
from pyromq.protocol.wire.codes import RequestCode
from tests.support.patience import until
from tests.unit.client.consumer.push.consuming import (
    FIRST,
    SECOND,
    TOPICS,
    Handler,
    heartbeat,
    make,
)
from tests.unit.client.fake_cluster import running_cluster


async def test_lifecycle_as_a_broker_sees_it() -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        await broker.put("t", 0, b"one")
        consumer = make(cluster, handler)
        async with consumer:
            await consumer.start()  # idempotent
            await until(lambda: handler.seen == [b"one"])
            (group,) = heartbeat(broker).consumer_data_set
            assert {data.topic for data in group.subscription_data_set} == {"t", "%RETRY%g"}
            assert consumer.assignment() == [MessageQueue("%RETRY%g", "b0", 0), FIRST, SECOND]
            await broker.put("t", 0, b"two")
            await until(lambda: len(handler.seen) == 2)
            # The next pull commits.
            await until(lambda: consumer.offsets()[FIRST] == 2)
        assert broker.offsets["g", "t", 0] == 2
        (farewell,) = broker.seen(RequestCode.UNREGISTER_CLIENT)
        assert farewell.ext_fields["consumerGroup"] == "g"
        await consumer.closed()
        await consumer.close()
        with pytest.raises(ClientStateError):
            await consumer.start()
        with pytest.raises(ClientStateError):
            await consumer.subscribe("u")


async def test_arguments_are_checked() -> None:
    async with running_cluster(TOPICS.copy()) as cluster:
        with pytest.raises(OptionError, match="handler"):
            make(cluster, "not callable")
        with pytest.raises(IllegalMessageError):
            make(cluster, Handler(), group="no good")
        with pytest.raises(IllegalMessageError):
            make(cluster, Handler(), subscriptions={"no good": "*"})
        with pytest.raises(OptionError, match="colour"):
            make(cluster, Handler(), colour="red")


async def test_start_fails_without_a_name_server() -> None:
    async with running_cluster(TOPICS.copy()) as cluster:
        consumer = make(cluster, Handler())
        await cluster.brokers[0].stop()
        with pytest.raises(NameServerError):
            await consumer.start()
        await consumer.closed()


@pytest.mark.parametrize("order", [Order.CONCURRENT, Order.ORDERLY])
async def test_messages_sent_after_the_start_are_consumed(order: Order) -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        await cluster.brokers[0].put("t", 0, b"before")
        async with make(cluster, handler, start_from=StartFrom.LAST, order=order) as consumer:
            await cluster.brokers[0].put("t", 0, b"after")
            await until(lambda: handler.seen == [b"after"])
            cluster.topics["u"] = {"b0": 1}
            await cluster.brokers[0].put("u", 0, b"before")
            await consumer.subscribe("u")
            await cluster.brokers[0].put("u", 0, b"later")
            await until(lambda: handler.seen == [b"after", b"later"])


async def test_a_missing_topic_is_consumed_once_it_exists() -> None:
    handler = Handler()
    async with running_cluster({}) as cluster:
        broker = cluster.brokers[0]
        await broker.put("t", 0, b"early")
        async with make(cluster, handler) as consumer:
            assert consumer.assignment() == []
            cluster.topics.update(TOPICS)
            await until(lambda: handler.seen == [b"early"])


async def test_a_retry_goes_back_to_the_broker() -> None:
    handler = Handler()
    handler.result = Retry(delay_level=5)
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        await broker.put("t", 0, b"x")
        async with make(cluster, handler) as consumer:
            await until(lambda: consumer.offsets().get(FIRST) == 1)
        (request,) = broker.seen(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert request.ext_fields["delayLevel"] == "5"
        assert request.ext_fields["maxReconsumeTimes"] == "16"


async def test_an_unreadable_body_goes_back_and_blocks_nothing() -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        await broker.put("t", 0, b"no LZ4", sys_flag=0x101)
        await broker.put("t", 0, b"plain")
        async with make(cluster, handler):
            await until(lambda: handler.seen == [b"plain"])
            await until(lambda: bool(broker.seen(RequestCode.CONSUMER_SEND_MSG_BACK)))
            (back,) = broker.seen(RequestCode.CONSUMER_SEND_MSG_BACK)
            assert back.ext_fields["offset"] == "1000"
        assert broker.offsets["g", "t", 0] == 2


async def test_broadcasting_requests_only_messages_from_brokers(tmp_path: Any) -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        await broker.put("t", 0, b"x")
        async with make(
            cluster, handler, model=MessageModel.BROADCASTING, offsets_directory=tmp_path
        ) as consumer:
            await until(lambda: handler.seen == [b"x"])
            (group,) = heartbeat(broker).consumer_data_set
            assert group.message_model is MessageModel.BROADCASTING
            assert [data.topic for data in group.subscription_data_set] == ["t"]
            assert consumer.assignment() == [FIRST, SECOND]
            assert consumer.client_id.endswith("@DEFAULT")
        assert broker.offsets == {}
        assert not broker.seen(RequestCode.QUERY_CONSUMER_OFFSET)
        assert not broker.seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        flags = [int(r.ext_fields["sysFlag"]) for r in broker.seen(RequestCode.PULL_MESSAGE)]
        assert not any(flag & 1 for flag in flags)


async def test_background_failures_are_logged_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        async with make(cluster, handler, commit_interval=0.01) as consumer:
            store, pull = consumer._offsets.store, consumer._puller._access.pull
            calls: list[str] = []

            async def moody_store(offsets: Any) -> None:
                calls.append("store")
                if calls.count("store") == 1:
                    raise RuntimeError("a mistake of ours")
                await store(offsets)

            async def moody_pull(*arguments: Any, **options: Any) -> Any:
                calls.append("pull")
                if calls.count("pull") <= 3:
                    raise RuntimeError("another mistake")
                return await pull(*arguments, **options)

            monkeypatch.setattr(consumer._offsets, "store", moody_store)
            monkeypatch.setattr(consumer._puller._access, "pull", moody_pull)
            for number in (0, 1):
                await broker.put("t", number, b"first")
            await until(lambda: len(handler.seen) == 2)
            for number in (0, 1):
                await broker.put("t", number, b"second")
            await until(lambda: len(handler.seen) == 4)
            await until(lambda: broker.offsets.get(("g", "t", 0)) == 2)
        assert "a mistake of ours" in caplog.text
        assert "another mistake" in caplog.text


async def test_close_waits_for_handlers_and_cancels_slow_ones() -> None:
    ended: list[str] = []
    gate = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        try:
            await (gate.wait() if message.body == b"soon" else asyncio.sleep(30))
        finally:
            ended.append(message.body.decode())

    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        await broker.put("t", 0, b"soon")
        await broker.put("t", 1, b"never")
        consumer = make(cluster, handle, close_grace=0.1)
        await consumer.start()
        await until(lambda: consumer._handling._workers.running == 2)
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        gate.set()
        await closing
        assert ended == ["soon", "never"]
        assert (broker.offsets["g", "t", 0], broker.offsets.get(("g", "t", 1), 0)) == (1, 0)


async def test_it_can_be_closed_while_it_starts() -> None:
    async with running_cluster(TOPICS.copy()) as cluster:
        cluster.brokers[0].silent.add(RequestCode.QUERY_CONSUMER_OFFSET)
        consumer = make(cluster, Handler())
        starting = asyncio.create_task(consumer.start())
        await until(lambda: bool(cluster.brokers[0].seen(RequestCode.QUERY_CONSUMER_OFFSET)))
        with pytest.raises(ClientStateError, match="another task is starting"):
            await consumer.start()
        await consumer.close()
        await asyncio.gather(starting, return_exceptions=True)
        await consumer.closed()
        assert consumer.assignment() == []
        with pytest.raises(ClientStateError, match="closed"):
            await consumer.start()
