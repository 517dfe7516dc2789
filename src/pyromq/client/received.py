"""Decode the messages of a pull response (`ReceivedMessage`).

A consumer may get hundreds of thousands of messages per second and use nothing but their bodies.
The head of a record is therefore decoded at once, and properties, hosts and ids on first access.
Bytes are copied out of the response, so keeping one message does not keep the others in memory.

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
from typing import TYPE_CHECKING, NoReturn

from pyromq.client.errors import UnreadableBodyError
from pyromq.client.message import Message, tags_to_keep
from pyromq.protocol.message import properties as property_names
from pyromq.protocol.message.compression import CompressionError, decompress
from pyromq.protocol.message.message_id import decode_host, encode_message_id
from pyromq.protocol.message.properties import MAX_PROPERTIES, decode_properties
from pyromq.protocol.message.record import (
    HEAD_SIZE_V4,
    MAX_TOPIC,
    MESSAGE_MAGIC,
    RecordError,
    head_size,
    head_unpacker,
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


class ReceivedMessage:
    """A message read from a queue, its body decompressed. Treat it as immutable."""

    __slots__ = (
        "_all_properties",
        "_born_host",
        "_properties",
        "_raw_properties",
        "_store_host",
        "_unreadable",
        "body",
        "body_size",
        "born_timestamp",
        "flag",
        "physical_offset",
        "prepared_transaction_offset",
        "queue",
        "queue_offset",
        "reconsume_times",
        "store_timestamp",
        "sys_flag",
        "topic",
    )

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
    _raw_properties: bytes
    #: Decoded on first access.
    _all_properties: dict[str, str] | None
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
        found = self._properties
        if found is None:
            found = self._properties = user_properties(self.all_properties)
        return found

    @property
    def system_properties(self) -> dict[str, str]:
        """Return the properties that clients and brokers added, under RocketMQ's names."""
        return system_properties(self.all_properties)

    @property
    def all_properties(self) -> dict[str, str]:
        """Return `properties` and `system_properties` together, as SQL92 expressions see them."""
        found = self._all_properties
        if found is None:
            found = self._all_properties = decode_properties(self._raw_properties)
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
    name, known_topic = queue.topic, (topic or queue.topic).encode()
    unpack = head_unpacker(0)
    from_bytes = int.from_bytes
    position, end = 0, len(data)
    while position < end:
        if end - position < HEAD_SIZE_V4:
            raise RecordError(f"truncated record at {position}: {end - position} bytes left")
        head = unpack(data, position)
        head_end = position + HEAD_SIZE_V4
        if head[7] & HOST_MASK:
            head_end = position + head_size(head[7])
            if head_end > end:
                raise RecordError(f"truncated record with IPv6 hosts at {position}")
            head = head_unpacker(head[7])(data, position)
        message = new(ReceivedMessage)
        (
            size,
            magic,
            _,
            _,
            message.flag,
            message.queue_offset,
            message.physical_offset,
            sys_flag,
            message.born_timestamp,
            message._born_host,
            message.store_timestamp,
            message._store_host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            body_length,
        ) = head
        following = position + size
        topic_at = head_end + body_length
        if magic != MESSAGE_MAGIC or body_length < 0 or topic_at >= following or following > end:
            raise RecordError(
                f"no record at {position}: magic {magic:#010x}, {size} bytes, body {body_length}"
            )
        properties_at = topic_at + 3 + data[topic_at]
        if (
            data[topic_at] > MAX_TOPIC
            or properties_at > following
            or from_bytes(data[properties_at - 2 : properties_at], "big")
            != following - properties_at
            or following - properties_at > MAX_PROPERTIES
        ):
            raise RecordError(f"record at {position} has inconsistent lengths")
        own_topic = data[topic_at + 1 : properties_at - 2]
        message.topic = name if own_topic == known_topic else own_topic.decode(errors="replace")
        message.queue = queue
        message.sys_flag = sys_flag
        message._raw_properties = data[properties_at:following]
        message._all_properties = message._properties = None
        body = data[head_end:topic_at]
        message.body_size = body_length
        if sys_flag & COMPRESSED:
            _decompress(message, body)
        else:
            message.body = body
        add(message)
        position = following
    return messages


def _decompress(message: ReceivedMessage, body: bytes) -> None:
    try:
        message.body = decompress(body, message.sys_flag)
    except CompressionError as error:
        message._unreadable = body, error
        logger.warning("body of %r cannot be decompressed: %s", message, error)
    else:
        message.body_size = len(message.body)
