"""From log bytes to consume-queue entries."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.protocol.java.string_hash import java_hash, java_hash_bytes
from pyromq.protocol.message import bulk
from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.joined_properties import last_property
from pyromq.protocol.message.record import decode_records
from pyromq.protocol.message.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    is_consumable,
)
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.recovery.dispatch import append_runs, queue_runs
from tests.support.examples import examples
from tests.support.records import BORN_TIME, make_record

LEVELS = DelayLevels("1s 5s 10s")


class Queues:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.made: dict[tuple[str, int], ConsumeQueue] = {}

    def __call__(self, topic: str, queue_id: int) -> ConsumeQueue:
        if (topic, queue_id) not in self.made:
            self.made[topic, queue_id] = ConsumeQueue(self.directory, 200, topic, queue_id)
        return self.made[topic, queue_id]

    def dispatch(
        self,
        data: bytes,
        base: int = 0,
        on_missing: Callable[[ConsumeQueue, str], None] | None = None,
    ) -> int:
        starts, taken = bulk.record_starts(data)
        columns = bulk.read_columns(data, starts)
        append_runs(queue_runs(data, base, columns, LEVELS), self, on_missing)
        for queue in self.made.values():
            queue.write_pending()
        return taken

    def entries(self, topic: str = "T", queue_id: int = 0) -> list[tuple[int, int, int]]:
        queue = self.made[topic, queue_id]
        return [queue.entry(n) for n in range(queue.min_offset, queue.next_offset)]  # type: ignore[misc]


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[Queues]:
    queues = Queues(tmp_path)
    yield queues
    for queue in queues.made.values():
        queue.close()


def run_of(*records: Mapping[str, object], base: int = 0) -> bytes:
    data = b""
    for fields in records:
        settings = {"topic": "T", "queue_id": 0, "physical_offset": base + len(data), **fields}
        data += make_record(**settings)  # type: ignore[arg-type]
    return data


def test_records_become_entries(queues: Queues) -> None:
    data = run_of(
        {"queue_offset": 0, "properties": b"TAGS\x01a"},
        {"queue_offset": 0, "queue_id": 1},
        {"queue_offset": 1, "properties": b"A\x01b\x02TAGS\x01\xc3\xa4\x02"},
    )
    assert queues.dispatch(data) == len(data)
    first, second = queues.entries()
    assert (first[0], first[2]) == (0, java_hash("a"))
    assert second[2] == java_hash("ä")
    assert queues.entries(queue_id=1)[0][2] == 0
    assert second[0] + second[1] == len(data)


def test_a_cut_record_is_left_for_the_next_piece(queues: Queues) -> None:
    data = run_of({"queue_offset": 0}, {"queue_offset": 1})
    half = len(data) // 2
    for length in (0, 1, 50, half - 1):
        assert queues.dispatch(data[:length]) == 0
    for length in (half, half + 1, len(data) - 1):
        assert queues.dispatch(data[:length]) == half
    assert queues.dispatch(data[half:], half) == half
    assert len(queues.entries()) == 2


def test_what_a_queue_has_is_passed_over(queues: Queues) -> None:
    data = run_of(*({"queue_offset": n} for n in range(25)))
    assert queues.dispatch(data) == len(data)
    entries = queues.entries()
    for length in (len(data), len(data) // 5, 2 * len(data) // 5):
        assert queues.dispatch(data[:length]) == length
        assert queues.entries() == entries
    assert len(entries) == 25


def test_prepared_and_rolled_back_records_get_no_entry(queues: Queues) -> None:
    data = run_of(
        {"queue_offset": 0, "sys_flag": TRANSACTION_PREPARED},
        {"queue_offset": 0, "sys_flag": TRANSACTION_COMMIT},
        {"queue_offset": 0, "sys_flag": TRANSACTION_ROLLBACK},
        {"queue_offset": 1},
    )
    queues.dispatch(data)
    size = len(data) // 4
    assert [entry[0] for entry in queues.entries()] == [size, 3 * size]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (b"DELAY\x013", BORN_TIME + 10_000),
        (b"DELAY\x0199", BORN_TIME + 10_000),
        (b"DELAY\x010\x02TAGS\x01a", java_hash("a")),
        (b"DELAY\x01x\x02TAGS\x01a", java_hash("a")),
        (b"DELAY\x01" + b"9" * 5000 + b"\x02TAGS\x01a", java_hash("a")),
        (b"TAGS\x01a", java_hash("a")),
    ],
)
def test_a_delayed_message_has_its_time_instead_of_tags(
    queues: Queues, level: bytes, expected: int
) -> None:
    queues.dispatch(
        run_of({"queue_offset": 0, "topic": "SCHEDULE_TOPIC_XXXX", "properties": level})
    )
    assert queues.entries("SCHEDULE_TOPIC_XXXX")[0][2] == expected


def test_a_queue_whose_head_expired_begins_later(queues: Queues) -> None:
    data = run_of({"queue_offset": 33}, {"queue_offset": 34}, base=7000)
    queues.dispatch(data, 7000)
    queue = queues.made["T", 0]
    assert (queue.min_offset, queue.next_offset) == (33, 35)


def test_missing_entries_can_be_forbidden(queues: Queues) -> None:
    queues.dispatch(run_of({"queue_offset": 0}))
    later = run_of({"queue_offset": 5}, {"queue_offset": 0, "queue_id": 1}, base=9000)
    reported: list[tuple[ConsumeQueue, str]] = []
    queues.dispatch(later, 9000, lambda queue, reason: reported.append((queue, reason)))
    ((queue, reason),) = reported
    assert queue is queues.made["T", 0]
    assert reason == "it ends at 1, but the record at 9000 has 5"
    assert len(queues.entries()) == 1
    assert len(queues.entries(queue_id=1)) == 1
    queues.dispatch(later, 9000)
    assert queues.made["T", 0].next_offset == 6


def test_a_topic_made_anew_begins_anew(queues: Queues) -> None:
    old = [{"queue_offset": n} for n in range(12)]
    new = [{"queue_offset": n} for n in range(3)]
    data = run_of(*old, *new)
    queues.dispatch(data)
    size = len(data) // 15
    assert [entry[0] for entry in queues.entries()] == [12 * size, 13 * size, 14 * size]
    queues.dispatch(data)
    assert len(queues.entries()) == 3, "the records of before must not come back"


def test_an_offset_that_goes_back_is_skipped_and_logged(
    queues: Queues, caplog: pytest.LogCaptureFixture
) -> None:
    data = run_of({"queue_offset": 0}, {"queue_offset": 1}, {"queue_offset": 1})
    queues.dispatch(data)
    assert len(queues.entries()) == 2
    assert "record at" in caplog.text
    assert "skipped" in caplog.text


def dispatch_row_by_row(data: bytes, base: int, queues: Queues) -> None:
    """The plain reading of the rules: one record after the other."""
    ends: dict[ConsumeQueue, int] = {}
    position = 0
    for record in decode_records(data):
        start = base + position
        position += record.size
        if not is_consumable(record.sys_flag):
            continue
        queue = queues(record.topic, record.queue_id)
        if start < ends.setdefault(queue, queue.last_physical_offset()):
            continue
        offset = record.queue_offset
        if offset < queue.next_offset:
            if offset:
                continue
            queue.delete()
        elif offset > queue.next_offset:
            queue.skip_to(offset)
        ends[queue] = start + record.size
        tags_code = java_hash_bytes(last_property(record.raw_properties, b"TAGS"))
        if record.topic == "SCHEDULE_TOPIC_XXXX" and (level := record.properties.get("DELAY")):
            tags_code = LEVELS.due(int(level), record.store_timestamp)
        queue.append_many(CONSUME_QUEUE_ENTRY.pack(start, record.size, tags_code))
    for queue in queues.made.values():
        queue.write_pending()


RECORDS = st.fixed_dictionaries(
    {
        # AaAa, BBBB and AaBB have one hash.
        "topic": st.sampled_from(["AaAa", "BBBB", "T", "SCHEDULE_TOPIC_XXXX", "t\u00e4", "AaBB"]),
        "queue_id": st.integers(0, 2),
        "body": st.binary(max_size=40),
        "sys_flag": st.sampled_from([0, 0, 0, TRANSACTION_COMMIT, TRANSACTION_PREPARED]),
        "properties": st.sampled_from(
            [
                b"",
                b"TAGS\x01a",
                b"TAGS\x01\x02K\x01v",
                b"TAGS\x01first\x02TAGS\x01last\x02",
                b"X\x01TAGS\x02TAGS\x01\xc3\xa4",
                b"DELAY\x012\x02TAGS\x01" + b"long" * 30,
            ]
        ),
    }
)
#: What is added to the offset that a record should have: mostly nothing.
STEPS = st.sampled_from([0] * 12 + [1, 3, -1, -(1 << 20)])


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(RECORDS, STEPS), min_size=1, max_size=60), st.lists(st.integers(1, 60)))
def test_bulk_and_row_by_row_agree(
    records: list[tuple[dict[str, object], int]], cuts: list[int]
) -> None:
    """Also with gaps, offsets that go back, topics made anew, and what is there already."""
    following: dict[tuple[object, object], int] = {}
    fields = []
    for record, step in records:
        key = record["topic"], record["queue_id"]
        offset = max(0, following.get(key, 0) + step)
        fields.append({**record, "queue_offset": offset})
        if is_consumable(record["sys_flag"]):  # type: ignore[arg-type]
            following[key] = offset + 1
    with tempfile.TemporaryDirectory() as directory:
        bulk_queues = Queues(Path(directory) / "bulk")
        plain_queues = Queues(Path(directory) / "plain")
        base = 5000
        pieces = sorted({0, len(fields), *(cut for cut in cuts if cut < len(fields))})
        for begin, end in itertools.pairwise(pieces):
            data = run_of(*fields[begin:end], base=base)
            for _ in range(2):
                bulk_queues.dispatch(data, base)
                dispatch_row_by_row(data, base, plain_queues)
            base += len(data)
        assert bulk_queues.made.keys() == plain_queues.made.keys()
        for key, queue in plain_queues.made.items():
            assert bulk_queues.made[key].next_offset == queue.next_offset
            assert list(bulk_queues.made[key].entries()) == list(queue.entries())
        for queue in (*bulk_queues.made.values(), *plain_queues.made.values()):
            queue.close()


@pytest.mark.parametrize(
    ("topic", "queue_id"), [("", 0), (".", 0), ("..", 0), ("a/b", 0), ("a\0b", 0), ("T", -1)]
)
def test_a_record_with_an_invalid_queue_is_skipped(
    queues: Queues, topic: str, queue_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    data = run_of(
        {"queue_offset": 0, "topic": topic, "queue_id": queue_id},
        {"queue_offset": 0, "topic": "Right"},
    )
    queues.dispatch(data)
    assert list(queues.made) == [("Right", 0)]
    assert "invalid topic" in caplog.text


def test_a_queue_that_is_not_wanted_gets_nothing(tmp_path: Path) -> None:
    data = run_of({"queue_offset": 0})
    columns = bulk.read_columns(data, bulk.record_starts(data)[0])
    append_runs(queue_runs(data, 0, columns, LEVELS), lambda topic, queue_id: None)
    assert list(tmp_path.iterdir()) == []
