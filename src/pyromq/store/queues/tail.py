"""The end of a consume queue, as the leader of a raft group numbers new messages.

A message gets its queue offset when it is put, and its entry in the queue's file when the group has
committed it. In between, the queue itself ends before the message, for every reader, and its tail
after it. Entries that the chunk gathers here are dropped: `dispatching` makes them again from the
committed records.

A new leader starts each tail where the queue ends (`restart`), after all entries of earlier leaders
were committed and dispatched.

Owned by `agreement`, on the loop's thread.
"""

from __future__ import annotations

from typing import Final

from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.results import PutError, PutStatus

#: Any number of messages: room is needed when they are dispatched.
_UNLIMITED: Final = 1 << 62


class QueueTail(ConsumeQueue):
    """What a put needs of a queue, without its files."""

    __slots__ = ("_queue",)

    def __init__(self, queue: ConsumeQueue) -> None:
        # Not the base class's: the files are the queue's own.
        self._queue = queue
        self.topic = queue.topic
        self.queue_id = queue.queue_id
        self.topic_part = queue.topic_part
        self.fixed_size = queue.fixed_size
        self.extension = None
        self.segments = queue.segments
        self.pending = bytearray()
        self.min_offset = queue.min_offset
        self.closed = queue.closed
        self.dirty = self.watched = False
        self.synced_below = self.synced_to = self.counted = 0
        self.restart()

    def restart(self) -> None:
        """Continue where the queue ends."""
        self.pending.clear()
        self.next_offset = self._queue.next_offset
        self.room = 0

    def extend(self, count: int = 1) -> None:  # noqa: ARG002 - as the base class
        """Make room. Raises PutError if the topic is being deleted."""
        if self.closed or self._queue.closed:
            raise PutError(
                PutStatus.SERVICE_NOT_AVAILABLE, f"topic {self.topic} is being deleted; retry later"
            )
        self.room = _UNLIMITED

    def write_pending(self) -> bool:
        """Drop the gathered entries; return False: nothing is to be flushed."""
        self.pending.clear()
        return False
