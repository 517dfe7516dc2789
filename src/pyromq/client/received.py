"""Decode the messages of a pull response (`ReceivedMessage`).

A consumer may get hundreds of thousands of messages per second and use nothing but their bodies.
Every record is checked and its body and offset are decoded at once; the other fields are decoded
on first access. Bytes are copied out of the response, so keeping one message does not keep the
others in memory.

A body that cannot be decompressed (damaged, or in a format whose package is not installed) is
never returned as if it were plain: reading `body` raises UnreadableBodyError. A handler that needs
the body fails, and the message is retried, possibly by a group member that can read it, or becomes
a dead letter. Later messages are held up only in orderly consumption.

`properties` are the application's own and can be copied to another message. Properties added by
clients and brokers describe this message only (`protocol.message.system_properties`); a copy that
kept them could become a half message that no consumer ever gets. Any thread may use a message.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NoReturn

from pyromq.client.errors import UnreadableBodyError
from pyromq.client.message import Message, tags_to_keep
from pyromq.protocol import kernel
from pyromq.protocol.message import properties as property_names
from pyromq.protocol.message.compression import CompressionError, decompress
from pyromq.protocol.message.message_id import decode_host, encode_message_id
from pyromq.protocol.message.properties import MAX_PROPERTIES, decode_properties
from pyromq.protocol.message.record import (
    HEAD_SIZE_V4,
    MAX_TOPIC,
    MESSAGE_MAGIC,
    PROPERTIES_LENGTH,
    SCANNED_HEAD,
    TAIL_LENGTHS,
    RecordError,
    head_packer,
    head_size,
    head_unpacker,
    unpack_head,
)
from pyromq.protocol.message.sysflag import COMPRESSED, HOST_MASK
from pyromq.protocol.message.system_properties import (
    SHARDING_KEY,
    system_properties,
    user_properties,
)
from pyromq.protocol.wire.bodies import MessageQueue

logger = logging.getLogger(__name__)

_OFFSET_MASK = 0xFFFFFFFFFFFFFFFF


class PlainRecord:
    """The record of a message, in Python; the compiled kernel has a class with the same fields."""

    __slots__ = (
        "_all_properties",
        "_head",
        "_properties",
        "_unreadable",
        "body",
        "body_size",
        "queue",
        "queue_offset",
        "topic",
    )

    topic: str
    body: bytes
    body_size: int
    queue: MessageQueue
    queue_offset: int
    #: The record up to its body: its bytes, and from the first access on its fields.
    _head: bytes | list[Any]
    _all_properties: bytes | dict[str, str]
    _properties: dict[str, str] | None
    _unreadable: tuple[bytes, CompressionError]

    @property
    def flag(self) -> int:
        """Return the application's 32 bits."""
        return self._number(4)

    @property
    def physical_offset(self) -> int:
        """Return the position in the broker's commit log."""
        return self._number(6)

    @property
    def sys_flag(self) -> int:
        """Return RocketMQ's flags."""
        return self._number(7)

    @property
    def born_timestamp(self) -> int:
        """Return the time of sending."""
        return self._number(8)

    @property
    def store_timestamp(self) -> int:
        """Return the time of storing."""
        return self._number(10)

    @property
    def reconsume_times(self) -> int:
        """Return how many earlier deliveries failed."""
        return self._number(12)

    @property
    def prepared_transaction_offset(self) -> int:
        """Return the physical offset of the half message."""
        return self._number(13)

    @property
    def _born_host(self) -> bytes:
        return self._host(9)

    @property
    def _store_host(self) -> bytes:
        return self._host(11)

    def count_failure(self) -> None:
        """Count a failed delivery within this consumer."""
        self._fields()[12] += 1

    def _number(self, index: int) -> int:
        head = self._head
        number: int = (head if type(head) is list else self._fields())[index]
        return number

    def _host(self, index: int) -> bytes:
        host: bytes = self._fields()[index]
        return host

    def _fields(self) -> list[Any]:
        head = self._head
        if isinstance(head, bytes):
            self._head = head = [*unpack_head(head)]
        return head


_compiled = kernel.load("received")
if TYPE_CHECKING:
    _Record = object
else:
    _Record = PlainRecord if _compiled is None else _compiled.Record


class ReceivedMessage(_Record):
    """A message read from a queue, its body decompressed. Treat it as immutable."""

    if not TYPE_CHECKING:
        __slots__ = ()

    topic: str
    #: Raises UnreadableBodyError if the body cannot be decompressed.
    body: bytes
    #: Size of `body` in bytes, or of `raw_body` if the body cannot be decompressed.
    body_size: int
    #: The queue it was read from.
    queue: MessageQueue
    queue_offset: int
    #: Position in the broker's commit log.
    physical_offset: int
    #: The application's 32 bits.
    flag: int
    #: RocketMQ's flags: compression, transaction state, IPv6 hosts.
    sys_flag: int
    #: Time of sending, in milliseconds since the epoch, by the producer's clock.
    born_timestamp: int
    #: Time of storing, in milliseconds since the epoch, by the broker's clock.
    store_timestamp: int
    #: Earlier deliveries that failed.
    reconsume_times: int
    prepared_transaction_offset: int
    _born_host: bytes
    _store_host: bytes
    #: The record up to its body.
    _head: bytes | list[Any]
    #: The properties' bytes, and from the first access on their names and values.
    _all_properties: bytes | dict[str, str]
    #: Set together with the names and values.
    _properties: dict[str, str] | None
    #: Stored bytes and the reason they cannot be decompressed. `body` is not set then.
    _unreadable: tuple[bytes, CompressionError]

    @property
    def is_readable(self) -> bool:
        """Return whether `body` is available."""
        return not hasattr(self, "_unreadable")

    @property
    def raw_body(self) -> bytes:
        """Return the body, or the stored bytes if it cannot be decompressed (see `sys_flag`)."""
        return self.body if self.is_readable else self._unreadable[0]

    @property
    def properties(self) -> dict[str, str]:
        """Return the application's own properties, as the producer set them."""
        everything = self.all_properties
        found = self._properties
        if found is None:
            found = self._properties = user_properties(everything)
        return found

    @property
    def system_properties(self) -> dict[str, str]:
        """Return the properties that clients and brokers added, under RocketMQ's names."""
        return system_properties(self.all_properties)

    @property
    def all_properties(self) -> dict[str, str]:
        """Return `properties` and `system_properties` together, as SQL92 expressions see them."""
        found = self._all_properties
        if isinstance(found, bytes):
            found = decode_properties(found)
            self._properties = None
            self._all_properties = found
        return found

    @property
    def tags(self) -> str:
        """Return the tag, or an empty string."""
        return self.all_properties.get(property_names.TAGS, "")

    @property
    def keys(self) -> str:
        """Return the words to look the message up by, separated by spaces."""
        return self.all_properties.get(property_names.KEYS, "")

    @property
    def ordering_key(self) -> str:
        """Return the ordering key, or an empty string."""
        return self.all_properties.get(SHARDING_KEY, "")

    @property
    def msg_id(self) -> str:
        """Return the id that the producer assigned, or else the offset message id."""
        return self.all_properties.get(property_names.UNIQ_KEY) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """Return the id that encodes the message's broker and physical offset."""
        return encode_message_id(self._store_host, self.physical_offset & _OFFSET_MASK)

    @property
    def born_host(self) -> tuple[str, int]:
        """Return the producer's address and port."""
        return decode_host(self._born_host)

    @property
    def store_host(self) -> tuple[str, int]:
        """Return the broker's address and port."""
        return decode_host(self._store_host)

    if TYPE_CHECKING:

        def count_failure(self) -> None:
            """Count a failed delivery within this consumer."""

    def forward(self, topic: str, body: bytes | None = None) -> Message:
        """Return a message for `topic` with the same content, or with another body.

        It keeps tags, keys, the application's properties, ordering key and flag, but not this
        message's id, delay, transaction, retries or request. Raises UnreadableBodyError if the
        body cannot be decompressed.
        """
        return Message(
            topic,
            self.body if body is None else body,
            tags=tags_to_keep(self.tags),
            keys=self.keys,
            properties=dict(self.properties),
            flag=self.flag,
            ordering_key=self.ordering_key,
        )

    def __repr__(self) -> str:
        return (
            f"<message {self.msg_id} of {self.topic}, {self.queue.broker_name}:"
            f"{self.queue.queue_id}:{self.queue_offset}, {self.body_size} bytes>"
        )

    if not TYPE_CHECKING:  # type checkers would accept any attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Raise for attributes that are not set: the body that cannot be decompressed."""
            if name == "body" and not self.is_readable:
                raise UnreadableBodyError(
                    f"body of {self!r} cannot be decompressed: {self._unreadable[1]}"
                ) from self._unreadable[1]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        def __iter__(self) -> NoReturn:
            """Raise with advice for handlers that expect a list."""
            raise TypeError(
                f"{self!r} is one message, not a list: a handler gets lists with "
                "takes_lists=True or batch_size="
            )

    def __reduce__(self) -> tuple[Any, ...]:
        head = self._head
        return _restored, (
            head if isinstance(head, bytes) else head_packer(self.sys_flag)(*head),
            self.reconsume_times,
            self.queue,
            self.topic,
            self.queue_offset,
            self._all_properties,
            self.raw_body,
            self.body_size,
            None if self.is_readable else self._unreadable[1],
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReceivedMessage):
            return NotImplemented
        return (self.queue, self.queue_offset, self.physical_offset) == (
            other.queue,
            other.queue_offset,
            other.physical_offset,
        )

    def __hash__(self) -> int:
        return hash((self.queue, self.queue_offset, self.physical_offset))


def decode_messages(data: bytes, queue: MessageQueue, topic: str = "") -> list[ReceivedMessage]:
    """Decode the messages of a pull response; raises RecordError.

    `topic` is the topic name in the records, if it differs from `queue.topic`.
    """
    messages: list[ReceivedMessage] = []
    add = messages.append
    new = ReceivedMessage.__new__
    known_name = queue.topic
    name = (topic or known_name).encode()
    # A name that is too long for a record, such as a group's retry topic, matches none.
    known_topic = bytes((min(len(name), 0xFF),)) + name
    if _compiled is not None:
        decoded: list[ReceivedMessage] | None = _compiled.decode(
            data, queue, known_name, known_topic, ReceivedMessage
        )
        if decoded is not None:
            return decoded
    known_topic_size = len(known_topic) + PROPERTIES_LENGTH.size
    scan, unpack_length = SCANNED_HEAD.unpack_from, PROPERTIES_LENGTH.unpack_from
    position, end = 0, len(data)
    while position < end:
        if end - position < HEAD_SIZE_V4:
            raise RecordError(f"truncated record at {position}: {end - position} bytes left")
        size, magic, queue_offset, sys_flag, body_length = scan(data, position)
        head_end = position + HEAD_SIZE_V4
        if sys_flag & HOST_MASK:
            head_end = position + head_size(sys_flag)
            if head_end > end:
                raise RecordError(f"truncated record with IPv6 hosts at {position}")
            body_length = head_unpacker(sys_flag)(data, position)[-1]
        following = position + size
        topic_at = head_end + body_length
        if magic != MESSAGE_MAGIC or body_length < 0 or topic_at >= following or following > end:
            raise RecordError(
                f"no record at {position}: magic {magic:#010x}, {size} bytes, body {body_length}"
            )
        message = new(ReceivedMessage)
        if data.startswith(known_topic, topic_at):
            message.topic = known_name
            properties_at = topic_at + known_topic_size
        else:
            properties_at = topic_at + TAIL_LENGTHS + data[topic_at]
            message.topic = data[topic_at + 1 : properties_at - 2].decode(errors="replace")
        properties_length = following - properties_at
        if (
            properties_length < 0
            or unpack_length(data, properties_at - 2)[0] != properties_length
            or properties_length > MAX_PROPERTIES
            or data[topic_at] > MAX_TOPIC
        ):
            raise RecordError(f"record at {position} has inconsistent lengths")
        message.queue = queue
        message.queue_offset = queue_offset
        message._head = data[position:head_end]
        message._all_properties = data[properties_at:following]
        message.body_size = body_length
        if sys_flag & COMPRESSED:
            _decompress(message, data[head_end:topic_at])
        else:
            message.body = data[head_end:topic_at]
        add(message)
        position = following
    return messages


def consecutive_size(messages: list[ReceivedMessage]) -> int | None:
    """Return the size of the bodies of messages with consecutive offsets, else None."""
    if _compiled is not None:
        found: int | None = _compiled.consecutive_size(messages)
        return found
    first = messages[0].queue_offset
    if [message.queue_offset for message in messages] != [*range(first, first + len(messages))]:
        return None
    return sum([message.body_size for message in messages])


def _decompress(message: ReceivedMessage, body: bytes) -> None:
    try:
        message.body = decompress(body, message.sys_flag)
    except CompressionError as error:
        message._unreadable = body, error
        logger.warning("body of %r cannot be decompressed: %s", message, error)
    else:
        message.body_size = len(message.body)


def _restored(  # noqa: PLR0913 - the state of a message
    head: bytes,
    reconsume_times: int,
    queue: MessageQueue,
    topic: str,
    queue_offset: int,
    properties: bytes | dict[str, str],
    body: bytes,
    body_size: int,
    problem: CompressionError | None,
) -> ReceivedMessage:
    """Return a copy of a message, from pickle or copy."""
    message = ReceivedMessage()
    message._head = head
    while message.reconsume_times < reconsume_times:
        message.count_failure()
    message.queue, message.topic, message.queue_offset = queue, topic, queue_offset
    message._all_properties, message._properties = properties, None
    message.body_size = body_size
    if problem is None:
        message.body = body
    else:
        message._unreadable = body, problem
    return message
