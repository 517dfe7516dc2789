from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest

from pyromq.client.consumer.lite_pull import consumer as lite_pull_consumer_module
from pyromq.client.consumer.lite_pull import readers as queue_readers
from pyromq.client.consumer.lite_pull.consumer import LitePullConsumer
from pyromq.client.consumer.start_from import StartFrom
from pyromq.client.consumer.subscription import Subscription
from pyromq.client.errors import (
    BrokerError,
    ClientStateError,
    NameServerError,
    OptionError,
    TopicNotFoundError,
)
from pyromq.client.hooks import Consuming
from pyromq.protocol.names import TRACE_TOPIC
from pyromq.protocol.wire.bodies import HeartbeatData, MessageModel, MessageQueue
from pyromq.protocol.wire.bodies_admin import GetConsumerStatusBody, ResetOffsetBody
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from tests.support.patience import until
from tests.unit.client.fake_cluster import FakeCluster, running_cluster

PULL = RequestCode.PULL_MESSAGE
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
QUEUE = MessageQueue("t", "b0", 0)
OTHER = MessageQueue("t", "b0", 1)
FIRST = StartFrom.FIRST


async def fill(cluster: FakeCluster, count: int, queue_id: int = 0, tags: str = "") -> None:
    for number in range(count):
        properties = f"TAGS\x01{tags}".encode() if tags else b""
        await cluster.brokers[0].put("t", queue_id, b"%d" % number, raw_properties=properties)


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


async def test_start_from_last_sees_only_what_comes() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, start_from=StartFrom.LAST) as consumer,
    ):
        await fill(cluster, 3)
        await consumer.assign([QUEUE])
        await cluster.brokers[0].put("t", 0, b"new")
        assert (await anext(consumer)).body == b"new"


async def test_what_is_sent_when_subscribing_is_over_is_read() -> None:
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


async def test_a_broker_that_does_not_say_where_to_begin_does_not_hold_up_anybody() -> None:
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
            with contextlib.suppress(NameServerError):  # a machine that stalls is too late
                await consumer.subscribe("t")
                is_subscribed = True
        assert not broker.seen(PULL)
        broker.silent.clear()
        await broker.put("t", 0, b"one")
        assert (await anext(consumer)).body == b"one"


async def test_a_group_goes_on_where_it_ended() -> None:
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


async def test_a_message_whose_handling_failed_comes_again() -> None:
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


async def test_consumed_offsets_are_committed_while_running() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(
            cluster.namesrv, group="g", start_from=FIRST, commit_interval=0.01
        ) as consumer,
    ):
        await fill(cluster, 3)
        await consumer.assign([QUEUE])
        for _ in range(3):
            await anext(consumer)
        await until(lambda: cluster.brokers[0].offsets == {("g", "t", 0): 2})


async def test_messages_that_the_filter_left_out_are_passed_over() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        await fill(cluster, 1, tags="Aa")
        await fill(cluster, 3, tags="BB")
        async with LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer:
            await consumer.assign([QUEUE], {"t": "Aa"})
            await anext(consumer)
        assert cluster.brokers[0].offsets == {("g", "t", 0): 4}


async def test_two_members_share_and_each_message_goes_to_one() -> None:
    async with running_cluster({"t": {"b0": 4}}) as cluster:
        first = LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST)
        second = LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST)
        async with first, second:
            await first.subscribe("t")
            assert len(first.assignment()) == 4
            await second.subscribe("t")
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
            for queue_id in range(4):
                await fill(cluster, 5, queue_id)
            got = [await anext(consumer) for consumer in (first, second) for _ in range(10)]
            assert len({(m.queue.queue_id, m.queue_offset) for m in got}) == 20
        heartbeat = HeartbeatData.decode(cluster.brokers[0].seen(RequestCode.HEART_BEAT)[0].body)
        (consumer_data,) = heartbeat.consumer_data_set
        assert consumer_data.group_name == "g"
        assert consumer_data.subscription_data_set[0].topic == "t"


async def test_messages_of_a_queue_that_was_given_up_are_dropped() -> None:
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


async def test_a_queue_goes_when_the_reader_is_done_with_its_message() -> None:
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
        assert await consumer.poll(0) == []  # the first one is done with, nothing else comes
        await until(lambda: broker.locks == {})
        assert broker.offsets["g", "t", 0] == 1
        # It comes back while the reader still has a message of it: the next one follows that.
        await consumer.subscribe("t")
        assert (await anext(consumer)).body == b"1"
        await consumer.unsubscribe("t")
        await consumer.subscribe("t")
        assert (await anext(consumer)).body == b"2"
        await consumer.unsubscribe("t")
        await consumer.commit()
        assert broker.offsets["g", "t", 0] == 3


async def test_a_reader_that_is_gone_keeps_a_queue_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lite_pull_consumer_module, "READER_SECONDS", 0.05)
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


async def test_a_broker_in_trouble_is_asked_again(
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


async def test_what_stays_refused_ends_the_iteration() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, start_from=FIRST) as consumer,
    ):
        cluster.brokers[0].refusals[PULL] = [(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "bad tags")]
        await consumer.assign([QUEUE])
        with pytest.raises(BrokerError, match="bad tags"):
            await anext(consumer)


async def test_closing_ends_a_waiting_iteration() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        consumer = LitePullConsumer(cluster.namesrv)
        await consumer.start()
        await consumer.assign([QUEUE])

        async def read() -> list[bytes]:
            return [message.body async for message in consumer]

        reading = asyncio.create_task(read())
        await until(lambda: bool(cluster.brokers[0].seen(PULL)))
        await consumer.close()
        await consumer.close()
        assert await reading == []
        assert [messages async for messages in consumer.batches()] == []
        with pytest.raises(ClientStateError, match="closed"):
            await consumer.poll(0)


async def test_poll_gives_lists_of_one_queue_and_nothing_in_time() -> None:
    async with (
        running_cluster({"t": {"b0": 2}}) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        await fill(cluster, 40, 0)
        await fill(cluster, 3, 1)
        await consumer.subscribe("t")
        lists = [await consumer.poll() for _ in range(3)]
        assert sorted(map(len, lists)) == [3, 8, 32]
        assert all(len({message.queue for message in messages}) == 1 for messages in lists)
        assert await consumer.poll(0.01) == []
        assert await consumer.poll(0) == []
        for timeout in (-1, math.nan, math.inf):
            with pytest.raises(OptionError, match="timeout"):
                await consumer.poll(timeout)
        await consumer.commit()
        assert cluster.brokers[0].offsets == {("g", "t", 0): 40, ("g", "t", 1): 3}


async def test_poll_in_a_loop_without_time_lets_messages_come() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, start_from=FIRST) as consumer,
    ):
        await fill(cluster, 1)
        await consumer.assign([QUEUE])
        while not (messages := await consumer.poll(0)):
            pass
        assert messages[0].body == b"0"


async def test_batches_count_as_consumed_when_the_next_is_asked_for() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(
            cluster.namesrv,
            group="g",
            start_from=FIRST,
            pull_batch_size=2,
            commit_interval=0.01,
        ) as consumer,
    ):
        await fill(cluster, 6)
        await consumer.assign([QUEUE])
        batches = consumer.batches()
        assert [m.body for m in await anext(batches)] == [b"0", b"1"]
        assert [m.body for m in await anext(batches)] == [b"2", b"3"]
        await until(lambda: cluster.brokers[0].offsets == {("g", "t", 0): 2})
        assert consumer.position(QUEUE) == 4


async def test_single_messages_and_lists_can_be_mixed() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        await fill(cluster, 5)
        await consumer.assign([QUEUE])
        assert (await anext(consumer)).body == b"0"
        assert (await anext(consumer)).body == b"1"
        assert [m.body for m in await consumer.poll()] == [b"2", b"3", b"4"]


async def test_commits_by_hand_are_the_only_ones() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        offsets = cluster.brokers[0].offsets
        await fill(cluster, 5)
        async with LitePullConsumer(
            cluster.namesrv,
            group="g",
            start_from=FIRST,
            auto_commit=False,
            commit_interval=0.001,
        ) as consumer:
            await consumer.subscribe("t")
            for _ in range(2):
                await anext(consumer)
            assert offsets == {}
            await consumer.commit()  # what was handed out counts
            assert offsets == {("g", "t", 0): 2}
            assert await consumer.committed(QUEUE) == 2
            await consumer.commit({QUEUE: 1})
            assert offsets == {("g", "t", 0): 1}
            await consumer.commit()
            assert offsets == {("g", "t", 0): 2}
            await anext(consumer)
        assert offsets == {("g", "t", 0): 2}


@pytest.mark.parametrize(("refusals", "committed"), [(2, {("g", "t", 0): 1}), (3, {})])
async def test_a_commit_that_fails_is_raised_by_hand_and_tried_again_at_the_end(
    caplog: pytest.LogCaptureFixture, refusals: int, committed: dict[tuple[str, str, int], int]
) -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        async with LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer:
            await fill(cluster, 2)
            await consumer.assign([QUEUE])
            await anext(consumer)
            cluster.brokers[0].refusals[COMMIT] = [
                (ResponseCode.SYSTEM_ERROR, "not now")
            ] * refusals
            with pytest.raises(BrokerError, match="not now"):
                await consumer.commit()
        assert caplog.text.count("not committed") == refusals
        assert cluster.brokers[0].offsets == committed


async def test_a_group_that_starts_at_the_end_keeps_its_place() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        await fill(cluster, 3)
        async with LitePullConsumer(cluster.namesrv, group="g") as consumer:
            await consumer.subscribe("t")
            await until(lambda: bool(cluster.brokers[0].seen(PULL)))
        assert cluster.brokers[0].offsets == {("g", "t", 0): 3}


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
        with pytest.raises(OptionError, match="it has 0 to 7"):
            await consumer.seek(QUEUE, 8)
        with pytest.raises(ClientStateError, match="not ours"):
            await consumer.seek(OTHER, 0)


async def test_the_message_in_hand_does_not_count_after_a_seek() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        async with LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer:
            await fill(cluster, 5)
            await consumer.assign([QUEUE])
            for _ in range(4):
                await anext(consumer)
            await consumer.seek(QUEUE, 1)
        assert cluster.brokers[0].offsets == {("g", "t", 0): 1}


async def test_paused_queues_hand_out_nothing_until_they_are_resumed() -> None:
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
        with pytest.raises(ClientStateError, match="not ours"):
            consumer.pause([MessageQueue("t", "b0", 7)])


async def test_pulling_pauses_while_too_much_waits() -> None:
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


async def test_several_topics_filters_and_more_of_them_later() -> None:
    async with (
        running_cluster({"t": {"b0": 1}, "u": {"b0": 1}, "v": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        broker = cluster.brokers[0]
        await fill(cluster, 1, tags="BB")
        await fill(cluster, 1, tags="Aa")
        for topic in "uv":
            await broker.put(topic, 0, topic.encode())
        await consumer.subscribe({"t": "Aa", "u": Subscription.sql("a = 1")})
        got = [await anext(consumer) for _ in range(2)]
        assert sorted((m.topic, m.tags) for m in got) == [("t", "Aa"), ("u", "")]
        kinds = {p.ext_fields["topic"]: p.ext_fields["expressionType"] for p in broker.seen(PULL)}
        assert kinds == {"t": "TAG", "u": "SQL92"}
        await consumer.subscribe("v")
        assert (await anext(consumer)).topic == "v"
        await consumer.unsubscribe("t", "u")
        assert [queue.topic for queue in consumer.assignment()] == ["v"]
        (data,) = HeartbeatData.decode(
            broker.seen(RequestCode.HEART_BEAT)[-1].body
        ).consumer_data_set
        assert [subscription.topic for subscription in data.subscription_data_set] == ["v"]


async def test_another_filter_of_a_topic_takes_effect_at_once() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        await consumer.subscribe({"t": "Aa"})
        await until(lambda: bool(cluster.brokers[0].seen(PULL)))
        await consumer.subscribe({"t": "C"})
        await until(lambda: cluster.brokers[0].seen(PULL)[-1].ext_fields["subscription"] == "C")
        await fill(cluster, 1, tags="Aa")
        await fill(cluster, 1, tags="C")
        assert (await anext(consumer)).tags == "C"


async def test_without_a_group_all_queues_are_read_also_those_that_come_later() -> None:
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
        assert consumer._membership is not None
        consumer._membership.members_changed()
        assert (await anext(consumer)).body == b"new"
        assert consumer.assignment() == [QUEUE, OTHER]
        for beat in cluster.brokers[0].seen(RequestCode.HEART_BEAT):
            assert HeartbeatData.decode(beat.body).consumer_data_set == []
        with pytest.raises(ClientStateError, match="no group"):
            await consumer.commit()


async def test_without_a_group_a_broker_that_was_away_is_read_on() -> None:
    async with (
        running_cluster({"t": {"b0": 1, "b1": 1}}, brokers=2) as cluster,
        LitePullConsumer(cluster.namesrv, start_from=FIRST) as consumer,
    ):
        for number in range(3):
            await cluster.brokers[1].put("t", 0, b"%d" % number)
        await consumer.subscribe("t")
        assert [(await anext(consumer)).body for _ in range(2)] == [b"0", b"1"]
        assert consumer._membership is not None
        for counts in ({"b0": 1}, {"b0": 1, "b1": 1}):
            cluster.topics["t"] = counts
            await consumer._session.routes.refresh("t")
            consumer._membership.members_changed()
            await until(lambda: len(consumer.assignment()) == len(cluster.topics["t"]))
        assert (await consumer.poll(None))[0].body == b"2"


async def test_an_assignment_that_was_cancelled_half_way_can_be_made_again(
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


async def test_queues_of_a_namespace_have_the_names_of_the_application() -> None:
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


async def test_listeners_are_told_and_can_seek_and_commit() -> None:
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
async def test_a_listener_that_fails_changes_nothing(
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
    assert caplog.text.count("change without it") == 2


async def test_an_offset_that_the_broker_does_not_have_is_corrected(
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


async def test_broadcasting_reads_everything_and_keeps_offsets_in_a_file(tmp_path: Path) -> None:
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


async def test_hooks_see_each_batch() -> None:
    seen: list[tuple[str, int, bool]] = []

    class Hook:
        def before_consume(self, consuming: Consuming) -> None:
            seen.append(("before", len(consuming.messages), consuming.success))

        def after_consume(self, consuming: Consuming) -> None:
            seen.append(("after", len(consuming.messages), consuming.success))

    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(
            cluster.namesrv, group="g", start_from=FIRST, hooks=[Hook()], pull_batch_size=2
        ) as consumer,
    ):
        await fill(cluster, 4)
        await consumer.assign([QUEUE])
        for _ in range(3):
            await anext(consumer)
    assert seen == [
        ("before", 2, False), ("after", 2, True), ("before", 2, False), ("after", 2, False)
    ]  # fmt: skip


async def test_a_refusal_comes_again_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_readers, "_LONGEST_PAUSE_SECONDS", 0.01)
    refusal = (ResponseCode.SYSTEM_ERROR, "The broker does not support consumer to filter by SQL")
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv, start_from=FIRST) as consumer,
    ):
        await fill(cluster, 1)
        cluster.brokers[0].refusals[PULL] = [refusal] * 2
        await consumer.assign([QUEUE], {"t": Subscription.sql("a = 1")})
        for _ in range(2):
            with pytest.raises(BrokerError, match="does not support"):
                await anext(consumer)
        assert (await anext(consumer)).body == b"0"


async def test_a_broker_that_comes_back_is_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_only_one_may_wait_for_messages() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        LitePullConsumer(cluster.namesrv) as consumer,
    ):
        await consumer.assign([QUEUE])
        waiting = asyncio.create_task(anext(consumer))
        await asyncio.sleep(0)
        with pytest.raises(ClientStateError, match="one reader"):
            await consumer.poll(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert await consumer.poll(0) == []


async def test_wrong_use() -> None:
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


async def test_brokers_are_told_how_far_it_has_come() -> None:
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


async def test_traces_tell_of_each_message_that_was_consumed() -> None:
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
