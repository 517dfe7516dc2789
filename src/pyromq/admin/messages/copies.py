"""Copies of dead letters: their properties, their stamp, and the requests that send them.

A copy carries the property PYROMQ_RESENT_FROM, its stamp:

    target topic @ broker name of the dead letter @ name of the run @ physical offset

The stamp is the same whenever the same dead letter is resent to the same topic in the same run, so
the copies in the target topic tell which dead letters have been resent. The target is a part of
it because a copy that fails again goes to retry topics with all its properties.

A copy keeps what a retry keeps: content, keys, tags and the producer's id. Its count of retries
begins at 0. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from pyromq.admin.message_view import MessageView
from pyromq.base.clock import now_ms
from pyromq.client.session.routes import TEMPLATE_TOPIC
from pyromq.protocol.message.properties import (
    RESENT_FROM,
    RETRY_TOPIC,
    WAIT,
    WAIT_TRUE,
    encode_properties,
)
from pyromq.protocol.message.record import encode_inner_message
from pyromq.protocol.message.sysflag import COMPRESSED, COMPRESSION_MASK
from pyromq.protocol.message.system_properties import SHARDING_KEY, retry_properties
from pyromq.protocol.names import RETRY_TOPIC_PREFIX
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.headers import SendMessageRequestHeaderV2

#: Messages and bytes of one request. A broker stores a small batch at once.
MAX_BATCH_MESSAGES: Final = 128
MAX_BATCH_BYTES: Final = 1024 * 1024
PRODUCER_GROUP: Final = "PYROMQ_ADMIN_PRODUCER"
#: Set by brokers of 5.x.
_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
_STAMP_START: Final = f"{RESENT_FROM}\x01".encode()
#: Queues of a topic that a broker would create; it exists, so this has no effect.
_TOPIC_QUEUES: Final = 4


def original_topic(message: MessageView) -> str:
    """Return the topic that a dead letter was sent to first, or an empty string."""
    properties = message.properties
    return properties.get(RETRY_TOPIC) or properties.get(_ORIGIN_TOPIC) or ""


def stamp_prefix(target: str, broker_name: str, run: str) -> str:
    """Return the stamp of a broker's dead letters up to the physical offset."""
    return f"{target}@{broker_name}@{run}@"


def resent_offset(prefix: str, properties: Mapping[str, str]) -> int | None:
    """Return the physical offset of the dead letter that a message is a copy of, or None."""
    stamp = properties.get(RESENT_FROM, "")
    number = stamp.removeprefix(prefix)
    if number == stamp or not (number.isascii() and number.isdecimal()):
        return None
    return int(number)


def may_have_stamps(records: bytes) -> bool:
    """Return whether it is worth decoding the records of a pull."""
    return _STAMP_START in records


class Copy(NamedTuple):
    """One request: copies of dead letters for one queue."""

    #: Physical offsets of the dead letters.
    offsets: tuple[int, ...]
    code: RequestCode
    header: SendMessageRequestHeaderV2
    body: bytes


def copies(
    messages: Iterable[MessageView], target: str, prefix: str, broker_name: str, queues: int
) -> Iterator[Copy]:
    """Return the requests that send copies to the first `queues` of a topic at a broker.

    Messages of one ordering key go to one queue, in their order. A retry topic takes no batches,
    and compressed bodies are sent as they are, alone.
    """
    batches: dict[int, list[tuple[MessageView, bytes]]] = {}
    for message in messages:
        properties = copy_properties(message, target, f"{prefix}{message.physical_offset}")
        queue_id = _queue_of(message, queues)
        batch = batches.setdefault(queue_id, [])
        if target.startswith(RETRY_TOPIC_PREFIX) or message.sys_flag & COMPRESSED:
            # What came before it in its queue goes first.
            yield from _flushed(target, broker_name, queue_id, batch)
            yield _single(message, target, broker_name, queue_id, properties)
            continue
        encoded = encode_inner_message(
            message.raw_body, encode_properties(properties), message.flag
        )
        size = sum(len(each) for _, each in batch) + len(encoded)
        if len(batch) >= MAX_BATCH_MESSAGES or (batch and size > MAX_BATCH_BYTES):
            yield from _flushed(target, broker_name, queue_id, batch)
        batch.append((message, encoded))
    for queue_id, batch in batches.items():
        yield from _flushed(target, broker_name, queue_id, batch)


def copy_properties(message: MessageView, target: str, stamp: str) -> dict[str, str]:
    """Return the properties of a copy."""
    properties = retry_properties(message.properties)
    properties[RESENT_FROM] = stamp
    properties[WAIT] = "true"
    if target.startswith(RETRY_TOPIC_PREFIX):
        # Consumers show a retried message under this topic.
        properties[RETRY_TOPIC] = original_topic(message)
    return properties


def _queue_of(message: MessageView, queues: int) -> int:
    key = message.properties.get(SHARDING_KEY)
    if key:
        return zlib.crc32(key.encode()) % queues
    return message.queue_offset // MAX_BATCH_MESSAGES % queues


def _flushed(
    target: str, broker_name: str, queue_id: int, batch: list[tuple[MessageView, bytes]]
) -> Iterator[Copy]:
    if batch:
        yield Copy(
            tuple(message.physical_offset for message, _ in batch),
            RequestCode.SEND_BATCH_MESSAGE,
            _header(target, broker_name, queue_id, WAIT_TRUE, batch=True),
            b"".join(encoded for _, encoded in batch),
        )
        batch.clear()


def _single(
    message: MessageView,
    target: str,
    broker_name: str,
    queue_id: int,
    properties: Mapping[str, str],
) -> Copy:
    return Copy(
        (message.physical_offset,),
        RequestCode.SEND_MESSAGE_V2,
        _header(
            target,
            broker_name,
            queue_id,
            encode_properties(properties).decode(errors="replace"),
            flag=message.flag,
            sys_flag=message.sys_flag & (COMPRESSED | COMPRESSION_MASK),
        ),
        message.raw_body,
    )


def _header(
    target: str,
    broker_name: str,
    queue_id: int,
    properties: str,
    *,
    flag: int = 0,
    sys_flag: int = 0,
    batch: bool = False,
) -> SendMessageRequestHeaderV2:
    return SendMessageRequestHeaderV2(
        producer_group=PRODUCER_GROUP,
        topic=target,
        default_topic=TEMPLATE_TOPIC,
        default_topic_queue_nums=_TOPIC_QUEUES,
        queue_id=queue_id,
        sys_flag=sys_flag,
        born_timestamp=now_ms(),
        flag=flag,
        properties=properties,
        reconsume_times=0,
        batch=batch,
        broker_name=broker_name,
    )
