"""Plan a truncation: what is cut if the log ends at an offset. Changes nothing.

The log is walked from two segments before the offset, or from where recovery would start after a
crash. As for recovery, it ends at the first bytes that are not a valid record. Offsets at which the
log cannot end, and stores that cannot be changed, are refused here, before anything is written.

Used by `truncate`, which holds the store's lock, on one thread.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.record import HEAD_SIZE_V4
from pyromq.protocol.message.units import (
    CONSUME_QUEUE_ENTRY_SIZE,
    INDEX_ENTRY_SIZE,
    INDEX_HEADER,
    INDEX_HEADER_SIZE,
    INDEX_SLOT_SIZE,
    Entry,
)
from pyromq.store.config import MessageStoreConfig
from pyromq.store.log.checkpoint import Checkpoint
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.offline.check import is_unclean
from pyromq.store.offline.check_queues import last_end
from pyromq.store.offline.truncate_backup import data_blocks
from pyromq.store.offline.truncate_tables import TableEdit, plan_tables
from pyromq.store.queues import lookup
from pyromq.store.queues.extension import refuse_other_size
from pyromq.store.recovery.boundary import boundary_at_or_below
from pyromq.store.recovery.piece import LogPiece
from pyromq.store.recovery.queue_damage import is_other_size
from pyromq.store.recovery.recovery import first_unsafe_segment
from pyromq.store.recovery.walk import LogWalk
from pyromq.store.results import StoreError

#: Recovery after a clean stop checks this many segments.
_CHECKED_SEGMENTS: Final = 3


class QueueCut(NamedTuple):
    """A consume queue that loses entries."""

    topic: str
    queue_id: int
    entries: int
    #: The queue offset after its last remaining entry.
    end: int


@dataclass(frozen=True, slots=True)
class Truncation:
    """What a truncation cuts, or has cut."""

    #: The new end of the log.
    offset: int
    log_begin: int
    log_end: int
    #: The end of all bytes in the log's files: `log_end`, unless invalid ones follow.
    data_end: int
    messages: int
    #: Store times of the first and the last message that is cut, in milliseconds; 0 for none.
    first_timestamp: int
    last_timestamp: int
    #: Store time of the last remaining message; 0 for none.
    kept_timestamp: int
    queues: tuple[QueueCut, ...]
    #: Key index files that are built again from the log.
    index_files: int
    tables: tuple[TableEdit, ...]
    #: Whether the store was not stopped cleanly: `apply` recovers it as well.
    is_unclean: bool
    #: The parent of the backup, or the backup itself once it is written.
    backup: Path

    @property
    def size(self) -> int:
        """The number of bytes of the log that are cut."""
        return self.log_end - self.offset

    @property
    def needs_backup(self) -> bool:
        """Whether anything is removed."""
        return self.data_end > self.offset or bool(self.tables)

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        # Index files that point past the end are left if step 8 was interrupted.
        return self.needs_backup or self.is_unclean or self.index_files > 0


def plan_truncation(
    config: MessageStoreConfig,
    log: CommitLog,
    offset: int,
    parent: Path,
    on_progress: Callable[[int, int], None] | None = None,
) -> Truncation:
    """Return what ending the log at `offset` cuts; `parent` is where the backup goes.

    `on_progress` receives the number of log bytes examined so far and the total. Raises StoreError.
    """
    if not log.segments.files:
        raise StoreError(f"the log is empty: {config.commit_log_directory} has no segments")
    if offset < log.min_offset:
        raise StoreError(f"offset {offset} is before the log, which starts at {log.min_offset}")
    _refuse_unchangeable(config, log, offset)
    unclean = is_unclean(config.root)
    _refuse_other_sizes(config)
    if not unclean:
        _refuse_missing_segments(config, log)
    survey = _survey(config, log, offset, unclean, on_progress)
    if offset > survey.log_end:
        raise StoreError(f"offset {offset} is after the log, which ends at {survey.log_end}")
    boundary = boundary_at_or_below(log, offset)
    if boundary != offset:
        raise StoreError(
            f"offset {offset} is inside a record: the nearest record boundary below is {boundary}"
        )
    ends = _QueueEnds(config, offset, survey.kept_ends)
    return Truncation(
        offset=offset,
        log_begin=log.min_offset,
        log_end=survey.log_end,
        data_end=_data_end(log, survey.log_end),
        messages=survey.messages,
        first_timestamp=_store_time(log, survey.first_cut),
        last_timestamp=_store_time(log, survey.last_cut),
        kept_timestamp=_store_time(log, survey.last_kept),
        queues=tuple(survey.queue_cuts()),
        index_files=_index_files_behind(config, offset),
        tables=tuple(plan_tables(config.config_directory, offset, ends.end_of)),
        is_unclean=unclean,
        backup=parent,
    )


def _refuse_unchangeable(config: MessageStoreConfig, log: CommitLog, offset: int) -> None:
    """Raise StoreError if a file that must be changed cannot be."""
    files = log.segments.between(offset, log.segments.end_offset)
    for file in files:
        if file.read_only:
            raise StoreError(
                f"{file.path} must be changed, but is in one of readOnlyCommitLogStorePaths: "
                "move it to a directory of storePathCommitLog"
            )
    paths = [file.path for file in files]
    directories = {path.parent for path in paths} | {
        config.root,
        config.config_directory,
        config.consume_queue_directory,
        config.index_directory,
    }
    for path in (*paths, *sorted(directories)):
        if path.exists() and not os.access(path, os.W_OK):
            raise StoreError(f"{path} cannot be written: run this as the broker's user")


def _refuse_other_sizes(config: MessageStoreConfig) -> None:
    """Raise StoreError if a start would refuse the sizes of queues or key index."""
    advice = "pass the broker's properties file (--config)"
    if is_other_size(config.consume_queue_directory, config.consume_queue_file_size):
        raise StoreError(
            f"files in {config.consume_queue_directory} do not have "
            f"{config.consume_queue_file_size} bytes: {advice}"
        )
    if config.enable_consume_queue_ext:
        refuse_other_size(
            config.consume_queue_ext_directory, config.mapped_file_size_consume_queue_ext
        )
    expected = (
        INDEX_HEADER_SIZE
        + config.max_hash_slot_num * INDEX_SLOT_SIZE
        + config.max_index_num * INDEX_ENTRY_SIZE
    )
    sizes = {path.stat().st_size for path in _index_paths(config)} - {0}
    if len(sizes) == 1 and sizes != {expected}:
        raise StoreError(
            f"files in {config.index_directory} have {sizes.pop()} bytes, but "
            f"maxHashSlotNum={config.max_hash_slot_num} and maxIndexNum={config.max_index_num} "
            f"make {expected}: {advice}"
        )


def _refuse_missing_segments(config: MessageStoreConfig, log: CommitLog) -> None:
    """Raise StoreError if consume queues know messages after the last segment."""
    known = max(map(last_end, config.consume_queue_directory.glob("*/*")), default=0)
    if known > log.segments.end_offset:
        raise StoreError(
            f"the consume queues refer to offset {known}, but the segments found end at "
            f"{log.segments.end_offset}: if the broker has several commit log directories, pass "
            "its properties file (--config)"
        )


@dataclass(slots=True)
class _Survey:
    """The records on both sides of an offset, as far as the log was walked."""

    offset: int
    log_end: int = 0
    messages: int = 0
    last_kept: int | None = None
    first_cut: int | None = None
    last_cut: int | None = None
    #: Where the queues end that have remaining records; only of an unclean store, whose queues
    #: may lack entries.
    kept_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    _cuts: dict[tuple[str, int], QueueCut] = field(default_factory=dict)

    def add(self, piece: LogPiece, *, unclean: bool) -> None:
        """Count the records of the next piece."""
        starts = piece.starts
        kept = int(np.searchsorted(starts, self.offset - piece.base))
        if kept:
            self.last_kept = piece.base + int(starts[kept - 1])
            if unclean:
                for run in _rows(piece, 0, kept).runs():
                    self.kept_ends[run.topic, run.queue_id] = int(run.offsets[-1]) + 1
        if kept == starts.size:
            return
        self.messages += starts.size - kept
        self.last_cut = piece.base + int(starts[-1])
        if self.first_cut is None:
            self.first_cut = piece.base + int(starts[kept])
        for run in _rows(piece, kept, starts.size).runs():
            key = run.topic, run.queue_id
            cut = self._cuts.get(key) or QueueCut(*key, 0, int(run.offsets[0]))
            self._cuts[key] = cut._replace(entries=cut.entries + run.offsets.size)

    def queue_cuts(self) -> list[QueueCut]:
        """Return the queues that lose entries, by name."""
        return sorted(self._cuts.values())


def _survey(
    config: MessageStoreConfig,
    log: CommitLog,
    offset: int,
    unclean: bool,
    on_progress: Callable[[int, int], None] | None,
) -> _Survey:
    files = log.segments.files
    place = min((offset - log.min_offset) // log.segments.segment_size, len(files) - 1)
    first = max(0, place + 1 - _CHECKED_SEGMENTS)
    if unclean:
        checkpoint = Checkpoint(config.root / "checkpoint")
        checkpoint.load()
        first = min(first, first_unsafe_segment(log, checkpoint.safe_timestamp))
    begin, total = files[first].base, log.segments.end_offset
    walk = LogWalk(
        log,
        begin,
        delay_levels=DelayLevels(config.message_delay_level),
        check_crc=config.check_crc_on_recover,
        after_crash=unclean,
        on_progress=on_progress and (lambda end: on_progress(end - begin, total - begin)),
    )
    survey = _Survey(offset)
    with contextlib.closing(iter(walk)) as pieces:
        for piece in pieces:
            survey.add(piece, unclean=unclean)
    survey.log_end = walk.end
    return survey


def _rows(piece: LogPiece, begin: int, end: int) -> LogPiece:
    return piece if end - begin == piece.starts.size else piece.rows(slice(begin, end))


def _store_time(log: CommitLog, offset: int | None) -> int:
    return (lookup.store_timestamp(log, offset, HEAD_SIZE_V4) or 0) if offset is not None else 0


def _data_end(log: CommitLog, log_end: int) -> int:
    """Return the end of the last block after the log's end that is not all zeros."""
    end = log_end
    for file in log.segments.between(log_end, log.segments.end_offset):
        for position, data in data_blocks(file.path, max(0, log_end - file.base)):
            end = file.base + position + len(data.rstrip(b"\0"))
    return end


def _index_paths(config: MessageStoreConfig) -> list[Path]:
    return sorted(config.index_directory.glob("[0-9]" * 17))


def _index_files_behind(config: MessageStoreConfig, offset: int) -> int:
    """Return how many index files end at or after an offset, or follow one that does."""
    paths = _index_paths(config)
    for number, path in enumerate(paths):
        with path.open("rb") as file:
            header = file.read(INDEX_HEADER_SIZE).ljust(INDEX_HEADER_SIZE, b"\0")
        if INDEX_HEADER.unpack(header)[3] >= offset:
            return len(paths) - number
    return 0


class _QueueEnds:
    """Where consume queues end when the log ends at `offset`, from their files."""

    def __init__(
        self, config: MessageStoreConfig, offset: int, kept_ends: dict[tuple[str, int], int]
    ) -> None:
        self._directory = config.consume_queue_directory
        self._offset = offset
        self._kept_ends = kept_ends
        self._known: dict[tuple[str, int], int] = {}

    def end_of(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last remaining entry."""
        key = topic, queue_id
        if key not in self._known:
            self._known[key] = max(self._find(topic, queue_id), self._kept_ends.get(key, 0))
        return self._known[key]

    def _find(self, topic: str, queue_id: int) -> int:
        end = 0
        paths = sorted((self._directory / topic / str(queue_id)).glob("[0-9]" * 20), reverse=True)
        for path in paths:
            end = int(path.name) // CONSUME_QUEUE_ENTRY_SIZE
            with path.open("rb") as file:
                descriptor = file.fileno()
                numbers = range(os.fstat(descriptor).st_size // CONSUME_QUEUE_ENTRY_SIZE)
                count = bisect_left(
                    numbers, True, key=lambda number: self._is_cut(descriptor, number)
                )
            if count:
                return end + count
        return end

    def _is_cut(self, descriptor: int, number: int) -> bool:
        size = CONSUME_QUEUE_ENTRY_SIZE
        entry = Entry.unpack(os.pread(descriptor, size, number * size).ljust(size, b"\0"))
        return entry.size <= 0 or (not entry.is_pre_blank and entry.end > self._offset)
