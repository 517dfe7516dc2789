"""What shows that a consume queue cannot be right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pyromq.protocol.message.unit_arrays import CONSUME_QUEUE_DTYPE
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY
from pyromq.store.message_store import MessageStore
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.recovery.dispatch import QueueRun
from pyromq.store.recovery.queue_damage import damage_of, is_other_size, known_topics, lacks
from tests.support.stores import QUEUE_ENTRIES, TOPIC, open_store, put

COUNT = 2 * QUEUE_ENTRIES + 3


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_store(tmp_path)
    for number in range(COUNT):
        put(store, b"%d" % number)
        put(store, b"other", queue_id=1)
    store.seal()
    yield store
    store.stop()


def damaged(store: MessageStore, offset: int, entry: bytes) -> str | None:
    """What is seen when an entry of the queue is another one."""
    queue = store.queue(TOPIC, 0)
    file = queue.segments.find(offset * 20)
    assert file is not None
    position = offset * 20 - file.base
    before = file.read(position, position + 20)
    file.reserve(file.size)
    file.write(position, entry)
    found = damage_of(queue, store._log)
    file.write(position, before)
    return found


def test_a_right_queue_shows_nothing(store: MessageStore) -> None:
    for queue_id in (0, 1):
        assert damage_of(store.queue(TOPIC, queue_id), store._log) is None
    assert damage_of(store.queue(TOPIC, 7), store._log) is None, "an empty one"


def test_holes_and_wrong_entries(store: MessageStore) -> None:
    last = COUNT - 1
    first, other = (store.queue(TOPIC, queue_id).entry(0) for queue_id in (0, 1))
    assert first is not None
    assert other is not None
    assert damaged(store, last - 1, bytes(20)) == f"entry {last - 1} is blank"
    assert "points back" in str(damaged(store, last, CONSUME_QUEUE_ENTRY.pack(*first)))
    assert "does not point at its message" in str(
        damaged(store, 0, CONSUME_QUEUE_ENTRY.pack(*other))
    )
    assert "does not point" in str(damaged(store, last, CONSUME_QUEUE_ENTRY.pack(1 << 40, 100, 0)))
    assert "does not point" in str(
        damaged(store, 0, CONSUME_QUEUE_ENTRY.pack(first[0], first[1] + 1, first[2]))
    )
    assert f"entry {last}, the last one, is followed" in str(
        damaged(store, COUNT, CONSUME_QUEUE_ENTRY.pack(1 << 30, 100, 0))
    )
    assert damage_of(store.queue(TOPIC, 0), store._log) is None


def run_of(queue: ConsumeQueue, offset: int, place: int) -> QueueRun:
    entries = np.array([(place, 10, 0)], CONSUME_QUEUE_DTYPE)
    return QueueRun(queue.topic, queue.queue_id, np.array([offset]), entries, True)


def test_what_a_queue_lacks(store: MessageStore) -> None:
    queue = store.queue(TOPIC, 0)
    entries = list(queue.entries())
    right = np.array([entries[5]], CONSUME_QUEUE_DTYPE)
    assert not lacks(queue, QueueRun(TOPIC, 0, np.array([5]), right, True))
    assert lacks(queue, QueueRun(TOPIC, 0, np.array([6]), right, True))
    assert lacks(queue, run_of(queue, COUNT, 1 << 30))


def test_records_from_before_a_topic_was_made_anew_are_not_lacked(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"first of all", topic="Other")
    for _ in range(5):
        put(store, b"old")
    store.remove_topic(TOPIC)
    put(store, b"new")
    store.seal()
    queue = store.queue(TOPIC, 0)
    assert not lacks(queue, run_of(queue, 4, 200))
    store.stop()


def test_another_size_for_all_is_a_setting(tmp_path: Path) -> None:
    for number, size in enumerate((160, 160, 0)):
        path = tmp_path / "t" / str(number) / f"{0:020d}"
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(size))
    assert is_other_size(tmp_path, 200)
    assert not is_other_size(tmp_path, 160)
    path.write_bytes(bytes(200))
    assert not is_other_size(tmp_path, 200), "one file was cut"
    assert not is_other_size(tmp_path / "nowhere", 200)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"topicConfigTable":{"a":{},"b":{}}}', {"a", "b"}),
        ('{"topicConfigTable":[]}', None),
        ("[]", None),
        ("{", None),
        (None, None),
    ],
)
def test_topics_of_the_table(tmp_path: Path, text: str | None, expected: set[str] | None) -> None:
    if text is not None:
        (tmp_path / "topics.json").write_text(text)
    assert known_topics(tmp_path) == expected
