"""How consume queues grow: counted when somebody asks, so that a put costs nothing.

A put moves its queue's `next_offset` and nothing else. The seal, which hands a queue to
the flush when it becomes dirty, hands it over here too: once between two flushes, however
many messages come. Whoever counts (`take`) looks at those queues only, and adds up what
their new entries say of the records' sizes.

Invariants
1. Each entry is counted once: `ConsumeQueue.counted` is the offset behind the last one.
2. A queue that is written to is dirty or handed over anew: one that is still dirty when it
   is counted stays here.
3. What is in the files when a store starts is not counted (`skip_all`).

All on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from pyromq.protocol.message.units import CONSUME_QUEUE_DTYPE, CONSUME_QUEUE_ENTRY_SIZE
from pyromq.store.queues.consume_queue import ConsumeQueue, split_entries

_ENTRY: Final = np.dtype(CONSUME_QUEUE_DTYPE)
#: So many entries at most are counted at once.
_AT_ONCE: Final = 16 * 1024
#: Above so many entries numpy is the quicker one.
_FEW: Final = 64
#: A chunk whose seal took so long counts as slow.
SLOW_SEAL_NS: Final = 1_000_000


class QueueGrowth(NamedTuple):
    """What one queue got."""

    topic: str
    queue_id: int
    messages: int
    #: Bytes of their records in the log.
    size: int


class Growth:
    """The queues that have grown, and the seals that took long."""

    def __init__(self) -> None:
        self._grown: set[ConsumeQueue] = set()
        #: Milliseconds of each slow seal since somebody took them.
        self.slow_seals: list[int] = []
        #: Puts for which there was no room, or which were too large.
        self.refused_puts = 0
        self.add = self._grown.add

    def __len__(self) -> int:
        """How many queues may have grown."""
        return len(self._grown)

    def skip_all(self, queues: Iterable[ConsumeQueue]) -> None:
        """What these queues hold now is not counted."""
        for queue in queues:
            queue.counted = queue.next_offset

    def take(self) -> Iterator[QueueGrowth]:
        """What queues got since the last time, of very many messages in several parts.

        The loop may do other work in between.
        """
        queues = list(self._grown)
        self._grown.clear()
        for queue in queues:
            if queue.dirty:
                self._grown.add(queue)
            # What is not sealed yet is not in the files, and makes the queue dirty later.
            end = queue.next_offset - len(queue.pending) // CONSUME_QUEUE_ENTRY_SIZE
            while queue.counted < end:
                begin = queue.counted
                queue.counted = min(end, begin + _AT_ONCE)
                size = _size(queue, begin, queue.counted)
                yield QueueGrowth(queue.topic, queue.queue_id, queue.counted - begin, size)
                if queue.next_offset < end:
                    break  # its topic was deleted meanwhile


def _size(queue: ConsumeQueue, offset: int, end: int) -> int:
    """Bytes of the records behind these entries, as far as they are still there."""
    total = 0
    while offset < end:
        entries = queue.read(offset, end - offset)
        count = len(entries) // CONSUME_QUEUE_ENTRY_SIZE
        if not count:
            break  # they have expired meanwhile, or their topic is gone
        if count <= _FEW:
            total += sum(split_entries(entries)[1])
        else:
            total += int(np.frombuffer(entries, _ENTRY)["size"].sum(dtype=np.int64))
        offset += count
    return total
