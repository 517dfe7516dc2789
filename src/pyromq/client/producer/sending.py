"""Encode send requests and decode their responses.

`Outgoing` holds the messages of one request, checked and encoded once for all attempts. `Target` is
a writable queue with a template of the requests to it, so that encoding a header is one `%` format.
Both are plain values; the producer decides on queues and retries.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Sequence
from itertools import count
from typing import Any, Final, NamedTuple, Protocol

import orjson

from pyromq.base.clock import now_ms
from pyromq.client.errors import IllegalMessageError
from pyromq.client.message import (
    MAX_BODY,
    MAX_DELAY_LEVEL,
    UNIQUE_KEY_SIZE,
    Message,
    UniqueKeys,
    check_message,
    check_topic,
    create_unique_key,
    plain_properties,
)
from pyromq.client.results import SendResult, SendStatus
from pyromq.client.session.routes import TEMPLATE_TOPIC
from pyromq.protocol import kernel
from pyromq.protocol.message.properties import (
    MSG_REGION,
    PRODUCER_GROUP,
    TRACE_ON,
    TRAN_MSG,
    WAIT_TRUE,
)
from pyromq.protocol.message.record import INNER_FIXED_SIZE, encode_inner_message
from pyromq.protocol.message.sysflag import COMPRESSED, COMPRESSION_ZLIB, TRANSACTION_PREPARED
from pyromq.protocol.names import RETRY_TOPIC_PREFIX
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import (
    PROTOCOL_VERSION,
    LanguageCode,
    RequestCode,
    ResponseCode,
)
from pyromq.protocol.wire.frame import FLAG_ONEWAY, RawFrame, RemotingCommand, pack_prefix
from pyromq.protocol.wire.headers import SendMessageRequestHeaderV2
from pyromq.remoting.client import SendAnswer, ServerConnection

#: The zlib level of RocketMQ 4.9's clients.
_COMPRESSION_LEVEL: Final = 5
#: Marks a template's placeholders: a character that no name contains.
_HOLE: Final = "\ue000"
_new_tuple: Final = tuple.__new__
_SEND_OK: Final = SendStatus.SEND_OK
_SUCCESS: Final = int(ResponseCode.SUCCESS)
#: Bytes of a plain message of a batch besides its body: without tags, and with tags besides them.
UNTAGGED_SIZE: Final = INNER_FIXED_SIZE + len(plain_properties("0" * UNIQUE_KEY_SIZE, ""))
PLAIN_SIZE: Final = INNER_FIXED_SIZE + len(plain_properties("0" * UNIQUE_KEY_SIZE, "x")) - 1


class Outgoing:
    """The messages of one request, with their unique keys."""

    __slots__ = (
        "body",
        "code",
        "flag",
        "is_batch",
        "keys",
        "messages",
        "properties",
        "sys_flag",
        "topic",
    )

    def __init__(
        self, message: Message, compress_over: int, max_delay_level: int = MAX_DELAY_LEVEL
    ) -> None:
        """Encode a single message; bodies of `compress_over` bytes and more are compressed."""
        message.check(max_delay_level)
        key = create_unique_key()
        body = message.body if type(message.body) is bytes else bytes(message.body)
        self.messages: Sequence[Message] = (message,)
        self.topic = message.topic
        self.keys = [key]
        self.properties = message.wire_properties(key)
        self.flag = message.flag
        self.is_batch = False
        self.code = (
            RequestCode.SEND_REPLY_MESSAGE_V2 if message.is_reply else RequestCode.SEND_MESSAGE_V2
        )
        self.sys_flag = 0
        if len(body) >= compress_over:
            body = zlib.compress(body, _COMPRESSION_LEVEL)
            self.sys_flag = COMPRESSED | COMPRESSION_ZLIB
        self.body = body

    @classmethod
    def of(cls, sent: QuickSend) -> Outgoing:
        """Return a plain message that has to be sent again, or whose response is not plain."""
        properties = plain_properties(sent.key, sent.tags)
        self = cls.encoded(sent.topic, sent.body, properties)
        self.keys = [sent.key]
        return self

    @classmethod
    def batch(
        cls, topic: str, messages: Sequence[Message], keys: list[str], encoded: Sequence[bytes]
    ) -> Outgoing:
        """Join messages of one topic, each checked and encoded by `inner_message`."""
        self = cls.__new__(cls)
        self.messages = messages
        self.topic = topic
        self.keys = keys
        # Brokers append these to each message's own: an id here would hide the messages' ids.
        self.properties = WAIT_TRUE
        self.flag = 0
        self.sys_flag = 0
        self.is_batch = True
        self.code = RequestCode.SEND_BATCH_MESSAGE
        self.body = b"".join(encoded)
        return self

    @classmethod
    def encoded(cls, topic: str, body: bytes, properties: str | None = None) -> Outgoing:
        """Wrap bytes that the caller checked and encoded: a batch, or one message with properties.

        They count as one message and have one result, the first message's. Hooks see no messages.
        """
        self = cls.batch(topic, (), [""], (body,))
        if properties is not None:
            self.properties = properties
            self.is_batch = False
            self.code = RequestCode.SEND_MESSAGE_V2
        return self

    def prepare_transaction(self, group: str) -> None:
        """Turn the message into a half message of a producer group."""
        self.sys_flag |= TRANSACTION_PREPARED
        self.properties += f"\x02{TRAN_MSG}\x01true\x02{PRODUCER_GROUP}\x01{group}"

    @property
    def is_half(self) -> bool:
        """Return whether this is the half message of a transaction."""
        return self.sys_flag & TRANSACTION_PREPARED != 0

    def results(
        self, fields: dict[str, Any], queue: MessageQueue, status: SendStatus
    ) -> list[SendResult]:
        """Decode a response's extFields to one result per message; raises ValueError."""
        try:
            stored_on = int(fields["queueId"])
            offset = int(fields["queueOffset"])
            ids = fields["msgId"].split(",")
            region, trace = fields.get(MSG_REGION, ""), fields.get(TRACE_ON) != "false"
            transaction = fields.get("transactionId")
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"missing or bad position of the stored message: {error!r}") from error
        return self._results(queue, status, stored_on, offset, ids, transaction, region, trace)

    def results_of(self, answer: SendAnswer, queue: MessageQueue) -> list[SendResult]:
        """Return one result per message, from a plain response."""
        if _compiled is not None:
            stored = queue
            if answer.queue_id != queue.queue_id:
                stored = MessageQueue(queue.topic, queue.broker_name, answer.queue_id)
            results: list[SendResult] | None = _compiled.send_results(
                answer, self.keys, stored, _SEND_OK, SendResult
            )
            if results is not None:
                return results
        return self._results(
            queue,
            SendStatus.SEND_OK,
            answer.queue_id,
            answer.queue_offset,
            answer.message_ids.split(","),
            None,
            answer.region_id,
            answer.trace_on,
        )

    def _results(
        self,
        queue: MessageQueue,
        status: SendStatus,
        stored_on: int,
        offset: int,
        ids: list[str],
        transaction: str | None,
        region: str,
        trace: bool,
    ) -> list[SendResult]:
        if stored_on != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, stored_on)
        if len(ids) != len(self.keys):
            # Old brokers return one id for a whole batch.
            ids = ids[:1] * len(self.keys)
        # tuple.__new__ skips SendResult's constructor: a batch may have hundreds.
        return [
            _new_tuple(
                SendResult,
                (key, message_id, queue, number, status, transaction, region, trace),
            )
            for number, key, message_id in zip(count(offset), self.keys, ids, strict=False)
        ]


class QuickSend(NamedTuple):
    """A plain single message in flight, as it was sent."""

    answer: asyncio.Future[RawFrame | SendAnswer]
    key: str
    target: Target
    connection: ServerConnection
    #: The time of the connection's loop at which it was sent.
    queued_at: float
    topic: str
    tags: str
    body: bytes


def quick_result(
    key: str, response: RawFrame | SendAnswer, queue: MessageQueue
) -> SendResult | None:
    """Return the result of a single message; None if the response is not plain."""
    if isinstance(response, SendAnswer):
        message_id, queue_id, offset, region, trace = response
    else:
        header = response[1]
        if header.get("code") != _SUCCESS:
            return None
        try:
            fields = header["extFields"]
            queue_id = int(fields["queueId"])
            offset = int(fields["queueOffset"])
            message_id = fields["msgId"]
            region, trace = fields.get(MSG_REGION, ""), fields.get(TRACE_ON) != "false"
        except (KeyError, TypeError, AttributeError, ValueError):
            return None
        if type(message_id) is not str or "transactionId" in fields:
            return None
    if "," in message_id:
        return None
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
    return _new_tuple(SendResult, (key, message_id, queue, offset, _SEND_OK, None, region, trace))


class Target:
    """A writable queue and its broker's address."""

    __slots__ = ("_group", "_single", "_templates", "_topic_queues", "address", "queue")

    def __init__(self, queue: MessageQueue, address: str, group: str, topic_queues: int) -> None:
        """Take queue and group under the names that servers know."""
        self.queue = queue
        self.address = address
        self._group = group
        self._topic_queues = topic_queues
        self._single = self._template(RequestCode.SEND_MESSAGE_V2)
        #: Templates of other requests than single sends, created on first use.
        self._templates: dict[RequestCode, SendTemplate] = {}

    def frame(self, outgoing: Outgoing, opaque: int, flag: int = 0) -> bytes:
        """Encode a request to this queue."""
        code = outgoing.code
        if code is RequestCode.SEND_MESSAGE_V2:
            template = self._single
        else:
            template = self._templates.get(code) or self._templates.setdefault(
                code, self._template(code)
            )
        return template.encode(
            outgoing.sys_flag,
            time.time_ns() // 1_000_000,
            outgoing.flag,
            outgoing.properties,
            flag,
            opaque,
            outgoing.body,
        )

    def quick_frame(self, tags: str, opaque: int, body: bytes) -> tuple[bytes, str]:
        """Encode a request with a single plain message; return it and the message's unique key."""
        now = time.time_ns() // 1_000_000
        keys = create_unique_key
        return self._single.encode_plain(
            keys.head(now), keys.next_number(), tags, now, opaque, body
        )

    def command(self, outgoing: Outgoing, *, is_oneway: bool = False) -> RemotingCommand:
        """Return a request to this queue as a command, for hooks and signatures."""
        header = SendMessageRequestHeaderV2(
            producer_group=self._group,
            topic=self.queue.topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=self._topic_queues,
            queue_id=self.queue.queue_id,
            sys_flag=outgoing.sys_flag,
            born_timestamp=now_ms(),
            flag=outgoing.flag,
            properties=outgoing.properties,
            reconsume_times=0,
            unit_mode=False,
            batch=outgoing.is_batch,
            broker_name=self.queue.broker_name,
        )
        return RemotingCommand(
            outgoing.code,
            ext_fields=header.encode(),
            body=outgoing.body,
            flag=FLAG_ONEWAY if is_oneway else 0,
        )

    def _template(self, code: RequestCode) -> SendTemplate:
        header = {
            "code": int(code),
            "extFields": {
                "a": self._group,
                "b": self.queue.topic,
                "c": TEMPLATE_TOPIC,
                "d": str(self._topic_queues),
                "e": str(self.queue.queue_id),
                "f": _HOLE,
                "g": _HOLE,
                "h": _HOLE,
                "i": f"{_HOLE}bare",
                "j": "0",
                "k": "false",
                "m": "true" if code is RequestCode.SEND_BATCH_MESSAGE else "false",
                "n": self.queue.broker_name,
            },
            "flag": f"{_HOLE}bare",
            "language": LanguageCode.PYTHON.name,
            "opaque": f"{_HOLE}bare",
            "serializeTypeCurrentRPC": "JSON",
            "version": PROTOCOL_VERSION,
        }
        hole = _HOLE.encode()
        template = orjson.dumps(header).replace(b'"' + hole + b'bare"', hole)
        return _Template(tuple(template.split(hole)))


class SendTemplate(Protocol):
    """Encodes the requests to one queue, which differ in six values."""

    def encode(
        self,
        sys_flag: int,
        born_timestamp: int,
        message_flag: int,
        properties: str,
        flag: int,
        opaque: int,
        body: bytes,
    ) -> bytes:
        """Return a request's whole frame."""
        ...

    def encode_plain(
        self, head: str, number: int, tags: str, born_timestamp: int, opaque: int, body: bytes
    ) -> tuple[bytes, str]:
        """Return the whole frame of a plain message, and its unique key from head and number."""
        ...


class PlainTemplate:
    """A `SendTemplate` in Python."""

    __slots__ = ("_template",)

    def __init__(self, pieces: tuple[bytes, ...]) -> None:
        """Take the constant text before each value, and after the last."""
        escaped = (piece.replace(b"%", b"%%") for piece in pieces)
        self._template = b"%b%%d%b%%d%b%%d%b%%b%b%%d%b%%d%b" % tuple(escaped)

    def encode(
        self,
        sys_flag: int,
        born_timestamp: int,
        message_flag: int,
        properties: str,
        flag: int,
        opaque: int,
        body: bytes,
    ) -> bytes:
        """Return a request's whole frame."""
        header = self._template % (
            sys_flag,
            born_timestamp,
            message_flag,
            orjson.dumps(properties),
            flag,
            opaque,
        )
        length = len(header)
        return b"".join((pack_prefix(4 + length + len(body), length), header, body))

    def encode_plain(
        self, head: str, number: int, tags: str, born_timestamp: int, opaque: int, body: bytes
    ) -> tuple[bytes, str]:
        """Return the whole frame of a plain message, and its unique key from head and number."""
        key = UniqueKeys.key(head, number)
        properties = plain_properties(key, tags)
        return self.encode(0, born_timestamp, 0, properties, 0, opaque, body), key


_compiled = kernel.load("producing")
_Template: Final = PlainTemplate if _compiled is None else _compiled.SendTemplate


def plain_batch(bodies: list[bytes], tags: list[str]) -> tuple[bytes, list[str]]:
    """Encode plain messages for a batch; return them and their unique keys."""
    head = create_unique_key.head(time.time_ns() // 1_000_000)
    return _plain_batch(bodies, tags, head, create_unique_key.numbers(len(bodies)))


def encode_plain_batch(
    bodies: list[bytes], tags: list[str], head: str, numbers: list[int]
) -> tuple[bytes, list[str]]:
    """Encode plain messages with keys from `head` and `numbers`, as the compiled kernel does."""
    keys = [UniqueKeys.key(head, number) for number in numbers]
    encoded = [
        encode_inner_message(body, plain_properties(key, tag).encode())
        for body, tag, key in zip(bodies, tags, keys, strict=True)
    ]
    return b"".join(encoded), keys


_plain_batch: Final = encode_plain_batch if _compiled is None else _compiled.plain_batch


def batches_of(messages: Sequence[Message]) -> list[Outgoing]:
    """Split messages of one topic into batches, each of which fits into one request."""
    if not messages:
        raise IllegalMessageError("messages=[]: a batch must have at least one message")
    for message in messages:
        check_message(message)
        check_topic(message.topic)
    topics = {message.topic for message in messages}
    if len(topics) != 1:
        raise IllegalMessageError(
            f"a batch must have one topic, this one has {len(topics)}: {sorted(topics)}"
        )
    (topic,) = topics
    keys = [create_unique_key() for _ in messages]
    encoded = [inner_message(message, key) for message, key in zip(messages, keys, strict=True)]
    batches: list[Outgoing] = []
    start = size = 0
    for number, each in enumerate([*encoded, b""]):
        if number == len(encoded) or (size and size + len(each) > MAX_BODY):
            batches.append(
                Outgoing.batch(
                    topic, messages[start:number], keys[start:number], encoded[start:number]
                )
            )
            start, size = number, 0
        size += len(each)
    return batches


def inner_message(message: Message, key: str) -> bytes:
    """Encode a message of a batch; raises IllegalMessageError if it may not be in one."""
    if message.delay_level:
        raise IllegalMessageError("a batch cannot hold a delayed message: send it alone")
    if message.topic.startswith(RETRY_TOPIC_PREFIX):
        raise IllegalMessageError("a batch cannot hold messages for a retry topic")
    if message.is_reply:
        raise IllegalMessageError("a batch cannot hold a reply: send it alone")
    return batched_message(message, key)


def batched_message(message: Message, key: str) -> bytes:
    """Encode a message that is known to be allowed in a batch; raises IllegalMessageError."""
    message.check()
    return encode_inner_message(message.body, message.wire_properties(key).encode(), message.flag)
