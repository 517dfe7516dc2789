from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from pyromq.client.consumer import membership as membership_module
from pyromq.client.consumer.push import consumer as push_consumer_module
from pyromq.client.consumer.push.consumer import PushConsumer
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
from pyromq.protocol.wire.bodies import HeartbeatData, MessageModel, MessageQueue
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.headers import PullMessageRequestHeader
from tests.support.patience import until
from tests.unit.client.fake_cluster import FakeBroker, FakeCluster, running_cluster

TOPICS = {"t": {"b0": 2}, "%RETRY%g": {"b0": 1}}
FIRST, SECOND = (MessageQueue("t", "b0", number) for number in range(2))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "MISSING_TOPIC_SECONDS", 0.01)
    monkeypatch.setattr(push_consumer_module, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(push_consumer_module, "_LOCK_PAUSE_SECONDS", 0.01)


class Handler:
    """Notes what it gets; may be told to wait or to fail."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.result: Retry | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, message: ReceivedMessage) -> Retry | None:
        self.seen.append(message.body)
        await self.gate.wait()
        return self.result


def make(cluster: FakeCluster, handler: Any, **options: Any) -> PushConsumer:
    return PushConsumer(
        cluster.namesrv,
        **{
            "group": "g",
            "handler": handler,
            "subscriptions": {"t": "*"},
            "start_from": StartFrom.FIRST,
            **options,
        },
    )


def heartbeat(broker: FakeBroker) -> HeartbeatData:
    return HeartbeatData.decode(broker.seen(RequestCode.HEART_BEAT)[-1].body)


async def test_its_life_as_a_broker_sees_it() -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        await broker.put("t", 0, b"one")
        consumer = make(cluster, handler)
        async with consumer:
            await consumer.start()  # a second time changes nothing
            await until(lambda: handler.seen == [b"one"])
            (group,) = heartbeat(broker).consumer_data_set
            assert {data.topic for data in group.subscription_data_set} == {"t", "%RETRY%g"}
            assert consumer.assignment() == [MessageQueue("%RETRY%g", "b0", 0), FIRST, SECOND]
            await broker.put("t", 0, b"two")
            await until(lambda: len(handler.seen) == 2)
            # The next pull says how far we are.
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


async def test_pulls_commit_what_was_handled_and_no_more() -> None:
    handler = Handler()
    handler.gate.clear()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]

        def commits() -> list[int]:
            headers = [
                PullMessageRequestHeader.decode(request.ext_fields)
                for request in broker.seen(RequestCode.PULL_MESSAGE)
            ]
            return [
                header.commit_offset
                for header in headers
                if (header.topic, header.queue_id) == ("t", 0)
            ]

        async with make(cluster, handler) as consumer:
            await broker.put("t", 0, b"one")
            await broker.put("t", 0, b"two")
            await until(lambda: len(handler.seen) == 2)
            await until(lambda: len(commits()) >= 2)
            assert set(commits()) == {0}
            assert consumer.offsets()[FIRST] == 0
            handler.gate.set()
            await until(lambda: consumer.offsets()[FIRST] == 2)
            await broker.put("t", 0, b"three")
            await until(lambda: commits()[-1] >= 2)


async def test_what_it_was_told_is_checked() -> None:
    async with running_cluster(TOPICS.copy()) as cluster:
        with pytest.raises(OptionError, match="handler"):
            make(cluster, "not callable")
        with pytest.raises(IllegalMessageError):
            make(cluster, Handler(), group="no good")
        with pytest.raises(IllegalMessageError):
            make(cluster, Handler(), subscriptions={"no good": "*"})
        with pytest.raises(OptionError, match="colour"):
            make(cluster, Handler(), colour="red")


async def test_a_start_without_a_name_server_fails_loudly() -> None:
    async with running_cluster(TOPICS.copy()) as cluster:
        consumer = make(cluster, Handler())
        await cluster.brokers[0].stop()
        with pytest.raises(NameServerError):
            await consumer.start()
        await consumer.closed()


@pytest.mark.parametrize("order", [Order.CONCURRENT, Order.ORDERLY])
async def test_what_is_sent_when_the_start_is_over_is_consumed(order: Order) -> None:
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


async def test_a_broker_that_does_not_say_where_to_begin_does_not_hold_up_the_start() -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        broker.silent.add(RequestCode.QUERY_CONSUMER_OFFSET)
        async with make(cluster, handler, request_timeout=0.05):
            assert not broker.seen(RequestCode.PULL_MESSAGE)
            broker.silent.clear()
            await broker.put("t", 0, b"one")
            await until(lambda: handler.seen == [b"one"])


async def test_a_queue_that_another_member_has_locked_does_not_hold_up_the_start() -> None:
    async with running_cluster(TOPICS.copy()) as cluster:
        cluster.brokers[0].locks["t", 0] = "another"
        async with make(cluster, Handler(), order=Order.ORDERLY, request_timeout=60.0):
            assert cluster.brokers[0].seen(RequestCode.LOCK_BATCH_MQ)


async def test_topics_that_come_later_are_waited_for() -> None:
    handler = Handler()
    async with running_cluster({}) as cluster:
        broker = cluster.brokers[0]
        await broker.put("t", 0, b"early")
        async with make(cluster, handler) as consumer:
            assert consumer.assignment() == []
            cluster.topics.update(TOPICS)
            await until(lambda: handler.seen == [b"early"])


async def test_only_the_text_of_a_tag_decides() -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        # "Aa" and "BB" have the same hash.
        await broker.put("t", 0, b"wrong", raw_properties=b"TAGS\x01BB\x02")
        await broker.put("t", 0, b"right", raw_properties=b"TAGS\x01Aa\x02")
        await broker.put("t", 0, b"wrong", raw_properties=b"TAGS\x01BB\x02")
        async with make(cluster, handler, subscriptions={"t": "Aa || x"}) as consumer:
            await until(lambda: handler.seen == [b"right"])
            await until(lambda: consumer.offsets()[FIRST] == 3)
        assert handler.seen == [b"right"]


async def test_retries_show_their_own_topic() -> None:
    topics: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        topics.append(message.topic)

    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        await broker.put("%RETRY%g", 0, b"x", raw_properties=b"RETRY_TOPIC\x01t\x02")
        await broker.put("%RETRY%g", 0, b"y")
        async with make(cluster, handle):
            await until(lambda: len(topics) == 2)
        assert topics == ["t", "%RETRY%g"]


async def test_a_broker_that_has_forgotten_the_subscription_is_told() -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        async with make(cluster, handler):
            await until(lambda: len(broker.seen(RequestCode.PULL_MESSAGE)) >= 3)
            beats = len(broker.seen(RequestCode.HEART_BEAT))
            broker.refusals[RequestCode.PULL_MESSAGE] = [
                (ResponseCode.SUBSCRIPTION_NOT_EXIST, "who are you")
            ]
            await broker.put("t", 0, b"x")
            await until(lambda: handler.seen == [b"x"])
            await broker.put("t", 0, b"y")
            await until(lambda: len(broker.seen(RequestCode.HEART_BEAT)) > beats)
            await until(lambda: handler.seen == [b"x", b"y"])


async def test_an_offset_that_the_broker_does_not_have_is_corrected(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_consumer_module, "LONG_POLL_SECONDS", 0.05)
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        broker.offsets["g", "t", 0] = 50
        await broker.put("t", 0, b"old")
        async with make(cluster, handler) as consumer:
            await until(lambda: "offset 50 is outside of 0..1, goes on at 1" in caplog.text)
            await broker.put("t", 0, b"new")
            await until(lambda: handler.seen == [b"new"])
            await until(lambda: consumer.offsets()[FIRST] == 2)
            # The broker loses everything while a message is with its handler.
            handler.gate.clear()
            await broker.put("t", 0, b"lost")
            await until(lambda: handler.seen[1:] == [b"lost"])
            broker.queues["t", 0].clear()
            await until(lambda: consumer.offsets().get(FIRST) == 0)
            handler.gate.set()
            await broker.put("t", 0, b"again")
            await until(lambda: handler.seen[2:] == [b"again"])
            await until(lambda: consumer.offsets()[FIRST] == 1)


async def test_offsets_can_be_reset_but_only_where_the_queue_is_ours() -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        for body in (b"one", b"two"):
            await broker.put("t", 0, body)
        async with make(cluster, handler) as consumer:
            await until(lambda: len(handler.seen) == 2)
            await consumer.reset_offsets({FIRST: 1, MessageQueue("t", "elsewhere", 0): 7})
            await until(lambda: handler.seen == [b"one", b"two", b"two"])
        assert broker.offsets["g", "t", 0] == 2
        assert ("g", "t", 7) not in broker.offsets


async def test_in_order_a_queue_is_locked_waited_for_and_given_free() -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        broker.locks["t", 0] = "somebody else"
        for number in (0, 1):
            await broker.put("t", number, b"%d" % number)
        async with make(cluster, handler, order=Order.ORDERLY) as consumer:
            await until(lambda: handler.seen == [b"1"])
            assert broker.locks["t", 1] == consumer.client_id
            del broker.locks["t", 0]
            await until(lambda: handler.seen == [b"1", b"0"])
        assert broker.locks == {}


async def test_a_lock_that_was_lost_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_consumer_module, "RENEW_SECONDS", 0.02)
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        await broker.put("t", 0, b"one")
        async with make(cluster, handler, order=Order.ORDERLY) as consumer:
            await until(lambda: handler.seen == [b"one"])
            # Somebody else takes it over, and goes on by one.
            await broker.put("t", 0, b"two")
            await until(lambda: consumer.offsets()[FIRST] == 2)
            broker.locks["t", 0] = "somebody else"
            await until(lambda: FIRST not in consumer.offsets())
            broker.offsets["g", "t", 0] = 3
            for body in (b"theirs", b"ours"):
                await broker.put("t", 0, body)
            del broker.locks["t", 0]
            await until(lambda: handler.seen[2:] == [b"ours"])


async def test_in_order_a_queue_goes_when_its_handler_has_come_back() -> None:
    handler = Handler()
    handler.gate.clear()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        await broker.put("t", 0, b"slow")
        async with make(cluster, handler, order=Order.ORDERLY) as consumer:
            await until(lambda: handler.seen == [b"slow"])
            await consumer.unsubscribe("t")
            assert FIRST not in consumer.assignment()
            assert broker.locks["t", 0] == consumer.client_id
            # It comes back to us while our old handler is still at it: the new one waits.
            await consumer.subscribe("t")
            await asyncio.sleep(0.02)
            assert handler.seen == [b"slow"]
            handler.gate.set()
            await until(lambda: consumer.offsets().get(FIRST) == 1)
        assert handler.seen == [b"slow"]


async def test_a_queue_goes_when_its_handlers_have_returned_and_is_committed() -> None:
    handler = Handler()
    handler.gate.clear()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        for body in (b"begun", b"begun, too", b"not begun"):
            await broker.put("t", 0, body)
        async with make(cluster, handler, max_handlers=2) as consumer:
            await until(lambda: len(handler.seen) == 2)
            await consumer.unsubscribe("t")
            assert FIRST not in consumer.assignment()
            assert broker.locks["t", 0] == consumer.client_id
            assert ("t", 1) not in broker.locks
            handler.gate.set()
            await until(lambda: ("t", 0) not in broker.locks)
            assert broker.offsets["g", "t", 0] == 2
            assert handler.seen == [b"begun", b"begun, too"]
            await consumer.subscribe("t")
            await until(lambda: len(handler.seen) == 3)
        assert broker.locks == {}


async def test_a_handler_that_does_not_return_keeps_its_queue_for_the_grace_only() -> None:
    handler = Handler()
    handler.gate.clear()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        await broker.put("t", 0, b"hangs")
        async with make(cluster, handler, close_grace=0.05) as consumer:
            await until(lambda: handler.seen == [b"hangs"])
            await consumer.unsubscribe("t")
            await until(lambda: ("t", 0) not in broker.locks)
            handler.gate.set()
            await consumer.subscribe("t")
            # It did not count: not finished, not committed, here again.
            await until(lambda: handler.seen == [b"hangs", b"hangs"])


async def test_a_group_that_begins_at_the_end_loses_nothing_when_a_queue_changes_hands() -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        broker.members["dead"] = None  # type: ignore[assignment]
        broker.notify_members = lambda: None  # type: ignore[method-assign]
        broker.locks |= {("t", 0): "dead", ("t", 1): "dead"}
        async with make(
            cluster,
            handler,
            start_from=StartFrom.LAST,
            allocate=lambda queues, _members, _member: list(queues),
        ):
            # Its owner has not committed anything when it dies.
            await broker.put("t", 0, b"sent after the start")
            del broker.locks["t", 0], broker.locks["t", 1]
            await until(lambda: handler.seen == [b"sent after the start"])


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


async def test_a_body_that_cannot_be_read_goes_back_and_holds_up_nobody() -> None:
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


async def test_broadcasting_asks_brokers_for_messages_only(tmp_path: Any) -> None:
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


async def test_what_fails_in_the_background_is_logged_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        async with make(cluster, handler, commit_interval=0.01) as consumer:
            store, pull = consumer._offsets.store, consumer._access.pull
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
            monkeypatch.setattr(consumer._access, "pull", moody_pull)
            for number in (0, 1):
                await broker.put("t", number, b"first")
            await until(lambda: len(handler.seen) == 2)
            for number in (0, 1):
                await broker.put("t", number, b"second")
            await until(lambda: len(handler.seen) == 4)
            await until(lambda: broker.offsets.get(("g", "t", 0)) == 2)
        assert "a mistake of ours" in caplog.text
        assert "another mistake" in caplog.text


async def test_a_broker_that_never_goes_on_does_not_deliver_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        pulled = broker._pulled

        def stuck(command: Any, code: Any, next_offset: int, *rest: Any) -> Any:
            return pulled(command, code, min(next_offset, 0), *rest)

        monkeypatch.setattr(broker, "_pulled", stuck)
        for body in (b"one", b"two", b"three"):
            await broker.put("t", 0, body)
        async with make(cluster, handler) as consumer:
            await until(lambda: consumer.offsets().get(FIRST) == 3)
            await broker.put("t", 0, b"four")
            await until(lambda: b"four" in handler.seen)
        assert handler.seen == [b"one", b"two", b"three", b"four"]


async def test_close_waits_for_handlers_and_cancels_those_that_take_too_long() -> None:
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


async def test_a_broker_that_moves_offsets_about_is_not_flooded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]

        async def moved(command: Any, _writer: object) -> Any:
            following = int(command.ext_fields["queueOffset"]) ^ 1
            return broker._pulled(command, ResponseCode.PULL_OFFSET_MOVED, following, [])

        monkeypatch.setattr(broker, "_pull_message", moved)
        began = time.monotonic()
        async with make(cluster, handler):
            await until(lambda: len(broker.seen(RequestCode.PULL_MESSAGE)) >= 9)
        # Three queues, each of them at most each 0.05 s.
        assert len(broker.seen(RequestCode.PULL_MESSAGE)) / 3 <= (
            1 + (time.monotonic() - began) / 0.05
        )


async def test_without_a_lock_no_offset_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has the lock now may be further on."""
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        await broker.put("t", 0, b"one")
        async with make(
            cluster, handler, order=Order.ORDERLY, commit_interval=0.01, pull_batch_size=1
        ) as consumer:
            await until(lambda: broker.offsets.get(("g", "t", 0)) == 1)
            # As if this process had been stopped for a minute.
            monkeypatch.setattr(push_consumer_module, "VALID_SECONDS", -1.0)
            broker.offsets["g", "t", 0] = 5
            pulls = len(broker.seen(RequestCode.PULL_MESSAGE))
            consumer._readings[FIRST].process_queue.put([], 3)  # type: ignore[union-attr]
            await broker.put("t", 0, b"two")
            await until(lambda: len(broker.seen(RequestCode.PULL_MESSAGE)) > pulls)
            await asyncio.sleep(0.05)
            for pull in broker.seen(RequestCode.PULL_MESSAGE)[pulls:]:
                assert not int(pull.ext_fields["sysFlag"]) & 1
        assert broker.offsets["g", "t", 0] == 5


@pytest.mark.parametrize("ends_by", ["cancel", "close"])
async def test_a_change_of_queues_is_not_left_half_done(
    ends_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        await broker.put("t", 0, b"one")
        consumer = make(cluster, handler, commit_interval=60.0)
        await consumer.start()
        await until(lambda: consumer.offsets().get(FIRST) == 1)
        store = consumer._offsets.store
        is_reached, goes_on = asyncio.Event(), asyncio.Event()

        async def slow_store(offsets: Any) -> None:
            is_reached.set()
            await goes_on.wait()
            await store(offsets)

        monkeypatch.setattr(consumer._offsets, "store", slow_store)
        if ends_by == "cancel":
            change = asyncio.create_task(consumer.unsubscribe("t"))
            await is_reached.wait()
            change.cancel()
            await asyncio.gather(change, return_exceptions=True)
        else:
            consumer._membership._topics = {"%RETRY%g"}
            del consumer._membership._shares["t"]
            consumer.members_changed()
            await is_reached.wait()
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0.01)
        goes_on.set()
        await closing
        assert broker.offsets["g", "t", 0] == 1


async def test_a_reset_outlasts_the_handler_that_is_at_work() -> None:
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        for body in (b"one", b"two", b"three"):
            await broker.put("t", 0, body)
        async with make(
            cluster, handler, order=Order.ORDERLY, commit_interval=60.0, pull_batch_size=1
        ) as consumer:
            await until(lambda: consumer.offsets().get(FIRST) == 3)
            handler.gate.clear()
            await broker.put("t", 0, b"four")
            await until(lambda: handler.seen[-1] == b"four")
            await consumer.reset_offsets({FIRST: 1})
            handler.gate.set()
            await until(lambda: handler.seen[4:] == [b"two", b"three", b"four"])
            commits = [
                int(request.ext_fields["commitOffset"])
                for request in broker.seen(RequestCode.UPDATE_CONSUMER_OFFSET)
                if request.ext_fields["queueId"] == "0" and request.ext_fields["topic"] == "t"
            ]
            assert commits == [0, 1]  # before the first pull, and the reset
