"""Fsync the commit log, the consume queues and the checkpoint, off the loop.

Commit log, ASYNC_FLUSH: every flushIntervalCommitLog if at least flushCommitLogLeastPages are
dirty (without flushCommitLogTimed, within 10 ms of that), and everything every
flushCommitLogThoroughInterval. SYNC_FLUSH: as soon as a chunk waits (`wait`). An fsync covers
everything written before it starts, so chunks that arrive while one runs share the next: group
commit. Consume queues: every flushIntervalConsumeQueue, each queue with at least
flushConsumeQueueLeastPages dirty pages, and all others every flushConsumeQueueThoroughInterval. The
checkpoint follows as soon as no queue is left out. Log and queues have a thread each, so that no
response waits for the fsyncs of consume queues.

An fsync that could not start, because no descriptor or memory was free, is retried soon; waiters
keep waiting until their timeout. A log whose fsync failed is never synced again: the kernel may
have dropped pages it could not write, and a second fsync would not report that. Waiters fail,
`on_failure` is called, and the flushed mark stays where it is until a restart.

Queues arrive through `add` (a deque, safe between threads). A queue's `dirty` is cleared before its
fsync, and the loop writes before it reads `dirty`, so a write is either part of this fsync or marks
the queue again. A queue with too few dirty pages is put off: `_deferred` holds it until it is added
again or a thorough flush is due, so a round examines only queues written since the last one.
`wait` runs on the loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from pyromq.base.descriptors import ShortageError, top_up
from pyromq.store.acknowledgement import AckOutcome, OffsetWaiters
from pyromq.store.config import MessageStoreConfig
from pyromq.store.index.index import KeyIndex
from pyromq.store.log.checkpoint import Checkpoint
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.queues.consume_queue import ConsumeQueue

logger = logging.getLogger(__name__)

_PAGE: Final = 4096
#: A flush that takes longer is logged, as in RocketMQ.
SLOW_FLUSH_MS: Final = 500
#: Interval of the checks for dirty pages without flushCommitLogTimed.
_UNTIMED_SECONDS: Final = 0.01
#: Delay before a retry if no descriptor was free.
_RETRY_SECONDS: Final = 0.05


class FlushService:
    """The flush threads: one for the log, one for everything else."""

    def __init__(
        self,
        config: MessageStoreConfig,
        log: CommitLog,
        index: KeyIndex,
        checkpoint: Checkpoint,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        self._config = config
        self._log = log
        self._index = index
        self._checkpoint = checkpoint
        self._dirty: deque[ConsumeQueue] = deque()
        #: Queues with too few dirty pages, in the order of their first deferral.
        self._deferred: dict[ConsumeQueue, None] = {}
        self._on_failure = on_failure
        self._wake = threading.Event()
        self._stopping = False
        self._failed = False
        #: Ends the pause of the thread for queues and checkpoint.
        self._stop = threading.Event()
        self._waiters = OffsetWaiters(lambda: log.watermarks.flushed, AckOutcome.FLUSH_TIMED_OUT)
        self._threads: list[threading.Thread] = []
        self._last_thorough_flush = self._last_thorough_queue_flush = 0.0
        self._observe: Callable[[float], None] | None = None
        self.add = self._dirty.append

    def time_flushes(self, observe: Callable[[float], None]) -> None:
        """Call `observe` with the seconds of each fsync of the log, on the thread that does it."""
        self._observe = observe

    def start(self) -> None:
        """Start the threads."""
        self._last_thorough_flush = self._last_thorough_queue_flush = time.monotonic()
        self._threads = [
            threading.Thread(target=self._run_log, name="pyromq-flush", daemon=True),
            threading.Thread(target=self._run_queues, name="pyromq-flush-queues", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads and flush the rest."""
        self._stopping = True
        self._wake.set()
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._flush_log()
        self._flush_queues()
        self._index.flush()
        self._save_checkpoint()
        self._waiters.fail(AckOutcome.FLUSH_FAILED)
        self._waiters.notify()

    def wait(self, offset: int) -> asyncio.Future[AckOutcome]:
        """Return a future that is done when everything below `offset` is on disk, or on timeout."""
        future = self._waiters.wait(offset, self._config.sync_flush_timeout / 1000)
        if not self._failed:
            self._wake.set()
        return future

    def _run_log(self) -> None:
        must_retry = False
        while True:
            interval = self._config.flush_interval_commit_log / 1000
            if not self._config.flush_commit_log_timed:
                interval = min(interval, _UNTIMED_SECONDS)
            is_awaited = self._wake.wait(min(interval, _RETRY_SECONDS) if must_retry else interval)
            self._wake.clear()
            if self._stopping:
                return
            try:
                if is_awaited or must_retry or self._is_log_due():
                    self._flush_log()
                must_retry = False
            except ShortageError:  # `descriptors` has logged it
                must_retry = True
            except OSError as error:
                logger.error("flush of %s failed: %s", error.filename or "the commit log", error)
            self._waiters.notify_from_thread()
            # After the waiters are notified: the next fsync may wait for this, no response does.
            self._log.release_old_pages()

    def _is_log_due(self) -> bool:
        config = self._config
        now = time.monotonic()
        dirty_pages = (self._log.committed[0] - self._log.watermarks.flushed) // _PAGE
        interval = config.flush_commit_log_thorough_interval / 1000
        if dirty_pages < config.flush_commit_log_least_pages and (
            now - self._last_thorough_flush < interval
        ):
            return False
        self._last_thorough_flush = now
        return True

    def _run_queues(self) -> None:
        must_retry = False
        while True:
            interval = self._config.flush_interval_consume_queue / 1000
            if self._stop.wait(min(interval, _RETRY_SECONDS) if must_retry else interval):
                return
            try:
                self._flush_queues(thorough=self._is_thorough_due())
                self._save_checkpoint()
                must_retry = False
                top_up()
            except ShortageError:
                must_retry = True
            except OSError as error:
                logger.error(
                    "flush of %s failed, retrying in %g s: %s; check the disk",
                    error.filename or "the consume queues",
                    interval,
                    error,
                )

    def _is_thorough_due(self) -> bool:
        """Whether this round flushes queues with few dirty pages as well."""
        now = time.monotonic()
        interval = self._config.flush_consume_queue_thorough_interval / 1000
        if now - self._last_thorough_queue_flush < interval:
            return False
        self._last_thorough_queue_flush = now
        return True

    def _flush_log(self) -> None:
        if self._failed:
            return
        begun, before = time.monotonic(), self._log.watermarks.flushed
        try:
            self._log.flush()
        except ShortageError:
            raise
        except OSError as error:
            self._failed = True
            self._waiters.fail(AckOutcome.FLUSH_FAILED)
            logger.critical(
                "commit log flush failed, refusing all messages until a restart: %s", error
            )
            if self._on_failure is not None:
                self._on_failure(f"commit log flush failed: {error}")
            raise
        _report_slow("commit log", begun)
        if self._observe is not None and self._log.watermarks.flushed > before:
            self._observe(time.monotonic() - begun)
        self._checkpoint.log_timestamp = self._log.watermarks.flushed_timestamp or (
            self._checkpoint.log_timestamp
        )

    def _flush_queues(self, *, thorough: bool = True) -> None:
        """Fsync the dirty queues; unless `thorough`, put off those with too few dirty pages."""
        timestamp = self._log.watermarks.written_timestamp
        begun = time.monotonic()
        least_pages = 0 if thorough else self._config.flush_consume_queue_least_pages
        if thorough:
            self._dirty.extend(self._deferred)
            self._deferred.clear()
        for _ in range(len(self._dirty)):
            queue = self._dirty.popleft()
            queue.dirty = False
            if queue.dirty_pages < least_pages:
                self._deferred[queue] = None
                continue
            self._deferred.pop(queue, None)
            try:
                queue.sync()
            except (FileNotFoundError, ValueError):
                continue  # its topic was deleted meanwhile: the file or its mapping is gone
            except OSError:
                # The loop may have added it again meanwhile; a second fsync is harmless.
                queue.dirty = True
                self._dirty.append(queue)
                raise
        _report_slow("consume queues", begun)
        if timestamp and not self._deferred:
            self._checkpoint.queue_timestamp = timestamp

    def _save_checkpoint(self) -> None:
        self._checkpoint.index_timestamp = max(
            self._checkpoint.index_timestamp, self._index.synced_timestamp
        )
        self._checkpoint.save()


def _report_slow(what: str, begun: float) -> None:
    milliseconds = (time.monotonic() - begun) * 1000
    if milliseconds > SLOW_FLUSH_MS:
        logger.warning(
            "flush of the %s took %.0f ms, expected at most %d ms: check the disk's latency",
            what,
            milliseconds,
            SLOW_FLUSH_MS,
        )
