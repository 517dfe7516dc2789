"""Hold messages between the pulls that fetched them and the reader that asks for them.

    pulls -> Reading.batches -> in hand -> consumed

Invariants:
1. Messages of a queue are handed out in order; queues take turns.
2. Messages are in hand from the moment they are handed out until the reader asks for more; then
   they count as consumed. `Reading.commit_offset` is the offset of the first unconsumed message.
3. A paused or dropped queue hands out nothing. Messages of a dropped queue never count.
4. Messages that a filter left out are skipped: consuming those before them is enough.

No I/O, clock or task. Used by one lite pull consumer on its event loop, with one reader.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from pyromq.client.consumer.process_queue import Limits
from pyromq.client.received import ReceivedMessage
from pyromq.protocol.wire.bodies import MessageQueue


class Reading:
    """A queue being read: its cached messages, and how far it was consumed."""

    __slots__ = (
        "batches",
        "consumed",
        "count",
        "in_hand",
        "is_dropped",
        "is_listed",
        "is_paused",
        "next_offset",
        "previous",
        "queue",
        "size",
        "start_attempted",
        "when_free",
    )

    def __init__(
        self,
        queue: MessageQueue,
        offset: int | None = None,
        previous: asyncio.Task[None] | None = None,
    ) -> None:
        self.queue = queue
        #: Offset of the next pull; None until it is known.
        self.next_offset = offset
        self.consumed = offset
        #: Set after the first attempt to find the offset to start from.
        self.start_attempted = asyncio.Event()
        #: A task that still waits for the reader to finish earlier messages of this queue.
        self.previous = previous
        self.batches: deque[Batch] = deque()
        #: Number of cached messages, and their body bytes.
        self.count = self.size = 0
        self.in_hand: Batch | None = None
        self.is_dropped = self.is_paused = False
        #: Whether the queue is in line to hand out messages.
        self.is_listed = False
        #: Called when every message that was handed out counts as consumed.
        self.when_free: Callable[[], None] | None = None

    @property
    def is_free(self) -> bool:
        """Whether every message that was handed out counts as consumed."""
        return self.in_hand is None or self.in_hand.position == self.in_hand.handed_out

    @property
    def commit_offset(self) -> int | None:
        """The offset up to which everything is consumed; None until the start is known."""
        return self.consumed if self.in_hand is None else self.in_hand.commit_offset

    @property
    def position(self) -> int | None:
        """The offset of the next message to hand out; None until the start is known."""
        if self.in_hand is not None and self.in_hand.handed_out < len(self.in_hand.messages):
            return self.in_hand.messages[self.in_hand.handed_out].queue_offset
        if self.batches:
            return self.batches[0].messages[0].queue_offset
        return self.next_offset

    @property
    def span(self) -> int:
        """Offset distance between the first and the last cached message."""
        batches = self.batches
        if not batches:
            return 0
        return batches[-1].messages[-1].queue_offset - batches[0].messages[0].queue_offset


class Batch:
    """The messages of one pull."""

    __slots__ = ("handed_out", "messages", "next_offset", "position", "reading", "size")

    def __init__(self, reading: Reading, messages: list[ReceivedMessage], next_offset: int) -> None:
        self.reading = reading
        self.messages = messages
        #: Offset after this batch, including messages that a filter left out.
        self.next_offset = next_offset
        self.size = sum([message.body_size for message in messages])
        #: Messages before `position` are consumed; from there to `handed_out` they are in hand.
        self.position = self.handed_out = 0

    @property
    def commit_offset(self) -> int:
        """The offset up to which everything is consumed."""
        if self.position < len(self.messages):
            return self.messages[self.position].queue_offset
        return self.next_offset


class ReadAhead:
    """The batches of all queues of one consumer.

    `begin` is called with each batch that the reader starts, `end` when the reader is done with
    it, with whether it was consumed.
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
        #: Pulls that wait for room.
        self._stalled: dict[Reading, asyncio.Future[None]] = {}
        #: Number of cached messages of all queues.
        self.count = 0

    # For the tasks that pull.

    def has_room(self, reading: Reading) -> bool:
        """Return whether the queue may be pulled now."""
        limits = self._limits
        return (
            not reading.is_paused
            and self.count < self._max_messages
            and reading.count < limits.messages
            and reading.size < limits.size
            and (limits.span is None or reading.span <= limits.span)
        )

    async def until_room(self, reading: Reading) -> None:
        """Wait until the queue may be pulled."""
        while not self.has_room(reading):
            room = self._stalled[reading] = asyncio.get_running_loop().create_future()
            try:
                await room
            finally:
                if self._stalled.get(reading) is room:
                    del self._stalled[reading]

    def notify_room(self) -> None:
        """Wake the pulls that have room again, after messages were taken or queues changed."""
        for reading, room in self._stalled.items():
            if not room.done() and self.has_room(reading):
                room.set_result(None)

    def put(self, reading: Reading, messages: list[ReceivedMessage], next_offset: int) -> None:
        """Add the result of a pull; without messages, the filter left all of them out."""
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
        """Return the next message or None; messages handed out before count as consumed."""
        batch = self._in_hand
        if batch is None or batch.handed_out >= len(batch.messages) or not _may_continue(batch):
            batch = self._next_in_hand()
            if batch is None:
                return None
        batch.position = at = batch.handed_out
        batch.handed_out = at + 1
        return batch.messages[at]

    def next_batch(self) -> list[ReceivedMessage] | None:
        """Return the next messages of one queue or None; earlier ones count as consumed."""
        batch = self._in_hand
        if batch is None or batch.handed_out >= len(batch.messages) or not _may_continue(batch):
            batch = self._next_in_hand()
            if batch is None:
                return None
        batch.position = batch.handed_out
        batch.handed_out = len(batch.messages)
        return batch.messages[batch.position :] if batch.position else batch.messages

    def settle(self) -> None:
        """Count every message that was handed out as consumed."""
        if self._in_hand is not None:
            self._in_hand.position = self._in_hand.handed_out
            _notify_free(self._in_hand.reading)

    def discard(self) -> None:
        """End reading: messages in hand that were not settled stay unconsumed."""
        batch = self._in_hand
        if batch is not None:
            self._in_hand = None
            if batch.reading.in_hand is batch:
                batch.reading.consumed = batch.commit_offset
                batch.reading.in_hand = None
                _notify_free(batch.reading)
            if self._end is not None:
                self._end(batch, batch.position == len(batch.messages))

    # For the owner of the queues.

    def pause(self, reading: Reading) -> None:
        """Stop handing out messages of a queue."""
        reading.is_paused = True

    def resume(self, reading: Reading) -> None:
        """Resume handing out messages of a queue."""
        reading.is_paused = False
        self._list(reading)

    def drop(self, reading: Reading) -> None:
        """Discard the cached messages of a queue; messages in hand no longer count."""
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
        """Finish the batch in hand and take the first batch of the next queue in line."""
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
            self.notify_room()
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
            _notify_free(reading)
        if self._end is not None:
            self._end(batch, not reading.is_dropped)


def _notify_free(reading: Reading) -> None:
    if reading.when_free is not None:
        reading.when_free()


def _may_continue(batch: Batch) -> bool:
    return not batch.reading.is_dropped and not batch.reading.is_paused
