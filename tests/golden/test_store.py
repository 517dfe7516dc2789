"""Read, rebuild and serve store directories that Java wrote, byte for byte."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.message.record import BLANK, BLANK_MAGIC, decode_record, encode_record
from pyromq.protocol.message.units import CHECKPOINT, CONSUME_QUEUE_ENTRY, CONSUME_QUEUE_ENTRY_SIZE
from pyromq.store.config import MessageStoreConfig
from pyromq.store.index.index import KeyIndex
from pyromq.store.message_store import MessageStore
from pyromq.store.results import GetStatus
from tests.golden.golden_data import (
    COMMIT_LOG_SEGMENT,
    CONSUME_QUEUE_SEGMENT,
    INDEX_ENTRIES,
    INDEX_SLOTS,
    Entry,
    read_index,
    unpack_store,
)

STORES = ["store-written", "store-broker"]
#: Where delayed messages wait; the one in store-written has the last of 18 levels.
DELAY_QUEUE = "consumequeue/SCHEDULE_TOPIC_XXXX/17/00000000000000000000"


class GoldenStore:
    """An unpacked store directory, and the content that Java read from it."""

    def __init__(self, name: str, root: Path) -> None:
        self.root = root
        self.index: Entry = read_index(name)
        unpack_store(name, root)
        segments = sorted((root / "commitlog").iterdir())
        self.log = b"".join(segment.read_bytes() for segment in segments)

    def record(self, entry: Entry) -> bytes:
        start: int = entry["offset"]
        return self.log[start : start + entry["size"]]

    def config(self) -> MessageStoreConfig:
        return MessageStoreConfig(
            store_path_root_dir=str(self.root),
            mapped_file_size_commit_log=COMMIT_LOG_SEGMENT,
            mapped_file_size_consume_queue=CONSUME_QUEUE_SEGMENT,
            max_hash_slot_num=INDEX_SLOTS,
            max_index_num=INDEX_ENTRIES,
        )

    def derived_files(self) -> dict[str, bytes]:
        """Return every file that can be rebuilt from the log; index files by rank."""
        queues = sorted((self.root / "consumequeue").rglob("*"))
        files = {
            str(path.relative_to(self.root)): path.read_bytes() for path in queues if path.is_file()
        }
        for number, path in enumerate(sorted((self.root / "index").iterdir())):
            files[f"index {number}"] = path.read_bytes()
        return files


@pytest.fixture(params=STORES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> GoldenStore:
    return GoldenStore(request.param, tmp_path / "store")


@pytest.fixture
def served(golden: GoldenStore) -> Iterator[MessageStore]:
    store = MessageStore(golden.config(), encode_host("127.0.0.1", 10911))
    store.start()
    yield store
    store.stop()


def test_the_data_covers_enough(golden: GoldenStore) -> None:
    assert golden.index["blanks"], "the log did not roll"
    assert len(list((golden.root / "index").iterdir())) > 1, "the index did not roll"
    assert any(record["properties"].get("KEYS", "").count(" ") for record in records(golden))
    assert any(record["sysFlag"] & 1 for record in records(golden)), "no compressed body"


def test_hosts_and_transactions_are_there(tmp_path: Path) -> None:
    flags = {record["sysFlag"] for record in records(GoldenStore("store-written", tmp_path))}
    assert {0x10, 0x20, 0x30, 0x4, 0x8, 0xC} <= flags


def test_records_read_as_in_java(golden: GoldenStore) -> None:
    for entry in records(golden):
        record = decode_record(golden.log, entry["offset"])
        born = encode_host(*record.born_host)
        stored = encode_host(*record.store_host)
        assert {
            "offset": record.physical_offset,
            "size": record.size,
            "id": record.message_id,
            "topic": record.topic,
            "queueId": record.queue_id,
            "queueOffset": record.queue_offset,
            "flag": record.flag,
            "sysFlag": record.sys_flag,
            "bodyCrc": record.body_crc,
            "bornTimestamp": record.born_timestamp,
            "bornHost": {"ip": born[:-4].hex(), "port": int.from_bytes(born[-4:], "big")},
            "storeTimestamp": record.store_timestamp,
            "storeHost": {"ip": stored[:-4].hex(), "port": int.from_bytes(stored[-4:], "big")},
            "reconsumeTimes": record.reconsume_times,
            "preparedTransactionOffset": record.prepared_transaction_offset,
            "body": record.body.hex(),
            "properties": record.properties,
        } == entry


def test_records_equal_those_of_java(golden: GoldenStore) -> None:
    for entry in records(golden):
        record = decode_record(golden.log, entry["offset"])
        written = encode_record(
            record, encode_host(*record.born_host), encode_host(*record.store_host)
        )
        assert written == golden.record(entry)


def test_blank_records_fill_segments(golden: GoldenStore) -> None:
    for blank in golden.index["blanks"]:
        size, magic = BLANK.unpack_from(golden.log, blank["offset"])
        assert (size, magic) == (blank["size"], BLANK_MAGIC)
        assert (blank["offset"] + size) % COMMIT_LOG_SEGMENT == 0


def test_consume_queues_read_as_in_java(golden: GoldenStore) -> None:
    for queue in golden.index["consumeQueues"]:
        directory = golden.root / "consumequeue" / queue["topic"] / str(queue["queueId"])
        data = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
        count = len(queue["entries"])
        used = data[: count * CONSUME_QUEUE_ENTRY_SIZE]
        assert [list(entry) for entry in CONSUME_QUEUE_ENTRY.iter_unpack(used)] == queue["entries"]
        assert not any(data[len(used) :])


def test_checkpoint_names_stored_messages(golden: GoldenStore) -> None:
    times = CHECKPOINT.unpack_from((golden.root / "checkpoint").read_bytes())
    stored = {record["storeTimestamp"] for record in records(golden)}
    assert set(times[:2]) <= stored


def test_key_index_finds_the_same_as_java(golden: GoldenStore) -> None:
    index = KeyIndex(golden.root / "index", hash_slot_count=INDEX_SLOTS, entry_count=INDEX_ENTRIES)
    index.load()
    for query in golden.index["queries"]:
        found = index.query(query["topic"], query["key"], 32, 0, 1 << 62)
        assert sorted(set(found)) == query["offsets"], query
    index.close()


@pytest.mark.parametrize("at_once", [1, 5, 1000])
def test_key_index_is_built_byte_for_byte(
    golden: GoldenStore, tmp_path: Path, at_once: int
) -> None:
    index = KeyIndex(tmp_path / "built", hash_slot_count=INDEX_SLOTS, entry_count=INDEX_ENTRIES)
    index.load()
    starts = [record["offset"] for record in records(golden)]
    for first in range(0, len(starts), at_once):
        index.put(golden.log, starts[first : first + at_once])
    index.flush()
    index.close()
    ours, java = (
        [path.read_bytes() for path in sorted(directory.iterdir())]
        for directory in (tmp_path / "built", golden.root / "index")
    )
    assert ours == java


def test_store_serves_every_queue(golden: GoldenStore, served: MessageStore) -> None:
    by_offset = {record["offset"]: golden.record(record) for record in records(golden)}
    for queue in golden.index["consumeQueues"]:
        topic, queue_id, entries = queue["topic"], queue["queueId"], queue["entries"]
        assert served.min_offset(topic, queue_id) == queue["minOffset"]
        assert served.max_offset(topic, queue_id) == len(entries)
        given, offset = b"", 0
        while offset < len(entries):
            result = served.get(topic, queue_id, offset, 32)
            assert result.status is GetStatus.FOUND
            given += b"".join(result.pieces)
            offset = result.next_offset
        assert given == b"".join(by_offset[entry[0]] for entry in entries)


def test_store_serves_queries(golden: GoldenStore, served: MessageStore) -> None:
    assert served.max_physical_offset == golden.index["maxOffset"]
    for query in golden.index["queries"]:
        found = served.query(query["topic"], query["key"], 32, 0, 1 << 62)
        assert sorted(set(found)) == query["offsets"]


def test_store_leaves_java_files_as_they_were(golden: GoldenStore) -> None:
    before = golden.derived_files()
    store = MessageStore(golden.config(), encode_host("127.0.0.1", 10911))
    store.start()
    store.stop()
    assert golden.derived_files() == before
    used = golden.index["maxOffset"]
    after = b"".join(path.read_bytes() for path in sorted((golden.root / "commitlog").iterdir()))
    assert after[:used] == golden.log[:used]


def test_store_rebuilds_lost_files(golden: GoldenStore) -> None:
    before, after = rebuilt(golden)
    assert after == before


def test_store_rebuilds_delay_queues(tmp_path: Path) -> None:
    before, after = rebuilt(GoldenStore("store-written", tmp_path / "store"))
    assert after[DELAY_QUEUE] == before[DELAY_QUEUE]


def rebuilt(golden: GoldenStore) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """After a crash, the log suffices to rebuild consume queues, index and checkpoint."""
    before = golden.derived_files()
    shutil.rmtree(golden.root / "consumequeue")
    shutil.rmtree(golden.root / "index")
    (golden.root / "checkpoint").unlink()
    (golden.root / "abort").touch()
    store = MessageStore(golden.config(), encode_host("127.0.0.1", 10911))
    store.start()
    store.stop()
    return before, golden.derived_files()


def records(golden: GoldenStore) -> list[Entry]:
    found: list[Entry] = golden.index["records"]
    return found
