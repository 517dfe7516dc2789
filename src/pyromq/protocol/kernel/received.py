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
    read32_signed,
    read64,
    view_of,
)
from cython.cimports.pyromq.protocol.kernel.records import fill_layout, read_record, record_size

from pyromq.protocol.message import record as layout
from pyromq.protocol.message import sysflag
from pyromq.protocol.message.message_id import HOST_SIZE_V4 as _HOST_SIZE_V4
from pyromq.protocol.message.message_id import HOST_SIZE_V6 as _HOST_SIZE_V6

fill_layout(cython.address(LAYOUT))
HEAD_SIZE = layout.HEAD_SIZE_V4
HOST_SIZE_V4 = _HOST_SIZE_V4
MORE_FOR_V6 = _HOST_SIZE_V6 - _HOST_SIZE_V4
COMPRESSED = sysflag.COMPRESSED
BORN_HOST_V6 = sysflag.BORN_HOST_V6
STORE_HOST_V6 = sysflag.STORE_HOST_V6
FLAG = layout.FLAG_AT
QUEUE_OFFSET = layout.QUEUE_OFFSET_AT
PHYSICAL_OFFSET = layout.PHYSICAL_OFFSET_AT
SYS_FLAG = layout.SYS_FLAG_AT
BORN_TIMESTAMP = layout.BORN_TIMESTAMP_AT
BORN_HOST = layout.BORN_HOST_AT
STORE_TIMESTAMP = layout.STORE_TIMESTAMP_AT
STORE_HOST = layout.STORE_HOST_AT
RECONSUME_TIMES = layout.RECONSUME_TIMES_AT
PREPARED_TRANSACTION_OFFSET = layout.PREPARED_OFFSET_AT
EMPTY_HEAD = bytes(layout.HEAD_SIZE_V4)


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
    place: Place
    record = cython.address(place)
    while at < view.size:
        size = record_size(view, at, view.size, cython.address(LAYOUT))
        if (
            not size
            or not read_record(view, at, size, cython.address(LAYOUT), record)
            or record.sys_flag & COMPRESSED
            or record.topic_end - record.topic + 1 != known_topic.size
            or not is_at(view, record.topic - 1, record.topic_end, known_topic)
        ):
            return None
        body_end = record.topic - 1
        message: Record = message_type()
        message.topic = name
        message.queue = queue
        message.queue_offset = read64(view, at + QUEUE_OFFSET)
        message.body_size = body_end - record.body
        message.readable_body = bytes_in(view, record.body, body_end)
        message._all_properties = bytes_in(view, record.properties, record.end)
        message.head = bytes_in(view, at, record.body)
        messages.append(message)
        at = record.end
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
