"""The loads of `pyromq bench`: messages sent, or consumed, by one process.

`ProduceLoad` sends in a closed loop (so many sends are under way, always) or, with a rate, in
an open one: a message is due at its time, and its latency counts from when it was due, so a
server that stalls does not hide that messages waited. A send that fails is counted under its
reason and the load goes on; the first one of each producer must succeed. `ConsumeLoad` is a push
consumer that does nothing with its messages; latency is from when a message was born.

Each runs on the event loop of its process, with a `Recorder` for what happens.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from pyromq.cli.bench.figures import Recorder
from pyromq.cli.client_options import Cluster

if TYPE_CHECKING:
    from pyromq.client import Message, Producer, ReceivedMessage, StartFrom


#: Not worth to be woken from.
_SHORT_SECONDS = 0.1


class Load(Protocol):
    """What one process does."""

    @property
    def title(self) -> str:
        """What it is, in one line."""

    @property
    def latency_name(self) -> str:
        """What latencies are of."""

    def part(self, number: int, parts: int) -> Load:
        """The share of one of several processes."""

    async def run(self, recorder: Recorder, stopping: asyncio.Event) -> None:
        """Do it, to its end if it has one, or until `stopping`."""


@dataclass(frozen=True, slots=True)
class ProduceLoad:
    """Sends to a topic."""

    cluster: Cluster
    topic: str
    size: int
    in_flight: int
    connections: int
    #: Messages of one request: a list that is sent as a batch.
    batch: int
    #: Seconds for which single sends wait for company; None: each is a request.
    linger: float | None
    #: Messages per second; None: as fast as possible.
    rate: float | None
    count: int | None
    tags: str
    has_keys: bool

    @property
    def title(self) -> str:
        """What it is, in one line."""
        how = f"{self.size} B, {self.in_flight} in flight"
        if self.batch > 1:
            how += f", batches of {self.batch}"
        if self.linger is not None:
            how += f", accumulated for {self.linger * 1e3:g} ms"
        if self.rate is not None:
            how += f", {self.rate:,.0f}/s wanted"
        return f"produce to {self.topic}: {how}"

    @property
    def latency_name(self) -> str:
        """What latencies are of."""
        return "send" if self.batch == 1 else "send of a batch"

    def part(self, number: int, parts: int) -> ProduceLoad:
        """The share of one of several processes."""
        from dataclasses import replace

        return replace(
            self,
            in_flight=_share(self.in_flight, number, parts),
            connections=_share(self.connections, number, parts),
            rate=None if self.rate is None else self.rate / parts,
            count=None if self.count is None else _share(self.count, number, parts),
        )

    async def run(self, recorder: Recorder, stopping: asyncio.Event) -> None:
        """Send until the count is reached, or until `stopping`; what is under way is awaited."""
        from pyromq.client import Batching, Producer

        batching = None if self.linger is None else Batching(linger=self.linger)
        producers = [
            Producer(self.cluster.namesrv, batching=batching, **self.cluster.options)
            for _ in range(self.connections)
        ]
        # As a plain range when it ends: then a request is one step of it.
        numbers: Iterator[int] = iter(
            itertools.count(0, self.batch)
            if self.count is None
            else range(0, self.count, self.batch)
        )
        try:
            for producer in producers:
                await producer.start()
                first = itertools.islice(numbers, 1)
                await self._send_some(producer, first, recorder, stopping, strict=True)
            began = time.perf_counter()
            senders = zip(range(self.in_flight), itertools.cycle(producers), strict=False)
            await asyncio.gather(
                *(
                    self._send_some(producer, numbers, recorder, stopping, began)
                    for _, producer in senders
                )
            )
        finally:
            await asyncio.gather(*(producer.close() for producer in producers))

    async def _send_some(
        self,
        producer: Producer,
        numbers: Iterator[int],
        recorder: Recorder,
        stopping: asyncio.Event,
        began: float | None = None,
        *,
        strict: bool = False,
    ) -> None:
        from pyromq.client import Message, RocketMQError

        body, topic, tags = os.urandom(self.size), self.topic, self.tags
        send = self._sender(producer)
        clock, latencies = time.perf_counter, recorder.latencies
        interval = None if self.rate is None or began is None else 1 / self.rate
        for number in numbers:
            count = self.batch
            if self.count is not None:
                count = min(count, self.count - number)
            if interval is None or began is None:
                at = clock()
            else:
                at = began + number * interval
                if (pause := at - clock()) > 0:
                    await _sleep(pause, stopping)
            if stopping.is_set():
                return
            try:
                await send(
                    [
                        Message(topic, body, tags, f"{number + place}" if self.has_keys else "")
                        for place in range(count)
                    ]
                )
            except RocketMQError as error:
                if strict:
                    raise
                recorder.errors[_reason(error)] += count
                # Not in a tight loop while nothing can be reached.
                await asyncio.sleep(0.01)
            else:
                latencies.append(clock() - at)
                recorder.messages += count
                recorder.size += count * self.size

    def _sender(self, producer: Producer) -> Callable[[list[Message]], Awaitable[object]]:
        if self.batch > 1:
            return producer.send_batch
        send = producer.send
        return lambda messages: send(messages[0])


@dataclass(frozen=True, slots=True)
class ConsumeLoad:
    """Consumes a topic in a group."""

    cluster: Cluster
    topic: str
    group: str
    start_from: StartFrom | datetime
    tags: str
    sql: str | None
    takes_lists: bool
    count: int | None

    @property
    def title(self) -> str:
        """What it is, in one line."""
        how = "lists" if self.takes_lists else "one message a call"
        return f"consume {self.topic} as {self.group}: {how}"

    @property
    def latency_name(self) -> str:
        """What latencies are of."""
        return "born to consumed"

    def part(self, number: int, parts: int) -> ConsumeLoad:
        """All processes consume until they are told that it is enough."""
        from dataclasses import replace

        del number
        return self if parts == 1 else replace(self, count=None)

    async def run(self, recorder: Recorder, stopping: asyncio.Event) -> None:
        """Consume until the count is reached, or until `stopping`."""
        from pyromq.client import PushConsumer, Subscription

        clock, limit = time.time, self.count
        consumed = 0

        async def handle(messages: list[ReceivedMessage]) -> None:
            nonlocal consumed
            now = clock()
            recorder.latencies += [now - message.born_timestamp / 1e3 for message in messages]
            recorder.size += sum(message.body_size for message in messages)
            recorder.messages += len(messages)
            consumed += len(messages)
            if limit is not None and consumed >= limit:
                stopping.set()

        async def handle_one(message: ReceivedMessage) -> None:
            await handle([message])

        wanted = Subscription.of(self.tags) if self.sql is None else Subscription.sql(self.sql)
        async with PushConsumer(
            self.cluster.namesrv,
            group=self.group,
            handler=handle if self.takes_lists else handle_one,
            takes_lists=self.takes_lists,
            subscriptions={self.topic: wanted},
            start_from=self.start_from,
            **self.cluster.options,
        ):
            await stopping.wait()


async def _sleep(seconds: float, stopping: asyncio.Event) -> None:
    """Sleep, but not beyond the end by much."""
    if seconds < _SHORT_SECONDS:
        await asyncio.sleep(seconds)
        return
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        pass


def _share(total: int, number: int, parts: int) -> int:
    """How much of `total` one of the parts gets."""
    return total // parts + (number < total % parts)


def _reason(error: Exception) -> str:
    """Errors of one kind under one name: without what differs from message to message."""
    from pyromq.client import BrokerError

    if isinstance(error, BrokerError):
        return f"broker answered {error.code}"
    return type(error).__name__
