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
   stays closed.
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
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from pyromq.client.errors import ClientStateError
from pyromq.client.handler_threads import is_handler_thread
from pyromq.client.loop_thread import shared_loop
from pyromq.client.message import Message
from pyromq.client.producer import Producer, QueueSelector
from pyromq.client.push_consumer import PushConsumer
from pyromq.client.results import SendResult
from pyromq.client.subscription import Subscription
from pyromq.protocol.bodies import MessageQueue

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
#: Sends of `submit` whose result is not there yet: those who send more wait.
_MAX_SUBMITTED = 16_384


class _Client(Protocol):
    """What all asynchronous clients have."""

    @property
    def client_id(self) -> str: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...


_ClientType = TypeVar("_ClientType", bound=_Client)


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
        self.close()

    def start(self) -> None:
        """Begin now; without this, the first use does."""
        self._run(_nothing)

    def close(self) -> None:
        """End what is under way, leave the cluster. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self in _open:
            _open.discard(self)
            shared_loop().run(self._client.close())

    @property
    def client_id(self) -> str:
        """By which brokers know this client."""
        return self._own().client_id

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

        Many sends can be under way like this, and with `batching` they share requests.
        Waits while very many are. `close` waits for all of them.
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

    def close(self) -> None:
        """Wait for what was submitted, leave the cluster. May be called twice."""
        if self._process == os.getpid():
            wait(list(self._submitted))
        super().close()

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._places = threading.BoundedSemaphore(_MAX_SUBMITTED)
        self._submitted: set[Future[SendResult]] = set()

    def _sent(self, future: Future[SendResult]) -> None:
        self._submitted.discard(future)
        self._places.release()


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
        if self._closed and self not in _open:
            return True
        client = self._client if self._closed else self._own()
        return shared_loop().run(
            self._run_started(client, lambda it: _within(it.closed(), timeout))
        )

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
        if self._closed or not is_handler_thread():
            super().close()
        else:
            self._closed = True
            closing = shared_loop().submit(self._client.close())
            closing.add_done_callback(lambda _: _open.discard(self))


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
