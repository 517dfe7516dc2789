"""Synchronous producers: `Producer.sync(...)` and `TransactionProducer.sync(...)`.

`client.sync` says what they guarantee. The asynchronous producers import this module, so it must
not import them.
"""

# The wrapped client is typed Any, and so are its results.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, wait
from typing import Any

from pyromq.client.loop_thread import shared_loop
from pyromq.client.message import Message
from pyromq.client.producer.targets import QueueSelector
from pyromq.client.received import ReceivedMessage
from pyromq.client.results import Execute, SendResult, TransactionResult
from pyromq.client.sync import SyncClient
from pyromq.protocol.wire.bodies import MessageQueue

#: Sends of `submit` in flight; further calls block. More would only queue at the broker, which
#: refuses requests that have waited too long.
_MAX_SUBMITTED = 1024


class SyncProducer(SyncClient):
    """`Producer` for programs without an event loop, created by `Producer.sync(...)`."""

    def send(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        select: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Store one message and return its position: see `Producer.send`."""
        return self._run(lambda it: it.send(message, queue, select=select, timeout=timeout))

    def submit(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        select: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> Future[SendResult]:
        """Start a send and return a future for its result or exception.

        Many sends can be in flight like this, and with `batching` they share requests. With
        1,024 in flight, `submit` blocks until one ends. `close` waits for all of them.
        """
        client, loop = self._own(), shared_loop()
        loop.check_thread()
        self._slots.acquire()

        def send(it: Any) -> Coroutine[Any, Any, SendResult]:
            sending: Coroutine[Any, Any, SendResult] = it.send(
                message, queue, select=select, timeout=timeout
            )
            return sending

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
        """Store messages of one topic on one queue, in order: see `Producer.send_batch`."""
        return self._run(lambda it: it.send_batch(messages, queue, timeout=timeout))

    def send_oneway(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        select: QueueSelector | None = None,
    ) -> None:
        """Send one message without waiting for a response: see `Producer.send_oneway`."""
        self._run(lambda it: it.send_oneway(message, queue, select=select))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of `topic` that are writable now."""
        return self._run(lambda it: it.queues(topic))

    def request(
        self,
        message: Message,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
        *,
        select: QueueSelector | None = None,
    ) -> ReceivedMessage:
        """Send a request and return its reply: see `Producer.request`."""
        return self._run(lambda it: it.request(message, timeout, queue, select=select))

    def _create(self) -> None:
        super()._create()
        self._slots = threading.BoundedSemaphore(_MAX_SUBMITTED)
        self._submitted: set[Future[SendResult]] = set()

    def _sent(self, future: Future[SendResult]) -> None:
        self._submitted.discard(future)
        self._slots.release()

    def _end(self, call: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        if self._process == os.getpid():
            wait(list(self._submitted))
        super()._end(call)


class SyncTransactionProducer(SyncProducer):
    """`TransactionProducer` for programs without an event loop: `TransactionProducer.sync(...)`.

    Plain functions as `execute` and `check` run in threads.
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
            lambda it: it.send_in_transaction(
                message, execute, argument, queue=queue, select=select, timeout=timeout
            )
        )
