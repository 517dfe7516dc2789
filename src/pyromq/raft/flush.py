"""Fsync a raft log and save its checkpoint, off the loop.

The log is fsynced every 10 ms, as in DLedger: acknowledgements do not wait for it. A caller that
must know an entry to be on disk calls `wake` and gets `on_flushed` afterwards. An fsync covers
everything written before it starts. The checkpoint is saved every 3 s, and by `RaftLog.stop`.

An fsync that could not start, because no descriptor was free, is retried. A log whose fsync failed
is never fsynced again: the kernel may have dropped pages that it could not write, and a second
fsync would not report that. `on_failure` is called, once.

Runs one thread, on which both callbacks run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from pyromq.base.descriptors import ShortageError
from pyromq.raft.log import RaftLog

logger = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 0.01
CHECKPOINT_SECONDS: Final = 3.0


class FlushService:
    """The flush thread of one raft log."""

    def __init__(
        self,
        log: RaftLog,
        *,
        on_flushed: Callable[[], None] | None = None,
        on_failure: Callable[[str], None] | None = None,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
    ) -> None:
        self._log = log
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self._checkpoint_seconds = checkpoint_seconds
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        #: An fsync failed: nothing is flushed any more.
        self.failed = False

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="pyromq-raft-flush", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. `RaftLog.stop` flushes the rest."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wake(self) -> None:
        """Flush at once. Any thread."""
        self._wake.set()

    def _run(self) -> None:
        saved = time.monotonic()
        while True:
            self._wake.wait(FLUSH_SECONDS)
            self._wake.clear()
            if self._stopping or self.failed:
                return
            self._flush()
            if not self.failed and time.monotonic() - saved >= self._checkpoint_seconds:
                saved = time.monotonic()
                self._save_checkpoint()

    def _flush(self) -> None:
        log = self._log
        if log.flushed >= log.written:
            return
        try:
            log.flush()
        except ShortageError:  # `descriptors` has logged it
            return
        except OSError as error:
            self.failed = True
            reason = f"flush of {error.filename or log.directory} failed: {error}"
            logger.critical("%s; accepting no entries until a restart", reason)
            if self._on_failure is not None:
                self._on_failure(reason)
            return
        if self._on_flushed is not None:
            self._on_flushed()

    def _save_checkpoint(self) -> None:
        try:
            self._log.save_checkpoint()
        except ShortageError:
            pass
        except OSError as error:
            # Not fatal: a start would only learn the committed index from the leader.
            logger.error("cannot save the checkpoint of %s: %s", self._log.directory, error)
