"""Files that differ from what a log makes: each difference is named, and nothing else."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from pyromq.protocol.message.units import (
    CONSUME_QUEUE_ENTRY_SIZE,
    INDEX_HEADER_SIZE,
    INDEX_SLOT_SIZE,
)
from pyromq.store.offline.compare import Difference, Span, compare_index, compare_queues
from pyromq.store.offline.rebuild import rebuild_store
from pyromq.store.recovery.queue_damage import Deletion
from tests.support.stores import QUEUE_ENTRIES, TOPIC, open_store, put, small_config

COUNT = 3 * QUEUE_ENTRIES + 3
SLOTS, ENTRIES = 16, 64


class Stores:
    """A store, and what its log makes of it, somewhere else."""

    def __init__(self, directory: Path) -> None:
        store = open_store(directory / "store")
        for number in range(COUNT):
            put(store, b"x" * 1300, queue_id=number % 2, tags="t", keys=f"a{number} b{number} c")
            put(store, b"x" * 1300, queue_id=7, tags="t", keys=f"d{number}")
            store.seal()
        store.stop()
        self.root = store.config.root
        self.made = directory / "made"
        self.span = self.make()

    def make(self) -> Span:
        """Make the files again; the log may have changed."""
        shutil.rmtree(self.made, ignore_errors=True)
        self.made.mkdir()
        shutil.copytree(self.root / "commitlog", self.made / "commitlog")
        result = rebuild_store(small_config(self.made))
        return Span(result.log_begin, result.log_end, result.log_end, may_move=False)

    def compare(self, span: Span | None = None, groups: int = 2) -> list[Difference]:
        span = span or self.span
        found = [
            difference
            for group in range(groups)
            for difference in compare_queues(
                self.made / "consumequeue",
                self.root / "consumequeue",
                span,
                group=group,
                groups=groups,
            )
        ]
        found += compare_index(self.made / "index", self.root / "index", SLOTS, ENTRIES, span)
        return found

    def queue_file(self, number: int = 0, queue_id: int = 7) -> Path:
        return sorted((self.root / "consumequeue" / TOPIC / str(queue_id)).iterdir())[number]

    def index_file(self, number: int = 0) -> Path:
        return sorted((self.root / "index").iterdir())[number]


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


def change(path: Path, position: int, data: bytes | None = None) -> None:
    content = bytearray(path.read_bytes())
    if data is None:
        content[position] ^= 1
    else:
        content[position : position + len(data)] = data
    path.write_bytes(content)


def test_the_same_has_no_difference(stores: Stores) -> None:
    assert stores.compare() == []
    assert stores.compare(groups=1) == []


@pytest.mark.parametrize("byte", [0, 7, 8, 11, 12, 19])
def test_every_byte_of_an_entry_counts(stores: Stores, byte: int) -> None:
    path = stores.queue_file(1)
    change(path, 3 * CONSUME_QUEUE_ENTRY_SIZE + byte)
    [difference] = stores.compare()
    assert (difference.file, difference.entry) == (str(path), QUEUE_ENTRIES + 3)
    assert difference.expected != difference.found
    assert f"{path}, entry {QUEUE_ENTRIES + 3}: entry: expected" in str(difference)


def test_all_differences_are_named(stores: Stores) -> None:
    chosen = random.Random(3)
    wanted = set()
    for number in range(3):
        path = stores.queue_file(number)
        for row in chosen.sample(range(QUEUE_ENTRIES), 3):
            change(path, row * CONSUME_QUEUE_ENTRY_SIZE + 7)
            wanted.add((str(path), number * QUEUE_ENTRIES + row))
    found = stores.compare()
    assert {(one.file, one.entry) for one in found} == wanted
    assert len(found) == len(wanted)


def test_entries_too_many_and_too_few(stores: Stores) -> None:
    last = stores.queue_file(-1)
    end = COUNT % QUEUE_ENTRIES
    change(last, end * CONSUME_QUEUE_ENTRY_SIZE, bytes([0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1]))
    change(last, 0, bytes(CONSUME_QUEUE_ENTRY_SIZE))
    few, many = stores.compare()
    assert (few.entry, few.found) == (3 * QUEUE_ENTRIES, "nothing")
    assert (many.entry, many.expected) == (COUNT, "nothing")


def test_files_that_are_missing_or_strange(stores: Stores) -> None:
    gone = stores.queue_file(1)
    gone.unlink()
    shutil.rmtree(stores.root / "consumequeue" / TOPIC / "0")
    strange = stores.root / "consumequeue" / TOPIC / "1" / "notes.txt"
    strange.write_text("x")
    found = {(one.file, one.found) for one in stores.compare()}
    assert (str(gone), "no file") in found
    assert (str(strange), "this file") in found
    missing = stores.root / "consumequeue" / TOPIC / "0" / f"{0:020d}"
    assert (str(missing), "no file") in found


def test_deleted_topics_are_left_out(stores: Stores) -> None:
    shutil.rmtree(stores.root / "consumequeue" / TOPIC)
    made, existing = stores.made / "consumequeue", stores.root / "consumequeue"
    assert list(compare_queues(made, existing, stores.span, topics=frozenset())) == []
    assert list(compare_queues(made, existing, stores.span, topics=frozenset({TOPIC}))) != []


def test_topics_that_were_deleted_and_made_anew_need_not_have_what_was_before(
    stores: Stores,
) -> None:
    shutil.rmtree(stores.root / "consumequeue" / TOPIC / "0")
    made, existing = stores.made / "consumequeue", stores.root / "consumequeue"
    span = stores.span
    for log_end, is_same in ((span.end, True), (span.end // 2, False)):
        deletions = {TOPIC: Deletion(log_end, 0)}
        differences = list(compare_queues(made, existing, span, deletions=deletions))
        assert (not differences) is is_same


def test_index_entries_slots_and_headers(stores: Stores) -> None:
    path = stores.index_file(1)
    change(path, INDEX_HEADER_SIZE + SLOTS * INDEX_SLOT_SIZE + 5 * 20 + 11)
    change(path, INDEX_HEADER_SIZE + 3 * INDEX_SLOT_SIZE, bytes(4))
    change(path, 7)
    found = stores.compare()
    assert {one.file for one in found} == {str(path)}
    assert [(one.what, one.entry) for one in found] == [
        ("index entry", 5),
        ("slot", 3),
        ("beginTimestamp in the header", -1),
    ]


def test_index_files_that_are_missing_or_too_many(stores: Stores) -> None:
    last = stores.index_file(-1)
    shutil.copy(last, last.with_name("29991231235959999"))
    [difference] = stores.compare()
    assert difference.expected == "no file"
    for path in sorted((stores.root / "index").iterdir())[-2:]:
        path.unlink()
    [difference] = stores.compare()
    assert difference.found == "no file"
    stores.index_file(0).write_bytes(b"short")
    assert any(one.what == "size of the file" for one in stores.compare())


def test_what_has_expired_is_no_difference(stores: Stores) -> None:
    sorted((stores.root / "commitlog").iterdir())[0].unlink()
    span = stores.make()
    assert span.begin > 0
    assert stores.compare(span) == []
    # Keys are compared in their order then.
    path = stores.index_file(-1)
    change(path, INDEX_HEADER_SIZE + SLOTS * INDEX_SLOT_SIZE + 40 * 20 + 3)
    [difference] = stores.compare(span)
    assert (difference.file, difference.entry) == (str(path), 40)


def test_keys_before_the_index_are_counted(stores: Stores) -> None:
    stores.index_file(0).unlink()
    first, *others = stores.compare()
    assert first.what == "index"
    assert "keys of messages before" in first.expected
    assert not others


def test_the_tail_of_a_store_in_use_does_not_count(stores: Stores) -> None:
    last = stores.queue_file(-1)
    end = COUNT % QUEUE_ENTRIES
    change(last, (end - 1) * CONSUME_QUEUE_ENTRY_SIZE, bytes(CONSUME_QUEUE_ENTRY_SIZE))
    stores.index_file(-1).unlink()
    assert len(stores.compare()) == 2
    known_end = stores.span.end - 3 * 1500
    moving = Span(stores.span.begin, stores.span.end, known_end, may_move=True)
    assert [one.what for one in stores.compare(moving)] == ["file"]
    change(stores.queue_file(0), 7)
    assert len(stores.compare(moving)) == 2
