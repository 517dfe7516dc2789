"""A ledger in memory that knows which of its writes survive a power cut."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

from pyromq.raft.format import HEADER as LAYOUT
from pyromq.raft.format import MAGIC, Run
from pyromq.raft.messages import NONE, Entry

HEADER = 48


class MemoryLedger:
    """Entries, and the writes since the last flush: an entry, or the index of a truncation."""

    def __init__(self, fails: Callable[[], bool] = lambda: False) -> None:
        """`fails` tells before each write whether the disk is full."""
        self._fails = fails
        self._entries: list[Entry] = []
        self._begin = 0
        self._disk: tuple[int, list[Entry]] = (0, [])
        self._writes: list[Entry | int] = []
        self.durable_index = NONE

    @property
    def begin_index(self) -> int:
        return self._begin if self._entries else NONE

    @property
    def end_index(self) -> int:
        return self._begin + len(self._entries) - 1 if self._entries else NONE

    @property
    def end_term(self) -> int:
        return self._entries[-1].term if self._entries else NONE

    @property
    def end_position(self) -> int:
        return self._entries[-1].pos + self._entries[-1].size if self._entries else 0

    def term_of(self, index: int) -> int | None:
        entry = self.entry(index)
        return entry.term if entry else None

    def run(self, first: int, last: int, max_bytes: int) -> Run | None:
        entry = self.entry(first)
        if entry is None:
            return None
        entries, size = [entry], entry.size
        while entry := self.entry(first + len(entries)):
            size += entry.size
            if entry.index > last or size > max_bytes:
                break
            entries.append(entry)
        return run_of(tuple(entries))

    def entry(self, index: int) -> Entry | None:
        at = index - self._begin
        return self._entries[at] if 0 <= at < len(self._entries) else None

    def entries(self) -> list[Entry]:
        return list(self._entries)

    def append_body(self, term: int, body: bytes) -> Entry:
        entry = Entry(self.end_index + 1, term, self.end_position, HEADER + len(body), body)
        assert self.append(entry)
        return entry

    def append(self, entry: Entry) -> bool:
        self._check_disk()
        return self._append([entry])

    def append_run(self, run: Run, max_term: int) -> bool:
        self._check_disk()
        entries = _entries_of(run)
        if entries is None or entries[-1].term > max_term:
            return False
        stored = [entry for entry in entries if entry.index <= self.end_index]
        if any(self.entry(entry.index) != entry for entry in stored):
            return False
        return self._append(entries[len(stored) :])

    def _append(self, entries: list[Entry]) -> bool:
        if entries and (
            entries[0].index != self.end_index + 1
            or entries[0].pos != self.end_position
            or entries[0].term < self.end_term
        ):
            return False
        if entries and not self._entries:
            self._begin = entries[0].index
        self._entries += entries
        self._writes += entries
        return True

    def _check_disk(self) -> None:
        if self._fails():
            raise OSError(errno.ENOSPC, "the disk is full")

    def truncate_after(self, index: int) -> None:
        self._check_disk()
        self._truncate(index)

    def _truncate(self, index: int) -> None:
        del self._entries[index + 1 - self._begin :]
        self._writes.append(index)
        self.durable_index = min(self.durable_index, index)

    def restart_with(self, entry: Entry) -> bool:
        self._check_disk()
        self._entries, self._begin = [entry], entry.index
        self._writes.append(NONE)
        self._writes.append(entry)
        self.durable_index = NONE
        return True

    def expire_before(self, index: int) -> None:
        """Remove the oldest entries, but not the last one."""
        index = min(index, self.end_index)
        if self._begin < index and index <= self.durable_index:
            del self._entries[: index - self._begin]
            self._begin = index
            self.flush()

    def lose_after(self, index: int) -> None:
        """Lose entries that were on disk."""
        self._truncate(index)
        self.flush()

    def flush(self) -> None:
        self._disk = (self._begin, list(self._entries))
        self._writes.clear()
        self.durable_index = self.end_index

    def cut_power(self, generator: random.Random) -> None:
        """Keep what was flushed, and any number of the writes after it."""
        begin, entries = self._disk
        entries = list(entries)
        for write in self._writes[: generator.randint(0, len(self._writes))]:
            if isinstance(write, Entry):
                begin = begin if entries else write.index
                entries.append(write)
            else:
                del entries[max(0, write + 1 - begin) :]
        self._begin, self._entries = begin, entries
        self.flush()


def run_of(entries: tuple[Entry, ...]) -> Run:
    """Return entries as a run."""
    data = b"".join(
        LAYOUT.pack(MAGIC, entry.size, entry.index, entry.term, entry.pos, 0, 0, 0, len(entry.body))
        + entry.body
        for entry in entries
    )
    return Run(entries[0].index, len(entries), entries[0].pos, data)


def _entries_of(run: Run) -> list[Entry] | None:
    """Return the entries of a run, or None if they do not follow one another."""
    entries = list[Entry]()
    at = 0
    while at < len(run.data):
        magic, size, index, term, pos, _, _, _, body_size = LAYOUT.unpack_from(run.data, at)
        expected = (MAGIC, HEADER + body_size, run.first_index + len(entries), run.position + at)
        if (magic, size, index, pos) != expected or at + size > len(run.data):
            return None
        if entries and term < entries[-1].term:
            return None
        entries.append(Entry(index, term, pos, size, run.data[at + HEADER : at + size]))
        at += size
    return entries if len(entries) == run.count else None
