"""What the client cases share: their names, what consumers got, and waiting for it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TypeVar

import pytest

from pyromq.client import (
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    ReceivedMessage,
)
from tests.interop.cluster import Cluster
from tests.support.patience import DEADLINE

T = TypeVar("T")

#: For cases that every later client relies on: against Apache's 5.3.3, too.
against_all_brokers = pytest.mark.parametrize(
    "cluster", ["pyromq", "pyromq-secure", "apache", "apache-5.3.3"], indirect=True
)

#: Brokers that take plain connections as well; TLS for its own sake is a matter of `make soak`.
TAKES_PLAIN = ("pyromq", "apache", pytest.param("pyromq-tls", marks=pytest.mark.soak))


class Case:
    """One test's cluster, its topic and its group, which no other test uses."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.namesrv = cluster.namesrv_address
        self.topic = name
        self.group = f"group_{name}"

    async def create_topic(self, topic: str, queues: int = 4) -> str:
        """Another topic beside the one that is there."""
        return await asyncio.to_thread(self.cluster.create_topic, topic, queues)

    async def send(self, bodies: Iterable[bytes], topic: str = "", **fields: object) -> None:
        """Store messages with these bodies, one after the other, on the queues in turn."""
        async with Producer(self.namesrv) as producer:
            for body in bodies:
                await producer.send(Message(topic or self.topic, body, **fields))  # type: ignore[arg-type]

    async def stored(self, topic: str = "") -> list[ReceivedMessage]:
        """Every message of a topic, queue by queue."""
        async with PullConsumer(self.namesrv, topic or self.topic) as consumer:
            messages: list[ReceivedMessage] = []
            for queue in await consumer.queues():
                offset, end = 0, await consumer.max_offset(queue)
                while offset < end:
                    result = await consumer.pull(queue, offset)
                    messages += result.messages
                    offset = result.next_offset
            return messages

    async def wait_stored(self, count: int, topic: str = "") -> list[ReceivedMessage]:
        """The same, once there are `count` of them: Java's brokers show messages a bit later."""

        async def enough() -> list[ReceivedMessage] | None:
            found = await self.stored(topic)
            return found if len(found) >= count else None

        return await eventually(enough)

    async def committed(self, group: str = "", topic: str = "") -> dict[MessageQueue, int]:
        """The offsets of a group on every queue on which it has one."""
        async with PullConsumer(
            self.namesrv, topic or self.topic, group=group or self.group
        ) as consumer:
            found = {queue: await consumer.committed(queue) for queue in await consumer.queues()}
        return {queue: offset for queue, offset in found.items() if offset is not None}

    async def until_committed(self, count: int) -> None:
        """Wait for the sum of the group's offsets: brokers are told, and do not answer."""

        async def all_are() -> bool:
            return sum((await self.committed()).values()) == count

        await eventually(all_are)


class Inbox:
    """A handler that keeps everything it gets.

    `fail` says for a message whether its handler shall raise this time.
    """

    def __init__(self, fail: Callable[[ReceivedMessage], bool] = lambda _: False) -> None:
        self.messages: list[ReceivedMessage] = []
        self.times: list[float] = []
        self._fail = fail
        self._news = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.put(message)
        if self._fail(message):
            raise RuntimeError("not this time")

    def put(self, message: ReceivedMessage) -> None:
        self.messages.append(message)
        self.times.append(time.monotonic())
        self._news.set()

    @property
    def bodies(self) -> list[bytes]:
        """In the order of their arrival."""
        return [message.body for message in self.messages]

    async def until(self, enough: Callable[[Inbox], bool], seconds: float = DEADLINE) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not enough(self):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            last = [
                (message.body[:40], message.queue.broker_name, message.queue.queue_id)
                for message in self.messages[-10:]
            ]
            raise AssertionError(
                f"not enough within {seconds:g} s: {len(self.messages)} came, the last {last}"
            ) from None

    async def until_count(self, count: int, seconds: float = DEADLINE) -> None:
        await self.until(lambda inbox: len(inbox.messages) >= count, seconds)

    async def until_bodies(self, bodies: Collection[bytes], seconds: float = DEADLINE) -> None:
        """Wait until each body came at least once."""
        try:
            await self.until(lambda inbox: set(bodies) <= set(inbox.bodies), seconds)
        except AssertionError as error:
            missing = sorted(set(bodies) - set(self.bodies))
            raise AssertionError(f"{len(missing)} missing, as {missing[:5]}: {error}") from None

    async def until_exactly(self, bodies: Collection[bytes], seconds: float = DEADLINE) -> None:
        """Wait until all came; each once and nothing else."""
        await self.until_bodies(bodies, seconds)
        assert Counter(self.bodies) == Counter(bodies)


async def eventually(look: Callable[[], Awaitable[T | None]], seconds: float = DEADLINE) -> T:
    """What `look` gives once it gives something."""
    deadline = time.monotonic() + seconds
    while True:
        found = await look()
        if found:
            return found
        assert time.monotonic() < deadline, f"{look.__qualname__}: nothing within {seconds:g} s"
        await asyncio.sleep(0.05)


def numbered(count: int, prefix: str = "m") -> list[bytes]:
    """Bodies that are all different."""
    return [f"{prefix}-{number}".encode() for number in range(count)]
