"""Many records of a queue at once, read by a thread: for those who read whole topics.

A usual pull takes 32 messages and is served on the loop from mapped memory. A reader that
asks for megabytes would hold the loop up for milliseconds, so its records are read by a
thread with `pread`, which leaves the interpreter's lock to others while the kernel copies
and while the disk is waited for.

`plan_bulk` looks, on the loop, at where to read; what it returns runs on any thread and
touches no table. What it finds unusual (segments deleted meanwhile, entries that are not in
order) it leaves to the usual way: `read` returns None then.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from pyromq.base.descriptors import opened
from pyromq.protocol.message.bulk import Longs
from pyromq.protocol.message.units import CONSUME_QUEUE_DTYPE, CONSUME_QUEUE_ENTRY_SIZE
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.queues.consume_queue import ConsumeQueue

#: Entries that one read looks at.
MAX_BULK_COUNT: Final = 65_536
#: Records that lie closer together are read in one piece, with what lies between them.
_GAP: Final = 32 * 1024
#: So many pieces in one read at most: each is a call to the kernel.
_MAX_PIECES: Final = 512
#: From this length on a piece is taken by a view.
_LONG_PIECE: Final = 4096

_ENTRY: Final = np.dtype(CONSUME_QUEUE_DTYPE)


class BulkRecords(NamedTuple):
    """Whole records, one behind the other."""

    records: bytes
    messages: int


class BulkRead(NamedTuple):
    """Where the entries of a queue stand, and what of the log may be read."""

    queue_file: Path
    start: int
    entries: int
    max_bytes: int
    log_files: tuple[MappedFile, ...]
    log_end: int

    def read(self) -> BulkRecords | None:
        """The records; None: the usual way must be taken. On any thread."""
        data = _read(self.queue_file, self.start, self.entries * CONSUME_QUEUE_ENTRY_SIZE)
        entries = np.frombuffer(data, _ENTRY, len(data) // CONSUME_QUEUE_ENTRY_SIZE)
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
        breaks = np.flatnonzero(physical[1:] - ends[:-1] > _GAP) + 1
        if breaks.size >= _MAX_PIECES:
            count = int(breaks[_MAX_PIECES - 1])
            breaks = breaks[: _MAX_PIECES - 1]
            physical, sizes, ends = physical[:count], sizes[:count], ends[:count]
        records = b"".join(_read_pieces(file.path, physical - file.base, ends - file.base, breaks))
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
    """What to read for the messages from `offset` on, which the queue has. On the loop."""
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


def _read_pieces(path: Path, starts: Longs, ends: Longs, breaks: Longs) -> list[bytes | memoryview]:
    """Records at these places of a file; what lies before a break is read in one piece."""
    pieces: list[bytes | memoryview] = []
    first = 0
    for behind in (*breaks.tolist(), starts.size):
        start = int(starts[first])
        data = _read(path, start, int(ends[behind - 1]) - start)
        # Neighbours stay together; what lies between the others falls away.
        cuts = np.flatnonzero(starts[first + 1 : behind] != ends[first : behind - 1])
        begins = [0, *(starts[first + 1 : behind][cuts] - start).tolist()]
        stops = [*(ends[first:behind][cuts] - start).tolist(), len(data)]
        # Long pieces are copied once less; for short ones a view costs more than a copy.
        are_long = cuts.size and len(begins) * _LONG_PIECE < len(data)
        source = memoryview(data) if are_long else data
        pieces += [source[a:b] for a, b in zip(begins, stops, strict=True)]
        first = behind
    return pieces


def _read(path: Path, start: int, size: int) -> bytes:
    try:
        with opened(path, os.O_RDONLY) as descriptor:
            return os.pread(descriptor, size, start)
    except FileNotFoundError:
        return b""  # expired meanwhile
