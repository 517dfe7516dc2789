"""Brings what stands in the transient store pool's buffers to the log's files, off the loop.

Every commitIntervalCommitLog when at least commitCommitLogLeastPages wait, all of it every
commitCommitLogThoroughInterval. What is committed is the kernel's, and survives this process;
`flush` syncs no more than that. A commit that fails is tried again in the next turn: the
buffers still have everything.

One thread, only with a pool. `stop` commits what is left on the thread that calls it.
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


class CommitService:
    """The commit thread."""

    def __init__(self, config: MessageStoreConfig, log: CommitLog) -> None:
        self._config = config
        self._log = log
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_commit = 0.0

    def start(self) -> None:
        """Begin to commit."""
        self._last_commit = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="pyromq-commit", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and commit all that is left; raises OSError. Nothing if not started."""
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
                self._turn()
            except OSError as error:
                logger.error(
                    "messages could not be committed to the log's file, tried again: %s", error
                )

    def _turn(self) -> None:
        config, marks = self._config, self._log.watermarks
        now = time.monotonic()
        waiting_pages = marks.written // _PAGE - marks.committed // _PAGE
        thorough = now - self._last_commit >= config.commit_commit_log_thorough_interval / 1000
        if waiting_pages >= config.commit_commit_log_least_pages or thorough:
            self._log.commit()
            self._last_commit = now
