"""A memory ledger that carries out everything on a real log as well, and compares."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from pyromq.base.sizes import KIB, MIB
from pyromq.raft.format import Run
from pyromq.raft.log import RaftLog
from pyromq.raft.log_ledger import LogLedger
from pyromq.raft.messages import Entry
from tests.raft.memory_ledger import MemoryLedger


class BothLedgers(MemoryLedger):
    """Answers as the memory ledger, after both have answered the same."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        # One data file: the memory ledger has no blanks.
        self.log = RaftLog(directory, data_file_size=MIB, index_file_size=64 * KIB)
        self.log.start()
        self._real = LogLedger(self.log)
        self.calls = 0

    def _same(self, mine: Any, real: Any) -> None:
        assert mine == real
        self.calls += 1
        for name in ("begin_index", "end_index", "end_term", "durable_index"):
            assert getattr(self, name) == getattr(self._real, name), name
        if self.end_index >= 0:
            assert self.end_position == self._real.end_position

    def term_of(self, index: int) -> int | None:
        term = super().term_of(index)
        self._same(term, self._real.term_of(index))
        return term

    def run(self, first: int, last: int, max_bytes: int) -> Run | None:
        run = super().run(first, last, max_bytes)
        self._same(run, self._real.run(first, last, max_bytes))
        return run

    def append_body(self, term: int, body: bytes) -> Entry:
        real = self._real.append_body(term, body)
        entry = super().append_body(term, body)
        self._same(entry, real)
        return entry

    def append(self, entry: Entry) -> bool:
        # Also called by `append_body`, whose entry the real log has already.
        is_written = super().append(entry)
        if not is_written or self.log.end_index < self.end_index:
            self._same(is_written, self._real.append(entry))
        self._same(self.entry(entry.index), self._real.entry(entry.index))
        return is_written

    def append_run(self, run: Run, max_term: int) -> bool:
        is_written = super().append_run(run, max_term)
        self._same(is_written, self._real.append_run(run, max_term))
        return is_written

    def truncate_after(self, index: int) -> None:
        super().truncate_after(index)
        self._real.truncate_after(index)
        self._same(None, None)

    def restart_with(self, entry: Entry) -> bool:
        is_written = super().restart_with(entry)
        self._same(is_written, self._real.restart_with(entry))
        return is_written

    def flush(self) -> None:
        super().flush()
        self.log.flush()
        self._same(None, None)

    def lose_after(self, index: int) -> None:
        self.truncate_after(max(self.begin_index, index))
        self.flush()

    def expire_before(self, index: int) -> None:
        """Do nothing: the log's entries are all in its last file, which never expires."""

    def cut_power(self, generator: random.Random) -> None:
        raise NotImplementedError
