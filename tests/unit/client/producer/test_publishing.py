"""Publish hooks see each call of the application once, whatever happens to its messages."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pyromq.client.errors import BrokerError, IllegalMessageError, OptionError
from pyromq.client.hooks import Publishing, PublishOperation
from pyromq.client.message import Message
from pyromq.client.producer.accumulator import Batching
from pyromq.client.producer.producer import Producer
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from tests.unit.client.fake_cluster import running_cluster


class Marks:
    """Adds a property to each message."""

    def __init__(self) -> None:
        self.begun: list[Publishing] = []
        self.ended: list[Publishing] = []

    def before_publish(self, publishing: Publishing) -> None:
        self.begun.append(publishing)
        publishing.messages = [
            replace(message, properties={**message.properties, "mark": "1"})
            for message in publishing.messages
        ]

    def after_publish(self, publishing: Publishing) -> None:
        self.ended.append(publishing)


async def test_each_call_is_seen_once_and_its_messages_are_replaced() -> None:
    hook = Marks()
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv, group="g", hooks=[hook]) as producer,
    ):
        cluster.brokers[0].refusals[RequestCode.SEND_MESSAGE_V2] = [
            (ResponseCode.SYSTEM_BUSY, "busy")
        ]
        message = Message("t", b"x")
        result = await producer.send(message)
        await producer.send_oneway(message=message)
        results = await producer.send_batch(messages=iter([message, message]))
    first, oneway, batch = hook.ended
    assert hook.begun == hook.ended
    assert (first.operation, first.results, first.error) == (
        PublishOperation.SEND,
        [result],
        None,
    )
    assert first.address == cluster.brokers[0].address
    assert (first.group, first.namespace) == ("g", "")
    assert (oneway.operation, oneway.results, oneway.address) == (PublishOperation.ONEWAY, (), "")
    assert (batch.operation, batch.results) == (PublishOperation.BATCH, results)
    assert message.properties == {}
    stored = [record for queue in cluster.brokers[0].queues.values() for record in queue]
    assert len(stored) == 4
    assert {record.properties["mark"] for record in stored} == {"1"}


async def test_sends_that_share_a_request() -> None:
    hook = Marks()
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv, hooks=[hook], batching=Batching()) as producer,
    ):
        results = await asyncio.gather(*(producer.send(Message("t", b"x")) for _ in range(3)))
    assert [each.results for each in hook.ended] == [[result] for result in results]


async def test_failures() -> None:
    hook = Marks()
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv, hooks=[hook], retries=0) as producer,
    ):
        cluster.brokers[0].refusals[RequestCode.SEND_MESSAGE_V2] = [
            (ResponseCode.MESSAGE_ILLEGAL, "no")
        ]
        with pytest.raises(BrokerError):
            await producer.send(Message("t", b"x"))
        sending = asyncio.create_task(producer.send(Message("t", b"x")))
        await asyncio.sleep(0)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert [type(each.error) for each in hook.ended] == [BrokerError, asyncio.CancelledError]


async def test_arguments_that_are_no_messages_are_left_to_the_method() -> None:
    hook, bad = Marks(), 5
    producer: Any = Producer("127.0.0.1:1", hooks=[hook])
    for call in (producer.send, producer.send_oneway, producer.request):
        with pytest.raises(IllegalMessageError, match="expected a Message"):
            await call(bad)
    with pytest.raises(OptionError, match="expected a list of Message"):
        await producer.send_batch(bad)
    for batch in ([], [bad], "text"):
        with pytest.raises((IllegalMessageError, OptionError)):
            await producer.send_batch(batch)
    assert hook.begun == []


async def test_a_broken_hook_affects_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def before_publish(self, publishing: Publishing) -> None:
            raise ValueError("before")

        def after_publish(self, publishing: Publishing) -> None:
            raise ValueError("after")

    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv, hooks=[Broken()]) as producer,
    ):
        assert (await producer.send(Message("t", b"x"))).queue_offset == 0
    assert caplog.text.count("the message is not affected") == 2


def test_without_such_hooks_the_methods_are_the_class_s_own() -> None:
    assert "send" not in vars(Producer("127.0.0.1:1"))
    observed = vars(Producer("127.0.0.1:1", hooks=[Marks()]))
    assert {each.value for each in PublishOperation} - {"send_in_transaction"} <= set(observed)
    assert observed["send"].__doc__ == Producer.send.__doc__
