"""Deliver messages to the reader of a lite pull consumer, and make it wait when there are none.

One reader waits at a time. It is woken by messages (`wake`), by a permanent refusal, which it
raises (`fail`), and by the end of the consumer. Hooks see each batch that it starts and finishes.
Runs on the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Self, TypeVar

from pyromq.client.consumer.lifecycle import Lifecycle
from pyromq.client.consumer.lite_pull.read_ahead import Batch, ReadAhead
from pyromq.client.errors import BrokerError, ClientStateError
from pyromq.client.hooks import Consuming, Hooks, Receiving
from pyromq.client.received import ReceivedMessage
from pyromq.client.session.session import Session

T = TypeVar("T")


class Delivery:
    """The reader's side of a `ReadAhead`."""

    def __init__(self, session: Session, lifecycle: Lifecycle, ahead: ReadAhead) -> None:
        self._session = session
        self._lifecycle = lifecycle
        self._ahead = ahead
        #: The reader that waits for messages.
        self.waiter: asyncio.Future[None] | None = None
        #: The refusal that the reader raises next.
        self.refusal: BrokerError | None = None
        #: `time.monotonic()` when the reader asked; None while it does not wait.
        self.asked: float | None = None

    async def next(self, take: Callable[[], T | None], timeout: float | None = None) -> T | None:  # noqa: ASYNC109
        """Wait until `take` returns something; None after `timeout` seconds, or when closed.

        Raises a permanent refusal, and ClientStateError if another task is waiting.
        """
        if self.waiter is not None:
            raise ClientStateError("another task is waiting for messages: use one reader at a time")
        self.asked = time.monotonic()
        deadline = None if timeout is None else self.asked + timeout
        try:
            while not self._lifecycle.is_closing:
                self._session.check_running()
                if self.refusal is not None:
                    refusal, self.refusal = self.refusal, None
                    self._ahead.settle()
                    raise refusal
                item = take()
                if item is not None:
                    return item
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    await asyncio.sleep(0)  # a caller that polls in a loop must not starve pulls
                    return None if self._lifecycle.is_closing else take()
                await self._wait(left)
            return None
        finally:
            self.asked = None

    def wake(self) -> None:
        """Let the waiting reader check again."""
        if self.waiter is not None:
            _resolve(self.waiter)

    def fail(self, refusal: BrokerError) -> None:
        """Raise a permanent refusal to the reader."""
        self.refusal = refusal
        self.wake()

    async def _wait(self, seconds: float | None) -> None:
        loop = asyncio.get_running_loop()
        waiter = self.waiter = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _resolve, waiter)
        try:
            await waiter
        finally:
            self.waiter = None
            if timer is not None:
                timer.cancel()


class Batches:
    """The messages of a consumer as lists, for `async for`."""

    def __init__(self, delivery: Delivery, ahead: ReadAhead) -> None:
        self._delivery = delivery
        self._ahead = ahead

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[ReceivedMessage]:
        """Wait for the next messages of one queue."""
        messages = await self._delivery.next(self._ahead.next_batch)
        if messages is None:
            raise StopAsyncIteration
        return messages


class BatchHooks:
    """Calls the hooks for each batch: `begin` and `end` are callbacks of `ReadAhead`.

    `asked` returns the time when the reader asked, or None if it did not wait.
    """

    def __init__(
        self, hooks: Hooks, group: str, namespace: str, asked: Callable[[], float | None]
    ) -> None:
        self._hooks = hooks
        self._asked = asked
        self._group = group
        self._namespace = namespace
        self._consuming: Consuming | None = None

    def begin(self, batch: Batch) -> None:
        """Call the hooks before a batch."""
        if self._hooks.receive:
            asked = self._asked()
            self._hooks.after_receive(
                Receiving(
                    self._group,
                    self._namespace,
                    batch.messages,
                    batch.reading.queue,
                    began=time.monotonic() if asked is None else asked,
                )
            )
        if self._hooks.consume:
            self._consuming = Consuming(
                self._group,
                self._namespace,
                batch.messages,
                batch.reading.queue,
                began=time.monotonic(),
                has_handler=False,
            )
            self._hooks.before_consume(self._consuming)

    def end(self, _batch: Batch, is_consumed: bool) -> None:
        """Call the hooks after a batch."""
        if self._consuming is not None:
            self._consuming.success = is_consumed
            self._hooks.after_consume(self._consuming)
            self._consuming = None


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
