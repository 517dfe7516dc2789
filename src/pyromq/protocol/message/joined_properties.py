"""Find property values in many records at once with numpy (`record` and `bulk` have the layout).

The properties of many rows are copied into one array with separators around each row, so that all
rows are searched together. `last_property` gives the same result for one row.

Pure. Called by the key index, by recovery and by Spark tasks, each on its own thread.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyromq.protocol.message.bulk import (
    Buffer,
    Bytes,
    Longs,
    Spans,
    all_true,
    gather,
    windows,
)
from pyromq.protocol.message.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

_SEPARATOR: Final = ord(PROPERTY_SEPARATOR)
_SPACE: Final = 0x20
_WINDOW: Final = np.dtype("<u8")
#: After the last item, because an eight-byte window may start there.
_PADDING: Final = bytes(8)
#: Fewer rows are joined by Python, more by numpy.
_MIN_ROWS_FOR_NUMPY: Final = 64


class JoinedProperties:
    """The properties of many rows in one array, cut into items at their separators.

    Each row gets a separator before and after it, because the one at its end may be missing. Spans
    are positions in the buffer that the properties came from.

    Messages of one program mostly have the same properties in the same order. The items then form
    a table with one column per property, and no row has to be searched.
    """

    def __init__(self, buffer: Buffer, properties: Spans) -> None:
        begins, lengths = properties
        rows = begins.size
        width = int(np.maximum.reduce(lengths)) if rows >= _MIN_ROWS_FOR_NUMPY else 0
        if _WINDOW.itemsize <= width <= len(buffer) - 2 and (
            rows * width <= 2 * int(np.add.reduce(lengths))
        ):
            self._data = _side_by_side(buffer, properties, width)
            self._row_begins = np.arange(rows) * (width + 2)
        else:
            self._data = _end_to_end(buffer, properties)
            self._row_begins = (lengths + 1).cumsum() - lengths - 1
        #: Added to a position in the joined bytes, gives the position in the buffer. Per row.
        self._shifts = begins - self._row_begins - 1
        separators = (self._data == _SEPARATOR).nonzero()[0]
        self._items = separators[:-1] + 1
        self._item_ends = separators[1:]
        self._windows = windows(self._data, _WINDOW)
        self._beginnings = self._windows[self._items]
        #: Items per row if all rows have the same number; 0 otherwise.
        self._items_per_row = 0
        per_row, left_over = divmod(self._items.size, max(rows, 1))
        if per_row and not left_over and all_true(separators[:-1:per_row] == self._row_begins):
            self._items_per_row = per_row

    def find(self, name: bytes) -> tuple[Longs, Spans]:
        """Return the rows that have a property with this name, and the spans of its values.

        As in Java, a property without a value does not exist, and the last of several wins.
        """
        rows, starts, ends = self._find(name)
        shifts = self._shifts if rows.size == self._shifts.size else self._shifts[rows]
        return rows, Spans(starts + shifts, ends - starts)

    def find_words(self, name: bytes) -> tuple[Longs, Spans]:
        """Split the values that `find` returns at spaces; return each word with its row, in order.

        Empty words are dropped.
        """
        spaces = (self._data == _SPACE).nonzero()[0]
        if not spaces.size:
            return self.find(name)
        rows, starts, ends = self._find(name)
        if not rows.size:
            return rows, Spans(starts, ends)
        value_of = starts.searchsorted(spaces, "right") - 1
        spaces = spaces[(value_of >= 0) & (spaces < ends[value_of])]
        # Cut before each value, at each of its spaces and at its end. The bytes between the end
        # of a value and the next value are not a word.
        cuts = np.concatenate((starts - 1, spaces, ends))
        cuts.sort()
        word_starts = cuts[:-1] + 1
        word_lengths = cuts[1:] - word_starts
        value_of = starts.searchsorted(word_starts, "right") - 1
        words = ((word_lengths > 0) & (word_starts <= ends[value_of])).nonzero()[0]
        rows = rows[value_of[words]]
        return rows, Spans(word_starts[words] + self._shifts[rows], word_lengths[words])

    def _find(self, name: bytes) -> tuple[Longs, Longs, Longs]:
        """Return rows, and where their values start and end in the joined bytes."""
        (wanted, mask), *others = _marker_windows(name)
        match = self._beginnings & mask == wanted
        column = self._column(match)
        if column is not None:
            starts, ends = self._items[column], self._item_ends[column]
        else:
            matches = match.nonzero()[0]
            starts, ends = self._items[matches], self._item_ends[matches]
        for position, (wanted, mask) in enumerate(others, 1):
            found = self._windows[starts + 8 * position] & mask == wanted
            if not all_true(found):
                starts, ends = starts[found], ends[found]
        starts = starts + (len(name) + 1)
        found = starts < ends
        if not all_true(found):
            starts, ends = starts[found], ends[found]
        if column is not None and starts.size == self._row_begins.size:
            return np.arange(starts.size), starts, ends
        rows = self._row_begins.searchsorted(starts) - 1
        last = rows[1:] != rows[:-1]
        if not all_true(last):
            last = np.append(last, True)
            rows, starts, ends = rows[last], starts[last], ends[last]
        return rows, starts, ends

    def _column(self, match: NDArray[np.bool_]) -> slice | None:
        """Return the matching items if they are one column of the table; None otherwise."""
        rows, columns = self._row_begins.size, self._items_per_row
        if not columns or np.count_nonzero(match) != rows:
            return None
        column = slice(int(match[:columns].argmax()), None, columns)
        return column if all_true(match[column]) else None


def _end_to_end(buffer: Buffer, properties: Spans) -> Bytes:
    begins, lengths = properties
    ends = (begins + lengths).tolist()
    rows = [
        b"",
        *[buffer[begin:end] for begin, end in zip(begins.tolist(), ends, strict=True)],
        _PADDING,
    ]
    return np.frombuffer(PROPERTY_SEPARATOR.encode().join(rows), np.uint8)


def _side_by_side(buffer: Buffer, properties: Spans, width: int) -> Bytes:
    """Pad all rows with zeros to the width of the longest.

    This copies rows of similar length six times as fast.
    """
    begins, lengths = properties
    rows = begins.size
    stride = width + 2  # a separator before and after each row
    data = np.frombuffer(buffer, np.uint8)
    # Each row with the byte before and after it, and one more row as padding.
    firsts = np.append(begins - 1, 0).clip(0, data.size - stride)
    table = gather(data, firsts, stride)
    joined = table.reshape(-1)
    shortest = int(np.minimum.reduce(lengths))
    if shortest < width:
        kind = np.dtype(np.uint8 if width - shortest <= 0xFF else np.uint16)
        columns, over = np.arange(width - shortest).astype(kind), (lengths - shortest).astype(kind)
        table[:-1, shortest + 1 : -1] *= columns < over[:, None]
    # Rows at the very start or end of the buffer lack a neighbouring byte: copy them one by one.
    for row in (firsts[:-1] != begins - 1).nonzero()[0].tolist():
        table[row] = 0
        table[row, 1 : lengths[row] + 1] = data[begins[row] : begins[row] + lengths[row]]
    table[-1] = 0
    table[:, 0] = _SEPARATOR
    joined[np.arange(0, rows * stride, stride) + lengths + 1] = _SEPARATOR
    return joined


def find_property(buffer: Buffer, properties: Spans, name: bytes) -> Spans:
    """Return where each row's value of a property is in the buffer; length -1 without one."""
    size = len(buffer)
    starts = properties.starts.clip(0, size)
    lengths = properties.lengths.clip(0, size - starts)
    rows, values = JoinedProperties(buffer, Spans(starts, lengths)).find(name)
    found = Spans(np.zeros(starts.size, np.int64), np.full(starts.size, -1, np.int64))
    found.starts[rows] = values.starts
    found.lengths[rows] = values.lengths
    return found


def last_property(properties: bytes, name: bytes) -> bytes:
    """Return the value that `JoinedProperties.find` finds in one row; empty if there is none."""
    bounded = b"\x02%b\x02" % properties
    marker = b"\x02%b\x01" % name
    position = bounded.rfind(marker)
    while position >= 0:
        start = position + len(marker)
        end = bounded.find(b"\x02", start)
        if end > start:
            return bounded[start:end]
        position = bounded.rfind(marker, 0, position)
    return b""


@functools.lru_cache(maxsize=64)
def _marker_windows(name: bytes) -> list[tuple[np.uint64, np.uint64]]:
    """Return a name and its separator as eight-byte numbers, each with the mask to apply."""
    marker = name + NAME_VALUE_SEPARATOR.encode()
    parts = [marker[at : at + 8] for at in range(0, len(marker), 8)]
    return [
        (np.uint64(int.from_bytes(part, "little")), np.uint64((1 << 8 * len(part)) - 1))
        for part in parts
    ]
