"""Send a task's requests, several in flight, until all of them are stored.

    with Sender(options) as sender:
        sender.send(request)            # blocks only while too many are in flight
        sender.flush()                  # returns when everything is stored, or raises

A `Producer` on the process's background loop does the work. Requests go to the topic's queues
round-robin. A failed request is retried at another broker, and with backoff until
`deliveryTimeout` if no broker accepts it, so restarting and busy brokers are waited for. A retried
request may already have been stored: a row may be stored twice.

Invariants
1. After `flush` a broker has acknowledged every request.
2. Requests for one particular queue are stored in order: each is sent after the previous one was
   acknowledged. After a failure nothing more is sent.

One sender per task, on the task's thread.
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

from pyromq.client.errors import BrokerError, NameServerError, NoMasterError, TopicNotFoundError
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

#: Responses of a broker that may accept the same request later.
_TEMPORARY: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})
#: Backoff in seconds: first and longest pause.
_FIRST_PAUSE: Final = 0.05
_MAX_PAUSE: Final = 2.0
#: A restarted NameServer knows no topics until brokers register again; Java's do so every 30 s.
#: A topic that is missing for longer does not exist.
NO_ROUTE_SECONDS: Final = 40.0

_Answer = TypeVar("_Answer")


class SendError(Exception):
    """Rows that could not be stored: which rows, which topic, and why."""


@dataclass(slots=True)
class Sent:
    """Totals of the rows stored."""

    rows: int = 0
    bytes: int = 0
    #: Stored, but not flushed or replicated before the broker's timeout.
    unsafe_rows: int = 0


class Sender:
    """Sends requests to brokers. Errors append `place` to the row numbers."""

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
        self._in_flight: deque[Future[None]] = deque()
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
        for delivery in self._in_flight:
            delivery.cancel()
        self._loop.run(self._producer.close())

    def queues_of(self, topic: str) -> list[MessageQueue]:
        """Return the writable queues of a topic, sorted."""
        return self._loop.run(self._with_retries(topic, lambda: self._producer.queues(topic)))

    def send(self, request: Request) -> None:
        """Start sending a request. Raises SendError for an earlier one that failed."""
        while len(self._in_flight) >= self._options.max_in_flight:
            self._in_flight.popleft().result()
        self._in_flight.append(self._loop.submit(self._deliver(request)))

    def flush(self) -> None:
        """Wait until everything is stored. Raises SendError."""
        while self._in_flight:
            self._in_flight.popleft().result()

    # Helpers, in call order. They run on the loop.

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
                    "broker returned %s for topic %s: rows are stored, but not yet flushed or "
                    "replicated as configured (logged once per task)",
                    status.name,
                    request.topic,
                )
            sent.unsafe_rows += request.rows

    async def _send_until_stored(self, request: Request) -> SendStatus:
        outgoing = Outgoing.encoded(request.topic, request.body, request.properties)
        outgoing.flag = request.flag
        result = await self._with_retries(
            request.topic, lambda: self._producer.send_encoded(outgoing, request.queue)
        )
        return result.status

    async def _with_retries(self, topic: str, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Return the result of `ask`, retried with backoff until `deliveryTimeout`."""
        start = time.monotonic()
        pause = _FIRST_PAUSE
        while True:
            try:
                return await ask()
            except (RemotingError, NameServerError, BrokerError, TopicNotFoundError) as error:
                if isinstance(error, BrokerError) and error.code not in _TEMPORARY:
                    raise
                limit = self._options.delivery_timeout
                if isinstance(error, TopicNotFoundError) and not isinstance(error, NoMasterError):
                    limit = min(limit, NO_ROUTE_SECONDS)
                if time.monotonic() + pause > start + limit:
                    raise
                # Short pauses are normal for a busy broker.
                level = logging.WARNING if pause >= _MAX_PAUSE / 2 else logging.INFO
                logger.log(level, "topic %s: retrying in %.2f s: %s", topic, pause, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)
