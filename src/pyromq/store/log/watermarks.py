"""How far the commit log is written, committed, flushed and replicated.

Invariants
1. flushed <= committed <= written, and none of them moves back while the store runs. Only a
   transient store pool makes `committed` lag. Without one every written byte is already in the
   kernel's page cache, `committed` is not maintained, and the invariant is flushed <= written.
2. A message that SYNC_FLUSH acknowledged ends at or below `flushed`, one that SYNC_MASTER
   acknowledged at or below `replicated`.
3. `replicated` is the highest offset that a replica reported, and only offsets of bytes count that
   this log has (`replication.acknowledged`). It is 0 until the first report of this run.

Plain attributes suffice, because no mark has two writers at a time: the loop moves `written`, the
flush thread `flushed`, the loop `replicated`, and `committed` moves under the log's commit lock, on
the commit thread or, if all buffers are in use, on the loop.
"""

from __future__ import annotations


class Watermarks:
    """Physical offsets after the last written, committed, flushed and replicated byte."""

    __slots__ = (
        "_has_pool",
        "committed",
        "committed_timestamp",
        "flushed",
        "flushed_timestamp",
        "replicated",
        "written",
        "written_timestamp",
    )

    def __init__(self, *, has_pool: bool = False) -> None:
        """`has_pool` says that `committed` is maintained."""
        self._has_pool = has_pool
        self.written = 0
        self.committed = 0
        self.flushed = 0
        self.replicated = 0
        #: Store timestamps of the last message at or below each mark.
        self.written_timestamp = 0
        self.committed_timestamp = 0
        self.flushed_timestamp = 0

    def assume_written(self, offset: int) -> None:
        """Allow reads below `offset` in a log that is not started, and promise nothing.

        Recovery and offline readers set it, in either direction.
        """
        self.written = offset

    def reset(self, offset: int) -> None:
        """Set all marks but `replicated` to the log's end, which recovery has fsynced."""
        self.written = self.committed = self.flushed = offset

    def move_written(self, offset: int, timestamp: int) -> None:
        """Everything below `offset` is in the active segment or its buffer."""
        assert self.written <= offset, (self.written, offset)
        self.written = offset
        self.written_timestamp = timestamp

    def move_committed(self, offset: int, timestamp: int) -> None:
        """Everything below `offset` is in the log's files."""
        assert self.committed <= offset <= self.written, (self.committed, offset, self.written)
        self.committed = offset
        self.committed_timestamp = timestamp

    def move_flushed(self, offset: int, timestamp: int) -> None:
        """Everything below `offset` is on disk."""
        limit = self.committed if self._has_pool else self.written
        assert self.flushed <= offset <= limit, (self.flushed, offset, limit)
        self.flushed = offset
        self.flushed_timestamp = timestamp

    def move_replicated(self, offset: int) -> None:
        """A replica has everything below `offset`."""
        assert self.replicated <= offset <= self.written, (self.replicated, offset, self.written)
        self.replicated = offset
