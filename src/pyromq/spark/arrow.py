"""Decode blocks of record bytes into Arrow batches, for every kind of origin.

    decoder = RecordDecoder(("topic", "queueOffset", "body"), broker_name="broker-a")
    decoded = decoder.decode(block)           # decoded.batch, decoded.damaged

The compiled kernel (`protocol.kernel.record_columns`) builds the columns in Arrow's layout, at 3 to
10 million rows a second. Three times slower is the code for everything that it leaves alone: no
kernel, a damaged record, a compressed body, an IPv6 host, text that is not UTF-8. There
`protocol.message.bulk` reads the heads as columns, and Arrow gathers bodies, topics and properties
from the buffer.

Only the requested columns cost anything: without `body` no body is touched, without properties,
keys and tags no property.

Invariants
1. A batch holds copies: the buffer may be reused when `decode` returns.
2. Text is valid UTF-8; invalid bytes become U+FFFD.
3. A record that is not whole, or whose body cannot be decompressed, becomes an entry in `damaged`
   instead of a row.

Runs in Spark tasks; a decoder belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyromq.base.sizes import MIB
from pyromq.protocol.kernel import load
from pyromq.protocol.message.bulk import (
    Buffer,
    Longs,
    RecordColumns,
    Spans,
    gather,
    read_columns,
)
from pyromq.protocol.message.compression import CompressionError, decompress
from pyromq.protocol.message.joined_properties import JoinedProperties
from pyromq.protocol.message.message_id import decode_host, encode_message_id, format_address
from pyromq.protocol.message.properties import KEYS, NAME_VALUE_SEPARATOR, TAGS, UNIQ_KEY
from pyromq.protocol.message.record import FIELD_OFFSETS
from pyromq.protocol.message.sysflag import COMPRESSED
from pyromq.spark.columns import MAP, RAW, arrow_schema
from pyromq.spark.origins.origin import RecordBlock

if TYPE_CHECKING:
    from pyromq.protocol.kernel.record_columns import Column, ColumnDecoder

#: Rows per batch for Spark: large enough for the JVM, small enough for the CPU caches.
BATCH_ROWS: Final = 8192
#: Bytes per batch, unless a single row is larger.
BATCH_BYTES: Final = 16 * MIB

_NUMBERS: Final = {
    "queueId": ("queue_id", np.int32),
    "queueOffset": ("queue_offset", np.int64),
    "reconsumeTimes": ("reconsume_times", np.int32),
    "flag": ("flag", np.int32),
    "sysFlag": ("sys_flag", np.int32),
    "physicalOffset": ("physical_offset", np.int64),
}
_TIMES: Final = {"bornTimestamp": "born_timestamp", "storeTimestamp": "store_timestamp"}
_NAMED_PROPERTIES: Final = {
    "keys": KEYS.encode(),
    "tags": TAGS.encode(),
    "uniqueKey": UNIQ_KEY.encode(),
}
#: The columns that the compiled kernel builds: the kind and argument that it takes for each.
_COMPILED: Final[dict[str, tuple[str, int | bytes | None]]] = {
    **{
        name: ("int" if kind is np.int32 else "long", FIELD_OFFSETS[name])
        for name, (_, kind) in _NUMBERS.items()
    },
    **{name: ("time", FIELD_OFFSETS[name]) for name in _TIMES},
    **{
        name: ("property", key + NAME_VALUE_SEPARATOR.encode())
        for name, key in _NAMED_PROPERTIES.items()
    },
    **{name: ("host", FIELD_OFFSETS[name]) for name in ("bornHost", "storeHost")},
    **{name: (name, None) for name in ("topic", "body", "properties")},
    "msgId": ("message id", None),
}
#: A producer may claim any birth time. Values outside the years 1678 to 2261 are clipped, because
#: pandas cannot hold them and Python's own range ends before Arrow's.
_FIRST_MILLISECOND: Final = -9_214_560_000_000
_LAST_MILLISECOND: Final = 9_214_646_399_999
#: Decompressed bodies per batch: an Arrow column holds less than 2 GiB, and memory less.
MAX_BODIES: Final = 256 * MIB
#: The four hex digits of each 16-bit number, packed into one 32-bit number.
_HEX: Final = np.frombuffer("".join(f"{number:04X}" for number in range(1 << 16)).encode(), "<u4")
_SEPARATOR: Final = 2
_NAME_END: Final = 1


class Decoded(NamedTuple):
    """The rows of a block, and a description of each damaged record."""

    batch: pa.RecordBatch
    damaged: list[str]


class _TooLargeError(Exception):
    """The decompressed bodies of a block exceed MAX_BODIES."""


class RecordDecoder:
    """Decodes blocks into batches with these columns."""

    def __init__(
        self,
        names: Sequence[str],
        include_properties: str = RAW,
        broker_name: str = "",
        not_null: Container[str] = (),
    ) -> None:
        self.schema = arrow_schema(names, include_properties, not_null)
        self._broker_name = broker_name
        self._with_bodies = "body" in names
        self._with_named = not _NAMED_PROPERTIES.keys().isdisjoint(names)
        self._with_map = include_properties == MAP and "properties" in names
        kernel = load("record_columns")
        self._compiled_names = compiled_names(self.schema.names, include_properties)
        self._compiled = kernel and compiled_decoder(kernel, self._compiled_names)

    def decode_parts(self, block: RecordBlock) -> Iterator[Decoded]:
        """Yield the rows of a block, in several batches if their bodies are too large for one."""
        try:
            yield self.decode(block)
        except _TooLargeError:
            half = block.starts.size // 2
            yield from self.decode_parts(RecordBlock(block.buffer, block.starts[:half]))
            yield from self.decode_parts(RecordBlock(block.buffer, block.starts[half:]))

    def decode(self, block: RecordBlock) -> Decoded:
        """Return the rows of a block in order, if their bodies do not exceed MAX_BODIES."""
        if self._compiled is not None:
            starts = np.ascontiguousarray(block.starts, np.int64)
            found = self._compiled.decode(block.buffer, starts)
            if found is not None:
                return Decoded(self._compiled_batch(block, found), [])
        columns = read_columns(block.buffer, block.starts)
        damaged: list[str] = []
        good = columns.valid & _ends_before_next(columns)
        if not good.all():
            damaged += [
                f"the record at byte {start} of its block is damaged"
                for start in block.starts[~good].tolist()
            ]
            columns = read_columns(block.buffer, block.starts[good])
        if not columns.starts.size:
            return Decoded(pa.RecordBatch.from_pylist([], schema=self.schema), damaged)
        rows = _Rows(block.buffer, columns)
        if self._with_bodies:
            rows = rows.with_bodies(damaged)
        if self._with_named:
            rows.cut_properties()
        arrays = [self._column(rows, name) for name in self.schema.names]
        return Decoded(pa.RecordBatch.from_arrays(arrays, schema=self.schema), damaged)

    def _compiled_batch(self, block: RecordBlock, found: list[Column]) -> pa.RecordBatch:
        """Return the columns that the kernel built, and the others beside them."""
        count = block.starts.size
        arrays = {
            name: array_of(self.schema.field(name).type, count, column)
            for name, column in zip(self._compiled_names, found, strict=True)
        }
        if "brokerName" in self.schema.names:
            arrays["brokerName"] = _repeated(self._broker_name, count)
        if self._with_map:
            rows = _Rows(block.buffer, read_columns(block.buffer, block.starts))
            arrays["properties"] = rows.property_map()
        return pa.RecordBatch.from_arrays(
            [arrays[name] for name in self.schema.names], schema=self.schema
        )

    def _column(self, rows: _Rows, name: str) -> pa.Array:
        if name in _NUMBERS:
            field, kind = _NUMBERS[name]
            numbers = rows.columns.heads[field].astype(kind)
            return _array(self.schema.field(name).type, rows.count, numbers)
        if name in _TIMES:
            return _times(rows.columns.column(_TIMES[name]), self.schema.field(name).type)
        if name in _NAMED_PROPERTIES:
            return rows.named_property(_NAMED_PROPERTIES[name])
        if name == "brokerName":
            return _repeated(self._broker_name, rows.count)
        if name == "properties" and self._with_map:
            return rows.property_map()
        return _MAKERS[name](rows)


def compiled_names(names: Sequence[str], include_properties: str = RAW) -> list[str]:
    """Return the columns that the compiled kernel builds; it builds no maps."""
    left_out = {"properties"} if include_properties == MAP else set()
    return [name for name in names if name in _COMPILED and name not in left_out]


def compiled_decoder(kernel: ModuleType, names: Sequence[str]) -> ColumnDecoder:
    """Return the kernel's decoder for these columns."""
    columns = [_COMPILED[name] for name in names]
    decoder: ColumnDecoder = kernel.ColumnDecoder(columns, _FIRST_MILLISECOND, _LAST_MILLISECOND)
    return decoder


def array_of(kind: pa.DataType, rows: int, column: Column) -> pa.Array:
    """Wrap a column of the kernel without a copy."""
    nulls, *buffers = column
    wrapped = [None if each is None else pa.py_buffer(each) for each in buffers]
    return pa.Array.from_buffers(kind, rows, wrapped, nulls)


def batches(decoded: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split rows into batches of a suitable size for Spark."""
    if not decoded.num_rows:
        return
    step = BATCH_ROWS
    if decoded.nbytes > BATCH_BYTES:
        step = max(1, min(BATCH_ROWS, decoded.num_rows * BATCH_BYTES // decoded.nbytes))
    # Batches of equal size, rather than full ones and a small rest.
    step = -(-decoded.num_rows // max(1, -(-decoded.num_rows // step)))
    for start in range(0, decoded.num_rows, step):
        yield decoded.slice(start, step)


class _Rows:
    """The whole records of a block, with intermediate results that several columns share."""

    def __init__(self, buffer: Buffer, columns: RecordColumns) -> None:
        self.columns = columns
        self.count = columns.starts.size
        self._bytes = buffer
        self._buffer = pa.py_buffer(buffer)
        self._bodies: pa.Array | None = None
        self._properties: JoinedProperties | None = None

    def with_bodies(self, damaged: list[str]) -> _Rows:
        """Return the rows with decompressed bodies, without those whose body is damaged."""
        flags = self.columns.heads["sys_flag"]
        compressed = (flags & COMPRESSED).nonzero()[0]
        self._bodies = _gather(self._buffer, self.columns.bodies)
        if not compressed.size:
            return self
        bodies = self._bodies.to_pylist()
        good = np.ones(self.count, np.bool_)
        size = 0
        for row in compressed.tolist():
            try:
                bodies[row] = decompress(bodies[row], int(flags[row]))
                size += len(bodies[row])
            except CompressionError as error:
                good[row] = False
                damaged.append(
                    f"the body of the record with queue offset "
                    f"{self.columns.heads['queue_offset'][row]} is damaged: {error}"
                )
            if size > MAX_BODIES and self.count > 1:
                raise _TooLargeError
        if good.all():
            self._bodies = pa.array(bodies, pa.binary())
            return self
        rows = _Rows(self._bytes, read_columns(self._bytes, self.columns.starts[good]))
        rows._bodies = pa.array(
            [body for body, whole in zip(bodies, good, strict=True) if whole], pa.binary()
        )
        return rows

    def bodies(self) -> pa.Array:
        """Return the column of bodies."""
        assert self._bodies is not None
        return self._bodies

    def topics(self) -> pa.Array:
        """Return the column of topics."""
        starts, lengths = self.columns.topics
        # The records of a queue have one topic, preceded by its length: compare, do not gather.
        first, size = int(starts[0]) - 1, int(lengths[0]) + 1
        if (lengths == size - 1).all():
            data = np.frombuffer(self._bytes, np.uint8)
            whole = data[first : first + size].tobytes()
            if gather(data, starts - 1, size).tobytes() == whole * self.count:
                return _repeated(whole[1:].decode(errors="replace"), self.count)
        return _text(_gather(self._buffer, self.columns.topics))

    def raw_properties(self) -> pa.Array:
        """Return the column of raw properties."""
        return _text(_gather(self._buffer, self.columns.properties))

    def born_hosts(self) -> pa.Array:
        """Return the column with `host:port` of the producers."""
        return self._hosts("born_host", self.columns.born_hosts)

    def store_hosts(self) -> pa.Array:
        """Return the column with `host:port` of the brokers."""
        return self._hosts("store_host", self.columns.store_hosts)

    def _hosts(self, field: str, spans: Callable[[], Spans]) -> pa.Array:
        host = self._one_host(field)
        if host is not None:
            return _repeated(format_address(*decode_host(host)), self.count)
        return _hosts(_gather(self._buffer, spans()))

    def _one_host(self, field: str) -> bytes | None:
        """Return the one host of all rows, as in most blocks; None for several, or for IPv6."""
        heads = self.columns.heads
        if field not in (heads.dtype.names or ()):
            return None
        hosts = np.ascontiguousarray(heads[field]).view(np.int64)
        return hosts[:1].tobytes() if (hosts == hosts[0]).all() else None

    def message_ids(self) -> pa.Array:
        """Return the column of offset message ids."""
        offsets = self.columns.heads["physical_offset"]
        host = self._one_host("store_host")
        if host is None:
            found = _gather(self._buffer, self.columns.store_hosts()).to_pylist()
            ids = [
                encode_message_id(host, offset & (1 << 64) - 1)
                for host, offset in zip(found, offsets.tolist(), strict=True)
            ]
            return pa.array(ids, pa.string())
        digits = np.empty((self.count, 8), np.uint32)
        digits[:, :4] = np.frombuffer(host.hex().upper().encode(), np.uint32)
        quarters = offsets.astype("<i8").view("<u2").reshape(self.count, 4)
        for quarter in range(4):
            digits[:, 7 - quarter] = _HEX[quarters[:, quarter]]
        ends = np.arange(self.count + 1, dtype=np.int32) * 32
        return _array(pa.string(), self.count, ends, digits)

    def cut_properties(self) -> None:
        """Prepare for `named_property`."""
        self._properties = JoinedProperties(self._bytes, self.columns.properties)

    def named_property(self, name: bytes) -> pa.Array:
        """Return the column of one property; null for messages without it."""
        assert self._properties is not None
        rows, spans = self._properties.find(name)
        values = _text(_gather(self._buffer, spans))
        if rows.size == self.count:
            return values
        where = np.full(self.count, -1, np.int64)
        where[rows] = np.arange(rows.size)
        return values.take(pa.array(where, mask=where < 0))

    def property_map(self) -> pa.Array:
        """Return the column of properties as maps. As in Java, the last of a name counts."""
        data, row_ends = self._separated_properties()
        separators = (data == _SEPARATOR).nonzero()[0]
        starts, ends = separators[:-1] + 1, separators[1:]
        name_ends = np.append((data == _NAME_END).nonzero()[0], data.size)
        # Skip properties with an empty name or value.
        middles = name_ends[name_ends.searchsorted(starts)]
        whole = (middles > starts) & (middles < ends - 1)
        starts, middles, ends = starts[whole], middles[whole], ends[whole]
        rows = row_ends.searchsorted(starts)
        joined = pa.py_buffer(data)
        names = _text(_gather(joined, Spans(starts, middles - starts)))
        values = _text(_gather(joined, Spans(middles + 1, ends - middles - 1)))
        kept = _last_of_each(rows, names)
        if kept is not None:
            names, values, rows = names.take(kept), values.take(kept), rows[kept]
        bounds = rows.searchsorted(np.arange(self.count + 1)).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(bounds), names, values)

    def _separated_properties(self) -> tuple[NDArray[np.uint8], Longs]:
        """Return the joined properties of all rows, each between separators, and where rows end.

        The first separator precedes the first row; the positions returned are those of the
        separators after each row.
        """
        starts, lengths = self.columns.properties
        # Include the byte before each, the last one of the length; it becomes the separator.
        found = _gather(self._buffer, Spans(starts - 1, lengths + 1))
        offsets = _offsets_of(found)
        data = np.empty(int(offsets[-1]) + 1, np.uint8)
        data[:-1] = _bytes_of(found)
        data[offsets] = _SEPARATOR
        return data, offsets[1:].astype(np.int64)


_MAKERS: Final[dict[str, Callable[[_Rows], pa.Array]]] = {
    "topic": _Rows.topics,
    "body": _Rows.bodies,
    "properties": _Rows.raw_properties,
    "bornHost": _Rows.born_hosts,
    "storeHost": _Rows.store_hosts,
    "msgId": _Rows.message_ids,
}


def _ends_before_next(columns: RecordColumns) -> NDArray[np.bool_]:
    """Return which records end before the next one starts: Arrow cannot handle overlaps."""
    ends = columns.starts + columns.heads["total_size"]
    apart = np.ones(ends.size, np.bool_)
    apart[:-1] = ends[:-1] <= columns.starts[1:]
    return apart


def _gather(buffer: pa.Buffer, spans: Spans) -> pa.Array:
    """Copy ascending spans of a buffer into one array.

    numpy gathers spans of equal length, such as unique keys, in half the time. Otherwise the
    buffer is viewed as an array whose even elements are the spans and whose odd elements are the
    bytes between them; Arrow copies the even ones.
    """
    starts, lengths = spans
    rows = starts.size
    if not rows:
        return pa.array([], pa.binary())
    width = int(lengths[0])
    if 0 < width <= buffer.size and (lengths == width).all():
        found = gather(np.frombuffer(buffer, np.uint8), starts, width)
        ends = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
        return _array(pa.binary(), rows, ends, found)
    base = int(starts[0])
    bounds = np.empty(2 * rows, np.int32)
    bounds[0::2] = starts - base
    bounds[1::2] = bounds[0::2] + lengths
    spans_and_gaps = pa.Array.from_buffers(
        pa.binary(), 2 * rows - 1, [None, pa.py_buffer(bounds), buffer.slice(base)]
    )
    even = _array(pa.int32(), rows, np.arange(0, 2 * rows - 1, 2, dtype=np.int32))
    return spans_and_gaps.take(even)


def _array(kind: pa.DataType, rows: int, *data: NDArray[Any] | bytes) -> pa.Array:
    """Wrap data in Arrow's layout without a copy; `pa.array` would import pandas."""
    return pa.Array.from_buffers(kind, rows, [None, *map(pa.py_buffer, data)])


def _repeated(text: str, count: int) -> pa.Array:
    data = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return _array(pa.string(), count, ends, data * count)


def _text(found: pa.Array) -> pa.Array:
    """Return binary values as text; invalid UTF-8 becomes U+FFFD."""
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode(errors="replace") for value in found.to_pylist()])


def _hosts(found: pa.Array) -> pa.Array:
    # Few distinct hosts: format each once.
    coded = found.dictionary_encode()
    names = [format_address(*decode_host(host)) for host in coded.dictionary.to_pylist()]
    return pa.array(names, pa.string()).take(coded.indices)


def _times(milliseconds: Longs, kind: pa.DataType) -> pa.Array:
    microseconds = milliseconds.clip(_FIRST_MILLISECOND, _LAST_MILLISECOND) * 1000
    return _array(kind, microseconds.size, microseconds)


def _last_of_each(rows: Longs, names: pa.Array) -> Longs | None:
    """Return which items are the last of their name in a row; None if all are."""
    codes = names.dictionary_encode()
    pairs = rows * (len(codes.dictionary) + 1) + codes.indices.to_numpy()
    # `unique` returns first occurrences; reversed, these are the last ones.
    kept = pairs.size - 1 - np.unique(pairs[::-1], return_index=True)[1]
    return None if kept.size == pairs.size else np.sort(kept)


def _offsets_of(found: pa.Array) -> NDArray[np.int32]:
    assert found.offset == 0
    return np.frombuffer(found.buffers()[1], np.int32)[: len(found) + 1]


def _bytes_of(found: pa.Array) -> NDArray[np.uint8]:
    return np.frombuffer(found.buffers()[2], np.uint8)[: int(_offsets_of(found)[-1])]
