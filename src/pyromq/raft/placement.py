"""Where entries go in the stream of data files: the rule that keeps positions equal on all nodes.

An entry follows the one before it. If its size and a blank exceed the room in the file, it opens
the next file, and a blank fills the rest. A follower also accepts an entry that opens the next file
although it would have fitted: its leader wrote the blank for a larger entry, which it lost.

Pure. Called by `log`, with many entries at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from pyromq.protocol.kernel import load
from pyromq.raft.format import BLANK_SIZE, HEADER_SIZE, MAX_ENTRY_SIZE, Columns, Entry, Numbers

MAX_TERM: Final = 2**63 - 1
_kernel: Final = load("raft_entries")


class MismatchError(ValueError):
    """Entries that do not continue this log; nothing was written."""


def place_entries(written: int, sizes: Numbers, file_size: int) -> Numbers:
    """Return the positions of new entries in a log that ends at `written`.

    Raises MismatchError for a size that DLedger does not store.
    """
    ends = np.cumsum(sizes)
    positions: Numbers = ends - sizes + written
    room = _room(written, file_size)
    if not len(sizes) or int(ends[-1]) <= room:
        return positions
    _check_sizes(sizes, file_size)
    first, placed, position = 0, 0, written
    while True:
        count = int(np.searchsorted(ends, placed + room, side="right"))
        positions[first:count] = ends[first:count] - sizes[first:count] - placed + position
        if count == len(sizes):
            return positions
        first, placed = count, int(ends[count] - sizes[count])
        position = position - position % file_size + file_size
        room = _room(position, file_size)


def check_entries(columns: Columns, written: int, term: int, file_size: int) -> list[int]:
    """Check that entries continue a log that ends at `written` with an entry of `term`.

    Returns the numbers, in the batch, of entries that open a file. Raises MismatchError.
    """
    first, terms, positions, sizes = columns
    _check_sizes(sizes, file_size)
    if terms[0] < max(term, 0) or np.count_nonzero(terms[1:] < terms[:-1]):
        raise MismatchError(f"a term falls at or after entry {first}, after term {term}")
    ends = positions + sizes
    if (
        positions[0] == written
        and not np.count_nonzero(positions[1:] != ends[:-1])
        and int(ends[-1]) + BLANK_SIZE <= written - written % file_size + file_size
    ):
        return []  # all of them continue the file
    before = np.empty_like(positions)
    before[0], before[1:] = written, ends[:-1]
    opens = positions != before
    starts = before - before % file_size
    wrong = positions % file_size + sizes + BLANK_SIZE > file_size
    # An empty file is not skipped.
    wrong |= opens & ((positions != starts + file_size) | (before == starts))
    if wrong.any():
        at = int(wrong.argmax())
        raise MismatchError(
            f"entry {first + at} of {int(sizes[at])} bytes at position {int(positions[at])}, but "
            f"this log continues at {int(before[at])}"
        )
    numbers: list[int] = opens.nonzero()[0].tolist()
    return numbers


def continuing_units(
    data: bytes | memoryview, index: int, term: int, written: int, file_size: int
) -> tuple[int, int, bytearray] | None:
    """Check entries that continue a log in its last file, with the compiled kernel.

    The log ends at `written` with an entry of `term`. Returns their number, the last term, and
    their index units; None if they may be anything else: the other functions tell.
    """
    if _kernel is None or written % file_size + len(data) + BLANK_SIZE > file_size:
        return None
    found: tuple[int, int, bytearray] | None = _kernel.entry_units(data, index, term, written)
    return found


def check_claims(count: int, term: int, expected: int, max_term: int) -> None:
    """Check the number of entries, unless `expected` is 0, and their last term.

    Raises MismatchError.
    """
    if (expected and count != expected) or term > max_term:
        raise MismatchError(f"{count} entries up to term {term}, not {expected} to {max_term}")


def columns_of(entries: Sequence[Entry]) -> Columns:
    """Return entries as columns. Raises MismatchError unless they are consecutive."""
    first = entries[0].index
    if any(entry.index != index for index, entry in enumerate(entries, first)):
        raise MismatchError(f"indexes from {first} on are not consecutive")
    return Columns(
        first,
        np.array([entry.term for entry in entries], np.int64),
        np.array([entry.position for entry in entries], np.int64),
        np.array([entry.size for entry in entries], np.int64),
    )


def split_by_file(
    columns: Columns, data: bytes | memoryview, rolls: list[int]
) -> list[tuple[int, int, int, bytes | memoryview]]:
    """Split entries by data files, given the numbers of those that open one.

    Returns the first number in the batch, the one after the last, the position, and the bytes.
    """
    ends = np.cumsum(columns.sizes)
    starts = ends - columns.sizes
    return [
        (
            low,
            high,
            int(columns.positions[low]),
            memoryview(data)[int(starts[low]) : int(ends[high - 1])],
        )
        for low, high in pairwise([0, *(at for at in rolls if at), len(ends)])
    ]


def _room(position: int, file_size: int) -> int:
    """Return the largest size of an entry at `position`."""
    return file_size - position % file_size - BLANK_SIZE


def _check_sizes(sizes: Numbers, file_size: int) -> None:
    least, most = int(sizes.min()), int(sizes.max())
    limit = min(MAX_ENTRY_SIZE, _room(0, file_size))
    if least <= HEADER_SIZE or most > limit:
        raise MismatchError(
            f"an entry of {most if most > limit else least} bytes: DLedger stores "
            f"{HEADER_SIZE + 1} to {limit}"
        )
