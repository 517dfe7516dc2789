"""Stores to truncate, and what must be true of them afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyromq.protocol.java.fastjson import parse_json
from pyromq.protocol.message.record import MessageRecord
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.check import check_store
from tests.support.patience import wait_until
from tests.support.stores import (
    SEGMENT,
    TOPIC,
    audit,
    bodies,
    log_records,
    open_store,
    put,
    small_config,
)

COUNT = 240
QUEUES = 3
#: A topic whose messages are all in the second half of the log.
LATE_TOPIC = "Late"


def fill(store: MessageStore, count: int = COUNT) -> None:
    """Store messages in several segments, queue files and index files."""
    for number in range(count):
        put(
            store,
            b"%04d" % number * (50 + number % 5 * 100),
            queue_id=number % QUEUES,
            tags=f"tag{number % 2}",
            keys=f"k{number} other{number % 7}",
        )
        if number % 10 == 9:
            store.seal()
        if number > count // 2 and number % 20 == 0:
            put(store, b"late", topic=LATE_TOPIC, keys="late")
    store.seal()
    wait_until(lambda: store.dispatch_behind == 0)


def written_store(root: Path, **changes: Any) -> list[MessageRecord]:
    """Leave a cleanly stopped store; return the records of its log."""
    store = open_store(root, **changes)
    fill(store)
    records = log_records(store)
    assert records[-1].physical_offset > 3 * SEGMENT
    store.stop()
    write_tables(root)
    return records


def write_tables(root: Path, log_end: int = 1 << 40) -> None:
    """Write tables of a broker, whose groups have read everything."""
    ends = dict.fromkeys(range(QUEUES), COUNT // QUEUES)
    config = root / "config"
    config.mkdir(exist_ok=True)
    queues = ",".join(f"{queue}:{end}" for queue, end in ends.items())
    (config / "consumerOffset.json").write_text(
        f'{{\n\t"offsetTable":{{"{TOPIC}@g":{{{queues}}},"{TOPIC}@slow":{{0:1,1:0}},'
        f'"{LATE_TOPIC}@g":{{0:5}}}}\n}}'
    )
    (config / "delayOffset.json").write_text('{"offsetTable":{3:7}}')
    deletion = {"logEnd": log_end, "timestamp": 1}
    (config / "deletedTopics.json").write_text(json.dumps({"topics": {"Gone": deletion}}))
    (config / "delayOffset.progress").write_bytes(b"note")


def expected_offsets(records: list[MessageRecord], offset: int) -> dict[str, dict[str, int]]:
    """The consumer offsets of `write_tables` after a truncation to `offset`."""
    kept = [record for record in records if record.physical_offset < offset]
    ends = {
        (topic, queue): sum((record.topic, record.queue_id) == (topic, queue) for record in kept)
        for topic in (TOPIC, LATE_TOPIC)
        for queue in range(QUEUES)
    }
    return {
        f"{TOPIC}@g": {str(queue): ends[TOPIC, queue] for queue in range(QUEUES)},
        f"{TOPIC}@slow": {"0": min(1, ends[TOPIC, 0]), "1": 0},
        f"{LATE_TOPIC}@g": {"0": min(5, ends[LATE_TOPIC, 0])},
    }


def interesting_offsets(records: list[MessageRecord]) -> dict[str, int]:
    """Boundaries of every kind, by name."""
    places = [record.physical_offset for record in records]
    last = records[-1]
    roll = next(n for n, place in enumerate(places) if place >= 2 * SEGMENT)
    assert places[roll] == 2 * SEGMENT
    before = records[roll - 1]
    return {
        "everything": 0,
        "first-segment": places[5],
        "middle": places[len(places) // 2],
        "segment-start": 2 * SEGMENT,
        "blank-record": before.physical_offset + before.size,
        "after-segment-start": places[roll + 1],
        "last-segment-start": last.physical_offset - last.physical_offset % SEGMENT,
        "last-record": last.physical_offset,
    }


def assert_truncated(root: Path, records: list[MessageRecord], offset: int, **changes: Any) -> None:
    """Exactly the records below `offset` are left, in log, queues and index, and it goes on."""
    config = small_config(root, **changes)
    assert list(check_store(root, config)) == []
    kept = [record for record in records if record.physical_offset < offset]
    store = open_store(root, **changes)
    try:
        assert store.max_physical_offset == offset
        assert [record.physical_offset for record in audit(store)] == [
            record.physical_offset for record in kept
        ]
        for topic, queue in {(record.topic, record.queue_id) for record in records}:
            of_queue = [r.body for r in kept if (r.topic, r.queue_id) == (topic, queue)]
            assert bodies(store, topic, queue) == of_queue
            assert store.max_offset(topic, queue) == len(of_queue)
        place = put(store, b"more", keys="more")
        store.seal()
        rest = SEGMENT - offset % SEGMENT
        assert place in (offset, offset + rest)
        audit(store)
    finally:
        store.stop()
    assert list(check_store(root, config)) == []


def consumer_offsets(root: Path) -> object:
    """The table of consumer offsets, with standard keys."""
    return parse_json((root / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
