"""Commit the transient store pool's buffers to the log's files, off the loop.

Commits every commitIntervalCommitLog if at least commitCommitLogLeastPages are waiting, and
everything every commitCommitLogThoroughInterval. Committed bytes are in the kernel's page cache and
survive a kill; `flush` syncs only those. A failed commit is retried in the next round: the buffers
still hold everything.

Runs one thread, only with a pool. `stop` commits the rest on the caller's thread.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from pyromq.store.config import MessageStoreConfig
from pyromq.store.log.commit_log import CommitLog

logger = logging.getLogger(__name__)

_PAGE: Final = 4096
#: A commit that takes longer is logged, as in RocketMQ.
SLOW_COMMIT_MS: Final = 500


class CommitService:
    """The commit thread."""

    def __init__(self, config: MessageStoreConfig, log: CommitLog) -> None:
        self._config = config
        self._log = log
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_commit = 0.0

    def start(self) -> None:
        """Start the thread."""
        self._last_commit = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="pyromq-commit", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, if started, and commit the rest. Raises OSError."""
        if self._thread is None:
            return
        self._wake.set()
        self._thread.join()
        self._thread = None
        self._log.commit()

    def _run(self) -> None:
        interval = self._config.commit_interval_commit_log / 1000
        while not self._wake.wait(interval):
            try:
                self._round()
            except OSError as error:
                logger.error(
                    "commit of the transient store pool failed, retrying in %g s: %s; check the "
                    "disk",
                    interval,
                    error,
                )

    def _round(self) -> None:
        config, marks = self._config, self._log.watermarks
        now = time.monotonic()
        waiting_pages = marks.written // _PAGE - marks.committed // _PAGE
        thorough = now - self._last_commit >= config.commit_commit_log_thorough_interval / 1000
        if waiting_pages >= config.commit_commit_log_least_pages or thorough:
            self._log.commit()
            milliseconds = (time.monotonic() - now) * 1000
            if milliseconds > SLOW_COMMIT_MS:
                logger.warning(
                    "commit of the transient store pool took %.0f ms, expected at most %d ms: "
                    "check the disk's latency",
                    milliseconds,
                    SLOW_COMMIT_MS,
                )
            self._last_commit = now
