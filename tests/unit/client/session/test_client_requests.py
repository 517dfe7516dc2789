from __future__ import annotations

from collections.abc import Mapping

import pytest

from pyromq.client.received import ReceivedMessage
from pyromq.client.session.client_requests import ClientRequests, format_stacks
from pyromq.protocol.java.fastjson import BodyError
from pyromq.protocol.message.record import MessageRecord, encode_record
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.bodies_admin import (
    GetConsumerStatusBody,
    MessageQueueForC,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from pyromq.protocol.wire.bodies_consumer import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ConsumeStatus,
    DirectResult,
    ProcessQueueInfo,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.header_codec import HeaderError
from tests.unit.client.fake_cluster import HOST

OURS, THEIRS = MessageQueue("t", "b0", 0), MessageQueue("tenant%t", "b0", 0)


class Consumer:
    group = "g"
    is_orderly = True

    def __init__(self) -> None:
        self.notes = 0
        self.resets: list[dict[MessageQueue, int]] = []
        self.given: list[ReceivedMessage] = []
        self.error: Exception | None = None

    def members_changed(self) -> None:
        self.notes += 1

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        self.resets.append(dict(offsets))

    def offsets(self) -> dict[MessageQueue, int]:
        return {OURS: 5, MessageQueue("u", "b0", 0): 6}

    def running_info(self) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(
            mq_table={OURS: ProcessQueueInfo(5)}, status_table={"t": ConsumeStatus()}
        )

    async def consume_directly(self, message: ReceivedMessage) -> bool:
        self.given.append(message)
        if self.error is not None:
            raise self.error
        return message.body == b"good"


class Asked:
    """A consumer in a namespace, and a broker connected to it."""

    def __init__(self) -> None:
        self.consumer = Consumer()
        self.requests = ClientRequests(self.consumer, "tenant")

    async def ask(self, code: RequestCode, body: bytes = b"", **fields: str) -> RemotingCommand:
        answer = self.requests.handlers()[code](
            "b0:1", RemotingCommand(code, ext_fields=fields, body=body)
        )
        if answer is not None and not isinstance(answer, RemotingCommand):
            answer = await answer
        return answer or RemotingCommand(-1)


@pytest.fixture
def asked() -> Asked:
    return Asked()


async def test_a_change_of_members_triggers_a_rebalance(asked: Asked) -> None:
    await asked.ask(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, consumerGroup="tenant%g")
    assert asked.consumer.notes == 1


RESET = {"topic": "tenant%t", "timestamp": "0", "isForce": "true"}


async def test_offsets_can_be_reset_in_both_forms(asked: Asked) -> None:
    other = MessageQueue("tenant%u", "b0", 0)
    body = ResetOffsetBody({THEIRS: 3, other: 4}).encode()
    await asked.ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, body, **RESET, group="tenant%g")
    rows = ResetOffsetBodyForC([MessageQueueForC("tenant%t", "b0", 0, 8)]).encode()
    await asked.ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, rows, **RESET, group="tenant%g")
    await asked.ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, rows, **RESET, group="tenant%other")
    assert asked.consumer.resets == [{OURS: 3}, {OURS: 8}]
    for rubbish in (b"{", b'{"offsetTable":"x"}'):
        with pytest.raises(BodyError):
            await asked.ask(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET, rubbish, **RESET, group="tenant%g"
            )
    with pytest.raises(HeaderError):
        await asked.ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, rows, topic="t")


@pytest.mark.parametrize(
    ("group", "topic", "offsets"),
    [
        ("tenant%g", "tenant%t", {THEIRS: 5}),
        ("tenant%g", "", {THEIRS: 5, MessageQueue("tenant%u", "b0", 0): 6}),
        ("tenant%other", "tenant%t", {}),
    ],
)
async def test_consumed_offsets_are_returned(
    asked: Asked, group: str, topic: str, offsets: dict[MessageQueue, int]
) -> None:
    answer = await asked.ask(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, group=group, topic=topic)
    assert GetConsumerStatusBody.decode(answer.body).message_queue_table == offsets


async def test_running_info_has_the_names_that_servers_know(asked: Asked) -> None:
    answer = await asked.ask(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        consumerGroup="tenant%g",
        clientId="c",
        jstackEnable="true",
    )
    info = ConsumerRunningInfo.decode(answer.body)
    assert info.mq_table == {THEIRS: ProcessQueueInfo(5)}
    assert [*info.status_table] == ["tenant%t"]
    assert "test_running_info_has_the_names" in (info.jstack or "")
    with pytest.raises(RequestError, match="not exist in this consumer") as refused:
        await asked.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="g", clientId="c")
    assert refused.value.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("body", "error", "result", "remark"),
    [
        (b"good", None, DirectResult.CR_SUCCESS, None),
        (b"bad", None, DirectResult.CR_LATER, None),
        (b"bad", ValueError("x"), DirectResult.CR_THROW_EXCEPTION, "ValueError: x"),
    ],
)
async def test_direct_consumption(
    asked: Asked,
    body: bytes,
    error: Exception | None,
    result: DirectResult,
    remark: str | None,
) -> None:
    asked.consumer.error = error
    record = MessageRecord(
        topic="tenant%t",
        queue_id=2,
        queue_offset=3,
        physical_offset=4,
        body=body,
        properties={},
        flag=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=("127.0.0.1", 1),
        store_timestamp=2,
        store_host=("127.0.0.1", 10911),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body_crc=0,
        size=0,
        message_id="",
        raw_properties=b"",
    )
    answer = await asked.ask(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        encode_record(record, HOST, HOST),
        consumerGroup="tenant%g",
        brokerName="b0",
    )
    outcome = ConsumeMessageDirectlyResult.decode(answer.body)
    assert (outcome.consume_result, outcome.remark, outcome.order) == (result, remark, True)
    (message,) = asked.consumer.given
    assert (message.topic, message.queue.broker_name) == ("t", "b0")


async def test_a_body_that_is_not_a_message_is_refused(asked: Asked) -> None:
    for rubbish in (b"", b"rubbish"):
        with pytest.raises(RequestError, match="not a message"):
            await asked.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, rubbish, consumerGroup="tenant%g")


async def test_stacks_name_threads_and_tasks() -> None:
    text = format_stacks()
    assert "thread MainThread" in text
    assert "\ntask " in text
