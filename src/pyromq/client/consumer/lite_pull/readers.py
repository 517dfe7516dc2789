"""Pulls the queues of a lite pull consumer, ahead of its reader: one task for each queue.

One pull is under way for each queue, as long as there is room for what it brings. Whatever
fails is logged and tried again, later each time; what stays refused is told to the owner,
too. An offset that the broker does not have is corrected to the one that it suggests. On the
owner's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeGuard

from pyromq.client.consumer.lite_pull.read_ahead import ReadAhead, Reading
from pyromq.client.consumer.queue_access import PullStatus, QueueAccess
from pyromq.client.consumer.subscription import SQL92, Wanted
from pyromq.client.errors import BrokerError, ClientError
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.remoting.client import RemotingError

logger = logging.getLogger(__name__)

#: How long a broker may hold a pull that finds nothing.
LONG_POLL_SECONDS = 15.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 8.0
#: Between pulls that find nothing: a broker that does not hold them must not be flooded.
_EMPTY_PAUSE_SECONDS = 0.05

#: Answers that stay the same however often one asks.
_FINAL_CODES = frozenset(
    {
        ResponseCode.NO_PERMISSION,
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    }
)


class QueueReaders:
    """The tasks that pull.

    `wanted` says what to pull, by topic. `find_start` sets where a reading begins; `arrived`
    is told when messages came, `refused` what no other attempt would change.
    """

    def __init__(
        self,
        session: Session,
        access: QueueAccess,
        ahead: ReadAhead,
        wanted: Mapping[str, Wanted],
        *,
        pull_batch_size: int,
        find_start: Callable[[Reading], Awaitable[None]],
        arrived: Callable[[], None],
        refused: Callable[[BrokerError], None],
    ) -> None:
        self._session = session
        self._access = access
        self._ahead = ahead
        self._wanted = wanted
        self._pull_batch_size = pull_batch_size
        self._find_start = find_start
        self._arrived = arrived
        self._refused = refused
        self._tasks: dict[Reading, asyncio.Task[None]] = {}
        #: Queues that wait for the reader.
        self._stalled: dict[Reading, asyncio.Future[None]] = {}

    def is_reading(self, reading: Reading) -> bool:
        """Whether it was begun and not stopped."""
        return reading in self._tasks

    def begin(self, reading: Reading) -> None:
        """Pull this queue; begun already, a pull that waits at its broker is asked anew."""
        task = self._tasks.get(reading)
        if task is not None:
            task.cancel()
        self._tasks[reading] = asyncio.create_task(self._read(reading))

    async def until_begun(self, seconds: float) -> None:
        """Wait until it is known where every queue begins, or until that has failed once."""
        try:
            async with asyncio.timeout(seconds):
                for reading in list(self._tasks):
                    await reading.begun.wait()
        except TimeoutError:
            logger.warning("brokers have not said where to begin within %g s", seconds)

    async def stop(self, reading: Reading) -> None:
        """Pull it no more."""
        task = self._tasks.pop(reading, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            reading.begun.set()

    def room(self) -> None:
        """Less waits for the reader than before: pull where there is room again."""
        for reading, room in self._stalled.items():
            if not room.done() and self._ahead.has_room(reading):
                room.set_result(None)

    # Helpers, in call order.

    async def _read(self, reading: Reading) -> None:
        queue = reading.queue
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                if reading.next_offset is None:
                    await self._find_start(reading)
                reading.begun.set()
                await self._until_room(reading)
                if not await self._pull(reading):
                    await asyncio.sleep(_EMPTY_PAUSE_SECONDS)
                pause = _FIRST_PAUSE_SECONDS
                continue
            except (RemotingError, ClientError) as error:
                if self._is_final(error, queue):
                    pause = _LONGEST_PAUSE_SECONDS
                    self._refused(error)
                logger.warning("%s: %s; next attempt in %g s", name_of(queue), error, pause)
            except Exception:
                logger.exception("%s: next attempt in %g s", name_of(queue), pause)
            reading.begun.set()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            await self._refresh_route(queue.topic)

    async def _until_room(self, reading: Reading) -> None:
        while not self._ahead.has_room(reading):
            room = self._stalled[reading] = asyncio.get_running_loop().create_future()
            try:
                await room
            finally:
                if self._stalled.get(reading) is room:
                    del self._stalled[reading]

    async def _pull(self, reading: Reading) -> bool:
        """Pull once; whether the queue has gone on."""
        queue, offset = reading.queue, reading.next_offset
        assert offset is not None
        wanted = self._wanted.get(queue.topic)
        if wanted is None:
            return False  # being given up
        result = await self._access.pull(
            queue,
            offset,
            wanted.subscription,
            version=wanted.version,
            max_messages=self._pull_batch_size,
            wait=LONG_POLL_SECONDS,
        )
        messages = result.messages
        if wanted.tags:
            # Brokers select by the tags' hashes; only the text decides.
            messages = [message for message in messages if message.tags in wanted.tags]
        if result.status is PullStatus.OFFSET_ILLEGAL:
            logger.warning(
                "%s has no offset %d, only %d to %d: reading goes on from %d",
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
        # A broker that moves offsets about must not be flooded either.
        return result.status is not PullStatus.OFFSET_ILLEGAL

    def _is_final(self, error: Exception, queue: MessageQueue) -> TypeGuard[BrokerError]:
        if not isinstance(error, BrokerError):
            return False
        wanted = self._wanted.get(queue.topic)
        is_sql = wanted is not None and wanted.subscription.kind == SQL92
        # A broker without property filters says so with the code of any other failure.
        return error.code in _FINAL_CODES or (is_sql and "does not support" in error.remark)

    async def _refresh_route(self, topic: str) -> None:
        try:
            await self._session.routes.refresh(self._session.wrap(topic))
        except (ClientError, RemotingError) as error:
            logger.debug("route of %s could not be refreshed: %s", topic, error)


def name_of(queue: MessageQueue) -> str:
    """A queue in a sentence."""
    return f"queue {queue.queue_id} of {queue.topic} at {queue.broker_name}"
