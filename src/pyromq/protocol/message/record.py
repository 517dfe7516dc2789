"""Encode and decode the commit-log record, which stores one message in the log and in responses
to pulls.

     #  field                        bytes
     1  totalSize                    4
     2  magic                        4   MESSAGE_MAGIC, or BLANK_MAGIC to the segment's end
     3  bodyCRC                      4   CRC-32 & 0x7FFFFFFF
     4  queueId                      4
     5  flag                         4   set by the application
     6  queueOffset                  8
     7  physicalOffset               8   the record's own offset in the log
     8  sysFlag                      4
     9  bornTimestamp                8
    10  bornHost ip, port            8, or 20 with BORN_HOST_V6
    11  storeTimestamp               8
    12  storeHost ip, port           8, or 20 with STORE_HOST_V6
    13  reconsumeTimes               4
    14  preparedTransactionOffset    8
    15  bodyLength, body             4 + n
    16  topicLength, topic           1 + n (n <= 127)
    17  propertiesLength, properties 2 + n (n <= 32,767)

Inner message of a batch request (sent by the producer for each message):
    totalSize 4 | magic 4 | bodyCRC 4 | flag 4 | bodyLength 4, body
    | propertiesLength 2, properties

Rules
1. Big endian. totalSize covers the whole record and equals the sum of its fields.
2. A record never crosses a segment border. At least BLANK_SIZE bytes after the last record are
   reserved for the blank record, whose totalSize is the rest of the segment.
3. The host bits of sysFlag determine the lengths of the two hosts.

Pure. `store` packs heads with these structs and copies the other fields. No other module knows an
offset of this layout, except `bulk`, which reads many records at once, and `batch_bodies`, which
encodes many inner messages at once.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pyromq.protocol.message.crc import CRC_MASK, crc32
from pyromq.protocol.message.message_id import (
    HOST_SIZE_V4,
    HOST_SIZE_V6,
    decode_host,
    encode_message_id,
)
from pyromq.protocol.message.properties import MAX_PROPERTIES, decode_properties
from pyromq.protocol.message.sysflag import BORN_HOST_V6, COMPRESSED, HOST_MASK, STORE_HOST_V6

MESSAGE_MAGIC: Final = 0xDAA320A7
BLANK_MAGIC: Final = 0xCBD43194
MAX_TOPIC: Final = 127

#: Fields 1 and 2; a blank record has no others.
BLANK = struct.Struct(">II")
BLANK_SIZE: Final = 8
assert BLANK.size == BLANK_SIZE

#: Fields 1 to 7 of a record: they differ between the records of a batch ...
BATCH_HEAD = struct.Struct(">iIiiiqq")
#: ... and fields 8 to 14, which all records of a batch share, by the host bits of sysFlag.
_SHARED = {
    0: struct.Struct(">iq8sq8siq"),
    BORN_HOST_V6: struct.Struct(">iq20sq8siq"),
    STORE_HOST_V6: struct.Struct(">iq8sq20siq"),
    HOST_MASK: struct.Struct(">iq20sq20siq"),
}
#: Fields 1 to 14 and bodyLength, by the host bits of sysFlag.
_HEADS = {
    bits: struct.Struct(BATCH_HEAD.format + shared.format[1:] + "i")
    for bits, shared in _SHARED.items()
}
HEAD_SIZE_V4: Final = 88
assert _HEADS[0].size == HEAD_SIZE_V4
assert _HEADS[HOST_MASK].size == HEAD_SIZE_V4 + 24
#: totalSize, magic, queueOffset, sysFlag and bodyLength of a record with IPv4 hosts: enough to
#: check a record and to find the next one.
SCANNED_HEAD = struct.Struct(">iI12xq8xi44xi")
assert SCANNED_HEAD.size == HEAD_SIZE_V4
#: Bytes of the length fields of topic and properties.
TAIL_LENGTHS: Final = 3

#: totalSize, flag and bodyLength of an inner message.
INNER_HEAD = struct.Struct(">i8xii")
INNER_HEAD_SIZE: Final = 20
assert INNER_HEAD.size == INNER_HEAD_SIZE
#: Bytes of an inner message without body and properties.
INNER_FIXED_SIZE: Final = 22
#: The position of bodyLength in an inner message.
INNER_BODY_LENGTH: Final = 16

#: Positions of fields in a record.
MAGIC_AT: Final = 4
BODY_CRC_AT: Final = 8
QUEUE_ID_AT: Final = 12
FLAG_AT: Final = 16
QUEUE_OFFSET_AT: Final = 20
PHYSICAL_OFFSET_AT: Final = 28
SYS_FLAG_AT: Final = 36
assert BATCH_HEAD.size == SYS_FLAG_AT
BORN_TIMESTAMP_AT: Final = 40
BORN_HOST_AT: Final = 48
#: The position of storeTimestamp with an IPv4 born host.
STORE_TIMESTAMP_AT: Final = 56
#: Positions with two IPv4 hosts; bodyLength is the last field of the head.
STORE_HOST_AT: Final = 64
RECONSUME_TIMES_AT: Final = 72
PREPARED_OFFSET_AT: Final = 76
BODY_LENGTH_AT: Final = 84
#: The same by the fields' names, without the two lengths and the magic.
FIELD_OFFSETS: Final = {
    "queueId": QUEUE_ID_AT,
    "flag": FLAG_AT,
    "queueOffset": QUEUE_OFFSET_AT,
    "physicalOffset": PHYSICAL_OFFSET_AT,
    "sysFlag": SYS_FLAG_AT,
    "bornTimestamp": BORN_TIMESTAMP_AT,
    "bornHost": BORN_HOST_AT,
    "storeTimestamp": STORE_TIMESTAMP_AT,
    "storeHost": STORE_HOST_AT,
    "reconsumeTimes": RECONSUME_TIMES_AT,
    "preparedTransactionOffset": PREPARED_OFFSET_AT,
    "bodyCRC": BODY_CRC_AT,
}
assert BODY_LENGTH_AT + 4 == HEAD_SIZE_V4
#: `read_raw_properties` reads larger records without their bodies.
_WHOLE_READ_SIZE: Final = 4096
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_SHORT = struct.Struct(">H")
#: propertiesLength of a record and of an inner message.
PROPERTIES_LENGTH: Final = _SHORT


class RecordError(ValueError):
    """Bytes that are not a valid record."""


@dataclass(slots=True)
class MessageRecord:
    """A record of the log. `body` is as the producer sent it, possibly compressed."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: dict[str, str]
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: tuple[str, int]
    store_timestamp: int
    store_host: tuple[str, int]
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    size: int
    message_id: str
    raw_properties: bytes = field(repr=False, default=b"")

    @property
    def is_compressed(self) -> bool:
        """Whether `body` is compressed."""
        return self.sys_flag & COMPRESSED != 0


def body_crc(body: bytes) -> int:
    """Compute a record's bodyCRC."""
    return crc32(body) & CRC_MASK


def head_packer(sys_flag: int) -> Callable[..., bytes]:
    """Return a function that packs fields 1 to 14 and bodyLength of records with this sysFlag."""
    return _HEADS[sys_flag & HOST_MASK].pack


def head_unpacker(sys_flag: int) -> Callable[[bytes, int], tuple[Any, ...]]:
    """Return a function that unpacks them from a buffer and an offset."""
    return _HEADS[sys_flag & HOST_MASK].unpack_from


def unpack_head(head: bytes) -> tuple[Any, ...]:
    """Unpack fields 1 to 14 and bodyLength from exactly their bytes."""
    (sys_flag,) = _INT.unpack_from(head, SYS_FLAG_AT)
    return _HEADS[sys_flag & HOST_MASK].unpack(head)


def shared_packer(sys_flag: int) -> Callable[..., bytes]:
    """Return a function that packs fields 8 to 14, which all records of a batch share."""
    return _SHARED[sys_flag & HOST_MASK].pack


def head_size(sys_flag: int) -> int:
    """Return the size of fields 1 to 14 and bodyLength."""
    return _HEADS[sys_flag & HOST_MASK].size


def topic_part(topic: str) -> bytes:
    """Encode field 16. Raises RecordError."""
    data = topic.encode()
    if len(data) > MAX_TOPIC:
        raise RecordError(f"topic of {len(data)} bytes, limit {MAX_TOPIC}")
    return bytes((len(data),)) + data


def with_physical_offset(record: bytes, physical_offset: int) -> bytes:
    """Return a record for another place in the log."""
    end = PHYSICAL_OFFSET_AT + 8
    return record[:PHYSICAL_OFFSET_AT] + physical_offset.to_bytes(8, "big") + record[end:]


def encode_record(record: MessageRecord, born_host: bytes, store_host: bytes) -> bytes:
    """Encode a record; the store does the same field by field. Raises RecordError."""
    topic = topic_part(record.topic)
    properties = record.raw_properties
    _check_properties(properties)
    _check_host("born", born_host, is_v6=record.sys_flag & BORN_HOST_V6 != 0)
    _check_host("store", store_host, is_v6=record.sys_flag & STORE_HOST_V6 != 0)
    size = head_size(record.sys_flag) + len(record.body) + len(topic) + 2 + len(properties)
    head = head_packer(record.sys_flag)(
        size,
        MESSAGE_MAGIC,
        body_crc(record.body),
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        record.sys_flag,
        record.born_timestamp,
        born_host,
        record.store_timestamp,
        store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
        len(record.body),
    )
    return b"".join((head, record.body, topic, _SHORT.pack(len(properties)), properties))


def _check_properties(properties: bytes) -> None:
    if len(properties) > MAX_PROPERTIES:
        raise RecordError(f"properties of {len(properties)} bytes, limit {MAX_PROPERTIES}")


def _check_host(name: str, host: bytes, *, is_v6: bool) -> None:
    # A struct would silently cut or pad it.
    if len(host) != (HOST_SIZE_V6 if is_v6 else HOST_SIZE_V4):
        raise RecordError(f"{name} host of {len(host)} bytes contradicts the host bits of sysFlag")


def decode_record(buffer: bytes | memoryview, offset: int = 0) -> MessageRecord:
    """Decode the record at `offset`. Raises RecordError."""
    available = len(buffer) - offset
    if available < HEAD_SIZE_V4:
        raise RecordError(f"{available} bytes at {offset} are too few for a record")
    (sys_flag,) = _INT.unpack_from(buffer, offset + SYS_FLAG_AT)
    head = _HEADS[sys_flag & HOST_MASK]
    if available < head.size:
        raise RecordError(f"{available} bytes at {offset} are too few for a record with IPv6 hosts")
    (
        size,
        magic,
        crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        _,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_offset,
        body_length,
    ) = head.unpack_from(buffer, offset)
    if magic != MESSAGE_MAGIC:
        raise RecordError(f"magic {magic:#010x} at {offset} is not that of a message")
    end = offset + size
    body_start = offset + head.size
    topic_start = body_start + body_length + 1
    if size > available or body_length < 0 or topic_start > end:
        raise RecordError(f"record of {size} bytes with a body of {body_length} at {offset}")
    topic_length = buffer[topic_start - 1]
    properties_start = topic_start + topic_length + 2
    if topic_length > MAX_TOPIC or properties_start > end:
        raise RecordError(f"topic of {topic_length} bytes in record at {offset}")
    (properties_length,) = _SHORT.unpack_from(buffer, properties_start - 2)
    if properties_length > MAX_PROPERTIES or properties_start + properties_length != end:
        raise RecordError(f"properties of {properties_length} bytes in record at {offset}")
    raw_properties = bytes(buffer[properties_start:end])
    return MessageRecord(
        topic=bytes(buffer[topic_start : properties_start - 2]).decode(errors="replace"),
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        body=bytes(buffer[body_start : topic_start - 1]),
        properties=decode_properties(raw_properties),
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=decode_host(born_host),
        store_timestamp=store_timestamp,
        store_host=decode_host(store_host),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_offset,
        body_crc=crc,
        size=size,
        message_id=encode_message_id(store_host, physical_offset & 0xFFFFFFFFFFFFFFFF),
        raw_properties=raw_properties,
    )


def decode_records(buffer: bytes | memoryview) -> list[MessageRecord]:
    """Decode the consecutive records in the response to a pull. Raises RecordError."""
    records = []
    offset = 0
    while offset < len(buffer):
        record = decode_record(buffer, offset)
        records.append(record)
        offset += record.size
    return records


def read_raw_properties(read: Callable[[int, int], bytes], offset: int, size: int) -> bytes | None:
    """Return field 17 of the record of `size` bytes at `offset`; None if it cannot be read.

    `read(offset, size)` returns bytes of the log. A long body is not read.
    """
    data = read(offset, min(size, _WHOLE_READ_SIZE))
    if len(data) < HEAD_SIZE_V4:
        return None
    head = _HEADS[_INT.unpack_from(data, SYS_FLAG_AT)[0] & HOST_MASK].size
    if len(data) < head:
        return None
    topic_at = head + _INT.unpack_from(data, head - _INT.size)[0]
    if not head <= topic_at < size:
        return None
    if size > _WHOLE_READ_SIZE:
        data = read(offset + topic_at, size - topic_at)
        topic_at = 0
    if topic_at >= len(data):
        return None
    properties_at = topic_at + 1 + data[topic_at] + _SHORT.size
    if properties_at > len(data):
        return None
    (length,) = _SHORT.unpack_from(data, properties_at - _SHORT.size)
    return data[properties_at : properties_at + length]


def encode_inner_message(body: bytes, properties: bytes, flag: int = 0) -> bytes:
    """Encode one message of a batch request; the broker computes the CRC itself."""
    _check_properties(properties)
    size = INNER_FIXED_SIZE + len(body) + len(properties)
    return b"".join(
        (
            INNER_HEAD.pack(size, flag, len(body)),
            body,
            _SHORT.pack(len(properties)),
            properties,
        )
    )


def peek(buffer: bytes | memoryview) -> tuple[int, int]:
    """Return the size and magic of the record at the start of `buffer`; (0, 0) if too short."""
    if len(buffer) < BLANK_SIZE:
        return 0, 0
    size, magic = BLANK.unpack_from(buffer)
    return size, magic


def inner_count(batch: bytes, limit: int = sys.maxsize) -> int:
    """Count the messages in the body of a batch request, up to `limit`.

    A truncated message counts, and ends the count.
    """
    count = position = 0
    while position + INNER_HEAD_SIZE <= len(batch) and count < limit:
        count += 1
        (size,) = _INT.unpack_from(batch, position)
        if size < INNER_FIXED_SIZE:
            break
        position += size
    return count


def names_offset(head: bytes | memoryview, offset: int) -> bool:
    """Whether `head` starts a record whose physicalOffset is `offset`."""
    return (
        len(head) >= PHYSICAL_OFFSET_AT + _LONG.size
        and peek(head)[1] == MESSAGE_MAGIC
        and bool(_LONG.unpack_from(head, PHYSICAL_OFFSET_AT)[0] == offset)
    )


def born_timestamp_at(buffer: bytes | memoryview, offset: int) -> int:
    """Return the bornTimestamp of the record at `offset`."""
    timestamp: int = _LONG.unpack_from(buffer, offset + BORN_TIMESTAMP_AT)[0]
    return timestamp


def store_timestamp_at(buffer: bytes | memoryview, offset: int) -> int:
    """Return the storeTimestamp of the record at `offset`."""
    (sys_flag,) = _INT.unpack_from(buffer, offset + SYS_FLAG_AT)
    shift = 12 if sys_flag & BORN_HOST_V6 else 0
    timestamp: int = _LONG.unpack_from(buffer, offset + STORE_TIMESTAMP_AT + shift)[0]
    return timestamp
