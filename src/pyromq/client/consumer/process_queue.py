"""Track the messages of one queue from the pull that fetched them until they are handled.

Invariants:
1. `commit_offset` is the offset of the first unfinished message. Once all are finished, it is the
   offset of the next pull, which skips the messages that a filter left out.
2. Messages may finish in any order, each of them once.
3. The messages of a pull that finish together, as they were put, cost no work per message
   (`_pulls`). Once some of them finish alone, all are tracked one by one (`_unfinished`); so every
   message in `_unfinished` is older than those in `_pulls`.
4. A dropped queue belongs to another member or was restarted: none of its messages is handed out
   or counted any more.

No I/O, clock or task. Used by the push consumer on its event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyromq.base.sizes import MIB
from pyromq.client.received import ReceivedMessage, consecutive_size
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
        "_last",
        "_order",
        "_pulls",
        "_unfinished",
        "count",
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
        #: Offsets of messages tracked one by one: in order, and those that are unfinished.
        self._order: deque[int] = deque()
        self._unfinished: set[int] = set()
        #: Pulls of which no message has finished, oldest first, by the identity of their list.
        self._pulls: dict[int, _Pull] = {}
        self._last = -1
        #: Number of unfinished messages.
        self.count = 0

    def put(self, messages: list[ReceivedMessage], next_offset: int) -> list[ReceivedMessage]:
        """Add the messages of a pull; return those that are new."""
        self.next_offset = next_offset
        if not messages:
            return messages
        offsets: Sequence[int]
        first = messages[0].queue_offset
        size = consecutive_size(messages)
        if size is not None and first > self._last:
            offsets = range(first, first + len(messages))
        else:
            # The broker skipped messages, or returned duplicates or disorder: take each once.
            by_offset = {message.queue_offset: message for message in messages}
            offsets = [offset for offset in sorted(by_offset) if offset > self._last]
            messages = [by_offset[offset] for offset in offsets]
            if not messages:
                return messages
            size = sum([message.body_size for message in messages])
        self._last = offsets[-1]
        self._pulls[id(messages)] = _Pull(messages, offsets, size)
        self.size += size
        self.count += len(offsets)
        return messages

    def finish(self, messages: Sequence[ReceivedMessage]) -> None:
        """Mark messages as handled."""
        pull = self._pulls.pop(id(messages), None)
        if pull is not None:
            self.size -= pull.size
            self.count -= len(pull.offsets)
        else:
            for message in messages:
                self.finish_one(message)
        if self.when_room is not None and not self.is_full():
            self._notify_room()

    def finish_one(self, message: ReceivedMessage) -> None:
        """Mark one message as handled: `finish` without the search for a whole pull."""
        if self._pulls:
            self._track_one_by_one()
        offset = message.queue_offset
        if offset in self._unfinished:
            self._unfinished.remove(offset)
            self.size -= message.body_size
            self.count -= 1
        if self.when_room is not None and not self.is_full():
            self._notify_room()

    def is_unfinished(self, message: ReceivedMessage) -> bool:
        """Return whether a message still has to be handled by this consumer."""
        self._track_one_by_one()
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
    def commit_offset(self) -> int:
        """The offset up to which everything is finished."""
        first = self._first()
        return self.next_offset if first is None else first

    @property
    def span(self) -> int:
        """Offset distance between the oldest unfinished and the newest message."""
        first = self._first()
        return 0 if first is None else self._last - first

    @property
    def cached_offsets(self) -> tuple[int, int]:
        """Offsets of the first and last unfinished message; zeros if there are none."""
        first = self._first()
        if first is None:
            return 0, 0
        if self._pulls:
            return first, self._last
        return first, max(self._unfinished)

    def is_full(self) -> bool:
        """Return whether pulling should pause."""
        limits = self.limits
        return (
            self.count >= limits.messages
            or self.size >= limits.size
            or (limits.span is not None and self.span > limits.span)
        )

    def _notify_room(self) -> None:
        notify, self.when_room = self.when_room, None
        if notify is not None:
            notify()

    def _track_one_by_one(self) -> None:
        for pull in self._pulls.values():
            self._order.extend(pull.offsets)
            self._unfinished.update(pull.offsets)
        self._pulls.clear()

    def _first(self) -> int | None:
        order, unfinished = self._order, self._unfinished
        while order and order[0] not in unfinished:
            order.popleft()
        if order:
            return order[0]
        for pull in self._pulls.values():
            return pull.offsets[0]
        return None


class _Pull(NamedTuple):
    #: Kept, so that no other list gets the same identity.
    messages: list[ReceivedMessage]
    offsets: Sequence[int]
    size: int
