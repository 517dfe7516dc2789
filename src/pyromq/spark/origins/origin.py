"""Where messages are read from: a cluster's brokers, or the files of a store.

An origin knows topics and queues, how far each queue reaches, and gives the records of a
range of a queue as blocks of bytes. `broker_origin` asks brokers, `store_origin` maps
files; whatever brought a block, `arrow` decodes it. Origins are made where they are used,
in the driver for planning and in each task for reading: they hold sockets and mappings and
do not travel. What travels is plain: `Queue` and `QueueRange`.

Invariants
1. The blocks of a range hold its records in the order of their queue offsets, each once,
   none from outside.
2. A record that should be there and is not (retention took it, its bytes are damaged) is
   never passed over in silence: `LostRecords` says which, and the caller raises or goes on,
   as `failOnDataLoss` wants.
3. A block's buffer is valid until the next block is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from pyromq.protocol.message.bulk import Buffer, Longs


class OriginError(Exception):
    """An origin cannot be read: what was asked, of whom, and what to do about it."""


class UnreachableError(OriginError):
    """Servers that do not answer, or are not known now: they may be there again later."""


class Queue(NamedTuple):
    """One queue of a topic at one broker."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


class Bounds(NamedTuple):
    """Which offsets a queue has: from `first` up to, but without, `end`."""

    first: int
    end: int


class QueueRange(NamedTuple):
    """Some offsets of a queue, without `end`: what one task reads."""

    queue: Queue
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets that are."""
        return self.end - self.start


class RecordBlock(NamedTuple):
    """Bytes, and where in them the records begin, in ascending order."""

    buffer: Buffer
    starts: Longs


class LostRecords(NamedTuple):
    """Offsets of a queue whose records cannot be had any more, without `end`, and why."""

    queue: Queue
    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.queue}: offsets {self.start} to {self.end - 1} are lost: {self.reason}"


class Origin(Protocol):
    """What the data source and the jobs need of a place that has messages."""

    def topics(self) -> list[str]:
        """The names of all topics, sorted, without the system's own."""

    def queues(self, topic: str) -> list[Queue]:
        """The queues of a topic, sorted; none when there is no such topic."""

    def bounds(self, queues: Collection[Queue]) -> dict[Queue, Bounds]:
        """Which offsets each of these queues has; queues that are not there are left out."""

    def offsets_at(self, timestamps: Mapping[Queue, int]) -> dict[Queue, int]:
        """Per queue, the first offset stored at or after a time in milliseconds, or its end."""

    def is_away(self, broker_name: str) -> bool:
        """Whether a broker is not known now; queues that are there no more may come back then."""

    def blocks(self, wanted: QueueRange) -> Iterator[RecordBlock | LostRecords]:
        """The records of a range, block by block."""

    def close(self) -> None:
        """Give sockets and mappings back."""


def merge_ranges(ranges: Sequence[QueueRange]) -> list[QueueRange]:
    """The same offsets in as few ranges as possible, sorted."""
    merged: list[QueueRange] = []
    for wanted in sorted(ranges):
        last = merged[-1] if merged else None
        if last is not None and last.queue == wanted.queue and wanted.start <= last.end:
            merged[-1] = QueueRange(last.queue, last.start, max(last.end, wanted.end))
        else:
            merged.append(wanted)
    return merged
