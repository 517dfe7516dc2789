"""The queues that a lite pull consumer reads: take them, find their start, give them up.

Queues come from `assign` or from the group's rebalancing (`take_share`). In a group that shares
its queues, a queue goes to another member after the reader is done with the messages it has of it
(within `READER_SECONDS`) and their offset is committed (`handover`); meanwhile it is in
`_leaving`.

Invariants:
1. Queues change one call at a time (`_changes`).
2. A call that was cancelled halfway leaves dropped readings, which the next call replaces.
3. A queue that comes back while the reader still has messages of it waits for them.

Created by the lite pull consumer; runs on its event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from functools import partial
from typing import Final

from pyromq.client.consumer.handover import Handover
from pyromq.client.consumer.lifecycle import Lifecycle
from pyromq.client.consumer.lite_pull.commits import Commits
from pyromq.client.consumer.lite_pull.read_ahead import ReadAhead, Reading
from pyromq.client.consumer.lite_pull.readers import QueueReaders
from pyromq.client.consumer.queue_access import QueueAccess
from pyromq.client.consumer.start_from import Start, StartFrom, first_offset
from pyromq.client.handler_threads import failure_of
from pyromq.protocol.wire.bodies import MessageQueue

logger = logging.getLogger(__name__)

#: Called with a sorted list of queues; a function or a coroutine function.
AssignmentListener = Callable[[list[MessageQueue]], Awaitable[None] | None]

#: How long a listener may take before the queues change without it.
LISTENER_SECONDS: Final = 30.0
#: How long a queue that goes to another member waits for the reader.
READER_SECONDS: Final = 10.0


class AssignedQueues:
    """The queues of one consumer. `readings` is the table that it fills and empties."""

    def __init__(  # noqa: PLR0913 - the parts of a consumer, all different
        self,
        group: str | None,
        start_from: Start,
        readings: dict[MessageQueue, Reading],
        lifecycle: Lifecycle,
        *,
        access: QueueAccess,
        ahead: ReadAhead,
        readers: QueueReaders,
        commits: Commits,
        auto_commit: bool,
        takes_all: bool,
    ) -> None:
        """`takes_all`: take every queue of a topic, regardless of other members."""
        self._group = group
        self._start_from = start_from
        self._readings = readings
        self._lifecycle = lifecycle
        self._access = access
        self._ahead = ahead
        self._readers = readers
        self._commits = commits
        self._auto_commit = auto_commit
        self._takes_all = takes_all
        self._on_assigned: AssignmentListener | None = None
        self._on_revoked: AssignmentListener | None = None
        self._changes = asyncio.Lock()
        #: Set while a group shares its queues among its members.
        self._handover: Handover | None = None
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._is_subscribed = False
        self._subscribed_at = datetime.now()
        #: Topics of which we have had queues, and queues that were added to those later.
        self._known_topics: set[str] = set()
        self._late: set[MessageQueue] = set()
        #: Without a group: positions of queues that vanished, as while a broker restarts.
        self._positions: dict[MessageQueue, int] = {}

    # Modes: assigned or subscribed

    def listen(
        self, on_assigned: AssignmentListener | None, on_revoked: AssignmentListener | None
    ) -> None:
        """Replace the listeners that are given."""
        self._on_assigned = on_assigned or self._on_assigned
        self._on_revoked = on_revoked or self._on_revoked

    def begin_subscription(self, handover: Handover | None) -> None:
        """Expect shares from now on; with `handover`, other members take part."""
        self._is_subscribed = True
        self._subscribed_at = datetime.now()
        self._handover = handover

    async def end_subscription(self) -> None:
        """Give up all queues after a failed subscription."""
        self._is_subscribed = False
        await self.assign([])
        if self._handover is not None:
            await self._handover.close()
            self._handover = None

    def forget_topic(self, topic: str) -> None:
        """Treat the queues of a topic as new when it is subscribed to again."""
        self._known_topics.discard(topic)

    # Changes

    async def take_share(self, queues: Collection[MessageQueue]) -> None:
        """Read exactly the queues that the group's rebalancing gives us."""
        if self._takes_all:
            self._late.update(queue for queue in queues if queue.topic in self._known_topics)
            self._late.difference_update(self._readings)
            self._known_topics.update(queue.topic for queue in queues)
        await self.assign(queues)

    async def assign(self, queues: Collection[MessageQueue]) -> None:
        """Read exactly these queues: give up the others, start the new ones."""
        async with self._changes:
            ours = dict.fromkeys(queues)
            await self._give_up(
                [
                    reading
                    for queue, reading in self._readings.items()
                    if queue not in ours or reading.is_dropped
                ]
            )
            new = [queue for queue in ours if queue not in self._readings]
            self._readings |= {
                queue: Reading(queue, previous=self._leaving.get(queue)) for queue in new
            }
            if new and self._on_assigned is not None:
                await self._notify(self._on_assigned, new)
            for reading in self._readings.values():
                if not self._readers.is_reading(reading):
                    self._readers.start(reading, self._find_start)

    async def restart(self, queue: MessageQueue, offset: int) -> None:
        """Continue one of our queues from `offset`; messages in hand no longer count."""
        old = self._readings[queue]
        self._ahead.drop(old)
        new = self._readings[queue] = Reading(queue, offset)
        new.is_paused = old.is_paused
        self._readers.start(new, self._find_start)
        await self._readers.stop(old)
        self._ahead.notify_room()

    def pull_again(self, topic: str) -> None:
        """Replace the pulls in flight of a topic whose subscription changed."""
        for reading in self._readings.values():
            if reading.queue.topic == topic:
                self._readers.start(reading, self._find_start)

    async def until_left(self, seconds: float | None = None) -> None:
        """Wait until queues that are being handed over are committed."""
        if self._leaving:
            await asyncio.wait(self._leaving.values(), timeout=seconds)

    async def give_up_all(self) -> None:
        """Give up all queues because the consumer closes."""
        async with self._changes:
            await self._give_up(list(self._readings.values()))

    async def release_all(self) -> None:
        """Let other members have all queues."""
        if self._handover is not None:
            await self._handover.close()

    # Giving up

    async def _give_up(self, readings: list[Reading]) -> None:
        if not readings:
            return
        if self._on_revoked is not None:
            await self._notify(self._on_revoked, [reading.queue for reading in readings])
        # The listener may have restarted queues.
        readings = [self._readings[reading.queue] for reading in readings]
        try:
            busy = await self._stop_reading(readings)
            if self._auto_commit and await self._commits.commit(readings):
                # There is no next commit: retry once for a slow broker.
                await self._commits.commit(readings)
        except BaseException:
            for reading in readings:
                self._ahead.drop(reading)
            raise
        for reading in readings:
            del self._readings[reading.queue]
            self._access.forget(reading.queue)
        for reading in busy:
            leaving = asyncio.create_task(self._leave(reading))
            self._leaving[reading.queue] = leaving
            leaving.add_done_callback(partial(self._has_left, reading.queue))
        if self._handover is not None:
            await self._handover.release(
                reading.queue for reading in readings if reading.queue not in self._leaving
            )
        self._ahead.notify_room()

    async def _stop_reading(self, readings: list[Reading]) -> list[Reading]:
        """Stop pulling and handing out; return queues that the reader still has messages of."""
        for reading in readings:
            position = reading.position
            if self._group is None and self._is_subscribed and position is not None:
                self._positions[reading.queue] = position
            if self._handover is None or not self._auto_commit or self._lifecycle.is_closing:
                self._ahead.drop(reading)
            else:
                self._ahead.pause(reading)
        await asyncio.gather(*map(self._readers.stop, readings))
        busy: list[Reading] = []
        for reading in readings:
            if reading.is_free:
                self._ahead.drop(reading)
            elif not reading.is_dropped:
                busy.append(reading)
        return busy

    async def _leave(self, reading: Reading) -> None:
        """Wait for the reader, commit, and release the queue."""
        if not reading.is_free:
            free = asyncio.Event()
            reading.when_free = free.set
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READER_SECONDS):
                    await free.wait()
        self._ahead.drop(reading)
        await self._commits.commit([reading])
        assert self._handover is not None
        await self._handover.release([reading.queue])

    def _has_left(self, queue: MessageQueue, task: asyncio.Task[None]) -> None:
        if self._leaving.get(queue) is task:
            del self._leaving[queue]

    async def _notify(self, listener: AssignmentListener, queues: list[MessageQueue]) -> None:
        try:
            async with asyncio.timeout(LISTENER_SECONDS):
                awaitable = listener(sorted(queues))
                if awaitable is not None:
                    await awaitable
        except BaseException as error:
            logger.error(
                "assignment listener %r failed, changing queues without it",
                listener,
                exc_info=failure_of(error),
            )

    # Starting

    async def _find_start(self, reading: Reading) -> None:
        """Claim a queue and set the offset to start from."""
        queue = reading.queue
        early: list[int] = []

        async def determine_early() -> None:
            """Find where to start in case the queue's owner dies before its first commit."""
            if await self._commits.load(queue) is None:
                early.append(await first_offset(self._access, queue, self._start_from))
            reading.start_attempted.set()

        if reading.previous is not None:
            reading.start_attempted.set()
            await asyncio.wait([reading.previous])
        if self._handover is not None:
            await self._handover.take(queue, determine_early)
        committed = await self._commits.load(queue) if self._group is not None else None
        offset = self._positions.get(queue) if committed is None else committed
        if offset is None and early:
            offset = early[0]
        if offset is None:
            start = self._start_from
            if start is StartFrom.LAST and queue in self._late:
                # The queue was added while we were reading: include what it got before we saw it.
                start = self._subscribed_at
            offset = await first_offset(self._access, queue, start)
        if reading.next_offset is None:
            reading.next_offset = reading.consumed = offset
