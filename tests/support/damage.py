"""Random damage to byte strings, for fuzz tests. Pure: everything comes from the generator."""

from __future__ import annotations

import random


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Return `data` with one to three faults: changed, lost, repeated, moved or foreign bytes."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        data = _damaged_once(rng, data)
    return data


def _damaged_once(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    size = min(rng.choice([1, 2, 4, 8, 12, 16, 100]), len(data) - at)
    before, piece, after = data[:at], data[at : at + size], data[at + size :]
    kind = rng.randrange(6)
    if kind == 0:
        mask = rng.choice([1, 2, 16, rng.randint(1, 255)])  # a digit often becomes another one
        return before + bytes(each ^ mask for each in piece[:1]) + piece[1:] + after
    if kind == 1:
        return before + after
    if kind == 2:
        return before + piece + piece + after
    if kind == 3:
        second = min(rng.choice([1, 8, 16]), len(after))
        return before + after[:second] + piece + after[second:]
    if kind == 4:
        return before + rng.randbytes(size) + piece + after
    return before
