"""What happens to a store directory between loading its files and the first put.

1. Where to begin: after a clean stop the third segment from the end; after a crash the
   newest segment whose first record was stored at or before the checkpoint's time.
2. The log is walked from there. It ends at the first bytes that are no record of this
   place: wrong magic, a size that does not fit, another physical offset, a body whose
   CRC is wrong. The rest of that segment is emptied, so that nothing stale can ever be
   taken for a record, and later segments are removed.
3. Consume queues lose every entry that points behind the log's end; after a crash also
   those from the beginning of the walk on, which are then made again from the log.
4. What the queues lack is dispatched to them, and their first offsets are corrected. If
   a queue lacks entries from before the walk too, all are made again from the whole log.

Runs once, on the thread that starts the store, before any other thread of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from zlib import crc32

from pyromq.protocol import bulk
from pyromq.protocol.delay import DelayLevels
from pyromq.protocol.record import BLANK_MAGIC, BLANK_SIZE, CRC_MASK, HEAD_SIZE_V4, peek
from pyromq.store import lookup
from pyromq.store.commit_log import CommitLog
from pyromq.store.consume_queue import ConsumeQueue
from pyromq.store.dispatch import PIECE, MissingEntriesError, dispatch_to_queues
from pyromq.store.index import KeyIndex
from pyromq.store.mapped_file import MappedFile

logger = logging.getLogger(__name__)


def recover(
    log: CommitLog,
    queues: Mapping[tuple[str, int], ConsumeQueue],
    queue_of: Callable[[str, int], ConsumeQueue],
    *,
    clean: bool,
    checkpoint_timestamp: int,
    check_crc: bool,
    delay_levels: DelayLevels,
) -> tuple[int, int]:
    """Make the store consistent; returns the log's end and where dispatching began."""
    files = log.segments.files
    if not files:
        for queue in queues.values():
            queue.delete()
        return 0, 0
    # Until the end is known, all that is mapped can be read.
    log.watermarks.written = log.segments.end_offset
    first = max(0, len(files) - 3) if clean else _first_unsafe(log, checkpoint_timestamp)
    walk_from = files[first].base
    end = _walk(log, files[first:], check_crc=check_crc)
    if not clean:
        logger.warning("the last stop was not clean: checked %d bytes of the log", end - walk_from)
    _empty_behind(log, end)
    log.segments.drop_after(end)
    log.watermarks.written = end
    for queue in queues.values():
        queue.recover()
        queue.truncate(end if clean else walk_from)
    dispatched = (
        max((queue.last_physical_offset() for queue in queues.values()), default=0)
        if clean
        else walk_from
    )
    dispatch_from = max(log.min_offset, dispatched)
    try:
        _dispatch(log, dispatch_from, end, queue_of, delay_levels, allow_missing=clean)
    except MissingEntriesError as missing:
        logger.warning("%s: all consume queues are made again from the log", missing)
        dispatch_from = log.min_offset
        for queue in queues.values():
            queue.pending.clear()
            queue.recover()
            queue.truncate(dispatch_from)
        _dispatch(log, dispatch_from, end, queue_of, delay_levels, allow_missing=True)
    for queue in queues.values():
        queue.correct_min_offset(log.min_offset)
    return end, dispatch_from


def index_from(log: CommitLog, index: KeyIndex, dispatched_from: int, *, clean: bool) -> int:
    """Where the key index goes on: behind its last message, or at the log's beginning.

    Not where dispatching began: after a crash index files go that hold older messages, and
    with them some keys of a message whose first ones filled the file before. So that message
    is indexed once more then, as Java does, and may be found twice.
    """
    if not index.end_timestamp:
        return log.min_offset
    last = lookup.record_at(log, index.end_offset)
    if last is None:
        return max(log.min_offset, dispatched_from)
    return index.end_offset + (len(last) if clean else 0)


def _first_unsafe(log: CommitLog, checkpoint_timestamp: int) -> int:
    """The index of the newest segment that began at or before the checkpoint."""
    files = log.segments.files
    for index in range(len(files) - 1, 0, -1):
        stored = lookup.store_timestamp(log, files[index].base, HEAD_SIZE_V4)
        if 0 < stored <= checkpoint_timestamp:
            return index
    return 0


def _walk(log: CommitLog, files: list[MappedFile], *, check_crc: bool) -> int:
    """The end of the valid records that begin with the first of these segments."""
    end = files[0].base
    for file in files:
        end = file.base
        segment_end = file.base + file.size
        while end < segment_end:
            taken = _valid_bytes(log.read(end, min(PIECE, segment_end - end)), end, check_crc)
            if taken == 0:
                # A record longer than a piece, or the end.
                record = lookup.record_at(log, end)
                taken = _valid_bytes(record, end, check_crc) if record else 0
            if taken == 0:
                break
            end += taken
        if not _is_blank(log, end, segment_end):
            return end
        end = segment_end
    return end


def _valid_bytes(data: bytes, base: int, check_crc: bool) -> int:
    """How many bytes at the head of `data` are whole, right records."""
    starts, end = bulk.record_starts(data)
    if not starts.size:
        return 0
    columns = bulk.read_columns(data, starts)
    good = columns.valid & (columns.column("physical_offset") == starts + base)
    if check_crc:
        crcs = columns.column("body_crc").tolist()
        begins = columns.bodies.starts.tolist()
        lengths = columns.bodies.lengths.tolist()
        for row, (crc, begin, length) in enumerate(zip(crcs, begins, lengths, strict=True)):
            if crc32(data[begin : begin + length]) & CRC_MASK != crc:
                good[row] = False
                break
    if good.all():
        return end
    return int(starts[good.argmin()])


def _is_blank(log: CommitLog, offset: int, segment_end: int) -> bool:
    """Whether a blank record reaches from `offset` to the segment's end."""
    if offset == segment_end:
        return True
    size, magic = peek(log.read(offset, BLANK_SIZE))
    return magic == BLANK_MAGIC and size == segment_end - offset


def _empty_behind(log: CommitLog, end: int) -> None:
    """Fill the rest of the last segment with zeros."""
    file = log.segments.find(end)
    if file is not None:
        file.empty_from(end - file.base)


def _dispatch(
    log: CommitLog,
    offset: int,
    end: int,
    queue_of: Callable[[str, int], ConsumeQueue],
    delay_levels: DelayLevels,
    *,
    allow_missing: bool,
) -> None:
    touched: dict[int, ConsumeQueue] = {}

    def touch(topic: str, queue_id: int) -> ConsumeQueue:
        queue = queue_of(topic, queue_id)
        touched[id(queue)] = queue
        return queue

    while offset < end:
        segment_end = min(log.segment_after(offset), end)
        data = log.read(offset, min(PIECE, segment_end - offset))
        taken = dispatch_to_queues(data, offset, touch, delay_levels, allow_missing=allow_missing)
        if taken == 0:
            record = lookup.record_at(log, offset)
            if record is not None and len(record) > len(data):
                taken = dispatch_to_queues(
                    record, offset, touch, delay_levels, allow_missing=allow_missing
                )
        offset = offset + taken if taken else log.segment_after(offset)
        for queue in touched.values():
            if queue.pending:
                queue.write_pending()
