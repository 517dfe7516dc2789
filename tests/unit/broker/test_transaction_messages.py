from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyromq.broker.inner_messages import InnerMessage
from pyromq.broker.transaction_messages import (
    HalfError,
    Verdict,
    checks_of,
    committed,
    end_of,
    ended_half,
    given_up,
    half_of,
    is_transactional,
    judge,
    origin_of,
    producer_group,
    put_back,
    question,
    resumed,
)
from pyromq.protocol.message.message_id import encode_host, encode_message_id
from pyromq.protocol.message.properties import encode_properties
from pyromq.protocol.message.record import MessageRecord, decode_record
from pyromq.protocol.message.sysflag import (
    COMPRESSED,
    HOST_MASK,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
)
from pyromq.protocol.names import (
    TRANSACTION_GIVEN_UP_TOPIC,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_TOPIC,
)
from pyromq.protocol.wire.codes import RequestCode

BORN = 1_700_000_000_000
HOUR = 3_600_000
STORE_HOST = encode_host("127.0.0.1", 10911)
PROPERTIES = {
    "TRAN_MSG": "true",
    "PGROUP": "producers",
    "UNIQ_KEY": "unique",
    "TAGS": "red",
    "REAL_TOPIC": "T",
    "REAL_QID": "3",
}


def half(**values: Any) -> MessageRecord:
    """A half as it is read; `more` are further properties, None takes one away."""
    more = values.pop("more", {})
    properties = {k: v for k, v in {**PROPERTIES, **more}.items() if v is not None}
    filled: dict[str, Any] = {
        "topic": TRANSACTION_HALF_TOPIC,
        "queue_id": 0,
        "queue_offset": 17,
        "physical_offset": 4711,
        "body": b"body",
        "properties": properties,
        "flag": 7,
        "sys_flag": COMPRESSED,
        "born_timestamp": BORN,
        "born_host": ("10.0.0.1", 40404),
        "store_timestamp": BORN + 5,
        "store_host": ("127.0.0.1", 10911),
        "reconsume_times": 2,
        "prepared_transaction_offset": 0,
        "body_crc": 0,
        "size": 0,
        "message_id": "id",
        "raw_properties": encode_properties(properties),
        **values,
    }
    return MessageRecord(**filled)


def sent(**values: Any) -> InnerMessage:
    message = InnerMessage(
        "T",
        3,
        b"body",
        {"TRAN_MSG": "true", "PGROUP": "producers"},
        7,
        COMPRESSED | TRANSACTION_PREPARED,
        BORN,
        encode_host("10.0.0.1", 40404),
        2,
    )
    return replace(message, **values)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("true", True), ("True", True), ("false", False), ("1", False), (" true", False)],
)
def test_only_true_makes_a_transaction(value: str, expected: bool) -> None:
    assert is_transactional({"TRAN_MSG": value}) is expected
    assert not is_transactional({})


def test_a_half_knows_where_it_was_sent_to() -> None:
    assert half_of(sent()) == sent(
        topic=TRANSACTION_HALF_TOPIC,
        queue_id=0,
        sys_flag=COMPRESSED,
        properties={
            "TRAN_MSG": "true",
            "PGROUP": "producers",
            "REAL_TOPIC": "T",
            "REAL_QID": "3",
        },
    )


def test_a_half_has_nothing_of_an_earlier_life() -> None:
    properties = {
        "TRAN_MSG": "true",
        "REAL_TOPIC": "elsewhere",
        "REAL_QID": "9",
        "TRAN_PREPARED_QUEUE_OFFSET": "1",
        "TRANSACTION_CHECK_TIMES": "14",
    }
    message = sent(properties=properties)
    assert half_of(message).properties == {"TRAN_MSG": "true", "REAL_TOPIC": "T", "REAL_QID": "3"}
    assert message.properties == properties, "the message as sent is left alone"


def test_a_committed_message_is_the_one_that_was_sent() -> None:
    message = committed(half(more={"TRAN_PREPARED_QUEUE_OFFSET": "4"}))
    assert (message.topic, message.queue_id, message.body) == ("T", 3, b"body")
    assert (message.flag, message.reconsume_times) == (7, 2)
    assert message.sys_flag == COMPRESSED | TRANSACTION_COMMIT
    assert (message.born_timestamp, message.born_host) == (BORN, encode_host("10.0.0.1", 40404))
    assert message.prepared_offset == 4711
    assert message.properties == PROPERTIES


def test_a_delayed_message_is_no_half_when_it_is_delivered() -> None:
    message = committed(half(more={"DELAY": "3"}))
    assert message.properties["DELAY"] == "3"
    assert not is_transactional(message.properties)


@pytest.mark.parametrize(
    "more",
    [
        {"REAL_TOPIC": None},
        {"REAL_QID": None},
        {"REAL_QID": "three"},
        {"REAL_QID": "-1"},
        {"REAL_QID": "4294967296"},
    ],
)
def test_a_half_without_its_target_is_refused(more: dict[str, str | None]) -> None:
    for use in (
        committed,
        resumed,
        lambda record: question(record, 1, 2, STORE_HOST, checks=1),
    ):
        with pytest.raises(HalfError, match="lacks the topic and queue"):
            use(half(more=more))


def test_an_end_names_its_half() -> None:
    message = end_of(17, STORE_HOST, BORN)
    assert (message.topic, message.queue_id) == (TRANSACTION_OP_TOPIC, 0)
    assert (message.body, message.properties) == (b"17", {"TAGS": "d"})
    assert (message.born_host, message.born_timestamp) == (STORE_HOST, BORN)
    assert ended_half(half(body=b"17", properties=message.properties)) == 17


@pytest.mark.parametrize("body", [b"", b"x", b"1.0", b"\xff", b"9" * 30, b" 1"])
def test_what_is_no_end_names_nothing(body: bytes) -> None:
    assert ended_half(half(body=body, properties={"TAGS": "d"})) is None
    assert ended_half(half(body=b"1", properties={"TAGS": "e"})) is None
    assert ended_half(half(body=b"1", properties={})) is None


@pytest.mark.parametrize(
    ("value", "origin"),
    [(None, 17), ("3", 3), ("0", 0), ("17", 17), ("18", 17), ("-1", 17), ("x", 17)],
)
def test_the_origin_lies_before_the_half(value: str | None, origin: int) -> None:
    assert origin_of(half(more={"TRAN_PREPARED_QUEUE_OFFSET": value})) == origin


def verdict(
    record: MessageRecord, age: int, *, check_max: int = 15, reserved_hours: int = 72
) -> Verdict:
    return judge(
        record, BORN + age, time_out=6000, check_max=check_max, reserved_hours=reserved_hours
    )


def test_a_half_is_asked_about_when_it_is_old_enough() -> None:
    assert verdict(half(), 0) is Verdict.WAIT
    assert verdict(half(), 5999) is Verdict.WAIT
    assert verdict(half(), 6000) is Verdict.ASK


def test_a_producer_whose_clock_is_ahead_is_not_asked_earlier() -> None:
    ahead = half(born_timestamp=BORN + 60_000, store_timestamp=BORN)
    assert verdict(ahead, 5999) is Verdict.WAIT
    assert verdict(ahead, 6000) is Verdict.ASK


@pytest.mark.parametrize(
    ("seconds", "limit"), [("10", 10_000), ("-1", 6000), ("x", 6000), ("0", 0)]
)
def test_a_producer_may_ask_not_to_be_asked(seconds: str, limit: int) -> None:
    immune = half(more={"CHECK_IMMUNITY_TIME_IN_SECONDS": seconds})
    if limit:
        assert verdict(immune, limit - 1) is Verdict.LEAVE
    assert verdict(immune, limit) is Verdict.ASK


@pytest.mark.parametrize(
    ("checks", "check_max", "expected"),
    [
        (None, 15, Verdict.ASK),
        ("14", 15, Verdict.ASK),
        ("15", 15, Verdict.GIVE_UP),
        ("99", 15, Verdict.GIVE_UP),
        ("0", 1, Verdict.ASK),
        ("1", 1, Verdict.GIVE_UP),
        (None, 0, Verdict.ASK),
        ("1", 0, Verdict.GIVE_UP),
        ("many", 15, Verdict.ASK),
    ],
)
def test_after_so_many_questions_it_is_given_up(
    checks: str | None, check_max: int, expected: Verdict
) -> None:
    record = half(more={"TRANSACTION_CHECK_TIMES": checks})
    assert verdict(record, 6000, check_max=check_max) is expected


def test_a_half_older_than_messages_are_kept_is_given_up() -> None:
    assert verdict(half(), 72 * HOUR) is Verdict.ASK
    assert verdict(half(), 72 * HOUR + 1) is Verdict.GIVE_UP


def test_what_is_put_back_is_the_half_with_its_origin() -> None:
    message = put_back(half(), checks=1)
    assert (message.topic, message.queue_id, message.body) == (TRANSACTION_HALF_TOPIC, 0, b"body")
    assert (message.flag, message.sys_flag, message.reconsume_times) == (7, COMPRESSED, 2)
    assert (message.born_timestamp, message.born_host) == (BORN, encode_host("10.0.0.1", 40404))
    assert message.properties == {
        **PROPERTIES,
        "TRANSACTION_CHECK_TIMES": "1",
        "TRAN_PREPARED_QUEUE_OFFSET": "17",
    }
    again = put_back(half(queue_offset=30, properties=message.properties), checks=2)
    assert again.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "17"
    assert again.properties["TRANSACTION_CHECK_TIMES"] == "2"
    assert "TRANSACTION_CHECK_TIMES" not in put_back(half(), checks=0).properties


def test_what_was_given_up_can_be_resumed() -> None:
    checked = half(more={"TRANSACTION_CHECK_TIMES": "15", "TRAN_PREPARED_QUEUE_OFFSET": "4"})
    message = given_up(checked)
    assert (message.topic, message.queue_id) == (TRANSACTION_GIVEN_UP_TOPIC, 0)
    assert message.properties == checked.properties
    record = half(topic=TRANSACTION_GIVEN_UP_TOPIC, queue_offset=0, properties=message.properties)
    again = resumed(record)
    assert (again.topic, again.queue_id) == (TRANSACTION_HALF_TOPIC, 0)
    assert again.properties == {**checked.properties, "TRANSACTION_CHECK_TIMES": "0"}


def test_what_rocketmq_gave_up_has_no_origin() -> None:
    record = half(topic=TRANSACTION_GIVEN_UP_TOPIC, queue_offset=5)
    assert "TRAN_PREPARED_QUEUE_OFFSET" not in resumed(record).properties


def test_nothing_else_can_be_resumed() -> None:
    with pytest.raises(HalfError, match="of topic T is not a half"):
        resumed(half(topic="T"))


@pytest.mark.parametrize("store_host", ["127.0.0.1", "2001:db8::1"])
def test_a_question_carries_the_message_as_it_was_sent(store_host: str) -> None:
    bits = STORE_HOST_V6 if ":" in store_host else 0
    record = half(store_host=(store_host, 10911), sys_flag=COMPRESSED | bits)
    command = question(record, 30, 9000, STORE_HOST, checks=2)
    assert (command.code, command.is_oneway) == (RequestCode.CHECK_TRANSACTION_STATE, True)
    assert command.ext_fields == {
        "tranStateTableOffset": "30",
        "commitLogOffset": "9000",
        "msgId": "unique",
        "transactionId": "unique",
        "offsetMsgId": encode_message_id(STORE_HOST, 9000),
    }
    asked = decode_record(command.body)
    assert (asked.topic, asked.queue_id, asked.queue_offset) == ("T", 3, 30)
    assert (asked.physical_offset, asked.size) == (9000, len(command.body))
    assert (asked.body, asked.flag, asked.reconsume_times) == (b"body", 7, 2)
    assert asked.sys_flag & ~HOST_MASK == COMPRESSED
    assert not asked.sys_flag & TRANSACTION_MASK
    assert asked.born_host == ("10.0.0.1", 40404)
    assert asked.store_host == (store_host, 10911)
    assert asked.properties == {**PROPERTIES, "TRANSACTION_CHECK_TIMES": "2"}


def test_a_mapped_address_fits_its_bits() -> None:
    """A record of another broker may carry an IPv4 address as an IPv6 one."""
    record = half(store_host=("::ffff:10.0.0.9", 1), sys_flag=STORE_HOST_V6)
    asked = decode_record(question(record, 1, 2, STORE_HOST, checks=1).body)
    assert asked.store_host == ("10.0.0.9", 1)


def test_a_message_without_a_unique_key_is_asked_about_too() -> None:
    command = question(half(more={"UNIQ_KEY": None}), 1, 2, STORE_HOST, checks=1)
    assert command.ext_fields.keys() == {"tranStateTableOffset", "commitLogOffset", "offsetMsgId"}


def test_whom_to_ask_and_how_often_it_was_done() -> None:
    assert producer_group(half()) == "producers"
    assert producer_group(half(more={"PGROUP": None})) == ""
    assert checks_of(half()) == 0
    assert checks_of(half(more={"TRANSACTION_CHECK_TIMES": "3"})) == 3
