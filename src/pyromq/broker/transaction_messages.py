"""The forms of a transactional message, and how each is derived from another.

    sent        topic T, TRAN_MSG=true, PGROUP=the producer's group
    half        RMQ_SYS_TRANS_HALF_TOPIC queue 0, with REAL_TOPIC and REAL_QID
    put back    a copy of the half, with TRANSACTION_CHECK_TIMES, and its origin (the queue offset
                of the first half) as TRAN_PREPARED_QUEUE_OFFSET
    committed   topic T as sent; the record says COMMIT and holds the offset of its half
    end         RMQ_SYS_TRANS_OP_HALF_TOPIC queue 0, tag `d`, body: a half's queue offset as text
    abandoned   TRANS_CHECK_MAX_TIME_TOPIC, from where an administrator may put it back

All forms are as RocketMQ 4.9.7 stores them, so that either broker can take over from the other.
Deliberate differences:
1. A half that is put back keeps flag and reconsumeTimes, which RocketMQ drops.
2. It always names its origin, so that a restart finds the transaction of an end. RocketMQ names it
   only if the producer set a check immunity time, and reads it only then.
3. Putting back a half within its check immunity time does not count as a check.
4. A delay begins with the commit. (RocketMQ's clients remove it from transactional messages, and
   its broker loses a half that has one.)
5. The age of a half counts from its store time if the producer's clock is ahead.

Pure. Called by `handlers.send_slow`, `handlers.transaction` and `services.transaction_check`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, auto
from typing import Final

from pyromq.base.memo import Memo
from pyromq.broker.inner_messages import InnerMessage
from pyromq.protocol.java.wire_types import INT32, INT64, IntegerRange, parse_integer
from pyromq.protocol.message.message_id import HOST_SIZE_V4, encode_host, encode_message_id
from pyromq.protocol.message.properties import (
    CHECK_IMMUNITY,
    CHECK_TIMES,
    DELAY,
    PREPARED_QUEUE_OFFSET,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TAGS,
    TRAN_MSG,
    UNIQ_KEY,
    encode_properties,
)
from pyromq.protocol.message.record import MessageRecord, encode_record
from pyromq.protocol.message.sysflag import (
    BORN_HOST_V6,
    HOST_MASK,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
)
from pyromq.protocol.names import (
    TRANSACTION_GIVEN_UP_TOPIC,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_TOPIC,
)
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import FLAG_ONEWAY, RemotingCommand
from pyromq.protocol.wire.headers import CheckTransactionStateRequestHeader

HALF_QUEUE: Final = 0
OP_QUEUE: Final = 0
GIVEN_UP_QUEUES: Final = 1
#: The tag of every end.
_REMOVED: Final = "d"
_MS_PER_SECOND: Final = 1_000
_MS_PER_HOUR: Final = 3_600_000


#: Addresses and ports of producers as in records.
_hosts: Memo[tuple[str, int], bytes] = Memo(lambda host: encode_host(*host))


class HalfError(ValueError):
    """A record is not a half message, or lacks properties of one."""


class Verdict(Enum):
    """What a check does with an open half."""

    #: Too young, as are all halves after it.
    WAIT = auto()
    #: Within its check immunity time: put it back.
    LEAVE = auto()
    #: Put it back and ask the producer.
    ASK = auto()
    GIVE_UP = auto()


def is_transactional(properties: dict[str, str]) -> bool:
    """Return whether a sent message must be stored as a half."""
    return properties.get(TRAN_MSG, "").lower() == "true"


def half_of(sent: InnerMessage) -> InnerMessage:
    """Return the half of a sent message."""
    properties = {
        **sent.properties,
        REAL_TOPIC: sent.topic,
        REAL_QUEUE_ID: str(sent.queue_id),
    }
    # Left over if the application forwards a message that it received.
    properties.pop(PREPARED_QUEUE_OFFSET, None)
    properties.pop(CHECK_TIMES, None)
    return replace(
        sent,
        topic=TRANSACTION_HALF_TOPIC,
        queue_id=HALF_QUEUE,
        properties=properties,
        sys_flag=sent.sys_flag & ~TRANSACTION_MASK,
    )


def origin_of(half: MessageRecord) -> int:
    """Return the queue offset of the transaction's first half."""
    origin = _number(half, PREPARED_QUEUE_OFFSET, -1)
    return origin if 0 <= origin < half.queue_offset else half.queue_offset


def committed(half: MessageRecord) -> InnerMessage:
    """Return the message that consumers get. Raises HalfError.

    As in RocketMQ its properties include TRAN_MSG, REAL_TOPIC and REAL_QID.
    """
    topic, queue_id = _real_target(half)
    properties = dict(half.properties)
    properties.pop(PREPARED_QUEUE_OFFSET, None)
    if DELAY in properties:  # its delivery must not store it as a half again
        properties.pop(TRAN_MSG, None)
    return InnerMessage(
        topic,
        queue_id,
        half.body,
        properties,
        half.flag,
        half.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT,
        half.born_timestamp,
        _hosts[half.born_host],
        half.reconsume_times,
        prepared_offset=half.physical_offset,
    )


def end_of(half: int, store_host: bytes, now: int) -> InnerMessage:
    """Return the record that marks the half at this queue offset as committed or rolled back."""
    return InnerMessage(
        TRANSACTION_OP_TOPIC,
        OP_QUEUE,
        str(half).encode(),
        {TAGS: _REMOVED},
        born_timestamp=now,
        born_host=store_host,
    )


def ended_half(end: MessageRecord) -> int | None:
    """Return the queue offset that an end names, or None."""
    if end.properties.get(TAGS) != _REMOVED:
        return None
    try:
        return parse_integer(end.body.decode(), INT64)
    except ValueError:
        return None


def judge(
    half: MessageRecord, now: int, *, time_out: int, check_max: int, reserved_hours: int
) -> Verdict:
    """Decide what to do with an open half now; `time_out` is in milliseconds."""
    if checks_of(half) >= max(check_max, 1):
        return Verdict.GIVE_UP
    if now - half.born_timestamp > reserved_hours * _MS_PER_HOUR:
        return Verdict.GIVE_UP
    age = now - min(half.born_timestamp, half.store_timestamp)
    immunity = _number(half, CHECK_IMMUNITY, -1) if CHECK_IMMUNITY in half.properties else None
    if immunity is None:
        return Verdict.WAIT if age < time_out else Verdict.ASK
    limit = immunity * _MS_PER_SECOND if immunity >= 0 else time_out
    return Verdict.LEAVE if age < limit else Verdict.ASK


def checks_of(half: MessageRecord) -> int:
    """Return how often the producer was asked about a half."""
    return _number(half, CHECK_TIMES, 0)


def put_back(half: MessageRecord, *, checks: int) -> InnerMessage:
    """Return a copy of the half for the end of the half queue."""
    counted = {CHECK_TIMES: str(checks)} if checks else {}
    return _again(half, TRANSACTION_HALF_TOPIC, {**_origin_property(half), **counted})


def given_up(half: MessageRecord) -> InnerMessage:
    """Return a copy of the half for the topic of abandoned halves."""
    return _again(half, TRANSACTION_GIVEN_UP_TOPIC, _origin_property(half))


def resumed(record: MessageRecord) -> InnerMessage:
    """Return the half that an abandoned one becomes. Raises HalfError for any other record."""
    if record.topic not in (TRANSACTION_GIVEN_UP_TOPIC, TRANSACTION_HALF_TOPIC):
        raise HalfError(f"message {record.message_id} of topic {record.topic} is not a half")
    _real_target(record)
    message = _again(record, TRANSACTION_HALF_TOPIC, {CHECK_TIMES: "0"})
    if record.topic == TRANSACTION_HALF_TOPIC:
        message.properties.update(_origin_property(record))
    elif _number(record, PREPARED_QUEUE_OFFSET, -1) < 0:
        # RocketMQ abandoned it without naming its origin; its offset is of another queue.
        message.properties.pop(PREPARED_QUEUE_OFFSET, None)
    return message


def question(
    half: MessageRecord, queue_offset: int, physical_offset: int, store_host: bytes, *, checks: int
) -> RemotingCommand:
    """Return CHECK_TRANSACTION_STATE, which asks how a transaction ended. Raises HalfError.

    The offsets are those of the half after it was put back; the producer returns them with its
    answer. The body is the message as the producer sent it.
    """
    topic, queue_id = _real_target(half)
    unique_key = half.properties.get(UNIQ_KEY)
    born_host, own_host = _hosts[half.born_host], _hosts[half.store_host]
    host_bits = (BORN_HOST_V6 if len(born_host) != HOST_SIZE_V4 else 0) | (
        STORE_HOST_V6 if len(own_host) != HOST_SIZE_V4 else 0
    )
    message = replace(
        half,
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=half.sys_flag & ~HOST_MASK | host_bits,
        raw_properties=encode_properties({**half.properties, CHECK_TIMES: str(checks)}),
    )
    header = CheckTransactionStateRequestHeader(
        tran_state_table_offset=queue_offset,
        commit_log_offset=physical_offset,
        msg_id=unique_key,
        transaction_id=unique_key,
        offset_msg_id=encode_message_id(store_host, physical_offset),
    )
    return RemotingCommand(
        RequestCode.CHECK_TRANSACTION_STATE,
        ext_fields=header.encode(),
        body=encode_record(message, born_host, own_host),
        flag=FLAG_ONEWAY,
    )


def producer_group(half: MessageRecord) -> str:
    """Return the producer group, whose members know the outcome; empty if the half has none."""
    return half.properties.get(PRODUCER_GROUP, "")


def _again(half: MessageRecord, topic: str, more: dict[str, str]) -> InnerMessage:
    return InnerMessage(
        topic,
        HALF_QUEUE,
        half.body,
        {**half.properties, **more},
        half.flag,
        half.sys_flag,
        half.born_timestamp,
        _hosts[half.born_host],
        half.reconsume_times,
    )


def _origin_property(half: MessageRecord) -> dict[str, str]:
    return {PREPARED_QUEUE_OFFSET: str(origin_of(half))}


def _real_target(half: MessageRecord) -> tuple[str, int]:
    """Return the topic and queue that a half was sent to. Raises HalfError."""
    topic = half.properties.get(REAL_TOPIC)
    queue_id = _number(half, REAL_QUEUE_ID, -1, INT32)
    if topic is None or queue_id < 0:
        raise HalfError(f"half message {half.message_id} lacks the topic and queue it was sent to")
    return topic, queue_id


def _number(half: MessageRecord, name: str, default: int, limits: IntegerRange = INT64) -> int:
    """Return a property as a number, or the default if it is missing or not a number."""
    try:
        return parse_integer(half.properties[name], limits)
    except (KeyError, ValueError):
        return default
