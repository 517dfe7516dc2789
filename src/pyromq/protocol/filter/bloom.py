"""Bloom filter over consumers, kept as a bit map per message.

When a message is stored, the broker evaluates the expressions of all consumers that filter by
properties, and sets the bits of those that match in the message's bit map in the consume-queue
extension. A pull then skips messages that lack its consumer's bits, without reading them.

Sizes and positions equal Java's: the first half of MurmurHash3 x64 128 with seed 0 selects k of m
bits; its 32-bit halves h1 and h2 give h1 + i * h2 for i = 1..k. Bit n of a map is bit n % 8 (lowest
first) of byte n // 8.

Pure; used by the broker's filters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

_BITS_PER_BYTE: Final = 8
_MASK_32: Final = 0xFFFFFFFF
_MASK_64: Final = 0xFFFFFFFFFFFFFFFF
_MURMUR_1: Final = 0x87C37B91114253D5
_MURMUR_2: Final = 0x4CF5AD432745937F
_BLOCK: Final = 16


class BloomFilterData(NamedTuple):
    """The bits of one consumer, and the size of the map they are for."""

    positions: tuple[int, ...]
    bit_count: int


class BloomFilter:
    """A filter for `expected` members with a false-positive rate of `error_rate` percent."""

    __slots__ = ("bit_count", "error_rate", "expected", "hash_count")

    def __init__(self, error_rate: int, expected: int) -> None:
        """Compute the filter's sizes. Raises ValueError."""
        if not 1 <= error_rate < 100:
            raise ValueError(f"error rate of {error_rate}%: must be from 1 to 99")
        if expected < 1:
            raise ValueError(f"{expected} expected members: must be at least 1")
        self.error_rate = error_rate
        self.expected = expected
        rate = error_rate / 100.0
        # Divide logarithms exactly as Java does: the last digit decides the ceil.
        self.hash_count = math.ceil(math.log(rate) / math.log(0.5))
        bits = math.ceil(
            expected * (math.log(1 / rate) / math.log(2)) * (math.log(math.e) / math.log(2))
        )
        self.bit_count = -(-bits // _BITS_PER_BYTE) * _BITS_PER_BYTE

    def positions(self, text: str) -> tuple[int, ...]:
        """Return the positions of a member's bits."""
        both = _murmur3(text.encode("utf-8", "replace"))
        low, high = both & _MASK_32, both >> 32
        combined = ((low + number * high) & _MASK_32 for number in range(1, self.hash_count + 1))
        # Java flips all bits (~x) of a negative number.
        return tuple(
            (value ^ _MASK_32 if value >> 31 else value) % self.bit_count for value in combined
        )

    def generate(self, text: str) -> BloomFilterData:
        """Return a member's bits in the form that is stored with the member."""
        return BloomFilterData(self.positions(text), self.bit_count)

    def is_valid(self, data: BloomFilterData) -> bool:
        """Return whether a filter of the same size made these bits."""
        return data.bit_count == self.bit_count and len(data.positions) == self.hash_count

    def empty_map(self) -> bytearray:
        """Return an empty bit map."""
        return bytearray(self.bit_count // _BITS_PER_BYTE)

    def add(self, positions: Iterable[int], bit_map: bytearray) -> None:
        """Set these bits in a map."""
        self._check_length(bit_map)
        for position in positions:
            bit_map[position // _BITS_PER_BYTE] |= 1 << position % _BITS_PER_BYTE

    def is_hit(self, positions: Iterable[int], bit_map: bytes | bytearray) -> bool:
        """Return whether all these bits are set; if not, the map does not contain the member."""
        self._check_length(bit_map)
        return all(
            bit_map[position // _BITS_PER_BYTE] >> position % _BITS_PER_BYTE & 1
            for position in positions
        )

    def _check_length(self, bit_map: bytes | bytearray) -> None:
        bits = len(bit_map) * _BITS_PER_BYTE
        if bits != self.bit_count:
            raise ValueError(f"bit map of {bits} bits, expected {self.bit_count}")


def _murmur3(data: bytes) -> int:
    """Return the first 64 bits of MurmurHash3 x64 128 with seed 0."""
    first = second = 0
    length = len(data)
    whole = length - length % _BLOCK
    for start in range(0, whole, _BLOCK):
        first ^= _mix_first(int.from_bytes(data[start : start + 8], "little"))
        first = (_rotate(first, 27) + second) * 5 + 0x52DCE729 & _MASK_64
        second ^= _mix_second(int.from_bytes(data[start + 8 : start + 16], "little"))
        second = (_rotate(second, 31) + first) * 5 + 0x38495AB5 & _MASK_64
    first ^= _mix_first(int.from_bytes(data[whole : whole + 8], "little"))
    second ^= _mix_second(int.from_bytes(data[whole + 8 :], "little"))
    first = (first ^ length) + (second ^ length) & _MASK_64
    second = (second ^ length) + first & _MASK_64
    return _finish(first) + _finish(second) & _MASK_64


def _mix_first(value: int) -> int:
    return _rotate(value * _MURMUR_1 & _MASK_64, 31) * _MURMUR_2 & _MASK_64


def _mix_second(value: int) -> int:
    return _rotate(value * _MURMUR_2 & _MASK_64, 33) * _MURMUR_1 & _MASK_64


def _rotate(value: int, count: int) -> int:
    return (value << count | value >> 64 - count) & _MASK_64


def _finish(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK_64
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK_64
    return value ^ value >> 33
