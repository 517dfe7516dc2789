from __future__ import annotations

import pytest

from pyromq.client.consumer.push.send_back import DEAD_LETTER, SendBack
from pyromq.protocol.message.properties import decode_properties
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.headers import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeaderV2,
)
from tests.unit.client.fake_cluster import running_cluster
from tests.unit.client.received_messages import received
from tests.unit.client.sessions import session_at

QUEUE = MessageQueue("%RETRY%g", "b0", 0)
REFUSAL = [(int(ResponseCode.SYSTEM_ERROR), "no such message")]


async def test_a_message_goes_back_to_its_broker_first() -> None:
    async with (
        running_cluster({"tenant%t": {"b0": 1}, "%RETRY%tenant%g": {"b0": 1}}) as cluster,
        session_at(cluster.namesrv, namespace="tenant") as session,
    ):
        send_back = SendBack(session, "g", 5, unit_mode=False)
        message = received(7, queue=QUEUE, properties=b"UNIQ_KEY\x01ID\x02")
        message.topic = "t"
        assert await send_back(message, 4)
        (request,) = cluster.brokers[0].seen(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert ConsumerSendMsgBackRequestHeader.decode(
            request.ext_fields
        ) == ConsumerSendMsgBackRequestHeader(
            offset=1007,
            group="tenant%g",
            delay_level=4,
            origin_msg_id="ID",
            origin_topic="tenant%t",
            unit_mode=False,
            max_reconsume_times=5,
        )


@pytest.mark.parametrize(("delay_level", "times"), [(0, 3), (DEAD_LETTER, 5)])
async def test_a_copy_goes_to_the_retry_topic_instead(delay_level: int, times: int) -> None:
    async with (
        running_cluster({"t": {"b0": 1}, "%RETRY%g": {"b0": 1}}) as cluster,
        session_at(cluster.namesrv) as session,
    ):
        broker = cluster.brokers[0]
        broker.refusals[RequestCode.CONSUMER_SEND_MSG_BACK] = list(REFUSAL)
        message = received(
            7,
            b"text",
            queue=QUEUE,
            # Properties of a transaction, a delay and a timer must not take effect again.
            properties=b"UNIQ_KEY\x01ID\x02own\x01x\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02"
            b"REAL_TOPIC\x01t\x02REAL_QID\x013\x02TIMER_DELIVER_MS\x011\x02"
            b"TAGS\x01a\x02KEYS\x01k\x02CORRELATION_ID\x01c\x02",
            reconsume_times=2,
        )
        message.topic = "t"
        assert await SendBack(session, "g", 5, unit_mode=False)(message, delay_level)
        (request,) = broker.seen(RequestCode.SEND_MESSAGE_V2)
        header = SendMessageRequestHeaderV2.decode(request.ext_fields)
        assert (header.topic, header.reconsume_times, header.max_reconsume_times) == (
            "%RETRY%g",
            times,
            5,
        )
        assert (request.body, header.flag) == (b"text", 3)
        assert decode_properties(header.properties or "") == {
            "UNIQ_KEY": "ID",
            "own": "x",
            "TAGS": "a",
            "KEYS": "k",
            "CORRELATION_ID": "c",
            "RETRY_TOPIC": "t",
            "DELAY": "5",
            "ORIGIN_MESSAGE_ID": "ID",
        }


async def test_the_caller_keeps_a_message_that_nobody_takes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        running_cluster({"t": {"b1": 1}, "%RETRY%g": {"b0": 1}}, brokers=2) as cluster,
        session_at(cluster.namesrv) as session,
    ):
        send_back = SendBack(session, "g", 5, unit_mode=False)
        cluster.brokers[0].refusals[RequestCode.SEND_MESSAGE_V2] = list(REFUSAL)
        gone = received(7, queue=MessageQueue("t", "b7", 0))
        assert not await send_back(gone)
        assert "b7 has no master" in caplog.text
        assert await send_back(gone)
        cluster.topics.pop("%RETRY%g")
        session.routes._known.clear()
        assert not await send_back(gone)


async def test_an_unreadable_body_is_sent_as_it_is() -> None:
    async with (
        running_cluster({"t": {"b0": 1}, "%RETRY%g": {"b0": 1}}) as cluster,
        session_at(cluster.namesrv) as session,
    ):
        gone = received(7, b"no ZSTD", queue=MessageQueue("t", "b7", 0), sys_flag=0x201)
        assert await SendBack(session, "g", 5, unit_mode=False)(gone)
        (request,) = cluster.brokers[0].seen(RequestCode.SEND_MESSAGE_V2)
        header = SendMessageRequestHeaderV2.decode(request.ext_fields)
        assert (request.body, header.sys_flag) == (b"no ZSTD", 0x201)


async def test_a_bug_does_not_lose_the_message(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running_cluster({"t": {"b0": 1}, "%RETRY%g": {"b0": 1}}) as cluster,
        session_at(cluster.namesrv) as session,
    ):

        async def mistaken(*_: object) -> None:
            raise LookupError("a mistake of ours")

        monkeypatch.setattr(session, "ask", mistaken)
        assert not await SendBack(session, "g", 5, unit_mode=False)(received(7))
        assert "a mistake of ours" in caplog.text
