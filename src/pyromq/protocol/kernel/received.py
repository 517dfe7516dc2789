# cython: language_level=3, infer_types=True, cdivision=True, boundscheck=False, wraparound=False
"""Records of a pull response as objects: the body of a message at once, other fields on access.

`Record` is the base class of `client.received.ReceivedMessage`, in place of the Python class there.
`decode` creates the messages of a response. It gives up, and the Python code decodes the whole
response, at the first record that is damaged, compressed, or of another topic than expected.

A record owns copies of its bytes. Any thread may read one.
"""

import cython
from cython.cimports.pyromq.protocol.kernel.raw import (
    bytes_in,
    faults,
    is_at,
    read16,
    read32,
    read32_signed,
    read64,
    view_of,
)

from pyromq.protocol.message import properties, record, sysflag
from pyromq.protocol.message.message_id import HOST_SIZE_V4 as _HOST_SIZE_V4
from pyromq.protocol.message.message_id import HOST_SIZE_V6 as _HOST_SIZE_V6

MAGIC = record.MESSAGE_MAGIC
HEAD_SIZE = record.HEAD_SIZE_V4
HOST_SIZE_V4 = _HOST_SIZE_V4
MORE_FOR_V6 = _HOST_SIZE_V6 - _HOST_SIZE_V4
MAX_PROPERTIES = properties.MAX_PROPERTIES
MAX_TOPIC = record.MAX_TOPIC
LENGTH_SIZE = record.PROPERTIES_LENGTH.size
COMPRESSED = sysflag.COMPRESSED
BORN_HOST_V6 = sysflag.BORN_HOST_V6
STORE_HOST_V6 = sysflag.STORE_HOST_V6
FLAG = record.FLAG_AT
QUEUE_OFFSET = record.QUEUE_OFFSET_AT
PHYSICAL_OFFSET = record.PHYSICAL_OFFSET_AT
SYS_FLAG = record.SYS_FLAG_AT
BORN_TIMESTAMP = record.BORN_TIMESTAMP_AT
BORN_HOST = record.BORN_HOST_AT
STORE_TIMESTAMP = record.STORE_TIMESTAMP_AT
STORE_HOST = record.STORE_HOST_AT
RECONSUME_TIMES = record.RECONSUME_TIMES_AT
PREPARED_TRANSACTION_OFFSET = record.PREPARED_OFFSET_AT
MAGIC_AT = record.MAGIC_AT
BODY_LENGTH_SIZE = record.HEAD_SIZE_V4 - record.BODY_LENGTH_AT
EMPTY_HEAD = bytes(record.HEAD_SIZE_V4)


def fault_count() -> int:
    """Return how many accesses outside a buffer the checked build has caught; else 0."""
    return faults()


def decode(
    data: bytes, queue: object, name: object, topic: bytes, message_type: object
) -> list | None:
    """Decode all records of a response, or return None if one needs the Python code.

    Records of the topic whose length byte and name are `topic` get the topic `name`.
    """
    view = view_of(data)
    known_topic = view_of(topic)
    messages: list = []
    at: cython.longlong = 0
    while at < view.size:
        if view.size - at < HEAD_SIZE:
            return None
        sys_flag = read32_signed(view, at + SYS_FLAG)
        body_at: cython.longlong = at + HEAD_SIZE
        if sys_flag & BORN_HOST_V6:
            body_at += MORE_FOR_V6
        if sys_flag & STORE_HOST_V6:
            body_at += MORE_FOR_V6
        following = at + read32_signed(view, at)
        if (
            sys_flag & COMPRESSED
            or read32(view, at + MAGIC_AT) != MAGIC
            or following > view.size
            or body_at > following
        ):
            return None
        body_size = read32_signed(view, body_at - BODY_LENGTH_SIZE)
        if body_size < 0 or body_size >= following - body_at:
            return None
        topic_at = body_at + body_size
        properties_at = topic_at + known_topic.size + LENGTH_SIZE
        if (
            properties_at > following
            or not is_at(view, topic_at, following, known_topic)
            or read16(view, properties_at - LENGTH_SIZE) != following - properties_at
            or following - properties_at > MAX_PROPERTIES
        ):
            return None
        message: Record = message_type()
        message.topic = name
        message.queue = queue
        message.queue_offset = read64(view, at + QUEUE_OFFSET)
        message.body_size = body_size
        message.readable_body = bytes_in(view, body_at, topic_at)
        message._all_properties = bytes_in(view, properties_at, following)
        message.head = bytes_in(view, at, body_at)
        messages.append(message)
        at = following
    return messages


def consecutive_size(messages: list) -> object:
    """Return the size of the bodies of messages with consecutive offsets, else None."""
    size: cython.longlong = 0
    next_offset: cython.longlong = 0
    for index in range(len(messages)):
        message: Record = messages[index]
        if index == 0:
            next_offset = message.queue_offset
        if message.queue_offset != next_offset:
            return None
        next_offset += 1
        size += message.body_size
    return size


class Record:
    """The record of a message."""

    def __cinit__(self):
        self.head = EMPTY_HEAD

    @property
    def body(self):
        """Return the body; raises AttributeError while it is not set."""
        if self.readable_body is None:
            raise AttributeError("body")
        return self.readable_body

    @body.setter
    def body(self, value):
        self.readable_body = value

    @property
    def _unreadable(self):
        if self.unreadable_body is None:
            raise AttributeError("_unreadable")
        return self.unreadable_body

    @_unreadable.setter
    def _unreadable(self, value):
        self.unreadable_body = value

    @property
    def _head(self):
        return self.head

    @_head.setter
    def _head(self, value: bytes):
        view = view_of(value)
        size: cython.longlong = HEAD_SIZE
        if view.size >= HEAD_SIZE:
            sys_flag = read32_signed(view, SYS_FLAG)
            if sys_flag & BORN_HOST_V6:
                size += MORE_FOR_V6
            if sys_flag & STORE_HOST_V6:
                size += MORE_FOR_V6
        if view.size != size:
            raise ValueError(f"a head of {len(value)} bytes")
        self.head = value

    @property
    def flag(self):
        """Return the application's 32 bits."""
        return read32_signed(view_of(self.head), FLAG)

    @property
    def physical_offset(self):
        """Return the position in the broker's commit log."""
        return read64(view_of(self.head), PHYSICAL_OFFSET)

    @property
    def sys_flag(self):
        """Return RocketMQ's flags."""
        return read32_signed(view_of(self.head), SYS_FLAG)

    @property
    def born_timestamp(self):
        """Return the time of sending."""
        return read64(view_of(self.head), BORN_TIMESTAMP)

    @property
    def store_timestamp(self):
        """Return the time of storing."""
        return read64(view_of(self.head), self.after_born_host(STORE_TIMESTAMP))

    @property
    def reconsume_times(self):
        """Return how many earlier deliveries failed."""
        stored = read32_signed(view_of(self.head), self.after_store_host(RECONSUME_TIMES))
        return stored + self.more_failures

    @property
    def prepared_transaction_offset(self):
        """Return the physical offset of the half message."""
        return read64(view_of(self.head), self.after_store_host(PREPARED_TRANSACTION_OFFSET))

    @property
    def _born_host(self):
        return bytes_in(
            view_of(self.head), BORN_HOST, self.after_born_host(BORN_HOST + HOST_SIZE_V4)
        )

    @property
    def _store_host(self):
        return bytes_in(
            view_of(self.head),
            self.after_born_host(STORE_HOST),
            self.after_store_host(STORE_HOST + HOST_SIZE_V4),
        )

    def count_failure(self) -> None:
        """Count a failed delivery within this consumer."""
        self.more_failures += 1

    def after_born_host(self, at):
        """Return the position of a field behind the born host."""
        if read32_signed(view_of(self.head), SYS_FLAG) & BORN_HOST_V6:
            return at + MORE_FOR_V6
        return at

    def after_store_host(self, at):
        """Return the position of a field behind both hosts."""
        if read32_signed(view_of(self.head), SYS_FLAG) & STORE_HOST_V6:
            at += MORE_FOR_V6
        return self.after_born_host(at)
