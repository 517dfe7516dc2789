"""A ledger in memory that knows which of its writes survive a power cut."""

from __future__ import annotations

import random

from pyromq.raft.messages import NONE, Entry

HEADER = 48


class MemoryLedger:
    """Entries, and the writes since the last flush: an entry, or the index of a truncation."""

    def __init__(self) -> None:
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

    def entry(self, index: int) -> Entry | None:
        at = index - self._begin
        return self._entries[at] if 0 <= at < len(self._entries) else None

    def entries(self) -> list[Entry]:
        return list(self._entries)

    def append_body(self, term: int, body: bytes) -> Entry:
        entry = Entry(self.end_index + 1, term, self._end_position(), HEADER + len(body), body)
        assert self.append(entry)
        return entry

    def append(self, entry: Entry) -> bool:
        if entry.index != self.end_index + 1 or entry.pos != self._end_position():
            return False
        if not self._entries:
            self._begin = entry.index
        self._entries.append(entry)
        self._writes.append(entry)
        return True

    def _end_position(self) -> int:
        return self._entries[-1].pos + self._entries[-1].size if self._entries else 0

    def truncate_after(self, index: int) -> None:
        del self._entries[index + 1 - self._begin :]
        self._writes.append(index)
        self.durable_index = min(self.durable_index, index)

    def restart_with(self, entry: Entry) -> bool:
        before = self.entry(entry.index - 1)
        if before and before.pos + before.size == entry.pos:
            self.truncate_after(entry.index - 1)
            return self.append(entry)
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
