"""Messages as they come out of a pull: `ReceivedMessage`, and the decoder that makes them.

A consumer may get hundreds of thousands a second and look at the body only: the head of a
record is read at once, properties, hosts and ids when somebody asks. Bytes are copied out of
the answer, so a message that is kept does not keep the others.

A body that cannot be decompressed (it is damaged, or of a kind for which a package is not
installed) is never given as if it were plain: whoever reads `body` gets UnreadableBodyError. So
a handler that needs it fails, and the message is consumed again later, here or by a member that
can read it, or becomes a dead letter; nothing behind it is held up but where order asks for
that.

`properties` are the application's own, so they can go into another message as they are. What
clients and brokers have added describes this message only (`protocol.system_properties`): a copy
that took it along could become a half message that nobody gets. Used on any thread.
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
    """A message from a queue, its body decompressed. Not to be changed."""

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
    #: Reading it raises UnreadableBodyError when it cannot be decompressed.
    body: bytes
    #: Bytes of the body, or of `raw_body` where it cannot be read.
    body_size: int
    #: The queue that it was read from.
    queue: MessageQueue
    queue_offset: int
    #: Where its broker's log has it.
    physical_offset: int
    #: The application's own, and the system's.
    flag: int
    sys_flag: int
    #: Milliseconds since 1970.
    born_timestamp: int
    store_timestamp: int
    #: How often it was delivered before, without success.
    reconsume_times: int
    prepared_transaction_offset: int
    _born_host: bytes
    _store_host: bytes
    _raw_properties: bytes
    #: Decoded when somebody asks; the application's own are chosen from all.
    _all_properties: dict[str, str] | None
    _properties: dict[str, str] | None
    #: What was stored and why it cannot be read; of such a message, `body` is not set.
    _unreadable: tuple[bytes, CompressionError]

    @property
    def is_readable(self) -> bool:
        """Whether the body is there, decompressed where that was needed."""
        return not hasattr(self, "_unreadable")

    @property
    def raw_body(self) -> bytes:
        """The body, or what was stored where it cannot be decompressed (see `sys_flag`)."""
        return self.body if self.is_readable else self._unreadable[0]

    @property
    def properties(self) -> dict[str, str]:
        """The application's own properties, as its producer has set them."""
        found = self._properties
        if found is None:
            found = self._properties = user_properties(self.all_properties)
        return found

    @property
    def system_properties(self) -> dict[str, str]:
        """The properties that clients and brokers have added, under RocketMQ's names."""
        return system_properties(self.all_properties)

    @property
    def all_properties(self) -> dict[str, str]:
        """Both of them: what an SQL92 expression of a subscription can name."""
        found = self._all_properties
        if found is None:
            found = self._all_properties = decode_properties(self._raw_properties)
        return found

    @property
    def tags(self) -> str:
        """What consumers can filter by."""
        return self.all_properties.get(property_names.TAGS, "")

    @property
    def keys(self) -> str:
        """The words under which the message can be looked up, separated by spaces."""
        return self.all_properties.get(property_names.KEYS, "")

    @property
    def ordering_key(self) -> str:
        """The key whose messages share a queue; empty when it was sent without one."""
        return self.all_properties.get(SHARDING_KEY, "")

    @property
    def msg_id(self) -> str:
        """The id that the producer gave it, or the offset message id where there is none."""
        return self.all_properties.get(property_names.UNIQ_KEY) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """The id under which its broker finds it."""
        return encode_message_id(self._store_host, self.physical_offset & _OFFSET_MASK)

    @property
    def born_host(self) -> tuple[str, int]:
        """Address and port of the producer."""
        return decode_host(self._born_host)

    @property
    def store_host(self) -> tuple[str, int]:
        """Address and port of the broker."""
        return decode_host(self._store_host)

    def forward(self, topic: str, body: bytes | None = None) -> Message:
        """Return a message for `topic` with the same content, or with another body.

        It keeps tags, keys, the application's properties, ordering key and flag. It does not
        keep what happened to this one: its id, delay, transaction, retries, or who waits for a
        reply to it. Raises UnreadableBodyError when the body cannot be decompressed.
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

    if not TYPE_CHECKING:  # for type checkers there is nothing beyond what is declared

        def __getattr__(self, name: str) -> NoReturn:
            """Called for what is not set: the body of a message that cannot be read."""
            if name == "body" and not self.is_readable:
                raise UnreadableBodyError(
                    f"body of {self!r} cannot be read: {self._unreadable[1]}"
                ) from self._unreadable[1]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        def __iter__(self) -> NoReturn:
            """Called by handlers that expect a list: say how to get one."""
            raise TypeError(
                f"{self!r} is one message, not a list of them: a handler gets lists with "
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
    """The messages of a pull's answer; raises RecordError for what is none.

    `topic` is the queue's topic as the records name it, where that differs from `queue.topic`.
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
            raise RecordError(f"{end - position} bytes at {position} are too few for a record")
        head = unpack(data, position)
        head_end = position + HEAD_SIZE_V4
        if head[7] & HOST_MASK:
            head_end = position + head_size(head[7])
            if head_end > end:
                raise RecordError(f"record with IPv6 hosts at {position} is cut off")
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
            raise RecordError(f"record at {position} has lengths that do not fit together")
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
        logger.warning("body of %r cannot be read: %s", message, error)
    else:
        message.body_size = len(message.body)
