"""Read, keep and rebuild a store that Java wrote with a consume-queue extension."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.protocol.filter.bloom import BloomFilter
from pyromq.protocol.filter.tags import TagFilter
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.message.record import decode_records
from pyromq.store.config import MessageStoreConfig
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.check import check_store
from tests.golden.golden_data import (
    COMMIT_LOG_SEGMENT,
    CONSUME_QUEUE_SEGMENT,
    EXTENSION_SEGMENT,
    INDEX_ENTRIES,
    INDEX_SLOTS,
    Entry,
    read_index,
    unpack_store,
)

QUEUES: list[Entry] = read_index("store-ext")
BLOOM = BloomFilter(20, 32)


def bit_map_of(topic: str, properties: dict[str, str]) -> bytes | None:
    """Apply the rules of the Java dispatcher."""
    assert topic in {"ExtTopic", "SCHEDULE_TOPIC_XXXX"}
    groups = properties.get("groups")
    if groups is None:
        return None
    bit_map = BLOOM.empty_map()
    for group in groups.split(","):
        BLOOM.add(BLOOM.positions(group), bit_map)
    return bytes(bit_map)


def config_for(root: Path, *, extension: bool = True) -> MessageStoreConfig:
    return MessageStoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=COMMIT_LOG_SEGMENT,
        mapped_file_size_consume_queue=CONSUME_QUEUE_SEGMENT,
        mapped_file_size_consume_queue_ext=EXTENSION_SEGMENT,
        enable_consume_queue_ext=extension,
        max_hash_slot_num=INDEX_SLOTS,
        max_index_num=INDEX_ENTRIES,
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    unpack_store("store-ext", tmp_path)
    return tmp_path


@pytest.fixture
def served(root: Path) -> Iterator[MessageStore]:
    store = MessageStore(config_for(root), encode_host("127.0.0.1", 10911))
    store.start()
    yield store
    store.stop()


def derived_files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.glob("consumequeue*/*/*/*"))
    }


def test_the_data_covers_enough(root: Path) -> None:
    units = [entry for queue in QUEUES for entry in queue["entries"]]
    assert {unit["unitSize"] for unit in units} == {20, 34}
    assert len(list(root.glob("consumequeue_ext/ExtTopic/0/*"))) == 3
    assert any(queue["topic"] == "SCHEDULE_TOPIC_XXXX" for queue in QUEUES)


def test_units_equal_those_that_java_reads(served: MessageStore) -> None:
    for golden in QUEUES:
        queue = served.queue(golden["topic"], golden["queueId"])
        assert queue.next_offset == len(golden["entries"])
        assert queue.extension is not None
        for offset, entry in enumerate(golden["entries"]):
            assert queue.entry(offset) == (entry["offset"], entry["size"], entry["tagsCode"])
            unit = queue.extension.get(entry["address"])
            assert unit is not None
            assert unit.size == entry["unitSize"]
            assert unit.store_timestamp == entry["storeTimestamp"]
            assert unit.bit_map.hex() == (entry["bitMap"] or "")


@pytest.mark.parametrize("crashed", [False, True])
def test_files_built_from_the_log_equal_those_of_java(root: Path, crashed: bool) -> None:
    java = derived_files(root)
    if crashed:
        (root / "abort").touch()
    else:
        shutil.rmtree(root / "consumequeue")
        shutil.rmtree(root / "consumequeue_ext")
    store = MessageStore(config_for(root), encode_host("127.0.0.1", 10911), bit_map_of=bit_map_of)
    store.start()
    store.stop()
    assert derived_files(root) == java


def test_a_clean_start_changes_nothing(root: Path) -> None:
    java = derived_files(root)
    store = MessageStore(config_for(root), encode_host("127.0.0.1", 10911))
    store.start()
    store.stop()
    assert derived_files(root) == java


def pulled(store: MessageStore, message_filter: TagFilter) -> list[str]:
    bodies = []
    offset = 0
    while offset < store.max_offset("ExtTopic", 0):
        result = store.get("ExtTopic", 0, offset, 32, message_filter)
        bodies += [record.body.decode() for record in decode_records(b"".join(result.pieces))]
        offset = result.next_offset
    return bodies


def test_pulls_are_filtered_by_the_units_tags(served: MessageStore) -> None:
    wanted = [
        f"m{number}" for number in range(330) if number % 4 == 2 and number % 5 and number % 11
    ]
    assert "m100" not in wanted  # it waits to be delivered
    assert pulled(served, TagFilter([java_hash("tag2")])) == wanted


def test_without_the_extension_everything_passes(root: Path) -> None:
    java = derived_files(root)
    store = MessageStore(config_for(root, extension=False), encode_host("127.0.0.1", 10911))
    store.start()
    assert len(pulled(store, TagFilter([java_hash("tag2")]))) == store.max_offset("ExtTopic", 0)
    store.stop()
    assert derived_files(root) == java


@pytest.mark.parametrize("sizes_known", [False, True])
def test_check_finds_nothing_wrong(root: Path, sizes_known: bool) -> None:
    assert list(check_store(root, config_for(root) if sizes_known else None)) == []
