"""Track the messages of one queue from the pull that fetched them until they are handled.

Invariants:
1. `commit_offset` is the offset of the first unfinished message. Once all are finished, it is the
   offset of the next pull, which skips the messages that a filter left out.
2. Messages may finish in any order, each of them once.
3. A dropped queue belongs to another member or was restarted: none of its messages is handed out
   or counted any more.

No I/O, clock or task. Used by the push consumer on its event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyromq.base.sizes import MIB
from pyromq.client.received import ReceivedMessage
from pyromq.protocol.wire.bodies import MessageQueue


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of one queue may be cached before pulling pauses."""

    messages: int = 1000
    size: int = 100 * MIB
    #: Offset distance between the oldest unfinished and the newest message; None for no limit.
    span: int | None = 2000


class ProcessQueue:
    """The state of a queue that is assigned to us."""

    __slots__ = (
        "_order",
        "_unfinished",
        "dropped",
        "handlers",
        "is_leaving",
        "is_scheduled",
        "last_consumed",
        "last_locked",
        "last_pulled",
        "limits",
        "next_offset",
        "queue",
        "size",
        "waiting",
        "when_idle",
        "when_room",
    )

    def __init__(self, queue: MessageQueue, offset: int, limits: Limits) -> None:
        self.queue = queue
        #: Offset of the next pull.
        self.next_offset = offset
        self.limits = limits
        self.dropped = False
        #: About to go to another member: no more messages are handed out.
        self.is_leaving = False
        #: Handler calls in flight.
        self.handlers = 0
        #: Body bytes of the unfinished messages.
        self.size = 0
        #: Orderly handling: messages not handed out yet.
        self.waiting: deque[ReceivedMessage] = deque()
        #: Orderly handling: whether the queue is scheduled for a worker.
        self.is_scheduled = False
        #: `time.monotonic()` of the last pull, handler call and lock renewal.
        self.last_pulled: float | None = None
        self.last_consumed: float | None = None
        self.last_locked: float | None = None
        #: Called once: when there is room again, and when no handler call is in flight.
        self.when_room: Callable[[], None] | None = None
        self.when_idle: Callable[[], None] | None = None
        self._order: deque[int] = deque()
        self._unfinished: set[int] = set()

    def put(self, messages: list[ReceivedMessage], next_offset: int) -> list[ReceivedMessage]:
        """Add the messages of a pull; return those that are new."""
        unfinished = self._unfinished
        last = self._order[-1] if self._order else -1
        offsets = [message.queue_offset for message in messages]
        if offsets and (offsets[0] <= last or sorted(offsets) != offsets):
            # The broker returned duplicates or disorder: take each message once, in order.
            by_offset = {message.queue_offset: message for message in messages}
            offsets = [offset for offset in sorted(by_offset) if offset > last]
            messages = [by_offset[offset] for offset in offsets]
        unfinished.update(offsets)
        self._order.extend(offsets)
        self.size += sum([message.body_size for message in messages])
        self.next_offset = next_offset
        return messages

    def finish(self, messages: Sequence[ReceivedMessage]) -> None:
        """Mark messages as handled."""
        unfinished = self._unfinished
        for message in messages:
            offset = message.queue_offset
            if offset in unfinished:
                unfinished.remove(offset)
                self.size -= message.body_size
        if self.when_room is not None and not self.is_full():
            notify, self.when_room = self.when_room, None
            notify()

    def is_unfinished(self, message: ReceivedMessage) -> bool:
        """Return whether a message still has to be handled by this consumer."""
        return not self.dropped and message.queue_offset in self._unfinished

    def drop(self) -> None:
        """Discard everything: the queue is no longer ours."""
        self.dropped = True
        self.waiting.clear()

    def begin_handling(self) -> None:
        """Count a handler call."""
        self.handlers += 1

    def end_handling(self) -> None:
        """Uncount a handler call after its outcome was recorded."""
        self.handlers -= 1
        if not self.handlers and self.when_idle is not None:
            notify, self.when_idle = self.when_idle, None
            notify()

    async def until_idle(self) -> None:
        """Wait until no handler call is in flight."""
        if self.handlers:
            idle = asyncio.Event()
            self.when_idle = idle.set
            await idle.wait()

    @property
    def count(self) -> int:
        """Number of unfinished messages."""
        return len(self._unfinished)

    @property
    def commit_offset(self) -> int:
        """The offset up to which everything is finished."""
        first = self._first()
        return self.next_offset if first is None else first

    @property
    def span(self) -> int:
        """Offset distance between the oldest unfinished and the newest message."""
        first = self._first()
        return 0 if first is None else self._order[-1] - first

    @property
    def cached_offsets(self) -> tuple[int, int]:
        """Offsets of the first and last unfinished message; zeros if there are none."""
        first = self._first()
        return (0, 0) if first is None else (first, max(self._unfinished))

    def is_full(self) -> bool:
        """Return whether pulling should pause."""
        limits = self.limits
        return (
            len(self._unfinished) >= limits.messages
            or self.size >= limits.size
            or (limits.span is not None and self.span > limits.span)
        )

    def _first(self) -> int | None:
        order, unfinished = self._order, self._unfinished
        while order and order[0] not in unfinished:
            order.popleft()
        return order[0] if order else None
