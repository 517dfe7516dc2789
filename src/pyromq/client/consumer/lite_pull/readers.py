"""Pull the queues of a lite pull consumer ahead of its reader, in one task per queue.

One pull per queue is in flight while there is room for its messages. Failures are logged and
retried with exponential backoff; permanent refusals are also reported to the owner. An offset
that the broker does not have is replaced by the one that it suggests. Runs on the consumer's
event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias, TypeGuard

from pyromq.client.consumer.lite_pull.read_ahead import ReadAhead, Reading
from pyromq.client.consumer.queue_access import PullStatus, QueueAccess, name_of
from pyromq.client.consumer.subscription import SQL92, TopicSubscription
from pyromq.client.errors import BrokerError, ClientError
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.remoting.client import RemotingError

logger = logging.getLogger(__name__)

#: How long a broker may hold a pull that finds no message.
LONG_POLL_SECONDS: Final = 15.0
#: Exponential backoff after failures.
_FIRST_PAUSE_SECONDS: Final = 0.5
_MAX_PAUSE_SECONDS: Final = 8.0
#: Between pulls without messages, so that a broker that does not hold pulls is not flooded.
_EMPTY_PAUSE_SECONDS: Final = 0.05

#: Responses that a retry does not change.
_PERMANENT_CODES: Final = frozenset(
    {
        ResponseCode.NO_PERMISSION,
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    }
)


#: Sets the offset at which a reading starts.
FindStart: TypeAlias = Callable[[Reading], Awaitable[None]]


class QueueReaders:
    """The tasks that pull.

    `subscriptions` is the consumer's own table. `arrived` is called when messages have arrived,
    `refused` with each permanent refusal.
    """

    def __init__(
        self,
        session: Session,
        access: QueueAccess,
        ahead: ReadAhead,
        subscriptions: Mapping[str, TopicSubscription],
        *,
        pull_batch_size: int,
        arrived: Callable[[], None],
        refused: Callable[[BrokerError], None],
    ) -> None:
        self._session = session
        self._access = access
        self._ahead = ahead
        self._subscriptions = subscriptions
        self._pull_batch_size = pull_batch_size
        self._arrived = arrived
        self._refused = refused
        self._tasks: dict[Reading, asyncio.Task[None]] = {}

    def is_reading(self, reading: Reading) -> bool:
        """Return whether a queue was started and not stopped."""
        return reading in self._tasks

    def start(self, reading: Reading, find_start: FindStart) -> None:
        """Start pulling a queue; if it was started before, the pull in flight is sent again."""
        task = self._tasks.get(reading)
        if task is not None:
            task.cancel()
        self._tasks[reading] = asyncio.create_task(self._read(reading, find_start))

    async def until_started(self, seconds: float) -> None:
        """Wait until every queue has tried to find its start, for at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                for reading in list(self._tasks):
                    await reading.start_attempted.wait()
        except TimeoutError:
            logger.warning("offsets to start from still unknown after %g s", seconds)

    async def stop(self, reading: Reading) -> None:
        """Stop pulling a queue."""
        task = self._tasks.pop(reading, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            reading.start_attempted.set()

    # Helpers, in call order.

    async def _read(self, reading: Reading, find_start: FindStart) -> None:
        queue = reading.queue
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                if reading.next_offset is None:
                    await find_start(reading)
                reading.start_attempted.set()
                await self._ahead.until_room(reading)
                if not await self._pull(reading):
                    await asyncio.sleep(_EMPTY_PAUSE_SECONDS)
                pause = _FIRST_PAUSE_SECONDS
                continue
            except (RemotingError, ClientError) as error:
                if self._is_permanent(error, queue):
                    pause = _MAX_PAUSE_SECONDS
                    self._refused(error)
                logger.warning(
                    "pull of %s failed, retrying in %g s: %s", name_of(queue), pause, error
                )
            except Exception:
                logger.exception("pull of %s failed, retrying in %g s", name_of(queue), pause)
            reading.start_attempted.set()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)
            await self._refresh_route(queue.topic)

    async def _pull(self, reading: Reading) -> bool:
        """Pull once; return whether to pull again without a pause."""
        queue, offset = reading.queue, reading.next_offset
        assert offset is not None
        subscribed = self._subscriptions.get(queue.topic)
        if subscribed is None:
            return False  # just unsubscribed: the queue is about to be given up
        result = await self._access.pull(
            queue,
            offset,
            subscribed.subscription,
            version=subscribed.version,
            max_messages=self._pull_batch_size,
            wait=LONG_POLL_SECONDS,
        )
        messages = result.messages
        if subscribed.tags:
            # Brokers compare hashes of tags; drop collisions.
            messages = [message for message in messages if message.tags in subscribed.tags]
        if result.status is PullStatus.OFFSET_ILLEGAL:
            logger.warning(
                "%s has no offset %d, only %d to %d: continuing at %d",
                name_of(queue),
                offset,
                result.min_offset,
                result.max_offset,
                result.next_offset,
            )
        if not messages and result.next_offset == offset:
            return False
        self._ahead.put(reading, messages, result.next_offset)
        if messages:
            self._arrived()
        # A broker that keeps moving offsets must not be flooded either.
        return result.status is not PullStatus.OFFSET_ILLEGAL

    def _is_permanent(self, error: Exception, queue: MessageQueue) -> TypeGuard[BrokerError]:
        if not isinstance(error, BrokerError):
            return False
        subscribed = self._subscriptions.get(queue.topic)
        is_sql = subscribed is not None and subscribed.subscription.kind == SQL92
        # A broker without property filters responds with the code of any other failure.
        return error.code in _PERMANENT_CODES or (is_sql and "does not support" in error.remark)

    async def _refresh_route(self, topic: str) -> None:
        try:
            await self._session.routes.refresh(self._session.wrap(topic))
        except (ClientError, RemotingError) as error:
            logger.debug("route of topic %s not refreshed: %s", topic, error)
