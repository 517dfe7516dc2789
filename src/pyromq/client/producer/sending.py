"""A send request: from messages to the frame that leaves, and from the answer to results.

`Outgoing` is one request's messages, checked and encoded once, the same at each attempt.
`Target` is a queue that takes messages and the constant part of every request to it: the
header of a send is one `%` format. Both are plain values; the producer decides where and
how often.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from itertools import count
from typing import Any, Final

import orjson

from pyromq.client.errors import IllegalMessageError
from pyromq.client.message import (
    MAX_BODY,
    MAX_DELAY_LEVEL,
    Message,
    check_message,
    check_topic,
    create_unique_key,
)
from pyromq.client.results import SendResult, SendStatus
from pyromq.client.session.routes import TEMPLATE_TOPIC
from pyromq.protocol.message.properties import (
    MSG_REGION,
    PRODUCER_GROUP,
    TRACE_ON,
    TRAN_MSG,
    WAIT_TRUE,
)
from pyromq.protocol.message.record import encode_inner_message
from pyromq.protocol.message.sysflag import COMPRESSED, COMPRESSION_ZLIB, TRANSACTION_PREPARED
from pyromq.protocol.names import RETRY_TOPIC_PREFIX
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import PROTOCOL_VERSION, LanguageCode, RequestCode
from pyromq.protocol.wire.frame import FLAG_ONEWAY, RemotingCommand, pack_prefix
from pyromq.protocol.wire.headers import SendMessageRequestHeaderV2

#: As 4.9's clients: the level of zlib.
_COMPRESSION_LEVEL: Final = 5
#: Where a template gets its values; words that no name can hold.
_HOLE: Final = "\ue000"
_new_tuple: Final = tuple.__new__


class Outgoing:
    """One request's messages, with their unique keys."""

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
        """A single message; a body above `compress_over` bytes is compressed."""
        message.check(max_delay_level)
        key = create_unique_key()
        body = message.body
        self.messages: Sequence[Message] = (message,)
        self.topic = message.topic
        self.keys = [key]
        self.properties = message.wire_properties(key)
        self.flag = message.flag
        self.is_batch = False
        #: The request that carries it.
        self.code = (
            RequestCode.SEND_REPLY_MESSAGE_V2 if message.is_reply else RequestCode.SEND_MESSAGE_V2
        )
        self.sys_flag = 0
        if len(body) >= compress_over:
            body = zlib.compress(body, _COMPRESSION_LEVEL)
            self.sys_flag = COMPRESSED | COMPRESSION_ZLIB
        self.body = body

    @classmethod
    def batch(
        cls, topic: str, messages: Sequence[Message], keys: list[str], parts: Sequence[bytes]
    ) -> Outgoing:
        """Messages of one topic for one queue, as `inner_message` has checked and encoded them."""
        self = cls.__new__(cls)
        self.messages = messages
        self.topic = topic
        self.keys = keys
        # Brokers write these behind each message's own: an id here would hide the messages' ids.
        self.properties = WAIT_TRUE
        self.flag = 0
        self.sys_flag = 0
        self.is_batch = True
        self.code = RequestCode.SEND_BATCH_MESSAGE
        self.body = b"".join(parts)
        return self

    @classmethod
    def encoded(cls, topic: str, body: bytes, properties: str | None = None) -> Outgoing:
        """What somebody else has checked and encoded: one message, or without properties a batch.

        It counts as one message and has one result, that of the first; hooks see no messages.
        """
        self = cls.batch(topic, (), [""], (body,))
        if properties is not None:
            self.properties = properties
            self.is_batch = False
            self.code = RequestCode.SEND_MESSAGE_V2
        return self

    def prepare_transaction(self, group: str) -> None:
        """Make it a half message of a producer group."""
        self.sys_flag |= TRANSACTION_PREPARED
        self.properties += f"\x02{TRAN_MSG}\x01true\x02{PRODUCER_GROUP}\x01{group}"

    @property
    def is_half(self) -> bool:
        """Whether it is the first half of a transaction."""
        return self.sys_flag & TRANSACTION_PREPARED != 0

    def results(
        self, fields: dict[str, Any], queue: MessageQueue, status: SendStatus
    ) -> list[SendResult]:
        """What an answer's extFields say of each message; ValueError when they cannot be read."""
        try:
            stored_on = int(fields["queueId"])
            offset = int(fields["queueOffset"])
            ids = fields["msgId"].split(",")
            region, trace = fields.get(MSG_REGION, ""), fields.get(TRACE_ON) != "false"
            transaction = fields.get("transactionId")
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"no place of a stored message: {error!r}") from error
        if stored_on != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, stored_on)
        if len(ids) != len(self.keys):
            # Old brokers give one id for a batch.
            ids = ids[:1] * len(self.keys)
        # Made as the tuples they are: there may be hundreds.
        return [
            _new_tuple(
                SendResult,
                (key, message_id, queue, number, status, transaction, region, trace),
            )
            for number, key, message_id in zip(count(offset), self.keys, ids, strict=False)
        ]


class Target:
    """A queue that takes messages, at its broker's address."""

    __slots__ = ("_group", "_single", "_templates", "_topic_queues", "address", "queue")

    def __init__(self, queue: MessageQueue, address: str, group: str, topic_queues: int) -> None:
        """`queue` and `group` have names as the servers know them."""
        self.queue = queue
        self.address = address
        self._group = group
        self._topic_queues = topic_queues
        self._single = self._template(RequestCode.SEND_MESSAGE_V2)
        #: Of other requests than single sends, once they are needed.
        self._templates: dict[RequestCode, bytes] = {}

    def frame(self, outgoing: Outgoing, opaque: int, flag: int = 0) -> bytes:
        """The request to this queue as bytes."""
        code = outgoing.code
        if code is RequestCode.SEND_MESSAGE_V2:
            template = self._single
        else:
            template = self._templates.get(code) or self._templates.setdefault(
                code, self._template(code)
            )
        header = template % (
            outgoing.sys_flag,
            time.time_ns() // 1_000_000,
            outgoing.flag,
            orjson.dumps(outgoing.properties),
            flag,
            opaque,
        )
        length = len(header)
        return b"".join(
            (pack_prefix(4 + length + len(outgoing.body), length), header, outgoing.body)
        )

    def command(self, outgoing: Outgoing, *, is_oneway: bool = False) -> RemotingCommand:
        """The same as a command, for those who look at requests before they leave."""
        header = SendMessageRequestHeaderV2(
            producer_group=self._group,
            topic=self.queue.topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=self._topic_queues,
            queue_id=self.queue.queue_id,
            sys_flag=outgoing.sys_flag,
            born_timestamp=time.time_ns() // 1_000_000,
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

    def _template(self, code: RequestCode) -> bytes:
        header = {
            "code": int(code),
            "extFields": {
                "a": self._group,
                "b": self.queue.topic,
                "c": TEMPLATE_TOPIC,
                "d": str(self._topic_queues),
                "e": str(self.queue.queue_id),
                "f": f"{_HOLE}number",
                "g": f"{_HOLE}number",
                "h": f"{_HOLE}number",
                "i": f"{_HOLE}text",
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
        template = orjson.dumps(header).replace(b"%", b"%%")
        hole = _HOLE.encode()
        template = template.replace(hole + b"number", b"%d")
        template = template.replace(b'"' + hole + b'text"', b"%b")
        return template.replace(b'"' + hole + b'bare"', b"%d")


def batches_of(messages: Sequence[Message]) -> list[Outgoing]:
    """Messages of one topic as batches, each small enough for a request."""
    if not messages:
        raise IllegalMessageError("messages=[]: a batch needs at least one message")
    for message in messages:
        check_message(message)
        check_topic(message.topic)
    topics = {message.topic for message in messages}
    if len(topics) != 1:
        raise IllegalMessageError(
            f"a batch is for exactly one topic, not for {len(topics)}: {sorted(topics)}"
        )
    (topic,) = topics
    keys = [create_unique_key() for _ in messages]
    parts = [inner_message(message, key) for message, key in zip(messages, keys, strict=True)]
    batches: list[Outgoing] = []
    start = size = 0
    for number, part in enumerate([*parts, b""]):
        if number == len(parts) or (size and size + len(part) > MAX_BODY):
            batches.append(
                Outgoing.batch(
                    topic, messages[start:number], keys[start:number], parts[start:number]
                )
            )
            start, size = number, 0
        size += len(part)
    return batches


def inner_message(message: Message, key: str) -> bytes:
    """A message as it stands in a batch; raises IllegalMessageError when it cannot."""
    if message.delay_level:
        raise IllegalMessageError("a delayed message cannot be in a batch: send it alone")
    if message.topic.startswith(RETRY_TOPIC_PREFIX):
        raise IllegalMessageError("a message for a retry topic cannot be in a batch")
    if message.is_reply:
        raise IllegalMessageError("a reply cannot be in a batch: send it alone")
    return batched_message(message, key)


def batched_message(message: Message, key: str) -> bytes:
    """The same of a message that is known to be possible in a batch, if it is possible at all."""
    message.check()
    return encode_inner_message(message.body, message.wire_properties(key).encode(), message.flag)
