"""A store directory as an origin: reads the files without a broker, and without disturbing one.

    origin = StoreOrigin("/data/broker-a/store")
    for block in origin.blocks(QueueRange(queue, 0, 1_000_000)): ...

Reads a directory that pyromq's or Java's broker has written, or is writing to right now. Consume
queues say which records a queue has and where they are in the log. If the consume queues are
missing or not trusted, the log alone can be read, segment by segment (`log_ranges`, `log_blocks`),
except for that of a raft node: not all of its entries are committed.

Invariants
1. Nothing is ever written, locked or deleted.
2. Nothing is returned that a broker would not return: a queue ends before an entry whose record
   has not been written yet, and starts where the log still has its record.
3. Memory: one block of at most `BLOCK_BYTES` (or one longer record), and its entries.

An origin belongs to one thread. `store_files` does the reading.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyromq.base.memo import Memo
from pyromq.protocol.message.bulk import Longs, record_places
from pyromq.protocol.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NOT
from pyromq.protocol.message.units import PRE_BLANK_SIZE
from pyromq.protocol.names import is_system_topic
from pyromq.spark.origins.origin import (
    Bounds,
    LostRecords,
    OriginError,
    Queue,
    QueueRange,
    RecordBlock,
)
from pyromq.spark.origins.store_files import NOT_A_RECORD, QueueEntries, StoreLog, leading_count
from pyromq.spark.origins.store_files import LogRange as LogRange
from pyromq.store.config import MessageStoreConfig
from pyromq.store.offline.check import is_unclean
from pyromq.store.offline.check_log import CheckedPiece, LogCheck
from pyromq.store.offline.raft_store import entry_directory
from pyromq.store.offline.violation import Violation, ViolationKind
from pyromq.store.results import StoreError

#: The most records in a block.
BLOCK_RECORDS: Final = 16_384
_QUEUE_ID: Final = re.compile("0|[1-9][0-9]{0,9}")
#: An entry that is being written looks damaged, so it is reread after a pause.
_MAX_READS: Final = 3
_SECONDS_BETWEEN_READS: Final = 0.02
#: The topic of `LostRecords` that count offsets of the log itself.
LOG_TOPIC: Final = "(commit log)"


class StoreOrigin:
    """The topics, queues and records of one store directory."""

    def __init__(
        self,
        store_path: str | Path,
        broker_name: str = "",
        *,
        commit_log_paths: Sequence[str | Path] = (),
    ) -> None:
        """Open a store directory. Raises OriginError if it is not one.

        `broker_name` is the name to report, which the store does not record; by default the
        name of the directory. `commit_log_paths` are the directories of the log if it is not in
        `commitlog` below: all of storePathCommitLog and readOnlyCommitLogStorePaths.
        """
        self._root = Path(store_path)
        self.broker_name = broker_name or self._root.resolve().name
        self._queue_root = self._root / "consumequeue"
        # A broker that has just started has only created its lock.
        self._has_entries = bool(entries := _entry_directories(self._root))
        if not any((self._root / name).exists() for name in ("commitlog", "lock", "consumequeue")):
            raise OriginError(
                f"{self._root} is not a store: give the directory that contains commitlog and "
                "consumequeue, the broker's storePathRootDir"
            )
        directories = [Path(path) for path in commit_log_paths] or [self._root / "commitlog"]
        self._log = StoreLog([*directories, *entries])

    @property
    def has_queues(self) -> bool:
        """Whether there are consume queues. Without them only the log can be read."""
        return self._queue_root.is_dir()

    def topics(self) -> list[str]:
        """Return the names of all topics other than system topics, sorted."""
        return [topic for topic in self.all_topics() if not is_system_topic(topic)]

    def all_topics(self) -> list[str]:
        """Return the names of all topics with a queue, including system topics, sorted."""
        return sorted(path.name for path in _folders(self._queue_root) if self.queues(path.name))

    def queues(self, topic: str) -> list[Queue]:
        """Return the queues of a topic, sorted; an empty list if the topic does not exist."""
        if not topic or "/" in topic or topic in (".", ".."):
            return []
        ids = sorted(
            int(path.name)
            for path in _folders(self._queue_root / topic)
            if _QUEUE_ID.fullmatch(path.name)
        )
        return [Queue(topic, self.broker_name, queue_id) for queue_id in ids]

    def bounds(self, queues: Collection[Queue]) -> dict[Queue, Bounds]:
        """Return the offsets of each queue, without queues that do not exist."""
        self._log.refresh()
        found = ((queue, self._entries(queue)) for queue in queues)
        return {queue: self._bounds(entries) for queue, entries in found if entries.bases}

    def latest_bounds(
        self, queues: Collection[Queue]
    ) -> tuple[dict[Queue, Bounds], frozenset[Queue]]:
        """Return the same; files do not lag."""
        return self.bounds(queues), frozenset()

    def offsets_at(self, timestamps: Mapping[Queue, int]) -> dict[Queue, int]:
        """Return, for each queue, the first offset stored at or after a time, or its end."""
        offsets = {}
        for queue, (first, end) in self.bounds(timestamps).items():
            entries, timestamp = self._entries(queue), timestamps[queue]

            def is_later(
                offset: int, entries: QueueEntries = entries, wanted: int = timestamp
            ) -> bool:
                return self._log.store_timestamp(entries.place(offset)) >= wanted

            offsets[queue] = bisect_left(range(first, end), True, key=is_later) + first
        return offsets

    def is_away(self, broker_name: str) -> bool:
        """Return False: a missing queue does not come back."""
        del broker_name
        return False

    def blocks(self, wanted: QueueRange) -> Iterator[RecordBlock | LostRecords]:
        """Yield the records of a range, block by block."""
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
                    queue, position, end, f"{entries.directory} no longer has their entries"
                )
                position = end
                continue
            for block in self._read(entries, position, found):
                if isinstance(block, LostRecords):
                    block = block._replace(queue=queue)
                yield block
            position += found.size

    def log_ranges(self) -> list[LogRange]:
        """Return the log's segments, in order; the last one includes its unwritten rest."""
        if self._has_entries:
            raise OriginError(
                f"{self._root} belongs to a node of a raft group, and not all entries of its log "
                "are committed: read it through its consume queues; pyromq store rebuild builds "
                "them again"
            )
        self._log.refresh()
        size = self._log.segment_size
        return [LogRange(base, base + size) for base in self._log.bases]

    def log_blocks(
        self, wanted: LogRange, topics: Collection[str] | None = None
    ) -> Iterator[RecordBlock | LostRecords]:
        """Yield the records in a range of the log that consumers can see, in the log's order.

        Yields records of `topics`, or of all topics other than system topics. After damage the
        read resumes at the next record of the segment, and `LostRecords` give the bytes in
        between as offsets of the log.
        """
        log = Queue(LOG_TOPIC, self.broker_name, 0)
        is_wanted = _topic_filter(topics)
        files = self._log.files(wanted)
        if not files.bases:
            yield LostRecords(log, wanted.start, wanted.end, "the segment has expired")
            return
        walk = LogCheck(files, may_move=True, check_bodies=False)
        position = wanted.start
        for piece in walk.pieces():
            if piece.base != position:
                yield LostRecords(log, position, piece.base, NOT_A_RECORD)
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
        """Yield all whole records of a segment, of every topic, and all damage in it.

        Bodies are checked against their CRCs.
        """
        files = self._log.files(wanted)
        if not files.bases:
            return  # expired since the job started
        walk = LogCheck(files, may_move=is_unclean(self._root))
        for piece in walk.pieces():
            yield piece
            yield from walk.violations
            walk.violations.clear()
        yield from walk.violations
        if walk.end < wanted.end <= self._log.bases[-1]:
            path, position = files.place(walk.end)
            message = "the records end here, although another segment follows"
            yield Violation(ViolationKind.RECORD, path, position, message)

    def close(self) -> None:
        """Close all files."""
        self._log.close()

    def _entries(self, queue: Queue) -> QueueEntries:
        return QueueEntries(self._queue_root / queue.topic / str(queue.queue_id))

    def _bounds(self, entries: QueueEntries) -> Bounds:
        low, end = entries.first_offset, entries.end_offset()
        first_byte = self._log.first_offset

        def is_there(offset: int) -> bool:
            place, size = entries.entry(offset)
            return size != PRE_BLANK_SIZE and place >= first_byte

        first = bisect_left(range(low, end), True, key=is_there) + low
        if first < end and not self._log.is_written(*entries.entry(end - 1)):
            # A broker with a transient store pool may write entries before their records.
            written = range(first, end)
            end = first + bisect_left(
                written, True, key=lambda at: not self._log.is_written(*entries.entry(at))
            )
        return Bounds(first, end)

    def _read(
        self, entries: QueueEntries, first: int, found: NDArray[np.void]
    ) -> Iterator[RecordBlock | LostRecords]:
        """Yield the records of these entries, which start at queue offset `first`."""
        places = found["physical_offset"].astype(np.int64)
        sizes = found["size"].astype(np.int64)
        there = self._log.holds(places, sizes)
        begin = 0
        while begin < places.size:
            if not there[begin]:
                end = begin + leading_count(~there[begin:])
                yield self._lost(first + begin, first + end, int(places[begin]), int(sizes[begin]))
            else:
                end = begin + leading_count(there[begin:])
                end = begin + self._log.fitting(places[begin:end], sizes[begin:end])
                yield from self._read_block(
                    entries, first + begin, places[begin:end], sizes[begin:end]
                )
            begin = end

    def _read_block(
        self, entries: QueueEntries, first: int, places: Longs, sizes: Longs
    ) -> Iterator[RecordBlock | LostRecords]:
        """Yield one block, or several if records in between are damaged."""
        for attempt in range(_MAX_READS):
            if attempt:
                time.sleep(_SECONDS_BETWEEN_READS)
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
                end = begin + leading_count(good[begin:])
                yield RecordBlock(buffer, starts[begin:end])
            else:
                end = begin + leading_count(~good[begin:])
                yield self._lost(first + begin, first + end, int(places[begin]), int(sizes[begin]))
            begin = end

    def _lost(self, start: int, end: int, place: int, size: int) -> LostRecords:
        """Return the loss and its reason; the caller fills in the queue."""
        self._log.refresh()
        if size == PRE_BLANK_SIZE or 0 <= place < self._log.first_offset:
            reason = f"they have expired, the log now starts at {self._log.first_offset}"
        elif size <= 0:
            reason = "their entries in the consume queue are blank"
        else:
            reason = f"the log has no record of {size} bytes with that offset at {place}"
        return LostRecords(Queue("", self.broker_name, 0), start, end, reason)


def _entry_directories(root: Path) -> list[Path]:
    """Return the directory of a raft node's entries, in a list that may be empty."""
    try:
        found = entry_directory(MessageStoreConfig(store_path_root_dir=str(root)))
    except StoreError as error:
        raise OriginError(str(error)) from error
    return [] if found is None else [found]


def _folders(directory: Path) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _topic_filter(topics: Collection[str] | None) -> Memo[bytes, bool]:
    """Return a memo that says whether to read a topic."""
    if topics is None:
        return Memo(lambda topic: not is_system_topic(topic.decode(errors="replace")))
    names = frozenset(topics)
    return Memo(lambda topic: topic.decode(errors="replace") in names)
