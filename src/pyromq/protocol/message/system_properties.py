"""The properties that RocketMQ reserves, and who may set or copy each.

One table holds the properties of the application, the sending client and the brokers. Brokers act
on the last two: TRAN_MSG=true makes a half message that no consumer sees, DELAY delays a message.
They describe one message in one topic, so a copy must not inherit them.

Rules
1. An application sets none of `SYSTEM_PROPERTIES` except `REQUESTABLE`. `fault_of` says why, and
   what to use instead.
2. A copy for another topic takes `user_properties` only.
3. A message that is sent back for a retry keeps its identity: `retry_properties`.

The table has every name in MessageConst of 4.9.7 and 5.x that a client or a broker acts on. Pure.
Used by producers, consumers and the Spark sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from pyromq.protocol.message import properties as names

#: The ordering key. Later versions of RocketMQ compute the queue from it.
SHARDING_KEY: Final = "__SHARDINGKEY"


class SystemProperty(NamedTuple):
    """The rules for one system property."""

    #: The argument to use instead, or who sets the property.
    advice: str
    #: Whether an application may set it, because no argument does.
    is_requestable: bool = False
    #: Whether a message keeps it when a consumer sends the message back.
    survives_retry: bool = False


_BROKER: Final = SystemProperty("brokers set it")
_CLIENT: Final = SystemProperty("clients set it")
_TRANSACTION: Final = SystemProperty("use TransactionProducer.send_in_transaction")
_REPLY: Final = SystemProperty("use Producer.request and reply_to", survives_retry=True)
_REQUEST: Final = SystemProperty("applications may set it", is_requestable=True)

_TABLE: Final[Mapping[str, SystemProperty]] = {
    # Fields of a message.
    names.KEYS: SystemProperty("use the message's field keys", survives_retry=True),
    names.TAGS: SystemProperty("use the message's field tags", survives_retry=True),
    names.DELAY: SystemProperty("use the message's field delay_level"),
    SHARDING_KEY: SystemProperty("use the message's field ordering_key", survives_retry=True),
    # Identity.
    names.UNIQ_KEY: SystemProperty("each send makes its own", survives_retry=True),
    "EXTEND_UNIQ_INFO": SystemProperty("clients set it", survives_retry=True),
    names.ORIGIN_MESSAGE_ID: SystemProperty("brokers set it", survives_retry=True),
    "INSTANCE_ID": SystemProperty("clients set it", survives_retry=True),
    "BUYER_ID": SystemProperty("clients set it", survives_retry=True),
    # Transactions.
    names.TRAN_MSG: _TRANSACTION,
    names.PRODUCER_GROUP: _TRANSACTION,
    names.PREPARED_QUEUE_OFFSET: _BROKER,
    names.CHECK_TIMES: _BROKER,
    "__transactionId__": _CLIENT,
    names.CHECK_IMMUNITY: _REQUEST,
    # Delays and retries.
    names.REAL_TOPIC: _BROKER,
    names.REAL_QUEUE_ID: _BROKER,
    names.RETRY_TOPIC: _BROKER,
    names.RECONSUME_TIME: _BROKER,
    names.MAX_RECONSUME_TIMES: _BROKER,
    "CONSUME_START_TIME": _CLIENT,
    "DLQ_ORIGIN_TOPIC": _BROKER,
    "DLQ_ORIGIN_MESSAGE_ID": _BROKER,
    "TIMER_DELAY_SEC": _REQUEST,
    "TIMER_DELAY_MS": _REQUEST,
    "TIMER_DELIVER_MS": _REQUEST,
    "TIMER_DELAY_LEVEL": _BROKER,
    "TIMER_ENQUEUE_MS": _BROKER,
    "TIMER_DEQUEUE_MS": _BROKER,
    "TIMER_ROLL_TIMES": _BROKER,
    "TIMER_OUT_MS": _BROKER,
    "TIMER_DEL_UNIQKEY": _BROKER,
    # Request-reply.
    names.CORRELATION_ID: _REPLY,
    names.REPLY_TO_CLIENT: _REPLY,
    names.TTL: _REPLY,
    names.MESSAGE_TYPE: _REPLY,
    names.CLUSTER: SystemProperty("brokers set it", survives_retry=True),
    names.ARRIVE_TIME: _CLIENT,
    names.PUSH_REPLY_TIME: _BROKER,
    # Storage and delivery.
    names.WAIT: _REQUEST,
    "INNER_MULTI_DISPATCH": _REQUEST,
    "INNER_MULTI_QUEUE_OFFSET": _BROKER,
    "INNER_NUM": _BROKER,
    "INNER_BASE": _BROKER,
    "MIN_OFFSET": _BROKER,
    "MAX_OFFSET": _BROKER,
    "POP_CK": _BROKER,
    "POP_CK_OFFSET": _BROKER,
    "1ST_POP_TIME": _BROKER,
    "PROPERTY_FORWARD_QUEUE_ID": _BROKER,
    "DUP_INFO": _BROKER,
    "__CRC32#": _BROKER,
    "__BORNHOST": _BROKER,
    "BORN_TIMESTAMP": _BROKER,
    "__RMQ.TRANSIENT.TOPIC_SYS_FLAG": _CLIENT,
    "__RMQ.TRANSIENT.GROUP_SYS_FLAG": _CLIENT,
    "TRANSFER_FLAG": _BROKER,
    "CORRECTION_FLAG": _BROKER,
    "MQ2_FLAG": _BROKER,
    # Copies of dead letters.
    names.RESENT_FROM: SystemProperty("the admin API sets it", survives_retry=True),
    # Traces.
    names.MSG_REGION: _BROKER,
    names.TRACE_ON: _BROKER,
}

#: Every reserved name.
SYSTEM_PROPERTIES: Final = frozenset(_TABLE)
#: The reserved names that an application may set. Copies do not inherit them either.
REQUESTABLE: Final = frozenset(name for name, use in _TABLE.items() if use.is_requestable)
#: The names that a plain send rejects.
REFUSED: Final = SYSTEM_PROPERTIES - REQUESTABLE
_DROPPED_ON_RETRY: Final = frozenset(name for name, use in _TABLE.items() if not use.survives_retry)


def user_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the application's own properties."""
    return {name: value for name, value in properties.items() if name not in SYSTEM_PROPERTIES}


def system_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that clients and brokers set."""
    return {name: value for name, value in properties.items() if name in SYSTEM_PROPERTIES}


def retry_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that a message keeps in a retry topic: its content and identity."""
    return {name: value for name, value in properties.items() if name not in _DROPPED_ON_RETRY}


def fault_of(name: str) -> str | None:
    """Return why an application may not set this property, or None if it may."""
    if name not in REFUSED:
        return None
    return f"property {name!r} is reserved: {_TABLE[name].advice}"
