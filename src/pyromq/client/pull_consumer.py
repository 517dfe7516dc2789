"""Reading messages, at the reader's own pace.

    async with PullConsumer("127.0.0.1:9876", "orders", group="billing") as consumer:
        await consumer.subscribe()
        async for message in consumer:
            ...

Three ways, each on top of the one before it:
1. `pull` reads from any offset of any queue and remembers nothing.
2. `assign` takes queues to be read by `async for`, from the group's committed
   offsets on (without a group: from the first or last message on).
3. `subscribe` joins the group, which divides the queues among its members.

Invariants of `async for`:
1. A queue's messages come in its order.
2. A message counts as consumed when the next one is asked for, or when the
   `async with` block ends without an exception. Only consumed messages are
   committed (each 5 s, when a queue goes to another member, and at the end):
   a consumer that dies leaves its messages to be delivered again.

On the event loop of its owner; one `async for` at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pyromq.client.errors import (
    BrokerError,
    ClientError,
    ClientStateError,
)
from pyromq.client.membership import Membership
from pyromq.client.message import check_group, check_topic
from pyromq.client.options import Settings
from pyromq.client.queue_access import PullResult, QueueAccess
from pyromq.client.received import ReceivedMessage
from pyromq.client.session import Session
from pyromq.client.start_from import StartFrom, consume_from_where
from pyromq.client.subscription import Subscription
from pyromq.protocol.bodies import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageQueue,
)
from pyromq.protocol.codes import RequestCode, ResponseCode
from pyromq.protocol.frame import RemotingCommand
from pyromq.remoting.client import RemotingError

logger = logging.getLogger(__name__)

COMMIT_SECONDS = 5.0
#: How long a broker may hold a pull that finds nothing ...
LONG_POLL_SECONDS = 15.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 8.0
#: Between pulls that find nothing: a broker that does not hold them must not be flooded.
_EMPTY_PAUSE_SECONDS = 0.05
#: Pulled batches that wait for the reader; each holds what one pull gave.
_BUFFERED_BATCHES = 16

#: Answers that stay the same however often one asks.
_FATAL_CODES = frozenset(
    {
        ResponseCode.NO_PERMISSION,
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    }
)


class PullConsumer:
    """Reads `topic` in the cluster of the NameServers `namesrv` (`host:port[;host:port]`).

    `group` owns the committed offsets; without one, nothing is committed. `tags` selects
    messages: `*`, or `a || b`.
    """

    def __init__(
        self,
        namesrv: str,
        topic: str,
        *,
        group: str | None = None,
        tags: str = "*",
        start_from: StartFrom = StartFrom.LAST,
        request_timeout: float = 3.0,
    ) -> None:
        check_topic(topic)
        if group is not None:
            check_group(group)
        self.topic = topic
        self.group = group
        self._subscription = Subscription.tags(tags)
        self._wanted_tags = self._subscription.wanted_tags()
        self._start_from = start_from
        self._subscription_version = time.time_ns() // 1_000_000
        self._session = Session(
            Settings.of(namesrv, {"request_timeout": request_timeout}),
            self._describe,
            handlers={RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed},
        )
        self._access = QueueAccess(self._session, group)
        self._membership: Membership | None = None
        self._commits: asyncio.Task[None] | None = None
        self._readings: dict[MessageQueue, _Reading] = {}
        self._batches: asyncio.Queue[_Batch | ClientError] = asyncio.Queue(_BUFFERED_BATCHES)
        self._ready: deque[_Delivered] = deque()
        self._handed_out: _Delivered | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error_type is None:
            self._count_as_consumed()
        await self.close()

    async def start(self) -> None:
        """Make it ready; nothing is connected before the first question."""
        self._session.start()

    async def close(self) -> None:
        """Commit what was consumed, leave the group, close the connections."""
        if self._membership is not None:
            await self._membership.stop()
        if self._commits is not None:
            self._commits.cancel()
            await asyncio.gather(self._commits, return_exceptions=True)
        await self.assign([])
        await self._session.close(consumer_group=self.group)
        if self._batches.empty():  # else a waiting `async for` has something to wake up for
            self._batches.put_nowait(ClientStateError("this consumer was closed"))

    # 1. Single pulls and offsets.

    async def queues(self) -> list[MessageQueue]:
        """The topic's queues that can be read now."""
        self._session.check_running()
        return list((await self._session.routes.get(self.topic)).read_queues)

    async def pull(
        self, queue: MessageQueue, offset: int, max_messages: int = 32, *, wait: float = 0.0
    ) -> PullResult:
        """Messages of `queue` from `offset` on.

        When there is none yet, the broker waits up to `wait` seconds for one.
        """
        self._session.check_running()
        result = await self._access.pull(
            queue,
            offset,
            self._subscription,
            version=self._subscription_version,
            max_messages=max_messages,
            wait=wait,
        )
        wanted = self._wanted_tags
        if not wanted:
            return result
        # Brokers select by the tags' hashes; only the text decides.
        messages = [message for message in result.messages if message.tags in wanted]
        return result._replace(messages=messages)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message that is still there."""
        return await self._access.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        return await self._access.max_offset(queue)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset from which the group goes on, None when it never consumed from `queue`."""
        self._required_group()
        return await self._access.committed(queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Let the group go on from `offset`, whatever happens to this consumer."""
        self._required_group()
        await self._access.commit(queue, offset)

    # 2. and 3. Queues of one's own, read by `async for`.

    async def assign(self, queues: Collection[MessageQueue]) -> None:
        """Read exactly these queues from now on; queues given up are committed first."""
        given_up = [reading for queue, reading in self._readings.items() if queue not in queues]
        for reading in given_up:
            del self._readings[reading.queue]
            reading.task.cancel()
        await asyncio.gather(*(reading.task for reading in given_up), return_exceptions=True)
        await self._commit_consumed(given_up)
        for queue in queues:
            if queue not in self._readings:
                reading = _Reading(queue)
                self._readings[queue] = reading
                reading.task = asyncio.create_task(self._read(reading))
        if self._commits is None and self._readings and self.group is not None:
            self._commits = asyncio.create_task(self._commit_forever())

    async def subscribe(self) -> None:
        """Join the group and read the share of the topic's queues that it leaves to us."""
        self._session.check_running()
        if self._membership is None:
            self._membership = Membership(
                self._session, self._required_group(), [self.topic], self.assign
            )
            try:
                await self._membership.join()
            except BaseException:
                self._membership = None
                raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message of the assigned queues, as soon as there is one."""
        self._session.check_running()
        self._count_as_consumed()
        while True:
            while self._ready:
                delivered = self._ready.popleft()
                if self._is_ours(delivered.reading):
                    self._handed_out = delivered
                    return delivered.message
            batch = await self._batches.get()
            if isinstance(batch, ClientError):
                raise batch
            self._make_ready(batch)

    def assignment(self) -> list[MessageQueue]:
        """The queues that are being read."""
        return sorted(self._readings)

    # Helpers, in call order.

    def _required_group(self) -> str:
        if self.group is None:
            raise ClientStateError("this consumer has no group: give one to PullConsumer(group=)")
        return self.group

    async def _read(self, reading: _Reading) -> None:
        """Pull one queue for as long as it is ours; in a task of its own."""
        offset: int | None = None
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                if offset is None:
                    offset = reading.consumed = reading.committed = await self._first_offset(
                        reading.queue
                    )
                result = await self.pull(reading.queue, offset, wait=LONG_POLL_SECONDS)
            except (RemotingError, ClientError) as error:
                if isinstance(error, BrokerError) and error.code in _FATAL_CODES:
                    await self._batches.put(error)
                    return
                logger.warning("%s: %s; next attempt in %g s", _name(reading.queue), error, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                await self._refresh_route()
                continue
            pause = _FIRST_PAUSE_SECONDS
            if result.messages or result.next_offset != offset:
                await self._batches.put(_Batch(reading, result.messages, result.next_offset))
            else:
                await asyncio.sleep(_EMPTY_PAUSE_SECONDS)
            offset = result.next_offset

    async def _first_offset(self, queue: MessageQueue) -> int:
        committed = await self.committed(queue) if self.group is not None else None
        if committed is not None:
            return committed
        if self._start_from is StartFrom.FIRST:
            return max(0, await self.min_offset(queue))
        return await self.max_offset(queue)

    async def _refresh_route(self) -> None:
        try:
            await self._session.routes.refresh(self.topic)
        except ClientError as error:
            logger.debug("route of %s could not be refreshed: %s", self.topic, error)

    def _is_ours(self, reading: _Reading) -> bool:
        return self._readings.get(reading.queue) is reading

    def _make_ready(self, batch: _Batch) -> None:
        if not self._is_ours(batch.reading):
            return
        if not batch.messages:
            batch.reading.consumed = batch.next_offset
            return
        # Consuming the last message also passes over what the filter left out behind it.
        offsets = [message.queue_offset + 1 for message in batch.messages[:-1]]
        for message, offset in zip(batch.messages, [*offsets, batch.next_offset], strict=True):
            self._ready.append(_Delivered(batch.reading, message, offset))

    def _count_as_consumed(self) -> None:
        if self._handed_out is not None:
            self._handed_out.reading.consumed = self._handed_out.next_offset
            self._handed_out = None

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_SECONDS)
            await self._commit_consumed(self._readings.values())

    async def _commit_consumed(self, readings: Collection[_Reading]) -> None:
        if self.group is not None:
            changed = [reading for reading in readings if reading.consumed != reading.committed]
            await asyncio.gather(*(self._commit_one(reading) for reading in changed))

    async def _commit_one(self, reading: _Reading) -> None:
        offset = reading.consumed
        try:
            await self.commit(reading.queue, offset)
        except (RemotingError, ClientError) as error:
            logger.warning("offset %d of %s not committed: %s", offset, _name(reading.queue), error)
        else:
            reading.committed = offset

    def _members_changed(self, _address: str, _command: RemotingCommand) -> None:
        if self._membership is not None:
            self._membership.members_changed()

    def _describe(self, client_id: str) -> HeartbeatData:
        if self.group is None:
            return HeartbeatData(client_id)
        subscription = self._subscription.data(self.topic, self._subscription_version)
        consumer = ConsumerData(
            self.group,
            consume_type=ConsumeType.CONSUME_ACTIVELY,
            consume_from_where=consume_from_where(self._start_from),
            subscription_data_set=[subscription],
        )
        return HeartbeatData(client_id, consumer_data_set=[consumer])


class _Reading:
    """A queue that is ours, and how far its messages were consumed and committed."""

    __slots__ = ("committed", "consumed", "queue", "task")

    task: asyncio.Task[None]

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.consumed = self.committed = -1


@dataclass(frozen=True, slots=True)
class _Batch:
    """What one pull gave."""

    reading: _Reading
    messages: list[ReceivedMessage]
    next_offset: int


@dataclass(frozen=True, slots=True)
class _Delivered:
    """A message for the application; consumed, its queue goes on at `next_offset`."""

    reading: _Reading
    message: ReceivedMessage
    next_offset: int


def _name(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of {queue.topic} at {queue.broker_name}"
