"""Message traces: record in a separate topic what a client does with each message.

With the option `trace`, a producer or consumer has a `MessageTrace` among its hooks. It writes
Java's records (`protocol.message.trace`), gathers them for half a second or up to 118,000
characters, and sends them with a producer of its own. `mqadmin queryMsgTraceById` finds them.

Invariants:
1. Traces never delay or fail the messages they describe. Records that cannot be sent are dropped;
   the log counts them, at most once every half minute.
2. Memory is bounded: at most 64 trace messages are in flight.
3. `close` sends the gathered records, within three seconds.

Unlike Java's client, this one writes a record for each message of a batch, so that every id is
found, and keeps the ids of a trace message below the limit of its properties; Java's client loses
all records of a trace message beyond that limit. Runs on the client's event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, Protocol

from pyromq.base.clock import now_ms
from pyromq.client.hooks import Consuming, EndingTransaction, Sending
from pyromq.client.message import MAX_GROUP, Message, create_unique_key
from pyromq.client.options import ClientOptions, Settings
from pyromq.client.received import ReceivedMessage
from pyromq.client.results import SendResult, SendStatus
from pyromq.protocol.errors import RocketMQError
from pyromq.protocol.message.properties import KEY_SEPARATOR, MSG_REGION, TRACE_ON
from pyromq.protocol.message.trace import (
    DEFAULT_REGION,
    ConsumeBegun,
    ConsumeEnded,
    ConsumeReturn,
    Published,
    TracedType,
    TraceRecord,
    TransactionEnded,
)

logger = logging.getLogger(__name__)

_GROUP_PREFIX: Final = "_INNER_TRACE_PRODUCER"
_LINGER_SECONDS: Final = 0.5
_MAX_CHARACTERS: Final = 118_000
#: Bytes of ids and keys in the properties of a trace message.
_MAX_KEY_BYTES: Final = 30_000
_MAX_IN_FLIGHT: Final = 64
_SEND_TIMEOUT_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 3.0
_LOG_SECONDS: Final = 30.0
#: Key of the trace's data in the notes of a hook's argument.
_NOTE: Final = "pyromq.trace"

_numbers = itertools.count(1)


class TraceRole(Enum):
    """The kind of client that a trace describes."""

    PRODUCE = "PRODUCE"
    CONSUME = "CONSUME"


class TraceProducer(Protocol):
    """The methods of `Producer` that send traces."""

    async def start(self) -> None:
        """Get ready to send."""

    async def send(self, message: Message) -> SendResult:
        """Store one message."""

    async def close(self) -> None:
        """Finish the sends in flight."""


def message_trace(
    settings: Settings,
    group: str,
    role: TraceRole,
    new_producer: Callable[..., TraceProducer],
    *,
    consume_timeout: float = 900.0,
) -> MessageTrace | None:
    """Create the trace for a client's settings, or return None if they ask for none.

    The client adds it to its hooks, starts it and closes it. `new_producer` creates the producer
    that sends the records. A handler that takes longer than `consume_timeout` seconds is recorded
    as timed out.
    """
    topic = settings.trace_topic
    if topic is None:
        return None
    options: ClientOptions = {
        "client_ip": settings.client_ip,
        "unit_name": settings.unit_name,
        "access_key": settings.access_key,
        "secret_key": settings.secret_key,
        "security_token": settings.security_token,
        "tls": settings.tls,
        "request_timeout": settings.request_timeout,
        "heartbeat_interval": settings.heartbeat_interval,
        "route_interval": settings.route_interval,
    }
    name = f"{_GROUP_PREFIX}-{group}-{role.value}-{next(_numbers)}"
    producer = new_producer(
        settings.name_servers,
        group=name[:MAX_GROUP],
        send_timeout=_SEND_TIMEOUT_SECONDS,
        **options,
    )
    return MessageTrace(topic, producer, consume_timeout)


def is_trace_group(group: str) -> bool:
    """Return whether this is the group of a producer that sends traces."""
    return group.startswith(_GROUP_PREFIX)


class MessageTrace:
    """A hook that writes trace records and sends them."""

    def __init__(self, topic: str, producer: TraceProducer, consume_timeout: float = 900.0) -> None:
        self._topic = topic
        self._producer = producer
        self._consume_timeout = consume_timeout
        self._texts: list[str] = []
        self._keys: dict[str, None] = {}
        self._characters = self._key_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._sends: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lost = 0
        self._logged_at: float | None = None

    # Lifecycle

    async def start(self) -> None:
        """Start the producer of the records."""
        self._loop = asyncio.get_running_loop()
        await self._producer.start()

    async def close(self) -> None:
        """Send the gathered records, within three seconds."""
        self._flush()
        self._loop = None
        if self._sends:
            _, late = await asyncio.wait(self._sends, timeout=_CLOSE_SECONDS)
            for send in late:
                send.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if self._lost:
            logger.warning("lost %d trace records", self._lost)
            self._lost = 0
        await self._producer.close()

    # Hooks

    def before_send(self, sending: Sending) -> None:
        """Note the time of sending."""
        sending.notes[_NOTE] = now_ms()

    def after_send(self, sending: Sending) -> None:
        """Write a `Pub` record for each message, if its broker accepts traces."""
        if sending.queue.topic.startswith(self._topic):
            return
        cost = _milliseconds_since(sending.began)
        is_single = len(sending.messages) == 1
        for message, result in zip(sending.messages, sending.results, strict=False):
            if not result.trace_on:
                return
            self._add(
                Published(
                    time=sending.notes[_NOTE],
                    region=result.region_id or DEFAULT_REGION,
                    group=sending.group,
                    topic=message.topic,
                    msg_id=result.msg_id,
                    tags=message.tags,
                    keys=_keys_of(message),
                    store_host=sending.address,
                    body_length=sending.body_size if is_single else len(message.body),
                    cost=cost,
                    type=_type_of(message, is_half=sending.is_half),
                    offset_msg_id=result.offset_msg_id,
                    success=result.status is SendStatus.SEND_OK,
                ),
            )

    def before_consume(self, consuming: Consuming) -> None:
        """Write a `SubBefore` record for each message."""
        traced = [
            message
            for message in consuming.messages
            if message.all_properties.get(TRACE_ON) != "false"
        ]
        if not traced:
            return
        request_id, now = create_unique_key(), now_ms()
        consuming.notes[_NOTE] = (request_id, traced)
        # As in Java, a request has one region: its last message's.
        region = traced[-1].all_properties.get(MSG_REGION, "")
        for message in traced:
            self._add(
                ConsumeBegun(
                    time=now,
                    region=region,
                    group=consuming.group,
                    request_id=request_id,
                    msg_id=message.msg_id,
                    retries=message.reconsume_times,
                    keys=message.keys,
                )
            )

    def after_consume(self, consuming: Consuming) -> None:
        """Write a `SubAfter` record for each message with a `SubBefore` record."""
        note = consuming.notes.get(_NOTE)
        if note is None:
            return
        request_id, traced = note
        cost, now = _milliseconds_since(consuming.began) // len(consuming.messages), now_ms()
        code = self._return_of(consuming)
        for message in traced:
            self._add(
                ConsumeEnded(
                    request_id=request_id,
                    msg_id=message.msg_id,
                    cost=cost,
                    success=consuming.success,
                    keys=message.keys,
                    code=code,
                    time=now,
                    group=consuming.group,
                )
            )

    def end_transaction(self, ending: EndingTransaction) -> None:
        """Write an `EndTransaction` record."""
        message = ending.message
        if message.topic.startswith(self._topic):
            return
        self._add(
            TransactionEnded(
                time=now_ms(),
                region=_region_of(message),
                group=ending.group,
                topic=message.topic,
                msg_id=ending.msg_id,
                tags=message.tags,
                keys=_keys_of(message),
                store_host=ending.address,
                type=TracedType.COMMIT,
                transaction_id=ending.transaction_id,
                state=ending.state.value,
                from_check=ending.is_checked,
            )
        )

    def _return_of(self, consuming: Consuming) -> ConsumeReturn:
        if time.monotonic() - consuming.began >= self._consume_timeout:
            return ConsumeReturn.TIME_OUT
        if consuming.error is not None:
            return ConsumeReturn.EXCEPTION
        return ConsumeReturn.SUCCESS if consuming.success else ConsumeReturn.FAILED

    # Gathering and sending

    def _add(self, record: TraceRecord) -> None:
        if self._loop is None:
            return  # not started yet, or closed
        text = record.encode()
        words = [record.msg_id, *record.keys.split(KEY_SEPARATOR)]
        if _size_of(words) > _MAX_KEY_BYTES:
            words = [record.msg_id]
        new = [word for word in words if word and word not in self._keys]
        if self._key_bytes + _size_of(new) > _MAX_KEY_BYTES:
            self._flush()
            new = [word for word in words if word]
        self._texts.append(text)
        self._keys.update(dict.fromkeys(new))
        self._characters += len(text)
        self._key_bytes += _size_of(new)
        if self._characters >= _MAX_CHARACTERS:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(_LINGER_SECONDS, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        texts, keys = self._texts, self._keys
        if not texts:
            return
        self._texts, self._keys = [], {}
        self._characters = self._key_bytes = 0
        if len(self._sends) >= _MAX_IN_FLIGHT:
            self._note_lost(len(texts), f"{_MAX_IN_FLIGHT} trace messages in flight")
            return
        message = Message(self._topic, "".join(texts).encode(), keys=list(keys))
        send = asyncio.get_running_loop().create_task(self._send(message, len(texts)))
        self._sends.add(send)
        send.add_done_callback(self._sends.discard)

    async def _send(self, message: Message, count: int) -> None:
        try:
            await self._producer.send(message)
        except asyncio.CancelledError:
            self._lost += count
            raise
        except RocketMQError as error:
            self._note_lost(count, error)
        except Exception as error:
            # A bug here must not fail the application.
            logger.exception("sending trace records failed")
            self._note_lost(count, error)

    def _note_lost(self, count: int, reason: object) -> None:
        self._lost += count
        now = time.monotonic()
        if self._logged_at is None or now - self._logged_at >= _LOG_SECONDS:
            logger.warning("lost %d trace records: %s", self._lost, reason)
            self._logged_at = now
            self._lost = 0


def _milliseconds_since(began: float) -> int:
    return int((time.monotonic() - began) * 1000)


def _keys_of(message: Message | ReceivedMessage) -> str:
    keys = message.keys
    return keys if isinstance(keys, str) else KEY_SEPARATOR.join(keys)


def _region_of(message: Message | ReceivedMessage) -> str:
    found = message.system_properties if isinstance(message, ReceivedMessage) else {}
    return found.get(MSG_REGION) or DEFAULT_REGION


def _type_of(message: Message, *, is_half: bool) -> TracedType:
    if message.delay_level:
        return TracedType.DELAY
    return TracedType.HALF if is_half else TracedType.NORMAL


def _size_of(words: Iterable[str]) -> int:
    return sum(len(word.encode()) + 1 for word in words)
