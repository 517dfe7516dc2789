"""Find single messages: by time in a queue, by offset in the log.

Reads only. Called on the loop for one message that is in memory, and from a lane otherwise.
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
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY_SIZE, Entry
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.queues.consume_queue import ConsumeQueue

#: How often a search restarts because a file of its queue expired meanwhile.
_MAX_RESTARTS: Final = 3


def record_at(log: CommitLog, offset: int) -> bytes | None:
    """Return the record that starts at `offset`, or None."""
    if offset < log.min_offset or not log.holds(offset, HEAD_SIZE_V4):
        return None
    size, magic = peek(log.read(offset, BLANK_SIZE))
    if magic != MESSAGE_MAGIC or size < HEAD_SIZE_V4 or not log.holds(offset, size):
        return None
    record = log.read(offset, size)
    # Its segment may have expired since.
    return record if len(record) == size else None


def fetch_record(log: CommitLog, offset: int) -> bytes | None:
    """Return the same as `record_at`, but wait for the disk without holding the GIL.

    For worker threads: a page fault in `record_at` would stop the whole process.
    """
    file = log.segments.find(offset) if log.holds(offset, HEAD_SIZE_V4) else None
    if file is not None:
        start = offset - file.base
        with contextlib.suppress(FileNotFoundError):  # expired meanwhile
            _bring_in(file, start, start + HEAD_SIZE_V4)
            size, magic = peek(file.read(start, start + BLANK_SIZE))
            if magic == MESSAGE_MAGIC and log.holds(offset, size):
                _bring_in(file, start, start + size)
    return record_at(log, offset)


def _bring_in(file: MappedFile, start: int, end: int) -> None:
    if not file.is_in_memory(start, end):
        file.bring_in(start, end)


def store_timestamp(log: CommitLog, offset: int, size: int) -> int | None:
    """Return the store timestamp of the record at `offset`, or None if it is not stored.

    Waits for the disk without holding the GIL.
    """
    file = log.segments.find(offset)
    if file is None or offset < log.min_offset or not log.holds(offset, max(size, HEAD_SIZE_V4)):
        return None
    start = offset - file.base
    with contextlib.suppress(FileNotFoundError):  # expired meanwhile
        _bring_in(file, start, start + HEAD_SIZE_V4)
    head = log.read(offset, HEAD_SIZE_V4)
    return store_timestamp_at(head, 0) if len(head) == HEAD_SIZE_V4 else None


def offset_by_time(queue: ConsumeQueue, log: CommitLog, timestamp: int, end: int) -> int:
    """Return the queue offset of the message that was stored nearest to `timestamp`.

    Rounds as RocketMQ does: between two messages the nearer one, and the earlier one if both
    are equally near; the first one before the first, the last one after the last. Searches one
    segment, the one with the nearest message.

    Safe on any thread: the queue may grow meanwhile; `end` was its end when nothing was pending.
    Returns 0 if the queue is deleted meanwhile.
    """
    for _ in range(_MAX_RESTARTS):
        with contextlib.suppress(FileNotFoundError, ValueError):
            return _offset_by_time(queue, log, timestamp, end)
        # A file was removed meanwhile, because it expired or its queue was deleted.
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
        entry = _entry(file, middle)
        if entry.physical_offset < min_physical:
            low = middle + 1
            left = middle
            continue
        stored = store_timestamp(log, entry.physical_offset, entry.size)
        if stored is None:
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


def _entry(file: MappedFile, number: int) -> Entry:
    start = number * CONSUME_QUEUE_ENTRY_SIZE
    end = start + CONSUME_QUEUE_ENTRY_SIZE
    with contextlib.suppress(FileNotFoundError):  # its queue was deleted meanwhile
        _bring_in(file, start, end)
    return Entry.unpack(file.read(start, end))


def _segment_by_time(
    queue: ConsumeQueue, log: CommitLog, timestamp: int, end: int
) -> MappedFile | None:
    """Return the first segment with a message stored at or after the time.

    Or the one before it if its last message is at least as near, or the newest if all messages
    are older. RocketMQ compares modification times of files instead. The result is the same
    while a queue grows, but not after its files were copied or rebuilt.
    """
    files = [file for file in queue.segments.files if file.base < end * CONSUME_QUEUE_ENTRY_SIZE]

    def stored(file: MappedFile, number: int) -> int:
        entry = _entry(file, number)
        time = store_timestamp(log, entry.physical_offset, entry.size)
        return -1 if time is None else time  # a record that left the log is older than any other

    def last(file: MappedFile) -> int:
        length = min(end * CONSUME_QUEUE_ENTRY_SIZE - file.base, file.size)
        return stored(file, length // CONSUME_QUEUE_ENTRY_SIZE - 1)

    number = bisect_left(files, True, key=lambda file: last(file) >= timestamp)
    if number == len(files):
        return files[-1] if files else None
    if number and 0 <= timestamp - last(files[number - 1]) <= stored(files[number], 0) - timestamp:
        return files[number - 1]
    return files[number]
