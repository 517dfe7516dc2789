"""Many commit-log records at once, with numpy: header columns, the spans of bodies,
topics and properties, and the values of named properties.

The layout is that of `record`; this is the same knowledge as numpy needs it. A caller
brings bytes (of the log or of a pull's answer) and the positions at which records
begin, and takes columns: one element per record.

Invariants
1. Nothing outside the given buffer is read, whatever the bytes say. A row whose
   record is not whole and consistent has `valid` False and empty spans.
2. A row is valid when `record.decode_record` takes it and its topic and properties
   keep to their limits.
3. Columns and spans are copies and numbers: no view of the buffer is left behind, so
   a mapped segment may be closed as soon as a call has returned.

Pure; called from the index lane, from recovery and from Spark's tasks, each on its
own thread.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from pyromq.protocol.message.crc import CRC_MASK, crc32
from pyromq.protocol.message.properties import MAX_PROPERTIES
from pyromq.protocol.message.record import BLANK, HEAD_SIZE_V4, MAX_TOPIC, MESSAGE_MAGIC, head_size
from pyromq.protocol.message.sysflag import BORN_HOST_V6, HOST_MASK, STORE_HOST_V6

if TYPE_CHECKING:
    from mmap import mmap  # a mapped segment is decoded where it lies; nothing is mapped here

Buffer: TypeAlias = Union[bytes, bytearray, memoryview, "mmap"]
Bytes: TypeAlias = NDArray[np.uint8]
Longs: TypeAlias = NDArray[np.int64]

#: Fields 1 to 14 and bodyLength; a host is as long as the host bits of sysFlag say.
_HEAD_FIELDS: Final = (
    ("total_size", ">i4"),
    ("magic", ">u4"),
    ("body_crc", ">i4"),
    ("queue_id", ">i4"),
    ("flag", ">i4"),
    ("queue_offset", ">i8"),
    ("physical_offset", ">i8"),
    ("sys_flag", ">i4"),
    ("born_timestamp", ">i8"),
    ("born_host", "V8"),
    ("store_timestamp", ">i8"),
    ("store_host", "V8"),
    ("reconsume_times", ">i4"),
    ("prepared_transaction_offset", ">i8"),
    ("body_length", ">i4"),
)
#: Fields 1 to 7, all that differs between the records of a batch: `record.BATCH_HEAD`.
BATCH_HEAD_DTYPE: Final = np.dtype(list(_HEAD_FIELDS[:7]))
_HOST_FORMATS: Final = {False: "V8", True: "V20"}
_MIN_RECORD: Final = HEAD_SIZE_V4 + 3
_MAGIC_BYTES: Final = MESSAGE_MAGIC.to_bytes(4, "big")
#: From so many bytes on, numpy's fixed cost per call is paid back.
_WORTH_SEARCHING: Final = 64 * 1024
#: From this size of the first record on, walking takes less than searching.
_LONG_RECORD: Final = 512
#: After so many records of one size, as many as follow with it are looked for at once.
_EQUALS: Final = 16
_SEPARATOR: Final = 2
_SPACE: Final = 0x20
#: An eight-byte window may begin at the last item.
_BEHIND_THE_END: Final = bytes(8)
#: From so many rows on they are joined by numpy.
_MANY_ROWS: Final = 64
#: So many different values are looked for one after the other.
_FEW_VALUES: Final = 8


class Spans(NamedTuple):
    """Per row, where something stands in the buffer. A length of -1: it is not there."""

    starts: Longs
    lengths: Longs


class RecordColumns(NamedTuple):
    """What stands in many records, one row each.

    `heads` has the fields of a record's head by name (`total_size`, `queue_id`,
    `physical_offset`, `sys_flag`, `store_timestamp`, ...), big endian as in the log;
    `column` gives one of them in the machine's own order.
    """

    valid: NDArray[np.bool_]
    starts: Longs
    heads: NDArray[np.void]
    bodies: Spans
    topics: Spans
    properties: Spans

    def column(self, name: str) -> Longs:
        """A field of all heads as 64-bit numbers."""
        return self.heads[name].astype(np.int64)

    def rows(self, wanted: slice) -> RecordColumns:
        """The columns of some rows only."""
        return RecordColumns(
            self.valid[wanted],
            self.starts[wanted],
            self.heads[wanted],
            *(
                Spans(spans.starts[wanted], spans.lengths[wanted])
                for spans in (self.bodies, self.topics, self.properties)
            ),
        )

    def born_hosts(self) -> Spans:
        """The bornHosts: address and port, 8 bytes or 20."""
        lengths = _host_lengths(self.heads["sys_flag"] & BORN_HOST_V6)
        return self._where_valid(self.starts + _BORN_HOST, lengths)

    def store_hosts(self) -> Spans:
        """The storeHosts: address and port, 8 bytes or 20."""
        lengths = _host_lengths(self.heads["sys_flag"] & STORE_HOST_V6)
        born_lengths = _host_lengths(self.heads["sys_flag"] & BORN_HOST_V6)
        return self._where_valid(self.starts + _BORN_HOST + born_lengths + 8, lengths)

    def _where_valid(self, starts: Longs, lengths: Longs) -> Spans:
        return Spans(np.where(self.valid, starts, 0), np.where(self.valid, lengths, 0))


class RecordPlaces(NamedTuple):
    """Where many records say that they stand; a size of -1: here begins no record."""

    sizes: Longs
    queue_offsets: Longs
    physical_offsets: Longs


def record_places(buffer: Buffer, starts: Longs) -> RecordPlaces:
    """The first fields of the records that begin at `starts`: a third of `read_columns`' work.

    Each position has `HEAD_SIZE_V4` bytes behind it.
    """
    data = np.frombuffer(buffer, np.uint8)
    fields = _windows(data, _PLACE_BYTES)[starts].view(_PLACE)
    is_record = fields["magic"] == MESSAGE_MAGIC
    return RecordPlaces(
        np.where(is_record, fields["total_size"], -1).astype(np.int64),
        fields["queue_offset"].astype(np.int64),
        fields["physical_offset"].astype(np.int64),
    )


def record_starts(buffer: Buffer, offset: int = 0, end: int | None = None) -> tuple[Longs, int]:
    """Where the records from `offset` on begin, and where the last whole one ends.

    Stops at `end`, at a blank record, and at the first bytes that cannot be a record.
    """
    size = len(buffer)
    end = size if end is None else min(end, size)
    alike = _alike_from(buffer, offset, end)
    position = int(alike[-1]) + int(alike[1] - alike[0]) if alike.size else offset
    chained, position = _chain_by_magic(buffer, position, end)
    found = [alike, chained]
    walked: list[int] = []
    unpack = BLANK.unpack_from
    last = end - _MIN_RECORD
    size_before, equals, enough = 0, 0, _EQUALS
    while 0 <= position <= last:
        total_size, magic = unpack(buffer, position)
        following = position + total_size
        if magic != MESSAGE_MAGIC or total_size < _MIN_RECORD or following > end:
            break
        walked.append(position)
        position = following
        if total_size != size_before:
            size_before, equals = total_size, 0
            continue
        equals += 1
        if equals == enough:
            run = _equal_records(buffer, position, total_size, end)
            found += (np.array(walked, np.int64), run)
            walked.clear()
            position += run.size * total_size
            # Where sizes are alike by chance only, looking costs more than it finds.
            equals, enough = 0, enough * (1 if run.size >= enough else 2)
    if walked:
        found.append(np.array(walked, np.int64))
    return np.concatenate(found), position


def _alike_from(buffer: Buffer, offset: int, end: int) -> Longs:
    """The records at the head that are as long as the first one, if they are many."""
    if 0 <= offset <= end - _WORTH_SEARCHING:
        size, magic = BLANK.unpack_from(buffer, offset)
        if magic == MESSAGE_MAGIC and size >= _MIN_RECORD:
            run = _equal_records(buffer, offset, size, end)
            if run.size >= _MANY_ROWS:
                return run
    return np.empty(0, np.int64)


def _equal_records(buffer: Buffer, position: int, size: int, end: int) -> Longs:
    """Where the next records begin, as long as they have this size, all looked at at once."""
    count = (end - position) // size
    if count <= 0:
        return np.empty(0, np.int64)
    head = int.from_bytes(BLANK.pack(size, MESSAGE_MAGIC), "little")
    heads: NDArray[np.uint64] = np.ndarray((count,), _WINDOW, buffer, position, (size,))
    alike = heads == np.uint64(head)
    if not _all(alike):
        count = int(alike.argmin())
    return np.arange(position, position + count * size, size)


def _chain_by_magic(buffer: Buffer, offset: int, end: int) -> tuple[Longs, int]:
    """The records at the head whose sizes lead from one magic number to the next.

    Walking from size to size takes 0.3 µs a record; looking for the magic numbers all at
    once and checking that each record ends where the next one begins, a third of that, when
    records are short: every byte is looked at. So long ones are walked. It gives up where
    something else looks like a magic number, and the walk goes on.
    """
    if not 0 <= offset <= end - _WORTH_SEARCHING:
        return np.empty(0, np.int64), offset
    if BLANK.unpack_from(buffer, offset)[0] > _LONG_RECORD:
        return np.empty(0, np.int64), offset
    data = np.frombuffer(buffer, np.uint8)[offset:end]
    at = _places_of(_MAGIC_BYTES[0], data[4:-3]) + 4
    for distance in (1, 2, 3):
        at = at[data[at + distance] == _MAGIC_BYTES[distance]]
    starts = at - 4
    sizes = _windows(data, np.dtype(">u4"))[starts].astype(np.int64)
    ends = starts + sizes
    follows = np.empty(starts.size, np.bool_)
    follows[:1] = starts[:1] == 0
    follows[1:] = starts[1:] == ends[:-1]
    good = follows & (sizes >= _MIN_RECORD) & (ends <= data.size)
    count = starts.size if good.all() else int(good.argmin())
    return starts[:count] + offset, offset + (int(ends[count - 1]) if count else 0)


def _places_of(byte: int, data: Bytes) -> Longs:
    """Where a byte stands that is rare: eight places are ruled out at a time."""
    found = data == byte
    whole = found.size & -8
    eights = found[:whole].reshape(-1, 8)
    hits = (eights.view(np.uint64)[:, 0] != 0).nonzero()[0]
    inside = eights[hits].ravel().nonzero()[0]
    places = hits[inside >> 3] * 8 + (inside & 7)
    rest = found[whole:].nonzero()[0]
    return np.append(places, rest + whole) if rest.size else places


def read_columns(buffer: Buffer, starts: Longs) -> RecordColumns:
    """The columns of the records that begin at `starts`."""
    data = np.frombuffer(buffer, np.uint8)
    size = data.size
    rows = starts.size
    if size < HEAD_SIZE_V4:
        data = np.zeros(HEAD_SIZE_V4, np.uint8)
        valid = np.zeros(rows, np.bool_)
    else:
        valid = (starts >= 0) & (starts <= size - HEAD_SIZE_V4)
    heads = _heads(data, starts if _all(valid) else np.where(valid, starts, 0), 0)
    host_bits = heads["sys_flag"] & HOST_MASK
    head_sizes: int | Longs = HEAD_SIZE_V4
    if np.count_nonzero(host_bits):
        heads, head_sizes, valid = _heads_with_ipv6(data, starts, host_bits, valid)
    body_starts = starts + head_sizes
    body_lengths = heads["body_length"].astype(np.int64)
    # A place beyond the buffer is clipped into it; such a row then ends behind the
    # buffer or not where its total size says, and is not valid.
    topic_starts = body_starts + body_lengths
    topic_lengths = data.take(topic_starts, mode="clip").astype(np.int64)
    topic_starts += 1
    properties_starts = topic_starts + topic_lengths
    properties_lengths = data.take(properties_starts, mode="clip").astype(np.int64) << 8
    properties_starts += 1
    properties_lengths |= data.take(properties_starts, mode="clip")
    properties_starts += 1
    ends = properties_starts + properties_lengths
    valid &= ends <= size
    valid &= ends - starts == heads["total_size"]
    valid &= heads["magic"] == MESSAGE_MAGIC
    valid &= body_lengths >= 0
    valid &= topic_lengths <= MAX_TOPIC
    valid &= properties_lengths <= MAX_PROPERTIES
    spans = (
        Spans(body_starts, body_lengths),
        Spans(topic_starts, topic_lengths),
        Spans(properties_starts, properties_lengths),
    )
    if not _all(valid):
        for starts_and_lengths in spans:
            for numbers in starts_and_lengths:
                numbers[~valid] = 0
    return RecordColumns(valid, starts, heads, *spans)


def body_crcs(buffer: Buffer, columns: RecordColumns) -> Longs:
    """The CRCs of the records' bodies, as they should stand in their heads (`body_crc`)."""
    begins, lengths = columns.bodies
    with memoryview(buffer) as view:
        return crcs_of(view, begins.tolist(), (begins + lengths).tolist())


def crcs_of(content: bytes | memoryview, begins: Sequence[int], ends: Sequence[int]) -> Longs:
    """The CRCs of many spans, as heads of records have them."""
    # Without a step of the interpreter for each span: that would take as long as its CRC.
    crcs = map(crc32, map(content.__getitem__, map(slice, begins, ends)))
    return np.fromiter(crcs, np.int64, len(begins)) & CRC_MASK


class JoinedProperties:
    """The properties of many rows, copied one behind the other and cut into items.

    An item is what stands between two separators; separators are put around each row's
    properties, so that a missing one at their end does not matter. Spans are given and
    taken as positions in the buffer that the properties came from.

    What one program sends mostly has the same properties in the same order. Then items are
    a table, with a column for each property, and nothing needs to be looked for row by row.
    """

    def __init__(self, buffer: Buffer, properties: Spans) -> None:
        begins, lengths = properties
        rows = begins.size
        width = int(np.maximum.reduce(lengths)) if rows >= _MANY_ROWS else 0
        if _WINDOW.itemsize <= width <= len(buffer) - 2 and (
            rows * width <= 2 * int(np.add.reduce(lengths))
        ):
            self._data = _side_by_side(buffer, properties, width)
            self._row_begins = np.arange(rows) * (width + 2)
        else:
            self._data = _one_behind_the_other(buffer, properties)
            self._row_begins = (lengths + 1).cumsum() - lengths - 1
        #: What to add to a position in the joined bytes for the one in the buffer, by row.
        self._shifts = begins - self._row_begins - 1
        separators = (self._data == _SEPARATOR).nonzero()[0]
        self._items = separators[:-1] + 1
        self._item_ends = separators[1:]
        self._windows = _windows(self._data, _WINDOW)
        self._beginnings = self._windows[self._items]
        #: Items of each row, when all have as many; 0 otherwise.
        self._items_per_row = 0
        per_row, left_over = divmod(self._items.size, max(rows, 1))
        if per_row and not left_over and _all(separators[:-1:per_row] == self._row_begins):
            self._items_per_row = per_row

    def find(self, name: bytes) -> tuple[Longs, Spans]:
        """The rows that have a property with this name, and where its values stand.

        As Java reads them: an empty value is none, and of several the last counts.
        """
        rows, starts, ends = self._find(name)
        shifts = self._shifts if rows.size == self._shifts.size else self._shifts[rows]
        return rows, Spans(starts + shifts, ends - starts)

    def find_words(self, name: bytes) -> tuple[Longs, Spans]:
        """The words of the values that `find` finds, in order, each with its row.

        Words are what spaces separate; empty ones are none.
        """
        spaces = (self._data == _SPACE).nonzero()[0]
        if not spaces.size:
            return self.find(name)
        rows, starts, ends = self._find(name)
        if not rows.size:
            return rows, Spans(starts, ends)
        value_of = starts.searchsorted(spaces, "right") - 1
        spaces = spaces[(value_of >= 0) & (spaces < ends[value_of])]
        # Cut before each value, at each of its spaces and at its end. What lies between
        # a value's end and the next value is no word.
        cuts = np.concatenate((starts - 1, spaces, ends))
        cuts.sort()
        word_starts = cuts[:-1] + 1
        word_lengths = cuts[1:] - word_starts
        value_of = starts.searchsorted(word_starts, "right") - 1
        words = ((word_lengths > 0) & (word_starts <= ends[value_of])).nonzero()[0]
        rows = rows[value_of[words]]
        return rows, Spans(word_starts[words] + self._shifts[rows], word_lengths[words])

    def _find(self, name: bytes) -> tuple[Longs, Longs, Longs]:
        """Rows, and their values' begins and ends in the joined bytes."""
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
            if not _all(found):
                starts, ends = starts[found], ends[found]
        starts = starts + (len(name) + 1)
        found = starts < ends
        if not _all(found):
            starts, ends = starts[found], ends[found]
        if column is not None and starts.size == self._row_begins.size:
            return np.arange(starts.size), starts, ends
        rows = self._row_begins.searchsorted(starts) - 1
        last = rows[1:] != rows[:-1]
        if not _all(last):
            last = np.append(last, True)
            rows, starts, ends = rows[last], starts[last], ends[last]
        return rows, starts, ends

    def _column(self, match: NDArray[np.bool_]) -> slice | None:
        """The items that match, when they are one column of a table; None otherwise."""
        rows, columns = self._row_begins.size, self._items_per_row
        if not columns or np.count_nonzero(match) != rows:
            return None
        column = slice(int(match[:columns].argmax()), None, columns)
        return column if _all(match[column]) else None


def _one_behind_the_other(buffer: Buffer, properties: Spans) -> Bytes:
    begins, lengths = properties
    ends = (begins + lengths).tolist()
    pieces = [
        b"",
        *[buffer[begin:end] for begin, end in zip(begins.tolist(), ends, strict=True)],
        _BEHIND_THE_END,
    ]
    return np.frombuffer(b"\x02".join(pieces), np.uint8)


def _side_by_side(buffer: Buffer, properties: Spans, width: int) -> Bytes:
    """All rows as wide as the longest, filled up with zeros behind their end.

    Rows of about one length are copied six times as fast like this.
    """
    begins, lengths = properties
    rows = begins.size
    stride = width + 2  # a separator before each row and one behind it
    data = np.frombuffer(buffer, np.uint8)
    # With the byte before each row and the one behind it, and once more for the end.
    firsts = np.append(begins - 1, 0).clip(0, data.size - stride)
    table = gather(data, firsts, stride)
    joined = table.reshape(-1)
    shortest = int(np.minimum.reduce(lengths))
    if shortest < width:
        kind = np.dtype(np.uint8 if width - shortest <= 0xFF else np.uint16)
        columns, over = np.arange(width - shortest).astype(kind), (lengths - shortest).astype(kind)
        table[:-1, shortest + 1 : -1] *= columns < over[:, None]
    # What lies at the very beginning or end of the buffer has nothing beside it.
    for row in (firsts[:-1] != begins - 1).nonzero()[0].tolist():
        table[row] = 0
        table[row, 1 : lengths[row] + 1] = data[begins[row] : begins[row] + lengths[row]]
    table[-1] = 0
    table[:, 0] = _SEPARATOR
    joined[np.arange(0, rows * stride, stride) + lengths + 1] = _SEPARATOR
    return joined


def few_values(data: Bytes, spans: Spans) -> tuple[Longs, Longs] | None:
    """A number for each row, the same for the same bytes, and a row of each number.

    None when there are too many different ones to look for them one after the other, or
    when they are not all of one length.
    """
    starts, lengths = spans
    rows = starts.size
    width = int(lengths[0]) if rows else 0
    if not rows or not _all(lengths == width):
        return None
    # Eight bytes are compared at a time.
    words = np.zeros((-(-width // 8), rows), np.uint64)
    if width:
        padded = np.zeros((rows, 8 * len(words)), np.uint8)
        padded[:, :width] = gather(data, starts, width)
        words[:] = padded.view(np.uint64).T
    numbers = np.full(rows, -1)
    firsts: list[int] = []
    found, first = 0, 0
    while found < rows:
        if len(firsts) == _FEW_VALUES:
            return None
        same = np.ones(rows, np.bool_)
        for word in words:
            same &= word == word[first]
        count = int(np.count_nonzero(same))
        if count * _FEW_VALUES * 4 < rows - found:
            return None
        numbers[same] = len(firsts)
        firsts.append(first)
        found += count
        first = int(numbers.argmin())  # -1 where nothing was found yet
    return numbers, np.array(firsts, np.int64)


def gather(data: Bytes, starts: Longs, width: int) -> Bytes:
    """The bytes of spans of one length, a row each."""
    layout = np.dtype((np.void, width))
    return _windows(data, layout)[starts].view(np.uint8).reshape(starts.size, width)


def find_property(buffer: Buffer, properties: Spans, name: bytes) -> Spans:
    """Per row, where the value of a property stands in the buffer; length -1: nowhere."""
    size = len(buffer)
    starts = properties.starts.clip(0, size)
    lengths = properties.lengths.clip(0, size - starts)
    rows, values = JoinedProperties(buffer, Spans(starts, lengths)).find(name)
    found = Spans(np.zeros(starts.size, np.int64), np.full(starts.size, -1, np.int64))
    found.starts[rows] = values.starts
    found.lengths[rows] = values.lengths
    return found


class RecordParts(NamedTuple):
    """What the key index needs of one record."""

    physical_offset: int
    sys_flag: int
    store_timestamp: int
    topic: bytes
    properties: bytes


def read_parts(buffer: Buffer, start: int) -> RecordParts | None:
    """The parts of one record; None where `read_columns` would not call its row valid."""
    size = len(buffer)
    if not 0 <= start <= size - HEAD_SIZE_V4:
        return None
    (sys_flag,) = _SYS_FLAG.unpack_from(buffer, start)
    layout = _HEAD_STRUCTS[sys_flag & HOST_MASK]
    if start > size - layout.size:
        return None
    head = layout.unpack_from(buffer, start)
    total_size, body_length = head[0], head[14]
    end = start + total_size
    topic_at = start + layout.size + body_length
    if head[1] != MESSAGE_MAGIC or body_length < 0 or not topic_at < end <= size:
        return None
    topic_length = buffer[topic_at]
    properties_at = topic_at + 1 + topic_length
    if topic_length > MAX_TOPIC or properties_at + 2 > end:
        return None
    properties_length = int.from_bytes(buffer[properties_at : properties_at + 2], "big")
    if properties_length > MAX_PROPERTIES or properties_at + 2 + properties_length != end:
        return None
    return RecordParts(
        head[6],
        sys_flag,
        head[10],
        bytes(buffer[topic_at + 1 : properties_at]),
        bytes(buffer[properties_at + 2 : end]),
    )


def last_property(properties: bytes, name: bytes) -> bytes:
    """The value that `JoinedProperties.find` finds in one row's properties; empty: none."""
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


def _heads_with_ipv6(
    data: Bytes, starts: Longs, host_bits: NDArray[np.int32], inside: NDArray[np.bool_]
) -> tuple[NDArray[np.void], Longs, NDArray[np.bool_]]:
    """Heads of rows some of which have longer hosts: each kind is read with its own layout."""
    heads = np.zeros(starts.size, _PLAIN_HEAD)
    sizes = np.empty(starts.size, np.int64)
    inside = inside.copy()
    for bits, layout in _HEADS.items():
        of_kind = host_bits == bits
        sizes[of_kind] = layout.itemsize
        inside &= ~of_kind | (starts <= data.size - layout.itemsize)
        rows = (of_kind & inside).nonzero()[0]
        if rows.size:
            these = _heads(data, starts[rows], bits)
            for name in _PLAIN_HEAD.names or ():
                heads[name][rows] = these[name]
    return heads, sizes, inside


def _heads(data: Bytes, starts: Longs, host_bits: int) -> NDArray[np.void]:
    # Gathered as mere bytes and then seen as fields: thirteen times faster than field by field.
    layout = _HEADS[host_bits]
    return _windows(data, _HEAD_BYTES[host_bits])[starts].view(layout)


def _windows(data: Bytes, layout: np.dtype[Any]) -> NDArray[Any]:
    """What stands at each position of `data`, read with this layout."""
    return np.ndarray((data.size - layout.itemsize + 1,), layout, data, 0, (1,))


def _all(flags: NDArray[np.bool_]) -> bool:
    """`flags.all()`, at a sixth of its price for small arrays."""
    return bool(np.count_nonzero(flags) == flags.size)


@functools.lru_cache(maxsize=64)
def _marker_windows(name: bytes) -> list[tuple[np.uint64, np.uint64]]:
    """A name and its end as eight-byte windows: each a number and the mask to compare under."""
    marker = name + b"\x01"
    parts = [marker[at : at + 8] for at in range(0, len(marker), 8)]
    return [
        (np.uint64(int.from_bytes(part, "little")), np.uint64((1 << 8 * len(part)) - 1))
        for part in parts
    ]


def _host_lengths(ipv6_bits: NDArray[np.int32]) -> Longs:
    return np.where(ipv6_bits != 0, 20, 8).astype(np.int64)


def _head_layout(host_bits: int) -> np.dtype[np.void]:
    lengths = {"born_host": host_bits & BORN_HOST_V6, "store_host": host_bits & STORE_HOST_V6}
    packed = np.dtype(
        [
            (name, _HOST_FORMATS[lengths[name] != 0] if name in lengths else kind)
            for name, kind in _HEAD_FIELDS
        ]
    )
    assert packed.itemsize == head_size(host_bits)
    return packed


_HEADS: Final = {bits: _head_layout(bits) for bits in (0, BORN_HOST_V6, STORE_HOST_V6, HOST_MASK)}
_HEAD_BYTES: Final = {bits: np.dtype(f"V{layout.itemsize}") for bits, layout in _HEADS.items()}
#: Fields 1 to 7.
_PLACE: Final = np.dtype(list(_HEAD_FIELDS[:7]))
_PLACE_BYTES: Final = np.dtype(f"V{_PLACE.itemsize}")
#: The same for `struct`.
_FORMATS: Final = {">i4": "i", ">u4": "I", ">i8": "q", "V8": "8s", "V20": "20s"}
_HEAD_STRUCTS: Final = {
    bits: struct.Struct(
        ">" + "".join(_FORMATS[layout[name].str.replace("|", "")] for name in layout.names or ())
    )
    for bits, layout in _HEADS.items()
}
_SYS_FLAG: Final = struct.Struct(f">{np.dtype(list(_HEAD_FIELDS[:7])).itemsize}xi")
#: Where bornHost stands: behind the nine fields before it.
_BORN_HOST: Final = np.dtype(list(_HEAD_FIELDS[:9])).itemsize
#: The fields whose size does not depend on the host bits.
_PLAIN_HEAD: Final = np.dtype([field for field in _HEAD_FIELDS if "host" not in field[0]])
_WINDOW: Final = np.dtype("<u8")
