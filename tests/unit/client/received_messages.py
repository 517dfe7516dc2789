"""Messages as a pull returns them."""

from __future__ import annotations

from pyromq.client.received import ReceivedMessage, decode_messages
from pyromq.protocol.message.properties import decode_properties
from pyromq.protocol.message.record import MessageRecord, encode_record
from pyromq.protocol.wire.bodies import MessageQueue
from tests.unit.client.fake_cluster import HOST

QUEUE = MessageQueue("t", "b0", 0)


def received(
    offset: int,
    body: bytes = b"body",
    *,
    queue: MessageQueue = QUEUE,
    properties: bytes = b"",
    reconsume_times: int = 0,
    sys_flag: int = 0,
) -> ReceivedMessage:
    """Return a message at an offset of a queue."""
    record = MessageRecord(
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        physical_offset=1000 + offset,
        body=body,
        properties=decode_properties(properties),
        flag=3,
        sys_flag=sys_flag,
        born_timestamp=1,
        born_host=("127.0.0.1", 1),
        store_timestamp=2,
        store_host=("127.0.0.1", 10911),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=0,
        body_crc=0,
        size=0,
        message_id="",
        raw_properties=properties,
    )
    (message,) = decode_messages(encode_record(record, HOST, HOST), queue)
    return message
