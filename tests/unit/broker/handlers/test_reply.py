from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.state.connections import Client as Requester
from pyromq.protocol.message.properties import decode_properties
from pyromq.protocol.message.sysflag import COMPRESSED, TRANSACTION_PREPARED
from pyromq.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import ReplyMessageRequestHeader
from tests.support.patience import until
from tests.support.requests import BORN, send_request
from tests.unit.broker.assembled import AssembledBroker, Client

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = "CORRELATION_ID\x0142\x02REPLY_TO_CLIENT\x01asker"
FORMS = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
CONFIG = BrokerConfig(broker_ip1="127.0.0.1", broker_ip2="127.0.0.1")
ANSWER_FIELDS = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@pytest.fixture
async def without_store(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    assembled = AssembledBroker(
        tmp_path, dataclasses.replace(CONFIG, store_reply_message_enable=False)
    )
    yield assembled
    await assembled.close()


def asker(broker: AssembledBroker, client_id: str = "asker") -> Client:
    """A client that waits for replies."""
    client = broker.connect(("127.0.0.2", 50505))
    broker.producers.register(
        "askers", Requester(client.connection, client_id, LanguageCode.JAVA, 407)
    )
    return client


def reply(code: RequestCode = RequestCode.SEND_REPLY_MESSAGE_V2, **fields: Any) -> RemotingCommand:
    values: dict[str, Any] = {
        "topic": REPLY_TOPIC,
        "queueId": "0",
        "properties": PROPERTIES,
        **fields,
    }
    request = send_request(
        RequestCode.SEND_MESSAGE
        if code == RequestCode.SEND_REPLY_MESSAGE
        else RequestCode.SEND_MESSAGE_V2,
        b"the reply",
        opaque=31,
        **values,
    )
    request.code = code
    return request


async def pushed(requester: Client) -> RemotingCommand:
    await until(lambda: requester.transport.written)
    (push,) = requester.received()
    assert push.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    assert not push.is_oneway
    return push


async def answer(client: Client) -> RemotingCommand:
    await until(lambda: client.transport.written)
    (command,) = client.received()
    return command


@pytest.mark.parametrize("code", FORMS)
async def test_a_reply_reaches_its_requester_and_is_stored(
    broker: AssembledBroker, code: RequestCode
) -> None:
    requester = asker(broker)
    assert broker.fast.exchange(reply(code, sysFlag=str(COMPRESSED))) == []

    push = await pushed(requester)
    header = ReplyMessageRequestHeader.decode(push.ext_fields)
    assert push.body == b"the reply"
    assert header.topic == REPLY_TOPIC
    assert (header.producer_group, header.default_topic) == ("producers", "TBW102")
    assert (header.sys_flag, header.flag, header.born_timestamp) == (COMPRESSED, 7, BORN)
    assert (header.born_host, header.store_host) == ("127.0.0.1:40404", "127.0.0.1:10911")
    assert header.store_timestamp == broker.now
    assert decode_properties(header.properties or "") == {
        "CORRELATION_ID": "42",
        "REPLY_TO_CLIENT": "asker",
        "PUSH_REPLY_TIME": str(broker.now),
    }
    assert broker.fast.received() == []

    requester.exchange(push.answer())
    done = await answer(broker.fast)
    (record,) = broker.records()
    assert (done.code, done.opaque, done.remark) == (ResponseCode.SUCCESS, 31, None)
    assert done.ext_fields == {
        "msgId": record.message_id,
        "queueId": "0",
        "queueOffset": "0",
        **ANSWER_FIELDS,
    }
    assert (record.topic, record.queue_id, record.body) == (REPLY_TOPIC, 0, b"the reply")
    assert record.properties == decode_properties(PROPERTIES)
    assert (record.sys_flag, record.flag, record.born_timestamp) == (COMPRESSED, 7, BORN)
    assert record.born_host == ("127.0.0.1", 40404)


async def test_a_reply_need_not_be_stored(without_store: AssembledBroker) -> None:
    requester = asker(without_store)
    without_store.fast.exchange(reply())
    requester.exchange((await pushed(requester)).answer())
    done = await answer(without_store.fast)
    assert done.code == ResponseCode.SUCCESS
    assert done.ext_fields == {"msgId": "0", "queueId": "0", "queueOffset": "0", **ANSWER_FIELDS}
    assert without_store.records() == []


async def test_a_reply_to_a_lost_requester_is_stored_and_an_error(
    broker: AssembledBroker,
) -> None:
    broker.fast.exchange(reply())
    done = await answer(broker.fast)
    (record,) = broker.records()
    assert done.code == ResponseCode.SYSTEM_ERROR
    assert done.remark == "push reply message fail, channel of <asker> not found."
    assert done.ext_fields["msgId"] == record.message_id


async def test_a_reply_without_a_requester_is_an_error(without_store: AssembledBroker) -> None:
    without_store.fast.exchange(reply(properties="CORRELATION_ID\x0142"))
    done = await answer(without_store.fast)
    assert done.code == ResponseCode.SYSTEM_ERROR
    assert done.remark == "reply message properties[REPLY_TO_CLIENT] is null"
    assert done.ext_fields == ANSWER_FIELDS


async def test_a_refusal_of_the_requester_is_an_error(broker: AssembledBroker) -> None:
    requester = asker(broker)
    broker.fast.exchange(reply())
    push = await pushed(requester)
    requester.exchange(push.answer(ResponseCode.SYSTEM_ERROR, "too late"))
    done = await answer(broker.fast)
    assert done.code == ResponseCode.SYSTEM_ERROR
    assert done.remark is not None
    assert done.remark.startswith("push reply message to asker fail.")
    assert "too late" in done.remark
    assert len(broker.records()) == 1


async def test_a_requester_that_disconnects_is_an_error(broker: AssembledBroker) -> None:
    requester = asker(broker)
    broker.fast.exchange(reply())
    await pushed(requester)
    requester.lose()
    done = await answer(broker.fast)
    assert done.code == ResponseCode.SYSTEM_ERROR
    assert "push reply message to asker fail." in (done.remark or "")


async def test_a_requester_that_is_silent_is_an_error(
    broker: AssembledBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyromq.broker.handlers.reply._PUSH_TIMEOUT_SECONDS", 0.01)
    requester = asker(broker)
    broker.fast.exchange(reply())
    await pushed(requester)
    done = await answer(broker.fast)
    assert done.code == ResponseCode.SYSTEM_ERROR
    assert "no response" in (done.remark or "")


async def test_waiting_replies_are_capped(tmp_path: Path) -> None:
    broker = AssembledBroker(
        tmp_path, dataclasses.replace(CONFIG, reply_thread_pool_queue_capacity=2)
    )
    requester = asker(broker)
    broker.fast.exchange(reply(), reply())
    await until(lambda: requester.transport.written)
    pushes = requester.received()
    broker.slow.exchange(reply())
    refused = await answer(broker.slow)
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert (refused.remark or "").startswith("[OVERLOAD]")
    assert requester.received() == []
    requester.exchange(pushes[0].answer())
    assert (await answer(broker.fast)).code == ResponseCode.SUCCESS
    broker.slow.exchange(reply())
    requester.exchange((await pushed(requester)).answer(), pushes[1].answer())
    assert (await answer(broker.slow)).code == ResponseCode.SUCCESS
    await broker.close()


async def test_other_replies_do_not_wait_for_a_silent_requester(broker: AssembledBroker) -> None:
    silent, quick = asker(broker, "silent"), asker(broker, "quick")
    broker.fast.exchange(reply(properties="REPLY_TO_CLIENT\x01silent"))
    await pushed(silent)
    broker.slow.exchange(reply(properties="REPLY_TO_CLIENT\x01quick"))
    quick.exchange((await pushed(quick)).answer())
    assert (await answer(broker.slow)).code == ResponseCode.SUCCESS
    assert broker.fast.received() == []
    silent.lose()
    assert (await answer(broker.fast)).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION),
        ({"topic": "no/topic"}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "T", "defaultTopic": "absent"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": "1"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_replies_pass_the_checks_of_sends(
    broker: AssembledBroker, fields: dict[str, Any], code: ResponseCode
) -> None:
    requester = asker(broker)
    broker.fast.exchange(reply(**fields))
    done = await answer(broker.fast)
    assert (done.code, done.ext_fields) == (code, ANSWER_FIELDS)
    assert done.remark
    assert requester.received() == []
    assert broker.records() == []


async def test_a_negative_queue_id_means_any_queue(broker: AssembledBroker) -> None:
    broker.fast.exchange(reply(queueId="-1"))
    assert (await answer(broker.fast)).ext_fields["queueId"] == "0"


async def test_a_reply_that_cannot_be_stored_still_reaches_its_requester(
    broker: AssembledBroker,
) -> None:
    requester = asker(broker)
    broker.store.stop()
    broker.fast.exchange(reply())
    requester.exchange((await pushed(requester)).answer())
    done = await answer(broker.fast)
    assert (done.code, done.ext_fields["msgId"]) == (ResponseCode.SUCCESS, "0")


async def test_a_stored_reply_is_not_a_half_message(broker: AssembledBroker) -> None:
    broker.fast.exchange(reply(sysFlag=str(TRANSACTION_PREPARED | COMPRESSED)))
    await answer(broker.fast)
    (record,) = broker.records()
    assert record.sys_flag == COMPRESSED


async def test_a_oneway_reply_is_pushed_and_stored_without_an_answer(
    broker: AssembledBroker,
) -> None:
    requester = asker(broker)
    request = reply()
    request.flag = 2
    broker.fast.exchange(request)
    requester.exchange((await pushed(requester)).answer())
    await until(broker.records)
    await asyncio.sleep(0)
    assert broker.fast.received() == []


async def test_a_reply_whose_header_is_torn_is_an_error(broker: AssembledBroker) -> None:
    broker.fast.exchange(reply(bornTimestamp=None))
    done = await answer(broker.fast)
    assert done.code == ResponseCode.SYSTEM_ERROR
    assert "SendMessageRequestHeaderV2" in (done.remark or "")
