"""Handling a queue's messages in its order: one handler per queue at a time.

A message that its handler did not take is handed out again, after the queue has rested for a
moment; nothing behind it is touched. After `max_reconsume_times` (by default: never) it goes
to the group's dead letters, and the queue goes on. Several queues are handled at once, in turn.

Invariants:
1. A queue stands in line for a worker once at most, so its messages cannot overtake another.
2. Nothing is handed out without a valid lock (`queue_locks`).
3. A queue that goes to another member is given free only when its handler has come back.

On the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from pyromq.client.consumer.process_queue import ProcessQueue
from pyromq.client.consumer.push.handling import HandlerCaller, Retry
from pyromq.client.consumer.push.send_back import DEAD_LETTER
from pyromq.client.consumer.push.stats import TopicStats
from pyromq.client.consumer.push.workers import Workers
from pyromq.client.received import ReceivedMessage

logger = logging.getLogger(__name__)

#: Between looks whether a queue's lock is valid again.
_LOCK_LOOK_SECONDS = 0.1
#: A queue rests for no less and no more than that, as in Java.
_SHORTEST_REST_SECONDS, _LONGEST_REST_SECONDS = 0.01, 30.0

_Job = tuple[ProcessQueue, TopicStats]


class OrderlyHandling:
    """Hands messages to the handler.

    `send_back` and `has_lock` are None in broadcasting: nothing goes back, nobody locks.
    """

    def __init__(
        self,
        call: HandlerCaller,
        send_back: Callable[[ReceivedMessage, int], Awaitable[bool]] | None,
        has_lock: Callable[[ProcessQueue], bool] | None,
        *,
        max_handlers: int,
        batch_size: int,
        suspend: float,
        max_reconsume_times: int,
    ) -> None:
        self._call = call
        self._send_back = send_back
        self._has_lock = has_lock
        self._batch_size = batch_size
        self._suspend = suspend
        self._max_reconsume_times = max_reconsume_times
        self._workers: Workers[_Job] = Workers(max_handlers, self._handle)

    def submit(
        self, process_queue: ProcessQueue, stats: TopicStats, messages: list[ReceivedMessage]
    ) -> None:
        """These came from a pull."""
        process_queue.waiting.extend(messages)
        if not process_queue.is_scheduled and messages:
            process_queue.is_scheduled = True
            self._workers.add([(process_queue, stats)])

    async def leave(self, process_queue: ProcessQueue, grace: float = 0.0) -> None:  # noqa: ARG002
        """Hand out nothing more of a queue; return when its handler has, however long it takes."""
        process_queue.drop()
        await process_queue.until_idle()

    def look_for_hung(self, timeout: float) -> None:
        """In order, nothing can be left out: a handler has all the time it takes."""

    def is_worker(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task is one that runs handlers."""
        return self._workers.has(task)

    async def stop(self, grace: float) -> None:
        """Begin nothing more, let running handlers end within `grace` seconds."""
        await self._workers.stop(grace)
        self._call.close()

    # Helpers, in call order.

    async def _handle(self, job: _Job) -> None:
        process_queue, stats = job
        waiting = process_queue.waiting
        if process_queue.dropped or not waiting:
            process_queue.is_scheduled = False
            return
        if self._has_lock is not None and not self._has_lock(process_queue):
            self._workers.add_later(job, _LOCK_LOOK_SECONDS)
            return
        count = min(self._batch_size, len(waiting))
        messages = [waiting.popleft() for _ in range(count)]
        process_queue.begin_handling()
        try:
            began = process_queue.last_consumed = time.monotonic()
            retry = await self._call(process_queue.queue, messages)
            stats.handlings += 1
            stats.handling_seconds += time.monotonic() - began
            rest = 0.0
            if retry is None:
                stats.handled += count
                process_queue.finish(messages)
            else:
                stats.failed += count
                rest = await self._failed(process_queue, messages, retry)
        finally:
            process_queue.end_handling()
        if rest:
            self._workers.add_later(job, rest)
        elif waiting:
            self._workers.add([job])
        else:
            process_queue.is_scheduled = False

    async def _failed(
        self, process_queue: ProcessQueue, messages: list[ReceivedMessage], retry: Retry
    ) -> float:
        """For how long the queue rests; 0 when it goes on behind these messages."""
        again: list[ReceivedMessage] = []
        for message in messages:
            if message.reconsume_times >= self._max_reconsume_times and await self._bury(message):
                process_queue.finish([message])
            else:
                message.reconsume_times += 1
                again.append(message)
        if not again or process_queue.dropped:
            return 0.0
        process_queue.waiting.extendleft(reversed(again))
        rest = self._suspend if retry.suspend is None else retry.suspend
        return min(max(rest, _SHORTEST_REST_SECONDS), _LONGEST_REST_SECONDS)

    async def _bury(self, message: ReceivedMessage) -> bool:
        if self._send_back is None:
            logger.warning("%r was not consumed: in broadcasting it does not come again", message)
            return True
        logger.warning("%r failed %d times: dead letter", message, message.reconsume_times)
        return await self._send_back(message, DEAD_LETTER)
