"""A raft log under random operations, beside a list of the entries that it must have.

`before` and `after` are what the operation under way found and will leave; a crash during it may
leave either. Bodies carry a checksum, as the messages of a real log do.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from pathlib import Path

from pyromq.raft.format import HEADER_SIZE, Entry
from pyromq.raft.log import RaftLog
from tests.support.raft_logs import DATA_FILE, entries_of, open_log

SIZES = (5, 60, 60, 300, 1000, 1500, DATA_FILE - 56)


def is_complete(body: memoryview) -> bool:
    """The checksum of a body is right."""
    return zlib.crc32(body[4:]).to_bytes(4, "big") == body[:4]


def reopen(directory: Path) -> RaftLog:
    """Start the log of a directory that a crash left."""
    return open_log(directory, check_body=is_complete)


class History:
    """A log and its model."""

    def __init__(self, directory: Path, chooser: random.Random) -> None:
        self.choose = chooser
        self.directory = directory
        self.log = reopen(directory)
        self.term = max(1, self.log.end_term)
        self.entries = entries_of(self.log)
        self.before = self.after = self.entries
        #: Entries that are gone, unless a power cut brings their files back.
        self.expired: dict[int, Entry] = {}
        self.name = "start"

    def step(self) -> None:
        """Carry out a random operation, and compare."""
        operations: list[tuple[int, Callable[[], None]]] = [
            (8, self._lead),
            (4, self._follow),
            (4, self._copy),
            (3, self._truncate),
            (2, self._push),
            (1, self._rebuild),
            (3, self._commit),
            (1, self._expire),
            (4, self._flush),
            (1, self._restart),
        ]
        weights = [weight for weight, _ in operations]
        (_, operation), *_ = self.choose.choices(operations, weights)
        self.name = operation.__name__
        operation()
        self.entries = self.before = self.after
        self.compare()

    def compare(self) -> None:
        """The log has the entries of the model."""
        log, entries = self.log, self.entries
        assert entries_of(log) == entries, self.name
        last = entries[-1] if entries else None
        assert log.end_index == (last.index if last else -1)
        assert log.end_term == (last.term if last else -1)
        assert log.begin_index == (entries[0].index if entries else -1)
        assert log.flushed <= log.written
        if last:
            assert log.written == last.position + last.size
            assert log.flushed_index <= last.index
        assert log.committed_index <= log.end_index

    def bodies(self) -> list[bytes]:
        """Return a few new bodies."""
        found = []
        for _ in range(self.choose.choice((1, 1, 2, 5, 12))):
            rest = self.choose.randbytes(self.choose.choice(SIZES) - 4)
            found.append(zlib.crc32(rest).to_bytes(4, "big") + rest)
        return found

    def _new(self, bodies: list[bytes]) -> list[Entry]:
        positions = self.log.positions([len(body) for body in bodies])
        first = self.log.next_index
        return [
            Entry(first + number, self.term, position, body)
            for number, (position, body) in enumerate(zip(positions, bodies, strict=True))
        ]

    def _lead(self) -> None:
        self.term += self.choose.random() < 0.2
        bodies = self.bodies()
        self.after = [*self.entries, *self._new(bodies)]
        self.log.append_bodies(self.term, bodies)

    def _follow(self) -> None:
        added = self._new(self.bodies())
        at = self.log.written % DATA_FILE
        if self.choose.random() < 0.2 and at:
            # The leader has a blank where the first entry would have fitted.
            position = self.log.written - at + DATA_FILE
            added = [Entry(added[0].index, self.term, position, added[0].body)]
        self.after = [*self.entries, *added]
        self.log.append(added)

    def _copy(self) -> None:
        """Append what another log would send: each run is of one file."""
        added = self._new(self.bodies())
        self.after = [*self.entries, *added]
        data = b"".join(encode(entry) for entry in added)
        assert self.log.append_raw(data) == len(added)

    def _uncommitted(self) -> int | None:
        first = max(self.log.begin_index, self.log.committed_index + 1)
        if first < 0 or first > self.log.end_index:
            return None
        return self.choose.randint(first, self.log.end_index)

    def _truncate(self) -> None:
        index = self._uncommitted()
        if index is not None:
            self.term += self.choose.random() < 0.5
            self.after = [entry for entry in self.entries if entry.index < index]
            self.log.truncate(index)

    def _push(self) -> None:
        """A TRUNCATE push of a stored entry."""
        index = self._uncommitted()
        if index is not None:
            self.after = [entry for entry in self.entries if entry.index <= index]
            self.log.truncate_to(self.log.entry(index))

    def _rebuild(self) -> None:
        if self.choose.random() < 0.5:
            self.after = []
            position = self.log.written + self.choose.choice((0, 100, 5 * DATA_FILE))
            if self.choose.random() < 0.7:
                position -= position % DATA_FILE
            if DATA_FILE - position % DATA_FILE < 1000:
                position += 1000
            self.log.rebuild(self.log.next_index + self.choose.randint(0, 40), position)
            self.expired = {}

    def _commit(self) -> None:
        self.log.commit(self.log.end_index - self.choose.randint(0, 3))

    def _expire(self) -> None:
        log = self.log
        bases = [file.base for file in log.files.files]
        limit = self.choose.randint(1, 3)
        gone = [base + DATA_FILE for base in bases[:-1] if base + DATA_FILE <= _committed(log)]
        end = gone[:limit][-1] if gone else 0
        self.after = [entry for entry in self.entries if entry.position >= end]
        kept = {entry.index for entry in self.after}
        self.expired.update((e.index, e) for e in self.entries if e.index not in kept)
        for _ in gone[:limit]:
            log.take_first().unlink()

    def _flush(self) -> None:
        self.log.flush()
        if self.choose.random() < 0.5:
            self.log.save_checkpoint()

    def _restart(self) -> None:
        self.log.stop()
        self.log = reopen(self.directory)


def _committed(log: RaftLog) -> int:
    return log.committed_position if log.committed_index >= 0 else 0


def encode(entry: Entry) -> bytes:
    """Return an entry's bytes, by the reference's table."""
    numbers = (1, 4), (entry.size, 4), (entry.index, 8), (entry.term, 8), (entry.position, 8)
    more = (0, 12), (entry.size - HEADER_SIZE, 4)
    head = b"".join(number.to_bytes(size, "big") for number, size in (*numbers, *more))
    return head + bytes(entry.body)
