"""Commit-log records made for tests: any field, any hosts, also damaged ones."""

from __future__ import annotations

from pyromq.protocol.message.record import MessageRecord, encode_record
from pyromq.protocol.message.sysflag import BORN_HOST_V6, STORE_HOST_V6

BORN_TIME = 1_700_000_000_000


def make_record(
    *,
    topic: str = "TopicTest",
    properties: bytes = b"",
    body: bytes = b"body",
    physical_offset: int = 0,
    store_timestamp: int = BORN_TIME,
    sys_flag: int = 0,
    queue_id: int = 1,
    queue_offset: int = 7,
) -> bytes:
    """The bytes of one record."""
    record = MessageRecord(
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        body=body,
        properties={},
        flag=3,
        sys_flag=sys_flag,
        born_timestamp=BORN_TIME,
        born_host=("127.0.0.1", 40404),
        store_timestamp=store_timestamp,
        store_host=("127.0.0.1", 10911),
        reconsume_times=2,
        prepared_transaction_offset=11,
        body_crc=0,
        size=0,
        message_id="",
        raw_properties=properties,
    )
    born_host = b"B" * (20 if sys_flag & BORN_HOST_V6 else 8)
    store_host = b"S" * (20 if sys_flag & STORE_HOST_V6 else 8)
    return encode_record(record, born_host, store_host)


def positions(records: list[bytes]) -> list[int]:
    """Where each of these pieces begins when they stand one behind the other."""
    starts = []
    position = 0
    for record in records:
        starts.append(position)
        position += len(record)
    return starts
