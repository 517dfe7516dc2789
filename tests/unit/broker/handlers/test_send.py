from __future__ import annotations

import logging
import re
import struct
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers.send import SendHandlers
from pyromq.protocol.bodies import SubscriptionGroupConfig, TopicConfig, TopicFilterType
from pyromq.protocol.codes import RequestCode, ResponseCode
from pyromq.protocol.frame import Encoding, RemotingCommand
from pyromq.protocol.java_hash import java_hash
from pyromq.protocol.message_id import decode_message_id
from pyromq.protocol.names import SCHEDULE_TOPIC, TRANSACTION_HALF_TOPIC
from pyromq.protocol.properties import decode_properties
from pyromq.protocol.record import encode_inner_message
from pyromq.protocol.sysflag import COMPRESSED, MULTI_TAGS
from tests.support.examples import examples
from tests.unit.broker.wired import (
    BORN,
    STORE_HOST,
    Client,
    Wired,
    raw_frame,
    send_fields,
    send_request,
)

SINGLE = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2)
ALL_FORMS = (*SINGLE, RequestCode.SEND_BATCH_MESSAGE)
BOTH_ENCODINGS = (Encoding.JSON, Encoding.ROCKETMQ)
BOTH_PATHS = ("fast", "slow")
MIB = 1024 * 1024
CLUSTER = b"CLUSTER\x01DefaultCluster"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Wired]:
    wired = Wired(tmp_path)
    yield wired
    await wired.close()


def warm(broker: Wired, topic: str = "T", queue_id: int = 1) -> None:
    """Let the next messages to a queue take the hot path."""
    answer = broker.fast.ask(send_request(topic=topic, queueId=str(queue_id), body=b"first"))
    assert answer.code == ResponseCode.SUCCESS


def body_for(code: RequestCode, body: bytes = b"body", properties: bytes = b"") -> bytes:
    return encode_inner_message(body, properties, 7) if code == ALL_FORMS[2] else body


# What is stored and answered


@pytest.mark.parametrize("path", BOTH_PATHS)
@pytest.mark.parametrize("encoding", BOTH_ENCODINGS)
@pytest.mark.parametrize("code", ALL_FORMS)
async def test_a_message_is_stored_and_answered_with_its_place(
    broker: Wired, code: RequestCode, encoding: Encoding, path: str
) -> None:
    warm(broker)
    client: Client = getattr(broker, path)
    request = send_request(
        code,
        body_for(code),
        opaque=77,
        encoding=encoding,
        properties="KEYS\x01k",
        reconsumeTimes="3",
        sysFlag=str(COMPRESSED),
    )

    answer = client.ask(request)

    record = broker.records()[-1]
    assert (answer.code, answer.opaque, answer.encoding) == (ResponseCode.SUCCESS, 77, encoding)
    assert answer.is_response
    assert answer.remark is None
    assert answer.body == b""
    assert answer.ext_fields == {
        "msgId": record.message_id,
        "queueId": "1",
        "queueOffset": "1",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert decode_message_id(record.message_id) == (*STORE_HOST, record.physical_offset)
    assert (record.topic, record.queue_id, record.queue_offset) == ("T", 1, 1)
    assert (record.body, record.flag, record.sys_flag) == (b"body", 7, COMPRESSED)
    assert record.raw_properties == b"KEYS\x01k\x02" + CLUSTER
    assert (record.born_timestamp, record.reconsume_times) == (BORN, 3)
    assert (record.born_host, record.store_host) == (("127.0.0.1", 40404), STORE_HOST)
    assert record.prepared_transaction_offset == 0


@pytest.mark.parametrize("encoding", BOTH_ENCODINGS)
@pytest.mark.parametrize("code", ALL_FORMS)
async def test_a_oneway_message_is_stored_and_not_answered(
    broker: Wired, code: RequestCode, encoding: Encoding
) -> None:
    requests = [
        send_request(code, body_for(code), oneway=True, encoding=encoding) for _ in range(3)
    ]

    assert broker.fast.exchange(*requests) == []
    assert [record.queue_offset for record in broker.records()] == [0, 1, 2]
    assert not broker.fast.closed


async def test_a_refused_oneway_message_is_not_answered_either(broker: Wired) -> None:
    warm(broker)

    refused = send_request(oneway=True, properties="DELAY\x01soon", opaque=1)
    assert broker.fast.exchange(refused, send_request(opaque=2))[0].opaque == 2
    assert len(broker.records()) == 2


@pytest.mark.parametrize("path", BOTH_PATHS)
async def test_answers_come_in_the_order_of_the_requests(broker: Wired, path: str) -> None:
    warm(broker)
    requests = [
        send_request(opaque=1),
        send_request(opaque=2, queueId="99"),
        send_request(RequestCode.SEND_MESSAGE, opaque=3),
        send_request(RequestCode.SEND_BATCH_MESSAGE, body_for(ALL_FORMS[2]), opaque=4),
        send_request(opaque=5, encoding=Encoding.ROCKETMQ),
        send_request(opaque=6, properties="DELAY\x01soon"),
        send_request(opaque=7),
    ]

    answers = getattr(broker, path).exchange(*requests)

    assert [answer.opaque for answer in answers] == [1, 2, 3, 4, 5, 6, 7]
    assert [answer.code for answer in answers] == [0, 1, 0, 0, 0, 1, 0]
    offsets = [a.ext_fields["queueOffset"] for a in answers if a.code == 0]
    assert offsets == ["1", "2", "3", "4", "5"]


async def test_every_message_of_a_batch_has_its_place_in_the_answer(broker: Wired) -> None:
    warm(broker)
    batch = b"".join(encode_inner_message(b"%d" % number, b"", number) for number in range(5))

    for client in (broker.fast, broker.slow):
        before = len(broker.records())
        answer = client.ask(send_request(RequestCode.SEND_BATCH_MESSAGE, batch))

        records = broker.records()[before:]
        assert answer.ext_fields["msgId"].split(",") == [r.message_id for r in records]
        assert answer.ext_fields["queueOffset"] == str(records[0].queue_offset)
        assert [r.body for r in records] == [b"0", b"1", b"2", b"3", b"4"]
        assert [r.flag for r in records] == [0, 1, 2, 3, 4]
        assert [r.queue_offset for r in records] == list(range(before, before + 5))


async def test_the_hot_answer_has_the_bytes_of_the_slow_one(broker: Wired) -> None:
    warm(broker)
    batch = encode_inner_message(b"a", b"") + encode_inner_message(b"b", b"")
    for request in (
        send_request(),
        send_request(RequestCode.SEND_MESSAGE),
        send_request(RequestCode.SEND_BATCH_MESSAGE, batch),
    ):
        headers = []
        for client in (broker.fast, broker.slow):
            client.connection.data_received(request.encode())
            data = bytes(client.transport.written)
            client.transport.written.clear()
            total, length = struct.unpack_from(">II", data)
            assert total == 4 + length == len(data) - 4
            header = orjson.loads(data[8:])
            header["extFields"]["msgId"] = len(header["extFields"]["msgId"])
            del header["extFields"]["queueOffset"]
            headers.append(header)
        assert headers[0] == headers[1]


@pytest.mark.parametrize(
    "region", ["50% off", "%d%s%%", 'a"b', "back\\slash", "Zürich", '","queueId":"9', "\x02"]
)
@pytest.mark.parametrize("trace", [True, False])
async def test_any_region_name_comes_back(tmp_path: Path, region: str, trace: bool) -> None:
    config = BrokerConfig(broker_ip1="127.0.0.1", region_id=region, trace_on=trace)
    broker = Wired(tmp_path, config)
    warm(broker)
    batch = body_for(ALL_FORMS[2]) * 3
    for request in (send_request(), send_request(RequestCode.SEND_BATCH_MESSAGE, batch)):
        answers = [client.ask(request) for client in (broker.fast, broker.slow)]
        for answer in answers:
            assert answer.ext_fields["MSG_REGION"] == region
            assert answer.ext_fields["TRACE_ON"] == ("true" if trace else "false")
            assert answer.ext_fields["queueId"] == "1"
    assert len(broker.records()) == 9
    await broker.close()


async def test_ipv6_clients_and_ipv4_ones_get_whole_records(broker: Wired) -> None:
    warm(broker)
    client = broker.connect(("2001:db8::7", 555))
    batch = body_for(ALL_FORMS[2]) * 2

    client.exchange(send_request(), send_request(RequestCode.SEND_BATCH_MESSAGE, batch))
    mapped = broker.connect(("::ffff:10.0.0.9", 5))
    mapped.exchange(send_request(), send_request(RequestCode.SEND_BATCH_MESSAGE, batch))

    hosts = [record.born_host for record in broker.records()[1:]]
    assert hosts == [("2001:db8::7", 555)] * 3 + [("10.0.0.9", 5)] * 3


# Topics


@pytest.mark.parametrize(
    ("asked", "made"), [(4, 4), (8, 8), (9, 8), (2**31 - 1, 8), (1, 1), (0, 1), (-5, 1)]
)
async def test_a_topic_is_made_by_sending_to_it(broker: Wired, asked: int, made: int) -> None:
    answer = broker.fast.ask(
        send_request(topic="new", defaultTopicQueueNums=str(asked), queueId="0")
    )

    topic = broker.topics.get("new")
    assert answer.code == ResponseCode.SUCCESS
    assert topic is not None
    assert (topic.write_queue_nums, topic.read_queue_nums) == (made, made)


async def test_a_topic_needs_a_template_that_exists(broker: Wired) -> None:
    for template in ("nothing", "BenchmarkTest", ""):
        answer = broker.fast.ask(send_request(topic="new", defaultTopic=template))
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert "topic[new] not exist, apply first please!" in (answer.remark or "")
        assert answer.ext_fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert broker.records() == []
    assert "new" not in broker.topics


async def test_no_topic_is_made_where_that_is_switched_off(tmp_path: Path) -> None:
    broker = Wired(tmp_path, BrokerConfig(broker_ip1="127.0.0.1", auto_create_topic_enable=False))

    assert broker.fast.ask(send_request()).code == ResponseCode.TOPIC_NOT_EXIST
    broker.topics.update(TopicConfig("T", 2, 2))
    assert broker.fast.ask(send_request()).code == ResponseCode.SUCCESS
    await broker.close()


@pytest.mark.parametrize("code", ALL_FORMS)
async def test_illegal_topics_are_refused(broker: Wired, code: RequestCode) -> None:
    for topic in ("", " ", "a b", "a/../b", "..", "ü", "a\x01b", "t" * 128, "a.b", "a@b"):
        answer = broker.fast.ask(send_request(code, body_for(code), topic=topic))

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "topic" in (answer.remark or "")
        assert topic not in broker.topics
    assert broker.records() == []


async def test_the_longest_topic_is_taken(broker: Wired) -> None:
    topic = "t" * 127
    for _ in range(2):
        assert broker.fast.ask(send_request(topic=topic)).code == ResponseCode.SUCCESS
    assert [record.topic for record in broker.records()] == [topic, topic]


@pytest.mark.parametrize(
    "topic",
    ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"],
)
async def test_topics_of_the_system_take_nothing_from_clients(broker: Wired, topic: str) -> None:
    answer = broker.fast.ask(send_request(topic=topic, queueId="0"))

    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == f"Sending message to topic[{topic}] is forbidden."
    assert broker.records() == []


async def test_checks_come_in_rocketmqs_order(tmp_path: Path) -> None:
    config = BrokerConfig(
        broker_ip1="127.0.0.1",
        broker_permission=4,
        start_accept_send_request_time_stamp=BORN + 1,
    )
    broker = Wired(tmp_path, config)
    broker.topics.update(TopicConfig("T", 2, 2, order=True))

    early = broker.fast.ask(send_request(topic="a b"))
    broker.now = BORN + 1
    not_writable = broker.fast.ask(send_request(queueId="99"))
    not_ordered = broker.fast.ask(send_request(topic="other"))

    assert early.code == ResponseCode.SYSTEM_ERROR
    assert re.fullmatch(
        r"broker unable to service, until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}",
        early.remark or "",
    )
    assert not_writable.code == ResponseCode.NO_PERMISSION
    assert not_writable.remark == "the broker[127.0.0.1] sending message is forbidden"
    assert not_ordered.code == ResponseCode.SUCCESS
    await broker.close()


# Queue ids


@pytest.mark.parametrize("code", ALL_FORMS)
async def test_a_negative_queue_id_means_any_queue(broker: Wired, code: RequestCode) -> None:
    broker.topics.update(TopicConfig("T", 8, 3))
    answers = broker.fast.exchange(
        *(send_request(code, body_for(code), queueId=str(-1 - n % 2)) for n in range(100))
    )

    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert {answer.ext_fields["queueId"] for answer in answers} == {"0", "1", "2"}


@pytest.mark.parametrize("code", ALL_FORMS)
async def test_a_queue_that_is_not_there_is_refused(broker: Wired, code: RequestCode) -> None:
    broker.topics.update(TopicConfig("T", 4, 2))

    for queue_id in ("4", "2147483647", "2147483648", "1" * 400, "", "x", "1.0"):
        answer = broker.fast.ask(send_request(code, body_for(code), queueId=queue_id))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "ueueId" in (answer.remark or "") or " e:" in (answer.remark or "")
    assert broker.records() == []
    assert list(broker.store.queues()) == []


async def test_a_readable_queue_can_be_sent_to_when_it_is_not_writable(broker: Wired) -> None:
    broker.topics.update(TopicConfig("T", 4, 2))

    assert broker.fast.ask(send_request(queueId="3")).code == ResponseCode.SUCCESS


async def test_a_changed_topic_is_looked_at_again(broker: Wired) -> None:
    warm(broker, queue_id=3)
    assert broker.fast.ask(send_request(queueId="3")).code == ResponseCode.SUCCESS
    broker.topics.update(TopicConfig("T", 2, 2))
    assert broker.fast.ask(send_request(queueId="3")).code == ResponseCode.SYSTEM_ERROR
    batch = send_request(RequestCode.SEND_BATCH_MESSAGE, body_for(ALL_FORMS[2]), queueId="3")
    assert broker.fast.ask(batch).code == ResponseCode.SYSTEM_ERROR
    assert len(broker.records()) == 2


async def test_a_deleted_topic_is_made_again_from_nothing(broker: Wired) -> None:
    warm(broker)
    broker.topics.delete("T")
    broker.store.remove_topic("T")

    answer = broker.fast.ask(send_request())

    assert (answer.code, answer.ext_fields["queueOffset"]) == (ResponseCode.SUCCESS, "0")
    assert "T" in broker.topics
    assert broker.entries() == [("T", 1, 0, 0)]


async def test_messages_of_multi_tag_topics_are_marked(broker: Wired) -> None:
    broker.topics.update(TopicConfig("T", 4, 4, topic_filter_type=TopicFilterType.MULTI_TAG))
    batch = send_request(RequestCode.SEND_BATCH_MESSAGE, body_for(ALL_FORMS[2]))

    broker.fast.exchange(send_request(), send_request(), batch, batch)

    assert [record.sys_flag for record in broker.records()] == [MULTI_TAGS] * 4


# Retries and dead letters


@pytest.mark.parametrize("code", SINGLE)
async def test_retries_go_on_until_the_groups_limit(broker: Wired, code: RequestCode) -> None:
    broker.groups.update(SubscriptionGroupConfig("g", retry_max_times=3))
    for times in ("0", "2", "3", "4", None):
        answer = broker.fast.ask(
            send_request(code, topic="%RETRY%g", queueId="0", reconsumeTimes=times)
        )
        assert answer.code == ResponseCode.SUCCESS

    assert [record.topic for record in broker.records()] == [
        "%RETRY%g",
        "%RETRY%g",
        "%DLQ%g",
        "%DLQ%g",
        "%RETRY%g",
    ]
    dead_letters = broker.topics.get("%DLQ%g")
    assert dead_letters is not None
    assert (dead_letters.write_queue_nums, dead_letters.perm) == (1, 6)


@pytest.mark.parametrize(
    ("version", "limit", "topic"),
    [(407, "1", "%DLQ%g"), (407, "9", "%RETRY%g"), (407, "-1", "%DLQ%g"), (120, "1", "%RETRY%g")],
)
async def test_a_clients_own_limit_counts_from_3_4_9_on(
    broker: Wired, version: int, limit: str, topic: str
) -> None:
    request = send_request(
        topic="%RETRY%g",
        queueId="0",
        reconsumeTimes="2",
        maxReconsumeTimes=limit,
        version=version,
    )

    assert broker.fast.ask(request).code == ResponseCode.SUCCESS
    assert broker.records()[0].topic == topic


async def test_a_dead_letter_topic_is_announced_before_the_answer(broker: Wired) -> None:
    announced: list[bool] = []

    async def register() -> None:
        announced.append("%DLQ%g" in broker.topics)

    handlers = SendHandlers(
        broker.config,
        broker.store,
        broker.writer,
        broker.topics,
        broker.groups,
        broker.host,
        register=register,
    )
    broker.topics.update(TopicConfig("%RETRY%g", 1, 1))
    for known in (False, True):
        request = send_request(topic="%RETRY%g", queueId="0", reconsumeTimes="16")
        answer = handlers.send_one(broker.fast.connection, request)
        if not isinstance(answer, RemotingCommand):
            assert not known
            answer = await answer
        assert answer.code == ResponseCode.SUCCESS
    assert announced == [True]


@pytest.mark.parametrize(("topic", "flag"), [("T", 1), ("%RETRY%g", 2)])
async def test_topics_that_a_unit_makes_say_so(broker: Wired, topic: str, flag: int) -> None:
    request = send_request(topic=topic, queueId="0", unitMode="true")
    assert broker.fast.ask(request).code == ResponseCode.SUCCESS
    created = broker.topics.get(topic)
    assert created is not None
    assert created.topic_sys_flag == flag


async def test_traces_are_taken_also_where_their_topic_is_not_made_ahead(broker: Wired) -> None:
    answer = broker.fast.ask(send_request(topic="RMQ_SYS_TRACE_TOPIC", queueId="0"))
    assert answer.code == ResponseCode.SUCCESS
    assert broker.records()[0].topic == "RMQ_SYS_TRACE_TOPIC"


async def test_a_dead_letter_is_not_delayed_any_more(broker: Wired) -> None:
    dead = send_request(
        topic="%RETRY%g", queueId="0", reconsumeTimes="16", properties="DELAY\x0118\x02KEYS\x01k"
    )

    answer = broker.fast.ask(dead)

    (record,) = broker.records()
    assert (answer.code, answer.ext_fields["queueId"]) == (ResponseCode.SUCCESS, "0")
    assert record.topic == "%DLQ%g"
    assert "DELAY" not in record.properties
    assert record.properties["KEYS"] == "k"


async def test_a_retry_of_a_group_that_may_not_be_made_is_refused(tmp_path: Path) -> None:
    broker = Wired(
        tmp_path, BrokerConfig(broker_ip1="127.0.0.1", auto_create_subscription_group=False)
    )

    answer = broker.fast.ask(send_request(topic="%RETRY%g", queueId="0"))

    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "subscription group not exist, g" in (answer.remark or "")
    assert broker.records() == []
    await broker.close()


async def test_a_retry_topic_needs_no_template(broker: Wired) -> None:
    answer = broker.fast.ask(send_request(topic="%RETRY%g", queueId="0", defaultTopic="none"))

    topic = broker.topics.get("%RETRY%g")
    assert answer.code == ResponseCode.SUCCESS
    assert topic is not None
    assert topic.write_queue_nums == 1


# Flags


@pytest.mark.parametrize("path", BOTH_PATHS)
@pytest.mark.parametrize("code", ALL_FORMS)
@pytest.mark.parametrize("host_bits", [0x10, 0x20, 0x30])
async def test_host_bits_of_a_client_never_reach_a_record(
    broker: Wired, code: RequestCode, host_bits: int, path: str
) -> None:
    warm(broker)
    request = send_request(code, body_for(code), sysFlag=str(host_bits | COMPRESSED))

    assert getattr(broker, path).ask(request).code == ResponseCode.SUCCESS
    assert [record.sys_flag for record in broker.records()[1:]] == [COMPRESSED]
    assert getattr(broker, path).ask(send_request(code, body_for(code))).code == 0
    assert broker.records()[-1].body == b"body"


@pytest.mark.parametrize("path", BOTH_PATHS)
@pytest.mark.parametrize("code", ALL_FORMS)
@pytest.mark.parametrize("bits", [0x4, 0xC, -1])
async def test_transaction_bits_without_a_transaction_are_refused(
    broker: Wired, code: RequestCode, bits: int, path: str
) -> None:
    """A record with them has no consume-queue entry after a recovery."""
    warm(broker)

    answer = getattr(broker, path).ask(send_request(code, body_for(code), sysFlag=str(bits)))

    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "transaction" in (answer.remark or "")
    assert len(broker.records()) == 1


async def test_the_bit_of_a_committed_message_is_harmless(broker: Wired) -> None:
    assert broker.fast.ask(send_request(sysFlag="8", queueId="0")).code == 0
    assert [entry[:3] for entry in broker.entries()] == [("T", 0, 0)]


@pytest.mark.parametrize("path", BOTH_PATHS)
@pytest.mark.parametrize("code", SINGLE)
@pytest.mark.parametrize(("value", "sys_flag"), [("true", 5), ("TRUE", 4), ("true", 1)])
async def test_a_transactional_message_is_stored_as_a_half(
    broker: Wired, code: RequestCode, value: str, sys_flag: int, path: str
) -> None:
    warm(broker)
    properties = f"TAGS\x01t\x02TRAN_MSG\x01{value}\x02PGROUP\x01p\x02WAIT\x01true\x02"

    answer = getattr(broker, path).ask(
        send_request(code, properties=properties, sysFlag=str(sys_flag), queueId="3")
    )

    half = broker.records()[-1]
    assert (answer.code, answer.ext_fields["queueId"]) == (ResponseCode.SUCCESS, "3")
    assert answer.ext_fields["msgId"] == half.message_id
    assert answer.ext_fields["queueOffset"] == "0"
    assert (half.topic, half.queue_id, half.queue_offset) == (TRANSACTION_HALF_TOPIC, 0, 0)
    assert (half.body, half.flag, half.sys_flag) == (b"body", 7, sys_flag & COMPRESSED)
    assert half.properties == {
        "TAGS": "t",
        "TRAN_MSG": value,
        "PGROUP": "p",
        "CLUSTER": "DefaultCluster",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }
    assert [entry[0] for entry in broker.entries()] == [TRANSACTION_HALF_TOPIC, "T"]


@pytest.mark.parametrize("code", SINGLE)
async def test_transactional_messages_may_be_forbidden(tmp_path: Path, code: RequestCode) -> None:
    config = BrokerConfig(
        broker_ip1="127.0.0.1", broker_ip2="127.0.0.1", reject_transaction_message=True
    )
    broker = Wired(tmp_path, config)
    warm(broker)

    answer = broker.fast.ask(send_request(code, properties="TRAN_MSG\x01true\x02", sysFlag="4"))

    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the broker[127.0.0.1] sending transaction message is forbidden"
    assert len(broker.records()) == 1
    await broker.close()


async def test_what_an_old_client_sends_back_is_no_transaction(broker: Wired) -> None:
    answer = broker.fast.ask(
        send_request(
            properties="TRAN_MSG\x01true\x02DELAY\x013", sysFlag="4", reconsumeTimes="1", topic="T"
        )
    )

    record = broker.records()[-1]
    assert answer.code == ResponseCode.SUCCESS
    assert (record.topic, record.queue_id, record.sys_flag) == (SCHEDULE_TOPIC, 2, 0)


async def test_a_half_with_a_delay_that_is_none_is_refused(broker: Wired) -> None:
    answer = broker.fast.ask(send_request(properties="TRAN_MSG\x01true\x02DELAY\x01soon"))

    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "DELAY is 'soon', not a number",
    )
    assert broker.records() == []


async def test_a_message_that_says_it_is_no_transaction_is_none(broker: Wired) -> None:
    for _ in range(2):
        assert broker.fast.ask(send_request(properties="TRAN_MSG\x01false")).code == 0


@pytest.mark.parametrize("path", BOTH_PATHS)
@pytest.mark.parametrize("code", SINGLE)
@pytest.mark.parametrize(("asked", "level"), [("1", 1), ("18", 18), ("99", 18)])
async def test_a_delayed_message_waits_under_its_level(
    broker: Wired, code: RequestCode, path: str, asked: str, level: int
) -> None:
    warm(broker)
    client: Client = getattr(broker, path)

    answer = client.ask(
        send_request(code, properties=f"TAGS\x01t\x02WAIT\x01true\x02DELAY\x01{asked}")
    )

    record = broker.records()[-1]
    assert (answer.code, answer.ext_fields["queueId"]) == (ResponseCode.SUCCESS, "1")
    assert answer.ext_fields["msgId"] == record.message_id
    assert answer.ext_fields["queueOffset"] == "0"
    assert (record.topic, record.queue_id, record.queue_offset) == (SCHEDULE_TOPIC, level - 1, 0)
    assert record.properties == {
        "TAGS": "t",
        "WAIT": "true",  # as in RocketMQ, which drops it from all others
        "DELAY": str(level),
        "CLUSTER": "DefaultCluster",
        "REAL_TOPIC": "T",
        "REAL_QID": "1",
    }
    due = broker.writer.delay_levels.due(level, record.store_timestamp)
    assert (SCHEDULE_TOPIC, level - 1, 0, due) in broker.entries()


async def test_a_topic_with_delayed_messages_alone_takes_the_hot_path(
    broker: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = send_request(topic="Late", properties="DELAY\x011\x02TAGS\x01t")
    assert broker.fast.ask(request).code == ResponseCode.SUCCESS
    slow: list[object] = []
    monkeypatch.setattr(broker.send, "_send_slowly", lambda *arguments: slow.append(arguments))

    answer = broker.fast.ask(request)

    assert slow == []
    assert (answer.code, answer.ext_fields["queueOffset"]) == (ResponseCode.SUCCESS, "1")
    first, second = broker.records()
    assert (second.topic, second.queue_id) == (SCHEDULE_TOPIC, 0)
    assert (second.body, second.raw_properties) == (first.body, first.raw_properties)
    # What asks for no delay is the slow path's.
    broker.fast.exchange(send_request(topic="Late", properties="DELAY\x010"))
    assert len(slow) == 1


@pytest.mark.parametrize(
    "properties",
    [
        "KEYS\x01k\x02UNIQ_KEY\x01u\x02WAIT\x01true\x02TAGS\x01t",  # as Java writes them
        "UNIQ_KEY\x01u\x02WAIT\x01true",
        "UNIQ_KEY\x01u\x02WAIT\x01true\x02",  # as older clients do
        "UNIQ_KEY\x01u",
    ],
)
async def test_what_clients_send_every_day_takes_the_hot_path(
    broker: Wired, monkeypatch: pytest.MonkeyPatch, properties: str
) -> None:
    warm(broker)
    slow: list[object] = []
    monkeypatch.setattr(broker.send, "_send_slowly", lambda *arguments: slow.append(arguments))
    assert broker.fast.ask(send_request(properties=properties)).code == ResponseCode.SUCCESS
    assert slow == []


async def test_a_chunk_of_plain_and_delayed_messages_keeps_their_queues_apart(
    broker: Wired,
) -> None:
    warm(broker)

    answers = broker.fast.exchange(
        *(
            send_request(opaque=number, properties="DELAY\x012" if number % 2 else "")
            for number in range(6)
        )
    )

    assert [answer.ext_fields["queueOffset"] for answer in answers] == [
        "1",
        "0",
        "2",
        "1",
        "3",
        "2",
    ]


@pytest.mark.parametrize("code", SINGLE)
@pytest.mark.parametrize("level", ["abc", "9" * 5000])
async def test_a_delay_that_is_no_number_is_refused_clearly(
    broker: Wired, code: RequestCode, level: str
) -> None:
    warm(broker)
    for properties in (f"DELAY\x01{level}", f"A\x01b\x02DELAY\x01{level}\x02"):
        answer = broker.fast.ask(send_request(code, body_for(code), properties=properties))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "delay" in (answer.remark or "").lower()
    assert len(broker.records()) == 1
    assert not broker.fast.closed


@pytest.mark.parametrize("level", ["1", "18", "99"])
async def test_a_batch_cannot_be_delayed(broker: Wired, level: str) -> None:
    warm(broker)
    code = RequestCode.SEND_BATCH_MESSAGE
    answer = broker.fast.ask(send_request(code, body_for(code), properties=f"DELAY\x01{level}"))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert len(broker.records()) == 1


@pytest.mark.parametrize("level", ["0", "-1"])
async def test_a_delay_of_nothing_is_no_delay(broker: Wired, level: str) -> None:
    for client in (broker.fast, broker.slow, broker.fast):
        assert client.ask(send_request(properties=f"DELAY\x01{level}")).code == 0


# Properties


@pytest.mark.parametrize("path", BOTH_PATHS)
@pytest.mark.parametrize("code", SINGLE)
@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        (None, CLUSTER),
        ("", CLUSTER),
        ("A\x01b", b"A\x01b\x02" + CLUSTER),
        ("A\x01b\x02", b"A\x01b\x02" + CLUSTER),
        ("A\x01b\x02C\x01d", b"A\x01b\x02C\x01d\x02" + CLUSTER),
        ("WAIT\x01true\x02A\x01b", b"A\x01b\x02" + CLUSTER),
        ("A\x01b\x02WAIT\x01true\x02C\x01d", b"A\x01b\x02C\x01d\x02" + CLUSTER),
        ("A\x01b\x02WAIT\x01true", b"A\x01b\x02" + CLUSTER),
        ("A\x01b\x02WAIT\x01true\x02", b"A\x01b\x02" + CLUSTER),
        ("WAIT\x01true", CLUSTER),
        ("WAIT\x01false\x02A\x01b", b"A\x01b\x02" + CLUSTER),
        ("A\x01b\x02WAIT\x01false\x02C\x01d", b"A\x01b\x02C\x01d\x02" + CLUSTER),
        ("A\x01b\x02WAIT\x01false", b"A\x01b\x02" + CLUSTER),
        ("AWAIT\x01true\x02A\x01b", b"AWAIT\x01true\x02A\x01b\x02" + CLUSTER),
        ("N\x01Grüße 你好 😀", "N\x01Grüße 你好 😀\x02".encode() + CLUSTER),
    ],
)
async def test_properties_are_stored_with_the_cluster_and_without_wait(
    broker: Wired, code: RequestCode, sent: str | None, stored: bytes, path: str
) -> None:
    warm(broker)

    assert getattr(broker, path).ask(send_request(code, properties=sent)).code == 0
    assert broker.records()[-1].raw_properties == stored


@pytest.mark.parametrize("path", BOTH_PATHS)
@pytest.mark.parametrize(
    "sent", ["CLUSTER\x01other", "CLUSTER\x01other\x02A\x01b", "A\x01b\x02CLUSTER\x01other\x02"]
)
async def test_a_cluster_that_is_there_already_is_replaced(
    broker: Wired, sent: str, path: str
) -> None:
    warm(broker)

    assert getattr(broker, path).ask(send_request(properties=sent)).code == 0
    raw = broker.records()[-1].raw_properties
    assert raw.count(b"CLUSTER") == 1
    assert decode_properties(raw) == {**decode_properties(sent), "CLUSTER": "DefaultCluster"}


@pytest.mark.parametrize("code", ALL_FORMS)
@pytest.mark.parametrize(
    ("properties", "tags"),
    [
        ("TAGS\x01red", "red"),
        ("TAGS\x01red\x02", "red"),
        ("TAGS\x01red\x02A\x01b", "red"),
        ("A\x01b\x02TAGS\x01red\x02C\x01d", "red"),
        ("A\x01b\x02TAGS\x01red", "red"),
        ("MYTAGS\x01blue", ""),
        ("MYTAGS\x01blue\x02TAGS\x01red", "red"),
        ("TAGS\x01red\x02MYTAGS\x01blue", "red"),
        ("A\x01TAGS\x01blue", ""),
        ("A\x01TAGS\x01blue\x02TAGS\x01red", "red"),
        ("TAGS\x01blue\x02TAGS\x01red", "red"),
        ("TAGS\x01", ""),
        ("TAGS\x01\x02A\x01b", ""),
        ("TAGS\x01red\x02TAGS\x01", "red"),
        ("TAGS\x01grün 你", "grün 你"),
        ("TAGS\x01😀", "😀"),
        ("TAGS", ""),
        ("A\x01b", ""),
    ],
)
async def test_the_tags_hash_is_that_of_the_stored_tags(
    broker: Wired, code: RequestCode, properties: str, tags: str
) -> None:
    warm(broker)
    body, own = b"body", properties
    if code == RequestCode.SEND_BATCH_MESSAGE:
        body, own = encode_inner_message(b"body", properties.encode()), ""
    request = send_request(code, body, properties=own)

    for client in (broker.fast, broker.slow):
        assert client.ask(request).code == ResponseCode.SUCCESS
        assert broker.records()[-1].properties.get("TAGS", "") == tags
        assert broker.entries()[-1][3] == java_hash(tags)


@pytest.mark.parametrize(
    ("own", "shared", "tags"),
    [
        (b"", "TAGS\x01blue", "blue"),
        (b"TAGS\x01red", "A\x01b\x02TAGS\x01blue", "blue"),
        (b"TAGS\x01red", "MYTAGS\x01blue", "red"),
    ],
)
async def test_tags_of_the_batch_itself_count_for_its_messages(
    broker: Wired, own: bytes, shared: str, tags: str
) -> None:
    warm(broker)
    request = send_request(
        RequestCode.SEND_BATCH_MESSAGE, encode_inner_message(b"x", own) * 2, properties=shared
    )

    for client in (broker.fast, broker.slow):
        assert client.ask(request).code == ResponseCode.SUCCESS
    assert {record.properties["TAGS"] for record in broker.records()[1:]} == {tags}
    assert {entry[3] for entry in broker.entries()[1:]} == {java_hash(tags)}


@pytest.mark.parametrize("path", BOTH_PATHS)
@pytest.mark.parametrize("code", SINGLE)
async def test_properties_are_refused_when_the_cluster_makes_them_too_long(
    broker: Wired, code: RequestCode, path: str
) -> None:
    warm(broker)
    client: Client = getattr(broker, path)
    longest = 32767 - len(CLUSTER) - 1 - len("A\x01")

    taken = client.ask(send_request(code, properties="A\x01" + "x" * longest))
    refused = client.ask(send_request(code, properties="A\x01" + "x" * (longest + 1)))
    wide = client.ask(send_request(code, properties="A\x01" + "ü" * (longest // 2 + 1)))
    far = client.ask(send_request(code, properties="A\x01" + "x" * 70_000))

    assert taken.code == ResponseCode.SUCCESS
    for answer in (refused, wide, far):
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "properties" in (answer.remark or "")
    assert [len(record.raw_properties) for record in broker.records()[1:]] == [32767]


@pytest.mark.parametrize("code", ALL_FORMS)
async def test_bodies_up_to_the_limit_are_taken(tmp_path: Path, code: RequestCode) -> None:
    broker = Wired(tmp_path, mapped_file_size_commit_log=16 * MIB)
    warm(broker)
    frame = len(body_for(code, b""))
    limit = 4 * MIB - (frame if code == RequestCode.SEND_BATCH_MESSAGE else 0)

    for length, expected in ((0, 0), (limit, 0), (limit + 1, ResponseCode.MESSAGE_ILLEGAL)):
        for client in (broker.fast, broker.slow):
            assert client.ask(send_request(code, body_for(code, bytes(length)))).code == expected

    assert [len(r.body) for r in broker.records()[1:]] == [0, 0, limit, limit]
    await broker.close()


async def test_a_send_that_finds_no_buffer_may_go_to_another_broker(tmp_path: Path) -> None:
    """With a transient store pool, and as soon as there is a buffer again it is taken."""
    broker = Wired(
        tmp_path,
        mapped_file_size_commit_log=MIB,
        transient_store_pool_enable=True,
        transient_store_pool_size=2,
        fast_fail_if_no_buffer_in_store_pool=True,
        commit_interval_commit_log=10_000_000,
    )
    body = bytes(700 * 1024)
    for client in (broker.fast, broker.fast):
        assert client.ask(send_request(body=body)).code == ResponseCode.SUCCESS
    for client in (broker.fast, broker.slow):
        answer = client.ask(send_request(body=body))
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert answer.remark == "[REJECTREQUEST]system busy, start flow control for a while"
    small = broker.fast.ask(send_request(body=b"fits in the segment"))
    assert small.code == ResponseCode.SUCCESS
    broker.store._log.commit()
    assert broker.fast.ask(send_request(body=body)).code == ResponseCode.SUCCESS
    assert sum(queue.next_offset for queue in broker.store.queues()) == 4
    await broker.close()


# Batches


def inner_batch(count: int = 3) -> bytes:
    return b"".join(
        encode_inner_message(b"body %d" % number, b"K\x01%d" % number, number)
        for number in range(count)
    )


@pytest.mark.parametrize("path", BOTH_PATHS)
async def test_no_truncation_of_a_batch_stores_a_torn_message(broker: Wired, path: str) -> None:
    warm(broker)
    client: Client = getattr(broker, path)
    batch = inner_batch()
    ends = {len(inner_batch(count)) for count in (1, 2, 3)}
    stored = 1
    for length in range(1, len(batch) + 1):
        answer = client.ask(send_request(RequestCode.SEND_BATCH_MESSAGE, batch[:length]))
        if length in ends:
            assert answer.code == ResponseCode.SUCCESS
            stored += sorted(ends).index(length) + 1
        else:
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL, length
            assert "torn" in (answer.remark or "")
        assert not client.closed
    assert len(broker.records()) == stored
    assert len(broker.entries()) == stored


@pytest.mark.parametrize("path", BOTH_PATHS)
@pytest.mark.parametrize("code", ALL_FORMS)
async def test_an_empty_batch_is_refused(broker: Wired, code: RequestCode, path: str) -> None:
    warm(broker)
    client: Client = getattr(broker, path)

    answers = client.exchange(send_request(code, b"", batch="true"), send_request(opaque=2))

    assert [answer.code for answer in answers] == [ResponseCode.MESSAGE_ILLEGAL, 0]
    assert "empty" in (answers[0].remark or "")
    assert len(broker.records()) == 2
    assert not client.closed


@pytest.mark.parametrize("path", BOTH_PATHS)
@pytest.mark.parametrize(
    "wrong",
    [
        (0, 0),
        (0, -1),
        (0, 21),
        (0, 2**31 - 1),
        (0, -(2**31)),
        (16, -1),
        (16, 2**31 - 1),
        (16, 5),
        (16, 7),
        (16, -(2**31)),
    ],
)
async def test_lengths_that_lie_store_nothing(
    broker: Wired, wrong: tuple[int, int], path: str
) -> None:
    warm(broker)
    batch = bytearray(inner_batch())
    struct.pack_into(">i", batch, wrong[0], wrong[1])

    answer = getattr(broker, path).ask(send_request(RequestCode.SEND_BATCH_MESSAGE, bytes(batch)))

    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert len(broker.records()) == 1
    assert len(broker.entries()) == 1


@pytest.mark.parametrize("path", BOTH_PATHS)
@pytest.mark.parametrize(
    ("own", "shared", "stored"),
    [
        (b"", "", CLUSTER),
        (b"A\x01b", "", b"A\x01b\x02" + CLUSTER),
        (b"A\x01b\x02", "", b"A\x01b\x02" + CLUSTER),
        (b"A\x01b", "X\x01y", b"A\x01b\x02X\x01y\x02" + CLUSTER),
        (b"A\x01b\x02", "X\x01y\x02", b"A\x01b\x02X\x01y\x02" + CLUSTER),
        (b"", "X\x01y", b"X\x01y\x02" + CLUSTER),
    ],
)
async def test_the_messages_of_a_batch_get_its_properties_behind_their_own(
    broker: Wired, own: bytes, shared: str, stored: bytes, path: str
) -> None:
    warm(broker)
    batch = encode_inner_message(b"x", own) * 2
    request = send_request(RequestCode.SEND_BATCH_MESSAGE, batch, properties=shared)

    assert getattr(broker, path).ask(request).code == 0
    assert [record.raw_properties for record in broker.records()[1:]] == [stored, stored]


@pytest.mark.parametrize("path", BOTH_PATHS)
@pytest.mark.parametrize("excess", [1, 2, 30_000, 32_780])
async def test_a_batchs_properties_never_pass_what_a_record_holds(
    broker: Wired, excess: int, path: str
) -> None:
    warm(broker)
    client: Client = getattr(broker, path)
    longest = 32767 - len(CLUSTER) - 1 - len("A\x01")
    fitting = encode_inner_message(b"x", b"A\x01" + b"x" * longest)
    own = b"A\x01" + b"x" * (longest + excess)
    too_long = struct.pack(">iiiii", 23 + len(own), 0, 0, 0, 1) + b"x"
    too_long += struct.pack(">H", len(own)) + own

    assert client.ask(send_request(RequestCode.SEND_BATCH_MESSAGE, fitting)).code == 0
    refused = client.ask(send_request(RequestCode.SEND_BATCH_MESSAGE, fitting + too_long))
    both = client.ask(
        send_request(
            RequestCode.SEND_BATCH_MESSAGE, fitting, properties="B\x01" + "x" * (32767 - 30)
        )
    )

    for answer in (refused, both):
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "properties" in (answer.remark or "")
    assert [len(record.raw_properties) for record in broker.records()[1:]] == [32767]


@pytest.mark.parametrize("code", SINGLE)
@pytest.mark.parametrize("batch", ["true", "TRUE", "True"])
async def test_a_batch_may_come_in_any_send(broker: Wired, code: RequestCode, batch: str) -> None:
    warm(broker)
    for client in (broker.fast, broker.slow):
        answer = client.ask(send_request(code, inner_batch(), batch=batch))
        assert answer.ext_fields["msgId"].count(",") == 2
    assert [record.body for record in broker.records()[1:4]] == [b"body 0", b"body 1", b"body 2"]


async def test_a_send_batch_that_is_none_is_one_message(broker: Wired) -> None:
    warm(broker)
    for client in (broker.fast, broker.slow):
        answer = client.ask(send_request(RequestCode.SEND_BATCH_MESSAGE, b"plain", batch="false"))
        assert answer.code == ResponseCode.SUCCESS
    assert [record.body for record in broker.records()[1:]] == [b"plain", b"plain"]


# Requests of no use


def header_of(code: RequestCode, **changes: Any) -> dict[str, Any]:
    header = {
        "code": int(code),
        "language": "JAVA",
        "version": 407,
        "opaque": 1,
        "flag": 0,
        "extFields": send_fields(code),
        "serializeTypeCurrentRPC": "JSON",
    }
    for name, value in changes.items():
        if value is ...:
            del header[name]
        else:
            header[name] = value
    return header


@pytest.mark.parametrize("code", ALL_FORMS)
@pytest.mark.parametrize(
    "changes",
    [
        {"opaque": "1"},
        {"opaque": None},
        {"opaque": 1.5},
        {"opaque": [1]},
        {"flag": "0"},
        {"flag": None},
        {"flag": 0.0},
        {"flag": 2**40},
        {"version": "x"},
        {"version": 2**31},
        {"extFields": []},
        {"extFields": "x"},
        {"extFields": 1},
        {"language": 12},
        {"remark": {"a": 1}},
    ],
)
async def test_a_frame_with_a_bad_header_is_stored_at_most_once(
    broker: Wired, code: RequestCode, changes: dict[str, Any]
) -> None:
    """Whatever is wrong with it: an answer or a closed connection, never an exception."""
    warm(broker)

    answers = broker.fast.exchange(raw_frame(header_of(code, **changes), body_for(code)))

    stored = len(broker.records()) - 1
    assert stored <= 1
    assert len(broker.entries()) == stored + 1
    if answers:
        assert (answers[0].code == ResponseCode.SUCCESS) == (stored == 1)
    else:
        assert broker.fast.closed
        assert stored == 0


@pytest.mark.parametrize("code", ALL_FORMS)
async def test_an_opaque_beyond_32_bits_closes_the_connection(
    broker: Wired, code: RequestCode
) -> None:
    warm(broker)
    for opaque in (2**31, -(2**31) - 1, 2**63):
        client = broker.connect()
        assert client.exchange(raw_frame(header_of(code, opaque=opaque), body_for(code))) == []
        assert client.closed
    assert len(broker.records()) == 1


@pytest.mark.parametrize("code", ALL_FORMS)
async def test_a_request_without_an_opaque_counts_as_zero(broker: Wired, code: RequestCode) -> None:
    warm(broker)

    answer = broker.fast.ask(raw_frame(header_of(code, opaque=...), body_for(code)))

    assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, 0)
    assert len(broker.records()) == 2


@pytest.mark.parametrize("code", ALL_FORMS)
async def test_a_request_without_fields_is_refused(broker: Wired, code: RequestCode) -> None:
    warm(broker)
    for fields in (..., None, {}):
        answer = broker.fast.ask(raw_frame(header_of(code, extFields=fields), body_for(code)))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "missing" in (answer.remark or "")
    assert len(broker.records()) == 1


@pytest.mark.parametrize("code", ALL_FORMS)
@pytest.mark.parametrize(
    "name", ["topic", "defaultTopic", "queueId", "sysFlag", "bornTimestamp", "flag"]
)
async def test_a_missing_field_is_named(broker: Wired, code: RequestCode, name: str) -> None:
    warm(broker)

    answer = broker.fast.ask(send_request(code, body_for(code), **{name: None}))

    if answer.code != ResponseCode.SUCCESS:
        assert "missing" in (answer.remark or "")
        assert len(broker.records()) == 1
    else:
        # The hot path does not read what it does not need.
        assert name in ("defaultTopic", "flag")
        assert name != "flag" or code == RequestCode.SEND_BATCH_MESSAGE


NUMBERS = ("queueId", "sysFlag", "bornTimestamp", "flag", "reconsumeTimes")


#: Each message of a batch has its own flag: the hot path does not read the request's.
FORMS_AND_NUMBERS = [
    (code, name)
    for code in ALL_FORMS
    for name in NUMBERS
    if (code, name) != (RequestCode.SEND_BATCH_MESSAGE, "flag")
]
NO_NUMBERS = (
    "",
    "x",
    " 1",
    "1 ",
    "1_0",
    "0x1",
    "1.0",
    "\u0661",
    "9" * 20,
    "-" + "9" * 20,
    "9" * 5000,
)


@pytest.mark.parametrize(("code", "name"), FORMS_AND_NUMBERS)
async def test_numbers_that_are_none_are_refused_on_either_path(
    broker: Wired, code: RequestCode, name: str
) -> None:
    warm(broker)
    for value in NO_NUMBERS:
        request = send_request(code, body_for(code), **{name: value})
        for client in (broker.fast, broker.slow):
            answer = client.ask(request)
            assert answer.code == ResponseCode.SYSTEM_ERROR, value
            assert "field" in (answer.remark or "")
    assert len(broker.records()) == 1


@pytest.mark.parametrize(("code", "name"), FORMS_AND_NUMBERS)
async def test_numbers_that_their_field_cannot_hold_are_refused(
    broker: Wired, code: RequestCode, name: str
) -> None:
    warm(broker)
    bits = 63 if name == "bornTimestamp" else 31
    for value in (2**bits, -(2**bits) - 0x40):
        for client in (broker.fast, broker.slow):
            answer = client.ask(send_request(code, body_for(code), **{name: str(value)}))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "out of range" in (answer.remark or "")
    assert len(broker.records()) == 1


@pytest.mark.parametrize(("code", "name"), FORMS_AND_NUMBERS)
async def test_numbers_may_come_unquoted(broker: Wired, code: RequestCode, name: str) -> None:
    """`header_json` promises it; fractions are no integers all the same."""
    warm(broker)
    wire = dict(zip(send_fields(RequestCode.SEND_MESSAGE), send_fields(code), strict=True))
    for value, expected in ((1, 0), (1.5, ResponseCode.SYSTEM_ERROR)):
        fields: dict[str, Any] = {**send_fields(code), wire[name]: value}
        frame = raw_frame(header_of(code, extFields=fields), body_for(code))
        assert broker.fast.ask(frame).code == expected, value


async def test_a_batch_that_says_so_with_an_unquoted_boolean_is_one(broker: Wired) -> None:
    warm(broker)
    for code in ALL_FORMS:
        wire = "batch" if code == RequestCode.SEND_MESSAGE else "m"
        fields: dict[str, Any] = {**send_fields(code), wire: True}
        answer = broker.fast.ask(raw_frame(header_of(code, extFields=fields), inner_batch()))
        assert answer.ext_fields["msgId"].count(",") == 2


@pytest.mark.parametrize("name", ["topic", "properties", "reconsumeTimes", "batch"])
@pytest.mark.parametrize("code", ALL_FORMS)
async def test_fields_of_any_type_store_at_most_one_whole_record(
    broker: Wired, code: RequestCode, name: str
) -> None:
    warm(broker)
    wire = dict(zip(send_fields(RequestCode.SEND_MESSAGE), send_fields(code), strict=True))
    for value in (None, True, 5, [1], {"a": "b"}):
        before = len(broker.records())
        fields: dict[str, Any] = {**send_fields(code), wire[name]: value}
        answer = broker.fast.ask(
            raw_frame(header_of(code, extFields=fields), body_for(RequestCode.SEND_BATCH_MESSAGE))
        )
        assert len(broker.records()) == before + (answer.code == ResponseCode.SUCCESS)


async def test_what_came_before_a_bad_frame_is_answered(broker: Wired) -> None:
    """It is stored: a client that is not told would send it again."""
    warm(broker)
    bad = raw_frame(header_of(RequestCode.SEND_MESSAGE_V2, opaque="x"), b"body")

    answers = broker.fast.exchange(send_request(opaque=1), send_request(opaque=2), bad)

    assert [answer.opaque for answer in answers] == [1, 2]
    assert broker.fast.closed
    assert len(broker.records()) == 3


async def test_hostile_input_leaves_no_traceback(
    broker: Wired, caplog: pytest.LogCaptureFixture
) -> None:
    warm(broker)
    batch = inner_batch()[:-5]
    with caplog.at_level(logging.INFO):
        broker.fast.exchange(
            send_request(RequestCode.SEND_BATCH_MESSAGE, batch),
            send_request(RequestCode.SEND_BATCH_MESSAGE, batch[:7]),
            send_request(bornTimestamp="x"),
            send_request(properties="DELAY\x01x"),
        )
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("code", ALL_FORMS)
async def test_long_properties_do_not_fill_the_memory(broker: Wired, code: RequestCode) -> None:
    """They are refused, and nothing keeps them."""
    warm(broker)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(100):
            properties = f"TAGS\x01{number}" + "x" * 200_000
            answer = broker.fast.ask(send_request(code, body_for(code), properties=properties))
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2 * MIB


# A store that cannot take messages


@pytest.mark.parametrize("code", ALL_FORMS)
async def test_a_stopped_store_refuses(tmp_path: Path, code: RequestCode) -> None:
    broker = Wired(tmp_path)
    warm(broker)
    broker.store.stop()

    answer = broker.fast.ask(send_request(code, body_for(code)))

    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "service not available" in (answer.remark or "")
    await broker.close()


# One message, two paths

names = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=9)
some_properties = st.dictionaries(
    st.one_of(names, st.sampled_from(["TAGS", "KEYS", "WAIT", "MYTAGS", "CLUSTER", "UNIQ_KEY"])),
    names,
    max_size=5,
).filter(lambda found: not found.keys() & {"DELAY", "TRAN_MSG"})
int32 = st.integers(-(2**31), 2**31 - 1)


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    code=st.sampled_from(ALL_FORMS),
    encoding=st.sampled_from(BOTH_ENCODINGS),
    properties=some_properties,
    ending=st.sampled_from(["", "\x02"]),
    inner=some_properties,
    inner_ending=st.sampled_from([b"", b"\x02"]),
    flag=int32,
    sys_flag=int32.map(lambda value: value & ~0xC),
    born=st.integers(-(2**63), 2**63 - 1),
    reconsume=st.one_of(st.none(), int32.map(str)),
    body=st.binary(max_size=60),
)
async def test_both_paths_store_the_same(
    broker: Wired,
    code: RequestCode,
    encoding: Encoding,
    properties: dict[str, str],
    ending: str,
    inner: dict[str, str],
    inner_ending: bytes,
    flag: int,
    sys_flag: int,
    born: int,
    reconsume: str | None,
    body: bytes,
) -> None:
    warm(broker)
    before = broker.store.max_physical_offset
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    if code == RequestCode.SEND_BATCH_MESSAGE:
        own = "\x02".join(f"{name}\x01{value}" for name, value in inner.items()).encode()
        body = encode_inner_message(body, own + inner_ending if own else b"", flag)
    request = send_request(
        code,
        body,
        encoding=encoding,
        properties=text + ending if text else "",
        flag=str(flag),
        sysFlag=str(sys_flag),
        bornTimestamp=str(born),
        reconsumeTimes=reconsume,
    )

    fast = broker.fast.ask(request)
    slow = broker.slow.ask(request)

    assert (fast.code, slow.code) == (0, 0)
    first, second = broker.records(before)
    assert second == replace(
        first,
        queue_offset=first.queue_offset + 1,
        physical_offset=second.physical_offset,
        store_timestamp=second.store_timestamp,
        message_id=second.message_id,
    )
    queue = broker.store.queue("T", 1)
    codes = {(queue.entry(queue.next_offset - back) or (0, 0, -1))[2] for back in (1, 2)}
    assert codes == {java_hash(first.properties.get("TAGS", ""))}
    fields = fast.ext_fields.keys()
    assert fields == slow.ext_fields.keys()
