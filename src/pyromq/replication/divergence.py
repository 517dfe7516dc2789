"""Finds out whether two logs are the same as far as both go, and if not, where they part.

Logs are compared through checksums of ranges; a coroutine asks the master for its own. Records
carry their offset and store time, so two logs that have parted differ in practically every range
that follows, and a common range means that everything before it is common too. That makes the end
of the common log a matter of bisection: about 40 questions for a log of 1 TB.

Pure, except for the questions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from pyromq.base.sizes import KIB

#: Bytes before an offset that are compared to tell whether the logs agree there.
WINDOW: Final = 64 * KIB

#: Returns the checksum of a range of a log, or None if the log does not have it.
Checksum: TypeAlias = Callable[[int, int], int | None]
#: Asks the master for the checksums of several ranges.
AskChecksums: TypeAlias = Callable[[list[tuple[int, int]]], Awaitable[list[int | None]]]


async def agrees_at(first: int, end: int, own: Checksum, ask: AskChecksums) -> bool:
    """Whether both logs have the same bytes before `end`, as far as `first` and WINDOW allow."""
    start = max(first, end - WINDOW)
    (theirs,) = await ask([(start, end)])
    return theirs is not None and own(start, end) == theirs


async def common_end(first: int, end: int, own: Checksum, ask: AskChecksums) -> int:
    """Return the offset between `first` and `end` up to which both logs are the same.

    Both must have all of it. Exact to the byte: the caller rounds down to a record.
    """
    if await agrees_at(first, end, own, ask):
        return end
    # The logs agree at `low` (nothing is before `first`) and disagree at `high`.
    low, high = first, end
    while high - low > WINDOW:
        middle = (low + high) // 2
        if await agrees_at(first, middle, own, ask):
            low = middle
        else:
            high = middle
    # Within a window, compare exactly: everything from `low` on.
    start = low
    while high - low > 1:
        middle = (low + high) // 2
        (theirs,) = await ask([(start, middle)])
        if theirs is not None and own(start, middle) == theirs:
            low = middle
        else:
            high = middle
    return low
