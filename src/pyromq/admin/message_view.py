"""`MessageView`: a stored message with everything that an operator may want to see.

Made from records of pulls, queries by key and queries by id. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyromq.protocol.message.compression import CompressionError, decompress
from pyromq.protocol.message.message_id import format_address
from pyromq.protocol.message.properties import KEY_SEPARATOR, KEYS, TAGS, UNIQ_KEY
from pyromq.protocol.message.record import MessageRecord, decode_records


@dataclass(frozen=True, slots=True)
class MessageView:
    """A stored message. Times are in milliseconds since the epoch."""

    #: The id that the producer assigned, or else the offset message id.
    msg_id: str
    #: The id that encodes the message's broker and physical offset.
    offset_msg_id: str
    topic: str
    #: Empty if the message was found by its offset message id.
    broker_name: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    tags: str
    keys: str
    #: All properties: the application's, the client's and the broker's.
    properties: dict[str, str]
    #: The body, decompressed; empty if `problem` says why that failed.
    body: bytes
    #: The body as it is stored, possibly compressed (see `sys_flag`).
    raw_body: bytes = field(repr=False)
    problem: str
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    #: Bytes of the record.
    store_size: int
    body_crc: int

    def has_key(self, key: str) -> bool:
        """Return whether the message is indexed under this key."""
        return key in self.keys.split(KEY_SEPARATOR)


def view(record: MessageRecord, broker_name: str = "") -> MessageView:
    """Return the message of a record."""
    properties = record.properties
    problem = ""
    try:
        body = decompress(record.body, record.sys_flag)
    except CompressionError as error:
        body, problem = b"", str(error)
    return MessageView(
        msg_id=properties.get(UNIQ_KEY) or record.message_id,
        offset_msg_id=record.message_id,
        topic=record.topic,
        broker_name=broker_name,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        tags=properties.get(TAGS, ""),
        keys=properties.get(KEYS, ""),
        properties=properties,
        body=body,
        raw_body=record.body,
        problem=problem,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=format_address(*record.born_host),
        store_timestamp=record.store_timestamp,
        store_host=format_address(*record.store_host),
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
        store_size=record.size,
        body_crc=record.body_crc,
    )


def views(body: bytes, broker_name: str = "") -> list[MessageView]:
    """Return the messages of a response's body. Raises ValueError."""
    return [view(record, broker_name) for record in decode_records(body)]
