from __future__ import annotations

from typing import Any

import pytest

from pyromq.admin import Admin, AdminError, NotFoundError
from pyromq.admin.errors import UnknownTopicError
from pyromq.admin.queue_reader import PullStatus
from pyromq.admin.session import AdminSession
from pyromq.client import Message, Producer, PushConsumer, SendResult, StartFrom
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.bodies_consumer import DirectResult
from pyromq.protocol.wire.codes import RequestCode
from pyromq.testing import Cluster
from tests.support.patience import until

COUNT = 150


@pytest.fixture
async def sent(rocketmq: Cluster, rocketmq_topic: str) -> list[SendResult]:
    """Messages with one key, in the first two of four queues."""
    results = []
    async with Producer(rocketmq.namesrv) as producer:
        for number in range(COUNT):
            queue = MessageQueue(rocketmq_topic, "broker-0", number % 2)
            message = Message(rocketmq_topic, b"%d" % number, keys="all", tags=f"t{number % 3}")
            results.append(await producer.send(message, queue))
    return results


async def test_finds_one_message(admin: Admin, rocketmq_topic: str, sent: list[SendResult]) -> None:
    by_id = await admin.messages.by_id(sent[7].offset_msg_id)
    assert (by_id.body, by_id.msg_id) == (b"7", sent[7].msg_id)
    by_offset = await admin.messages.by_offset(rocketmq_topic, "broker-0", 1, 3)
    assert by_offset.body == b"7"
    await until(lambda: _is_indexed(admin, rocketmq_topic, sent[7].msg_id))
    found = await admin.messages.by_unique_key(rocketmq_topic, sent[7].msg_id)
    assert [message.body for message in found.messages] == [b"7"]
    assert found.complete


async def _is_indexed(admin: Admin, topic: str, msg_id: str) -> bool:
    return bool((await admin.messages.by_unique_key(topic, msg_id)).messages)


async def test_a_query_has_no_mark_that_is_signed_differently(
    admin: Admin, rocketmq_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's 4.9.7 leaves `_UNIQUE_KEY_QUERY` out of what it verifies, and 5.x does not."""
    asked: list[dict[str, str]] = []
    original = AdminSession.ask

    async def ask(
        session: AdminSession, address: str, code: RequestCode, *args: Any, **options: Any
    ) -> Any:
        if code is RequestCode.QUERY_MESSAGE:
            asked.append(args[0].encode())
        return await original(session, address, code, *args, **options)

    monkeypatch.setattr(AdminSession, "ask", ask)
    await admin.messages.by_unique_key(rocketmq_topic, "ID")
    assert [fields.keys() for fields in asked] == [
        {"topic", "key", "maxNum", "beginTimestamp", "endTimestamp"}
    ]


async def test_what_is_not_there(admin: Admin, rocketmq_topic: str, sent: list[SendResult]) -> None:
    gone = sent[0].offset_msg_id[:-8] + "7FFFFFFF"
    for call in (
        admin.messages.by_id(gone),
        admin.messages.by_id(sent[0].msg_id[:-1]),
        admin.messages.by_offset(rocketmq_topic, "broker-0", 0, 10_000),
        admin.messages.by_offset(rocketmq_topic, "broker-9", 0, 0),
        admin.messages.consume_directly("group", "client", "id"),
        admin.messages.send(rocketmq_topic, b"x", broker_name="broker-9"),
    ):
        with pytest.raises(NotFoundError):
            await call
    nothing = await admin.messages.by_key(rocketmq_topic, "nothing")
    assert (nothing.messages, nothing.complete) == ((), True)
    with pytest.raises(UnknownTopicError):
        await admin.messages.by_key("nowhere", "key")


async def test_a_result_says_that_there_is_more(
    admin: Admin, rocketmq_topic: str, sent: list[SendResult]
) -> None:
    await until(lambda: _is_indexed(admin, rocketmq_topic, sent[-1].msg_id))

    few = await admin.messages.by_key(rocketmq_topic, "all", limit=10)

    assert [int(message.body) for message in few.messages] == list(range(COUNT - 10, COUNT))
    assert not few.complete
    assert "10" in few.reason
    # More than a broker returns at once, stored within a second: the rest cannot be asked for.
    many = await admin.messages.by_key(rocketmq_topic, "all", limit=10_000)
    assert many.complete == (len(many.messages) == COUNT)
    assert bool(many.reason) is not many.complete


async def test_finds_by_time(admin: Admin, rocketmq_topic: str, sent: list[SendResult]) -> None:
    first = await admin.messages.by_id(sent[20].offset_msg_id)
    last = await admin.messages.by_id(sent[80].offset_msg_id)
    begin, end = first.store_timestamp, last.store_timestamp

    found = await admin.messages.by_time(rocketmq_topic, begin, end, limit=COUNT)

    assert found.complete
    numbers = [int(message.body) for message in found.messages]
    assert set(range(20, 81)) <= set(numbers)
    assert {begin <= each.store_timestamp <= end for each in found.messages} == {True}
    some = await admin.messages.by_time(rocketmq_topic, begin, end, limit=5)
    assert (some.messages, some.complete) == (found.messages[:5], False)
    tagged = await admin.messages.by_time(
        rocketmq_topic, begin, end, limit=COUNT, subscription="t1", queue_id=1
    )
    assert {(each.tags, each.queue_id) for each in tagged.messages} == {("t1", 1)}
    whole = await admin.messages.by_time(rocketmq_topic, 0, end + 3_600_000, limit=COUNT)
    assert (len(whole.messages), whole.complete) == (COUNT, True)


async def test_reads_queues(admin: Admin, rocketmq_topic: str, sent: list[SendResult]) -> None:
    assert len(sent) == COUNT
    queues = await admin.messages.queues(rocketmq_topic)
    assert [queue.queue_id for queue, _ in queues] == [0, 1, 2, 3]
    queue = queues[0][0]
    begin, end = await admin.messages.bounds(queue)
    assert (begin, end) == (0, COUNT // 2)
    read = [each async for each in admin.messages.read(queue, begin, end)]
    assert [int(message.body) for message in read] == list(range(0, COUNT, 2))
    pulled = await admin.messages.pull(queue, 5, 2)
    assert (pulled.status, len(pulled.messages)) == (PullStatus.FOUND, 2)
    assert await admin.messages.bounds(queue, 0, 0) == (0, 0)


async def test_queue_entries(
    admin: Admin, rocketmq: Cluster, rocketmq_topic: str, sent: list[SendResult]
) -> None:
    found = await admin.messages.queue_entries(rocketmq_topic, 0, 1, 2, group="nobody")
    assert (found.min_index, found.max_index) == (0, COUNT // 2)
    assert found.subscription is None
    assert "not online" in (found.filter_data or "")
    message = await admin.messages.by_id(sent[2].offset_msg_id)
    assert found.entries[0].physical_offset == message.physical_offset
    assert found.entries[0].size == message.store_size
    assert [each.index for each in found.entries] == [1, 2]
    broker = rocketmq.brokers[0].address
    with pytest.raises(NotFoundError, match="not exist"):
        await admin.messages.queue_entries(rocketmq_topic, 0, 10_000, broker=broker)


async def test_sends(admin: Admin, rocketmq_topic: str) -> None:
    result = await admin.messages.send(rocketmq_topic, b"one", tags="t", keys="k")
    again = await admin.messages.send_again(result.offset_msg_id)
    copy = await admin.messages.by_id(again.offset_msg_id)
    assert (copy.body, copy.tags, copy.keys) == (b"one", "t", "k")
    assert copy.msg_id != result.msg_id
    fixed = await admin.messages.send(rocketmq_topic, b"x", broker_name="broker-0", queue_id=3)
    assert fixed.queue.queue_id == 3
    anywhere = await admin.messages.send(rocketmq_topic, b"x", broker_name="broker-0")
    assert anywhere.queue.broker_name == "broker-0"
    with pytest.raises(AdminError, match="name of a broker"):
        await admin.messages.send(rocketmq_topic, b"x", queue_id=1)


async def test_a_member_handles_a_message_at_once(
    rocketmq: Cluster, admin: Admin, rocketmq_topic: str
) -> None:
    result = await admin.messages.send(rocketmq_topic, b"one")
    handled: list[bytes] = []
    async with PushConsumer(
        rocketmq.namesrv,
        group="readers",
        subscriptions=rocketmq_topic,
        handler=lambda message: handled.append(message.body),
        start_from=StartFrom.FIRST,
    ) as consumer:
        await until(lambda: handled == [b"one"])
        done = await admin.messages.consume_directly(
            "readers", consumer.client_id, result.offset_msg_id
        )
        assert done.result is DirectResult.CR_SUCCESS
        assert handled == [b"one"] * 2
        with pytest.raises(AdminError):
            await admin.messages.consume_directly("readers", "other@1", result.offset_msg_id)
