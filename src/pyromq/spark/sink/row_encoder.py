"""Encode the rows of a data frame as requests to brokers: Arrow batches in, `Request` out.

All rows of a batch are encoded together: Arrow joins their properties, numpy builds the heads of
their inner messages, and one more join gives a column whose bytes, from any row to any other, are
the body of a batch request. Only rows that cannot be in a batch are handled one by one: delayed
messages, large messages, messages for retry topics.

Invariants
1. Every row is in exactly one request.
2. The requests for one queue carry its rows in their original order.
3. A row that no broker would accept is rejected by its number before any row of its Arrow batch
   is sent.

Called by `writer`, on a task's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pyromq.base.sizes import MIB
from pyromq.client.errors import IllegalMessageError
from pyromq.client.message import check_topic
from pyromq.protocol.java.string_hashes import java_hashes
from pyromq.protocol.message import properties as names
from pyromq.protocol.message.batch_bodies import inner_heads, properties_lengths_between
from pyromq.protocol.message.properties import MAX_PROPERTIES
from pyromq.protocol.message.system_properties import SHARDING_KEY, SYSTEM_PROPERTIES
from pyromq.protocol.names import RETRY_TOPIC_PREFIX
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.spark.sink.unique_rows import UniqueRows

Columns: TypeAlias = dict[str, Any]
Longs: TypeAlias = NDArray[np.int64]

#: A larger Arrow batch is encoded in halves, because a column must stay below 2 GiB.
_MAX_BATCH_BYTES: Final = 256 * MIB
_ANY_QUEUE: Final = -1
_SEPARATORS: Final = "[\x01\x02]"
_WAIT: Final = names.PROPERTY_SEPARATOR + names.WAIT_TRUE
#: Never copied from the column `properties`: a message with TRAN_MSG, for example, would be a half
#: message that no consumer gets. Keys, tags and the ordering key are content and are copied.
RESERVED_PROPERTIES: Final = sorted(SYSTEM_PROPERTIES - {names.KEYS, names.TAGS, SHARDING_KEY})


_NO_TOPIC: Final = "has no topic, and the option topic is not given"


class RowError(ValueError):
    """A row that cannot become a message: which one, and why."""


class Request(NamedTuple):
    """One request: a batch of rows, or a single row with its properties."""

    topic: str
    #: None: any queue of the topic.
    queue: MessageQueue | None
    body: bytes
    #: For a single row; a batch has its rows' properties in the body.
    properties: str | None
    flag: int
    rows: int
    #: The numbers of the first and last row, in the task's order.
    first_row: int
    last_row: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The target size of a request and the maximum size of a message, in bytes."""

    batch_bytes: int
    max_message_size: int


class RowEncoder:
    """Encodes the rows of one task.

    `queues_of` returns a topic's queues, sorted; it is called only if rows select a queue.
    `unique` provides the unique keys of rows without one.
    """

    def __init__(
        self,
        limits: Limits,
        unique: UniqueRows,
        queues_of: Callable[[str], Sequence[MessageQueue]],
        *,
        default_topic: str | None = None,
        place: str = "",
    ) -> None:
        self._limits = limits
        self._unique = unique
        self._queues_of = queues_of
        self._default_topic = default_topic
        self._place = place
        self._row = 0

    def encode(self, batch: pa.RecordBatch) -> Iterator[Request]:
        """Yield the requests for a batch; its columns were checked at planning. Raises RowError."""
        for half in _halves(batch):
            yield from self._encode(half)
            self._row += half.num_rows

    # Helpers, in call order.

    def _encode(self, batch: pa.RecordBatch) -> Iterator[Request]:
        if not batch.num_rows:
            return
        everything = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns = {
            name: column if name == "body" else _valid_text(column)
            for name, column in everything.items()
            if column.null_count < batch.num_rows
        }
        topics, topic_of = self._topics(columns, batch.num_rows)
        bodies = self._bodies(columns)
        properties = self._properties(columns, everything.keys(), batch.num_rows)
        flags = _numbers(columns, "flag", 0)
        body_lengths = _lengths(bodies)
        properties_lengths = _lengths(properties)
        self._check_sizes(body_lengths, properties_lengths)
        inner = pc.binary_join_element_wise(
            _fixed(inner_heads(body_lengths, properties_lengths, 0 if flags is None else flags)),
            bodies,
            _fixed(properties_lengths_between(properties_lengths)),
            properties,
            b"",
        )
        is_alone = self._alone(columns, _lengths(inner), topics, topic_of)
        order, destinations = self._destinations(columns, topics, topic_of)
        if order is not None:
            inner = inner.take(pa.array(order))
        rows = order if order is not None else np.arange(batch.num_rows)
        cutter = _Cutter(inner, rows, self._limits.batch_bytes, self._row)
        for topic, queue, start, end in destinations:
            for first, last in _spans(is_alone[rows[start:end]], start):
                if last is None:
                    row = int(rows[first])
                    yield Request(
                        topic,
                        queue,
                        bodies[row].as_py(),
                        properties[row].as_py().decode() + _WAIT,
                        int(flags[row]) if flags is not None else 0,
                        1,
                        self._row + row,
                        self._row + row,
                    )
                else:
                    yield from cutter.cut(topic, queue, first, last)

    def _topics(self, columns: Columns, count: int) -> tuple[list[str], NDArray[np.int32]]:
        """Return the topics of a batch, and the index of each row's topic."""
        default = self._default_topic
        column = columns.get("topic")
        if column is None:
            if default is None:
                self._reject(0, _NO_TOPIC)
            return [default], np.zeros(count, np.int32)
        if column.null_count:
            if default is None:
                self._reject(_first(column.is_null()), _NO_TOPIC)
            column = column.fill_null(default)
        encoded = column.dictionary_encode()
        topics = encoded.dictionary.to_pylist()
        topic_of = np.asarray(encoded.indices, np.int32)
        for number, topic in enumerate(topics):
            try:
                check_topic(topic)
            except IllegalMessageError as error:
                self._reject(int(np.argmax(topic_of == number)), f"cannot be sent: {error}")
        return topics, topic_of

    def _bodies(self, columns: Columns) -> Any:
        column = columns.get("body")
        if column is None:
            self._reject(0, "has no body")
        if column.null_count:
            self._reject(_first(column.is_null()), "has no body")
        return column.cast(pa.binary())

    def _properties(self, columns: Columns, given: Collection[str], count: int) -> Any:
        """Return the encoded properties of each row."""
        parts = []
        own = self._own_properties(columns.get("properties"), given)
        if own is not None:
            parts.append(own)
        keys = columns.get("keys")
        if keys is not None and pa.types.is_list(keys.type):
            keys = _valid_text(pc.binary_join(keys, names.KEY_SEPARATOR))
        parts += self._property(names.KEYS, "keys", keys)
        delays = _numbers(columns, "delayLevel", 0)
        if delays is not None and (delays > 0).any():
            levels = pa.array(delays, mask=delays <= 0).cast(pa.string())
            parts += self._property(names.DELAY, "delayLevel", levels)
        parts += self._property(SHARDING_KEY, "orderingKey", columns.get("orderingKey"))
        parts.append(self._unique_keys(columns, count))
        # Tags come last: of several, the last one counts for brokers.
        parts += self._property(names.TAGS, "tags", columns.get("tags"))
        if len(parts) == 1:
            return parts[0]
        return pc.binary_join_element_wise(*parts, b"\x02", null_handling="skip")

    def _own_properties(self, column: Any, given: Collection[str]) -> Any:
        """Return the column `properties` without reserved ones and those of other columns."""
        if column is None:
            return None
        if pa.types.is_map(column.type):
            column = self._joined_map(column)
        taken = [
            name
            for name, by in (
                (names.KEYS, "keys"),
                (names.TAGS, "tags"),
                (SHARDING_KEY, "orderingKey"),
            )
            if by in given
        ]
        column = pc.replace_substring_regex(
            column.cast(pa.string()), names.property_pattern((*RESERVED_PROPERTIES, *taken)), ""
        )
        column = pc.utf8_trim(column, characters="\x02")
        return _null_if_empty(column).cast(pa.binary())

    def _joined_map(self, column: Any) -> Any:
        """Return a column of maps as encoded properties, without those that have no value."""
        keys, items, offsets = _entries(column)
        for wrong in (
            pc.match_substring_regex(keys, _SEPARATORS),
            pc.match_substring_regex(items, _SEPARATORS),
            pc.equal(keys, ""),
        ):
            if pc.any(wrong).as_py():
                self._reject_property(column, _first(wrong))
        pairs = pc.binary_join_element_wise(keys, items, names.NAME_VALUE_SEPARATOR)
        joined = pc.binary_join(
            pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pairs.fill_null("")),
            names.PROPERTY_SEPARATOR,
        )
        joined = pc.replace_substring_regex(joined, "\x02\x02+", "\x02")
        return pc.if_else(column.is_valid(), joined, None)

    def _property(self, name: str, column_name: str, column: Any) -> list[Any]:
        """Return a column as one property, `name \\x01 value`; null for rows without a value."""
        if column is None:
            return []
        wrong = pc.match_substring_regex(column, _SEPARATORS)
        if pc.any(wrong).as_py():
            self._reject(
                _first(wrong),
                f"cannot be sent: {column_name} must not contain U+0001 or U+0002",
            )
        text = _null_if_empty(column).cast(pa.binary())
        return [pc.binary_join_element_wise(f"{name}\x01".encode(), text, b"")]

    def _unique_keys(self, columns: Columns, count: int) -> Any:
        made = _fixed(self._unique.properties(self._row, count))
        own = self._property(names.UNIQ_KEY, "uniqueKey", columns.get("uniqueKey"))
        return pc.coalesce(own[0], made) if own else made

    def _check_sizes(self, body_lengths: Longs, properties_lengths: Longs) -> None:
        limit = self._limits.max_message_size
        if not body_lengths.all():
            self._reject(int(body_lengths.argmin()), "has an empty body")
        if (body_lengths > limit).any():
            row = int(body_lengths.argmax())
            self._reject(
                row,
                f"has a body of {body_lengths[row]} bytes, above the limit of {limit} (raise "
                "maxMessageSize, here and in the brokers' configuration)",
            )
        if (properties_lengths > MAX_PROPERTIES).any():
            row = int(properties_lengths.argmax())
            self._reject(
                row,
                f"has properties of {properties_lengths[row]} bytes, above the limit of "
                f"{MAX_PROPERTIES}",
            )

    def _alone(
        self, columns: Columns, sizes: Longs, topics: list[str], topic_of: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        """Return which rows cannot be in a batch."""
        alone: NDArray[np.bool_] = sizes > self._limits.batch_bytes
        delays = _numbers(columns, "delayLevel", 0)
        if delays is not None:
            alone |= delays > 0
        retries = [topic.startswith(RETRY_TOPIC_PREFIX) for topic in topics]
        if any(retries):
            alone |= np.array(retries)[topic_of]
        return alone

    def _destinations(
        self, columns: Columns, topics: list[str], topic_of: NDArray[np.int32]
    ) -> tuple[Longs | None, list[tuple[str, MessageQueue | None, int, int]]]:
        """Sort rows by topic and queue: return the order (None: unchanged) and each span."""
        count = topic_of.size
        queue_of = np.full(count, _ANY_QUEUE, np.int64)
        queues = self._place_rows(columns, topics, topic_of, queue_of)
        if len(topics) == 1 and not queues:
            return None, [(topics[0], None, 0, count)]
        width = 1 + max((len(found) for found in queues.values()), default=0)
        destinations = topic_of * np.int64(width) + queue_of + 1
        order = np.argsort(destinations, kind="stable")
        ordered = destinations[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1)).tolist()
        found = []
        for start, end in zip(starts, [*starts[1:], count], strict=True):
            number, place = divmod(int(ordered[start]), width)
            topic = topics[number]
            queue = queues[topic][place - 1] if place else None
            found.append((topic, queue, start, end))
        return order, found

    def _place_rows(
        self,
        columns: Columns,
        topics: list[str],
        topic_of: NDArray[np.int32],
        queue_of: Longs,
    ) -> dict[str, Sequence[MessageQueue]]:
        """Fill `queue_of` with the index of each row's queue; return the queues by topic."""
        queues: dict[str, Sequence[MessageQueue]] = {}
        hashes, has_key = _hashes(columns.get("orderingKey"))
        ids = _numbers(columns, "queueId", _ANY_QUEUE)
        for number, topic in enumerate(topics):
            is_topic = topic_of == number
            if hashes is not None and has_key is not None:
                rows = np.flatnonzero(is_topic & has_key)
                if rows.size:
                    queues[topic] = self._queues_of(topic)
                    queue_of[rows] = np.abs(hashes[rows]) % len(queues[topic])
            if ids is not None:
                rows = np.flatnonzero(is_topic & (ids != _ANY_QUEUE))
                if rows.size:
                    queues[topic] = self._queues_of(topic)
                    self._place_by_id(columns, rows, ids, queues[topic], queue_of)
        return queues

    def _place_by_id(
        self,
        columns: Columns,
        rows: Longs,
        ids: Longs,
        queues: Sequence[MessageQueue],
        queue_of: Longs,
    ) -> None:
        """Place rows with a queue id: at the named broker, or the first one with that queue."""
        places: dict[tuple[str | None, int], int] = {}
        for place, queue in enumerate(queues):
            places[queue.broker_name, queue.queue_id] = place
            places.setdefault((None, queue.queue_id), place)
        column = columns.get("brokerName")
        brokers = column.take(pa.array(rows)).to_pylist() if column is not None else None
        for index, row in enumerate(rows.tolist()):
            broker = brokers[index] if brokers is not None else None
            found = places.get((broker, int(ids[row])))
            if found is None:
                at = f" of broker {broker!r}" if broker is not None else ""
                self._reject(
                    row, f"selects queue {ids[row]}{at}, which is not a writable queue of its topic"
                )
            else:
                queue_of[row] = found

    def _reject_property(self, column: Any, item: int) -> NoReturn:
        keys, _, offsets = _entries(column)
        row = int(np.searchsorted(offsets, item, "right")) - 1
        self._reject(
            row,
            f"has a property {keys[item].as_py()!r:.80} that cannot be sent: names must not be "
            "empty, and neither names nor values may contain U+0001 or U+0002",
        )

    def _reject(self, row: int, problem: str) -> NoReturn:
        raise RowError(f"row {self._row + row}{self._place} {problem}")


class _Cutter:
    """Cuts a column of inner messages into request bodies."""

    def __init__(self, inner: Any, rows: Longs, batch_bytes: int, first_row: int) -> None:
        _, offsets, data = inner.buffers()
        self._offsets = np.frombuffer(offsets, np.int32)[inner.offset :]
        self._data = memoryview(data) if data is not None else memoryview(b"")
        self._rows = rows
        self._batch_bytes = batch_bytes
        self._first_row = first_row

    def cut(
        self, topic: str, queue: MessageQueue | None, start: int, end: int
    ) -> Iterator[Request]:
        offsets = self._offsets
        while start < end:
            begin = int(offsets[start])
            # Each row fits into a batch; larger ones are sent singly.
            stop = int(np.searchsorted(offsets, begin + self._batch_bytes, "right")) - 1
            stop = min(max(stop, start + 1), end)
            yield Request(
                topic,
                queue,
                bytes(self._data[begin : int(offsets[stop])]),
                None,
                0,
                stop - start,
                self._first_row + int(self._rows[start]),
                self._first_row + int(self._rows[stop - 1]),
            )
            start = stop


def _halves(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= _MAX_BATCH_BYTES or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _halves(batch.slice(0, half))
    yield from _halves(batch.slice(half))


def _spans(is_alone: NDArray[np.bool_], start: int) -> Iterator[tuple[int, int | None]]:
    """Yield spans of rows that can share a batch, and single rows (end None) between them."""
    begin = 0
    for row in np.flatnonzero(is_alone).tolist():
        if begin < row:
            yield start + begin, start + row
        yield start + row, None
        begin = row + 1
    if begin < is_alone.size:
        yield start + begin, start + is_alone.size


def _numbers(columns: Columns, name: str, default: int) -> Longs | None:
    """Return a column of whole numbers; None if it is missing or all null."""
    column = columns.get(name)
    if column is None:
        return None
    return np.asarray(column.cast(pa.int64()).fill_null(default), np.int64)


def _hashes(column: Any) -> tuple[Longs | None, NDArray[np.bool_] | None]:
    """Return Java's hash of each text, and which rows have a text."""
    if column is None:
        return None, None
    column = column.cast(pa.binary())
    has_text = np.asarray(pc.fill_null(pc.greater(pc.binary_length(column), 0), False))
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    starts = places[:-1].astype(np.int64)
    lengths = np.where(has_text, np.diff(places), 0).astype(np.int64)
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    hashes, _ = java_hashes(content, np.where(has_text, starts, 0), lengths)
    return hashes.view(np.int32).astype(np.int64), has_text


def _entries(column: Any) -> tuple[Any, Any, NDArray[np.int32]]:
    """Return the keys and items of a column of maps, and where those of each row start.

    Arrow returns the entries of the whole column, even for a slice of it.
    """
    offsets = column.offsets.to_numpy()
    start, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys, items = column.keys.slice(start, count), column.items.slice(start, count)
    return _valid_text(keys), _valid_text(items), offsets - start


def _valid_text(column: Any) -> Any:
    """Return text as valid UTF-8: Spark's `cast(body as string)` accepts any bytes."""
    if not pa.types.is_string(column.type):
        return column
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        values = column.cast(pa.binary()).to_pylist()
        return pa.array(
            [None if value is None else value.decode(errors="replace") for value in values],
            pa.string(),
        )
    return column


def _lengths(column: Any) -> Longs:
    return np.asarray(pc.binary_length(column), np.int64)


def _fixed(rows: NDArray[np.uint8]) -> Any:
    """Return rows of equal width as a binary column, without a copy."""
    count, width = rows.shape
    offsets = np.arange(0, count * width + 1, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _null_if_empty(column: Any) -> Any:
    return pc.if_else(pc.equal(pc.binary_length(column), 0), None, column)


def _first(flags: Any) -> int:
    return int(np.argmax(np.asarray(pc.fill_null(flags, False))))
