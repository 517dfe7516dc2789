"""How far the commit log has come: written, committed, flushed, replicated.

Invariants
1. flushed <= written, and neither ever goes back (but for recovery, before start). With a
   transient store pool flushed <= committed <= written; without, what is written is
   committed, and `committed` is not kept.
2. A message that SYNC_FLUSH acknowledged ends at or below `flushed`; one that
   SYNC_MASTER acknowledged ends at or below `replicated`.

`written` is moved by the loop's thread, `committed` by the commit thread, `flushed` by the
flush thread; each has one writer, so plain attributes are enough.
"""

from __future__ import annotations


class Watermarks:
    """Physical offsets behind the last byte that is written, committed and flushed."""

    __slots__ = (
        "committed",
        "committed_timestamp",
        "flushed",
        "flushed_timestamp",
        "written",
        "written_timestamp",
    )

    def __init__(self) -> None:
        self.written = 0
        self.committed = 0
        self.flushed = 0
        #: Store timestamps of the last message at or below each mark.
        self.written_timestamp = 0
        self.committed_timestamp = 0
        self.flushed_timestamp = 0

    def reset(self, offset: int) -> None:
        """All that recovery found valid counts as written, committed and flushed."""
        self.written = self.committed = self.flushed = offset

    def move_committed(self, offset: int, timestamp: int) -> None:
        """Everything below `offset` is in the log's files."""
        assert self.committed <= offset <= self.written, (self.committed, offset, self.written)
        self.committed = offset
        self.committed_timestamp = timestamp

    def move_flushed(self, offset: int, timestamp: int) -> None:
        """Everything below `offset` is on the disk."""
        assert self.flushed <= offset <= self.written, (self.flushed, offset, self.written)
        self.flushed = offset
        self.flushed_timestamp = timestamp
