"""Handle messages in any order, many at once.

Each message (or each list of up to `batch_size`) is a job for one of the workers. A message that
its handler failed on goes back to the broker; if that fails as well, it is handed out again after
5 s. In broadcasting nothing can go back: the failure is logged and the message counts as consumed.

A handler that exceeds the consumer's `consume_timeout` is cancelled if it is a coroutine, and its
message goes back. (Java lets it run and keeps its thread occupied.)

Runs on the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pyromq.client.consumer.process_queue import ProcessQueue
from pyromq.client.consumer.push.handling import HandlerCaller, Retry, outcome_of
from pyromq.client.consumer.push.stats import TopicStats
from pyromq.client.consumer.push.workers import Worker, Workers
from pyromq.client.received import ReceivedMessage

logger = logging.getLogger(__name__)

#: Delay before a message that could not be sent back is handed out again.
LOCAL_RETRY_SECONDS: Final = 5.0
#: The delay level of a message whose handler timed out, as in Java: 10 s.
_TIMED_OUT_DELAY_LEVEL: Final = 3

_Job = tuple[ProcessQueue, TopicStats, list[ReceivedMessage]]


class ConcurrentHandling:
    """Calls the handler for messages of all queues; `send_back` is None in broadcasting."""

    def __init__(
        self,
        call: HandlerCaller,
        send_back: Callable[[ReceivedMessage, int], Awaitable[bool]] | None,
        *,
        max_handlers: int,
        batch_size: int,
    ) -> None:
        self._call = call
        self._send_back = send_back
        self._batch_size = batch_size
        self._workers: Workers[_Job] = Workers(max_handlers, self._handle_jobs)
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(
        self, process_queue: ProcessQueue, stats: TopicStats, messages: list[ReceivedMessage]
    ) -> None:
        """Hand the messages of a pull to the workers."""
        size = self._batch_size
        if size == 1:
            self._workers.add([(process_queue, stats, [message]) for message in messages])
        elif len(messages) <= size:
            self._workers.add([(process_queue, stats, messages)])
        else:
            self._workers.add(
                (process_queue, stats, messages[start : start + size])
                for start in range(0, len(messages), size)
            )

    async def leave(self, process_queue: ProcessQueue, grace: float = 0.0) -> None:
        """Stop handing out messages of a queue; wait up to `grace` seconds for its handlers.

        The outcome of a handler that returns later is ignored.
        """
        process_queue.is_leaving = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await process_queue.until_idle()
        process_queue.drop()

    def cancel_overdue(self, timeout: float) -> None:
        """Cancel handlers that have run for longer than `timeout` and send their messages back."""
        for process_queue, stats, messages in self._workers.cancel_overdue(timeout):
            logger.warning("handler timed out after %g s, sending back %r", timeout, messages[0])
            self._spawn(self._retry(process_queue, stats, messages, Retry(_TIMED_OUT_DELAY_LEVEL)))

    def is_worker(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether a task runs handlers."""
        return self._workers.has(task)

    async def stop(self, grace: float) -> None:
        """Start no more handlers; let running ones finish within `grace` seconds."""
        await self._workers.stop(grace)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        self._call.close()

    # Helpers, in call order.

    async def _handle_jobs(self, worker: Worker[_Job]) -> None:
        call, clock = self._call, time.monotonic
        # The calls of a plain handler are written out: coroutines in between cost as much as it.
        takes_lists, handler = call.takes_lists, call.plain_handler
        job = worker.take(clock())
        while job is not None:
            process_queue, stats, messages = job
            if process_queue.is_leaving:
                job = worker.take(clock())
                continue
            began = process_queue.last_consumed = worker.began
            process_queue.handlers += 1
            try:
                if handler is None:
                    retry = await call(process_queue.queue, messages)
                else:
                    try:
                        # Its own list: a handler may change it.
                        result = await handler([*messages] if takes_lists else messages[0])
                        retry = None if result is None else outcome_of(result)
                    except BaseException as error:
                        retry = call.failed(messages, error)
                now = clock()
                stats.handlings += 1
                stats.handling_seconds += now - began
                if process_queue.dropped:
                    pass
                elif retry is None:
                    stats.handled += len(messages)
                    if len(messages) == 1:
                        process_queue.finish_one(messages[0])
                    else:
                        process_queue.finish(messages)
                else:
                    await self._retry(process_queue, stats, messages, retry)
                    now = clock()
            finally:
                process_queue.end_handling()
            job = worker.take(now)

    async def _retry(
        self,
        process_queue: ProcessQueue,
        stats: TopicStats,
        messages: list[ReceivedMessage],
        retry: Retry,
    ) -> None:
        failed = messages
        if retry.messages is not None:
            failed = [message for message in messages if message in retry.messages]
            done = [message for message in messages if message not in retry.messages]
            stats.handled += len(done)
            process_queue.finish(done)
        stats.failed += len(failed)
        for message in failed:
            # A message that timed out was sent back while its handler was still running.
            if process_queue.is_unfinished(message):
                await self._return(process_queue, stats, message, retry.delay_level)

    async def _return(
        self,
        process_queue: ProcessQueue,
        stats: TopicStats,
        message: ReceivedMessage,
        delay_level: int,
    ) -> None:
        if self._send_back is None:
            logger.warning("dropping %r: broadcasting has no redelivery", message)
        elif not await self._send_back(message, delay_level):
            message.count_failure()
            self._workers.add_later((process_queue, stats, [message]), LOCAL_RETRY_SECONDS)
            return
        process_queue.finish([message])

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
