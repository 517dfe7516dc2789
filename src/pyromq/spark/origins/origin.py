"""The interface of an origin: the brokers of a cluster, or a store directory.

An origin lists topics and queues, returns the offsets of each queue, and yields the records of a
range of a queue as blocks of bytes. `broker` pulls from brokers, `store` maps files; `arrow`
decodes the blocks of both. Origins hold sockets and mappings, so they do not travel: the driver
opens one for planning, and each task opens its own. Plain values travel: `Queue`, `QueueRange`.

Invariants
1. The blocks of a range hold its records in the order of their queue offsets, each record once
   and none from outside.
2. A missing record (expired or damaged) is never skipped silently: the origin yields `LostRecords`,
   and the caller raises or continues, according to `failOnDataLoss`.
3. A block's buffer is valid until the next block is requested.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from pyromq.protocol.message.bulk import Buffer, Longs


class OriginError(Exception):
    """An origin failed: the request, the server or file, and what to do."""


class UnreachableError(OriginError):
    """A server does not respond, or the NameServers do not know it. It may come back."""


class Queue(NamedTuple):
    """One queue of a topic at one broker."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


class Bounds(NamedTuple):
    """The offsets of a queue, from `first` up to but excluding `end`."""

    first: int
    end: int


class QueueRange(NamedTuple):
    """The offsets that one task reads, excluding `end`."""

    queue: Queue
    start: int
    end: int

    @property
    def size(self) -> int:
        """Return the number of offsets."""
        return self.end - self.start


class RecordBlock(NamedTuple):
    """Bytes, and the positions in them where records start, in ascending order."""

    buffer: Buffer
    starts: Longs


class LostRecords(NamedTuple):
    """Offsets of a queue whose records are gone, excluding `end`, and the reason."""

    queue: Queue
    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.queue}: offsets {self.start} to {self.end - 1} are lost: {self.reason}"


class Origin(Protocol):
    """The methods that the data source and the jobs need. They raise OriginError."""

    def topics(self) -> list[str]:
        """Return the names of all topics other than system topics, sorted."""

    def queues(self, topic: str) -> list[Queue]:
        """Return the queues of a topic, sorted; an empty list if the topic does not exist."""

    def bounds(self, queues: Collection[Queue]) -> dict[Queue, Bounds]:
        """Return the offsets of each queue, without queues that do not exist."""

    def latest_bounds(
        self, queues: Collection[Queue]
    ) -> tuple[dict[Queue, Bounds], frozenset[Queue]]:
        """Return the same, and the queues that may have more, both before and after.

        Those are the queues of a broker whose master is away: a replica told their offsets.
        """

    def offsets_at(self, timestamps: Mapping[Queue, int]) -> dict[Queue, int]:
        """Return, for each queue, the first offset stored at or after a time, or its end."""

    def is_away(self, broker_name: str) -> bool:
        """Return whether a broker is unknown at present, so that its queues may come back."""

    def blocks(self, wanted: QueueRange) -> Iterator[RecordBlock | LostRecords]:
        """Yield the records of a range, block by block."""

    def close(self) -> None:
        """Close sockets and files."""


def merge_ranges(ranges: Sequence[QueueRange]) -> list[QueueRange]:
    """Return the same offsets in as few ranges as possible, sorted."""
    merged: list[QueueRange] = []
    for wanted in sorted(ranges):
        last = merged[-1] if merged else None
        if last is not None and last.queue == wanted.queue and wanted.start <= last.end:
            merged[-1] = QueueRange(last.queue, last.start, max(last.end, wanted.end))
        else:
            merged.append(wanted)
    return merged
