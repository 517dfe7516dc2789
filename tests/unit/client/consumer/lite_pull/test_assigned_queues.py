from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime

import pytest

from pyromq.client.consumer.lite_pull import assigned_queues as assigned_queues_module
from pyromq.client.consumer.lite_pull.consumer import LitePullConsumer
from pyromq.client.consumer.start_from import StartFrom
from pyromq.client.errors import (
    ClientStateError,
    NameServerError,
)
from pyromq.protocol.wire.bodies import HeartbeatData, MessageQueue
from pyromq.protocol.wire.codes import RequestCode
from tests.support.patience import until
from tests.unit.client.consumer.lite_pull.reading import FIRST, OTHER, PULL, QUEUE, fill
from tests.unit.client.fake_cluster import running_cluster


async def test_a_revoked_queue_drops_its_messages() -> None:
    async with (
        running_cluster({"t": {"b0": 2}}) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        await fill(cluster, 5, queue_id=0)
        await consumer.assign([QUEUE])
        assert (await anext(consumer)).body == b"0"
        await fill(cluster, 1, queue_id=1)
        await consumer.assign([OTHER])
        assert (await anext(consumer)).queue == OTHER


async def test_a_queue_is_released_once_the_reader_is_done_with_its_message() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        broker = cluster.brokers[0]
        await fill(cluster, 3)
        await consumer.subscribe("t")
        assert (await anext(consumer)).body == b"0"
        assert broker.locks["t", 0] == consumer.client_id
        await consumer.unsubscribe("t")
        assert consumer.assignment() == []
        assert broker.offsets["g", "t", 0] == 0
        assert broker.locks["t", 0] == consumer.client_id
        assert await consumer.poll(0) == []  # the first message is consumed, no other arrives
        await until(lambda: broker.locks == {})
        assert broker.offsets["g", "t", 0] == 1
        # The queue comes back while the reader has a message of it: it continues after that one.
        await consumer.subscribe("t")
        assert (await anext(consumer)).body == b"1"
        await consumer.unsubscribe("t")
        await consumer.subscribe("t")
        assert (await anext(consumer)).body == b"2"
        await consumer.unsubscribe("t")
        await consumer.commit()
        assert broker.offsets["g", "t", 0] == 3


async def test_a_queue_waits_for_its_reader_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assigned_queues_module, "READER_SECONDS", 0.05)
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        broker = cluster.brokers[0]
        await fill(cluster, 2)
        await consumer.subscribe("t")
        assert (await anext(consumer)).body == b"0"
        await consumer.unsubscribe("t")
        await until(lambda: broker.locks == {})
        assert broker.offsets["g", "t", 0] == 0
        await consumer.subscribe("t")
        assert (await anext(consumer)).body == b"0"


async def test_without_a_group_all_queues_are_read_even_new_ones() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv) as consumer,
    ):
        await fill(cluster, 2)
        await cluster.brokers[0].put("t", 1, b"old")
        now = int(datetime.now().timestamp() * 1000)
        await consumer.subscribe("t")
        await cluster.brokers[0].put("t", 1, b"new", store_timestamp=now + 60_000)
        cluster.topics["t"]["b0"] = 2
        await consumer._session.routes.refresh("t")
        assert consumer._subscriber.membership is not None
        consumer._subscriber.members_changed()
        assert (await anext(consumer)).body == b"new"
        assert consumer.assignment() == [QUEUE, OTHER]
        for beat in cluster.brokers[0].seen(RequestCode.HEART_BEAT):
            assert HeartbeatData.decode(beat.body).consumer_data_set == []
        with pytest.raises(ClientStateError, match="no group"):
            await consumer.commit()


async def test_without_a_group_reading_resumes_when_a_broker_returns() -> None:
    async with (
        running_cluster({"t": {"b0": 1, "b1": 1}}, brokers=2) as cluster,
        LitePullConsumer(cluster.namesrv, start_from=FIRST) as consumer,
    ):
        for number in range(3):
            await cluster.brokers[1].put("t", 0, b"%d" % number)
        await consumer.subscribe("t")
        assert [(await anext(consumer)).body for _ in range(2)] == [b"0", b"1"]
        assert consumer._subscriber.membership is not None
        for counts in ({"b0": 1}, {"b0": 1, "b1": 1}):
            cluster.topics["t"] = counts
            await consumer._session.routes.refresh("t")
            consumer._subscriber.members_changed()
            await until(lambda: len(consumer.assignment()) == len(cluster.topics["t"]))
        assert (await consumer.poll(None))[0].body == b"2"


async def test_a_cancelled_assignment_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        running_cluster({"t": {"b0": 2}}) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        await fill(cluster, 3)
        await consumer.assign([QUEUE])
        await anext(consumer)
        await anext(consumer)
        held = asyncio.Event()

        async def hang(_queue: MessageQueue, _offset: int) -> None:
            held.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(consumer._access, "commit", hang)
        assigning = asyncio.create_task(consumer.assign([OTHER]))
        await held.wait()
        assigning.cancel()
        await asyncio.gather(assigning, return_exceptions=True)
        monkeypatch.undo()
        await consumer.assign([QUEUE])
        assert cluster.brokers[0].offsets == {("g", "t", 0): 1}
        assert (await anext(consumer)).body == b"1"


async def test_listeners_can_seek_and_commit() -> None:
    async with running_cluster({"t": {"b0": 2}}) as cluster:
        told: list[tuple[str, Sequence[MessageQueue]]] = []
        first = LitePullConsumer(cluster.namesrv, group="g", auto_commit=False, start_from=FIRST)

        async def assigned(queues: list[MessageQueue]) -> None:
            told.append(("assigned", queues))
            await first.seek(QUEUE, 2)

        async def revoked(queues: list[MessageQueue]) -> None:
            told.append(("revoked", queues))
            await first.commit()

        await fill(cluster, 5)
        async with LitePullConsumer(cluster.namesrv, group="g") as second, first:
            await first.subscribe("t", on_assigned=assigned, on_revoked=revoked)
            assert (await anext(first)).body == b"2"
            pulls = [p.ext_fields for p in cluster.brokers[0].seen(PULL)]
            assert next(p["queueOffset"] for p in pulls if p["queueId"] == "0") == "2"
            await second.subscribe("t")
            await until(lambda: len(told) == 2)
        assert told[:2] == [("assigned", [QUEUE, OTHER]), ("revoked", told[1][1])]
        assert len(told[1][1]) == 1
        assert [name for name, _ in told] == ["assigned", "revoked", "revoked"]
        assert cluster.brokers[0].offsets["g", "t", 0] == 3


@pytest.mark.parametrize("failure", [LookupError, asyncio.CancelledError])
async def test_a_failing_listener_does_not_stop_the_change(
    failure: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_queues: list[MessageQueue]) -> None:
        raise failure

    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        await fill(cluster, 1)
        await consumer.subscribe("t", on_assigned=fail, on_revoked=fail)
        assert (await anext(consumer)).body == b"0"
    assert caplog.text.count("changing queues without it") == 2


async def test_start_from_last_reads_only_new_messages() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, start_from=StartFrom.LAST) as consumer,
    ):
        await fill(cluster, 3)
        await consumer.assign([QUEUE])
        await cluster.brokers[0].put("t", 0, b"new")
        assert (await anext(consumer)).body == b"new"


async def test_a_silent_broker_does_not_block_subscribe() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(
            cluster.namesrv, group="g", start_from=FIRST, request_timeout=0.05
        ) as consumer,
    ):
        broker = cluster.brokers[0]
        broker.silent.add(RequestCode.QUERY_CONSUMER_OFFSET)
        is_subscribed = False
        while not is_subscribed:
            with contextlib.suppress(NameServerError):  # a stalled machine may time out
                await consumer.subscribe("t")
                is_subscribed = True
        assert not broker.seen(PULL)
        broker.silent.clear()
        await broker.put("t", 0, b"one")
        assert (await anext(consumer)).body == b"one"


async def test_a_message_in_hand_does_not_count_after_a_seek() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        async with LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer:
            await fill(cluster, 5)
            await consumer.assign([QUEUE])
            for _ in range(4):
                await anext(consumer)
            await consumer.seek(QUEUE, 1)
        assert cluster.brokers[0].offsets == {("g", "t", 0): 1}
