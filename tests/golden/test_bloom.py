"""Bloom filters equal Java's: sizes, and the bits of strings."""

from __future__ import annotations

import pytest

from pyromq.protocol.filter.bloom import BloomFilter
from tests.golden.golden_data import Entry, read_index

FILTERS = read_index("bloom")


@pytest.mark.parametrize("golden", FILTERS, ids=lambda golden: f"{golden['f']}-{golden['n']}")
def test_filter(golden: Entry) -> None:
    bloom = BloomFilter(golden["f"], golden["n"])
    assert (bloom.hash_count, bloom.bit_count) == (golden["k"], golden["m"])
    bit_map = bloom.empty_map()
    for member in golden["texts"]:
        assert list(bloom.positions(member["text"])) == member["positions"], member["text"]
        bloom.add(bloom.positions(member["text"]), bit_map)
    assert bit_map.hex() == golden["bits"]


def test_the_data_covers_enough() -> None:
    assert len(FILTERS) == 7
    assert {len(member["text"].encode()) % 16 for member in FILTERS[0]["texts"]} >= {0, 1, 15}
