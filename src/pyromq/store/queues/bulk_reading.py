"""Read megabytes of a queue on a worker thread, for consumers of whole topics.

An ordinary pull takes 32 messages and is served on the loop from mapped memory. Megabytes would
block the loop for milliseconds, so a thread reads them with `pread`, which releases the GIL while
the kernel copies or waits for the disk.

`plan_bulk` runs on the loop and decides what to read; `BulkRead.read` runs on any thread and
touches no shared table. It returns None in unusual cases (segments deleted meanwhile, entries
out of order), which an ordinary pull handles.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from pyromq.base.descriptors import opened
from pyromq.base.sizes import KIB
from pyromq.protocol.message.bulk import Longs
from pyromq.protocol.message.unit_arrays import CONSUME_QUEUE_DTYPE
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY_SIZE
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.queues.consume_queue import ConsumeQueue

#: Maximum number of entries per bulk read.
MAX_BULK_COUNT: Final = 65_536
#: Records at most this far apart are read by one call, with the bytes in between.
_MAX_GAP: Final = 32 * KIB
#: Maximum number of system calls per bulk read.
_MAX_CALLS: Final = 512
#: Below this size a copy of a record is cheaper than a view.
_MIN_VIEW_SIZE: Final = 4096


class BulkRecords(NamedTuple):
    """Whole records, concatenated."""

    records: bytes
    messages: int


class BulkRead(NamedTuple):
    """A plan: where the entries are, and which part of the log may be read."""

    queue_file: Path
    start: int
    entries: int
    max_bytes: int
    log_files: tuple[MappedFile, ...]
    log_end: int

    def read(self) -> BulkRecords | None:
        """Return the records, or None if an ordinary pull must serve them. Any thread."""
        data = _read(self.queue_file, self.start, self.entries * CONSUME_QUEUE_ENTRY_SIZE)
        entries = np.frombuffer(data, CONSUME_QUEUE_DTYPE, len(data) // CONSUME_QUEUE_ENTRY_SIZE)
        if not entries.size:
            return None
        physical = entries["physical_offset"].astype(np.int64)
        sizes = entries["size"].astype(np.int64)
        file = self._file_of(int(physical[0]))
        if file is None:
            return None
        ends = physical + sizes
        good = (ends <= min(file.base + file.size, self.log_end)) & (sizes > 0)
        good[1:] &= physical[1:] >= ends[:-1]
        good[1:] &= sizes.cumsum()[1:] <= self.max_bytes
        count = int(good.argmin()) if not good.all() else good.size
        if not count:
            return None
        physical, sizes, ends = physical[:count], sizes[:count], ends[:count]
        breaks = np.flatnonzero(physical[1:] - ends[:-1] > _MAX_GAP) + 1
        if breaks.size >= _MAX_CALLS:
            count = int(breaks[_MAX_CALLS - 1])
            breaks = breaks[: _MAX_CALLS - 1]
            physical, sizes, ends = physical[:count], sizes[:count], ends[:count]
        records = b"".join(_read_records(file.path, physical - file.base, ends - file.base, breaks))
        return BulkRecords(records, count) if len(records) == int(sizes.sum()) else None

    def _file_of(self, physical: int) -> MappedFile | None:
        if not self.log_files:
            return None
        first = self.log_files[0]
        index = (physical - first.base) // first.size
        return self.log_files[index] if 0 <= index < len(self.log_files) else None


def plan_bulk(
    queue: ConsumeQueue, log: CommitLog, offset: int, max_count: int, max_bytes: int
) -> BulkRead | None:
    """Plan a read from `offset` on, which the queue must have. Loop only."""
    count = min(max_count, MAX_BULK_COUNT, queue.next_offset - offset)
    place = queue.place(offset, count)
    if place is None or count <= 0:
        return None
    file, start, end = place
    return BulkRead(
        file.path,
        start,
        (end - start) // CONSUME_QUEUE_ENTRY_SIZE,
        max_bytes,
        tuple(log.segments.files),
        log.committed[0],
    )


def _read_records(
    path: Path, starts: Longs, ends: Longs, breaks: Longs
) -> list[bytes | memoryview]:
    """Return the records at these positions of a file, with one call up to each break."""
    records: list[bytes | memoryview] = []
    first = 0
    for after in (*breaks.tolist(), starts.size):
        start = int(starts[first])
        data = _read(path, start, int(ends[after - 1]) - start)
        # Adjacent records stay together; bytes between the others are dropped.
        cuts = np.flatnonzero(starts[first + 1 : after] != ends[first : after - 1])
        begins = [0, *(starts[first + 1 : after][cuts] - start).tolist()]
        stops = [*(ends[first:after][cuts] - start).tolist(), len(data)]
        are_large = cuts.size and len(begins) * _MIN_VIEW_SIZE < len(data)
        source = memoryview(data) if are_large else data
        records += [source[a:b] for a, b in zip(begins, stops, strict=True)]
        first = after
    return records


def _read(path: Path, start: int, size: int) -> bytes:
    try:
        with opened(path, os.O_RDONLY) as descriptor:
            return os.pread(descriptor, size, start)
    except FileNotFoundError:
        return b""  # expired meanwhile
