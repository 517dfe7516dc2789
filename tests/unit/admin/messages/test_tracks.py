from __future__ import annotations

from pyromq.admin import Admin
from pyromq.admin.messages.tracks import MessageTrack, TrackType, events
from pyromq.client import Message, Producer, PullConsumer, PushConsumer, StartFrom
from pyromq.protocol.message.trace import (
    ConsumeBegun,
    ConsumeEnded,
    Published,
    TracedType,
    TraceRecord,
    TransactionEnded,
)
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.testing import Cluster
from tests.support.patience import until
from tests.unit.admin.stored_messages import made_up


async def test_who_consumed_a_message(rocketmq: Cluster, admin: Admin, rocketmq_topic: str) -> None:
    queue = MessageQueue(rocketmq_topic, "broker-0", 0)
    async with Producer(rocketmq.namesrv) as producer:
        sent = await producer.send(Message(rocketmq_topic, b"one", tags="red"), queue)
    async with PullConsumer(rocketmq.namesrv, rocketmq_topic, group="offline") as consumer:
        await consumer.commit(queue, 1)
    message = await admin.messages.by_id(sent.offset_msg_id)
    options = {"handler": lambda _: None, "commit_interval": 0.1, "start_from": StartFrom.FIRST}
    async with (
        PushConsumer(rocketmq.namesrv, group="all", subscriptions=rocketmq_topic, **options),  # type: ignore[arg-type]
        PushConsumer(
            rocketmq.namesrv,
            group="blue",
            subscriptions={rocketmq_topic: "blue"},
            **options,  # type: ignore[arg-type]
        ),
    ):

        async def types() -> dict[str, TrackType]:
            return {each.group: each.type for each in await admin.messages.track(message)}

        async def is_consumed() -> bool:
            return await types() == {
                "all": TrackType.CONSUMED,
                "blue": TrackType.CONSUMED_BUT_FILTERED,
                "offline": TrackType.NOT_ONLINE,
            }

        await until(is_consumed)
        ahead = made_up(topic=rocketmq_topic, queue_offset=1, tags="red")
        assert MessageTrack("all", TrackType.NOT_CONSUME_YET) in await admin.messages.track(ahead)


def test_reads_traces() -> None:
    records: list[TraceRecord] = [
        Published(5, "r", "makers", "t", "U1", "", "", "", 1, 7, TracedType.NORMAL, "O", True),
        Published(6, "r", "makers", "t", "U2", "", "", "", 1, 7, TracedType.NORMAL, "O", True),
        ConsumeBegun(8, "r", "readers", "q", "U1", 2, ""),
        ConsumeEnded("q", "U1", 3, False, "", time=11, group="readers"),
        TransactionEnded(
            12,
            "r",
            "makers",
            "t",
            "U1",
            "",
            "",
            "",
            TracedType.COMMIT,
            "T",
            "COMMIT_MESSAGE",
            False,
        ),
    ]
    body = "".join(record.encode() for record in records).encode()

    found = events("U1", [made_up(body=body, born_host="10.0.0.7:4000")])

    assert [(each.type, each.group, each.timestamp, each.cost_ms) for each in found] == [
        ("Pub", "makers", 5, 7),
        ("SubBefore", "readers", 8, 0),
        ("SubAfter", "readers", 11, 3),
        ("EndTransaction", "makers", 12, 0),
    ]
    assert {each.client_host for each in found} == {"10.0.0.7"}
    assert [each.succeeded for each in found] == [True, True, False, True]
    assert (found[1].retries, found[3].state) == (2, "COMMIT_MESSAGE")


async def test_traces_of_a_live_message(
    rocketmq: Cluster, admin: Admin, rocketmq_topic: str
) -> None:
    sent = await admin.messages.send(rocketmq_topic, b"one", trace=True)

    async def is_traced() -> bool:
        try:
            found = await admin.messages.trace(sent.msg_id)
        except Exception:
            return False  # the trace topic is created with the first trace
        return [each.type for each in found] == ["Pub"]

    await until(is_traced)
    assert rocketmq.message_count(rocketmq_topic) == 1
