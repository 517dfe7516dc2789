"""The kernel takes only entries that the Python code accepts too, with the same index units."""

from __future__ import annotations

import random
from types import ModuleType

import numpy as np
import pytest

from pyromq.protocol.message.entry import INDEX_UNIT, MAX_ENTRY_SIZE, entry_header
from pyromq.raft.format import FormatError, decode_columns, encode_units
from pyromq.raft.placement import MismatchError, check_entries
from tests import kernel_builds
from tests.support.damage import damaged
from tests.support.examples import examples

FILE_SIZE = 1 << 30


@pytest.fixture(
    scope="module",
    params=[kernel_builds.FAST, kernel_builds.CHECKED],
    ids=lambda build: build.name,
)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return kernel_builds.load(request.param, "raft_entries")


def entries(index: int, position: int, terms: list[int], sizes: list[int]) -> bytes:
    data = b""
    for count, (term, size) in enumerate(zip(terms, sizes, strict=True)):
        header = entry_header(index + count, term, position + len(data), size)
        data += header + bytes([65 + count % 26]) * size
    return data


def test_entries_that_continue_a_log(module: ModuleType) -> None:
    data = entries(7, 5000, [2, 2, 4], [10, 1, 300])
    count, term, units = module.entry_units(memoryview(data), 7, 2, 5000)
    assert (count, term) == (3, 4)
    expected = [(1, 5000, 58, 7, 2), (1, 5058, 49, 8, 2), (1, 5107, 348, 9, 4)]
    assert list(INDEX_UNIT.iter_unpack(units)) == expected


def test_others_are_left_to_the_python_code(module: ModuleType) -> None:
    data = entries(7, 5000, [2, 2], [10, 20])
    assert module.entry_units(data, 8, 2, 5000) is None, "another index"
    assert module.entry_units(data, 7, 3, 5000) is None, "a term that falls"
    assert module.entry_units(data, 7, 2, 5001) is None, "another position"
    assert module.entry_units(data[:-1], 7, 2, 5000) is None, "the last one is not complete"
    assert module.entry_units(data + b"\0", 7, 2, 5000) is None, "a byte too many"
    assert module.entry_units(b"", 7, 2, 5000) is None
    assert module.entry_units(entries(7, 5000, [2, 1], [10, 20]), 7, 2, 5000) is None
    assert module.entry_units(entries(7, 5000, [2], [0]), 7, 2, 5000) is None, "no body"
    large = entries(7, 5000, [2], [MAX_ENTRY_SIZE - 47])
    assert module.entry_units(large, 7, 2, 5000) is None


@pytest.mark.parametrize("field", [0, 4, 8, 16, 24, 32, 36, 40, 44])
def test_every_field_of_a_header_counts(module: ModuleType, field: int) -> None:
    data = bytearray(entries(7, 5000, [2, 2], [10, 20]))
    data[58 + field] ^= 0x80
    assert module.entry_units(data, 7, 2, 5000) is None


def test_damaged_entries_are_taken_only_if_the_python_code_takes_them(module: ModuleType) -> None:
    chooser = random.Random(16)
    taken = 0
    for _ in range(examples(3000)):
        count = chooser.randrange(1, 6)
        terms = sorted(chooser.randrange(5) for _ in range(count))
        sizes = [chooser.choice([1, 20, 100, 500]) for _ in range(count)]
        data = entries(3, 100, terms, sizes)
        if chooser.random() < 0.8:
            data = damaged(chooser, data)
        found = module.entry_units(data, 3, 1, 100)
        try:
            columns = decode_columns(data)
            is_next = columns.first_index == 3
            rolls = check_entries(columns, 100, 1, FILE_SIZE)
        except (FormatError, MismatchError):
            assert found is None
            continue
        assert not rolls
        assert (found is not None) == is_next
        if found is not None:
            taken += 1
            assert found == (len(columns.sizes), int(columns.terms[-1]), encode_units(columns))
            assert int(np.sum(columns.sizes)) == len(data)
    assert taken > 50
    assert module.fault_count() == 0
