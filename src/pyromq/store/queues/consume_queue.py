"""A consume queue: the physical offset of each message of one topic and queue id.

`append` gathers entries in memory, `write_pending` copies them to the mapped segment when the
chunk is sealed, as in `commit_log`. The queue also holds the constants of a put: the topic's
bytes in a record, and a record's fixed size.

Invariants
1. Entry n of the stream is the message with queue offset n. `next_offset` includes pending
   entries and is the offset of the next message.
2. An entry is written after its record, so it never points past the log's `written` mark.
3. The caller makes sure that `next_offset` is below `room` before it appends: then the entry's
   disk blocks are reserved and its file is mapped. The file stays mapped until the entry is
   written; if it is unmapped later, `room` is reset.
4. With an `extension`, pending entries hold tags codes, written ones addresses of units.

Owned by the loop's thread; the flush thread calls `sync`.
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
from pyromq.base.sizes import KIB
from pyromq.protocol.message.record import HEAD_SIZE_V4, topic_part
from pyromq.protocol.message.unit_arrays import CONSUME_QUEUE_DTYPE
from pyromq.protocol.message.units import (
    CONSUME_QUEUE_ENTRY,
    CONSUME_QUEUE_ENTRY_SIZE,
    ENTRY_PHYSICAL_OFFSET,
    MAX_EXTENSION_ADDRESS,
    PRE_BLANK_ENTRY,
    Entry,
)
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.log.open_files import OpenFiles
from pyromq.store.log.segments import Segments
from pyromq.store.queues.extension import ConsumeQueueExt
from pyromq.store.results import PutError, PutStatus, StoreError

logger = logging.getLogger(__name__)

_PAGE: Final = 4 * KIB
#: Bytes to reserve at a time: the first step, doubled up to the last.
_MIN_RESERVE: Final = 4 * KIB
_MAX_RESERVE: Final = 256 * KIB
#: Files at the queue's end that are searched for an address of the extension.
_MAX_SEARCHED_FILES: Final = 3

iter_entries = CONSUME_QUEUE_ENTRY.iter_unpack


def first_physical_offset(entries: bytes) -> int:
    """Return the physical offset in the first of these entries."""
    return int.from_bytes(entries[ENTRY_PHYSICAL_OFFSET], "big", signed=True)


def span_of(entries: bytes) -> tuple[int, int]:
    """Return where the record of the first entry begins and that of the last one ends."""
    last, size, _ = CONSUME_QUEUE_ENTRY.unpack(entries[-CONSUME_QUEUE_ENTRY_SIZE:])
    return first_physical_offset(entries), last + size


def split_entries(entries: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the physical offsets and the sizes of these entries."""
    fields = _unpackers[len(entries) // CONSUME_QUEUE_ENTRY_SIZE](entries)
    return fields[0::3], fields[1::3]


#: Unpackers by number of entries.
_unpackers: Memo[int, Callable[[bytes], tuple[int, ...]]] = Memo(
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
        "synced_to",
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
        #: Size of a record from an IPv4 client without its body and properties.
        self.fixed_size = head_size + len(self.topic_part) + 2
        self.segments = Segments(
            directory / topic / str(queue_id), segment_size, open_files=open_files, holder=self
        )
        self.pending = bytearray()
        self.next_offset = 0
        self.min_offset = 0
        #: Room is reserved for entries below this queue offset.
        self.room = 0
        #: Segments that begin below this position are full and synced.
        self.synced_below = 0
        #: Entries below this position were synced, or found at the start.
        self.synced_to = 0
        #: Entries below this offset are in the statistics.
        self.counted = 0
        #: The topic is being deleted and puts are refused.
        self.closed = False
        #: Written to since the flush thread last took it.
        self.dirty = False
        #: A long poll waits for the next message of this queue.
        self.watched = False

    def extend(self, count: int = 1) -> None:
        """Reserve and map room for the next `count` entries. Raises PutError."""
        if self.closed:
            raise PutError(
                PutStatus.SERVICE_NOT_AVAILABLE, f"topic {self.topic} is being deleted; retry later"
            )
        position = self.next_offset * CONSUME_QUEUE_ENTRY_SIZE
        end = position + count * CONSUME_QUEUE_ENTRY_SIZE
        try:
            while position < end:
                file = self.segments.find(position) or self._create(position)
                start = position - file.base
                if min(end - file.base, file.size) > file.reserved:
                    step = min(max(_MIN_RESERVE, start), _MAX_RESERVE)
                    file.reserve(max(end - file.base, start + step))
                file.ensure_mapped()
                position = file.base + file.size
        except OSError as error:
            raise PutError(
                PutStatus.CREATE_MAPEDFILE_FAILED, f"{self.segments.directory}: {error}"
            ) from error
        self.room = (file.base + file.reserved) // CONSUME_QUEUE_ENTRY_SIZE

    def let_go(self) -> bool:
        """Allow a file to be unmapped, unless entries are pending. The next put maps it again."""
        if self.pending:
            return False
        self.room = 0
        return True

    def append(self, entries: bytes, count: int = 1) -> None:
        """Gather entries for which the caller has made room (invariant 3)."""
        self.pending += entries
        self.next_offset += count

    def write_pending(self) -> bool:
        """Copy the pending entries to their segments; return whether the queue became dirty."""
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
        # After the write: the flush thread clears the flag before it syncs.
        if self.dirty:
            return False
        self.dirty = True
        return True

    def refuse_puts(self) -> None:
        """Refuse all further messages. Nothing may be pending."""
        self.closed = True
        self.room = 0

    def append_many(self, entries: bytes) -> None:
        """Make room for entries that were built from the log, and gather them."""
        count = len(entries) // CONSUME_QUEUE_ENTRY_SIZE
        if self.next_offset + count > self.room:
            self.extend(count)
        self.append(entries, count)

    def skip_to(self, offset: int) -> None:
        """Continue at `offset`: the messages before it are no longer in the log."""
        missing = offset - self.next_offset
        if self.segments.files:
            logger.warning(
                "consume queue %s/%d lacks %d entries before offset %d: filled with blank ones",
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
        """Return at most `count` entries from queue offset `offset` on, of one segment."""
        position = offset * CONSUME_QUEUE_ENTRY_SIZE
        file = self.segments.find(position)
        if file is None:
            return b""
        end = min(offset + count, self.next_offset) * CONSUME_QUEUE_ENTRY_SIZE
        return file.read(position - file.base, max(position, end) - file.base)

    def place(self, offset: int, count: int) -> tuple[MappedFile, int, int] | None:
        """Return the file that holds these entries, and their begin and end in it."""
        position = offset * CONSUME_QUEUE_ENTRY_SIZE
        file = self.segments.find(position)
        if file is None:
            return None
        start = position - file.base
        return file, start, min(start + count * CONSUME_QUEUE_ENTRY_SIZE, file.size)

    def segment_after(self, offset: int) -> int:
        """Return the first queue offset of the segment after that of `offset`."""
        count = self.segments.segment_size // CONSUME_QUEUE_ENTRY_SIZE
        return offset - offset % count + count

    def entry(self, offset: int) -> Entry | None:
        """Return the entry of one message, or None outside the queue."""
        if not self.min_offset <= offset < self.next_offset:
            return None
        data = self.read(offset, 1)
        if data and self.extension is not None:
            data = self.extension.resolve(data)
        return Entry.unpack(data) if data else None

    def load(self) -> None:
        """Find the queue's files. Raises StoreError if they do not fit together."""
        self.segments.load()
        if self.extension is not None:
            self.extension.segments.load()

    def recover(self) -> None:
        """Find the end of the entries in the loaded files."""
        self.next_offset = self.segments.first_offset // CONSUME_QUEUE_ENTRY_SIZE
        self.room = 0
        for file in reversed(self.segments.files):
            count = _first(
                file, file.size, lambda entry: entry.physical_offset < 0 or entry.size <= 0
            )
            if count:
                self.next_offset = file.base // CONSUME_QUEUE_ENTRY_SIZE + count
                break
        if self.extension is not None:
            self.extension.recover(self._last_address())

    def truncate(self, physical_offset: int) -> None:
        """Drop the entries whose records end after `physical_offset`."""
        self.room = 0
        for file in reversed(self.segments.files):
            first = file.base // CONSUME_QUEUE_ENTRY_SIZE
            if first > self.next_offset:
                continue  # created ahead of its first entry
            used = (self.next_offset - first) * CONSUME_QUEUE_ENTRY_SIZE
            keep = _first(
                file,
                used,
                lambda entry: not entry.is_pre_blank and entry.end > physical_offset,
            )
            self.next_offset = first + keep
            # To the file's end: a later start must not take stale bytes for entries.
            file.empty_from(keep * CONSUME_QUEUE_ENTRY_SIZE)
            if keep:
                break
        end = self.next_offset * CONSUME_QUEUE_ENTRY_SIZE
        self.segments.drop_after(end)
        self.synced_below = end - end % self.segments.segment_size
        self.synced_to = min(self.synced_to, end)
        if self.extension is None:
            return
        if end > self.segments.first_offset:
            self.extension.truncate(self._last_address())
        else:
            self.extension.delete()

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Set `min_offset` to the first entry whose record is still in the log."""
        for file in self.segments.files:
            first = file.base // CONSUME_QUEUE_ENTRY_SIZE
            count = min(self.next_offset - first, file.size // CONSUME_QUEUE_ENTRY_SIZE)
            alive = _first(
                file,
                max(0, count) * CONSUME_QUEUE_ENTRY_SIZE,
                lambda entry: (
                    not entry.is_pre_blank and entry.physical_offset >= min_physical_offset
                ),
            )
            if alive < count:
                self.min_offset = first + alive
                return
        self.min_offset = self.next_offset

    def take_expired(self, min_physical_offset: int) -> list[MappedFile]:
        """Detach and return the segments whose messages all lie before that physical offset.

        They stay mapped until the last reference is dropped. The queue always keeps its last
        segment. Nothing may be pending.
        """
        expired = []
        end = self.next_offset * CONSUME_QUEUE_ENTRY_SIZE
        while len(self.segments.files) > 1:
            file = self.segments.files[0]
            last = file.read(file.size - CONSUME_QUEUE_ENTRY_SIZE, file.size)
            # A segment that is not full has no last entry, whatever the bytes say.
            is_full = file.base + file.size <= end
            if not is_full or first_physical_offset(last) >= min_physical_offset:
                break
            expired.append(self.segments.take_first())
        self.correct_min_offset(min_physical_offset)
        return expired

    def take_expired_extension(self) -> list[MappedFile]:
        """Detach and return expired segments of the extension; call `take_expired` first."""
        data = self.read(self.min_offset, 1)
        if self.extension is None or not data:
            return []
        address = Entry.unpack(data).tags_code
        return self.extension.take_expired(address) if address <= MAX_EXTENSION_ADDRESS else []

    def last_physical_offset(self) -> int:
        """Return the end of the record that the last entry points at; 0 for an empty queue."""
        entry = self.entry(self.next_offset - 1)
        return entry.end if entry and not entry.is_pre_blank else 0

    def entries(self) -> Iterator[Entry]:
        """Yield all written entries, oldest first, with an extension's addresses as they are."""
        for file in self.segments.files:
            first = file.base // CONSUME_QUEUE_ENTRY_SIZE
            count = max(0, self.next_offset - first)
            data = file.read(0, min(count * CONSUME_QUEUE_ENTRY_SIZE, file.size))
            yield from map(Entry._make, iter_entries(data))

    def sync(self) -> None:
        """Fsync everything that was written."""
        if self.extension is not None:
            self.extension.sync()
        end = self.next_offset * CONSUME_QUEUE_ENTRY_SIZE
        for file in list(self.segments.files):
            # A file without entries may have no blocks: on a full tmpfs, a read would be a SIGBUS.
            if file.base < self.synced_below or file.base >= end:
                continue
            try:
                full = any(file.read(file.size - CONSUME_QUEUE_ENTRY_SIZE, file.size))
                file.sync()
            except FileNotFoundError:
                if file in self.segments.files:
                    raise
                continue  # expired meanwhile
            if full:
                self.synced_below = file.base + file.size
        self.synced_to = end

    @property
    def dirty_pages(self) -> int:
        """Return how many pages of entries have been completed since the last sync."""
        end = self.next_offset * CONSUME_QUEUE_ENTRY_SIZE
        return end // _PAGE - self.synced_to // _PAGE

    def drop_unused(self) -> None:
        """Remove segments without entries. Nothing may be pending.

        RocketMQ assumes that the last segment has an entry, even if it is all zeros, and would
        continue after it. A sole segment stays if its name tells where the queue begins.
        """
        files = self.segments.files
        end = self.next_offset * CONSUME_QUEUE_ENTRY_SIZE
        while files and files[-1].base >= end and (len(files) > 1 or files[-1].base == 0):
            files.pop().delete()
        self.room = 0

    def close(self) -> None:
        """Write pending entries and unmap the files."""
        if self.pending:
            self.write_pending()
        self.room = 0
        self.segments.close()
        if self.extension is not None:
            self.extension.segments.close()

    def delete(self) -> None:
        """Remove the queue's files."""
        self.pending.clear()
        self.room = self.next_offset = self.min_offset = self.synced_below = 0
        self.synced_to = self.counted = 0
        self.segments.delete()
        if self.extension is not None:
            self.extension.delete()

    def _last_address(self) -> int | None:
        """Return the last address of the extension in the last files, or None."""
        for file in reversed(self.segments.files[-_MAX_SEARCHED_FILES:]):
            used = min(self.next_offset * CONSUME_QUEUE_ENTRY_SIZE - file.base, file.size)
            if used <= 0:
                continue
            # Usually the very last entry has it.
            for start in (used - CONSUME_QUEUE_ENTRY_SIZE, 0):
                codes = np.frombuffer(file.read(start, used), CONSUME_QUEUE_DTYPE)["tags_code"]
                found = np.flatnonzero(codes <= MAX_EXTENSION_ADDRESS)
                if found.size:
                    return int(codes[found[-1]])
        return None

    def _create(self, position: int) -> MappedFile:
        """Create the segment for `position`, filled with blank entries up to there."""
        size = self.segments.segment_size
        file = self.segments.create_next(position - position % size)
        length = position - file.base
        if length:
            file.reserve(length)
            file.write(0, PRE_BLANK_ENTRY * (length // CONSUME_QUEUE_ENTRY_SIZE))
            self.min_offset = self.next_offset
        return file


def _first(file: MappedFile, used: int, matches: Callable[[Entry], bool]) -> int:
    """Return the number of the first matching entry in `used` bytes, or their number if none does.

    Bisects: physical offsets grow along a queue, so if an entry matches, all later ones do.
    """

    def test(number: int) -> bool:
        start = number * CONSUME_QUEUE_ENTRY_SIZE
        return matches(Entry.unpack(file.read(start, start + CONSUME_QUEUE_ENTRY_SIZE)))

    return bisect_left(range(used // CONSUME_QUEUE_ENTRY_SIZE), True, key=test)
