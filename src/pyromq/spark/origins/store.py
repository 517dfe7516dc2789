"""The files of a store as an origin of messages: no broker is asked, none is disturbed.

    origin = StoreOrigin("/data/broker-a/store")
    for block in origin.blocks(QueueRange(queue, 0, 1_000_000)): ...

Reads what pyromq's broker or Java's left in a directory, or is writing to right now: the
consume queues say which records a queue has and where in the log they stand. Where there
are no consume queues, or they are not to be trusted, the log alone can be read, segment by
segment (`log_ranges`, `log_blocks`).

Invariants
1. Nothing is ever written, locked or removed.
2. Nothing is shown that a broker would not show: a queue ends before an entry whose record
   has not been written yet, and begins where the log still has its record.
3. Nothing is read from behind the end of a file, whatever entries say.
4. Memory: one block, of `BLOCK_BYTES` or of one record, and its entries.

Records that stand close together are a block where they lie, in the mapped segment, with
what is between them: that takes a third of the time of copying. Records that one queue has
in a log of thousands are read one by one. An origin belongs to one thread.
"""

from __future__ import annotations

import mmap
import os
import re
import time
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyromq.base.memo import Memo
from pyromq.protocol.message.bulk import Longs, record_places
from pyromq.protocol.message.record import BLANK_MAGIC, HEAD_SIZE_V4, peek, store_timestamp_at
from pyromq.protocol.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NOT
from pyromq.protocol.message.unit_arrays import CONSUME_QUEUE_DTYPE
from pyromq.protocol.message.units import (
    CONSUME_QUEUE_ENTRY_SIZE,
    PRE_BLANK_SIZE,
)
from pyromq.protocol.names import is_system_topic
from pyromq.spark.origins.origin import (
    Bounds,
    LostRecords,
    OriginError,
    Queue,
    QueueRange,
    RecordBlock,
)
from pyromq.store.offline.check import is_unclean
from pyromq.store.offline.check_files import SegmentFiles
from pyromq.store.offline.check_log import CheckedPiece, LogCheck
from pyromq.store.offline.violation import Violation, ViolationKind

#: A block holds so many records at most ...
BLOCK_RECORDS: Final = 16_384
#: ... and so many bytes, unless one record is longer.
BLOCK_BYTES: Final = 8 * 1024 * 1024
#: Records this close together are taken in one go, with what lies between.
_CLOSE: Final = 16 * 1024
_MIN_RECORD: Final = HEAD_SIZE_V4 + 3
_QUEUE_ID: Final = re.compile("0|[1-9][0-9]{0,9}")
#: Descriptors and mappings of log segments that are kept; one that expires stays readable.
_MAX_DESCRIPTORS: Final = 32
_MAX_MAPPINGS: Final = 4
#: An entry that is being written when it is read looks damaged: it is read again.
_LOOKS: Final = 3
_SECONDS_BETWEEN_LOOKS: Final = 0.02
#: What `LostRecords` calls the log itself.
LOG_TOPIC: Final = "(commit log)"


class LogRange(NamedTuple):
    """Part of the log, without `end`: what one task reads of the log alone."""

    start: int
    end: int


class StoreOrigin:
    """The topics, queues and records of one store directory."""

    def __init__(
        self,
        store_path: str | Path,
        broker_name: str = "",
        *,
        commit_log_paths: Sequence[str | Path] = (),
    ) -> None:
        """`broker_name` is what the store does not know; by default its directory's name.

        `commit_log_paths` are the log's directories when it is not in `commitlog`, or lies
        in several: all of storePathCommitLog and readOnlyCommitLogStorePaths.
        """
        self._root = Path(store_path)
        self.broker_name = broker_name or self._root.resolve().name
        self._queue_root = self._root / "consumequeue"
        # A broker that was just started has nothing but its lock.
        if not any((self._root / name).exists() for name in ("commitlog", "lock", "consumequeue")):
            raise OriginError(
                f"{self._root} is no store: name the directory that a broker has as "
                "storePathRootDir, the one that holds commitlog and consumequeue"
            )
        directories = [Path(path) for path in commit_log_paths] or [self._root / "commitlog"]
        self._log = _Log(directories)

    @property
    def has_queues(self) -> bool:
        """Whether there are consume queues; without, only the log can be read."""
        return self._queue_root.is_dir()

    def topics(self) -> list[str]:
        """The names of all topics, sorted, without the system's own."""
        return [topic for topic in self.all_topics() if not is_system_topic(topic)]

    def all_topics(self) -> list[str]:
        """The names of all topics that have a queue, the system's own too."""
        return sorted(path.name for path in _folders(self._queue_root) if self.queues(path.name))

    def queues(self, topic: str) -> list[Queue]:
        """The queues of a topic, sorted; none when there is no such topic."""
        if not topic or "/" in topic or topic in (".", ".."):
            return []
        ids = sorted(
            int(path.name)
            for path in _folders(self._queue_root / topic)
            if _QUEUE_ID.fullmatch(path.name)
        )
        return [Queue(topic, self.broker_name, queue_id) for queue_id in ids]

    def bounds(self, queues: Collection[Queue]) -> dict[Queue, Bounds]:
        """Which offsets each of these queues has; queues that are not there are left out."""
        self._log.refresh()
        found = ((queue, self._entries(queue)) for queue in queues)
        return {queue: self._bounds(entries) for queue, entries in found if entries.bases}

    def offsets_at(self, timestamps: Mapping[Queue, int]) -> dict[Queue, int]:
        """Per queue, the first offset stored at or after a time in milliseconds, or its end."""
        offsets = {}
        for queue, (first, end) in self.bounds(timestamps).items():
            entries, timestamp = self._entries(queue), timestamps[queue]

            def is_later(offset: int, entries: _Entries = entries, wanted: int = timestamp) -> bool:
                return self._log.store_timestamp(entries.place(offset)) >= wanted

            offsets[queue] = bisect_left(range(first, end), True, key=is_later) + first
        return offsets

    def is_away(self, broker_name: str) -> bool:
        """Never: files are there or not."""
        del broker_name
        return False

    def blocks(self, wanted: QueueRange) -> Iterator[RecordBlock | LostRecords]:
        """The records of a range, block by block."""
        queue = wanted.queue
        entries = self._entries(queue)
        position = wanted.start
        while position < wanted.end:
            found = entries.read(position, min(BLOCK_RECORDS, wanted.end - position))
            if not found.size:
                entries = self._entries(queue)
                following = entries.next_offset(position)
                end = wanted.end if following is None else min(following, wanted.end)
                yield LostRecords(
                    queue, position, end, f"{entries.directory} has no entries for them any more"
                )
                position = end
                continue
            for block in self._read(entries, position, found):
                if isinstance(block, LostRecords):
                    block = block._replace(queue=queue)
                yield block
            position += found.size

    def log_ranges(self) -> list[LogRange]:
        """The log's segments, in order; the last one ends behind what is written."""
        self._log.refresh()
        size = self._log.segment_size
        return [LogRange(base, base + size) for base in self._log.bases]

    def log_blocks(
        self, wanted: LogRange, topics: Collection[str] | None = None
    ) -> Iterator[RecordBlock | LostRecords]:
        """The records of a part of the log that consumers can see, in the log's order.

        Of these topics, or of all but the system's own. Behind damage it goes on with the
        next record of the segment; the bytes between are reported as offsets of the log.
        """
        log = Queue(LOG_TOPIC, self.broker_name, 0)
        is_wanted = _topic_filter(topics)
        files = self._log.files(wanted)
        if not files.bases:
            yield LostRecords(log, wanted.start, wanted.end, "this segment is not there any more")
            return
        walk = LogCheck(files, may_move=True, check_bodies=False)
        position = wanted.start
        for piece in walk.pieces():
            if piece.base != position:
                yield LostRecords(log, position, piece.base, "these bytes are no record")
            position = walk.end
            walk.violations.clear()
            transaction = piece.columns.heads["sys_flag"] & TRANSACTION_MASK
            seen = (transaction == TRANSACTION_NOT) | (transaction == TRANSACTION_COMMIT)
            rows = np.flatnonzero(seen)
            begins, lengths = piece.columns.topics
            ends = (begins + lengths)[rows].tolist()
            topics_of = (
                piece.data[begin:end]
                for begin, end in zip(begins[rows].tolist(), ends, strict=True)
            )
            of_topic = np.fromiter((is_wanted[topic] for topic in topics_of), np.bool_, rows.size)
            starts = piece.columns.starts[rows[of_topic]]
            for begin in range(0, starts.size, BLOCK_RECORDS):
                yield RecordBlock(piece.data, starts[begin : begin + BLOCK_RECORDS])
        rest = self._log.damage_at(position, wanted.end)
        if rest:
            yield LostRecords(log, position, wanted.end, rest)

    def checked_log(self, wanted: LogRange) -> Iterator[CheckedPiece | Violation]:
        """Every whole record of a segment, the system's own too, and all that is damaged there.

        Bodies are held against their CRCs.
        """
        files = self._log.files(wanted)
        if not files.bases:
            return  # it has expired since the job began
        walk = LogCheck(files, may_move=is_unclean(self._root))
        for piece in walk.pieces():
            yield piece
            yield from walk.violations
            walk.violations.clear()
        yield from walk.violations
        if walk.end < wanted.end <= self._log.bases[-1]:
            path, position = files.place(walk.end)
            message = "the records end here, though a segment follows"
            yield Violation(ViolationKind.RECORD, path, position, message)

    def close(self) -> None:
        """Give the descriptors back."""
        self._log.close()

    def _entries(self, queue: Queue) -> _Entries:
        return _Entries(self._queue_root / queue.topic / str(queue.queue_id))

    def _bounds(self, entries: _Entries) -> Bounds:
        low, end = entries.first_offset, entries.end_offset()
        first_byte = self._log.first_offset

        def is_there(offset: int) -> bool:
            place, size = entries.entry(offset)
            return size != PRE_BLANK_SIZE and place >= first_byte

        first = bisect_left(range(low, end), True, key=is_there) + low
        if first < end and not self._log.is_written(*entries.entry(end - 1)):
            # A broker with a transient store pool writes entries before records.
            written = range(first, end)
            end = first + bisect_left(
                written, True, key=lambda at: not self._log.is_written(*entries.entry(at))
            )
        return Bounds(first, end)

    def _read(
        self, entries: _Entries, first: int, found: NDArray[np.void]
    ) -> Iterator[RecordBlock | LostRecords]:
        """The records that these entries, from offset `first` on, point at."""
        places = found["physical_offset"].astype(np.int64)
        sizes = found["size"].astype(np.int64)
        there = self._log.holds(places, sizes)
        begin = 0
        while begin < places.size:
            if not there[begin]:
                end = begin + _run_length(~there[begin:])
                yield self._lost(first + begin, first + end, int(places[begin]), int(sizes[begin]))
            else:
                end = begin + _run_length(there[begin:])
                end = begin + self._log.fitting(places[begin:end], sizes[begin:end])
                yield from self._read_block(
                    entries, first + begin, places[begin:end], sizes[begin:end]
                )
            begin = end

    def _read_block(
        self, entries: _Entries, first: int, places: Longs, sizes: Longs
    ) -> Iterator[RecordBlock | LostRecords]:
        """One block, or several where records in between are damaged."""
        for look in range(_LOOKS):
            if look:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                again = entries.read(first, places.size)
                if again.size == places.size:
                    places = again["physical_offset"].astype(np.int64)
                    sizes = again["size"].astype(np.int64)
            buffer, starts = self._log.gather(places, sizes)
            found = record_places(buffer, starts)
            good = (found.sizes == sizes) & (found.physical_offsets == places)
            good &= found.queue_offsets == np.arange(first, first + places.size)
            if good.all():
                yield RecordBlock(buffer, starts)
                return
        begin = 0
        while begin < places.size:
            if good[begin]:
                end = begin + _run_length(good[begin:])
                yield RecordBlock(buffer, starts[begin:end])
            else:
                end = begin + _run_length(~good[begin:])
                yield self._lost(first + begin, first + end, int(places[begin]), int(sizes[begin]))
            begin = end

    def _lost(self, start: int, end: int, place: int, size: int) -> LostRecords:
        """The queue is filled in by the caller, who knows it."""
        self._log.refresh()
        if size == PRE_BLANK_SIZE or 0 <= place < self._log.first_offset:
            reason = f"the log begins at {self._log.first_offset} now"
        elif size <= 0:
            reason = "their entries in the consume queue are blank"
        else:
            reason = f"at {place} of the log stands no record of {size} bytes with that offset"
        return LostRecords(Queue("", self.broker_name, 0), start, end, reason)


class _Entries:
    """The entries of one consume queue, as they are in its files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files = SegmentFiles(directory, 0)
        # What does not fit is no file of the queue; `pyromq store check` names it.
        for _ in self._files.load():
            pass
        self.bases = self._files.bases
        self._per_file = self._files.segment_size // CONSUME_QUEUE_ENTRY_SIZE

    @property
    def first_offset(self) -> int:
        """The first offset that the files have a place for."""
        return self._files.first_offset // CONSUME_QUEUE_ENTRY_SIZE

    def end_offset(self) -> int:
        """The offset behind the last entry: files are zeros from there on."""
        for base in reversed(self.bases):
            first = base // CONSUME_QUEUE_ENTRY_SIZE
            numbers = range(first, first + self._per_file)
            count = bisect_left(numbers, True, key=lambda at: self.entry(at)[1] <= 0)
            if count:
                return first + count
        return self.first_offset

    def read(self, offset: int, count: int) -> NDArray[np.void]:
        """The entries from `offset` on, `count` at most, of one file."""
        data = self._files.read(offset * CONSUME_QUEUE_ENTRY_SIZE, count * CONSUME_QUEUE_ENTRY_SIZE)
        return np.frombuffer(data, CONSUME_QUEUE_DTYPE, len(data) // CONSUME_QUEUE_ENTRY_SIZE)

    def entry(self, offset: int) -> tuple[int, int]:
        """Place and size of one record; (0, 0) without an entry."""
        found = self.read(offset, 1)
        return (int(found["physical_offset"][0]), int(found["size"][0])) if found.size else (0, 0)

    def place(self, offset: int) -> int:
        """Where the record with this offset stands in the log."""
        return self.entry(offset)[0]

    def next_offset(self, offset: int) -> int | None:
        """The first offset of the first file behind `offset`; None when there is none."""
        firsts = (base // CONSUME_QUEUE_ENTRY_SIZE for base in self.bases)
        return next((first for first in firsts if first > offset), None)


class _Log:
    """The commit log's segments, for reading."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._descriptors: dict[int, int] = {}
        self._mappings: dict[int, memoryview] = {}
        self.refresh()

    def refresh(self) -> None:
        """See which segments there are now."""
        self._files = self._load()
        self._bases = np.array(self._files.bases, np.int64)

    @property
    def bases(self) -> list[int]:
        """The first offset of each segment."""
        return self._files.bases

    @property
    def segment_size(self) -> int:
        """How long each segment is."""
        return self._files.segment_size

    @property
    def first_offset(self) -> int:
        """The offset of the first byte that is still there."""
        return self._files.first_offset

    def files(self, wanted: LogRange) -> SegmentFiles:
        """The segments of a part of the log only."""
        files = self._load()
        files.bases[:] = [base for base in files.bases if wanted.start <= base < wanted.end]
        return files

    def holds(self, places: Longs, sizes: Longs) -> NDArray[np.bool_]:
        """Which records can be in the segments that there are."""
        there = self._has(places, sizes)
        if not there.all():
            self.refresh()
            there = self._has(places, sizes)
        return there

    def is_written(self, place: int, size: int) -> bool:
        """Whether something stands where an entry points; what has expired was written."""
        if place < self.first_offset:
            return True
        return any(self.read(place, min(size, HEAD_SIZE_V4)))

    def store_timestamp(self, place: int) -> int:
        """When the record at `place` was stored; 0 when it is not there."""
        head = self.read(place, HEAD_SIZE_V4)
        return store_timestamp_at(head, 0) if len(head) == HEAD_SIZE_V4 else 0

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes of one segment; none where it is not there."""
        descriptor = self._descriptor(offset)
        return b"" if descriptor is None else os.pread(descriptor, size, self._inside(offset))

    def fitting(self, places: Longs, sizes: Longs) -> int:
        """How many of these records make a block: of one segment, one at least."""
        lengths = sizes.copy()
        gaps = places[1:] - places[:-1] - sizes[:-1]
        lengths[1:] += np.where((gaps >= 0) & (gaps <= _CLOSE), gaps, 0)
        count = int(lengths.cumsum().searchsorted(BLOCK_BYTES, "right"))
        same_segment = places // self.segment_size == places[0] // self.segment_size
        return max(1, min(count, _run_length(same_segment)))

    def gather(self, places: Longs, sizes: Longs) -> tuple[memoryview, Longs]:
        """These records of one segment in one buffer, in order, and where each begins.

        Bytes that the segment does not have are zeros there.
        """
        ends = places + sizes
        gaps = places[1:] - ends[:-1]
        breaks = np.flatnonzero((gaps < 0) | (gaps > _CLOSE)) + 1
        begins = np.append(0, breaks)
        run_places = places[begins]
        run_sizes = ends[np.append(breaks, places.size) - 1] - run_places
        if not breaks.size:
            mapping = self._mapping(int(places[0]))
            first = self._inside(int(places[0]))
            last = first + int(run_sizes[0])
            if last <= len(mapping):
                return mapping[first:last], places - places[0]
        run_ends = run_sizes.cumsum()
        shifts = run_ends - run_sizes - run_places
        starts = places + np.repeat(shifts, np.diff(np.append(begins, places.size)))
        descriptor = self._descriptor(int(places[0]))
        positions = (run_places % self.segment_size).tolist()
        pieces = [
            _read_whole(descriptor, place, size)
            for place, size in zip(positions, run_sizes.tolist(), strict=True)
        ]
        return memoryview(b"".join(pieces)), starts

    def damage_at(self, position: int, end: int) -> str | None:
        """Why the log of one segment does not end well at `position`; None when it does."""
        if position >= end:
            return None
        head = self.read(position, HEAD_SIZE_V4)
        size, magic = peek(head)
        if not any(head) or (magic == BLANK_MAGIC and size == end - position):
            return None
        return "these bytes are no record"

    def close(self) -> None:
        """Close all descriptors."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        # They go with the last view of them.
        self._mappings.clear()

    def _load(self) -> SegmentFiles:
        first, *more = self._directories
        files = SegmentFiles(first, 0, more=more)
        for _ in files.load():
            pass
        return files

    def _has(self, places: Longs, sizes: Longs) -> NDArray[np.bool_]:
        if not self._bases.size:
            return np.zeros(places.size, np.bool_)
        inside = places % self.segment_size
        numbers = self._bases.searchsorted(places - inside).clip(0, self._bases.size - 1)
        there: NDArray[np.bool_] = self._bases[numbers] == places - inside
        there &= (sizes >= _MIN_RECORD) & (inside + sizes <= self.segment_size)
        return there

    def _mapping(self, offset: int) -> memoryview:
        """The segment of an offset, as long as it is now; empty when it is not there."""
        base = offset - self._inside(offset)
        mapping = self._mappings.get(base)
        if mapping is not None:
            return mapping
        descriptor = self._descriptor(offset)
        size = 0 if descriptor is None else os.fstat(descriptor).st_size
        if descriptor is None or not size:
            return memoryview(b"")
        mapping = memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
        if len(self._mappings) >= _MAX_MAPPINGS:
            del self._mappings[next(iter(self._mappings))]
        self._mappings[base] = mapping
        return mapping

    def _descriptor(self, offset: int) -> int | None:
        base = offset - self._inside(offset)
        descriptor = self._descriptors.get(base)
        if descriptor is None and self.segment_size:
            try:
                descriptor = os.open(self._files.path(offset), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            if len(self._descriptors) >= _MAX_DESCRIPTORS:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
            self._descriptors[base] = descriptor
        return descriptor

    def _inside(self, offset: int) -> int:
        return offset % max(self.segment_size, 1)


def _folders(directory: Path) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _topic_filter(topics: Collection[str] | None) -> Memo[bytes, bool]:
    """Whether the messages of a topic are wanted, asked once for each topic."""
    if topics is None:
        return Memo(lambda topic: not is_system_topic(topic.decode(errors="replace")))
    names = frozenset(topics)
    return Memo(lambda topic: topic.decode(errors="replace") in names)


def _read_whole(descriptor: int | None, position: int, size: int) -> bytes:
    """So many bytes of a file, zeros for those that it does not have."""
    if descriptor is None:
        return bytes(size)
    data = os.pread(descriptor, size, position)
    while len(data) < size:
        more = os.pread(descriptor, size - len(data), position + len(data))
        if not more:
            return data.ljust(size, b"\0")
        data += more
    return data


def _run_length(flags: NDArray[np.bool_]) -> int:
    """How many are set before the first that is not."""
    return flags.size if flags.all() else int(flags.argmin())
