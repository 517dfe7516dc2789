"""Finding single messages: by time in a queue, by offset in the log.

Reads only; called on the loop for one message that is in memory, from a lane for all else.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from typing import Final

from pyromq.protocol.message.record import (
    BLANK_SIZE,
    HEAD_SIZE_V4,
    MESSAGE_MAGIC,
    peek,
    store_timestamp_at,
)
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY, CONSUME_QUEUE_ENTRY_SIZE
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.queues.consume_queue import ConsumeQueue

#: A search begins again when a file of its queue expires meanwhile, so often.
_TRIES: Final = 3


def record_at(log: CommitLog, offset: int) -> bytes | None:
    """The record that begins at `offset`; None when none does."""
    if offset < log.min_offset or not log.holds(offset, HEAD_SIZE_V4):
        return None
    size, magic = peek(log.read(offset, BLANK_SIZE))
    if magic != MESSAGE_MAGIC or size < HEAD_SIZE_V4 or not log.holds(offset, size):
        return None
    record = log.read(offset, size)
    # Its segment may have left the log since.
    return record if len(record) == size else None


def fetch_record(log: CommitLog, offset: int) -> bytes | None:
    """What `record_at` says, for threads: the disk is waited for without the interpreter's lock.

    Not for the loop: whoever reads a page that is not in memory stops the whole process.
    """
    file = log.segments.find(offset) if log.holds(offset, HEAD_SIZE_V4) else None
    if file is not None:
        start = offset - file.base
        with contextlib.suppress(FileNotFoundError):  # it has expired meanwhile
            _bring_in(file, start, start + HEAD_SIZE_V4)
            size, magic = peek(file.read(start, start + BLANK_SIZE))
            if magic == MESSAGE_MAGIC and log.holds(offset, size):
                _bring_in(file, start, start + size)
    return record_at(log, offset)


def _bring_in(file: MappedFile, start: int, end: int) -> None:
    if not file.is_in_memory(start, end):
        file.bring_in(start, end)


def store_timestamp(log: CommitLog, offset: int, size: int) -> int:
    """The store timestamp of the record at `offset`; -1 when it is not there.

    In a thread it waits for the disk without the interpreter's lock.
    """
    file = log.segments.find(offset)
    if file is None or offset < log.min_offset or not log.holds(offset, max(size, HEAD_SIZE_V4)):
        return -1
    start = offset - file.base
    with contextlib.suppress(FileNotFoundError):  # it has expired meanwhile
        _bring_in(file, start, start + HEAD_SIZE_V4)
    head = log.read(offset, HEAD_SIZE_V4)
    return store_timestamp_at(head, 0) if len(head) == HEAD_SIZE_V4 else -1


def offset_by_time(queue: ConsumeQueue, log: CommitLog, timestamp: int, end: int) -> int:
    """The queue offset whose message was stored nearest to `timestamp`.

    RocketMQ's search, with its rounding: of the two neighbours of a time between them
    the nearer one, the earlier one when both are as near; before the first message the
    first, behind the last the last. It looks in one segment, the one with the nearest
    message.

    For threads, too: the queue may grow meanwhile, `end` was its end when nothing was pending.
    Of a queue that is deleted meanwhile it finds nothing.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError, ValueError):
            return _offset_by_time(queue, log, timestamp, end)
        # A file was removed meanwhile: expired, or with its queue.
        if not queue.segments.files:
            return 0
    return _offset_by_time(queue, log, timestamp, end)


def _offset_by_time(queue: ConsumeQueue, log: CommitLog, timestamp: int, end: int) -> int:
    file = _segment_by_time(queue, log, timestamp, end)
    if file is None:
        return 0
    first = file.base // CONSUME_QUEUE_ENTRY_SIZE
    low = max(queue.min_offset - first, 0)
    high = min(end - first, file.size // CONSUME_QUEUE_ENTRY_SIZE) - 1
    min_physical = log.min_offset
    left = right = -1
    left_time = right_time = -1
    while low <= high:
        middle = (low + high) // 2
        start = middle * CONSUME_QUEUE_ENTRY_SIZE
        physical, size, _ = _entry(file, start)
        if physical < min_physical:
            low = middle + 1
            left = middle
            continue
        stored = store_timestamp(log, physical, size)
        if stored < 0:
            return 0
        if stored == timestamp:
            return first + middle
        if stored > timestamp:
            high = middle - 1
            right, right_time = middle, stored
        else:
            low = middle + 1
            left, left_time = middle, stored
    if left_time == -1:
        found = right
    elif right_time == -1:
        found = left
    else:
        found = right if timestamp - left_time > right_time - timestamp else left
    return first + found if found >= 0 else 0


def _entry(file: MappedFile, start: int) -> tuple[int, int, int]:
    end = start + CONSUME_QUEUE_ENTRY_SIZE
    with contextlib.suppress(FileNotFoundError):  # its queue was deleted meanwhile
        _bring_in(file, start, end)
    physical, size, tags_code = CONSUME_QUEUE_ENTRY.unpack(file.read(start, end))
    return physical, size, tags_code


def _segment_by_time(
    queue: ConsumeQueue, log: CommitLog, timestamp: int, end: int
) -> MappedFile | None:
    """The first segment with a message stored at or after the time, or the one before it when
    its last message is as near; else the newest.

    RocketMQ goes by the files' times of modification. Those are the same while a queue grows,
    but not after its segments were copied, or made again from the log.
    """
    files = [file for file in queue.segments.files if file.base < end * CONSUME_QUEUE_ENTRY_SIZE]

    def stored(file: MappedFile, number: int) -> int:
        physical, size, _ = _entry(file, number * CONSUME_QUEUE_ENTRY_SIZE)
        return store_timestamp(log, physical, size)

    def last(file: MappedFile) -> int:
        length = min(end * CONSUME_QUEUE_ENTRY_SIZE - file.base, file.size)
        return stored(file, length // CONSUME_QUEUE_ENTRY_SIZE - 1)

    number = bisect_left(files, True, key=lambda file: last(file) >= timestamp)
    if number == len(files):
        return files[-1] if files else None
    if number and 0 <= timestamp - last(files[number - 1]) <= stored(files[number], 0) - timestamp:
        return files[number - 1]
    return files[number]
