from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest

from pyromq.client.consumer.lite_pull import readers as queue_readers
from pyromq.client.consumer.lite_pull.consumer import LitePullConsumer
from pyromq.client.consumer.start_from import StartFrom
from pyromq.client.errors import (
    ClientStateError,
    OptionError,
    TopicNotFoundError,
)
from pyromq.protocol.names import TRACE_TOPIC
from pyromq.protocol.wire.bodies import HeartbeatData, MessageModel, MessageQueue
from pyromq.protocol.wire.bodies_admin import GetConsumerStatusBody, ResetOffsetBody
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from tests.support.patience import until
from tests.unit.client.consumer.lite_pull.reading import FIRST, OTHER, PULL, QUEUE, fill
from tests.unit.client.fake_cluster import running_cluster


async def test_iteration_reads_assigned_queues_in_order_and_waits_for_more() -> None:
    async with (
        running_cluster({"t": {"b0": 2}}) as cluster,
        LitePullConsumer(cluster.namesrv, start_from=FIRST) as consumer,
    ):
        await fill(cluster, 40, queue_id=0)
        await fill(cluster, 40, queue_id=1)
        await consumer.assign(await consumer.queues("t"))
        messages = [await anext(consumer) for _ in range(80)]
        for queue_id in range(2):
            bodies = [m.body for m in messages if m.queue.queue_id == queue_id]
            assert bodies == [b"%d" % number for number in range(40)]
        waiting = asyncio.create_task(anext(consumer))
        await cluster.brokers[0].put("t", 1, b"late")
        assert (await waiting).body == b"late"


async def test_messages_sent_after_subscribe_are_read() -> None:
    async with (
        running_cluster({"t": {"b0": 1}, "u": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=StartFrom.LAST) as consumer,
    ):
        broker = cluster.brokers[0]
        for topic in ("t", "u"):
            await broker.put(topic, 0, b"before")
            await consumer.subscribe(topic)
            await broker.put(topic, 0, topic.encode())
            assert (await anext(consumer)).body == topic.encode()


async def test_a_group_resumes_where_it_stopped() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        await fill(cluster, 10)
        async with LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer:
            await consumer.subscribe("t")
            async for message in consumer:
                if message.body == b"3":
                    break
        assert cluster.brokers[0].offsets == {("g", "t", 0): 4}
        assert cluster.brokers[0].members == {}
        async with LitePullConsumer(cluster.namesrv, group="g") as consumer:
            await consumer.subscribe("t")
            assert (await anext(consumer)).body == b"4"


async def test_a_message_is_delivered_again_if_the_block_raises() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        await fill(cluster, 10)

        async def fail_at_3() -> None:
            async with LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer:
                await consumer.subscribe("t")
                async for message in consumer:
                    if message.body == b"3":
                        raise LookupError

        with pytest.raises(LookupError):
            await fail_at_3()
        assert cluster.brokers[0].offsets == {("g", "t", 0): 3}


async def test_failed_pulls_are_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue_readers, "_FIRST_PAUSE_SECONDS", 0.01)
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, start_from=FIRST) as consumer,
    ):
        await fill(cluster, 1)
        cluster.brokers[0].refusals[PULL] = [(ResponseCode.SYSTEM_BUSY, "busy")] * 3
        await consumer.assign([QUEUE])
        assert (await anext(consumer)).body == b"0"
        assert caplog.text.count("SYSTEM_BUSY") == 3


async def test_seeking() -> None:
    async with (
        running_cluster({"t": {"b0": 2}}) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        await fill(cluster, 5)
        await cluster.brokers[0].put("t", 0, b"5", store_timestamp=7_000)
        await consumer.assign([QUEUE])
        assert (await anext(consumer)).body == b"0"
        await consumer.seek(QUEUE, 3)
        assert consumer.position(QUEUE) == 3
        assert (await anext(consumer)).body == b"3"
        await consumer.seek_to_begin(QUEUE)
        assert (await anext(consumer)).body == b"0"
        await consumer.seek_to_time(QUEUE, datetime.fromtimestamp(7))
        assert (await anext(consumer)).body == b"5"
        await consumer.seek_to_end(QUEUE)
        waiting = asyncio.create_task(anext(consumer))
        await cluster.brokers[0].put("t", 0, b"6")
        assert (await waiting).body == b"6"
        with pytest.raises(OptionError, match="has offsets 0 to 7"):
            await consumer.seek(QUEUE, 8)
        with pytest.raises(ClientStateError, match="not assigned"):
            await consumer.seek(OTHER, 0)


async def test_paused_queues_hand_out_nothing_until_resumed() -> None:
    async with (
        running_cluster({"t": {"b0": 2}}) as cluster,
        LitePullConsumer(cluster.namesrv, start_from=FIRST) as consumer,
    ):
        await fill(cluster, 3, 0)
        await fill(cluster, 3, 1)
        await consumer.assign([QUEUE])
        assert (await anext(consumer)).body == b"0"
        consumer.pause([QUEUE])
        await consumer.assign([QUEUE, OTHER])
        assert [(await anext(consumer)).queue for _ in range(3)] == [OTHER] * 3
        assert await consumer.poll(0.01) == []
        waiting = asyncio.create_task(consumer.poll())
        await asyncio.sleep(0)
        consumer.resume()
        assert [m.body for m in await waiting] == [b"1", b"2"]
        with pytest.raises(ClientStateError, match="not assigned"):
            consumer.pause([MessageQueue("t", "b0", 7)])


async def test_pulling_pauses_while_the_cache_is_full() -> None:
    async with (
        running_cluster({"t": {"b0": 2}}) as cluster,
        LitePullConsumer(
            cluster.namesrv, start_from=FIRST, pull_batch_size=10, max_cached_messages=20
        ) as consumer,
    ):
        for queue_id in range(2):
            await fill(cluster, 100, queue_id)
        await consumer.assign([QUEUE, OTHER])
        await until(lambda: len(cluster.brokers[0].seen(PULL)) == 4)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(cluster.brokers[0].seen(PULL)) == 4
        got = [message for _ in range(20) for message in await consumer.poll()]
        assert len({(m.queue.queue_id, m.body) for m in got}) == 200


async def test_queues_in_a_namespace_carry_the_application_names() -> None:
    async with running_cluster({"tenant%t": {"b0": 1}}) as cluster:
        async with LitePullConsumer(
            cluster.namesrv, group="g", start_from=FIRST, namespace="tenant"
        ) as consumer:
            await cluster.brokers[0].put("tenant%t", 0, b"mine")
            await consumer.subscribe("t")
            assert consumer.assignment() == [QUEUE]
            message = await anext(consumer)
            assert (message.topic, message.queue) == ("t", QUEUE)
        assert cluster.brokers[0].offsets == {("tenant%g", "tenant%t", 0): 1}
        assert cluster.brokers[0].members == {}
        (farewell,) = cluster.brokers[0].seen(RequestCode.UNREGISTER_CLIENT)
        assert farewell.ext_fields["consumerGroup"] == "tenant%g"


async def test_an_illegal_offset_is_corrected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        await fill(cluster, 2)
        cluster.brokers[0].offsets["g", "t", 0] = 100
        async with LitePullConsumer(cluster.namesrv, group="g") as consumer:
            await consumer.subscribe("t")
            await until(lambda: "has no offset 100" in caplog.text)
            await cluster.brokers[0].put("t", 0, b"2")
            assert (await anext(consumer)).body == b"2"
        assert cluster.brokers[0].offsets == {("g", "t", 0): 3}


async def test_an_administrator_resets_offsets() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        await fill(cluster, 5)
        await consumer.subscribe("t")
        for _ in range(4):
            await anext(consumer)
        body = ResetOffsetBody({QUEUE: 1, OTHER: 9})
        fields = {"topic": "t", "group": "g", "timestamp": "0", "isForce": "true"}
        for writer in cluster.brokers[0].members.values():
            reset = RemotingCommand(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                ext_fields=fields,
                body=body.encode(),
                flag=2,
            )
            writer.write(reset.encode())
        await until(lambda: consumer.position(QUEUE) == 1)
        assert (await anext(consumer)).body == b"1"


async def test_broadcasting_reads_everything_and_stores_offsets_in_a_file(tmp_path: Path) -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        await fill(cluster, 4)

        @asynccontextmanager
        async def member() -> AsyncIterator[LitePullConsumer]:
            async with LitePullConsumer(
                cluster.namesrv,
                group="g",
                start_from=FIRST,
                model=MessageModel.BROADCASTING,
                offsets_directory=tmp_path,
            ) as consumer:
                await consumer.subscribe("t")
                yield consumer

        async with member() as consumer:
            assert [(await anext(consumer)).body for _ in range(2)] == [b"0", b"1"]
        async with member() as consumer:
            assert (await anext(consumer)).body == b"2"
            assert await consumer.committed(QUEUE) == 2
        assert cluster.brokers[0].offsets == {}
        (data,) = HeartbeatData.decode(
            cluster.brokers[0].seen(RequestCode.HEART_BEAT)[0].body
        ).consumer_data_set
        assert data.message_model is MessageModel.BROADCASTING


async def test_reading_resumes_when_a_broker_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_readers, "_FIRST_PAUSE_SECONDS", 0.01)
    async with (
        running_cluster({"t": {"b1": 1}}, brokers=2) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        broker = cluster.brokers[1]
        await broker.put("t", 0, b"0")
        await consumer.subscribe("t")
        assert (await anext(consumer)).body == b"0"
        await broker.stop()
        waiting = asyncio.create_task(anext(consumer))
        await broker.start()  # at another port
        await broker.put("t", 0, b"1")
        assert (await waiting).body == b"1"


async def test_calls_in_the_wrong_state_are_refused() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        unstarted = LitePullConsumer(cluster.namesrv)
        with pytest.raises(ClientStateError, match="not started"):
            await unstarted.subscribe("t")
        with pytest.raises(ClientStateError, match="not started"):
            await anext(unstarted)
        async with LitePullConsumer(cluster.namesrv, group="g") as consumer:
            with pytest.raises(OptionError, match="at least one"):
                await consumer.subscribe([])
            with pytest.raises(ClientStateError, match="nothing was subscribed"):
                await consumer.unsubscribe("t")
            with pytest.raises(TopicNotFoundError, match="missing"):
                await consumer.subscribe("missing")
            await consumer.subscribe("t")
            with pytest.raises(TopicNotFoundError, match="missing"):
                await consumer.subscribe("missing")
            with pytest.raises(ClientStateError, match="either subscribes or assigns"):
                await consumer.assign([QUEUE])
        async with LitePullConsumer(cluster.namesrv) as consumer:
            await consumer.assign([QUEUE])
            with pytest.raises(ClientStateError, match="either subscribes or assigns"):
                await consumer.subscribe("t")


async def test_brokers_can_query_its_offsets() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        await fill(cluster, 3)
        await consumer.subscribe("t")
        await anext(consumer)
        await anext(consumer)
        broker = cluster.brokers[0]
        (writer,) = broker.members.values()
        request = RemotingCommand(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            opaque=77,
            ext_fields={"topic": "t", "group": "g"},
        )
        writer.write(request.encode())
        await until(lambda: any(answer.opaque == 77 for answer in broker.answers))
        (answer,) = [answer for answer in broker.answers if answer.opaque == 77]
        assert GetConsumerStatusBody.decode(answer.body).message_queue_table == {QUEUE: 1}


async def test_traces_record_each_consumed_message() -> None:
    async with running_cluster({"t": {"b0": 1}, TRACE_TOPIC: {"b0": 1}}) as cluster:
        await fill(cluster, 2, tags="a")
        async with LitePullConsumer(
            cluster.namesrv, group="g", start_from=FIRST, trace=True
        ) as consumer:
            await consumer.subscribe("t")
            assert len(await consumer.poll()) == 2
        records = [
            record
            for (topic, _), stored in cluster.brokers[0].queues.items()
            if topic == TRACE_TOPIC
            for record in stored
        ]
        text = b"".join(record.body for record in records)
        assert text.count(b"SubBefore") == 2
        assert text.count(b"SubAfter") == 2
