"""A store's door for replication: read the log, append a master's bytes, wait for replicas.

`source` is the log as a master reads it, `log` the log as a replica writes it. The other methods
connect the acknowledgements of a master with what its replicas report.

Owned by `message_store`; used by `pyromq.replication`. Runs on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pyromq.store.acknowledgement import Acknowledgements, AckOutcome, OffsetGate
from pyromq.store.chunk import Chunk
from pyromq.store.flush import FlushService
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log_source import LogSource
from pyromq.store.replicated import ReplicatedLog


class StoreReplication:
    """Everything that replication needs of a store."""

    def __init__(
        self,
        log: CommitLog,
        chunk: Chunk,
        flush: FlushService,
        replicated: ReplicatedLog,
        *,
        waits_for_flush: bool,
    ) -> None:
        """`waits_for_flush` says that responses wait for an fsync (SYNC_FLUSH)."""
        self._chunk = chunk
        self._flush = flush
        self._watermarks = log.watermarks
        self._acknowledgements = Acknowledgements(flush if waits_for_flush else None)
        self.source = LogSource(log)
        self.log = replicated

    def start(self, end: int) -> None:
        """Continue the log at `end`, where recovery found its last record to end."""
        self._chunk.set_gate(self._acknowledgements.gate)
        self.log.start(end)

    def require_replicas(self, replicas: OffsetGate | None) -> None:
        """Let responses wait for a replica (SYNC_MASTER) from now on, or no longer."""
        self._chunk.seal()
        self._acknowledgements.require_replicas(replicas)
        self._chunk.set_gate(self._acknowledgements.gate)

    def on_append(self, listener: Callable[[], None] | None) -> None:
        """Call `listener` after each append of messages to the log."""
        self._chunk.set_on_append(listener)

    def flushed(self, offset: int) -> asyncio.Future[AckOutcome]:
        """Return a future that is done when everything below `offset` is on disk, or on timeout."""
        return self._flush.wait(offset)

    def move_replicated(self, offset: int) -> None:
        """Note that a replica has everything below `offset`."""
        self._watermarks.move_replicated(offset)

    @property
    def replicated_offset(self) -> int:
        """Return the offset below which a replica has everything; 0 without replicas."""
        return self._watermarks.replicated
