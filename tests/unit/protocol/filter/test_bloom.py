"""The bloom filter's own rules; Java's numbers are in tests/golden."""

from __future__ import annotations

import pytest

from pyromq.protocol.filter.bloom import BloomFilter, BloomFilterData

FILTER = BloomFilter(20, 32)


def test_members_are_always_seen() -> None:
    members = [f"group-{number}#topic" for number in range(32)]
    bit_map = FILTER.empty_map()
    for member in members:
        FILTER.add(FILTER.positions(member), bit_map)
    assert all(FILTER.is_hit(FILTER.positions(member), bit_map) for member in members)


def test_others_are_seen_about_as_often_as_the_error_rate_says() -> None:
    bit_map = FILTER.empty_map()
    for number in range(32):
        FILTER.add(FILTER.positions(f"group-{number}"), bit_map)
    wrong = sum(
        FILTER.is_hit(FILTER.positions(f"other-{number}"), bit_map) for number in range(999)
    )
    assert 0 < wrong < 999 * 0.3


def test_nothing_is_in_an_empty_map() -> None:
    assert not FILTER.is_hit(FILTER.positions("group"), FILTER.empty_map())


def test_one_missing_bit_is_enough() -> None:
    bit_map = FILTER.empty_map()
    positions = FILTER.positions("group")
    assert len(set(positions)) > 1
    FILTER.add(positions[1:], bit_map)
    assert not FILTER.is_hit(positions, bit_map)


def test_bits_of_another_filter_are_not_valid() -> None:
    data = FILTER.generate("group")
    assert FILTER.is_valid(data)
    assert not FILTER.is_valid(BloomFilterData(data.positions, data.bit_count + 8))
    assert not FILTER.is_valid(BloomFilterData(data.positions[1:], data.bit_count))


@pytest.mark.parametrize("length", [0, 13, 15])
def test_a_map_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="expected 112"):
        FILTER.add([1], bytearray(length))
    with pytest.raises(ValueError, match="expected 112"):
        FILTER.is_hit([1], bytes(length))


@pytest.mark.parametrize(("error_rate", "expected"), [(0, 32), (100, 32), (-1, 32), (20, 0)])
def test_numbers_that_make_no_filter_are_refused(error_rate: int, expected: int) -> None:
    with pytest.raises(ValueError, match=r"error rate|expected members"):
        BloomFilter(error_rate, expected)
