"""Make a store directory consistent, between loading its files and the first put.

1. Choose where to start. After a clean stop: the third segment from the end, or where the queues
   end if that is earlier. After a crash: the newest segment whose first record was stored at or
   before the checkpoint.
2. Prepare the consume queues. Queues with damaged files are emptied, to be rebuilt. After a crash
   the others lose their entries from the start of the walk on.
3. Walk the log from there, once (`walk`). The log ends at the first bytes that are not a valid
   record. Dispatch the records of each piece to the queues that lack them. A queue that lacks
   entries from before the walk is damaged as well.
4. Truncate. The rest of the last segment is zeroed, so that stale bytes are never mistaken for a
   record. Later segments are removed, and queue entries that point past the end of the log.
5. Rebuild the damaged queues from the whole log, and correct the first offsets of all queues.

`recover` runs once, on the thread that starts the store, before the store's other threads.
`index_from` then says where the key index resumes.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import NamedTuple

import numpy as np

from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.record import HEAD_SIZE_V4, MESSAGE_MAGIC, peek
from pyromq.store.index.index import KeyIndex
from pyromq.store.log.agreed_log import AgreedLog
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.queues import lookup
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.recovery.dispatch import append_runs
from pyromq.store.recovery.piece import LogPiece
from pyromq.store.recovery.queue_damage import damage_of, lacks
from pyromq.store.recovery.walk import LogWalk, ProgressLog

logger = logging.getLogger(__name__)

QueueOf = Callable[[str, int], ConsumeQueue]


def recover(
    log: CommitLog,
    queues: Mapping[tuple[str, int], ConsumeQueue],
    queue_of: QueueOf,
    *,
    crash_checkpoint: int | None,
    check_crc: bool,
    delay_levels: DelayLevels,
    damaged: MutableMapping[ConsumeQueue, str] | None = None,
    topics: frozenset[str] | None = None,
) -> tuple[int, int]:
    """Make the store consistent; return the end of the log and where dispatching started.

    `crash_checkpoint` is the checkpoint's time after a crash, None after a clean stop. `damaged`
    has the queues whose files could not be loaded, with the reason. `topics` are the existing ones,
    or None if unknown. Queues that were written to are `dirty` afterwards.
    """
    began = time.monotonic()
    files = log.segments.files
    if not files:
        for queue in queues.values():
            queue.delete()
        return 0, 0
    # Until the end is known, everything that is mapped can be read.
    log.watermarks.assume_written(log.segments.end_offset)
    restorer = _QueueRestorer(log, queues, queue_of, delay_levels, topics)
    # Steps 1 and 2: choose where to start, and prepare the queues.
    start = _start(log, restorer, damaged or {}, crash_checkpoint)
    walked = [file for file in files if file.base >= start.walk_from]
    # Step 3: walk the log, and dispatch what the queues lack.
    end = _walk(log, restorer, start, delay_levels, crash_checkpoint, check_crc=check_crc)
    # Step 4: truncate.
    _zero_after(log, end)
    log.segments.drop_after(end)
    if crash_checkpoint is not None:
        for file in walked:
            if file.base < end and not file.read_only:
                # Recovered records are served from now on, so they must survive a power cut.
                file.sync()
    log.watermarks.assume_written(end)
    # Step 5: rebuild damaged queues. Also drops entries past the end (step 4).
    restorer.finish(end)
    if crash_checkpoint is not None:
        logger.warning(
            "recovered in %.3f s: checked %d bytes, the log ends at %d",
            time.monotonic() - began,
            end - start.walk_from,
            end,
        )
    return end, min(end, max(log.min_offset, start.dispatched))


def recover_agreed(
    log: AgreedLog,
    queues: Mapping[tuple[str, int], ConsumeQueue],
    queue_of: QueueOf,
    *,
    crash_checkpoint: int | None,
    delay_levels: DelayLevels,
    damaged: MutableMapping[ConsumeQueue, str] | None = None,
    topics: frozenset[str] | None = None,
) -> tuple[int, int]:
    """Do the same for a member of a raft group, whose log has recovered its entries.

    Only committed entries are dispatched. Those that the queues have were committed, even if the
    log's checkpoint is older. The rest of the log is for the group to decide on.
    """
    entries = log.entries
    log.watermarks.assume_written(entries.written)
    restorer = _QueueRestorer(log, queues, queue_of, delay_levels, topics)
    start = _start(log, restorer, damaged or {}, crash_checkpoint)
    entries.commit_below(restorer.known_end)
    committed = max(entries.committed_position, entries.begin_position)
    log.watermarks.assume_written(committed)
    end = _walk(log, restorer, start, delay_levels, crash_checkpoint, check_crc=False)
    log.watermarks.assume_written(end)
    restorer.finish(end)
    return end, min(end, max(log.min_offset, start.dispatched))


def _start(
    log: CommitLog,
    restorer: _QueueRestorer,
    damaged: Mapping[ConsumeQueue, str],
    crash_checkpoint: int | None,
) -> _Start:
    if crash_checkpoint is None:
        return _start_after_clean_stop(log, restorer, damaged)
    start = _start_after_crash(log, restorer, damaged, crash_checkpoint)
    logger.warning("unclean shutdown: checking the log from %d", start.walk_from)
    return start


def _walk(
    log: CommitLog,
    restorer: _QueueRestorer,
    start: _Start,
    delay_levels: DelayLevels,
    crash_checkpoint: int | None,
    *,
    check_crc: bool,
) -> int:
    """Dispatch what the queues lack; return the end of the log."""
    walk = LogWalk(
        log,
        start.walk_from,
        delay_levels=delay_levels,
        check_crc=check_crc,
        after_crash=crash_checkpoint is not None,
        on_progress=ProgressLog("checking the log", start.walk_from, log.watermarks.written),
    )
    with contextlib.closing(iter(walk)) as pieces:
        for piece in pieces:
            restorer.dispatch(piece, start.dispatched)
    return walk.end


class _Start(NamedTuple):
    """Where the walk starts, and up to where the queues have their entries."""

    walk_from: int
    dispatched: int


def _start_after_clean_stop(
    log: CommitLog, restorer: _QueueRestorer, damaged: Mapping[ConsumeQueue, str]
) -> _Start:
    restorer.prepare(damaged, keep_below=None)
    # Usually the last three segments; more if the queues lack more than these hold.
    first = min(max(0, len(log.segments.files) - 3), _last_known_segment(log, restorer))
    return _Start(log.segments.files[first].base, restorer.dispatched_to())


def _start_after_crash(
    log: CommitLog,
    restorer: _QueueRestorer,
    damaged: Mapping[ConsumeQueue, str],
    checkpoint: int,
) -> _Start:
    files = log.segments.files
    first = first_unsafe_segment(log, checkpoint)
    restorer.prepare(damaged, keep_below=files[first].base)
    last_known = _last_known_segment(log, restorer)
    if last_known < first - 1:
        # No queue has an entry for the segment before: the queues are missing, whatever the
        # checkpoint says.
        first = last_known
    return _Start(files[first].base, files[first].base)


def _last_known_segment(log: CommitLog, restorer: _QueueRestorer) -> int:
    """Return the index of the segment that holds the end of the last record with an entry."""
    known = max(0, restorer.dispatched_to() - log.segments.files[0].base)
    return known // log.segments.segment_size


def first_unsafe_segment(log: CommitLog, checkpoint: int) -> int:
    """Return the index of the newest segment that started at or before the checkpoint."""
    files = log.segments.files
    for index in range(len(files) - 1, 0, -1):
        first = files[index].base + log.framing_at(files[index].base).prefix
        _, magic = peek(log.read(first, HEAD_SIZE_V4))
        stored = lookup.store_timestamp(log, first, HEAD_SIZE_V4)
        if magic == MESSAGE_MAGIC and stored and 0 < stored <= checkpoint:
            return index
    return 0


def _zero_after(log: CommitLog, end: int) -> None:
    """Fill the rest of the last segment with zeros."""
    file = log.segments.find(end)
    if file is not None:
        file.empty_from(end - file.base)


class _QueueRestorer:
    """Brings the consume queues in line with the log."""

    def __init__(
        self,
        log: CommitLog,
        queues: Mapping[tuple[str, int], ConsumeQueue],
        queue_of: QueueOf,
        delay_levels: DelayLevels,
        topics: frozenset[str] | None,
    ) -> None:
        self._log = log
        self._queues = queues
        self._queue_of = queue_of
        self._delay_levels = delay_levels
        self._topics = topics
        self._damaged: set[ConsumeQueue] = set()
        #: Where the last record of each queue ended before the walk. Noted while the queue's file
        #: is mapped: mapping all of them again takes a quarter of the start-up time.
        self._ends: dict[ConsumeQueue, int] = {}
        #: The end of the last record that a queue had, before any entry was dropped.
        self.known_end = 0

    def prepare(self, damaged: Mapping[ConsumeQueue, str], *, keep_below: int | None) -> None:
        """Find the ends of the queues; drop damaged ones, and entries from `keep_below` on."""
        for queue, reason in damaged.items():
            self._discard(queue, reason)
        for queue in self._queues.values():
            if queue in self._damaged:
                continue
            queue.recover()
            self.known_end = max(self.known_end, queue.last_physical_offset())
            if keep_below is not None:
                queue.truncate(keep_below)
            queue.correct_min_offset(self._log.min_offset)
            reason_found = damage_of(queue, self._log)
            if reason_found is not None:
                self._discard(queue, reason_found)
            else:
                self._ends[queue] = queue.last_physical_offset()

    def dispatched_to(self) -> int:
        """Return the end of the last record that a queue has."""
        return max(self._ends.values(), default=0)

    def dispatch(self, piece: LogPiece, dispatched: int) -> None:
        """Append the entries that the queues lack.

        The queues should have all records below `dispatched`, which is only verified.
        """
        if piece.base < dispatched:
            known = int(np.searchsorted(piece.starts, dispatched - piece.base))
            if known == piece.starts.size:
                self._verify(piece)
                return
            self._verify(piece.rows(slice(0, known)))
            piece = piece.rows(slice(known, None))
        append_runs(piece.runs(), self._queue_if_sound, self._discard)

    def finish(self, end: int) -> None:
        """Drop entries that point past the end of the log, and rebuild the damaged queues."""
        for queue in self._queues.values():
            if queue not in self._damaged and self._ends.get(queue, 0) > end:
                queue.truncate(end)
                queue.correct_min_offset(self._log.min_offset)
        if self._damaged:
            self._rebuild(end)
        for queue in self._queues.values():
            # The others are as `prepare` left them.
            if queue.dirty or queue not in self._ends:
                queue.correct_min_offset(self._log.min_offset)

    def _rebuild(self, end: int) -> None:
        log = self._log
        logger.warning("rebuilding %d consume queues from the log", len(self._damaged))
        walk = LogWalk(
            log,
            log.min_offset,
            delay_levels=self._delay_levels,
            check_crc=False,
            on_progress=ProgressLog("rebuilding consume queues", log.min_offset, end),
        )
        with contextlib.closing(iter(walk)) as pieces:
            for piece in pieces:
                append_runs(piece.runs(), self._queue_if_damaged)

    def _verify(self, piece: LogPiece) -> None:
        for run in piece.runs():
            queue = self._queues.get((run.topic, run.queue_id))
            if queue is None:
                if self._topics is not None and run.topic in self._topics:
                    self._discard(self._queue_of(run.topic, run.queue_id), "its files are missing")
            elif queue not in self._damaged and lacks(queue, run):
                self._discard(queue, f"entry {run.offsets[-1]} does not match its message")

    def _queue_if_sound(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queue = self._queue_of(topic, queue_id)
        return None if queue in self._damaged else queue

    def _queue_if_damaged(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queue = self._queues.get((topic, queue_id))
        return queue if queue in self._damaged else None

    def _discard(self, queue: ConsumeQueue, reason: str) -> None:
        """Delete a queue's files; `finish` rebuilds it."""
        logger.warning(
            "consume queue %s is damaged, rebuilding it from the log: %s",
            queue.segments.directory,
            reason,
        )
        queue.delete()
        # Files of a wrong size were never mapped.
        for path in queue.segments.directory.glob("[0-9]" * 20):
            path.unlink()
        self._damaged.add(queue)


def index_from(log: CommitLog, index: KeyIndex, dispatched_from: int, *, clean: bool) -> int:
    """Return where the key index resumes: after its last message, or at the start of the log.

    Not where dispatching started: after a crash, index files with older messages are dropped, and
    with them some keys of a message whose first keys filled the previous file. As in Java, that
    message is then indexed again and may be found twice.
    """
    if index.end_offset >= log.watermarks.written:
        index.delete_behind(log.watermarks.written)
        clean = False
    if not index.end_timestamp:
        return log.min_offset
    last = lookup.record_at(log, index.end_offset)
    if last is None:
        return max(log.min_offset, dispatched_from)
    return index.end_offset + (len(last) if clean else -log.framing_at(index.end_offset).prefix)
