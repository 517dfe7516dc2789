"""Batches sends that come close together: many messages, one request.

    Producer(..., batching=Batching(linger=0.005))

A message waits at most `linger` seconds for company, less when the batch is full before.
Each sender still gets the result of its own message. Messages of one topic are batched
together and go to the topic's queues in turn, batch by batch; those with an ordering key
are batched with others of their queue, and only sends with the same time-out share a batch.
What cannot be in a batch (delayed messages, large ones) is sent alone by the producer.

Invariants
1. Every message that was taken gets exactly one result or exception.
2. Messages of one ordering key leave in the order in which they came, and a batch of a
   queue leaves only when the one before it was answered.

On the producer's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pyromq.client.arguments import check_count, check_seconds
from pyromq.client.message import MAX_BODY, Message, create_unique_key
from pyromq.client.producer.sending import Outgoing, batched_message
from pyromq.client.results import SendResult
from pyromq.protocol.message.properties import MAX_PROPERTIES
from pyromq.protocol.message.record import INNER_HEAD_SIZE
from pyromq.protocol.names import RETRY_TOPIC_PREFIX
from pyromq.protocol.wire.bodies import MessageQueue

#: Of a batch, the queue that it is for and the time-out of an attempt.
_Deliver = Callable[[Outgoing, MessageQueue | None, float | None], Awaitable[list[SendResult]]]
_PileKey = tuple[str, MessageQueue | None]


@dataclass(frozen=True, slots=True)
class Batching:
    """How long sends wait for company, in seconds, and how large a batch becomes."""

    linger: float = 0.005
    max_messages: int = 512
    max_bytes: int = 128 * 1024

    def __post_init__(self) -> None:
        check_seconds("linger", self.linger, may_be_zero=True)
        check_count("max_messages", self.max_messages)
        check_count("max_bytes", self.max_bytes)


class Accumulator:
    """Takes single messages and delivers batches."""

    def __init__(self, batching: Batching, deliver: _Deliver) -> None:
        self._batching = batching
        # What is larger with its head than a request may be goes alone.
        self._max_bytes = min(batching.max_bytes, MAX_BODY - MAX_PROPERTIES - INNER_HEAD_SIZE)
        self._max_messages = batching.max_messages
        self._deliver = deliver
        self._piles: dict[_PileKey, _Pile] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: The last batch under way to each queue that was asked for.
        self._last: dict[_PileKey, asyncio.Task[None]] = {}

    def takes(self, message: Message) -> bool:
        """Whether a message may be in a batch."""
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
        """Put a message on the pile of its topic, or of its queue; its result comes later.

        `timeout` is for each attempt to send the pile; None for the producer's own.
        """
        key = create_unique_key()
        part = batched_message(message, key)
        where = (message.topic, queue)
        pile = self._piles.get(where)
        if pile is not None and (pile.size + len(part) > MAX_BODY or pile.timeout != timeout):
            self._send(where)
            pile = None
        if pile is None:
            loop = asyncio.get_running_loop()
            pile = self._piles[where] = _Pile(loop, timeout)
            pile.timer = loop.call_later(self._batching.linger, self._send, where)
        result = pile.create_future()
        pile.messages.append(message)
        pile.keys.append(key)
        pile.parts.append(part)
        pile.results.append(result)
        pile.size += len(part)
        if pile.size >= self._max_bytes or len(pile.parts) >= self._max_messages:
            self._send(where)
        return result

    async def flush(self) -> None:
        """Send what waits, and wait until everything is answered."""
        for where in list(self._piles):
            self._send(where)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _send(self, where: _PileKey) -> None:
        pile = self._piles.pop(where, None)
        if pile is None:
            return
        if pile.timer is not None:
            pile.timer.cancel()
        before = self._last.get(where) if where[1] is not None else None
        task = asyncio.get_running_loop().create_task(self._send_pile(where, pile, before))
        self._tasks.add(task)
        if where[1] is not None:
            self._last[where] = task
        task.add_done_callback(lambda done: self._sent(where, done))

    def _sent(self, where: _PileKey, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._last.get(where) is task:
            del self._last[where]

    async def _send_pile(
        self, where: _PileKey, pile: _Pile, before: asyncio.Task[None] | None
    ) -> None:
        topic, queue = where
        try:
            if before is not None:
                await asyncio.wait((before,))
            batch = Outgoing.batch(topic, pile.messages, pile.keys, pile.parts)
            results = await self._deliver(batch, queue, pile.timeout)
        except BaseException as error:
            for result in pile.results:
                if result.done():
                    continue
                if isinstance(error, Exception):
                    result.set_exception(error)
                else:
                    result.cancel()
            if not isinstance(error, Exception):
                raise
            return
        for result, value in zip(pile.results, results, strict=True):
            if not result.done():
                result.set_result(value)


class _Pile:
    """Messages that wait for company."""

    __slots__ = (
        "create_future",
        "keys",
        "messages",
        "parts",
        "results",
        "size",
        "timeout",
        "timer",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float | None) -> None:
        self.timeout = timeout
        self.create_future: Callable[[], asyncio.Future[SendResult]] = loop.create_future
        self.messages: list[Message] = []
        self.keys: list[str] = []
        self.parts: list[bytes] = []
        self.results: list[asyncio.Future[SendResult]] = []
        self.size = 0
        self.timer: asyncio.TimerHandle | None = None
