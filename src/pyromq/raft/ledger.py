"""What the core needs from a log of entries.

Indexes are consecutive. `begin_index` moves up when old files expire; an empty ledger has -1 for
all of begin, end and end term. Calls come from the core, between two effects, on its thread.

Reads and writes may raise OSError: then nothing has changed, the core answers or retries later,
and reports it (`LedgerFailed`). All other errors pass through the core to its caller.
"""

from __future__ import annotations

from typing import Protocol

from pyromq.raft.format import Run
from pyromq.raft.messages import Entry


class Ledger(Protocol):
    """A log: `LogLedger` is made of DLedger's files, the simulator's is in memory."""

    @property
    def begin_index(self) -> int:
        """Index of the first entry, -1 if there is none."""

    @property
    def end_index(self) -> int:
        """Index of the last entry, -1 if there is none."""

    @property
    def end_term(self) -> int:
        """Term of the last entry, -1 if there is none."""

    @property
    def end_position(self) -> int:
        """Position after the last entry."""

    @property
    def durable_index(self) -> int:
        """Index of the last entry that survives a power cut, -1 if there is none."""

    def term_of(self, index: int) -> int | None:
        """Return the term of an entry, or None outside of the ledger."""

    def entry(self, index: int) -> Entry | None:
        """Return an entry, or None outside of the ledger."""

    def run(self, first: int, last: int, max_bytes: int) -> Run | None:
        """Return entries from `first` on, not beyond `last`: at least one, as many as fit.

        None if the first one is outside of the ledger.
        """

    def append_body(self, term: int, body: bytes) -> Entry:
        """Write a new entry of the leader; its index and position follow from the end."""

    def append(self, entry: Entry) -> bool:
        """Write an entry of the leader's log; False if its index or position is not the next."""

    def append_run(self, run: Run, max_term: int) -> bool:
        """Write a run of the leader's log, less the entries that are stored already.

        False, and nothing is written, if it does not continue this log, if a stored entry differs,
        or if it is not a run of entries up to `max_term`.
        """

    def truncate_after(self, index: int) -> None:
        """Remove all entries behind this one."""

    def restart_with(self, entry: Entry) -> bool:
        """Drop all entries, and begin with this one. False if no ledger can hold it."""
