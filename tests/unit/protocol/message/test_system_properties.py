from __future__ import annotations

import pytest

from pyromq.protocol.message import properties as names
from pyromq.protocol.message.system_properties import (
    REFUSED,
    REQUESTABLE,
    SYSTEM_PROPERTIES,
    fault_of,
    retry_properties,
    system_properties,
    user_properties,
)

#: What Java's Message.putUserProperty of 4.9.7 refuses.
REFUSED_BY_JAVA = """
    ARRIVE_TIME BUYER_ID CLUSTER CONSUME_START_TIME CORRECTION_FLAG CORRELATION_ID DELAY
    INNER_MULTI_QUEUE_OFFSET INSTANCE_ID KEYS MAX_OFFSET MAX_RECONSUME_TIMES MIN_OFFSET MQ2_FLAG
    MSG_REGION MSG_TYPE ORIGIN_MESSAGE_ID PGROUP PUSH_REPLY_TIME REAL_QID REAL_TOPIC
    RECONSUME_TIME REPLY_TO_CLIENT RETRY_TOPIC TAGS TRACE_ON TRANSFER_FLAG TRAN_MSG TTL UNIQ_KEY
    WAIT
"""
#: Names of its MessageConst that it lets applications set.
OTHERS_OF_JAVA = """
    CHECK_IMMUNITY_TIME_IN_SECONDS INNER_MULTI_DISPATCH TRANSACTION_CHECK_TIMES
    TRAN_PREPARED_QUEUE_OFFSET
"""
MIXED = {"colour": "red", "TRAN_MSG": "true", "UNIQ_KEY": "ID", "TAGS": "a", "DELAY": "3"}


def test_every_name_of_java_is_known() -> None:
    refused = set(REFUSED_BY_JAVA.split())
    assert refused | set(OTHERS_OF_JAVA.split()) <= SYSTEM_PROPERTIES
    # WAIT is a setter of Java's messages: here, the property itself.
    assert refused - {"WAIT"} <= REFUSED


def test_every_name_of_ours_is_known() -> None:
    """Fail for a name in `properties` that the table lacks."""
    constants = {
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and value.replace("_", "").isalnum()
    }
    assert constants - {names.REPLY} <= SYSTEM_PROPERTIES


def test_the_sets_fit_together() -> None:
    assert REFUSED | REQUESTABLE == SYSTEM_PROPERTIES
    assert not REFUSED & REQUESTABLE
    assert {"WAIT", "CHECK_IMMUNITY_TIME_IN_SECONDS", "TIMER_DELIVER_MS"} <= REQUESTABLE


def test_properties_are_told_apart() -> None:
    assert user_properties(MIXED) == {"colour": "red"}
    assert user_properties(MIXED) | system_properties(MIXED) == MIXED
    assert retry_properties(MIXED) == {"colour": "red", "UNIQ_KEY": "ID", "TAGS": "a"}


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("TRAN_MSG", "send_in_transaction"),
        ("DELAY", "delay_level"),
        ("KEYS", "field keys"),
        ("CORRELATION_ID", "reply_to"),
        ("REAL_TOPIC", "brokers set it"),
    ],
)
def test_a_refusal_says_what_to_use(name: str, advice: str) -> None:
    assert name in (fault_of(name) or "")
    assert advice in (fault_of(name) or "")
    assert fault_of("colour") is None
    assert fault_of("WAIT") is None
