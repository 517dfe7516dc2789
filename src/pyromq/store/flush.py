"""Brings what was written to the disk, off the loop (ASYNC_FLUSH).

Commit log: every flushIntervalCommitLog when at least flushCommitLogLeastPages are
dirty, all of it every flushCommitLogThoroughInterval. Consume queues: every
flushIntervalConsumeQueue, each queue that was written to. After both, the checkpoint.

One thread. Queues come in through `add` (a deque: safe between threads). A queue's
`dirty` is cleared before its sync, and the loop writes before it looks at `dirty`, so
a write is either in this sync or marks the queue again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Final

from pyromq.store.checkpoint import Checkpoint
from pyromq.store.commit_log import CommitLog
from pyromq.store.config import MessageStoreConfig
from pyromq.store.consume_queue import ConsumeQueue
from pyromq.store.index import KeyIndex

logger = logging.getLogger(__name__)

_PAGE: Final = 4096


class FlushService:
    """The flush thread."""

    def __init__(
        self, config: MessageStoreConfig, log: CommitLog, index: KeyIndex, checkpoint: Checkpoint
    ) -> None:
        self._config = config
        self._log = log
        self._index = index
        self._checkpoint = checkpoint
        self._dirty: deque[ConsumeQueue] = deque()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_log_flush = 0.0
        self._last_queue_flush = 0.0
        self.add = self._dirty.append

    def start(self) -> None:
        """Begin to flush."""
        self._last_log_flush = self._last_queue_flush = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="pyromq-flush", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and flush all that is left."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._flush_log()
        self._flush_queues()
        self._index.flush()
        self._save_checkpoint()

    def _run(self) -> None:
        interval = self._config.flush_interval_commit_log / 1000
        while not self._stop.wait(interval):
            try:
                self._turn()
            except OSError as error:
                # Tried again in the next turn; the flushed mark stays where it is.
                logger.error("flush failed in %s: %s", error.filename or "the store", error)

    def _turn(self) -> None:
        config = self._config
        now = time.monotonic()
        marks = self._log.watermarks
        dirty_pages = (marks.written - marks.flushed) // _PAGE
        thorough = now - self._last_log_flush >= config.flush_commit_log_thorough_interval / 1000
        if dirty_pages >= config.flush_commit_log_least_pages or thorough:
            self._flush_log()
            self._log.release_old_pages()
            self._last_log_flush = now
        if now - self._last_queue_flush >= config.flush_interval_consume_queue / 1000:
            self._flush_queues()
            self._last_queue_flush = now
            self._save_checkpoint()

    def _flush_log(self) -> None:
        self._log.flush()
        self._checkpoint.log_timestamp = self._log.watermarks.flushed_timestamp or (
            self._checkpoint.log_timestamp
        )

    def _flush_queues(self) -> None:
        timestamp = self._log.watermarks.written_timestamp
        for _ in range(len(self._dirty)):
            queue = self._dirty.popleft()
            queue.dirty = False
            try:
                queue.sync()
            except (FileNotFoundError, ValueError):
                continue  # its topic was deleted meanwhile: no file, or no mapping any more
            except OSError:
                # Once more than needed does no harm: the loop may have added it again.
                queue.dirty = True
                self._dirty.append(queue)
                raise
        if timestamp:
            self._checkpoint.queue_timestamp = timestamp

    def _save_checkpoint(self) -> None:
        self._checkpoint.index_timestamp = max(
            self._checkpoint.index_timestamp, self._index.synced_timestamp
        )
        self._checkpoint.save()
