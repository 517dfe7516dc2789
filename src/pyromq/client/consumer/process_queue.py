"""The messages of one queue between the pull that brought them and the end of their handling.

Invariants:
1. `commit_offset` is the offset of the first message that is not finished; when all are, it
   is where the next pull begins (messages that a filter left out are passed over).
2. Messages may finish in any order, each of them once.
3. Dropped means that the queue belongs to another member now, or begins anew: nothing of it
   is handed out or counted any more.

Pure: no IO, no clock, no task. Used by one consumer on its event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyromq.client.received import ReceivedMessage
from pyromq.protocol.wire.bodies import MessageQueue


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of one queue may wait in memory before pulling pauses."""

    messages: int = 1000
    size: int = 100 * 1024 * 1024
    #: From the first unfinished message to the last one; None for no limit.
    span: int | None = 2000


class ProcessQueue:
    """What is known of a queue that is ours."""

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
        #: Where the next pull begins.
        self.next_offset = offset
        self.limits = limits
        self.dropped = False
        #: About to go to another member: nothing more of it is handed out.
        self.is_leaving = False
        #: Calls of the handler that have not returned.
        self.handlers = 0
        #: Bytes of the bodies that are not finished.
        self.size = 0
        #: Messages for a handler that takes them in order.
        self.waiting: deque[ReceivedMessage] = deque()
        #: For handling in order: in line for a worker.
        self.is_scheduled = False
        #: `time.monotonic()` of the last pull, handling and lock.
        self.last_pulled: float | None = None
        self.last_consumed: float | None = None
        self.last_locked: float | None = None
        #: Called once: when there is room again; when no handler is at work.
        self.when_room: Callable[[], None] | None = None
        self.when_idle: Callable[[], None] | None = None
        self._order: deque[int] = deque()
        self._unfinished: set[int] = set()

    def put(self, messages: list[ReceivedMessage], next_offset: int) -> list[ReceivedMessage]:
        """Take what a pull brought; those that are new."""
        unfinished = self._unfinished
        last = self._order[-1] if self._order else -1
        offsets = [message.queue_offset for message in messages]
        if offsets and (offsets[0] <= last or sorted(offsets) != offsets):
            # Not what was asked for: take each message once, in order.
            by_offset = {message.queue_offset: message for message in messages}
            offsets = [offset for offset in sorted(by_offset) if offset > last]
            messages = [by_offset[offset] for offset in offsets]
        unfinished.update(offsets)
        self._order.extend(offsets)
        self.size += sum([message.body_size for message in messages])
        self.next_offset = next_offset
        return messages

    def finish(self, messages: Sequence[ReceivedMessage]) -> None:
        """These need no more handling."""
        unfinished = self._unfinished
        for message in messages:
            offset = message.queue_offset
            if offset in unfinished:
                unfinished.remove(offset)
                self.size -= message.body_size
        if self.when_room is not None and not self.is_full():
            tell, self.when_room = self.when_room, None
            tell()

    def is_unfinished(self, message: ReceivedMessage) -> bool:
        """Whether the message still needs handling, here."""
        return not self.dropped and message.queue_offset in self._unfinished

    def drop(self) -> None:
        """Nothing of it is ours any more."""
        self.dropped = True
        self.waiting.clear()

    def begin_handling(self) -> None:
        """A handler is called."""
        self.handlers += 1

    def end_handling(self) -> None:
        """A handler has returned, and what it did with its messages was noted."""
        self.handlers -= 1
        if not self.handlers and self.when_idle is not None:
            tell, self.when_idle = self.when_idle, None
            tell()

    async def until_idle(self) -> None:
        """Wait until no handler is at work."""
        if self.handlers:
            idle = asyncio.Event()
            self.when_idle = idle.set
            await idle.wait()

    @property
    def count(self) -> int:
        """How many messages are not finished."""
        return len(self._unfinished)

    @property
    def commit_offset(self) -> int:
        """Up to which offset everything is finished."""
        first = self._first()
        return self.next_offset if first is None else first

    @property
    def span(self) -> int:
        """From the first unfinished message to the last that came."""
        first = self._first()
        return 0 if first is None else self._order[-1] - first

    @property
    def cached_offsets(self) -> tuple[int, int]:
        """First and last of the messages that are not finished; zeros when there are none."""
        first = self._first()
        return (0, 0) if first is None else (first, max(self._unfinished))

    def is_full(self) -> bool:
        """Whether pulling should pause."""
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
