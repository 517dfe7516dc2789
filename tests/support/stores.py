"""Message stores for tests: small files, one-line puts, what a kill leaves, an audit."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.message.properties import decode_properties
from pyromq.protocol.message.record import (
    MessageRecord,
    body_crc,
    decode_record,
    decode_records,
    encode_inner_message,
)
from pyromq.protocol.message.sysflag import is_consumable
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY_SIZE
from pyromq.store.config import MessageStoreConfig
from pyromq.store.message_store import MessageStore
from pyromq.store.results import GetStatus
from tests.support.patience import PATIENT_PROPERTIES, wait_until

STORE_HOST = encode_host("127.0.0.1", 10911)
STORE_HOST_V6 = encode_host("2001:db8::1", 10911)
BORN_HOST = encode_host("127.0.0.1", 40404)
BORN_HOST_V6 = encode_host("2001:db8::2", 40404)
BORN_TIME = 1_700_000_000_000
TOPIC = "TopicTest"
FOREVER = (1 << 63) - 1

SEGMENT = 64 * 1024
QUEUE_ENTRIES = 8


def small_config(root: Path, **changes: Any) -> MessageStoreConfig:
    """Settings that make files roll after a few messages."""
    settings: dict[str, Any] = {
        "store_path_root_dir": str(root),
        "mapped_file_size_commit_log": SEGMENT,
        "mapped_file_size_consume_queue": QUEUE_ENTRIES * CONSUME_QUEUE_ENTRY_SIZE,
        "max_hash_slot_num": 16,
        "max_index_num": 64,
        "sync_flush_timeout": int(PATIENT_PROPERTIES["syncFlushTimeout"]),
    }
    return MessageStoreConfig(**(settings | changes))


def open_store(root: Path, **changes: Any) -> MessageStore:
    """A started store on `root`."""
    store = MessageStore(small_config(root, **changes), STORE_HOST)
    store.start()
    return store


def reopened(store: MessageStore, **changes: Any) -> MessageStore:
    """The same directory again, after a clean stop."""
    store.stop()
    return open_store(store.config.root, **changes)


def properties_of(tags: str = "", keys: str = "", **others: str) -> bytes:
    """Properties as a record holds them."""
    named = {**others, **({"TAGS": tags} if tags else {}), **({"KEYS": keys} if keys else {})}
    return "\x02".join(f"{name}\x01{value}" for name, value in named.items()).encode()


def put(
    store: MessageStore,
    body: bytes = b"body",
    *,
    topic: str = TOPIC,
    queue_id: int = 0,
    tags: str = "",
    keys: str = "",
    born_host: bytes = BORN_HOST,
    sys_flag: int = 0,
) -> int:
    """Gather one message, without a seal; returns its physical offset."""
    return store.put(
        store.tail(topic, queue_id),
        body,
        properties_of(tags, keys),
        java_hash(tags),
        3,
        sys_flag,
        BORN_TIME,
        born_host,
        2,
    )


def put_batch(
    store: MessageStore,
    bodies: Sequence[bytes],
    *,
    topic: str = TOPIC,
    queue_id: int = 0,
    tags: str = "",
    properties: bytes = b"",
    born_host: bytes = BORN_HOST,
) -> list[int]:
    """Gather a batch, without a seal; returns the physical offsets."""
    own = properties_of(tags)
    return store.put_batch(
        store.tail(topic, queue_id),
        b"".join(encode_inner_message(body, own) for body in bodies),
        properties,
        0,
        BORN_TIME,
        born_host,
        0,
    )


def body_for(store: MessageStore, record_size: int, topic: str = TOPIC, queue_id: int = 0) -> bytes:
    """A body that makes a record without properties exactly so long."""
    return b"x" * (record_size - store.queue(topic, queue_id).fixed_size)


def read_all(
    store: MessageStore, topic: str = TOPIC, queue_id: int = 0, offset: int | None = None
) -> list[MessageRecord]:
    """Every message of a queue, pulled as a consumer does."""
    records: list[MessageRecord] = []
    if offset is None:
        offset = store.min_offset(topic, queue_id) or 0
    while True:
        result = store.get(topic, queue_id, offset, 32)
        if result.status is not GetStatus.FOUND:
            assert result.status in (
                GetStatus.OFFSET_OVERFLOW_ONE,
                GetStatus.NO_MATCHED_LOGIC_QUEUE,
                GetStatus.NO_MESSAGE_IN_QUEUE,
            ), result
            return records
        found = decode_records(b"".join(result.pieces))
        assert [record.queue_offset for record in found] == list(
            range(offset, offset + result.count)
        )
        assert result.next_offset == offset + result.count
        assert result.size == sum(record.size for record in found)
        records += found
        offset = result.next_offset


def bodies(store: MessageStore, topic: str = TOPIC, queue_id: int = 0) -> list[bytes]:
    """The bodies of every message of a queue."""
    return [record.body for record in read_all(store, topic, queue_id)]


def killed_copy(store: MessageStore, target: Path) -> Path:
    """What a kill -9 at this moment would leave behind: a copy of the files as they are.

    The key index is let come to rest, since a copy of several files is not of one moment.
    """
    wait_until(lambda: store.dispatch_behind == 0)
    shutil.copytree(store.config.root, target)
    assert (target / "abort").exists()
    return target


def log_records(store: MessageStore) -> list[MessageRecord]:
    """Every record of the log, in its order."""
    size = store.config.mapped_file_size_commit_log
    records = []
    offset, end = store.min_physical_offset, store.max_physical_offset
    while offset < end:
        data = store.read_record(offset)
        if data is None:
            offset = offset - offset % size + size
            continue
        records.append(decode_record(data))
        offset += len(data)
    return records


def audit(store: MessageStore) -> list[MessageRecord]:
    """Check that log, consume queues and key index agree; returns the log's records."""
    store.seal()
    records = log_records(store)
    places: dict[tuple[str, int, int], MessageRecord] = {}
    for record in records:
        assert record.body_crc == body_crc(record.body), record.physical_offset
        if is_consumable(record.sys_flag):
            places[record.topic, record.queue_id, record.queue_offset] = record
    pointed_at = 0
    for queue in store.queues():
        for offset in range(queue.min_offset, queue.next_offset):
            record = places[queue.topic, queue.queue_id, offset]
            tags_code = java_hash(record.properties.get("TAGS", ""))
            assert queue.entry(offset) == (record.physical_offset, record.size, tags_code)
            pointed_at += 1
    assert pointed_at == len(places), "records without an entry, or the reverse"
    wait_until(lambda: store.dispatch_behind == 0)
    for record in records:
        for key in decode_properties(record.raw_properties).get("KEYS", "").split():
            found = store.query(record.topic, key, 1_000_000, 0, FOREVER)
            assert record.physical_offset in found, (record.topic, key)
    return records
