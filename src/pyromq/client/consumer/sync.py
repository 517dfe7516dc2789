"""Synchronous consumers: `PushConsumer.sync(...)` and its siblings.

`client.sync` says what they guarantee. The asynchronous consumers import this module, so it must
not import them.
"""

# The wrapped client is typed Any, and so are its results.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from datetime import datetime
from typing import Any, Self, TypeVar

from pyromq.client.arguments import check_callable, check_seconds
from pyromq.client.consumer.queue_access import PullResult
from pyromq.client.consumer.subscription import Subscription
from pyromq.client.handler_threads import is_handler_thread
from pyromq.client.loop_thread import shared_loop
from pyromq.client.received import ReceivedMessage
from pyromq.client.sync import SyncClient, on_loop, open_clients
from pyromq.protocol.wire.bodies import MessageQueue

_Result = TypeVar("_Result")


class SyncPushConsumer(SyncClient):
    """`PushConsumer` for programs without an event loop, created by `PushConsumer.sync(...)`.

    A handler that is a plain function runs in up to `max_handlers` threads and may use other
    synchronous clients. After a fork, the child consumes once it calls `start` or another method.
    """

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until another thread or a handler closes the consumer, at most `timeout` seconds.

        Returns whether it is closed.
        """
        if timeout is not None:
            check_seconds("timeout", timeout, may_be_zero=True)
        return self._is_closed or self._run(lambda it: _within(it.closed(), timeout))

    def subscribe(self, topic: str, wanted: str | Subscription = "*") -> None:
        """Add a topic, or change the subscription to it."""
        self._run(lambda it: it.subscribe(topic, wanted))

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic."""
        self._run(lambda it: it.unsubscribe(topic))

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Stop pulling from these queues, or from all; cached messages are still handled."""
        self._run(on_loop(lambda it: it.pause(queues)))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Resume pulling from these queues, or from all."""
        self._run(on_loop(lambda it: it.resume(queues)))

    def assignment(self) -> list[MessageQueue]:
        """Return the queues assigned to this consumer now."""
        return self._run(on_loop(lambda it: it.assignment()))

    def close(self) -> None:
        """Stop pulling, wait for handlers, commit, leave the group. Idempotent.

        A call from a handler returns at once; the consumer closes after the handler returns.
        """
        if is_handler_thread() and self in open_clients:
            shared_loop().submit(self._client.close())
        else:
            super().close()


class SyncLitePullConsumer(SyncClient):
    """`LitePullConsumer` for programs without an event loop: `LitePullConsumer.sync(...)`.

        with LitePullConsumer.sync("127.0.0.1:9876", group="billing") as consumer:
            consumer.subscribe("orders")
            for message in consumer:
                ...

    Lists (`poll`, `batches`) are much faster than single messages, because each step is a round
    trip to the background loop. Only one thread may read at a time.
    """

    def subscribe(
        self,
        subscriptions: str | Iterable[str] | Mapping[str, str | Subscription],
        *,
        on_assigned: Callable[[list[MessageQueue]], None] | None = None,
        on_revoked: Callable[[list[MessageQueue]], None] | None = None,
    ) -> None:
        """Add topics: see `LitePullConsumer.subscribe`.

        Listeners run in a thread, so they may use this consumer.
        """
        self._run(
            lambda it: it.subscribe(
                subscriptions,
                on_assigned=_in_thread(on_assigned),
                on_revoked=_in_thread(on_revoked),
            )
        )

    def unsubscribe(self, *topics: str) -> None:
        """Stop reading these topics and commit the messages consumed from them."""
        self._run(lambda it: it.unsubscribe(*topics))

    def assign(
        self,
        queues: Collection[MessageQueue],
        subscriptions: Mapping[str, str | Subscription] | None = None,
    ) -> None:
        """Read exactly these queues from now on: see `LitePullConsumer.assign`."""
        self._run(lambda it: it.assign(queues, subscriptions))

    def assignment(self) -> list[MessageQueue]:
        """Return the queues this consumer reads now."""
        return self._run(on_loop(lambda it: it.assignment()))

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Return no messages from these queues, or from any; they stay assigned."""
        self._run(on_loop(lambda it: it.pause(queues)))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Resume these queues, or all."""
        self._run(on_loop(lambda it: it.resume(queues)))

    def poll(self, timeout: float = 5.0) -> list[ReceivedMessage]:
        """Return the next messages of one queue in order, or an empty list after `timeout` seconds.

        The messages of the previous call now count as consumed.
        """
        return self._run(lambda it: it.poll(timeout))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        """Wait for the next message and return it; the previous one now counts as consumed."""
        message = None if self._is_closed else self._run(_next_or_none)
        if message is None:
            raise StopIteration
        return message

    def batches(self) -> Iterator[list[ReceivedMessage]]:
        """Yield lists of messages, each of one queue: `for messages in consumer.batches()`."""
        while not self._is_closed:
            messages: list[ReceivedMessage] | None = self._run(
                lambda it: _next_or_none(it.batches())
            )
            if messages is None:
                return
            yield messages

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue from `offset`; raises OptionError if the queue has no such offset."""
        self._run(lambda it: it.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue from the oldest message the queue still holds."""
        self._run(lambda it: it.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue with messages stored from now on."""
        self._run(lambda it: it.seek_to_end(queue))

    def seek_to_time(self, queue: MessageQueue, when: datetime) -> None:
        """Continue from the first message stored at or after `when`."""
        self._run(lambda it: it.seek_to_time(queue, when))

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset of the next message to be read, or None while it is unknown."""
        return self._run(on_loop(lambda it: it.position(queue)))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit the messages read so far, or these offsets: see `LitePullConsumer.commit`."""
        self._run(lambda it: it.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset the group has committed, or None."""
        return self._run(lambda it: it.committed(queue))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic."""
        return self._run(lambda it: it.queues(topic))

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message the queue still holds."""
        return self._run(lambda it: it.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset the queue's next message will get."""
        return self._run(lambda it: it.max_offset(queue))

    def offset_by_time(self, queue: MessageQueue, when: datetime) -> int:
        """Return the offset of the first message stored at or after `when`."""
        return self._run(lambda it: it.offset_by_time(queue, when))


class SyncPullConsumer(SyncClient):
    """`PullConsumer` for programs without an event loop, created by `PullConsumer.sync(...)`.

    with PullConsumer.sync("127.0.0.1:9876", "orders") as consumer:
        for queue in consumer.queues():
            result = consumer.pull(queue, consumer.min_offset(queue))
    """

    def queues(self) -> list[MessageQueue]:
        """Return the readable queues of the topic; raises TopicNotFoundError."""
        return self._run(lambda it: it.queues())

    def pull(
        self, queue: MessageQueue, offset: int, max_messages: int = 32, *, wait: float = 0.0
    ) -> PullResult:
        """Return messages of `queue` from `offset` on: see `PullConsumer.pull`."""
        return self._run(lambda it: it.pull(queue, offset, max_messages, wait=wait))

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message the queue still holds."""
        return self._run(lambda it: it.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset the queue's next message will get."""
        return self._run(lambda it: it.max_offset(queue))

    def offset_by_time(self, queue: MessageQueue, when: datetime) -> int:
        """Return the offset of the first message stored at or after `when`."""
        return self._run(lambda it: it.offset_by_time(queue, when))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset the group has committed, or None."""
        return self._run(lambda it: it.committed(queue))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit `offset`: the group resumes there."""
        self._run(lambda it: it.commit(queue, offset))


async def _within(work: Coroutine[Any, Any, None], seconds: float | None) -> bool:
    """Return whether `work` ended in time."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        return False
    return True


def _in_thread(
    listener: Callable[[list[MessageQueue]], None] | None,
) -> Callable[[list[MessageQueue]], Awaitable[None]] | None:
    if listener is None:
        return None
    check_callable("listener", listener)

    async def notify(queues: list[MessageQueue]) -> None:
        await asyncio.to_thread(listener, queues)

    return notify


async def _next_or_none(messages: AsyncIterator[_Result]) -> _Result | None:
    """Return the next item, or None at the end: a coroutine cannot raise StopIteration."""
    try:
        return await anext(messages)
    except StopAsyncIteration:
        return None
