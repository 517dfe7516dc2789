"""A store directory as an origin: the same messages that a broker would return."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.protocol.message.bulk import Buffer
from pyromq.protocol.message.record import MessageRecord, decode_record
from pyromq.protocol.message.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY, CONSUME_QUEUE_ENTRY_SIZE
from pyromq.spark.origins import store_files
from pyromq.spark.origins.origin import (
    Bounds,
    LostRecords,
    OriginError,
    Queue,
    QueueRange,
    RecordBlock,
)
from pyromq.spark.origins.store import LOG_TOPIC, LogRange, StoreOrigin
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.violation import Violation, ViolationKind
from tests.golden.golden_data import read_index, unpack_store
from tests.support.stores import (
    BORN_TIME,
    QUEUE_ENTRIES,
    SEGMENT,
    TOPIC,
    open_store,
    put,
    read_all,
)

#: Its position in a record with IPv4 hosts.
STORE_TIMESTAMP = 56
QUEUE = Queue(TOPIC, "broker-a", 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_store(tmp_path / "store")
    yield store
    store.stop()


@pytest.fixture
def origin(store: MessageStore) -> Iterator[StoreOrigin]:
    origin = StoreOrigin(store.config.root, "broker-a")
    yield origin
    origin.close()


def records_of(buffer: Buffer, block: RecordBlock) -> list[MessageRecord]:
    data = bytes(buffer)
    return [decode_record(data, start) for start in block.starts.tolist()]


def read(origin: StoreOrigin, wanted: QueueRange) -> tuple[list[MessageRecord], list[LostRecords]]:
    records: list[MessageRecord] = []
    lost: list[LostRecords] = []
    for block in origin.blocks(wanted):
        if isinstance(block, LostRecords):
            lost.append(block)
        else:
            assert (block.starts[1:] > block.starts[:-1]).all()
            records += records_of(block.buffer, block)
    return records, lost


def read_whole(origin: StoreOrigin, queue: Queue) -> list[MessageRecord]:
    records, lost = read(origin, QueueRange(queue, *origin.bounds([queue])[queue]))
    assert not lost
    return records


def fill(store: MessageStore, count: int, **options: object) -> None:
    for number in range(count):
        put(store, b"%d" % number * 30, **options)  # type: ignore[arg-type]
        store.seal()


def segments(store: MessageStore) -> list[Path]:
    return sorted((store.config.root / "commitlog").iterdir())


def place_of(store: MessageStore, offset: int) -> tuple[int, int]:
    entry = store.queue(TOPIC, 0).entry(offset)
    assert entry is not None
    return entry[:2]


def damage(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_a_running_stores_messages_are_read(store: MessageStore, origin: StoreOrigin) -> None:
    for queue_id in (0, 1):
        fill(store, 3 * QUEUE_ENTRIES + 1, queue_id=queue_id, tags="a")
    assert origin.topics() == [TOPIC]
    assert origin.queues(TOPIC) == [QUEUE, QUEUE._replace(queue_id=1)]
    for queue in origin.queues(TOPIC):
        assert read_whole(origin, queue) == read_all(store, TOPIC, queue.queue_id)
    fill(store, 2)
    assert origin.bounds([QUEUE]) == {QUEUE: Bounds(0, 3 * QUEUE_ENTRIES + 3)}


def test_the_log_may_have_many_segments(store: MessageStore, origin: StoreOrigin) -> None:
    fill(store, 2000)
    assert len(segments(store)) > 3
    assert read_whole(origin, QUEUE) == read_all(store)


def test_part_of_a_queue(store: MessageStore, origin: StoreOrigin) -> None:
    fill(store, 50)
    records, lost = read(origin, QueueRange(QUEUE, 7, 29))
    assert [record.queue_offset for record in records] == list(range(7, 29))
    assert not lost
    assert list(origin.blocks(QueueRange(QUEUE, 7, 7))) == []


def test_records_far_apart(
    store: MessageStore, origin: StoreOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_files, "_MAX_GAP", 100)
    for number in range(200):
        put(store, b"rare %d" % number)
        put(store, b"x" * 300, topic="Other", queue_id=number % 3)
        store.seal()
    assert read_whole(origin, QUEUE) == read_all(store)


def test_blocks_are_bounded(
    store: MessageStore, origin: StoreOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_files, "BLOCK_BYTES", 2000)
    fill(store, 100)
    put(store, b"x" * 5000)
    fill(store, 10)
    blocks = list(StoreOrigin(store.config.root).blocks(QueueRange(QUEUE, 0, 111)))
    sizes = [len(block.buffer) for block in blocks if isinstance(block, RecordBlock)]
    assert len(sizes) == len(blocks)
    assert sum(size > 2000 for size in sizes) == 1
    assert read_whole(origin, QUEUE) == read_all(store)


def test_expired_messages(store: MessageStore, origin: StoreOrigin) -> None:
    fill(store, 1500)
    store.stop()
    segments(store)[0].unlink()
    first, end = origin.bounds([QUEUE])[QUEUE]
    assert 0 < first < end == 1500
    records, lost = read(origin, QueueRange(QUEUE, 0, end))
    assert [record.queue_offset for record in records] == list(range(first, end))
    assert sum(each.end - each.start for each in lost) == first
    assert {each.queue for each in lost} == {QUEUE}
    assert f"the log now starts at {SEGMENT}" in str(lost[0])


def test_a_segment_deleted_during_a_read(store: MessageStore, origin: StoreOrigin) -> None:
    fill(store, 1500)
    store.stop()
    reading = origin.blocks(QueueRange(QUEUE, 0, 1500))
    first = next(reading)
    assert isinstance(first, RecordBlock)
    for path in segments(store)[:2]:
        path.unlink()
    lost = [block for block in reading if isinstance(block, LostRecords)]
    assert all("the log now starts at" in each.reason for each in lost)


def test_deleted_queue_files(store: MessageStore, origin: StoreOrigin) -> None:
    fill(store, 5 * QUEUE_ENTRIES)
    store.stop()
    (store.config.root / "consumequeue" / TOPIC / "0" / f"{0:020d}").unlink()
    records, lost = read(origin, QueueRange(QUEUE, 3, 5 * QUEUE_ENTRIES))
    assert [(each.start, each.end) for each in lost] == [(3, QUEUE_ENTRIES)]
    assert len(records) == 4 * QUEUE_ENTRIES
    _, lost = read(origin, QueueRange(QUEUE, 5 * QUEUE_ENTRIES + 8, 5 * QUEUE_ENTRIES + 20))
    assert [(each.start, each.end) for each in lost] == [(48, 60)]


@pytest.mark.parametrize("place", [0, 4, 20, 28])
def test_damaged_records_are_named(store: MessageStore, origin: StoreOrigin, place: int) -> None:
    fill(store, 20)
    entry = place_of(store, 11)
    damage(segments(store)[0], entry[0] + place, b"\x7f\x7f")
    records, lost = read(origin, QueueRange(QUEUE, 0, 20))
    assert [record.queue_offset for record in records] == [*range(11), *range(12, 20)]
    assert [(each.queue, each.start, each.end) for each in lost] == [(QUEUE, 11, 12)]
    assert str(entry[0]) in lost[0].reason


def test_a_truncated_log(store: MessageStore, origin: StoreOrigin) -> None:
    fill(store, 20)
    entry = place_of(store, 11)
    store.stop()
    origin.bounds([QUEUE])
    # It would be too short for a segment, had it been so short at the first listing.
    os.truncate(segments(store)[0], entry[0])
    records, lost = read(origin, QueueRange(QUEUE, 0, 20))
    assert [record.queue_offset for record in records] == list(range(11))
    assert [at for each in lost for at in range(each.start, each.end)] == list(range(11, 20))


def test_an_entry_without_its_record_is_not_the_end(
    store: MessageStore, origin: StoreOrigin
) -> None:
    fill(store, 5)
    path = store.config.root / "consumequeue" / TOPIC / "0" / f"{0:020d}"
    end = store.max_physical_offset
    entries = b"".join(CONSUME_QUEUE_ENTRY.pack(at, 200, 0) for at in (end, end + 200))
    damage(path, 5 * CONSUME_QUEUE_ENTRY_SIZE, entries)
    assert origin.bounds([QUEUE]) == {QUEUE: Bounds(0, 5)}


def test_missing_queues_topics_and_stores(
    store: MessageStore, origin: StoreOrigin, tmp_path: Path
) -> None:
    fill(store, 1)
    missing = Queue("Missing", "broker-a", 0)
    assert origin.queues("Missing") == []
    assert origin.queues("..") == []
    assert origin.bounds([missing, QUEUE]) == {QUEUE: Bounds(0, 1)}
    with pytest.raises(OriginError, match="is not a store: give the directory"):
        StoreOrigin(tmp_path / "nowhere")


def test_offsets_by_time(store: MessageStore, origin: StoreOrigin) -> None:
    fill(store, 30)
    # A store may run within one millisecond.
    for number in range(30):
        time_at = place_of(store, number)[0] + STORE_TIMESTAMP
        stored = BORN_TIME + number // 4 * 10
        damage(segments(store)[0], time_at, stored.to_bytes(8, "big"))
    records = read_all(store)
    times = [record.store_timestamp for record in records]
    assert len(set(times)) == 8
    for wanted in {*times, *(time + 1 for time in times), 0}:
        expected = sum(time < wanted for time in times)
        assert origin.offsets_at({QUEUE: wanted}) == {QUEUE: expected}


def test_system_topics_are_not_listed(store: MessageStore, origin: StoreOrigin) -> None:
    fill(store, 1, topic="SCHEDULE_TOPIC_XXXX")
    fill(store, 1, topic="%DLQ%group")
    assert origin.topics() == ["%DLQ%group"]
    assert origin.all_topics() == ["%DLQ%group", "SCHEDULE_TOPIC_XXXX"]


def test_the_log_alone(store: MessageStore, origin: StoreOrigin) -> None:
    for number in range(900):
        put(store, b"%d" % number, queue_id=number % 3)
        put(store, b"o%d" % number, topic="Other")
        store.seal()
    put(store, b"p", sys_flag=TRANSACTION_PREPARED)
    put(store, b"r", sys_flag=TRANSACTION_ROLLBACK)
    put(store, b"c", sys_flag=TRANSACTION_COMMIT)
    put(store, b"s", topic="RMQ_SYS_TRANS_HALF_TOPIC")
    store.seal()
    ranges = origin.log_ranges()
    assert len(ranges) == len(segments(store)) > 2
    assert read_log(origin, {TOPIC}) == [*(b"%d" % number for number in range(900)), b"c"]
    everything = read_log(origin, None)
    assert len(everything) == 1801
    assert everything[:3] == [b"0", b"o0", b"1"]


def test_the_log_alone_resumes_after_damage(store: MessageStore, origin: StoreOrigin) -> None:
    fill(store, 20)
    entry = place_of(store, 11)
    damage(segments(store)[0], entry[0] + 4, b"damage")
    found = list(origin.log_blocks(origin.log_ranges()[0]))
    lost = [block for block in found if isinstance(block, LostRecords)]
    assert [(each.start, each.end) for each in lost] == [(entry[0], entry[0] + entry[1])]
    assert lost[0].queue.topic == LOG_TOPIC
    assert sum(block.starts.size for block in found if isinstance(block, RecordBlock)) == 19
    [gone] = origin.log_blocks(LogRange(100 * SEGMENT, 101 * SEGMENT))
    assert isinstance(gone, LostRecords)


def read_log(origin: StoreOrigin, topics: set[str] | None) -> list[bytes]:
    bodies = []
    for wanted in origin.log_ranges():
        for block in origin.log_blocks(wanted, topics):
            assert isinstance(block, RecordBlock)
            bodies += [record.body for record in records_of(block.buffer, block)]
    return bodies


@pytest.mark.parametrize("name", ["store-written", "store-broker"])
def test_a_store_of_java(tmp_path: Path, name: str) -> None:
    unpack_store(name, tmp_path)
    index = read_index(name)
    origin = StoreOrigin(tmp_path, "java")
    for queue in index["consumeQueues"]:
        found = read_whole(origin, Queue(queue["topic"], "java", queue["queueId"]))
        assert [[record.physical_offset, record.size] for record in found] == [
            entry[:2] for entry in queue["entries"]
        ]
    assert "GoldenTopic" in origin.topics()
    assert not {"SCHEDULE_TOPIC_XXXX", "OFFSET_MOVED_EVENT"} & set(origin.topics())


def test_a_log_in_several_directories(tmp_path: Path) -> None:
    logs = [tmp_path / "log1", tmp_path / "log2"]
    joined = ",".join(map(str, logs))
    store = open_store(tmp_path / "store", store_path_commit_log=joined)
    fill(store, 1500)
    assert all(any(log.iterdir()) for log in logs)
    origin = StoreOrigin(tmp_path / "store", commit_log_paths=logs)
    assert read_whole(origin, Queue(TOPIC, origin.broker_name, 0)) == read_all(store)
    store.stop()
    origin.close()


def test_the_whole_log_is_checked(store: MessageStore, origin: StoreOrigin) -> None:
    for number in range(600):
        put(store, b"body %d." % number * 10, topic="RMQ_SYS_TRANS_HALF_TOPIC")
        store.seal()
    store.stop()
    first, second = segments(store)[:2]
    damage(first, first.read_bytes().index(b"body 7."), b"BODY")
    ranges = origin.log_ranges()
    found = [each for wanted in ranges for each in origin.checked_log(wanted)]
    wrong = [each for each in found if isinstance(each, Violation)]
    assert [each.kind for each in wrong] == [ViolationKind.BODY_CRC]
    pieces = [each for each in found if not isinstance(each, Violation)]
    assert sum(piece.columns.starts.size for piece in pieces) == 600
    # Only the last segment may have unwritten space.
    damage(first, 30_000, bytes(SEGMENT - 30_000))
    wrong = [each for each in origin.checked_log(ranges[0]) if isinstance(each, Violation)]
    assert wrong[-1].message == "the records end here, although another segment follows"
    assert not list(origin.checked_log(ranges[-1]))[1:]
    second.unlink()
    assert list(origin.checked_log(ranges[1])) == []
