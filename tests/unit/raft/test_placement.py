from __future__ import annotations

import random

import numpy as np
import pytest

from pyromq.raft.format import MAX_ENTRY_SIZE, Columns
from pyromq.raft.placement import MismatchError, check_entries, place_entries, split_by_file

FILE = 4096


def one_by_one(written: int, sizes: list[int]) -> list[int]:
    """Place entries as Java does: one at a time."""
    positions = []
    for size in sizes:
        if size + 8 > FILE - written % FILE:
            written += FILE - written % FILE
        positions.append(written)
        written += size
    return positions


def columns(positions: list[int], sizes: list[int], terms: list[int] | None = None) -> Columns:
    return Columns(
        5,
        np.array(terms or [1] * len(sizes), np.int64),
        np.array(positions, np.int64),
        np.array(sizes, np.int64),
    )


@pytest.mark.parametrize("seed", range(20))
def test_many_entries_go_where_single_ones_would(seed: int) -> None:
    chooser = random.Random(seed)
    sizes = [chooser.randint(49, chooser.choice((100, 1000, 4088))) for _ in range(50)]
    written = chooser.randint(0, 4000)
    expected = one_by_one(written, sizes)
    assert place_entries(written, np.array(sizes, np.int64), FILE).tolist() == expected
    opened = check_entries(columns(expected, sizes), written, 1, FILE)
    ends = [written, *(at + size for at, size in zip(expected, sizes, strict=True))]
    assert opened == [n for n, at in enumerate(expected) if at != ends[n]]


def test_an_entry_that_leaves_room_for_a_blank_fits() -> None:
    assert place_entries(100, np.array([FILE - 108]), FILE).tolist() == [100]
    assert place_entries(100, np.array([FILE - 107]), FILE).tolist() == [FILE]


@pytest.mark.parametrize("size", [48, 0, FILE - 7])
def test_a_size_that_dledger_does_not_store_is_refused(size: int) -> None:
    with pytest.raises(MismatchError, match=f"an entry of {size} bytes"):
        check_entries(columns([0], [size]), 0, -1, FILE)


def test_an_entry_of_more_than_four_mebibytes_is_refused() -> None:
    large = 1 << 30
    check_entries(columns([0], [MAX_ENTRY_SIZE]), 0, -1, large)
    with pytest.raises(MismatchError):
        check_entries(columns([0], [MAX_ENTRY_SIZE + 1]), 0, -1, large)


@pytest.mark.parametrize("position", [99, 101, 0, 2 * FILE, FILE + 1, -1])
def test_another_position_is_refused(position: int) -> None:
    with pytest.raises(MismatchError, match="continues at 100"):
        check_entries(columns([position], [200]), 100, 1, FILE)


def test_a_blank_of_the_leader_is_accepted() -> None:
    assert check_entries(columns([FILE], [200]), 100, 1, FILE) == [0]


def test_an_empty_file_is_not_skipped() -> None:
    with pytest.raises(MismatchError):
        check_entries(columns([2 * FILE], [200]), FILE, 1, FILE)


def test_an_entry_beyond_the_file_is_refused() -> None:
    with pytest.raises(MismatchError):
        check_entries(columns([4000], [200]), 4000, 1, FILE)


def test_a_gap_within_the_batch_is_refused() -> None:
    with pytest.raises(MismatchError, match="entry 6"):
        check_entries(columns([100, 301], [200, 200]), 100, 1, FILE)


@pytest.mark.parametrize("terms", [[0, 1], [2, 1]])
def test_a_falling_term_is_refused(terms: list[int]) -> None:
    with pytest.raises(MismatchError, match="term"):
        check_entries(columns([100, 300], [200, 200], terms), 100, 1, FILE)


def test_entries_are_split_where_they_open_files() -> None:
    sizes = [100, 4050, 60, 70]
    placed = columns(one_by_one(0, sizes), sizes)
    rolls = check_entries(placed, 0, 1, FILE)
    data = b"".join(bytes([number]) * size for number, size in enumerate(sizes))
    parts = [(*part, bytes(entries)) for *part, entries in split_by_file(placed, data, rolls)]
    assert parts == [
        (0, 1, 0, data[:100]),
        (1, 2, FILE, data[100:4150]),
        (2, 4, 2 * FILE, data[4150:]),
    ]
