"""Build consume-queue entries from the log's bytes.

On the hot path entries are packed from values in hand (`store.chunk`). Here they are computed from
the records of the log, many at once with numpy, for recovery, checks and rebuilds.

Prepared and rolled-back transaction records get no entry. The entry of a delayed message holds its
delivery time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyromq.protocol.java.string_hashes import java_hashes
from pyromq.protocol.java.wire_types import INT32, parse_integer
from pyromq.protocol.message import bulk
from pyromq.protocol.message.bulk import Longs, RecordColumns, Spans
from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.joined_properties import JoinedProperties
from pyromq.protocol.message.properties import DELAY, TAGS
from pyromq.protocol.message.record import decode_record
from pyromq.protocol.message.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NOT,
)
from pyromq.protocol.message.unit_arrays import CONSUME_QUEUE_DTYPE
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY_SIZE
from pyromq.protocol.names import SCHEDULE_TOPIC
from pyromq.store.queues.consume_queue import ConsumeQueue

logger = logging.getLogger(__name__)

_TAGS: Final = TAGS.encode()


class QueueRun(NamedTuple):
    """The entries of one queue's records, in the order of the log."""

    topic: str
    queue_id: int
    #: The queue offsets that the records state.
    offsets: Longs
    #: One `unit_arrays.CONSUME_QUEUE_DTYPE` per record.
    entries: NDArray[np.void]
    #: Whether the offsets have no gaps.
    is_consecutive: bool


def append_runs(
    runs: Iterable[QueueRun],
    queue_of: Callable[[str, int], ConsumeQueue | None],
    on_missing: Callable[[ConsumeQueue, str], None] | None = None,
) -> None:
    """Append the entries that queues lack, with one write per queue.

    The queues must have no pending entries. Those that get entries become dirty. Each is written
    before the next one is handled, because a queue with pending entries keeps its mapping.

    Records that a queue already has are skipped. A record with offset 0 for a queue that has
    messages means that the topic was deleted and recreated: the queue's entries are dropped. Gaps
    are filled with pre-blank entries. With `on_missing`, that is called with the reason instead,
    and the queue gets no more entries. `queue_of` returns None for queues to skip.
    """
    for run in runs:
        queue = queue_of(run.topic, run.queue_id)
        if queue is not None:
            append_run(queue, run, on_missing)
            if queue.pending:
                queue.write_pending()
                queue.dirty = True


def append_run(
    queue: ConsumeQueue,
    run: QueueRun,
    on_missing: Callable[[ConsumeQueue, str], None] | None = None,
) -> None:
    """Append the entries of a run that a queue lacks. The queue must have no pending entries."""
    places = run.entries["physical_offset"]
    last_end = queue.last_physical_offset()
    if int(places[0]) < last_end:
        # Physical offsets only increase along a queue, so it has all records below its end.
        known = int(np.searchsorted(places, last_end))
        run = run._replace(offsets=run.offsets[known:], entries=run.entries[known:])
        if not run.offsets.size:
            return
    if run.is_consecutive and int(run.offsets[0]) == queue.next_offset:
        queue.append_many(run.entries.tobytes())
    else:
        _append_each(queue, run, on_missing)


def _append_each(
    queue: ConsumeQueue, run: QueueRun, on_missing: Callable[[ConsumeQueue, str], None] | None
) -> None:
    """Append entries that do not simply continue the queue."""
    places = run.entries["physical_offset"].tolist()
    packed = run.entries.tobytes()
    for row, (offset, place) in enumerate(zip(run.offsets.tolist(), places, strict=True)):
        if offset < queue.next_offset:
            if offset:
                logger.warning(
                    "record at %d skipped: it has offset %d of %s queue %d, which is at %d",
                    place,
                    offset,
                    run.topic,
                    run.queue_id,
                    queue.next_offset,
                )
                continue
            queue.delete()
        elif offset > queue.next_offset:
            if on_missing is not None:
                reason = f"it ends at {queue.next_offset}, but the record at {place} has {offset}"
                on_missing(queue, reason)
                return
            queue.skip_to(offset)
        begin = row * CONSUME_QUEUE_ENTRY_SIZE
        queue.append_many(packed[begin : begin + CONSUME_QUEUE_ENTRY_SIZE])


def queue_runs(
    log_bytes: bulk.Buffer,
    base: int,
    columns: RecordColumns,
    delay_levels: DelayLevels,
    properties: JoinedProperties | None = None,
) -> Iterator[QueueRun]:
    """Yield the consume-queue entries of these records, queue by queue.

    Skips invalid records, records that consumers never see, and those whose topic or queue id
    cannot be a folder name. Pass `properties` if the records' properties are already joined.
    """
    transaction = columns.heads["sys_flag"] & TRANSACTION_MASK
    rows = np.flatnonzero(
        columns.valid & ((transaction == TRANSACTION_NOT) | (transaction == TRANSACTION_COMMIT))
    )
    if not rows.size:
        return
    data = np.frombuffer(log_bytes, np.uint8)
    topics = Spans(columns.topics.starts[rows], columns.topics.lengths[rows])
    queue_ids = columns.column("queue_id")[rows]
    keys = _topic_keys(log_bytes, data, topics) << 32 | queue_ids & 0xFFFFFFFF
    order = keys.argsort(kind="stable")
    keys = keys[order]
    rows = rows[order]
    entries = np.empty(rows.size, CONSUME_QUEUE_DTYPE)
    entries["physical_offset"] = columns.starts[rows] + base
    entries["size"] = columns.heads["total_size"][rows]
    entries["tags_code"] = _tags_codes(log_bytes, data, columns, properties)[rows]
    offsets = columns.column("queue_offset")[rows]
    begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    follows = np.append(True, offsets[1:] == offsets[:-1] + 1)
    follows[begins] = True
    consecutive = np.logical_and.reduceat(follows, begins).tolist()
    bounds = [*begins.tolist(), rows.size]
    runs = []
    for number, is_consecutive in enumerate(consecutive):
        begin, end = bounds[number], bounds[number + 1]
        first = int(order[begin])
        at, queue_id = int(topics.starts[first]), int(queue_ids[first])
        topic = str(log_bytes[at : at + int(topics.lengths[first])], errors="replace")
        run = QueueRun(topic, queue_id, offsets[begin:end], entries[begin:end], is_consecutive)
        runs.append(run)
    yield from usable_runs(log_bytes, base, runs, delay_levels)


def usable_runs(
    log_bytes: bulk.Buffer, base: int, runs: Iterable[QueueRun], delay_levels: DelayLevels
) -> Iterator[QueueRun]:
    """Yield the runs whose topic and queue id can be folder names, with delivery times."""
    for run in runs:
        topic = run.topic
        if run.queue_id < 0 or not topic or "/" in topic or "\0" in topic or topic in (".", ".."):
            logger.warning(
                "record at %d skipped: invalid topic %r or queue %d",
                int(run.entries["physical_offset"][0]),
                topic,
                run.queue_id,
            )
        elif topic == SCHEDULE_TOPIC:
            yield _with_delivery_times(log_bytes, base, run, delay_levels)
        else:
            yield run


def _topic_keys(log_bytes: bulk.Buffer, data: bulk.Bytes, topics: Spans) -> Longs:
    """Return a number below 2 ** 31 per row; rows have the same one only for the same topic."""
    starts, lengths = topics
    few = bulk.few_values(data, topics)
    if few is not None and _are_ascii(data, topics, few[1]):
        return few[0]
    hashes, units = java_hashes(data, starts, lengths)
    keys = hashes.astype(np.int64) & 0x7FFFFFFF
    _, firsts, numbers = np.unique(keys, return_index=True, return_inverse=True)
    representative = firsts[numbers]
    alike = np.array_equal(units, lengths) and np.array_equal(lengths, lengths[representative])
    for length in set(lengths[firsts].tolist()) - {0} if alike else ():
        of_length = np.flatnonzero(lengths == length)
        names = bulk.gather(data, starts[of_length], length)
        alike &= bool((names == bulk.gather(data, starts[representative[of_length]], length)).all())
    if alike:
        return keys
    # Some topics are not ASCII, or their hashes collide: number them by name.
    known: dict[str, int] = {}
    ends = (starts + lengths).tolist()
    names_of = (
        str(log_bytes[start:end], errors="replace")
        for start, end in zip(starts.tolist(), ends, strict=True)
    )
    return np.array([known.setdefault(name, len(known)) for name in names_of], np.int64)


def _are_ascii(data: bulk.Bytes, spans: Spans, rows: Longs) -> bool:
    bounds = zip(spans.starts[rows].tolist(), spans.lengths[rows].tolist(), strict=True)
    return all(data[start : start + length].tobytes().isascii() for start, length in bounds)


def _tags_codes(
    log_bytes: bulk.Buffer,
    data: bulk.Bytes,
    columns: RecordColumns,
    properties: JoinedProperties | None,
) -> Longs:
    """Return Java's hash of each record's tags, 0 without tags."""
    properties = properties or JoinedProperties(log_bytes, columns.properties)
    rows, tags = properties.find(_TAGS)
    codes = np.zeros(columns.starts.size, np.int64)
    few = bulk.few_values(data, tags)
    if few is not None:
        numbers, firsts = few
        hashes, _ = java_hashes(data, tags.starts[firsts], tags.lengths[firsts])
        codes[rows] = hashes.view(np.int32)[numbers]
    else:
        hashes, _ = java_hashes(data, *tags)
        codes[rows] = hashes.view(np.int32)
    return codes


def _with_delivery_times(
    log_bytes: bulk.Buffer, base: int, run: QueueRun, delay_levels: DelayLevels
) -> QueueRun:
    entries = run.entries.copy()
    for row, (place, size, tags_code) in enumerate(run.entries.tolist()):
        start = place - base
        entries["tags_code"][row] = _delivery_time(
            bytes(log_bytes[start : start + size]), delay_levels, tags_code
        )
    return run._replace(entries=entries)


def _delivery_time(data: bytes, delay_levels: DelayLevels, tags_code: int) -> int:
    """Return the value that a delayed message's entry holds in place of the tags code."""
    record = decode_record(data)
    try:
        level = parse_integer(record.properties.get(DELAY, ""), INT32)
    except ValueError:  # no broker stores such a record
        return tags_code
    return delay_levels.due(level, record.store_timestamp) if level > 0 else tags_code
