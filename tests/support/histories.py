"""The operations of concurrent clients, and whether one log explains them all.

Producers record each attempt to send, with the times of its call and of its answer; readers record
each message that they got. Afterwards `problems` holds that against the log of the group:

1. An attempt is in the log at most once; an acknowledged one exactly once, with the queue, the
   queue offset and the physical offset that its answer had.
2. The offsets of a queue have no gaps.
3. One real-time order: an attempt that began after another one was acknowledged has a higher
   offset, if both are in the same queue. So the sends of one producer are in its order.
4. A message that anyone has read, on any node, is in the log, at that place: what is committed
   stays.
5. A reader that reads from the beginning on gets each offset of a queue once, in order.
6. In one term, one broker has written: nobody else was a leader with acknowledgements.

Without I/O. Called by tests.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Place(NamedTuple):
    """Where a message is."""

    queue_id: int
    offset: int
    physical: int


@dataclass(slots=True)
class Attempt:
    """An attempt to send."""

    body: bytes
    queue_id: int
    called: float
    #: The time of the acknowledgement; there may never be one.
    answered: float = math.inf
    place: Place | None = None
    #: The error of an attempt that was refused, or whose outcome is unknown.
    error: str = ""


class Read(NamedTuple):
    """A message that a reader got."""

    reader: str
    queue_id: int
    offset: int
    body: bytes


class Logged(NamedTuple):
    """A message of the log, with the broker that wrote it and its term."""

    term: int
    writer: tuple[str, int]
    place: Place
    body: bytes


@dataclass
class History:
    """Everything that clients did and saw."""

    attempts: list[Attempt] = field(default_factory=list)
    #: Readers that began at the first offset of each queue and never went back.
    reads: list[Read] = field(default_factory=list)
    #: Reads of any offset, at any node, in any order.
    glances: list[Read] = field(default_factory=list)

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged attempts."""
        return sum(attempt.place is not None for attempt in self.attempts)


def problems(history: History, log: Sequence[Logged]) -> Iterator[str]:
    """Yield everything about a history that the log does not explain."""
    yield from _log_problems(log)
    yield from _attempt_problems(history.attempts, log)
    yield from _order_problems(history.attempts, log)
    stored = {(each.place.queue_id, each.place.offset): each.body for each in log}
    for read in (*history.reads, *history.glances):
        there = stored.get((read.queue_id, read.offset))
        if there != read.body:
            yield f"{read} was read, but the log has {there!r} there"
    yield from _reader_problems(history.reads)


def _log_problems(log: Iterable[Logged]) -> Iterator[str]:
    ends: dict[int, int] = defaultdict(int)
    writers: dict[int, tuple[str, int]] = {}
    for each in log:
        queue_id, offset, _ = each.place
        if offset != ends[queue_id]:
            yield f"{each} should have the offset {ends[queue_id]}"
        ends[queue_id] = offset + 1
        if (writer := writers.setdefault(each.term, each.writer)) != each.writer:
            yield f"{each} is in a term in which {writer} wrote, too"


def _attempt_problems(attempts: Iterable[Attempt], log: Iterable[Logged]) -> Iterator[str]:
    places = {each.body: each.place for each in log}
    counts = Counter(each.body for each in log)
    known = set[bytes]()
    for attempt in attempts:
        known.add(attempt.body)
        if counts[attempt.body] > 1:
            yield f"{attempt} is in the log {counts[attempt.body]} times"
        found = places.get(attempt.body)
        if attempt.place is not None and attempt.place != found:
            yield f"{attempt} was acknowledged, but is at {found}"
        if found is not None and found.queue_id != attempt.queue_id:
            yield f"{attempt} is in queue {found.queue_id}"
    for body in counts.keys() - known:
        yield f"nobody sent {body!r}"


def _order_problems(attempts: Iterable[Attempt], log: Iterable[Logged]) -> Iterator[str]:
    by_body = {attempt.body: attempt for attempt in attempts}
    queues: dict[int, list[Attempt]] = defaultdict(list)
    for each in log:
        if each.body in by_body:
            queues[each.place.queue_id].append(by_body[each.body])
    for queue in queues.values():
        # From the end: the earliest answer to anything behind.
        behind: Attempt | None = None
        for attempt in reversed(queue):
            if behind is not None and behind.answered < attempt.called:
                yield f"{attempt} began after {behind} was acknowledged, and is before it"
            if behind is None or attempt.answered < behind.answered:
                behind = attempt


def _reader_problems(reads: Iterable[Read]) -> Iterator[str]:
    ends: dict[tuple[str, int], int] = defaultdict(int)
    for read in reads:
        key = read.reader, read.queue_id
        if read.offset != ends[key]:
            yield f"{read}: its reader was at {ends[key]}"
        ends[key] = read.offset + 1
