from __future__ import annotations

import time
from typing import Any

import pytest

from pyromq.client.consumer.push import puller as puller_module
from pyromq.client.consumer.start_from import StartFrom
from pyromq.client.received import ReceivedMessage
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.headers import PullMessageRequestHeader
from tests.support.patience import until
from tests.unit.client.consumer.push.consuming import (
    FIRST,
    TOPICS,
    Handler,
    make,
)
from tests.unit.client.fake_cluster import running_cluster


async def test_pulls_commit_handled_messages_only() -> None:
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


async def test_tags_with_equal_hashes_are_told_apart() -> None:
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


async def test_retries_show_their_original_topic() -> None:
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


async def test_a_broker_that_forgot_the_subscription_gets_a_heartbeat() -> None:
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


async def test_an_illegal_offset_is_corrected(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puller_module, "LONG_POLL_SECONDS", 0.05)
    handler = Handler()
    async with running_cluster(TOPICS.copy()) as cluster:
        broker = cluster.brokers[0]
        broker.offsets["g", "t", 0] = 50
        await broker.put("t", 0, b"old")
        async with make(cluster, handler) as consumer:
            await until(lambda: "has no offset 50, only 0 to 1: continuing at 1" in caplog.text)
            await broker.put("t", 0, b"new")
            await until(lambda: handler.seen == [b"new"])
            await until(lambda: consumer.offsets()[FIRST] == 2)
            # The broker loses everything while a handler is running.
            handler.gate.clear()
            await broker.put("t", 0, b"lost")
            await until(lambda: handler.seen[1:] == [b"lost"])
            broker.queues["t", 0].clear()
            await until(lambda: consumer.offsets().get(FIRST) == 0)
            handler.gate.set()
            await broker.put("t", 0, b"again")
            await until(lambda: handler.seen[2:] == [b"again"])
            await until(lambda: consumer.offsets()[FIRST] == 1)


async def test_a_broker_that_repeats_an_offset_does_not_deliver_forever(
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


async def test_a_broker_that_keeps_moving_offsets_is_not_flooded(
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
        # Three queues, at most one pull every 0.05 s each.
        assert len(broker.seen(RequestCode.PULL_MESSAGE)) / 3 <= (
            1 + (time.monotonic() - began) / 0.05
        )


async def test_a_group_that_starts_at_the_end_loses_nothing_in_a_handover() -> None:
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
            # The owner dies before its first commit.
            await broker.put("t", 0, b"sent after the start")
            del broker.locks["t", 0], broker.locks["t", 1]
            await until(lambda: handler.seen == [b"sent after the start"])
