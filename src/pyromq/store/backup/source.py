"""What a backup copies from a store that a broker may be writing to. Nothing is locked or changed.

The order makes the copies fit together (`making` keeps it):

1. Offsets: consumerOffset.json, delayOffset.json, and the ends of the consume queues. They are read
   before the end of the log is, so none of them points past it.
2. The end of the log. A broker acknowledges a message after its consume-queue entry is written,
   and writes the entry after the message. So every message that was acknowledged before ends at or
   before the last record that a queue has; the valid records after that one are taken as well.
3. The other tables. Topics and groups that are newer than the log's end do no harm. Topics that
   are not saved yet are recreated from their queues when the broker starts.

With a transient store pool, queues are ahead of the log's file: `log_end` waits for the commit. In
a raft group, the log ends at the last committed entry, which is the last one that a queue has.

Called by `making`, on one thread.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyromq.base.atomic_file import backup_of, read_file
from pyromq.base.sizes import MIB
from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.record import HEAD_SIZE_V4, MESSAGE_MAGIC, peek, store_timestamp_at
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY_SIZE, Entry
from pyromq.store.config import MessageStoreConfig
from pyromq.store.lock import lock_holder
from pyromq.store.log.checkpoint import Checkpoint
from pyromq.store.offline.check import is_unclean
from pyromq.store.offline.check_files import SegmentFiles
from pyromq.store.offline.raft_store import entry_directory
from pyromq.store.offline.truncate_tables import PROGRESS_NOTE
from pyromq.store.recovery.piece import Examiner, Rules
from pyromq.store.results import StoreError

#: Tables whose values must not be newer than the log.
OFFSET_TABLES: Final = frozenset({"consumerOffset.json", "delayOffset.json"})
_PIECE_SIZE: Final = 4 * MIB
#: The walk does not evaluate delays.
_ANY_LEVELS: Final = DelayLevels("1s")
#: How long to wait for a transient store pool to commit what the queues have.
_COMMIT_SECONDS: Final = 30.0
_SECONDS_BETWEEN_READS: Final = 0.05
#: A broker creates and removes files while they are listed.
_LISTINGS: Final = 10
_SEGMENT: Final = "[0-9]" * 20


@dataclass(slots=True)
class QueueEnds:
    """Where the consume queues end."""

    #: The queue offset after the last entry, by topic and queue id.
    next_offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    #: The entry of the last record of the log that a queue has.
    last: Entry | None = None

    @property
    def log_end(self) -> int:
        """The end of the last record that a queue has."""
        return 0 if self.last is None else self.last.end


class StoreSource:
    """The files of a store, as they are at each call."""

    def __init__(self, config: MessageStoreConfig) -> None:
        self.config = config
        self.entries = entry_directory(config)

    @property
    def is_running(self) -> bool:
        """Whether a broker holds the store."""
        return lock_holder(self.config.root) is not None

    def offset_tables(self) -> dict[str, bytes]:
        """Return the tables of step 1 by name. Raises OSError."""
        return self._tables(lambda name: name in OFFSET_TABLES)

    def other_tables(self) -> dict[str, bytes]:
        """Return the tables of step 3 by name. Raises OSError."""
        return self._tables(lambda name: name not in OFFSET_TABLES)

    def _tables(self, is_wanted: Callable[[str], bool]) -> dict[str, bytes]:
        directory = self.config.config_directory
        found = {}
        names = {
            path.name.removesuffix(".bak")
            for path in (directory.iterdir() if directory.is_dir() else ())
            if path.is_file() and not path.name.endswith(".tmp")
        }
        for name in sorted(names - {PROGRESS_NOTE}):
            if not is_wanted(name):
                continue
            # Java removes a table before it renames the new one.
            content = read_file(directory / name)
            if content is None:
                content = read_file(backup_of(directory / name))
            if content is not None:
                found[name] = content
        return found

    def queue_ends(self) -> QueueEnds:
        """Return where all consume queues end. Raises OSError."""
        ends = QueueEnds()
        for directory in self.config.consume_queue_directory.glob("*/*"):
            if not directory.name.isdecimal() or not directory.is_dir():
                continue
            next_offset, last = _queue_end(directory)
            if next_offset:
                queues = ends.next_offsets.setdefault(directory.parent.name, {})
                queues[int(directory.name)] = next_offset
            if last is not None and last.end > ends.log_end:
                ends.last = last
        return ends

    def files(self) -> SegmentFiles:
        """List the log's files. Raises StoreError or OSError."""
        config = self.config
        for attempt in range(_LISTINGS):
            files = SegmentFiles(
                config.commit_log_directory,
                config.mapped_file_size_commit_log,
                more=config.more_commit_log_directories,
                read_only=config.read_only_commit_log_directories,
                entries=self.entries,
            )
            try:
                problems = [
                    violation for violation in files.load() if violation.file.name.isdecimal()
                ]
            except FileNotFoundError:
                continue  # it has expired just now
            if not problems:
                return files
            # Files may have been created and removed while they were listed.
            if attempt == _LISTINGS - 1:
                raise StoreError(f"{problems[0].file} {problems[0].message}")
            time.sleep(_SECONDS_BETWEEN_READS)
        raise StoreError(f"files of {config.commit_log_directory} vanish while they are listed")

    def log_end(self, ends: QueueEnds, committed: int | None) -> int:
        """Return where the backed-up log ends (step 2). Raises StoreError or OSError.

        `committed` is the end of the committed entries that a raft node has noted.
        """
        if committed is not None:
            return max(committed, ends.log_end)
        files = self.files()
        if not files.bases:
            if ends.last is not None:
                raise self._not_reached(files.end_offset, ends.log_end)
            return 0
        if is_unclean(self.config.root) and not self.is_running:
            return valid_end(files, self._unsafe_base(files))
        last = ends.last
        deadline = time.monotonic() + _COMMIT_SECONDS
        while last is not None and last.end > files.first_offset:
            if valid_end(files, last.physical_offset, limit=last.end) >= last.end:
                return valid_end(files, last.end)
            if not self.is_running or time.monotonic() > deadline:
                raise self._not_reached(last.physical_offset, last.end)
            time.sleep(_SECONDS_BETWEEN_READS)
            files = self.files()
        # No queue has a message of this log.
        return valid_end(files, last_used_base(files))

    def _not_reached(self, end: int, known: int) -> StoreError:
        return StoreError(
            f"the log has no valid record at {end}, but the consume queues refer to messages up to "
            f"{known}: run pyromq store check {self.config.root}. If the broker has several commit "
            "log directories, pass its properties file (--config)"
        )

    def _unsafe_base(self, files: SegmentFiles) -> int:
        """Return the segment from which recovery would check a log after a crash."""
        checkpoint = Checkpoint(self.config.root / "checkpoint")
        checkpoint.load()
        for base in reversed(files.bases):
            stored = _store_timestamp(files, base)
            if 0 < stored <= checkpoint.safe_timestamp:
                return base
        return files.first_offset


def valid_end(files: SegmentFiles, start: int, limit: int | None = None) -> int:
    """Return the end of the valid records from `start` on, where a record or a segment starts."""
    size = files.segment_size
    examiner = Examiner(Rules(size, _ANY_LEVELS, check_crc=True, after_crash=True))
    bases = set(files.bases)
    position = start
    while (base := position - position % size) in bases and (limit is None or position < limit):
        rest = base + size - position
        framing = files.framing(position)
        data = files.read(position, min(_PIECE_SIZE, rest))
        if framing.is_blank(data, rest):
            position = base + size
            continue
        record_size, magic = peek(data[framing.prefix : framing.prefix + 8])
        if magic == MESSAGE_MAGIC and len(data) < framing.prefix + record_size <= rest:
            data = files.read(position, framing.prefix + record_size)
        examined = examiner.examine(position, memoryview(data), framing)
        position += examined.end
        if not examined.end or examined.is_end_of_log:
            break
    return position


def last_used_base(files: SegmentFiles) -> int:
    """Return the last segment that was written to."""
    used = (base for base in reversed(files.bases) if any(files.read(base, HEAD_SIZE_V4)))
    return next(used, files.first_offset)


def _store_timestamp(files: SegmentFiles, base: int) -> int:
    """Return the store time of a segment's first record; 0 if there is none."""
    prefix = files.framing(base).prefix
    data = files.read(base + prefix, HEAD_SIZE_V4)
    if peek(data)[1] != MESSAGE_MAGIC:
        return 0
    return store_timestamp_at(data, 0)


def _queue_end(directory: Path) -> tuple[int, Entry | None]:
    """Return the queue offset after the last entry, and the last entry with a message."""
    try:
        paths = sorted(directory.glob(_SEGMENT), reverse=True)
    except FileNotFoundError:
        return 0, None  # the topic was deleted just now
    for path in paths:
        try:
            count, last = _last_entry(path)
        except FileNotFoundError:
            return 0, None
        if count:
            return int(path.name) // CONSUME_QUEUE_ENTRY_SIZE + count, last
    return 0, None


def _last_entry(path: Path) -> tuple[int, Entry | None]:
    size = CONSUME_QUEUE_ENTRY_SIZE
    with path.open("rb") as file:
        descriptor = file.fileno()

        def entry(number: int) -> Entry:
            return Entry.unpack(os.pread(descriptor, size, number * size).ljust(size, b"\0"))

        numbers = range(os.fstat(descriptor).st_size // size)
        count = bisect_left(numbers, True, key=lambda number: entry(number).size <= 0)
        last = entry(count - 1) if count else None
    return count, None if last is None or last.is_pre_blank else last


def list_segments(files: SegmentFiles, end: int) -> Iterator[tuple[int, Path, bool]]:
    """Yield base, path and kind (True for entries) of the files that hold the log up to `end`."""
    for base in files.bases:
        if base < end:
            yield base, files.path(base), bool(files.framing(base).prefix)
