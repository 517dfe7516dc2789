"""The key index against a plain model of Java's, byte for byte."""

from __future__ import annotations

import gc
import itertools
import logging
import mmap
import shutil
import struct
import threading
import time
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.record import decode_record
from pyromq.store.index import index as index_module
from pyromq.store.index.file import IndexFileError
from pyromq.store.index.index import KeyIndex
from tests.support.descriptors import open_below
from tests.support.examples import examples
from tests.support.records import make_record, positions

SLOTS = 5
LIMIT = 8
NOW = 1_700_000_000_000
FOREVER = (1 << 63) - 1


class PlainFile:
    """One index file as Java fills it, key by key."""

    def __init__(self, slots: int, limit: int, end_offset: int, end_timestamp: int) -> None:
        self.slots, self.limit = slots, limit
        self.data = bytearray(40 + 4 * slots + 20 * limit)
        self.begin_offset = self.end_offset = max(end_offset, 0)
        self.begin_timestamp = self.end_timestamp = max(end_timestamp, 0)
        self.used, self.count = 0, 1
        self.write_header(0)

    def write_header(self, count: int) -> None:
        struct.pack_into(">qqqq", self.data, 0, self.begin_timestamp, self.end_timestamp,
                         self.begin_offset, self.end_offset)  # fmt: skip
        struct.pack_into(">ii", self.data, 32, self.used, count)

    def put(self, key: str, offset: int, timestamp: int) -> bool:
        if self.count >= self.limit:
            return False
        key_hash = abs(java_hash(key)) % (1 << 31)
        slot_at = 40 + 4 * (key_hash % self.slots)
        (previous,) = struct.unpack_from(">i", self.data, slot_at)
        if previous <= 0 or previous > self.count:
            previous = 0
        seconds = 0
        if self.begin_timestamp > 0:
            seconds = min(max((timestamp - self.begin_timestamp) // 1000, 0), (1 << 31) - 1)
        struct.pack_into(">iqii", self.data, 40 + 4 * self.slots + 20 * self.count,
                         key_hash, offset, seconds, previous)  # fmt: skip
        struct.pack_into(">i", self.data, slot_at, self.count)
        if self.count <= 1:
            self.begin_offset, self.begin_timestamp = offset, timestamp
        self.used += previous == 0
        self.count += 1
        self.end_offset, self.end_timestamp = offset, timestamp
        self.write_header(self.count)
        return True


class PlainIndex:
    """All files as Java fills them, record by record."""

    def __init__(self, slots: int = SLOTS, limit: int = LIMIT) -> None:
        self.slots, self.limit = slots, limit
        self.files: list[PlainFile] = []

    def file(self) -> PlainFile:
        if not self.files or self.files[-1].count >= self.limit:
            ends = (
                (self.files[-1].end_offset, self.files[-1].end_timestamp) if self.files else (0, 0)
            )
            self.files.append(PlainFile(self.slots, self.limit, *ends))
        return self.files[-1]

    def put(self, record: bytes) -> None:
        message = decode_record(record)
        file = self.file()
        if message.physical_offset < file.end_offset or message.sys_flag & 0xC == 0xC:
            return
        keys = [message.properties.get("UNIQ_KEY", "")]
        keys += message.properties.get("KEYS", "").split(" ")
        for key in keys:
            while key and not self.file().put(
                f"{message.topic}#{key}", message.physical_offset, message.store_timestamp
            ):
                pass

    def contents(self) -> list[bytes]:
        return [bytes(file.data) for file in self.files]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[KeyIndex]:
    index = KeyIndex(tmp_path / "index", hash_slot_count=SLOTS, entry_count=LIMIT)
    index.load()
    yield index
    index.close()


words = st.sampled_from(["a", "b", "key-1", "Schlüssel", "键", "x" * 70, "polygenelubricants"])
properties = st.builds(
    lambda unique, keys, other: b"\x02".join([*other, *unique, *keys]),
    st.lists(words.map(lambda word: f"UNIQ_KEY\x01{word}".encode()), max_size=1),
    st.lists(
        st.lists(words, min_size=1, max_size=4).map(
            lambda many: f"KEYS\x01 {'  '.join(many)} ".encode()
        ),
        max_size=1,
    ),
    st.lists(st.sampled_from([b"TAGS\x01a b", b"WAIT\x01true", b"XKEYS\x01no"]), max_size=2),
)
messages = st.tuples(
    st.sampled_from(["TopicTest", "Other", "主题"]),
    properties,
    st.sampled_from([0, 0, 0, 0x4, 0x8, 0xC, 0x10, 0x30]),
    st.integers(-3000, 9000),
    st.integers(0, 2),
)


def log_of(rows: list[tuple[str, bytes, int, int, int]]) -> list[bytes]:
    """Records of a log; a last number of 0 is an offset that was already there."""
    records = []
    offset = 0
    for topic, text, sys_flag, time_step, offset_step in rows:
        record = make_record(
            topic=topic,
            properties=text,
            sys_flag=sys_flag,
            store_timestamp=NOW + time_step,
            physical_offset=offset if offset_step else offset // 2,
        )
        records.append(record)
        offset += len(record)
    return records


@given(
    rows=st.lists(messages, max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=6),
    few=st.sampled_from([-1, 4, 100]),
    size=st.sampled_from([(SLOTS, LIMIT), (1, 2), (7, 60)]),
    at_once=st.sampled_from([1, 200, 1 << 20]),
)
@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_files_are_java_s_whatever_the_batches(
    rows: list[tuple[str, bytes, int, int, int]],
    cuts: list[int],
    few: int,
    size: tuple[int, int],
    at_once: int,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_module, "MAX_PLAIN_RECORDS", few)
    monkeypatch.setattr(index_module, "MAX_JOINED_PROPERTIES", at_once)
    records = log_of(rows)
    plain = PlainIndex(*size)
    for record in records:
        plain.put(record)
    directory = tmp_path_factory.mktemp("index")
    index = KeyIndex(directory, hash_slot_count=size[0], entry_count=size[1])
    index.load()
    starts = positions(records)
    edges = sorted({0, len(rows), *[cut for cut in cuts if cut < len(rows)]})
    for begin, end in itertools.pairwise(edges):
        index.put(b"".join(records), np.array(starts[begin:end]))
    index.close()
    assert contents(directory) == plain.contents()


def test_a_batch_goes_on_in_a_file_that_java_would_have_begun(small: KeyIndex) -> None:
    # A file for 8 holds 7 entries. The eighth key is in the middle of a record.
    records = log_of([("T", b"KEYS\x01a b c d e f", 0, at, 1) for at in range(0, 9000, 3000)])
    small.put(b"".join(records), positions(records))
    assert [file.entry_count for file in small._files] == [8, 8, 5]
    assert small._files[1].begin_timestamp == NOW + 3000


@pytest.mark.parametrize("few", [-1, 100])
def test_a_record_without_keys_begins_the_file_after_a_full_one(
    small: KeyIndex, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "MAX_PLAIN_RECORDS", few)
    records = log_of([("T", b"KEYS\x01a b c d e f g", 0, 0, 1), ("T", b"", 0, 5, 1)])
    log = b"".join(records)
    small.put(log, positions(records)[:1])
    assert len(small._files) == 1
    small.put(log, positions(records)[1:])
    assert len(small._files) == 2
    # As Java leaves a file without entries: it begins where the other ended, count not written.
    assert small._files[1].path.read_bytes()[:40] == struct.pack(">qqqqii", NOW, NOW, 0, 0, 0, 0)


@pytest.mark.parametrize("few", [-1, 100])
def test_bytes_that_are_no_record_are_passed_over(
    small: KeyIndex, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "MAX_PLAIN_RECORDS", few)
    small.put(b"no record at all" * 20, [0, 5, -1, 1 << 40])
    assert small._files == ()
    record = make_record(properties=b"KEYS\x01k", physical_offset=44)
    small.put(b"garbage" + record + record[:-1], [0, 7, 7 + len(record)])
    assert small.query("TopicTest", "k", 32, 0, FOREVER) == [44]


def test_query_finds_newest_first_over_all_files(small: KeyIndex) -> None:
    records = log_of([("T", f"KEYS\x01same {at}".encode(), 0, at * 1000, 1) for at in range(20)])
    offsets = positions(records)
    small.put(b"".join(records), offsets)
    assert len(small._files) > 4
    assert small.query("T", "same", 32, 0, FOREVER) == offsets[::-1]
    assert small.query("T", "same", 3, 0, FOREVER) == offsets[:-4:-1]
    assert small.query("T", "same", 0, 0, FOREVER) == []
    assert small.query("T", "same", -1, 0, FOREVER) == []
    assert small.query("T", "7", 32, 0, FOREVER) == [offsets[7]]
    assert small.query("Other", "same", 32, 0, FOREVER) == []
    assert small.query("T", "same", 32, NOW + 4000, NOW + 6000) == offsets[6:3:-1]
    assert small.query("T", "same", 32, NOW + 99_000, FOREVER) == []
    assert small.end_offset == offsets[-1]
    assert small.end_timestamp == NOW + 19_000


def test_query_never_gives_more_than_the_limit(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path, hash_slot_count=SLOTS, entry_count=100, max_results=6)
    index.load()
    records = log_of([("T", b"UNIQ_KEY\x01u", 0, 0, 1)] * 10)
    index.put(b"".join(records), positions(records))
    assert len(index.query("T", "u", 1000, 0, FOREVER)) == 6
    index.close()


def test_restart_goes_on_where_it_ended(tmp_path: Path) -> None:
    records = log_of([("T", f"KEYS\x01k {at}".encode(), 0, at, 1) for at in range(30)])
    log, starts = b"".join(records), positions(records)
    plain = PlainIndex(SLOTS, 25)
    for at, record in enumerate(records):
        plain.put(record)
        if at == 12:
            plain.put(record)
    for part in (starts[:13], starts[5:]):
        index = KeyIndex(tmp_path, hash_slot_count=SLOTS, entry_count=25)
        index.load()
        index.put(log, part)
        index.close()
    assert contents(tmp_path) == plain.contents()


def test_after_a_crash_files_later_than_the_checkpoint_go(tmp_path: Path) -> None:
    records = log_of([("T", b"KEYS\x01a b c d e f g", 0, at * 1000, 1) for at in range(4)])
    index = KeyIndex(tmp_path, hash_slot_count=SLOTS, entry_count=LIMIT)
    index.load()
    index.put(b"".join(records), positions(records))
    index.close()
    before = contents(tmp_path)
    index.load(drop_later_than=NOW + 1000)
    assert contents(tmp_path) == before[:2]
    assert index.end_offset == positions(records)[1]


def test_what_is_no_index_file_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "20240101000000000").mkdir()
    index = KeyIndex(tmp_path, hash_slot_count=SLOTS, entry_count=LIMIT)
    with caplog.at_level(logging.WARNING):
        index.load()
    assert "notes.txt" in caplog.text
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert index._files == ()


def test_a_file_of_other_settings_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "20240101000000000").write_bytes(bytes(100))
    index = KeyIndex(tmp_path, hash_slot_count=SLOTS, entry_count=LIMIT)
    with pytest.raises(IndexFileError, match=r"20240101000000000 has 100 bytes.*maxHashSlotNum=5"):
        index.load()


@given(garbage=st.binary(min_size=40, max_size=40 + 4 * SLOTS + 20 * LIMIT))
@settings(max_examples=examples(100), deadline=None)
def test_a_damaged_file_neither_hangs_nor_breaks(
    garbage: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("index")
    (directory / "20240101000000000").write_bytes(garbage.ljust(40 + 4 * SLOTS + 20 * LIMIT, b"\3"))
    index = KeyIndex(directory, hash_slot_count=SLOTS, entry_count=LIMIT)
    index.load()
    for key in ("a", "b", "c"):
        assert len(index.query("T", key, 64, -(1 << 63), FOREVER)) <= LIMIT
    records = log_of([("T", f"KEYS\x01{at}".encode(), 0, 0, 1) for at in range(40)])
    index.put(b"".join(records), positions(records))
    index.put(b"".join(records), positions(records)[:3])
    index.close()


def test_chains_that_go_round_end(tmp_path: Path) -> None:
    file = PlainFile(1, LIMIT, 0, 0)
    for offset in range(3):
        file.put("T#k", offset, NOW)
    entries_at = 44
    struct.pack_into(">i", file.data, entries_at + 20 * 1 + 16, 3)
    (tmp_path / "20240101000000000").write_bytes(file.data)
    index = KeyIndex(tmp_path, hash_slot_count=1, entry_count=LIMIT)
    index.load()
    assert index.query("T", "k", 64, 0, FOREVER) == [2, 1, 0]
    index.close()


def test_delete_before_keeps_what_the_log_still_has(small: KeyIndex) -> None:
    records = log_of([("T", b"KEYS\x01a b c d e f g", 0, 0, 1)] * 5)
    offsets = positions(records)
    small.put(b"".join(records), offsets)
    assert small.delete_before(offsets[0]) == 0
    assert small.delete_before(offsets[2]) == 2
    assert small.query("T", "a", 9, 0, FOREVER) == offsets[:1:-1]
    assert small.delete_before(FOREVER) == 2
    assert len(small._files) == 1
    assert len(list(small._files[0].path.parent.iterdir())) == 1


def test_a_full_file_is_synced_and_its_time_reported(tmp_path: Path) -> None:
    reported: list[int] = []
    index = KeyIndex(
        tmp_path, hash_slot_count=SLOTS, entry_count=LIMIT, on_file_synced=reported.append
    )
    index.load()
    records = log_of([("T", b"KEYS\x01a b c d e f g", 0, at * 10, 1) for at in range(3)])
    index.put(b"".join(records), positions(records)[:1])
    index.flush()
    assert reported == []
    index.put(b"".join(records), positions(records)[1:])
    index.flush()
    assert reported == [NOW, NOW + 10]
    assert index.synced_timestamp == NOW + 10
    index.close()


def test_after_a_failed_sync_no_time_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[int] = []
    index = KeyIndex(
        tmp_path, hash_slot_count=SLOTS, entry_count=LIMIT, on_file_synced=reported.append
    )
    index.load()
    records = log_of([("T", b"KEYS\x01a b c d e f g", 0, at, 1) for at in range(4)])
    log, starts = b"".join(records), positions(records)

    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("os.fdatasync", broken)
        index.put(log, starts[:2])
        with pytest.raises(OSError, match="Input/output"):
            index.flush()
    index.put(log, starts[2:])
    index.flush()
    index.close()
    assert reported == []
    assert index.synced_timestamp == 0
    assert "fsync failed" in caplog.text


def test_files_behind_one_that_was_removed_are_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A second broker may remove files of a running one; a gap could not be seen later."""
    index = KeyIndex(tmp_path, hash_slot_count=SLOTS, entry_count=LIMIT)
    index.load()
    records = log_of([("T", b"KEYS\x01a b c d e f g", 0, at * 1000, 1) for at in range(4)])
    log, starts = b"".join(records), positions(records)
    index.put(log, starts[:2])
    index.flush()
    before = contents(tmp_path)
    synced = index.synced_timestamp
    sorted(tmp_path.iterdir())[1].unlink()
    index.put(log, starts[2:])
    index.flush()
    assert index.synced_timestamp == synced, "nothing behind the gap counts as safe"
    index.close()
    assert contents(tmp_path) == before[:1]
    assert "removed by another process" in caplog.text
    index = KeyIndex(tmp_path, hash_slot_count=SLOTS, entry_count=LIMIT)
    index.load()
    assert index.end_offset == starts[0]
    index.close()


def test_names_are_times_and_always_ascend(tmp_path: Path) -> None:
    times = iter([1_700_000_000.123, 1_700_000_000.123, 1_600_000_000.0])
    index = KeyIndex(tmp_path, hash_slot_count=SLOTS, entry_count=LIMIT, clock=lambda: next(times))
    index.load()
    records = log_of([("T", b"KEYS\x01a b c d e f g", 0, 0, 1)] * 3)
    index.put(b"".join(records), positions(records))
    names = [file.path.name for file in index._files]
    index.close()
    expected = time.strftime("%Y%m%d%H%M%S", time.localtime(1_700_000_000))
    assert names == [expected + "123", expected + "124", expected + "125"]


def test_a_file_is_sparse_at_its_full_size(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path)
    index.load()
    index.put(make_record(properties=b"KEYS\x01k"), [0])
    status = index._files[0].path.stat()
    assert status.st_size == 40 + 5_000_000 * 4 + 20_000_000 * 20
    assert status.st_blocks * 512 < 30_000_000
    index.close()


def test_close_leaves_no_mapping(small: KeyIndex) -> None:
    records = log_of([("T", b"KEYS\x01a", 0, 0, 1)] * 40)
    small.put(b"".join(records), positions(records))
    small.put(b"".join(records), positions(records)[-1:])
    small.query("T", "a", 9, 0, FOREVER)
    mappings: list[weakref.ref[mmap.mmap]] = [weakref.ref(file._map) for file in small._files]
    small.close()
    gc.collect()
    assert [mapping() for mapping in mappings] == [None] * len(mappings)
    assert small.query("T", "a", 9, 0, FOREVER) == []
    with pytest.raises(ValueError, match="closed"):
        small.put(b"", [])


def test_close_removes_files_that_another_process_made(small: KeyIndex, tmp_path: Path) -> None:
    records = log_of([("T", f"KEYS\x01k{at}".encode(), 0, at, 1) for at in range(9)])
    log, starts = b"".join(records), positions(records)
    small.put(log, starts[:3])
    directory = small._files[0].path.parent
    # As Java's broker does it, which finds that the store is in use only afterwards.
    foreign = KeyIndex(tmp_path / "other", hash_slot_count=SLOTS, entry_count=LIMIT)
    foreign.load()
    foreign.put(log, starts[8:])
    [path] = [file.path for file in foreign._files]
    foreign.close()
    shutil.copy(path, directory / "29991231235959999")
    (directory / "readme.txt").write_text("left alone")
    small.close()
    assert not (directory / "29991231235959999").exists()
    assert (directory / "readme.txt").exists()
    again = KeyIndex(directory, hash_slot_count=SLOTS, entry_count=LIMIT)
    again.load()
    assert again.end_offset == starts[2]
    again.close()


def test_a_query_outlives_the_deletion_of_its_file(small: KeyIndex) -> None:
    records = log_of([("T", b"KEYS\x01a a a a a a a", 0, 0, 1)] * 2)
    small.put(b"".join(records), positions(records))
    found = iter(small._files[0].find(abs(java_hash("T#a")), 0, FOREVER))
    assert next(found) == 0
    small.delete_before(FOREVER)
    assert list(found) == [0] * 6


def test_queries_while_the_writer_runs_are_never_wrong(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path, hash_slot_count=50, entry_count=3_000)
    index.load()
    records = log_of([("T", f"KEYS\x01hot k{at % 7}".encode(), 0, at, 1) for at in range(6_000)])
    log, starts = b"".join(records), positions(records)
    done = threading.Event()
    failures: list[Any] = []
    counted = [0]

    def ask() -> None:
        seen = -1
        while not done.is_set():
            answer = index.query("T", "hot", 64, 0, FOREVER)
            counted[0] += 1
            if answer != sorted(answer, reverse=True) or (answer and answer[0] < seen):
                failures.append((seen, answer))
            seen = answer[0] if answer else seen

    reader = threading.Thread(target=ask)
    reader.start()
    for at in range(0, 6_000, 60):
        index.put(log, starts[at : at + 60])
    done.set()
    reader.join()
    assert failures == []
    assert index.query("T", "hot", 64, 0, FOREVER) == starts[:-65:-1]
    index.close()


def test_a_full_disk_is_an_error_and_changes_nothing(
    small: KeyIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = log_of([("T", b"KEYS\x01a", 0, 0, 1)] * 20)
    log, starts = b"".join(records), positions(records)
    small.put(log, starts[:1])
    before = small._files[0].path.read_bytes()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    for part in (starts[1:2], starts[1:]):
        with monkeypatch.context() as patched:
            patched.setattr("os.pwrite", full)
            with pytest.raises(OSError, match="No space"):
                small.put(log, part)
        assert small._files[0].path.read_bytes() == before
    small.put(log, starts[1:3])
    assert small.query("T", "a", 9, 0, FOREVER) == starts[2::-1]


@pytest.mark.parametrize("call", ["os.posix_fallocate", "os.ftruncate", "mmap.mmap"])
def test_a_file_that_cannot_be_made_leaves_nothing(
    small: KeyIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    records = log_of([("T", b"KEYS\x01a b c d e f g", 0, 0, 1)] * 2)
    log, starts = b"".join(records), positions(records)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for present in (0, 1):
        for _ in range(3):
            with monkeypatch.context() as patched:
                patched.setattr(call, full)
                with pytest.raises(OSError, match="No space"):
                    small.put(log, starts[present:])
        assert len(list((tmp_path / "index").iterdir())) == present
        small.put(log, starts[present : present + 1])
        small.flush()
    assert small.query("T", "a", 9, 0, FOREVER) == starts[::-1]
    # Each file has its mapping's descriptor, and the one that is written to its own.
    assert open_below(tmp_path) == 3


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes(small: KeyIndex, kind: type) -> None:
    records = log_of([("T", b"KEYS\x01a", 0, 0, 1)] * 20)
    buffer = kind(b"".join(records))
    small.put(buffer, positions(records)[:1])
    small.put(buffer, positions(records)[1:])
    assert small.query("T", "a", 64, 0, FOREVER) == positions(records)[::-1]
    if isinstance(buffer, bytearray):
        # Fails as long as anyone holds a view.
        buffer.append(0)


def test_properties_of_nothing_but_separators_take_bounded_memory(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path, hash_slot_count=SLOTS, entry_count=1_000_000)
    index.load()
    bombs = [b"\x02" * 32_767, b"KEYS\x01" + b"k " * 16_000]
    records = log_of([("T", bombs[at % 20 == 0], 0, 0, 1) for at in range(200)])
    log, starts = b"".join(records), positions(records)
    tracemalloc.start()
    try:
        index.put(log, starts)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert index._files[0].entry_count == 1 + 10 * 16_000
    assert peak < 100 * 1024 * 1024
    index.close()


def contents(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(directory.iterdir())]


def test_files_behind_the_log_s_end_go(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path, hash_slot_count=SLOTS, entry_count=LIMIT)
    index.load()
    offset = 0
    ends = []
    for number in range(20):
        record = make_record(properties=b"KEYS\x01k%d" % number, physical_offset=offset)
        index.put(record, [0])
        ends.append(offset)
        offset += len(record)
    assert index.entry_count == 20
    assert len(list(tmp_path.iterdir())) == 3
    index.delete_behind(ends[9])
    assert index.end_offset == ends[6]
    assert index.entry_count == 7
    assert len(list(tmp_path.iterdir())) == 1
    index.delete_behind(0)
    assert (index.end_offset, index.entry_count) == (0, 0)
    index.close()
