"""Sends on the slow path: retries, transactions, delays, properties, batches."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers.send import SendHandlers
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.properties import decode_properties
from pyromq.protocol.message.record import encode_inner_message
from pyromq.protocol.message.sysflag import COMPRESSED
from pyromq.protocol.names import SCHEDULE_TOPIC, TRANSACTION_HALF_TOPIC
from pyromq.protocol.wire.bodies import SubscriptionGroupConfig, TopicConfig
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.connection import Connection
from tests.support.requests import send_request
from tests.unit.broker.assembled import AssembledBroker, Client
from tests.unit.broker.handlers.sends import (
    ALL_FORMS,
    ALL_PATHS,
    CLUSTER,
    MIB,
    SINGLE,
    body_for,
    inner_batch,
    warm,
)

# Retries and dead letters


@pytest.mark.parametrize("code", SINGLE)
async def test_retries_end_at_the_groups_limit(broker: AssembledBroker, code: RequestCode) -> None:
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
    assert broker.stats.dead_letters == {("g", "%RETRY%g"): 2}


@pytest.mark.parametrize(
    ("version", "limit", "topic"),
    [(407, "1", "%DLQ%g"), (407, "9", "%RETRY%g"), (407, "-1", "%DLQ%g"), (120, "1", "%RETRY%g")],
)
async def test_a_clients_own_limit_counts_from_3_4_9_on(
    broker: AssembledBroker, version: int, limit: str, topic: str
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


async def test_a_dead_letter_topic_is_announced_before_the_answer(broker: AssembledBroker) -> None:
    announced: list[bool] = []

    async def announce() -> None:
        announced.append("%DLQ%g" in broker.topics)

    sends = SendHandlers(dataclasses.replace(broker.parts, announce=announce)).slow
    broker.topics.update(TopicConfig("%RETRY%g", 1, 1))
    for known in (False, True):
        request = send_request(topic="%RETRY%g", queueId="0", reconsumeTimes="16")
        answer = sends.send_one(broker.fast.connection, request)
        if not isinstance(answer, RemotingCommand):
            assert not known
            assert answer is not None
            answer = await answer
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
    assert announced == [True]


@pytest.mark.parametrize(("topic", "flag"), [("T", 1), ("%RETRY%g", 2)])
async def test_topics_created_by_a_unit_are_flagged(
    broker: AssembledBroker, topic: str, flag: int
) -> None:
    request = send_request(topic=topic, queueId="0", unitMode="true")
    assert broker.fast.ask(request).code == ResponseCode.SUCCESS
    created = broker.topics.get(topic)
    assert created is not None
    assert created.topic_sys_flag == flag


async def test_traces_are_accepted_without_a_trace_topic(
    broker: AssembledBroker,
) -> None:
    answer = broker.fast.ask(send_request(topic="RMQ_SYS_TRACE_TOPIC", queueId="0"))
    assert answer.code == ResponseCode.SUCCESS
    assert broker.records()[0].topic == "RMQ_SYS_TRACE_TOPIC"


async def test_a_dead_letter_is_not_delayed(broker: AssembledBroker) -> None:
    dead = send_request(
        topic="%RETRY%g", queueId="0", reconsumeTimes="16", properties="DELAY\x0118\x02KEYS\x01k"
    )

    answer = broker.fast.ask(dead)

    (record,) = broker.records()
    assert (answer.code, answer.ext_fields["queueId"]) == (ResponseCode.SUCCESS, "0")
    assert record.topic == "%DLQ%g"
    assert "DELAY" not in record.properties
    assert record.properties["KEYS"] == "k"


async def test_a_retry_of_an_unknown_group_is_refused(tmp_path: Path) -> None:
    broker = AssembledBroker(
        tmp_path, BrokerConfig(broker_ip1="127.0.0.1", auto_create_subscription_group=False)
    )

    answer = broker.fast.ask(send_request(topic="%RETRY%g", queueId="0"))

    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "subscription group not exist, g" in (answer.remark or "")
    assert broker.records() == []
    await broker.close()


async def test_a_retry_topic_needs_no_template(broker: AssembledBroker) -> None:
    answer = broker.fast.ask(send_request(topic="%RETRY%g", queueId="0", defaultTopic="none"))

    topic = broker.topics.get("%RETRY%g")
    assert answer.code == ResponseCode.SUCCESS
    assert topic is not None
    assert topic.write_queue_nums == 1


# Flags


@pytest.mark.parametrize("path", ALL_PATHS)
@pytest.mark.parametrize("code", ALL_FORMS)
@pytest.mark.parametrize("host_bits", [0x10, 0x20, 0x30])
async def test_host_bits_of_a_client_never_reach_a_record(
    broker: AssembledBroker, code: RequestCode, host_bits: int, path: str
) -> None:
    warm(broker)
    request = send_request(code, body_for(code), sysFlag=str(host_bits | COMPRESSED))

    assert getattr(broker, path).ask(request).code == ResponseCode.SUCCESS
    assert [record.sys_flag for record in broker.records()[1:]] == [COMPRESSED]
    assert getattr(broker, path).ask(send_request(code, body_for(code))).code == 0
    assert broker.records()[-1].body == b"body"


@pytest.mark.parametrize("path", ALL_PATHS)
@pytest.mark.parametrize("code", ALL_FORMS)
@pytest.mark.parametrize("bits", [0x4, 0xC, -1])
async def test_transaction_bits_without_a_transaction_are_refused(
    broker: AssembledBroker, code: RequestCode, bits: int, path: str
) -> None:
    """A record with them has no consume-queue entry after a recovery."""
    warm(broker)

    answer = getattr(broker, path).ask(send_request(code, body_for(code), sysFlag=str(bits)))

    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "transaction" in (answer.remark or "")
    assert len(broker.records()) == 1


async def test_the_bit_of_a_committed_message_is_harmless(broker: AssembledBroker) -> None:
    assert broker.fast.ask(send_request(sysFlag="8", queueId="0")).code == 0
    assert [entry[:3] for entry in broker.entries()] == [("T", 0, 0)]


@pytest.mark.parametrize("path", ALL_PATHS)
@pytest.mark.parametrize("code", SINGLE)
@pytest.mark.parametrize(("value", "sys_flag"), [("true", 5), ("TRUE", 4), ("true", 1)])
async def test_a_transactional_message_is_stored_as_a_half(
    broker: AssembledBroker, code: RequestCode, value: str, sys_flag: int, path: str
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
    broker = AssembledBroker(tmp_path, config)
    warm(broker)

    answer = broker.fast.ask(send_request(code, properties="TRAN_MSG\x01true\x02", sysFlag="4"))

    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the broker[127.0.0.1] sending transaction message is forbidden"
    assert len(broker.records()) == 1
    await broker.close()


async def test_a_retry_of_an_old_client_is_not_a_transaction(broker: AssembledBroker) -> None:
    answer = broker.fast.ask(
        send_request(
            properties="TRAN_MSG\x01true\x02DELAY\x013", sysFlag="4", reconsumeTimes="1", topic="T"
        )
    )

    record = broker.records()[-1]
    assert answer.code == ResponseCode.SUCCESS
    assert (record.topic, record.queue_id, record.sys_flag) == (SCHEDULE_TOPIC, 2, 0)


async def test_a_half_with_an_invalid_delay_is_refused(broker: AssembledBroker) -> None:
    answer = broker.fast.ask(send_request(properties="TRAN_MSG\x01true\x02DELAY\x01soon"))

    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "DELAY: 'soon' is not a number",
    )
    assert broker.records() == []


async def test_tran_msg_false_is_not_a_transaction(broker: AssembledBroker) -> None:
    for _ in range(2):
        assert broker.fast.ask(send_request(properties="TRAN_MSG\x01false")).code == 0


@pytest.mark.parametrize("path", ALL_PATHS)
@pytest.mark.parametrize("code", SINGLE)
@pytest.mark.parametrize(("asked", "level"), [("1", 1), ("18", 18), ("99", 18)])
async def test_a_delayed_message_waits_under_its_level(
    broker: AssembledBroker, code: RequestCode, path: str, asked: str, level: int
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
    broker: AssembledBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = send_request(topic="Late", properties="DELAY\x011\x02TAGS\x01t")
    assert broker.fast.ask(request).code == ResponseCode.SUCCESS
    slow: list[object] = []
    monkeypatch.setattr(Connection, "serve", lambda *arguments: slow.append(arguments))

    answer = broker.fast.ask(request)

    assert slow == []
    assert (answer.code, answer.ext_fields["queueOffset"]) == (ResponseCode.SUCCESS, "1")
    first, second = broker.records()
    assert (second.topic, second.queue_id) == (SCHEDULE_TOPIC, 0)
    assert (second.body, second.raw_properties) == (first.body, first.raw_properties)
    # A delay of zero takes the slow path.
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
async def test_everyday_messages_take_the_hot_path(
    broker: AssembledBroker, monkeypatch: pytest.MonkeyPatch, properties: str
) -> None:
    warm(broker)
    slow: list[object] = []
    monkeypatch.setattr(Connection, "serve", lambda *arguments: slow.append(arguments))
    assert broker.fast.ask(send_request(properties=properties)).code == ResponseCode.SUCCESS
    assert slow == []


async def test_a_chunk_of_plain_and_delayed_messages_keeps_their_queues_apart(
    broker: AssembledBroker,
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
async def test_a_delay_that_is_not_a_number_is_refused(
    broker: AssembledBroker, code: RequestCode, level: str
) -> None:
    warm(broker)
    for properties in (f"DELAY\x01{level}", f"A\x01b\x02DELAY\x01{level}\x02"):
        answer = broker.fast.ask(send_request(code, body_for(code), properties=properties))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "delay" in (answer.remark or "").lower()
    assert len(broker.records()) == 1
    assert not broker.fast.closed


@pytest.mark.parametrize("level", ["1", "18", "99"])
async def test_a_batch_cannot_be_delayed(broker: AssembledBroker, level: str) -> None:
    warm(broker)
    code = RequestCode.SEND_BATCH_MESSAGE
    answer = broker.fast.ask(send_request(code, body_for(code), properties=f"DELAY\x01{level}"))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert len(broker.records()) == 1


@pytest.mark.parametrize("level", ["0", "-1"])
async def test_a_delay_of_zero_is_not_a_delay(broker: AssembledBroker, level: str) -> None:
    for client in (broker.fast, broker.slow, broker.fast):
        assert client.ask(send_request(properties=f"DELAY\x01{level}")).code == 0


# Properties


@pytest.mark.parametrize("path", ALL_PATHS)
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
    broker: AssembledBroker, code: RequestCode, sent: str | None, stored: bytes, path: str
) -> None:
    warm(broker)

    assert getattr(broker, path).ask(send_request(code, properties=sent)).code == 0
    assert broker.records()[-1].raw_properties == stored


@pytest.mark.parametrize("path", ALL_PATHS)
@pytest.mark.parametrize(
    "sent", ["CLUSTER\x01other", "CLUSTER\x01other\x02A\x01b", "A\x01b\x02CLUSTER\x01other\x02"]
)
async def test_an_existing_cluster_property_is_replaced(
    broker: AssembledBroker, sent: str, path: str
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
    broker: AssembledBroker, code: RequestCode, properties: str, tags: str
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
    broker: AssembledBroker, own: bytes, shared: str, tags: str
) -> None:
    warm(broker)
    request = send_request(
        RequestCode.SEND_BATCH_MESSAGE, encode_inner_message(b"x", own) * 2, properties=shared
    )

    for client in (broker.fast, broker.slow):
        assert client.ask(request).code == ResponseCode.SUCCESS
    assert {record.properties["TAGS"] for record in broker.records()[1:]} == {tags}
    assert {entry[3] for entry in broker.entries()[1:]} == {java_hash(tags)}


@pytest.mark.parametrize("path", ALL_PATHS)
@pytest.mark.parametrize("code", SINGLE)
async def test_properties_are_refused_when_the_cluster_makes_them_too_long(
    broker: AssembledBroker, code: RequestCode, path: str
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
async def test_bodies_up_to_the_limit_are_accepted(tmp_path: Path, code: RequestCode) -> None:
    broker = AssembledBroker(tmp_path, mapped_file_size_commit_log=16 * MIB)
    warm(broker)
    frame = len(body_for(code, b""))
    limit = 4 * MIB - (frame if code == RequestCode.SEND_BATCH_MESSAGE else 0)

    for length, expected in ((0, 0), (limit, 0), (limit + 1, ResponseCode.MESSAGE_ILLEGAL)):
        for client in (broker.fast, broker.slow):
            assert client.ask(send_request(code, body_for(code, bytes(length)))).code == expected

    assert [len(r.body) for r in broker.records()[1:]] == [0, 0, limit, limit]
    await broker.close()


async def test_a_send_that_finds_no_buffer_may_go_to_another_broker(tmp_path: Path) -> None:
    """With a transient store pool; accepted again once a buffer is free."""
    broker = AssembledBroker(
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


@pytest.mark.parametrize("path", ALL_PATHS)
async def test_no_truncation_of_a_batch_stores_a_torn_message(
    broker: AssembledBroker, path: str
) -> None:
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
            assert "malformed" in (answer.remark or "")
        assert not client.closed
    assert len(broker.records()) == stored
    assert len(broker.entries()) == stored


@pytest.mark.parametrize("path", ALL_PATHS)
@pytest.mark.parametrize("code", ALL_FORMS)
async def test_an_empty_batch_is_refused(
    broker: AssembledBroker, code: RequestCode, path: str
) -> None:
    warm(broker)
    client: Client = getattr(broker, path)

    answers = client.exchange(send_request(code, b"", batch="true"), send_request(opaque=2))

    assert [answer.code for answer in answers] == [ResponseCode.MESSAGE_ILLEGAL, 0]
    assert "empty" in (answers[0].remark or "")
    assert len(broker.records()) == 2
    assert not client.closed


@pytest.mark.parametrize("path", ALL_PATHS)
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
async def test_wrong_lengths_store_nothing(
    broker: AssembledBroker, wrong: tuple[int, int], path: str
) -> None:
    warm(broker)
    batch = bytearray(inner_batch())
    struct.pack_into(">i", batch, wrong[0], wrong[1])

    answer = getattr(broker, path).ask(send_request(RequestCode.SEND_BATCH_MESSAGE, bytes(batch)))

    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert len(broker.records()) == 1
    assert len(broker.entries()) == 1


@pytest.mark.parametrize("path", ALL_PATHS)
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
async def test_messages_of_a_batch_get_its_properties_after_their_own(
    broker: AssembledBroker, own: bytes, shared: str, stored: bytes, path: str
) -> None:
    warm(broker)
    batch = encode_inner_message(b"x", own) * 2
    request = send_request(RequestCode.SEND_BATCH_MESSAGE, batch, properties=shared)

    assert getattr(broker, path).ask(request).code == 0
    assert [record.raw_properties for record in broker.records()[1:]] == [stored, stored]


@pytest.mark.parametrize("path", ALL_PATHS)
@pytest.mark.parametrize("excess", [1, 2, 30_000, 32_780])
async def test_properties_of_a_batch_never_exceed_a_record(
    broker: AssembledBroker, excess: int, path: str
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
async def test_any_send_may_carry_a_batch(
    broker: AssembledBroker, code: RequestCode, batch: str
) -> None:
    warm(broker)
    for client in (broker.fast, broker.slow):
        answer = client.ask(send_request(code, inner_batch(), batch=batch))
        assert answer.ext_fields["msgId"].count(",") == 2
    assert [record.body for record in broker.records()[1:4]] == [b"body 0", b"body 1", b"body 2"]


async def test_a_send_batch_without_the_flag_is_one_message(broker: AssembledBroker) -> None:
    warm(broker)
    for client in (broker.fast, broker.slow):
        answer = client.ask(send_request(RequestCode.SEND_BATCH_MESSAGE, b"plain", batch="false"))
        assert answer.code == ResponseCode.SUCCESS
    assert [record.body for record in broker.records()[1:]] == [b"plain", b"plain"]
