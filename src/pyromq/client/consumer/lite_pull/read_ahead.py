"""Messages between the pulls that brought them and the reader that asks for them.

    pulls -> Reading.batches -> in hand -> consumed

Invariants:
1. A queue's messages are handed out in its order, queues take turns.
2. What was handed out is in hand until the next message or batch is asked for; then it counts
   as consumed. `Reading.commit_offset` is the offset of the first message that does not.
3. A queue that is paused hands out nothing; one that was dropped neither, and nothing of it
   counts any more.
4. Messages that a filter left out are passed over: consuming those before them is enough.

Pure: no IO, no clock, no task. Used by one lite pull consumer on its event loop; one reader.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from pyromq.client.consumer.process_queue import Limits
from pyromq.client.received import ReceivedMessage
from pyromq.protocol.wire.bodies import MessageQueue


class Reading:
    """A queue that is being read: what waits of it, how far it was consumed and committed."""

    __slots__ = (
        "batches",
        "begun",
        "committed",
        "consumed",
        "count",
        "in_hand",
        "is_dropped",
        "is_listed",
        "is_paused",
        "next_offset",
        "queue",
        "size",
        "when_free",
    )

    def __init__(self, queue: MessageQueue, offset: int | None = None) -> None:
        self.queue = queue
        #: Where the next pull begins; None until that is known.
        self.next_offset = offset
        self.consumed = offset
        #: Set when it was tried to find that out.
        self.begun = asyncio.Event()
        #: What the group's offset is, as far as we know.
        self.committed: int | None = None
        self.batches: deque[Batch] = deque()
        #: Messages that wait, and the bytes of their bodies.
        self.count = self.size = 0
        self.in_hand: Batch | None = None
        self.is_dropped = self.is_paused = False
        #: Whether it stands in the line of those that have messages.
        self.is_listed = False
        #: Called when nothing of it is in the reader's hand that does not count as consumed.
        self.when_free: Callable[[], None] | None = None

    @property
    def is_free(self) -> bool:
        """Whether everything that was handed out counts as consumed."""
        return self.in_hand is None or self.in_hand.position == self.in_hand.handed_out

    @property
    def commit_offset(self) -> int | None:
        """Up to where everything was consumed; None when it is not known where to begin."""
        return self.consumed if self.in_hand is None else self.in_hand.commit_offset

    @property
    def position(self) -> int | None:
        """The offset of the next message to be handed out, as far as it is known."""
        if self.in_hand is not None and self.in_hand.handed_out < len(self.in_hand.messages):
            return self.in_hand.messages[self.in_hand.handed_out].queue_offset
        if self.batches:
            return self.batches[0].messages[0].queue_offset
        return self.next_offset

    @property
    def span(self) -> int:
        """From the first message that waits to the last one."""
        batches = self.batches
        if not batches:
            return 0
        return batches[-1].messages[-1].queue_offset - batches[0].messages[0].queue_offset


class Batch:
    """What one pull brought."""

    __slots__ = ("handed_out", "messages", "next_offset", "position", "reading", "size")

    def __init__(self, reading: Reading, messages: list[ReceivedMessage], next_offset: int) -> None:
        self.reading = reading
        self.messages = messages
        #: Where its queue goes on when all of it was consumed.
        self.next_offset = next_offset
        self.size = sum([message.body_size for message in messages])
        #: Messages before `position` were consumed, those from there to `handed_out` are in hand.
        self.position = self.handed_out = 0

    @property
    def commit_offset(self) -> int:
        """Up to where everything was consumed."""
        if self.position < len(self.messages):
            return self.messages[self.position].queue_offset
        return self.next_offset


class ReadAhead:
    """The batches of all queues of one consumer.

    `begin` is told of each batch that comes into the reader's hand, `end` when it has left
    it, and whether it was consumed.
    """

    def __init__(
        self,
        limits: Limits,
        max_messages: int,
        *,
        begin: Callable[[Batch], None] | None = None,
        end: Callable[[Batch, bool], None] | None = None,
    ) -> None:
        self._limits = limits
        self._max_messages = max_messages
        self._begin = begin
        self._end = end
        self._line: deque[Reading] = deque()
        self._in_hand: Batch | None = None
        #: Messages that wait, of all queues.
        self.count = 0

    # For those who pull.

    def has_room(self, reading: Reading) -> bool:
        """Whether the queue may be pulled now."""
        limits = self._limits
        return (
            not reading.is_paused
            and self.count < self._max_messages
            and reading.count < limits.messages
            and reading.size < limits.size
            and (limits.span is None or reading.span <= limits.span)
        )

    def put(self, reading: Reading, messages: list[ReceivedMessage], next_offset: int) -> None:
        """Take what a pull brought; without messages, the filter has left all of them out."""
        if reading.is_dropped:
            return
        reading.next_offset = next_offset
        if not messages:
            last = reading.batches[-1] if reading.batches else reading.in_hand
            if last is None:
                reading.consumed = next_offset
            else:
                last.next_offset = next_offset
            return
        batch = Batch(reading, messages, next_offset)
        reading.batches.append(batch)
        self._add(reading, len(messages), batch.size)

    # For the reader.

    def next_message(self) -> ReceivedMessage | None:
        """The next message; what was handed out before counts as consumed."""
        batch = self._in_hand
        if batch is None or batch.handed_out >= len(batch.messages) or not _may_go_on(batch):
            batch = self._next_in_hand()
            if batch is None:
                return None
        batch.position = at = batch.handed_out
        batch.handed_out = at + 1
        return batch.messages[at]

    def next_batch(self) -> list[ReceivedMessage] | None:
        """The next messages of one queue; what was handed out before counts as consumed."""
        batch = self._in_hand
        if batch is None or batch.handed_out >= len(batch.messages) or not _may_go_on(batch):
            batch = self._next_in_hand()
            if batch is None:
                return None
        batch.position = batch.handed_out
        batch.handed_out = len(batch.messages)
        return batch.messages[batch.position :] if batch.position else batch.messages

    def settle(self) -> None:
        """What was handed out counts as consumed now."""
        if self._in_hand is not None:
            self._in_hand.position = self._in_hand.handed_out
            _tell_free(self._in_hand.reading)

    def discard(self) -> None:
        """Nothing more is asked for: what is in hand and was not settled stays unconsumed."""
        batch = self._in_hand
        if batch is not None:
            self._in_hand = None
            if batch.reading.in_hand is batch:
                batch.reading.consumed = batch.commit_offset
                batch.reading.in_hand = None
                _tell_free(batch.reading)
            if self._end is not None:
                self._end(batch, batch.position == len(batch.messages))

    # For the owner of the queues.

    def pause(self, reading: Reading) -> None:
        """Hand out nothing more of it."""
        reading.is_paused = True

    def resume(self, reading: Reading) -> None:
        """Hand out again."""
        reading.is_paused = False
        self._list(reading)

    def drop(self, reading: Reading) -> None:
        """Forget what waits of it; what is in hand does not count any more."""
        if reading.is_dropped:
            return
        reading.is_dropped = True
        reading.consumed = reading.commit_offset
        reading.in_hand = None
        reading.batches.clear()
        self.count -= reading.count
        reading.count = reading.size = 0

    # Helpers, in call order.

    def _add(self, reading: Reading, count: int, size: int) -> None:
        reading.count += count
        reading.size += size
        self.count += count
        self._list(reading)

    def _list(self, reading: Reading) -> None:
        if reading.batches and not reading.is_listed and not reading.is_paused:
            reading.is_listed = True
            self._line.append(reading)

    def _next_in_hand(self) -> Batch | None:
        """Finish with what is in hand, take the first batch of the next queue in line."""
        if self._in_hand is not None:
            self._finish(self._in_hand)
        line = self._line
        while line:
            reading = line.popleft()
            reading.is_listed = False
            if reading.is_dropped or reading.is_paused:
                continue
            batch = reading.batches.popleft()
            self._add(reading, -len(batch.messages), -batch.size)
            self._in_hand = reading.in_hand = batch
            if self._begin is not None:
                self._begin(batch)
            return batch
        return None

    def _finish(self, batch: Batch) -> None:
        reading = batch.reading
        self._in_hand = None
        if not reading.is_dropped:
            reading.in_hand = None
            if batch.handed_out < len(batch.messages):  # paused in the middle
                rest = Batch(reading, batch.messages[batch.handed_out :], batch.next_offset)
                batch.messages = batch.messages[: batch.handed_out]
                batch.next_offset = rest.messages[0].queue_offset
                reading.batches.appendleft(rest)
                self._add(reading, len(rest.messages), rest.size)
            reading.consumed = batch.next_offset
            _tell_free(reading)
        if self._end is not None:
            self._end(batch, not reading.is_dropped)


def _tell_free(reading: Reading) -> None:
    if reading.when_free is not None:
        reading.when_free()


def _may_go_on(batch: Batch) -> bool:
    return not batch.reading.is_dropped and not batch.reading.is_paused
