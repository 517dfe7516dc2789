"""Synchronous clients: for programs without an event loop, and for threads beside one.

    with Producer.sync("127.0.0.1:9876", group="shop") as producer:
        producer.send(Message("orders", b"one book"))

Each is a thin face of the asynchronous client of the same arguments, which runs on the
process's background loop (`loop_thread`): every method here calls the one of the same name
there, waits, and raises what it raises. Methods may be called from any thread.

What can be relied on:
1. Arguments are checked when a face is made; the client behind it begins with its first use.
2. After a fork a face begins anew in the child: the first use there makes a client of its own
   from the same arguments. The parent's is not disturbed. Whatever the parent had closed
   stays closed. A pickled face is one of the same arguments, not begun.
3. Ctrl-C interrupts every wait. A face that is open at the interpreter's end is closed then.
4. Used on the background loop itself (by a coroutine handler) it raises instead of waiting
   for itself.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import os
import sys
import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from concurrent.futures import Future, wait
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from pyromq.client.arguments import check_callable, check_seconds
from pyromq.client.client import Client
from pyromq.client.consumer.lite_pull.consumer import AssignmentListener, LitePullConsumer
from pyromq.client.consumer.pull import PullConsumer
from pyromq.client.consumer.push.consumer import PushConsumer
from pyromq.client.consumer.queue_access import PullResult
from pyromq.client.consumer.subscription import Subscription
from pyromq.client.errors import ClientStateError
from pyromq.client.handler_threads import is_handler_thread
from pyromq.client.loop_thread import shared_loop
from pyromq.client.message import Message
from pyromq.client.producer.producer import Producer, QueueSelector
from pyromq.client.producer.transaction import Execute, TransactionProducer, TransactionResult
from pyromq.client.received import ReceivedMessage
from pyromq.client.results import SendResult
from pyromq.protocol.wire.bodies import MessageQueue

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
#: Sends of `submit` whose result is not there yet: those who send more wait. Many more would
#: only wait at the broker, which refuses what has waited for long.
_MAX_SUBMITTED = 1024


_ClientType = TypeVar("_ClientType", bound=Client)


class SyncClient(Generic[_ClientType]):
    """What all synchronous clients have; `make` gives a new asynchronous one."""

    def __init__(self, make: Callable[[], _ClientType]) -> None:
        self._make = make
        self._process = os.getpid()
        self._closed = False
        self._begin_anew()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(lambda it: it.__aexit__(error_type, error, traceback))

    def start(self) -> None:
        """Begin now; without this, the first use does."""
        self._run(_nothing)

    def close(self) -> None:
        """End what is under way, leave the cluster. May be called twice."""
        self._end(lambda it: it.close())

    @property
    def client_id(self) -> str:
        """By which brokers know this client."""
        return self._own().client_id

    def __reduce__(self) -> tuple[Any, ...]:
        # Goes to other processes as it goes through a fork: as its arguments.
        return type(self), (self._make,)

    # Helpers, in call order.

    def _run(self, call: Callable[[_ClientType], Coroutine[Any, Any, _Result]]) -> _Result:
        client = self._own()
        if self._is_started:
            return shared_loop().run(call(client))
        return shared_loop().run(self._run_started(client, call))

    def _own(self) -> _ClientType:
        """The client of this process."""
        if self._closed:
            raise ClientStateError("this client was closed: make a new one")
        if self._process != os.getpid():
            with _lock:
                if self._process != os.getpid():
                    self._begin_anew()
                    self._process = os.getpid()
        return self._client

    def _begin_anew(self) -> None:
        self._client = self._make()
        self._is_started = False
        self._starting: asyncio.Task[None] | None = None

    async def _run_started(
        self, client: _ClientType, call: Callable[[_ClientType], Coroutine[Any, Any, _Result]]
    ) -> _Result:
        if self._starting is None:
            self._starting = asyncio.ensure_future(client.start())
            _open.add(self)
            _close_at_exit()
        try:
            # Shielded: others may wait for it, too.
            await asyncio.shield(self._starting)
        except Exception:
            _open.discard(self)
            raise
        self._is_started = True
        return await call(client)

    def _end(self, call: Callable[[_ClientType], Coroutine[Any, Any, None]]) -> None:
        try:
            if self in _open:
                shared_loop().run(call(self._client))
        finally:
            self._closed = True
            _open.discard(self)


class SyncProducer(SyncClient[Producer]):
    """`Producer` for programs without an event loop: made by `Producer.sync(...)`."""

    def send(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        select: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Store one message and say where: see `Producer.send`."""
        return self._run(lambda it: it.send(message, queue, select=select, timeout=timeout))

    def submit(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        select: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> Future[SendResult]:
        """Begin to send and come back: the future has the result, or the exception.

        Many sends can be under way like this, and with `batching` they share requests. While
        1,024 are, it waits. `close` waits for all of them.
        """
        client, loop = self._own(), shared_loop()
        loop.check_thread()
        self._places.acquire()

        def send(it: Producer) -> Coroutine[Any, Any, SendResult]:
            return it.send(message, queue, select=select, timeout=timeout)

        future = loop.submit(send(client) if self._is_started else self._run_started(client, send))
        self._submitted.add(future)
        future.add_done_callback(self._sent)
        return future

    def send_batch(
        self,
        messages: Iterable[Message],
        queue: MessageQueue | None = None,
        *,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Store messages of one topic, one behind the other: see `Producer.send_batch`."""
        return self._run(lambda it: it.send_batch(messages, queue, timeout=timeout))

    def send_oneway(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        select: QueueSelector | None = None,
    ) -> None:
        """Send one message and wait for nothing: see `Producer.send_oneway`."""
        self._run(lambda it: it.send_oneway(message, queue, select=select))

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of `topic` that take messages now."""
        return self._run(lambda it: it.queues(topic))

    def request(
        self,
        message: Message,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
        *,
        select: QueueSelector | None = None,
    ) -> ReceivedMessage:
        """Send a request and wait for its reply: see `Producer.request`."""
        return self._run(lambda it: it.request(message, timeout, queue, select=select))

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._places = threading.BoundedSemaphore(_MAX_SUBMITTED)
        self._submitted: set[Future[SendResult]] = set()

    def _sent(self, future: Future[SendResult]) -> None:
        self._submitted.discard(future)
        self._places.release()

    def _end(self, call: Callable[[Producer], Coroutine[Any, Any, None]]) -> None:
        if self._process == os.getpid():
            wait(list(self._submitted))
        super()._end(call)


class SyncTransactionProducer(SyncProducer):
    """`TransactionProducer` for programs without an event loop: `TransactionProducer.sync(...)`.

    `execute` and `check` that are plain functions run in threads.
    """

    def send_in_transaction(
        self,
        message: Message,
        execute: Execute,
        argument: Any = None,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> TransactionResult:
        """Send a message in a transaction: see `TransactionProducer.send_in_transaction`."""
        return self._run(
            lambda it: cast(TransactionProducer, it).send_in_transaction(
                message, execute, argument, queue=queue, select=select, timeout=timeout
            )
        )


class SyncPushConsumer(SyncClient[PushConsumer]):
    """`PushConsumer` for programs without an event loop: made by `PushConsumer.sync(...)`.

    A handler that is a plain function runs in threads, as many at once as `max_handlers`
    says, and may use other synchronous clients. After a fork, the child consumes when it calls
    `start` (or anything else here).
    """

    def wait(self, timeout: float | None = None) -> bool:
        """Come back when the consumer was closed, by another thread or by a handler.

        After `timeout` seconds it comes back anyway: whether it is closed.
        """
        if timeout is not None:
            check_seconds("timeout", timeout, may_be_zero=True)
        return self._closed or self._run(lambda it: _within(it.closed(), timeout))

    def subscribe(self, topic: str, wanted: str | Subscription = "*") -> None:
        """Consume this topic, too, or something else of it from now on."""
        self._run(lambda it: it.subscribe(topic, wanted))

    def unsubscribe(self, topic: str) -> None:
        """Consume this topic no more."""
        self._run(lambda it: it.unsubscribe(topic))

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Pull no more, from these queues or at all; what was pulled is still handled."""
        self._run(_plainly(lambda it: it.pause(queues)))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Pull again, from these queues or from all."""
        self._run(_plainly(lambda it: it.resume(queues)))

    def assignment(self) -> list[MessageQueue]:
        """The queues that are ours now."""
        return self._run(_plainly(lambda it: it.assignment()))

    def close(self) -> None:
        """Stop pulling, let handlers end, commit, leave the group. May be called twice.

        Called by a handler, it comes back at once, and goes on when the handler ends.
        """
        if is_handler_thread() and self in _open:
            shared_loop().submit(self._client.close())
        else:
            super().close()


class SyncLitePullConsumer(SyncClient[LitePullConsumer]):
    """`LitePullConsumer` for programs without an event loop: `LitePullConsumer.sync(...)`.

        with LitePullConsumer.sync("127.0.0.1:9876", group="billing") as consumer:
            consumer.subscribe("orders")
            for message in consumer:
                ...

    Lists (`poll`, `batches`) are much quicker than single messages: each step goes to the
    background loop and back. One thread reads at a time.
    """

    def subscribe(
        self,
        subscriptions: str | Iterable[str] | Mapping[str, str | Subscription],
        *,
        on_assigned: Callable[[list[MessageQueue]], None] | None = None,
        on_revoked: Callable[[list[MessageQueue]], None] | None = None,
    ) -> None:
        """Read these topics, too: see `LitePullConsumer.subscribe`.

        Listeners run in a thread, so that they may use this consumer.
        """
        self._run(
            lambda it: it.subscribe(
                subscriptions,
                on_assigned=_in_thread(on_assigned),
                on_revoked=_in_thread(on_revoked),
            )
        )

    def unsubscribe(self, *topics: str) -> None:
        """Read these topics no more; what was consumed of them is committed."""
        self._run(lambda it: it.unsubscribe(*topics))

    def assign(
        self,
        queues: Collection[MessageQueue],
        subscriptions: Mapping[str, str | Subscription] | None = None,
    ) -> None:
        """Read exactly these queues from now on: see `LitePullConsumer.assign`."""
        self._run(lambda it: it.assign(queues, subscriptions))

    def assignment(self) -> list[MessageQueue]:
        """The queues that are being read."""
        return self._run(_plainly(lambda it: it.assignment()))

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Hand out nothing more of these queues, or of all that are ours; they stay ours."""
        self._run(_plainly(lambda it: it.pause(queues)))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Go on with these queues, or with all."""
        self._run(_plainly(lambda it: it.resume(queues)))

    def poll(self, timeout: float = 5.0) -> list[ReceivedMessage]:
        """The next messages of one queue, in order; empty when none came in time.

        Those of the call before count as consumed.
        """
        return self._run(lambda it: it.poll(timeout))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        """The next message, as soon as there is one; the one before counts as consumed."""
        message = None if self._closed else self._run(_next_or_none)
        if message is None:
            raise StopIteration
        return message

    def batches(self) -> Iterator[list[ReceivedMessage]]:
        """Messages as lists, each of one queue: `for messages in consumer.batches()`."""
        while not self._closed:
            messages = self._run(lambda it: _next_or_none(it.batches()))
            if messages is None:
                return
            yield messages

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on from `offset`; raises OptionError when the queue has no such offset."""
        self._run(lambda it: it.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on from the first message that the queue still has."""
        self._run(lambda it: it.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with what comes from now on."""
        self._run(lambda it: it.seek_to_end(queue))

    def seek_to_time(self, queue: MessageQueue, when: datetime) -> None:
        """Go on from the first message that was stored at this time or later."""
        self._run(lambda it: it.seek_to_time(queue, when))

    def position(self, queue: MessageQueue) -> int | None:
        """The offset of the message that is handed out next; None until it is known."""
        return self._run(_plainly(lambda it: it.position(queue)))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit what was handed out, or these offsets: see `LitePullConsumer.commit`."""
        self._run(lambda it: it.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset of a queue; None when it has none."""
        return self._run(lambda it: it.committed(queue))

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read."""
        return self._run(lambda it: it.queues(topic))

    def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the first message that the queue still has."""
        return self._run(lambda it: it.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the queue's next message will have."""
        return self._run(lambda it: it.max_offset(queue))

    def offset_by_time(self, queue: MessageQueue, when: datetime) -> int:
        """The offset of the first message that was stored at this time or later."""
        return self._run(lambda it: it.offset_by_time(queue, when))


class SyncPullConsumer(SyncClient[PullConsumer]):
    """`PullConsumer` for programs without an event loop: made by `PullConsumer.sync(...)`.

    with PullConsumer.sync("127.0.0.1:9876", "orders") as consumer:
        for queue in consumer.queues():
            result = consumer.pull(queue, consumer.min_offset(queue))
    """

    def queues(self) -> list[MessageQueue]:
        """The topic's queues that can be read now; raises TopicNotFoundError."""
        return self._run(lambda it: it.queues())

    def pull(
        self, queue: MessageQueue, offset: int, max_messages: int = 32, *, wait: float = 0.0
    ) -> PullResult:
        """Messages of `queue` from `offset` on: see `PullConsumer.pull`."""
        return self._run(lambda it: it.pull(queue, offset, max_messages, wait=wait))

    def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message that is still there."""
        return self._run(lambda it: it.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        return self._run(lambda it: it.max_offset(queue))

    def offset_by_time(self, queue: MessageQueue, when: datetime) -> int:
        """The offset of the first message that was stored at that time or later."""
        return self._run(lambda it: it.offset_by_time(queue, when))

    def committed(self, queue: MessageQueue) -> int | None:
        """The offset from which the group goes on, None when it never consumed from `queue`."""
        return self._run(lambda it: it.committed(queue))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Let the group go on from `offset`, whatever happens to this consumer."""
        self._run(lambda it: it.commit(queue, offset))


async def _next_or_none(messages: AsyncIterator[_Result]) -> _Result | None:
    """What comes next; None at the end. (StopIteration cannot pass through a coroutine.)"""
    try:
        return await anext(messages)
    except StopAsyncIteration:
        return None


def _in_thread(
    listener: Callable[[list[MessageQueue]], None] | None,
) -> AssignmentListener | None:
    if listener is None:
        return None
    check_callable("listener", listener)

    async def tell(queues: list[MessageQueue]) -> None:
        await asyncio.to_thread(listener, queues)

    return tell


async def _nothing(_: object) -> None:
    """What `start` does beside starting."""


async def _within(work: Coroutine[Any, Any, None], seconds: float | None) -> bool:
    """Whether it ended in this time."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        return False
    return True


def _plainly(
    call: Callable[[_ClientType], _Result],
) -> Callable[[_ClientType], Coroutine[Any, Any, _Result]]:
    """A plain method of a client, to be called on its loop."""

    @functools.wraps(call)
    async def called(client: _ClientType) -> _Result:
        return call(client)

    return called


_lock = threading.Lock()
#: The faces in use in this process.
_open: set[SyncClient[Any]] = set()
#: The child of `multiprocessing` in which the end is seen to.
_finalized_process = 0


def _forked() -> None:
    global _lock
    _lock = threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_forked)


def _close_at_exit() -> None:
    """See to it that a child of `multiprocessing` closes, too: it runs nothing of `atexit`."""
    global _finalized_process
    process_module = sys.modules.get("multiprocessing.process")
    if _finalized_process == os.getpid() or process_module is None:
        return
    _finalized_process = os.getpid()
    if process_module.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _close_all, exitpriority=10)


@atexit.register
def _close_all() -> None:
    """Close what is open; one that fails does not hold up the others."""
    for client in list(_open):
        try:
            client.close()
        except Exception:
            logger.warning("client %s could not be closed", client, exc_info=True)
