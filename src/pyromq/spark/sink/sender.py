"""Sends a task's requests, several at a time, and knows when all of them are stored.

    with Sender(options) as sender:
        sender.send(request)            # waits only while too many are under way
        sender.flush()                  # everything is stored, or this raises

Behind it is a `Producer` on the process's background loop: a request goes to the topic's
queues in turn, is tried again at another broker when one fails, and with pauses until
`deliveryTimeout` is over when none takes it now: brokers that are restarted or too busy are
waited for. What may have been stored is sent again then, so a row may come twice.

Invariants
1. After `flush` every request was answered as stored.
2. The requests for a certain queue are stored in order: each leaves when the one before it
   was answered. After a failure nothing more is sent.

One for each task, in its thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeVar

from pyromq.client.errors import BrokerError, NameServerError, TopicNotFoundError
from pyromq.client.loop_thread import LoopThread, shared_loop
from pyromq.client.producer.producer import Producer
from pyromq.client.producer.sending import Outgoing
from pyromq.client.results import SendStatus
from pyromq.protocol.errors import RocketMQError
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.remoting.client import RemotingError
from pyromq.spark.sink.options import WriteOptions
from pyromq.spark.sink.row_encoder import Request

logger = logging.getLogger(__name__)

#: Answers of brokers that will take the request later.
_LATER: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
#: A NameServer that was restarted knows no topic until brokers have registered again, which
#: Java's do every 30 s. A topic that is not there for longer does not exist.
NO_ROUTE_SECONDS: Final = 40.0

_Answer = TypeVar("_Answer")


class SendError(Exception):
    """Rows that could not be stored: which ones, for which topic, and why."""


@dataclass(slots=True)
class Sent:
    """What was stored."""

    rows: int = 0
    bytes: int = 0
    #: Stored at the master alone: not flushed or replicated in the broker's time.
    unsafe_rows: int = 0


class Sender:
    """A task's way to the brokers; `place` is said in errors, behind the rows' numbers."""

    def __init__(self, options: WriteOptions, place: str = "") -> None:
        self.sent = Sent()
        self._options = options
        self._place = place
        self._loop: LoopThread = shared_loop()
        self._producer = Producer(
            options.name_servers,
            group=options.producer_group,
            send_timeout=options.send_timeout,
            max_in_flight=options.max_in_flight,
            access_key=options.access_key,
            secret_key=options.secret_key,
            tls=options.tls,
        )
        self._under_way: deque[Future[None]] = deque()
        self._locks: dict[MessageQueue, asyncio.Lock] = {}
        self._failure: Exception | None = None

    def __enter__(self) -> Self:
        self._loop.run(self._producer.start())
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for answer in self._under_way:
            answer.cancel()
        self._loop.run(self._producer.close())

    def queues_of(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that take messages now, in order."""
        return self._loop.run(self._when_reached(topic, lambda: self._producer.queues(topic)))

    def send(self, request: Request) -> None:
        """Begin to send; raises what went wrong with an earlier one."""
        while len(self._under_way) >= self._options.max_in_flight:
            self._under_way.popleft().result()
        self._under_way.append(self._loop.submit(self._deliver(request)))

    def flush(self) -> None:
        """Wait until everything is stored; raises SendError."""
        while self._under_way:
            self._under_way.popleft().result()

    # Helpers, in call order. On the loop.

    async def _deliver(self, request: Request) -> None:
        if request.queue is None:
            await self._deliver_now(request)
            return
        async with self._locks.setdefault(request.queue, asyncio.Lock()):
            await self._deliver_now(request)

    async def _deliver_now(self, request: Request) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            status = await self._send_until_stored(request)
        except RocketMQError as error:
            rows = f"row {request.first_row}"
            if request.rows > 1:
                rows = f"rows {request.first_row} to {request.last_row}"
            self._failure = SendError(
                f"{rows}{self._place} could not be stored in topic {request.topic!r}: {error}"
            )
            raise self._failure from error
        sent = self.sent
        sent.rows += request.rows
        sent.bytes += len(request.body)
        if status is not SendStatus.SEND_OK:
            if not sent.unsafe_rows:
                logger.warning(
                    "a broker answered %s for topic %s: stored, but not as safely as it is "
                    "configured; no more is said about it in this task",
                    status.name,
                    request.topic,
                )
            sent.unsafe_rows += request.rows

    async def _send_until_stored(self, request: Request) -> SendStatus:
        outgoing = Outgoing.encoded(request.topic, request.body, request.properties)
        outgoing.flag = request.flag
        result = await self._when_reached(
            request.topic, lambda: self._producer.send_encoded(outgoing, request.queue)
        )
        return result.status

    async def _when_reached(self, topic: str, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Ask until servers answer, with pauses, as long as `deliveryTimeout` allows."""
        start = time.monotonic()
        pause = _FIRST_PAUSE
        while True:
            try:
                return await ask()
            except (RemotingError, NameServerError, BrokerError, TopicNotFoundError) as error:
                if isinstance(error, BrokerError) and error.code not in _LATER:
                    raise
                limit = self._options.delivery_timeout
                if isinstance(error, TopicNotFoundError):
                    limit = min(limit, NO_ROUTE_SECONDS)
                if time.monotonic() + pause > start + limit:
                    raise
                # The first pauses are what a busy broker takes.
                level = logging.WARNING if pause >= _LONGEST_PAUSE / 2 else logging.INFO
                logger.log(level, "topic %s: retrying in %.2f s: %s", topic, pause, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
