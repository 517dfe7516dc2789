"""Gather sends that are close in time into one request.

    Producer(..., batching=Batching(linger=0.005))

A batch leaves when it is full, or `linger` seconds after its first message. Each caller still gets
the result of its own message. Messages of one topic share batches, which go to the topic's queues
round-robin; messages with an ordering key share batches with others of their queue. Only sends with
the same timeout share a batch. Delayed messages, replies and large messages are sent alone.

Invariants
1. Every message taken gets exactly one result or exception.
2. Messages of one ordering key leave in the order of their sends, and a batch for a queue leaves
   only after the response to the previous one.

Runs on the producer's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pyromq.client.arguments import check_count, check_seconds
from pyromq.client.message import MAX_BODY, Message, check_topic, create_unique_key, plain_tags
from pyromq.client.producer.sending import (
    PLAIN_SIZE,
    UNTAGGED_SIZE,
    Outgoing,
    batched_message,
    plain_batch,
)
from pyromq.client.results import SendResult
from pyromq.protocol.message.properties import MAX_PROPERTIES
from pyromq.protocol.message.record import INNER_HEAD_SIZE
from pyromq.protocol.names import RETRY_TOPIC_PREFIX
from pyromq.protocol.wire.bodies import MessageQueue

#: Sends a batch to a queue, or to any, with the timeout of one attempt.
_Deliver = Callable[[Outgoing, MessageQueue | None, float | None], Awaitable[list[SendResult]]]
#: The topic of a batch, and its queue if it must go to one.
_Destination = tuple[str, MessageQueue | None]


@dataclass(frozen=True, slots=True)
class Batching:
    """When a batch leaves: as soon as it is full, or after `linger`."""

    #: Seconds that the first message of a batch waits for more.
    linger: float = 0.005
    #: Messages of a full batch.
    max_messages: int = 512
    #: Bytes of a full batch. A larger message is sent alone.
    max_bytes: int = 131_072

    def __post_init__(self) -> None:
        check_seconds("linger", self.linger, may_be_zero=True)
        check_count("max_messages", self.max_messages)
        check_count("max_bytes", self.max_bytes)


class Accumulator:
    """Collects single messages and delivers batches."""

    def __init__(
        self, batching: Batching, deliver: _Deliver, *, keeps_messages: bool = True
    ) -> None:
        """Take `keeps_messages` to give hooks the messages; the memory of others is free sooner."""
        self._batching = batching
        self._keeps_messages = keeps_messages
        # A message that could exceed a request's limit with its properties goes alone.
        self._max_bytes = min(batching.max_bytes, MAX_BODY - MAX_PROPERTIES - INNER_HEAD_SIZE)
        self._max_messages = batching.max_messages
        self._deliver = deliver
        self._batches: dict[_Destination, _Batch] = {}
        #: Those of topics, without a fixed queue.
        self._plain: dict[str, _Batch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: The last batch in flight to each fixed queue.
        self._last: dict[_Destination, asyncio.Task[None]] = {}

    def takes(self, message: Message) -> bool:
        """Return whether a message may be in a batch."""
        return not (
            message.delay_level
            or type(message.body) is not bytes
            or len(message.body) > self._max_bytes
            or not isinstance(message.topic, str)
            or message.topic.startswith(RETRY_TOPIC_PREFIX)
            or message.is_reply
        )

    def add(
        self, message: Message, queue: MessageQueue | None, timeout: float | None = None
    ) -> asyncio.Future[SendResult]:
        """Add a message to the batch of its topic or queue and return a future for its result.

        `timeout` limits each attempt to send the batch; None means the producer's own.
        """
        key = create_unique_key()
        encoded = batched_message(message, key)
        destination = (message.topic, queue)
        batch = self._batches.get(destination)
        if batch is None or batch.size + len(encoded) > MAX_BODY or batch.timeout != timeout:
            batch = self._open(destination, timeout)
        batch.add_encoded(encoded, key)
        return self._added(destination, batch, message, len(encoded))

    def add_plain(
        self, message: Message, timeout: float | None = None
    ) -> asyncio.Future[SendResult] | None:
        """Add a message like `add` if it is plain (`plain_tags`), else return None.

        It is encoded with the others of its batch.
        """
        tags = plain_tags(message, self._max_bytes)
        if tags is None:
            return None
        topic, body = message.topic, message.body
        size = len(body) + (PLAIN_SIZE + len(tags) if tags else UNTAGGED_SIZE)
        batch = self._plain.get(topic)
        if batch is None or batch.size + size > MAX_BODY or batch.timeout != timeout:
            if topic.startswith(RETRY_TOPIC_PREFIX):
                return None
            check_topic(topic)
            batch = self._open((topic, None), timeout)
        result = batch.create_future()
        batch.bodies.append(body)
        batch.tags.append(tags)
        # As in `_added`, which would be one call more for each message.
        if self._keeps_messages:
            batch.messages.append(message)
        batch.results.append(result)
        batch.size += size
        if batch.size >= self._max_bytes or len(batch.results) >= self._max_messages:
            self._send((topic, None))
        return result

    async def flush(self) -> None:
        """Send all waiting batches, and wait until everything in flight is answered."""
        for destination in list(self._batches):
            self._send(destination)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _open(self, destination: _Destination, timeout: float | None) -> _Batch:
        """Start a batch; the previous one leaves."""
        self._send(destination)
        loop = asyncio.get_running_loop()
        batch = self._batches[destination] = _Batch(loop, timeout)
        batch.timer = loop.call_later(self._batching.linger, self._send, destination)
        if destination[1] is None:
            self._plain[destination[0]] = batch
        return batch

    def _added(
        self, destination: _Destination, batch: _Batch, message: Message, size: int
    ) -> asyncio.Future[SendResult]:
        result = batch.create_future()
        if self._keeps_messages:
            batch.messages.append(message)
        batch.results.append(result)
        batch.size += size
        if batch.size >= self._max_bytes or len(batch.results) >= self._max_messages:
            self._send(destination)
        return result

    def _send(self, destination: _Destination) -> None:
        batch = self._batches.pop(destination, None)
        if batch is None:
            return
        if destination[1] is None:
            del self._plain[destination[0]]
        if batch.timer is not None:
            batch.timer.cancel()
        before = self._last.get(destination) if destination[1] is not None else None
        task = asyncio.get_running_loop().create_task(self._send_batch(destination, batch, before))
        self._tasks.add(task)
        if destination[1] is not None:
            self._last[destination] = task
        task.add_done_callback(lambda done: self._sent(destination, done))

    def _sent(self, destination: _Destination, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._last.get(destination) is task:
            del self._last[destination]

    async def _send_batch(
        self, destination: _Destination, batch: _Batch, before: asyncio.Task[None] | None
    ) -> None:
        topic, queue = destination
        try:
            if before is not None:
                await asyncio.wait((before,))
            batch.encode_plain()
            outgoing = Outgoing.batch(topic, batch.messages, batch.keys, batch.encoded)
            results = await self._deliver(outgoing, queue, batch.timeout)
        except BaseException as error:
            for result in batch.results:
                if result.done():
                    continue
                if isinstance(error, Exception):
                    result.set_exception(error)
                else:
                    result.cancel()
            if not isinstance(error, Exception):
                raise
            return
        for result, value in zip(batch.results, results, strict=True):
            if not result.done():
                result.set_result(value)


class _Batch:
    """Messages that wait for more."""

    __slots__ = (
        "bodies",
        "create_future",
        "encoded",
        "keys",
        "messages",
        "results",
        "size",
        "tags",
        "timeout",
        "timer",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float | None) -> None:
        self.timeout = timeout
        self.create_future: Callable[[], asyncio.Future[SendResult]] = loop.create_future
        self.messages: list[Message] = []
        self.results: list[asyncio.Future[SendResult]] = []
        #: Encoded messages, and their unique keys.
        self.encoded: list[bytes] = []
        self.keys: list[str] = []
        #: The plain messages after them.
        self.bodies: list[bytes] = []
        self.tags: list[str] = []
        self.size = 0
        self.timer: asyncio.TimerHandle | None = None

    def add_encoded(self, encoded: bytes, key: str) -> None:
        """Add a message that is not plain."""
        self.encode_plain()
        self.encoded.append(encoded)
        self.keys.append(key)

    def encode_plain(self) -> None:
        """Encode the plain messages."""
        if self.bodies:
            encoded, keys = plain_batch(self.bodies, self.tags)
            self.encoded.append(encoded)
            self.keys += keys
            self.bodies, self.tags = [], []
