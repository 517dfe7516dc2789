"""Facts of slices, and what they show when joined."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from pyromq.protocol.message.bulk import read_columns, record_starts
from pyromq.spark.audit.data import (
    MAX_DESCRIBED_DAMAGE,
    Damage,
    Facts,
    QueueFacts,
    join,
    wrong_bodies,
)
from pyromq.store.message_store import MessageStore
from tests.support.stores import BORN_HOST, BORN_HOST_V6, BORN_TIME, open_store, put

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"


def queue_with(*ranges: tuple[int, int]) -> QueueFacts:
    return QueueFacts(ranges=list(ranges))


@pytest.mark.parametrize(
    ("ranges", "gaps", "repeats"),
    [
        ([], [], []),
        ([(5, 9)], [], []),
        ([(5, 9), (12, 14)], [(9, 12)], []),
        ([(5, 9), (7, 14)], [], [(7, 9)]),
        ([(5, 20), (7, 9), (20, 22)], [], [(7, 9)]),
        ([(12, 14), (5, 9)], [(9, 12)], []),
        # A recreated topic starts at 0 again: earlier ranges do not count.
        ([(0, 50), (60, 70), (0, 9)], [], []),
        ([(0, 50), (0, 9), (10, 12)], [(9, 10)], []),
    ],
)
def test_gaps_and_repeats(
    ranges: list[tuple[int, int]], gaps: list[tuple[int, int]], repeats: list[tuple[int, int]]
) -> None:
    queue = queue_with(*ranges)
    assert queue.gaps() == gaps
    assert queue.repeats() == repeats


def test_slices_of_a_queue_join_to_one_range() -> None:
    queue = QueueFacts(3, 300, 10, 30, [(0, 3)])
    queue.join(QueueFacts(2, 150, 5, 40, [(3, 5)]))
    queue.join(QueueFacts())
    assert queue == QueueFacts(5, 450, 5, 40, [(0, 5)])


def put_with(store: MessageStore, topic: str, body: bytes, **properties: str) -> None:
    raw = "\x02".join(f"{name}\x01{value}" for name, value in properties.items()).encode()
    store.put(store.queue(topic, 0), body, raw, 0, 0, 0, BORN_TIME, BORN_HOST, 0)


def facts_of(store: MessageStore) -> Facts:
    """Return the facts of a store's only segment, pickled and unpickled."""
    store.seal()
    data = (store.config.root / "commitlog" / f"{0:020d}").read_bytes()
    facts = Facts("broker-a")
    starts, _ = record_starts(data)
    for part in (starts[: starts.size // 2], starts[starts.size // 2 :]):
        half = Facts("broker-a")
        half.add(data, 0, read_columns(data, part))
        facts.join(pickle.loads(pickle.dumps(half)))
    return facts


def test_queues_and_producers(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    for number in range(30):
        host = BORN_HOST if number % 3 else BORN_HOST_V6
        put(store, b"x", topic=f"Topic{number % 2}", queue_id=number % 5, born_host=host)
    facts = facts_of(store)
    store.stop()
    assert facts.records == 30
    assert len(facts.queues) == 10
    assert all(queue.ranges == [(0, 3)] for queue in facts.queues.values())
    assert all(queue.messages == 3 and queue.bytes > 300 for queue in facts.queues.values())
    assert facts.producers["Topic0"] == {"127.0.0.1": 10, "2001:db8::2": 5}


def test_transactions(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    for number in range(6):
        put_with(store, HALF, b"h", UNIQ_KEY=f"T{number}", REAL_TOPIC="Paid", PGROUP="pay")
    for body in (b"0", b"2,3,", b"nonsense", b"7" * 5000, b"1" * 4301 + b",", b"\xff,\xb2"):
        put_with(store, OP, body, TAGS="d")
    put_with(store, HALF, b"h", UNIQ_KEY="T4", REAL_TOPIC="Paid", PGROUP="pay")
    put_with(store, GIVEN_UP, b"h", UNIQ_KEY="T5")
    facts = facts_of(store)
    store.stop()
    found = [(half.offset, half.topic, half.group, up) for half, up in facts.open_halves()]
    # T4 was stored again: its last half counts.
    assert found == [
        (1, "Paid", "pay", False),
        (5, "Paid", "pay", True),
        (6, "Paid", "pay", False),
    ]


def test_dead_letters(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    for number in range(5):
        put_with(store, "%DLQ%workers", b"d", RETRY_TOPIC=f"Topic{number % 2}")
    facts = facts_of(store)
    store.stop()
    assert facts.dead_letters == {("workers", "Topic0"): 3, ("workers", "Topic1"): 2}


def test_all_damage_is_counted_and_some_described() -> None:
    parts = []
    for part in range(3):
        facts = Facts("broker-a")
        for number in range(MAX_DESCRIBED_DAMAGE - 20):
            facts.add_damage(f"{part}/{number}", "wrong")
        parts.append(facts)
    joined = join(parts, "broker-a")
    assert joined.damage_count == 3 * (MAX_DESCRIBED_DAMAGE - 20)
    assert len(joined.damage) == MAX_DESCRIBED_DAMAGE
    assert joined.damage[0] == Damage("0/0", "wrong")


def test_bodies_with_a_wrong_crc(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    for number in range(10):
        put(store, b"body%d" % number)
    store.seal()
    data = (store.config.root / "commitlog" / f"{0:020d}").read_bytes()
    store.stop()
    data = data.replace(b"body3", b"bady3").replace(b"body7", b"bady7")
    starts, _ = record_starts(data)
    assert wrong_bodies(data, read_columns(data, starts)) == [3, 7]
