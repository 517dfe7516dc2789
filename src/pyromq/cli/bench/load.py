"""The loads of `pyromq bench`: one process that sends or consumes messages.

`ProduceLoad` sends in a closed loop (a constant number of sends in flight) or, with a rate, in an
open one: each message has a due time, and its latency counts from then, so a stalling server
cannot hide the time that messages waited. Failed sends are counted by reason and the load
continues; the first send of each producer must succeed. `ConsumeLoad` is a push consumer that
discards its messages; latency counts from a message's birth.

Each load runs on the event loop of its process and counts into a `Recorder`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from pyromq.cli.bench.figures import Recorder
from pyromq.cli.client_options import Cluster
from pyromq.client import (
    Batching,
    BrokerError,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RocketMQError,
    StartFrom,
    Subscription,
)

#: Sleep this long without checking for the end of the load.
_MAX_UNINTERRUPTED_SLEEP_SECONDS = 0.1


class Load(Protocol):
    """The work of one process."""

    @property
    def title(self) -> str:
        """Describe the load in one line."""

    @property
    def latency_name(self) -> str:
        """Name the operation whose latency is measured."""

    def part(self, number: int, parts: int) -> Load:
        """Return the share of one of several processes."""

    async def run(self, recorder: Recorder, stopping: asyncio.Event) -> None:
        """Run until the load is done or `stopping` is set."""


@dataclass(frozen=True, slots=True)
class ProduceLoad:
    """Sends to a topic."""

    cluster: Cluster
    topic: str
    size: int
    in_flight: int
    connections: int
    #: Messages per request, sent as a batch.
    batch: int
    #: Seconds that single sends wait to be batched; None sends each at once.
    linger: float | None
    #: Messages per second; None sends as fast as possible.
    rate: float | None
    count: int | None
    tags: str
    has_keys: bool

    @property
    def title(self) -> str:
        """Describe the load in one line."""
        how = f"{self.size} B, {self.in_flight} in flight"
        if self.batch > 1:
            how += f", batches of {self.batch}"
        if self.linger is not None:
            how += f", accumulated for {self.linger * 1e3:g} ms"
        if self.rate is not None:
            how += f", target {self.rate:,.0f}/s"
        return f"produce to {self.topic}: {how}"

    @property
    def latency_name(self) -> str:
        """Name the operation whose latency is measured."""
        return "send" if self.batch == 1 else "send of a batch"

    def part(self, number: int, parts: int) -> ProduceLoad:
        """Return the share of one of several processes."""
        return replace(
            self,
            in_flight=_share(self.in_flight, number, parts),
            connections=_share(self.connections, number, parts),
            rate=None if self.rate is None else self.rate / parts,
            count=None if self.count is None else _share(self.count, number, parts),
        )

    async def run(self, recorder: Recorder, stopping: asyncio.Event) -> None:
        """Send until the count is reached or `stopping` is set; await sends in flight."""
        batching = None if self.linger is None else Batching(linger=self.linger)
        producers = [
            Producer(self.cluster.namesrv, batching=batching, **self.cluster.options)
            for _ in range(self.connections)
        ]
        # One step per request.
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
                # Avoid a tight loop while the cluster is unreachable.
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
        """Describe the load in one line."""
        how = "lists" if self.takes_lists else "one message per call"
        return f"consume {self.topic} as {self.group}: {how}"

    @property
    def latency_name(self) -> str:
        """Name the operation whose latency is measured."""
        return "born to consumed"

    def part(self, number: int, parts: int) -> ConsumeLoad:
        """Return a load without a count: the parent stops all processes at the total."""
        del number
        return self if parts == 1 else replace(self, count=None)

    async def run(self, recorder: Recorder, stopping: asyncio.Event) -> None:
        """Consume until the count is reached or `stopping` is set."""
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
    """Sleep, but wake up early when the load stops."""
    if seconds < _MAX_UNINTERRUPTED_SLEEP_SECONDS:
        await asyncio.sleep(seconds)
        return
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        pass


def _share(total: int, number: int, parts: int) -> int:
    """Return one part's share of `total`."""
    return total // parts + (number < total % parts)


def _reason(error: Exception) -> str:
    """Return a name for the kind of error, without details of the message."""
    if isinstance(error, BrokerError):
        return f"broker answered {error.code}"
    return type(error).__name__
