"""Read a cluster's topics for assertions: all messages, or those since the last call.

It joins no group and commits nothing, so the test's consumers still get every message.
`TopicReader` remembers how far each topic was drained; a call that fails or times out changes
nothing. Used by `cluster`, on the loop of its servers.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from itertools import groupby
from operator import attrgetter
from typing import Final

from pyromq.client.consumer.queue_access import QueueAccess
from pyromq.client.consumer.subscription import Subscription
from pyromq.client.errors import TopicNotFoundError
from pyromq.client.options import ClientOptions, Settings
from pyromq.client.received import ReceivedMessage
from pyromq.client.session.session import Session
from pyromq.protocol.names import dead_letter_topic
from pyromq.protocol.wire.bodies import HeartbeatData, MessageQueue

#: Pause between polls for messages that have not arrived.
_LOOK_SECONDS: Final = 0.02
_MAX_MESSAGES: Final = 32
#: Messages that a TimeoutError shows.
_MAX_SHOWN: Final = 10

_Offsets = dict[MessageQueue, int]


class TopicReader:
    """Read topics through the NameServer `namesrv`, as a client with these options."""

    def __init__(self, namesrv: str, options: ClientOptions | None = None) -> None:
        self._namesrv = namesrv
        self._options: ClientOptions = options or {}
        self._drained: _Offsets = {}

    async def drain(
        self,
        topic: str,
        brokers: Collection[str],
        count: int | None,
        timeout: float,  # noqa: ASYNC109 - part of its error
    ) -> list[ReceivedMessage]:
        """Return new messages, once there are at least `count`."""
        messages = await self._wait(topic, brokers, count or 0, timeout)
        if len(messages) < (count or 0):
            raise TimeoutError(
                f"topic {topic}: {len(messages)} of {count} messages arrived within "
                f"{timeout:g} s{_shown(messages)}"
            )
        self._note(messages)
        return messages

    async def next_dead_letter(
        self,
        group: str,
        brokers: Collection[str],
        timeout: float,  # noqa: ASYNC109 - part of its error
    ) -> ReceivedMessage:
        """Return a group's oldest new dead letter, once there is one."""
        messages = await self._wait(dead_letter_topic(group), brokers, 1, timeout)
        if not messages:
            raise TimeoutError(f"group {group}: no dead letter arrived within {timeout:g} s")
        self._note(messages[:1])
        return messages[0]

    async def count(self, topic: str, brokers: Collection[str]) -> int:
        """Return how many messages a topic has, drained or not."""
        async with self._access() as (session, access):
            return sum(
                [
                    await access.max_offset(queue) - max(0, await access.min_offset(queue))
                    for queue in await _queues(session, access, topic, brokers)
                ]
            )

    def forget(self) -> None:
        """Forget what was drained, because the brokers are empty again."""
        self._drained.clear()

    # Helpers, in call order.

    async def _wait(
        self,
        topic: str,
        brokers: Collection[str],
        count: int,
        timeout: float,  # noqa: ASYNC109 - not an error: returns what has arrived
    ) -> list[ReceivedMessage]:
        """Return new messages: at least `count`, or those that arrived in time."""
        deadline = time.monotonic() + timeout
        async with self._access() as (session, access):
            while True:
                messages = await self._new(session, access, topic, brokers)
                if len(messages) >= count or time.monotonic() >= deadline:
                    return messages
                await asyncio.sleep(_LOOK_SECONDS)

    @asynccontextmanager
    async def _access(self) -> AsyncIterator[tuple[Session, QueueAccess]]:
        session = Session(Settings.of(self._namesrv, self._options), HeartbeatData)
        session.start()
        try:
            yield session, QueueAccess(session, None)
        finally:
            await session.close()

    async def _new(
        self, session: Session, access: QueueAccess, topic: str, brokers: Collection[str]
    ) -> list[ReceivedMessage]:
        """Return new messages in the order they were stored."""
        found: list[ReceivedMessage] = []
        for queue in await _queues(session, access, topic, brokers):
            end = await access.max_offset(queue)
            offset = max(self._drained.get(queue, 0), await access.min_offset(queue))
            while offset < end:
                result = await access.pull(
                    queue, offset, Subscription(), version=0, max_messages=_MAX_MESSAGES, wait=0.0
                )
                found += result.messages
                if result.next_offset <= offset:
                    break  # the queue was truncated meanwhile
                offset = result.next_offset
        return _in_order(found)

    def _note(self, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            self._drained[message.queue] = message.queue_offset + 1


async def _queues(
    session: Session, access: QueueAccess, topic: str, brokers: Collection[str]
) -> list[MessageQueue]:
    """Return the topic's queues on these brokers; none while it does not exist."""
    try:
        await session.routes.refresh(topic)
        queues = await access.queues(topic)
    except TopicNotFoundError:
        return []
    return [queue for queue in queues if queue.broker_name in brokers]


def _in_order(messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
    """Sort messages by log position within a broker, and by store time across brokers."""
    broker_name = attrgetter("queue.broker_name")
    messages.sort(key=attrgetter("queue.broker_name", "physical_offset"))
    logs = [list(log) for _, log in groupby(messages, broker_name)]
    return list(heapq.merge(*logs, key=attrgetter("store_timestamp")))


def _shown(messages: list[ReceivedMessage]) -> str:
    if not messages:
        return ""
    shown = ", ".join(f"{message.raw_body[:40]!r}" for message in messages[:_MAX_SHOWN])
    more = "" if len(messages) <= _MAX_SHOWN else ", ..."
    return f": {shown}{more}"
