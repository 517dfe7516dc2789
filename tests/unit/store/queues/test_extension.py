"""The consume queue's extension alone: units, ends of files, recovery. Java's in tests/golden."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pyromq.protocol.filter.tags import TagFilter
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.record import decode_records
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY, EXTENSION_BASE
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.check import check_store
from pyromq.store.offline.rebuild import rebuild_store
from pyromq.store.queues.extension import (
    ConsumeQueueExt,
    ExtensionUnit,
    is_address,
    refuse_other_size,
)
from pyromq.store.results import StoreError
from tests.support.patience import wait_until
from tests.support.stores import QUEUE_ENTRIES, STORE_HOST, TOPIC, audit, killed_copy, small_config
from tests.support.stores import put as put_message

#: Room for three units without a bit map and the end.
SIZE = 3 * 20 + 4


def make(directory: Path, size: int = SIZE) -> ConsumeQueueExt:
    return ConsumeQueueExt(directory, size, "Topic", 0, lambda _offset, _size: b"")


def put(extension: ConsumeQueueExt, count: int) -> list[int]:
    addresses = [extension.put(ExtensionUnit(number, 100 + number)) for number in range(count)]
    return [address for address in addresses if address is not None]


def test_units_are_found_at_their_addresses(tmp_path: Path) -> None:
    extension = make(tmp_path)
    addresses = put(extension, 7)
    assert [address + EXTENSION_BASE for address in addresses] == [0, 20, 40, 64, 84, 104, 128]
    assert all(map(is_address, addresses))
    for number, address in enumerate(addresses):
        assert extension.get(address) == ExtensionUnit(number, 100 + number)
    assert extension.get(addresses[-1] + 20) is None
    assert extension.get(addresses[1] + 1) is None
    assert extension.segments.files[0].read(60, 64) == b"\xff\xff\0\0"
    extension.segments.close()


def test_a_unit_that_fits_no_file_is_not_kept(tmp_path: Path) -> None:
    extension = make(tmp_path)
    assert extension.put(ExtensionUnit(1, 2, bytes(41))) is None
    assert extension.put(ExtensionUnit(1, 2, bytes(40))) == -EXTENSION_BASE
    extension.segments.close()


def test_an_entry_without_a_record_keeps_its_tags_code(tmp_path: Path) -> None:
    extension = make(tmp_path)
    entries = bytearray(CONSUME_QUEUE_ENTRY.pack(0, 100, 7))
    extension.take_over(entries)
    assert CONSUME_QUEUE_ENTRY.unpack(entries) == (0, 100, 7)
    assert extension.end == 0


@pytest.mark.parametrize("kept", range(1, 8))
def test_units_behind_the_last_address_are_dropped(tmp_path: Path, kept: int) -> None:
    extension = make(tmp_path)
    addresses = put(extension, 7)
    extension.segments.close()
    again = make(tmp_path)
    again.segments.load()
    again.truncate(addresses[kept - 1])
    assert again.damage is None
    assert again.end == addresses[kept - 1] + EXTENSION_BASE + 20
    assert [again.get(address) is not None for address in addresses] == [
        number < kept for number in range(7)
    ]
    again.segments.close()


def test_a_lost_unit_is_named(tmp_path: Path) -> None:
    extension = make(tmp_path)
    put(extension, 2)
    extension.recover(-EXTENSION_BASE + 40)
    assert extension.damage == "its extension has no unit at 40"
    assert extension.end == 40
    extension.segments.close()


def test_files_before_the_first_message_expire(tmp_path: Path) -> None:
    extension = make(tmp_path)
    addresses = put(extension, 9)
    assert extension.take_expired(addresses[3]) == []  # as Java: its file begins there
    assert [file.base for file in extension.take_expired(addresses[7])] == [0, SIZE]
    extension.delete()


def test_another_segment_size_is_refused(tmp_path: Path) -> None:
    extension = make(tmp_path)
    put(extension, 1)
    extension.segments.close()
    refuse_other_size(tmp_path, SIZE)
    with pytest.raises(StoreError, match="mappedFileSizeConsumeQueueExt"):
        refuse_other_size(tmp_path, SIZE + 1)


# In a store

UNITS_OF_A_FILE = 4092 // 22


def bit_map_of(topic: str, properties: dict[str, str]) -> bytes | None:
    """Two bytes for some messages, nothing for the others."""
    assert topic == TOPIC
    tags = properties["TAGS"]
    return None if tags == "tag0" else tags[-2:].encode()


def open_with_units(root: Path, **changes: Any) -> MessageStore:
    settings = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 4096}
    config = small_config(root, **settings | changes)
    store = MessageStore(config, STORE_HOST, bit_map_of=bit_map_of)
    store.start()
    return store


def fill(store: MessageStore, count: int, size: int = 10) -> None:
    for number in range(count):
        put_message(store, b"x" * size, tags=f"tag{number % 3}")
        if number % 4 == 0:
            store.seal()
    store.seal()


def extension_of(store: MessageStore) -> ConsumeQueueExt:
    extension = store.queue(TOPIC, 0).extension
    assert extension is not None
    return extension


def addresses_of(store: MessageStore) -> list[int]:
    return [tags_code for _, _, tags_code in store.queue(TOPIC, 0).entries()]


def test_every_message_that_is_put_gets_a_unit(tmp_path: Path) -> None:
    store = open_with_units(tmp_path)
    fill(store, 2 * UNITS_OF_A_FILE)
    extension = extension_of(store)
    assert len(extension.segments.files) > 1
    for record, address in zip(audit(store), addresses_of(store), strict=True):
        tags = record.properties["TAGS"]
        assert extension.get(address) == ExtensionUnit(
            java_hash(tags), record.store_timestamp, b"" if tags == "tag0" else tags[-2:].encode()
        )
    store.stop()
    assert list(check_store(tmp_path, store.config)) == []


def test_pulls_go_by_the_tags_of_the_units(tmp_path: Path) -> None:
    store = open_with_units(tmp_path)
    fill(store, 30)
    result = store.get(TOPIC, 0, 0, 32, TagFilter([java_hash("tag1")]))
    found = decode_records(b"".join(result.pieces))
    # A pull reads the entries of one file.
    assert [record.queue_offset for record in found] == list(range(1, QUEUE_ENTRIES, 3))


@pytest.mark.parametrize("killed", [False, True])
def test_units_go_on_after_a_restart(tmp_path: Path, killed: bool) -> None:
    store = open_with_units(tmp_path / "store")
    fill(store, UNITS_OF_A_FILE + 5)
    root = killed_copy(store, tmp_path / "killed") if killed else store.config.root
    before = addresses_of(store)
    store.stop()
    again = open_with_units(root)
    fill(again, 5)
    addresses = addresses_of(again)
    assert addresses[: len(before)] == before
    assert addresses == sorted(set(addresses))
    audit(again)
    again.stop()
    assert list(check_store(root, again.config)) == []


async def test_units_expire_with_their_messages(tmp_path: Path) -> None:
    store = open_with_units(
        tmp_path, mapped_file_size_commit_log=4096, delete_consume_queue_files_interval=0
    )
    fill(store, 4 * UNITS_OF_A_FILE, size=300)
    extension = extension_of(store)
    directory = extension.segments.directory
    files = sorted(path.name for path in directory.iterdir())
    assert len(files) == 4
    store._log.flush()
    for file in store._log.segments.files:
        os.utime(file.path, (0, 0))
    store.retention.execute_delete_files_manually()
    for _ in range(6):
        await store.retention.clean()
    queue = store.queue(TOPIC, 0)
    left = sorted(path.name for path in directory.iterdir())
    assert left == [file.path.name for file in extension.segments.files]
    assert len(left) < len(files)
    for offset in range(queue.min_offset, queue.next_offset):
        entry = queue.entry(offset)
        assert entry is not None
        assert entry[2] == java_hash(f"tag{offset % 3}")
    audit(store)
    wait_until(lambda: store.dispatch_behind == 0)
    store.stop()
    assert list(check_store(tmp_path, store.config)) == []
    again = open_with_units(tmp_path, mapped_file_size_commit_log=4096)
    fill(again, 3)
    audit(again)
    again.stop()


def test_a_rebuild_makes_units_without_bit_maps(tmp_path: Path) -> None:
    store = open_with_units(tmp_path)
    fill(store, 2 * UNITS_OF_A_FILE)
    store.stop()
    (tmp_path / "consumequeue_ext" / TOPIC / "0" / f"{0:020d}").write_bytes(b"\x01" * 4096)
    assert list(check_store(tmp_path, store.config)) != []
    made = rebuild_store(store.config)
    assert made.entries == 2 * UNITS_OF_A_FILE
    assert list(check_store(tmp_path, store.config)) == []
    again = open_with_units(tmp_path)
    extension = extension_of(again)
    units = [extension.get(address) for address in addresses_of(again)]
    assert {unit.bit_map for unit in units if unit is not None} == {b""}
    assert None not in units
    audit(again)
    again.stop()
