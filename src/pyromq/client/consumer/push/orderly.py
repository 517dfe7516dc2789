"""Handle the messages of each queue in order: one handler call per queue at a time.

A message that its handler failed on is retried after a pause, before any later message of its
queue. After `max_reconsume_times` (by default never) it goes to the group's dead letters, and the
queue continues. Several queues are handled at once, in turn.

Invariants:
1. A queue is scheduled for a worker at most once, so its messages cannot overtake each other.
2. No message is handed out without a valid lock (`locks`).
3. A queue is released to another member only after its handler has returned.

Runs on the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pyromq.client.consumer.process_queue import ProcessQueue
from pyromq.client.consumer.push.handling import HandlerCaller, Retry
from pyromq.client.consumer.push.send_back import DEAD_LETTER
from pyromq.client.consumer.push.stats import TopicStats
from pyromq.client.consumer.push.workers import Workers, one_by_one
from pyromq.client.received import ReceivedMessage

logger = logging.getLogger(__name__)

#: Between checks whether a queue's lock is valid again.
_LOCK_CHECK_SECONDS: Final = 0.1
#: Bounds of the pause before a retry, as in Java.
_MIN_PAUSE_SECONDS: Final = 0.01
_MAX_PAUSE_SECONDS: Final = 30.0

_Job = tuple[ProcessQueue, TopicStats]


class OrderlyHandling:
    """Calls the handler for messages of all queues.

    `send_back` and `has_lock` are None in broadcasting, which has neither redelivery nor locks.
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
        self._workers: Workers[_Job] = Workers(max_handlers, one_by_one(self._handle))

    def submit(
        self, process_queue: ProcessQueue, stats: TopicStats, messages: list[ReceivedMessage]
    ) -> None:
        """Add the messages of a pull to their queue and schedule it."""
        process_queue.waiting.extend(messages)
        if not process_queue.is_scheduled and messages:
            process_queue.is_scheduled = True
            self._workers.add([(process_queue, stats)])

    async def leave(self, process_queue: ProcessQueue, grace: float = 0.0) -> None:  # noqa: ARG002
        """Stop handing out messages of a queue; wait for its handler, however long it takes."""
        process_queue.drop()
        await process_queue.until_idle()

    def cancel_overdue(self, timeout: float) -> None:
        """Do nothing: no message may be skipped, so a handler has no time limit."""

    def is_worker(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether a task runs handlers."""
        return self._workers.has(task)

    async def stop(self, grace: float) -> None:
        """Start no more handlers; let running ones finish within `grace` seconds."""
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
            self._workers.add_later(job, _LOCK_CHECK_SECONDS)
            return
        count = min(self._batch_size, len(waiting))
        messages = [waiting.popleft() for _ in range(count)]
        process_queue.begin_handling()
        try:
            began = process_queue.last_consumed = time.monotonic()
            retry = await self._call(process_queue.queue, messages)
            stats.handlings += 1
            stats.handling_seconds += time.monotonic() - began
            pause = 0.0
            if retry is None:
                stats.handled += count
                process_queue.finish(messages)
            else:
                stats.failed += count
                pause = await self._retry(process_queue, messages, retry)
        finally:
            process_queue.end_handling()
        if pause:
            self._workers.add_later(job, pause)
        elif waiting:
            self._workers.add([job])
        else:
            process_queue.is_scheduled = False

    async def _retry(
        self, process_queue: ProcessQueue, messages: list[ReceivedMessage], retry: Retry
    ) -> float:
        """Put failed messages back at the front; return the pause, 0 if none has to be retried."""
        again: list[ReceivedMessage] = []
        for message in messages:
            if (
                message.reconsume_times >= self._max_reconsume_times
                and await self._make_dead_letter(message)
            ):
                process_queue.finish([message])
            else:
                message.count_failure()
                again.append(message)
        if not again or process_queue.dropped:
            return 0.0
        process_queue.waiting.extendleft(reversed(again))
        pause = self._suspend if retry.suspend is None else retry.suspend
        return min(max(pause, _MIN_PAUSE_SECONDS), _MAX_PAUSE_SECONDS)

    async def _make_dead_letter(self, message: ReceivedMessage) -> bool:
        if self._send_back is None:
            logger.warning("dropping %r: broadcasting has no redelivery", message)
            return True
        logger.warning(
            "%r failed after %d retries, sending it to the dead letters",
            message,
            message.reconsume_times,
        )
        return await self._send_back(message, DEAD_LETTER)
