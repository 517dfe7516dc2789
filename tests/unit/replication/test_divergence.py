from __future__ import annotations

import random
from zlib import crc32

import pytest

from pyromq.replication import divergence
from pyromq.replication.divergence import WINDOW, agrees_at, common_end


class Log:
    """A log in memory."""

    def __init__(self, content: bytes, first: int = 0) -> None:
        self.content = content
        self.first = first
        self.questions = 0

    def checksum(self, start: int, end: int) -> int | None:
        if not self.first <= start <= end <= self.first + len(self.content):
            return None
        return crc32(self.content[start - self.first : end - self.first])

    async def ask(self, ranges: list[tuple[int, int]]) -> list[int | None]:
        self.questions += 1
        return [self.checksum(*each) for each in ranges]


def logs(common: int, more: int, first: int = 0) -> tuple[Log, Log]:
    rng = random.Random(common)
    shared = rng.randbytes(common)
    # Different in the very first byte after the common part.
    return Log(shared + b"\0" + rng.randbytes(more), first), Log(
        shared + b"\1" + rng.randbytes(more), first
    )


@pytest.mark.parametrize("first", [0, 12_345])
@pytest.mark.parametrize(
    "common", [0, 1, 100, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW + 7, 40 * WINDOW]
)
async def test_the_first_different_byte_is_found(common: int, first: int) -> None:
    ours, theirs = logs(common, 5 * WINDOW, first)
    end = first + len(ours.content)
    assert not await agrees_at(first, end, ours.checksum, theirs.ask)
    assert await common_end(first, end, ours.checksum, theirs.ask) == first + common
    assert theirs.questions < 64


async def test_equal_logs_take_one_question() -> None:
    content = random.Random(1).randbytes(10 * WINDOW)
    theirs = Log(content)
    end = await common_end(0, len(content), Log(content).checksum, theirs.ask)
    assert end == len(content)
    assert theirs.questions == 1


async def test_a_log_without_the_range_does_not_agree() -> None:
    content = bytes(1000)
    assert not await agrees_at(0, 1000, Log(content).checksum, Log(content[:500]).ask)


def test_windows_fit_into_one_question() -> None:
    from pyromq.store.log_source import MAX_CHECKED

    assert divergence.WINDOW <= MAX_CHECKED
