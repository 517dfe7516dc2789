"""A consume queue: for one topic and queue id, where each message stands in the log.

Entries of one chunk gather in `pending` and reach the mapped segment when the chunk
is sealed, as in `commit_log`. The queue also holds what is constant for a put to it:
its topic's bytes in a record and a record's fixed size.

Invariants
1. Entry n of the stream is the message with queue offset n; `next_offset` counts
   those in `pending` too, and is what the next message gets.
2. An entry is written after its record is: it never points at or past the log's
   written mark.
3. `next_offset` < `room` before a put: the blocks for its entry are reserved, and its file is
   mapped. It stays so until the entry is written; a file that is unmapped later takes the room
   with it.
4. With an `extension`, `pending` holds tags codes, and the segments addresses of units.

Owned by the loop's thread; `sync` is called by the flush thread.
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from pyromq.base.memo import Memo
from pyromq.protocol.message.record import HEAD_SIZE_V4, QueueOffset, topic_part
from pyromq.protocol.message.units import (
    CONSUME_QUEUE_DTYPE,
    CONSUME_QUEUE_ENTRY,
    CONSUME_QUEUE_ENTRY_SIZE,
    MAX_EXTENSION_ADDRESS,
    PRE_BLANK_ENTRY,
)
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.log.open_files import OpenFiles
from pyromq.store.log.segments import Segments
from pyromq.store.queues.extension import ConsumeQueueExt
from pyromq.store.results import PutError, PutStatus, StoreError

logger = logging.getLogger(__name__)

_FIRST_RESERVE: Final = 4096
_MAX_RESERVE: Final = 256 * 1024
#: The size that a pre-blank entry has.
_PRE_BLANK_SIZE: Final = 0x7FFFFFFF
#: In so many files at the end the last address of the extension is looked for.
_ADDRESS_FILES: Final = 3
_ENTRY: Final = np.dtype(CONSUME_QUEUE_DTYPE)

iter_entries = CONSUME_QUEUE_ENTRY.iter_unpack


def first_physical_offset(entries: bytes) -> int:
    """Where the record of the first of these entries stands."""
    return int.from_bytes(entries[:8], "big", signed=True)


def span_of(entries: bytes) -> tuple[int, int]:
    """Where the first of these entries' records begins and the last one's ends."""
    last, size, _ = CONSUME_QUEUE_ENTRY.unpack(entries[-CONSUME_QUEUE_ENTRY_SIZE:])
    return first_physical_offset(entries), last + size


def split_entries(entries: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Physical offsets and sizes of these entries."""
    fields = _runs[len(entries) // CONSUME_QUEUE_ENTRY_SIZE](entries)
    return fields[0::3], fields[1::3]


#: Unpack so many entries at once.
_runs: Memo[int, Callable[[bytes], tuple[int, ...]]] = Memo(
    lambda count: struct.Struct(">" + CONSUME_QUEUE_ENTRY.format[1:] * count).unpack
)


class ConsumeQueue:
    """The entries of one queue."""

    __slots__ = (
        "closed",
        "counted",
        "dirty",
        "extension",
        "fixed_size",
        "min_offset",
        "next_offset",
        "pending",
        "queue_id",
        "room",
        "segments",
        "synced_below",
        "topic",
        "topic_part",
        "watched",
    )

    def __init__(
        self,
        directory: Path,
        segment_size: int,
        topic: str,
        queue_id: int,
        head_size: int = HEAD_SIZE_V4,
        extension: ConsumeQueueExt | None = None,
        open_files: OpenFiles | None = None,
    ) -> None:
        self.topic = topic
        self.extension = extension
        self.queue_id = queue_id
        self.topic_part = topic_part(topic)
        #: Bytes of a record from an IPv4 client beside its body and properties.
        self.fixed_size = head_size + len(self.topic_part) + 2
        self.segments = Segments(
            directory / topic / str(queue_id), segment_size, open_files=open_files, holder=self
        )
        self.pending = bytearray()
        self.next_offset = 0
        self.min_offset = 0
        #: Queue offsets below this one have their place reserved.
        self.room = 0
        #: Segments that begin below this position are full and on the disk.
        self.synced_below = 0
        #: Entries before this offset are in the statistics.
        self.counted = 0
        #: Its topic is being deleted: no message is taken.
        self.closed = False
        #: Written since the last sync.
        self.dirty = False
        #: Somebody waits for the next message of this queue.
        self.watched = False

    def extend(self, count: int = 1) -> None:
        """Reserve the place of the next `count` entries, and have it mapped; else PutError."""
        if self.closed:
            raise PutError(
                PutStatus.SERVICE_NOT_AVAILABLE, f"topic {self.topic} is being deleted; send again"
            )
        position = self.next_offset * CONSUME_QUEUE_ENTRY_SIZE
        end = position + count * CONSUME_QUEUE_ENTRY_SIZE
        try:
            while position < end:
                file = self.segments.find(position) or self._create(position)
                start = position - file.base
                if min(end - file.base, file.size) > file.reserved:
                    step = min(max(_FIRST_RESERVE, start), _MAX_RESERVE)
                    file.reserve(max(end - file.base, start + step))
                file.ensure_mapped()
                position = file.base + file.size
        except OSError as error:
            raise PutError(
                PutStatus.CREATE_MAPEDFILE_FAILED, f"{self.segments.directory}: {error}"
            ) from error
        self.room = (file.base + file.reserved) // CONSUME_QUEUE_ENTRY_SIZE

    def let_go(self) -> bool:
        """Let a file be unmapped, unless entries are pending: the next put asks for it again."""
        if self.pending:
            return False
        self.room = 0
        return True

    def write_pending(self) -> None:
        """Copy the gathered entries into their segments."""
        pending = self.pending
        if self.extension is not None:
            self.extension.take_over(pending)
        position = self.next_offset * CONSUME_QUEUE_ENTRY_SIZE - len(pending)
        while pending:
            file = self.segments.find(position)
            assert file is not None
            start = position - file.base
            fitting = file.size - start
            if len(pending) <= fitting:
                file.write(start, pending)
                pending.clear()
            else:
                file.write(start, pending[:fitting])
                del pending[:fitting]
                position += fitting

    def refuse_puts(self) -> None:
        """Take no message any more. Nothing is pending when this is called."""
        self.closed = True
        self.room = 0

    def append_many(self, entries: bytes) -> None:
        """Add entries as they stand in a segment, when they are made from the log."""
        count = len(entries) // CONSUME_QUEUE_ENTRY_SIZE
        if self.next_offset + count > self.room:
            self.extend(count)
        self.pending += entries
        self.next_offset += count

    def skip_to(self, offset: QueueOffset) -> None:
        """Go on with `offset`: the messages before it are no longer in the log."""
        missing = offset - self.next_offset
        if self.segments.files:
            logger.warning(
                "%s queue %d: %d entries before offset %d have no message",
                self.topic,
                self.queue_id,
                missing,
                offset,
            )
            if missing * CONSUME_QUEUE_ENTRY_SIZE > self.segments.segment_size:
                raise StoreError(
                    f"{self.segments.directory}: offset {offset} follows {self.next_offset}; "
                    "rebuild the consume queues from the log"
                )
            self.extend(missing)
            self.pending += PRE_BLANK_ENTRY * missing
        self.next_offset = offset
        self.room = 0

    def read(self, offset: int, count: int) -> bytes:
        """The entries from queue offset `offset` on, `count` at most, of one segment."""
        position = offset * CONSUME_QUEUE_ENTRY_SIZE
        file = self.segments.find(position)
        if file is None:
            return b""
        end = min(offset + count, self.next_offset) * CONSUME_QUEUE_ENTRY_SIZE
        return file.read(position - file.base, max(position, end) - file.base)

    def place(self, offset: int, count: int) -> tuple[MappedFile, int, int] | None:
        """Where these entries stand, as far as `read` would go: file, begin and end."""
        position = offset * CONSUME_QUEUE_ENTRY_SIZE
        file = self.segments.find(position)
        if file is None:
            return None
        start = position - file.base
        return file, start, min(start + count * CONSUME_QUEUE_ENTRY_SIZE, file.size)

    def segment_after(self, offset: int) -> int:
        """The first queue offset of the segment behind the one of `offset`."""
        count = self.segments.segment_size // CONSUME_QUEUE_ENTRY_SIZE
        return offset - offset % count + count

    def entry(self, offset: int) -> tuple[int, int, int] | None:
        """Physical offset, size and tags code of one message; None outside the queue."""
        if not self.min_offset <= offset < self.next_offset:
            return None
        data = self.read(offset, 1)
        if data and self.extension is not None:
            data = self.extension.resolve(data)
        return CONSUME_QUEUE_ENTRY.unpack(data) if data else None

    def load(self) -> None:
        """Find the files that are there; raises StoreError where they do not fit together."""
        self.segments.load()
        if self.extension is not None:
            self.extension.segments.load()

    def recover(self) -> None:
        """Find the end of the entries in the files that `load` found."""
        self.next_offset = self.segments.first_offset // CONSUME_QUEUE_ENTRY_SIZE
        self.room = 0
        for file in reversed(self.segments.files):
            count = _first(file, file.size, lambda entry: entry[0] < 0 or entry[1] <= 0)
            if count:
                self.next_offset = file.base // CONSUME_QUEUE_ENTRY_SIZE + count
                break
        if self.extension is not None:
            self.extension.recover(self._last_address())

    def truncate(self, physical_offset: int) -> None:
        """Drop the entries whose records end behind `physical_offset`."""
        self.room = 0
        for file in reversed(self.segments.files):
            first = file.base // CONSUME_QUEUE_ENTRY_SIZE
            if first > self.next_offset:
                continue  # made ahead of its first entry
            used = (self.next_offset - first) * CONSUME_QUEUE_ENTRY_SIZE
            keep = _first(
                file,
                used,
                lambda entry: entry[1] != _PRE_BLANK_SIZE and entry[0] + entry[1] > physical_offset,
            )
            self.next_offset = first + keep
            # Up to the file's end: nothing stale may be taken for an entry later.
            file.empty_from(keep * CONSUME_QUEUE_ENTRY_SIZE)
            if keep:
                break
        end = self.next_offset * CONSUME_QUEUE_ENTRY_SIZE
        self.segments.drop_after(end)
        self.synced_below = end - end % self.segments.segment_size
        if self.extension is None:
            return
        if end > self.segments.first_offset:
            self.extension.truncate(self._last_address())
        else:
            self.extension.delete()

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """The first entry that points into what is left of the log is the first message."""
        for file in self.segments.files:
            first = file.base // CONSUME_QUEUE_ENTRY_SIZE
            count = min(self.next_offset - first, file.size // CONSUME_QUEUE_ENTRY_SIZE)
            alive = _first(
                file,
                max(0, count) * CONSUME_QUEUE_ENTRY_SIZE,
                lambda entry: entry[1] != _PRE_BLANK_SIZE and entry[0] >= min_physical_offset,
            )
            if alive < count:
                self.min_offset = first + alive
                return
        self.min_offset = self.next_offset

    def take_expired(self, min_physical_offset: int) -> list[MappedFile]:
        """The segments all of whose messages lie before that offset of the log.

        They are no longer part of the queue now, and mapped until nobody holds them. The
        last one always stays. Nothing is pending when this is called.
        """
        expired = []
        end = self.next_offset * CONSUME_QUEUE_ENTRY_SIZE
        while len(self.segments.files) > 1:
            file = self.segments.files[0]
            last = file.read(file.size - CONSUME_QUEUE_ENTRY_SIZE, file.size)
            # One that is not full has no last entry, whatever stands in its place.
            if (
                file.base + file.size > end
                or CONSUME_QUEUE_ENTRY.unpack(last)[0] >= min_physical_offset
            ):
                break
            expired.append(self.segments.take_first())
        self.correct_min_offset(min_physical_offset)
        return expired

    def take_expired_extension(self) -> list[MappedFile]:
        """The same of the extension, after the queue's own."""
        entry = self.read(self.min_offset, 1)
        if self.extension is None or not entry:
            return []
        address = CONSUME_QUEUE_ENTRY.unpack(entry)[2]
        return self.extension.take_expired(address) if address <= MAX_EXTENSION_ADDRESS else []

    def last_physical_offset(self) -> int:
        """The end of the record that the last entry points at; 0 for an empty queue."""
        entry = self.entry(self.next_offset - 1)
        return entry[0] + entry[1] if entry and entry[1] != _PRE_BLANK_SIZE else 0

    def entries(self) -> Iterator[tuple[int, int, int]]:
        """All entries as they stand in the files, oldest first."""
        for file in self.segments.files:
            first = file.base // CONSUME_QUEUE_ENTRY_SIZE
            count = max(0, self.next_offset - first)
            yield from iter_entries(file.read(0, min(count * CONSUME_QUEUE_ENTRY_SIZE, file.size)))

    def sync(self) -> None:
        """Wait until all that was written is on the disk."""
        if self.extension is not None:
            self.extension.sync()
        for file in list(self.segments.files):
            if file.base < self.synced_below:
                continue
            try:
                full = any(file.read(file.size - CONSUME_QUEUE_ENTRY_SIZE, file.size))
                file.sync()
            except FileNotFoundError:
                if file in self.segments.files:
                    raise
                continue  # it expired meanwhile
            if full:
                self.synced_below = file.base + file.size

    def drop_unused(self) -> None:
        """Remove segments without an entry; nothing may be pending.

        RocketMQ takes the last segment for one that has an entry, even if it is zeros, and
        would then go on behind it. An only one stays when its name says where the queue is.
        """
        files = self.segments.files
        end = self.next_offset * CONSUME_QUEUE_ENTRY_SIZE
        while files and files[-1].base >= end and (len(files) > 1 or files[-1].base == 0):
            files.pop().delete()
        self.room = 0

    def close(self) -> None:
        """Write what is pending and unmap."""
        if self.pending:
            self.write_pending()
        self.room = 0
        self.segments.close()
        if self.extension is not None:
            self.extension.segments.close()

    def delete(self) -> None:
        """Remove the queue's files."""
        self.pending.clear()
        self.room = self.next_offset = self.min_offset = self.synced_below = self.counted = 0
        self.segments.delete()
        if self.extension is not None:
            self.extension.delete()

    def _last_address(self) -> int | None:
        """The last address of the extension in the last files; None without one."""
        for file in reversed(self.segments.files[-_ADDRESS_FILES:]):
            used = min(self.next_offset * CONSUME_QUEUE_ENTRY_SIZE - file.base, file.size)
            if used <= 0:
                continue
            # Mostly the very last one has it.
            for start in (used - CONSUME_QUEUE_ENTRY_SIZE, 0):
                codes = np.frombuffer(file.read(start, used), _ENTRY)["tags_code"]
                found = np.flatnonzero(codes <= MAX_EXTENSION_ADDRESS)
                if found.size:
                    return int(codes[found[-1]])
        return None

    def _create(self, position: int) -> MappedFile:
        """The segment for `position`; blank entries stand before a queue's first one."""
        size = self.segments.segment_size
        file = self.segments.create_next(position - position % size)
        length = position - file.base
        if length:
            file.reserve(length)
            file.write(0, PRE_BLANK_ENTRY * (length // CONSUME_QUEUE_ENTRY_SIZE))
            self.min_offset = self.next_offset
        return file


def _first(file: MappedFile, used: int, holds: Callable[[tuple[int, int, int]], bool]) -> int:
    """The number of the first entry below `used` bytes for which `holds`, else how many there are.

    By bisection: physical offsets only grow along a queue, so what holds for an entry
    holds for all behind it.
    """

    def test(number: int) -> bool:
        start = number * CONSUME_QUEUE_ENTRY_SIZE
        entry = CONSUME_QUEUE_ENTRY.unpack(file.read(start, start + CONSUME_QUEUE_ENTRY_SIZE))
        return holds(entry)

    return bisect_left(range(used // CONSUME_QUEUE_ENTRY_SIZE), True, key=test)
