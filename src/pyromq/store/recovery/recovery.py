"""What happens to a store directory between loading its files and the first put.

1. Where to begin: after a clean stop the third segment from the end, or where the queues
   end, if that is before; after a crash the newest segment whose first record was stored at
   or before the checkpoint's time.
2. Consume queues whose files cannot be right are emptied, to be made again. After a crash
   the others lose their entries from the beginning of the walk on.
3. The log is walked from there, once (`log_walk`): it ends at the first bytes that are no
   record. What the queues lack of each piece is dispatched to them; a queue that lacks
   entries from before the walk is damaged too.
4. The rest of the last segment is emptied, so that nothing stale can ever be taken for a
   record, later segments are removed, and entries that point behind the log's end.
5. Damaged queues are made again from the whole log; all first offsets are corrected.

Runs once, on the thread that starts the store, before any other thread of it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, MutableMapping

import numpy as np

from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.record import HEAD_SIZE_V4, MESSAGE_MAGIC, peek
from pyromq.store.index.index import KeyIndex
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
    clean: bool,
    checkpoint_timestamp: int,
    check_crc: bool,
    delay_levels: DelayLevels,
    damaged: MutableMapping[ConsumeQueue, str] | None = None,
    topics: frozenset[str] | None = None,
) -> tuple[int, int]:
    """Make the store consistent; returns the log's end and where dispatching began.

    `damaged` are queues whose files could not even be loaded, with the reason; `topics` are
    those that exist, None when nobody knows. Queues that were written to are `dirty` then.
    """
    began = time.monotonic()
    files = log.segments.files
    if not files:
        for queue in queues.values():
            queue.delete()
        return 0, 0
    # Until the end is known, all that is mapped can be read.
    log.watermarks.written = log.segments.end_offset
    restorer = _QueueRestorer(log, queues, queue_of, delay_levels, topics)
    if clean:
        restorer.prepare(damaged or {}, keep_below=None)
        dispatched = restorer.dispatched_to()
        # Queues that lack more than the last segments hold, such as all of it, get that too.
        lacking = max(0, dispatched - files[0].base) // log.segments.segment_size
        first = min(max(0, len(files) - 3), lacking)
        walk_from = files[first].base
    else:
        first = _first_unsafe(log, checkpoint_timestamp)
        restorer.prepare(damaged or {}, keep_below=files[first].base)
        lacking = max(0, restorer.dispatched_to() - files[0].base) // log.segments.segment_size
        if lacking < first - 1:
            # No queue knows of the segment before: they are missing, whatever the checkpoint says.
            first = lacking
        walk_from = dispatched = files[first].base
    walked = files[first:]
    if not clean:
        logger.warning("the last stop was not clean: the log is checked from %d on", walk_from)
    progress = ProgressLog("checking the log", walk_from, log.watermarks.written)
    walk = LogWalk(
        log,
        walk_from,
        delay_levels=delay_levels,
        check_crc=check_crc,
        after_crash=not clean,
        on_progress=progress,
    )
    with contextlib.closing(iter(walk)) as pieces:
        for piece in pieces:
            restorer.take(piece, dispatched)
    end = walk.end
    _empty_behind(log, end)
    log.segments.drop_after(end)
    if not clean:
        for file in walked:
            if file.base < end and not file.read_only:
                # What is served from now on must not be lost with the machine's memory.
                file.sync()
    log.watermarks.written = end
    restorer.finish(end)
    if not clean:
        seconds = time.monotonic() - began
        logger.warning(
            "recovered in %.3f s: %d bytes were checked, the log ends at %d",
            seconds,
            end - walk_from,
            end,
        )
    return end, min(end, max(log.min_offset, dispatched))


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
        #: Where the last record ends that each queue knew before the walk. Noted while a queue's
        #: file is mapped: to map all of them once more takes a quarter of a start.
        self._ends: dict[ConsumeQueue, int] = {}

    def prepare(self, damaged: Mapping[ConsumeQueue, str], *, keep_below: int | None) -> None:
        """Find the queues' ends and drop what cannot be right or will be made again."""
        for queue, reason in damaged.items():
            self._give_up(queue, reason)
        for queue in self._queues.values():
            if queue in self._damaged:
                continue
            queue.recover()
            if keep_below is not None:
                queue.truncate(keep_below)
            queue.correct_min_offset(self._log.min_offset)
            reason_found = damage_of(queue, self._log)
            if reason_found is not None:
                self._give_up(queue, reason_found)
            else:
                self._ends[queue] = queue.last_physical_offset()

    def dispatched_to(self) -> int:
        """The end of the last record that a queue knows."""
        return max(self._ends.values(), default=0)

    def take(self, piece: LogPiece, dispatched: int) -> None:
        """Give the queues what they lack of a piece.

        Records below `dispatched` have their entries already: the queues are only asked.
        """
        if piece.base < dispatched:
            known = int(np.searchsorted(piece.starts, dispatched - piece.base))
            if known == piece.starts.size:
                self._ask(piece)
                return
            self._ask(piece.rows(slice(0, known)))
            piece = piece.rows(slice(known, None))
        append_runs(piece.runs(), self._queue_if_sound, self._give_up)

    def finish(self, end: int) -> None:
        """Cut what points behind the log's end, and make the damaged queues again."""
        for queue in self._queues.values():
            if queue not in self._damaged and self._ends.get(queue, 0) > end:
                queue.truncate(end)
                queue.correct_min_offset(self._log.min_offset)
        if self._damaged:
            log = self._log
            logger.warning("%d consume queues are made again from the log", len(self._damaged))
            progress = ProgressLog("making consume queues", log.min_offset, end)
            walk = LogWalk(
                log,
                log.min_offset,
                delay_levels=self._delay_levels,
                check_crc=False,
                on_progress=progress,
            )
            with contextlib.closing(iter(walk)) as pieces:
                for piece in pieces:
                    append_runs(piece.runs(), self._queue_if_damaged)
        for queue in self._queues.values():
            # The others are as `prepare` left them.
            if queue.dirty or queue not in self._ends:
                queue.correct_min_offset(self._log.min_offset)

    def _ask(self, piece: LogPiece) -> None:
        for run in piece.runs():
            queue = self._queues.get((run.topic, run.queue_id))
            if queue is None:
                if self._topics is not None and run.topic in self._topics:
                    self._give_up(self._queue_of(run.topic, run.queue_id), "its files are missing")
            elif queue not in self._damaged and lacks(queue, run):
                self._give_up(queue, f"entry {run.offsets[-1]} is not that of its message")

    def _queue_if_sound(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queue = self._queue_of(topic, queue_id)
        return None if queue in self._damaged else queue

    def _queue_if_damaged(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queue = self._queues.get((topic, queue_id))
        return queue if queue in self._damaged else None

    def _give_up(self, queue: ConsumeQueue, reason: str) -> None:
        logger.warning(
            "consume queue %s is damaged, made again from the log: %s",
            queue.segments.directory,
            reason,
        )
        queue.delete()
        # Those of a wrong size were never mapped.
        for path in queue.segments.directory.glob("[0-9]" * 20):
            path.unlink()
        self._damaged.add(queue)


def index_from(log: CommitLog, index: KeyIndex, dispatched_from: int, *, clean: bool) -> int:
    """Where the key index goes on: behind its last message, or at the log's beginning.

    Not where dispatching began: after a crash index files go that hold older messages, and
    with them some keys of a message whose first ones filled the file before. So that message
    is indexed once more then, as Java does, and may be found twice.
    """
    if index.end_offset >= log.watermarks.written:
        index.delete_behind(log.watermarks.written)
        clean = False
    if not index.end_timestamp:
        return log.min_offset
    last = lookup.record_at(log, index.end_offset)
    if last is None:
        return max(log.min_offset, dispatched_from)
    return index.end_offset + (len(last) if clean else 0)


def _first_unsafe(log: CommitLog, checkpoint_timestamp: int) -> int:
    """The index of the newest segment that began at or before the checkpoint."""
    files = log.segments.files
    for index in range(len(files) - 1, 0, -1):
        base = files[index].base
        _, magic = peek(log.read(base, HEAD_SIZE_V4))
        stored = lookup.store_timestamp(log, base, HEAD_SIZE_V4)
        if magic == MESSAGE_MAGIC and stored and 0 < stored <= checkpoint_timestamp:
            return index
    return 0


def _empty_behind(log: CommitLog, end: int) -> None:
    """Fill the rest of the last segment with zeros."""
    file = log.segments.find(end)
    if file is not None:
        file.empty_from(end - file.base)
