"""How far the commit log is written, committed and flushed.

Invariants
1. flushed <= committed <= written, and none of them moves back, except in recovery before the
   store starts. Only a transient store pool makes `committed` lag; without one every written
   byte is already in the kernel's page cache, `committed` is not maintained, and the invariant
   is flushed <= written.
2. A message that SYNC_FLUSH acknowledged ends at or below `flushed`.

Each mark has one writer, so plain attributes suffice: the loop moves `written`, the commit thread
`committed`, the flush thread `flushed`.
"""

from __future__ import annotations


class Watermarks:
    """Physical offsets after the last written, committed and flushed byte."""

    __slots__ = (
        "_has_pool",
        "committed",
        "committed_timestamp",
        "flushed",
        "flushed_timestamp",
        "written",
        "written_timestamp",
    )

    def __init__(self, *, has_pool: bool = False) -> None:
        """`has_pool` says that `committed` is maintained."""
        self._has_pool = has_pool
        self.written = 0
        self.committed = 0
        self.flushed = 0
        #: Store timestamps of the last message at or below each mark.
        self.written_timestamp = 0
        self.committed_timestamp = 0
        self.flushed_timestamp = 0

    def reset(self, offset: int) -> None:
        """Set all marks before the store starts: to the log's end, or as far as it may be read."""
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
