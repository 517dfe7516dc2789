"""Count the growth of consume queues lazily, so that a put costs nothing.

A put only moves its queue's `next_offset`. When a seal makes a queue dirty it hands the queue to
the flush and to this module: once between two flushes, however many messages arrive. `take`
examines only those queues and adds up the record sizes in their new entries.

Invariants
1. Each entry is counted once: `ConsumeQueue.counted` is the offset after the last counted one.
2. No growth is missed: a queue that is still dirty when it is counted stays in the set, any other
   one is added again by its next seal.
3. Entries that exist when the store starts are not counted (`skip_all`).

The chunk also reports here how long slow appends took, and how long it took to make room for a
record (`slow_seal`, `room_made`): for the statistics, the log, and the flow control, which refuses
sends that waited for a busy page cache.

Runs on the loop's thread; the broker's statistics call `take`.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Any, Final, NamedTuple

import numpy as np

from pyromq.protocol.message.unit_arrays import CONSUME_QUEUE_DTYPE
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY_SIZE
from pyromq.store.queues.consume_queue import ConsumeQueue, split_entries

logger = logging.getLogger(__name__)

#: Entries counted per step of `take`.
_MAX_COUNTED: Final = 16 * 1024
#: Up to this many entries, plain Python beats numpy's fixed costs.
_MAX_PLAIN: Final = 64
#: A seal that takes this long counts as slow.
SLOW_SEAL_NS: Final = 1_000_000
#: An append that takes longer is logged, as in RocketMQ.
SLOW_APPEND_MS: Final = 500


class QueueGrowth(NamedTuple):
    """New messages of one queue."""

    topic: str
    queue_id: int
    messages: int
    #: Size of their records in the log.
    size: int
    #: Messages by the bounds of `count_sizes`; None if nobody asked.
    buckets: list[int] | None = None


class Growth:
    """Queues that may have grown, slow seals, and refused puts."""

    def __init__(self, page_cache_busy_ms: int = 1000) -> None:
        """`page_cache_busy_ms` is osPageCacheBusyTimeOutMills."""
        self._page_cache_busy_ms = page_cache_busy_ms
        #: When room was made the last time that took longer than that (`time.monotonic`).
        self.busy_until = -math.inf
        self._grown: set[ConsumeQueue] = set()
        #: Durations of slow seals (ms); the statistics take and reset them.
        self.slow_seals: list[int] = []
        #: Puts that were refused, for lack of room or because they were too large.
        self.refused_puts = 0
        #: Called with the duration of each seal (ns); None if nobody measures.
        self.on_seal: Callable[[int], None] | None = None
        self._bounds: tuple[float, ...] = ()
        self.add = self._grown.add

    def slow_seal(self, nanoseconds: int) -> None:
        """Note a seal that took at least SLOW_SEAL_NS."""
        milliseconds = nanoseconds // 1_000_000
        self.slow_seals.append(milliseconds)
        if milliseconds > SLOW_APPEND_MS:
            logger.warning(
                "append of a chunk took %d ms, expected at most %d ms: check the disk's latency "
                "and the machine's free memory",
                milliseconds,
                SLOW_APPEND_MS,
            )

    def room_made(self, nanoseconds: int) -> None:
        """Note how long it took to reserve room in the log, or to begin a segment."""
        milliseconds = nanoseconds // 1_000_000
        if milliseconds:
            self.slow_seals.append(milliseconds)
        if milliseconds > self._page_cache_busy_ms:
            self.busy_until = monotonic()
        if milliseconds > min(SLOW_APPEND_MS, self._page_cache_busy_ms):
            logger.warning(
                "making room in the log took %d ms: check the disk's latency and its free space",
                milliseconds,
            )

    def count_sizes(self, bounds: tuple[float, ...]) -> None:
        """Count messages by the size of their records; the bounds are inclusive."""
        self._bounds = bounds

    def time_seals(self, observe: Callable[[int], None]) -> None:
        """Call `observe` with the duration of each seal, in nanoseconds."""
        self.on_seal = observe

    def __len__(self) -> int:
        """Return the number of queues that may have grown."""
        return len(self._grown)

    def skip_all(self, queues: Iterable[ConsumeQueue]) -> None:
        """Do not count the entries that these queues have now."""
        for queue in queues:
            queue.counted = queue.next_offset

    def take(self) -> Iterator[QueueGrowth]:
        """Yield the growth of each queue since the last call, in several steps if it is large.

        The caller may do other work between steps.
        """
        queues = list(self._grown)
        self._grown.clear()
        for queue in queues:
            if queue.dirty:
                self._grown.add(queue)
            # Pending entries are not in the files yet; their seal makes the queue dirty.
            end = queue.next_offset - len(queue.pending) // CONSUME_QUEUE_ENTRY_SIZE
            while queue.counted < end:
                begin = queue.counted
                queue.counted = min(end, begin + _MAX_COUNTED)
                buckets = [0] * (len(self._bounds) + 1) if self._bounds else None
                size = _size(queue, begin, queue.counted, self._bounds, buckets)
                yield QueueGrowth(queue.topic, queue.queue_id, queue.counted - begin, size, buckets)
                if queue.next_offset < end:
                    break  # its topic was deleted meanwhile


def _size(
    queue: ConsumeQueue,
    offset: int,
    end: int,
    bounds: tuple[float, ...],
    buckets: list[int] | None,
) -> int:
    """Return the total size of the records of these entries that still exist.

    Count them in `buckets`, if given.
    """
    total = 0
    while offset < end:
        entries = queue.read(offset, end - offset)
        count = len(entries) // CONSUME_QUEUE_ENTRY_SIZE
        if not count:
            break  # expired meanwhile, or the topic was deleted
        if count <= _MAX_PLAIN:
            plain = split_entries(entries)[1]
            total += sum(plain)
            if buckets is not None:
                for size in plain:
                    buckets[bisect_left(bounds, size)] += 1
        else:
            sizes = np.frombuffer(entries, CONSUME_QUEUE_DTYPE)["size"]
            total += int(sizes.sum(dtype=np.int64))
            if buckets is not None:
                _count_sizes(sizes, bounds, buckets)
        offset += count
    return total


def _count_sizes(
    sizes: np.ndarray[Any, Any], bounds: tuple[float, ...], buckets: list[int]
) -> None:
    least, most = bisect_left(bounds, int(sizes.min())), bisect_left(bounds, int(sizes.max()))
    if least == most:  # as usual: all messages of a topic are alike
        buckets[least] += len(sizes)
        return
    found = np.bincount(np.searchsorted(bounds, sizes), minlength=len(buckets))
    for number, count in enumerate(found.tolist()):
        buckets[number] += count
