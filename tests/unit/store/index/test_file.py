"""One index file: what goes into an entry, and that few and many keys make the same file."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.store.index.file import IndexFile, IndexFileError
from tests.support.examples import examples

NOW = 1_700_000_000_000
MAX_LONG = (1 << 63) - 1
Key = tuple[int, int, int]

keys = st.tuples(
    st.integers(0, (1 << 31) - 1) | st.integers(0, 12),
    st.integers(0, MAX_LONG),
    st.one_of(
        st.integers(NOW - 5000, NOW + 100_000),
        st.integers(-(1 << 63), MAX_LONG),
        st.sampled_from([0, 1, -1, MAX_LONG, -(1 << 63)]),
    ),
)


def append(file: IndexFile, keys: list[Key]) -> None:
    hashes, offsets, timestamps = zip(*keys, strict=True)
    file.append(
        np.array(hashes, np.int32), np.array(offsets, np.int64), np.array(timestamps, np.int64)
    )


def entry(file: IndexFile, slots: int, number: int) -> tuple[int, ...]:
    return struct.unpack_from(">iqii", file.path.read_bytes(), 40 + 4 * slots + 20 * number)


@given(
    before=st.none() | keys,
    batches=st.lists(st.lists(keys, min_size=1, max_size=10), max_size=5),
    slots=st.integers(1, 9),
    garbage=st.binary(max_size=36),
)
@settings(max_examples=examples(150), deadline=None)
def test_few_and_many_make_the_same_file(
    before: Key | None,
    batches: list[list[Key]],
    slots: int,
    garbage: bytes,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("file")
    made = []
    for kind in ("few", "many"):
        path = directory / kind
        slot_bytes = garbage[: 4 * slots].ljust(4 * slots, b"\0")
        path.write_bytes(bytes(40) + slot_bytes + bytes(20 * 60))
        file = IndexFile(path, slots, 60)
        if before is not None:
            earlier = IndexFile(directory / f"{kind}-earlier", slots, 60)
            earlier.append_few([before])
            file.continue_from(earlier)
            earlier.close()
        for batch in batches:
            if kind == "few":
                file.append_few(batch)
            else:
                append(file, batch)
        file.close()
        made.append((path.read_bytes(), file.entry_count, file.begin_timestamp, file.end_offset))
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("milliseconds", "seconds"),
    [(0, 0), (999, 0), (1000, 1), (-1, 0), (-5000, 0), ((1 << 31) * 1000, (1 << 31) - 1)],
)
def test_time_is_kept_in_seconds_behind_the_first(
    tmp_path: Path, milliseconds: int, seconds: int
) -> None:
    few, many = IndexFile(tmp_path / "few", 3, 9), IndexFile(tmp_path / "many", 3, 9)
    batch = [(1, 10, NOW), (2, 20, NOW + milliseconds)]
    few.append_few(batch)
    append(many, batch)
    assert entry(few, 3, 1) == entry(many, 3, 1) == (1, 10, 0, 0)
    assert entry(few, 3, 2) == entry(many, 3, 2) == (2, 20, seconds, 0)
    few.close()
    many.close()


def test_the_first_entry_counts_from_the_end_of_the_file_before(tmp_path: Path) -> None:
    before, file = IndexFile(tmp_path / "1", 3, 9), IndexFile(tmp_path / "2", 3, 9)
    before.append_few([(1, 10, NOW)])
    file.continue_from(before)
    append(file, [(1, 20, NOW + 7000), (1, 30, NOW + 9000)])
    assert entry(file, 3, 1) == (1, 20, 7, 0)
    assert entry(file, 3, 2) == (1, 30, 2, 1)
    assert file.begin_timestamp == NOW + 7000
    before.close()
    file.close()


def test_a_slot_that_points_past_the_entries_is_empty(tmp_path: Path) -> None:
    # A slot may name the entry that is being written (Java takes that as a link), not a later one.
    for slot, previous in ((-1, 0), (0, 0), (1, 1), (2, 0)):
        for kind in ("few", "many"):
            path = tmp_path / f"{slot}{kind}"
            path.write_bytes(bytes(40) + slot.to_bytes(4, "big", signed=True) + bytes(20 * 5))
            file = IndexFile(path, 1, 5)
            if kind == "few":
                file.append_few([(8, 80, NOW)])
            else:
                append(file, [(8, 80, NOW)])
            assert entry(file, 1, 1) == (8, 80, 0, previous)
            assert list(file.find(8, 0, MAX_LONG)) == [80]
            file.close()


def test_find_stops_at_entries_older_than_asked_for(tmp_path: Path) -> None:
    file = IndexFile(tmp_path / "1", 1, 9)
    file.append_few([(5, at, NOW + at * 1000) for at in range(6)])
    assert list(file.find(5, NOW + 2000, NOW + 4999)) == [4, 3, 2]
    assert list(file.find(6, 0, MAX_LONG)) == []
    assert file.covers(NOW - 5, NOW + 9_000_000)
    assert file.covers(NOW + 5000, MAX_LONG)
    assert file.covers(0, NOW)
    assert not file.covers(NOW + 5001, MAX_LONG)
    assert not file.covers(0, NOW - 1)
    file.close()


def test_an_empty_file_finds_nothing(tmp_path: Path) -> None:
    file = IndexFile(tmp_path / "1", 2, 9)
    assert list(file.find(0, 0, MAX_LONG)) == []
    assert (file.entry_count, file.room, file.is_full) == (1, 8, False)
    file.close()


def test_a_file_of_another_size_is_refused_and_let_go(tmp_path: Path) -> None:
    path = tmp_path / "1"
    path.write_bytes(b"x" * 41)
    with pytest.raises(IndexFileError, match="41 bytes"):
        IndexFile(path, 2, 9)
    assert path.read_bytes() == b"x" * 41


def test_sync_of_a_deleted_file_does_nothing(tmp_path: Path) -> None:
    file = IndexFile(tmp_path / "1", 2, 9)
    file.sync()
    file.delete()
    file.sync()
    file.delete()
    assert not file.path.exists()
