"""Encode a batch whose messages all have the same size, with numpy.

Bulk producers (the Spark sink, table exporters) send thousands of messages of the same shape in
one request. Their records are the rows of a matrix: fields that differ are written by column, the
rest is one copy. A message of 256 bytes takes 1.4 µs instead of 3.6 (measured on busy cores);
for few messages `BatchEncoder` is cheaper. For other shapes, and below `_MIN_COUNT` messages,
`even_records` returns None and `BatchEncoder` takes over, with the same result byte for byte.

Does no I/O. Called by `chunk` on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyromq.protocol.message.bulk import BATCH_HEAD_DTYPE, crcs_of
from pyromq.protocol.message.properties import MAX_PROPERTIES, PROPERTY_SEPARATOR, TAGS_START
from pyromq.protocol.message.record import (
    BATCH_HEAD,
    INNER_BODY_LENGTH,
    INNER_FIXED_SIZE,
    INNER_HEAD,
    INNER_HEAD_SIZE,
    MESSAGE_MAGIC,
    PROPERTIES_LENGTH,
)
from pyromq.protocol.message.unit_arrays import CONSUME_QUEUE_DTYPE
from pyromq.store.batch_encoder import BatchPlace

#: Below this number of messages numpy's cost per call outweighs its speed.
_MIN_COUNT: Final = 64
_SEPARATOR: Final = PROPERTY_SEPARATOR.encode()
_TAGS_START: Final = TAGS_START.encode()
assert BATCH_HEAD_DTYPE.itemsize == BATCH_HEAD.size


class EvenRecords(NamedTuple):
    """The records of a batch, their consume-queue entries, and their physical offsets."""

    records: bytes
    entries: bytes
    offsets: list[int]


class _Shape(NamedTuple):
    """The number of inner messages, their size, and the end of the body in each."""

    number: int
    size: int
    body_end: int


def even_records(
    batch: bytes, place: BatchPlace, tags_code_of: Callable[[bytes], int], max_count: int
) -> EvenRecords | None:
    """Encode a batch of messages of one size that share their tags or have none.

    Returns None for any other batch, valid or not, and for more than `max_count` messages.
    """
    shape = _shape_of(batch, place, max_count)
    if shape is None:
        return None
    inner = np.frombuffer(batch, np.uint8).reshape(shape.number, shape.size)
    if not _is_even(inner, shape):
        return None
    tags_code = _shared_tags(inner[:, shape.body_end + 2 :], tags_code_of)
    if tags_code is None:
        return None
    record_size = place.fixed_size + shape.size - INNER_FIXED_SIZE + len(place.properties)
    physical = place.physical_offset + record_size * np.arange(shape.number)
    heads = np.empty(shape.number, BATCH_HEAD_DTYPE)
    heads["total_size"] = record_size
    heads["magic"] = MESSAGE_MAGIC
    heads["body_crc"] = _checksums(batch, shape)
    heads["queue_id"] = place.queue_id
    heads["flag"] = inner[:, INNER_BODY_LENGTH - 4 : INNER_BODY_LENGTH].copy().view(">i4")[:, 0]
    heads["queue_offset"] = place.queue_offset + np.arange(shape.number)
    heads["physical_offset"] = physical
    entries = np.empty(shape.number, CONSUME_QUEUE_DTYPE)
    entries["physical_offset"] = physical
    entries["size"] = record_size
    entries["tags_code"] = tags_code
    records = _join(heads, inner, shape, place, record_size)
    return EvenRecords(records, entries.tobytes(), physical.tolist())


def _shape_of(batch: bytes, place: BatchPlace, max_count: int) -> _Shape | None:
    """Return the shape of the batch if all its messages are like the first one, or None."""
    length = len(batch)
    if length < INNER_FIXED_SIZE * _MIN_COUNT:
        return None
    size, _, body_length = INNER_HEAD.unpack_from(batch)
    own_length = size - INNER_FIXED_SIZE - body_length
    if size <= INNER_FIXED_SIZE or body_length < 0 or own_length < 1 or length % size:
        return None
    count = length // size
    if not _MIN_COUNT <= count <= max_count or own_length + len(place.properties) > MAX_PROPERTIES:
        return None
    return _Shape(count, size, INNER_HEAD_SIZE + body_length)


def _is_even(inner: NDArray[np.uint8], shape: _Shape) -> bool:
    """Whether all messages really have this shape, and none ends with a separator."""
    body_lengths = inner[:, INNER_BODY_LENGTH:INNER_HEAD_SIZE]
    own_lengths = inner[:, shape.body_end : shape.body_end + 2]
    return bool(
        (inner[:, :4] == inner[0, :4]).all()
        and (body_lengths == body_lengths[0]).all()
        and (own_lengths == _packed_length(shape.size - shape.body_end - 2)).all()
        and (inner[:, -1] != _SEPARATOR[0]).all()
    )


def _shared_tags(own: NDArray[np.uint8], tags_code_of: Callable[[bytes], int]) -> int | None:
    """Return the code of the tags that all messages share, 0 without tags, None if they differ."""
    if _TAGS_START not in own.tobytes():
        return 0
    first = own[0].tobytes()
    last = first[first.rfind(_SEPARATOR) :]
    # The last TAGS counts, so earlier properties need not be compared.
    if (
        not last.startswith(_SEPARATOR + _TAGS_START)
        or (own[:, -len(last) :] != own[0, -len(last) :]).any()
    ):
        return None
    return tags_code_of(first)


def _checksums(batch: bytes, shape: _Shape) -> NDArray[np.int64]:
    end = shape.number * shape.size
    begins = range(INNER_HEAD_SIZE, end, shape.size)
    ends = range(shape.body_end, end, shape.size)
    return crcs_of(batch, begins, ends)


def _join(
    heads: NDArray[np.void],
    inner: NDArray[np.uint8],
    shape: _Shape,
    place: BatchPlace,
    record_size: int,
) -> bytes:
    """Write the fields of all records column by column."""
    records = np.empty((shape.number, record_size), np.uint8)
    properties_length = shape.size - shape.body_end - 2 + len(place.properties)
    at = 0
    for field in (
        heads.view(np.uint8).reshape(shape.number, -1),
        np.frombuffer(place.shared, np.uint8),
        inner[:, INNER_BODY_LENGTH : shape.body_end],
        np.frombuffer(place.topic, np.uint8),
        _packed_length(properties_length),
        inner[:, shape.body_end + 2 :],
        np.frombuffer(place.properties, np.uint8),
    ):
        end = at + field.shape[-1]
        records[:, at:end] = field
        at = end
    if at != record_size:
        raise AssertionError(f"record of {record_size} bytes has {at} bytes of fields")
    return records.tobytes()


def _packed_length(value: int) -> NDArray[np.uint8]:
    return np.frombuffer(PROPERTIES_LENGTH.pack(value), np.uint8)
