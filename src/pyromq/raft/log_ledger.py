"""The log of a raft node as the core's ledger.

Writes return False for entries that do not continue the log. All other errors pass:

- OSError: the disk refused. `follower` and `dispatcher` answer or retry later.
- StoreError: committed entries would be removed. It passes through the core, and ends the node.

The log's committed index is the node's task: `RaftLog.commit` at each `Committed`, so that nothing
committed can be truncated.

Runs are read once for all followers that are equally far.

Owned by the core, on the loop's thread.
"""

from __future__ import annotations

from typing import Final

from pyromq.raft.format import Entry as StoredEntry
from pyromq.raft.format import FormatError, Run
from pyromq.raft.log import RaftLog
from pyromq.raft.messages import Entry
from pyromq.raft.placement import MismatchError

#: Bounds of what a peer may claim, so that sums and products stay below 2**63.
_INDEX_BOUND: Final = 2**56
_POSITION_BOUND: Final = 2**62


class LogLedger:
    """Reads and writes a `RaftLog` for a `Core`."""

    def __init__(self, log: RaftLog) -> None:
        self._log = log
        #: The last run, and the question that it answers.
        self._run: Run | None = None
        self._asked = (-1, -1, -1)

    @property
    def begin_index(self) -> int:
        """Index of the first entry, -1 if there is none."""
        return self._log.begin_index

    @property
    def end_index(self) -> int:
        """Index of the last entry, -1 if there is none."""
        return self._log.end_index

    @property
    def end_term(self) -> int:
        """Term of the last entry, -1 if there is none."""
        return self._log.end_term

    @property
    def end_position(self) -> int:
        """Position after the last entry."""
        return self._log.written

    @property
    def durable_index(self) -> int:
        """Index of the last entry that is on disk, -1 if there is none."""
        return self._log.flushed_index

    def term_of(self, index: int) -> int | None:
        """Return the term of an entry, or None outside of the log."""
        try:
            return self._log.term(index)
        except IndexError:
            return None

    def entry(self, index: int) -> Entry | None:
        """Return an entry, or None outside of the log."""
        try:
            stored = self._log.entry(index)
        except IndexError:
            return None
        return Entry(index, stored.term, stored.position, stored.size, bytes(stored.body))

    def run(self, first: int, last: int, max_bytes: int) -> Run | None:
        """Return entries of one file, not beyond `last`; None if the first one is not stored."""
        asked = (first, last, max_bytes)
        if self._run is None or asked != self._asked:
            try:
                self._run = self._log.run(first, max_bytes, last - first + 1)
            except IndexError:
                return None
            self._asked = asked
        return self._run

    def append_body(self, term: int, body: bytes) -> Entry:
        """Write a new entry of the leader."""
        index = self._log.append_bodies(term, [body])
        entry = self.entry(index)
        assert entry is not None
        return entry

    def append(self, entry: Entry) -> bool:
        """Write an entry of the leader's log; False if it does not continue this one."""
        if (stored := _stored(entry)) is None:
            return False
        try:
            self._log.append([stored])
        except MismatchError:
            return False
        return True

    def append_run(self, run: Run, max_term: int) -> bool:
        """Write a run of the leader's log, less the entries that are stored already."""
        data = self._unstored(run) if run.first_index <= self._log.end_index else run.data
        if not data:
            return data is not None
        missing = run.last_index - self._log.next_index + 1
        try:
            self._log.append_raw(data, expected=missing, max_term=max_term)
        except (FormatError, MismatchError):
            return False
        return True

    def _unstored(self, run: Run) -> bytes | memoryview | None:
        """Return the bytes of the entries after the log's end, None if those before it differ."""
        log = self._log
        last = min(run.last_index, log.end_index)
        try:
            start, end = log.place(run.first_index).position, log.place(last).end
        except IndexError:
            return None
        size = end - start
        if start != run.position or log.read(start, size) != run.data[:size]:
            return None
        if last == run.last_index and size != len(run.data):
            return None
        return memoryview(run.data)[size:]

    def truncate_after(self, index: int) -> None:
        """Remove all entries behind this one. Raises StoreError if one is committed."""
        self._run = None
        self._log.truncate(index + 1)

    def restart_with(self, entry: Entry) -> bool:
        """Drop all entries, and begin with this one. Raises StoreError if that one is committed."""
        if (stored := _stored(entry)) is None:
            return False
        self._run = None
        try:
            self._log.truncate_to(stored)
        except MismatchError:
            return False
        return True


def _stored(entry: Entry) -> StoredEntry | None:
    """Return a leader's entry as it is stored; None if its place or size is impossible."""
    stored = StoredEntry(entry.index, entry.term, entry.pos, entry.body)
    is_possible = 0 <= entry.index < _INDEX_BOUND and 0 <= entry.pos < _POSITION_BOUND
    return stored if is_possible and stored.size == entry.size else None
