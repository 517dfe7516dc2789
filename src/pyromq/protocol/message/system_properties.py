"""System properties: names that RocketMQ gives a meaning, and what each of them may be used for.

A message's properties come from the application, the sending client and the brokers, in one
table. Brokers act on the latter two: TRAN_MSG=true makes a half message that no consumer sees,
DELAY puts a message aside. They describe one message on its way through one topic; a copy must
not inherit them.

Rules
1. An application sets none of `SYSTEM_PROPERTIES`, except `REQUESTABLE`; `fault_of` says why not
   and what to use instead.
2. A copy for another topic takes `user_properties` only.
3. A message that goes back to be consumed again keeps its identity: `retry_properties`.

The table holds every name of 4.9.7's and 5.x's MessageConst that a client or a broker acts on.
Pure. Used by producers, consumers and the Spark sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from pyromq.protocol.message import properties as names

#: The ordering key, from which later versions of RocketMQ compute the queue.
SHARDING_KEY: Final = "__SHARDINGKEY"


class SystemProperty(NamedTuple):
    """What a system property is for."""

    #: What to use instead of setting it by hand, or who sets it.
    advice: str
    #: Whether an application may set it: a wish to the broker that has no argument of its own.
    is_requestable: bool = False
    #: Whether a message keeps it when a consumer sends it back.
    survives_retry: bool = False


_BROKER: Final = SystemProperty("brokers set it")
_CLIENT: Final = SystemProperty("clients set it")
_TRANSACTION: Final = SystemProperty("use TransactionProducer.send_in_transaction")
_REPLY: Final = SystemProperty("use Producer.request and reply_to", survives_retry=True)
_WISH: Final = SystemProperty("a wish to the broker", is_requestable=True)

_TABLE: Final[Mapping[str, SystemProperty]] = {
    # Fields of a message under other names.
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
    names.CHECK_IMMUNITY: _WISH,
    # Delays and retries.
    names.REAL_TOPIC: _BROKER,
    names.REAL_QUEUE_ID: _BROKER,
    names.RETRY_TOPIC: _BROKER,
    names.RECONSUME_TIME: _BROKER,
    names.MAX_RECONSUME_TIMES: _BROKER,
    "CONSUME_START_TIME": _CLIENT,
    "DLQ_ORIGIN_TOPIC": _BROKER,
    "DLQ_ORIGIN_MESSAGE_ID": _BROKER,
    "TIMER_DELAY_SEC": _WISH,
    "TIMER_DELAY_MS": _WISH,
    "TIMER_DELIVER_MS": _WISH,
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
    names.WAIT: _WISH,
    "INNER_MULTI_DISPATCH": _WISH,
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
    # Traces.
    names.MSG_REGION: _BROKER,
    names.TRACE_ON: _BROKER,
}

#: Every name that is not the application's.
SYSTEM_PROPERTIES: Final = frozenset(_TABLE)
#: Those that an application may set all the same; they are not copied either.
REQUESTABLE: Final = frozenset(name for name, use in _TABLE.items() if use.is_requestable)
#: Those that a plain send refuses.
REFUSED: Final = SYSTEM_PROPERTIES - REQUESTABLE
_DROPPED_ON_RETRY: Final = frozenset(name for name, use in _TABLE.items() if not use.survives_retry)


def user_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the application's own properties."""
    return {name: value for name, value in properties.items() if name not in SYSTEM_PROPERTIES}


def system_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that clients and brokers have set."""
    return {name: value for name, value in properties.items() if name in SYSTEM_PROPERTIES}


def retry_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return what a message keeps that is sent to a retry topic: its content and identity."""
    return {name: value for name, value in properties.items() if name not in _DROPPED_ON_RETRY}


def fault_of(name: str) -> str | None:
    """Return why an application cannot set this property, None when it can."""
    if name not in REFUSED:
        return None
    return f"property {name!r} belongs to the system: {_TABLE[name].advice}"
