"""Pull the queues assigned to a push consumer and pass their messages to the handlers.

Each queue has a task of its own, which runs `Puller.run`:

1. claim the queue (`ownership`) and find the offset to start from
2. wait while the queue is paused or full
3. pull, drop messages whose tags do not match, submit the rest, repeat from 2

One pull per queue is in flight. A failure is logged and retried with exponential backoff; nothing
stops silently. Created by the push consumer; runs on its event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, Protocol

from pyromq.client.consumer.offsets import ConsumerOffsets
from pyromq.client.consumer.process_queue import Limits, ProcessQueue
from pyromq.client.consumer.push.options import PushSettings
from pyromq.client.consumer.push.ownership import Ownership
from pyromq.client.consumer.push.stats import ConsumerStats, TopicStats
from pyromq.client.consumer.queue_access import PullResult, PullStatus, QueueAccess, name_of
from pyromq.client.consumer.start_from import first_offset
from pyromq.client.consumer.subscription import TopicSubscription
from pyromq.client.errors import BrokerError, ClientError
from pyromq.client.received import ReceivedMessage
from pyromq.client.session.session import Session
from pyromq.protocol.message.properties import RETRY_TOPIC
from pyromq.protocol.names import retry_topic
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.remoting.client import RemotingError

logger = logging.getLogger(__name__)

#: How long a broker may hold a pull that finds no message.
LONG_POLL_SECONDS: Final = 15.0
#: Exponential backoff after failures.
_FIRST_PAUSE_SECONDS: Final = 0.2
_MAX_PAUSE_SECONDS: Final = 5.0
#: Between pulls without messages, so that a broker that does not hold pulls is not flooded.
_EMPTY_PAUSE_SECONDS: Final = 0.05
#: Between attempts to claim a queue that another member holds.
_CLAIM_PAUSE_SECONDS: Final = 0.5

#: Responses of a broker that does not know the group or its subscription.
_UNKNOWN_GROUP_CODES: Final = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    }
)


class Handling(Protocol):
    """The part of `concurrent` and `orderly` that pulls and handovers use."""

    def submit(
        self, process_queue: ProcessQueue, stats: TopicStats, messages: list[ReceivedMessage]
    ) -> None:
        """Hand messages to the handlers."""

    async def leave(self, process_queue: ProcessQueue, grace: float = 0.0) -> None:
        """Stop handing out messages of a queue; wait for its handlers."""


class AssignedQueue:
    """A queue that is assigned to this consumer, and the task that serves it."""

    __slots__ = (
        "first_offset",
        "limits",
        "process_queue",
        "queue",
        "resumed",
        "start_attempted",
        "task",
    )

    task: asyncio.Task[None]

    def __init__(
        self, queue: MessageQueue, limits: Limits, resumed: ProcessQueue | None = None
    ) -> None:
        self.queue = queue
        self.limits = limits
        #: The state of the same queue before we lost its lock: it is not handled again.
        self.resumed = resumed
        #: None until the offset to start from is known.
        self.process_queue: ProcessQueue | None = None
        #: The offset to start from if the group has none, in case it was determined early.
        self.first_offset: int | None = None
        #: Set after the first attempt to find the offset to start from.
        self.start_attempted = asyncio.Event()


class Puller:
    """Pulls all queues of one consumer. `subscriptions` is the consumer's own table."""

    def __init__(  # noqa: PLR0913 - the parts of a consumer, all different
        self,
        session: Session,
        group: str,
        settings: PushSettings,
        subscriptions: Mapping[str, TopicSubscription],
        *,
        access: QueueAccess,
        offsets: ConsumerOffsets,
        ownership: Ownership,
        handling: Handling,
        stats: ConsumerStats,
    ) -> None:
        self._session = session
        self._settings = settings
        self._subscriptions = subscriptions
        self._access = access
        self._offsets = offsets
        self._ownership = ownership
        self._handling = handling
        self._stats = stats
        self._retry_topic = retry_topic(group)
        self._paused: set[MessageQueue] = set()
        self._all_paused = False
        self._resumed = asyncio.Event()

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Stop pulling these queues, or all."""
        if queues is None:
            self._all_paused = True
        else:
            self._paused.update(queues)

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Resume pulling these queues, or all."""
        if queues is None:
            self._all_paused = False
            self._paused.clear()
        else:
            self._paused.difference_update(queues)
        resumed, self._resumed = self._resumed, asyncio.Event()
        resumed.set()

    async def run(
        self, assigned: AssignedQueue, offset: int | None, previous: asyncio.Task[None] | None
    ) -> None:
        """Pull one queue until cancelled.

        Starts from `offset` if given. `previous` is a task that still finishes messages of the
        same queue; pulling waits for it.
        """
        if previous is not None:
            assigned.start_attempted.set()
            await asyncio.wait([previous])
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                if assigned.process_queue is None:
                    assigned.process_queue = await self._claim(assigned, offset)
                    assigned.start_attempted.set()
                    if assigned.process_queue is None:
                        await asyncio.sleep(_CLAIM_PAUSE_SECONDS)
                        continue
                await self._pull(assigned, assigned.process_queue)
            except (RemotingError, ClientError) as error:
                logger.warning(
                    "pull of %s failed, retrying in %g s: %s", name_of(assigned.queue), pause, error
                )
                assigned.start_attempted.set()
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
                await self._recover(assigned.queue, error)
            except Exception:
                # A bug must not end the consumption of a queue silently.
                logger.exception(
                    "pull of %s failed, retrying in %g s", name_of(assigned.queue), pause
                )
                assigned.start_attempted.set()
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
            else:
                pause = _FIRST_PAUSE_SECONDS

    def restore_topic(self, message: ReceivedMessage) -> None:
        """Show the original topic of a message that comes from the retry topic."""
        if message.topic == self._retry_topic:
            topic = message.all_properties.get(RETRY_TOPIC)
            if topic:
                message.topic = self._session.unwrap(topic)

    # Helpers, in call order.

    async def _claim(self, assigned: AssignedQueue, offset: int | None) -> ProcessQueue | None:
        """Claim a queue and find where to start; None while another member holds it."""
        queue = assigned.queue
        claim = await self._ownership.claim(
            queue, partial(self._determine_first_offset, assigned, offset)
        )
        if claim is None:
            return None
        if offset is None:
            offset = await self._offsets.load(queue)
            if assigned.resumed is not None:
                offset = max(offset or 0, assigned.resumed.commit_offset)
        if offset is None:
            offset = assigned.first_offset
        if offset is None:
            offset = await first_offset(self._access, queue, self._settings.start_from)
        process_queue = ProcessQueue(queue, offset, assigned.limits)
        process_queue.last_locked = claim.locked_at
        return process_queue

    async def _determine_first_offset(self, assigned: AssignedQueue, offset: int | None) -> None:
        """Find where to start in case the queue's owner dies before its first commit.

        Otherwise a group that starts from the end would miss messages sent in the meantime.
        """
        queue = assigned.queue
        if offset is None and await self._offsets.load(queue) is None:
            assigned.first_offset = await first_offset(
                self._access, queue, self._settings.start_from
            )
        assigned.start_attempted.set()

    async def _pull(self, assigned: AssignedQueue, process_queue: ProcessQueue) -> None:
        """Wait for room, pull once, and submit the messages."""
        queue = process_queue.queue
        while self._is_paused(queue):
            await self._resumed.wait()
        while process_queue.is_full():
            room = asyncio.Event()
            process_queue.when_room = room.set
            await room.wait()
        subscribed = self._subscriptions.get(queue.topic)
        if subscribed is None:  # just unsubscribed: the queue is about to be taken away
            await asyncio.sleep(_EMPTY_PAUSE_SECONDS)
            return
        began = process_queue.last_pulled = time.monotonic()
        offset = process_queue.next_offset
        may_commit = not self._settings.is_broadcasting and self._ownership.is_valid(process_queue)
        result = await self._access.pull(
            queue,
            offset,
            subscribed.subscription,
            version=subscribed.version,
            max_messages=self._settings.pull_batch_size,
            wait=LONG_POLL_SECONDS,
            commit_offset=process_queue.commit_offset if may_commit else None,
        )
        if self._is_paused(queue):
            return  # pulled again after `resume`
        if not result.messages:
            await self._advance(assigned, process_queue, offset, result)
            return
        stats = self._stats.of(queue.topic)
        stats.pulls += 1
        stats.pulled += len(result.messages)
        stats.pull_seconds += time.monotonic() - began
        self._submit(process_queue, subscribed, stats, result)
        if self._settings.pull_interval:
            await asyncio.sleep(self._settings.pull_interval)

    def _is_paused(self, queue: MessageQueue) -> bool:
        return self._all_paused or bool(self._paused and queue in self._paused)

    async def _advance(
        self, assigned: AssignedQueue, process_queue: ProcessQueue, offset: int, result: PullResult
    ) -> None:
        """Move to the broker's next offset after a pull without messages."""
        if result.status is PullStatus.OFFSET_ILLEGAL:
            logger.warning(
                "%s has no offset %d, only %d to %d: continuing at %d",
                name_of(process_queue.queue),
                offset,
                result.min_offset,
                result.max_offset,
                result.next_offset,
            )
        if result.next_offset < offset and process_queue.count:
            # The broker lost messages that we hold: offsets start over.
            await self._handling.leave(process_queue)
            replacement = ProcessQueue(
                process_queue.queue, result.next_offset, process_queue.limits
            )
            replacement.last_locked = process_queue.last_locked
            assigned.process_queue = replacement
            return
        process_queue.put([], result.next_offset)
        if result.next_offset == offset or result.status is PullStatus.OFFSET_ILLEGAL:
            await asyncio.sleep(_EMPTY_PAUSE_SECONDS)

    def _submit(
        self,
        process_queue: ProcessQueue,
        subscribed: TopicSubscription,
        stats: TopicStats,
        result: PullResult,
    ) -> None:
        messages = result.messages
        if subscribed.tags:
            # Brokers compare hashes of tags; drop collisions.
            tags = subscribed.tags
            messages = [message for message in messages if message.tags in tags]
        elif process_queue.queue.topic == self._retry_topic:
            for message in messages:
                self.restore_topic(message)
        # Never pull the same messages again, even if the broker's next offset says so.
        next_offset = max(result.next_offset, result.messages[-1].queue_offset + 1)
        messages = process_queue.put(messages, next_offset)
        if messages:
            self._handling.submit(process_queue, stats, messages)

    async def _recover(self, queue: MessageQueue, error: Exception) -> None:
        """Refresh the route after a failure; send a heartbeat if the broker forgot the group."""
        session = self._session
        try:
            await session.routes.refresh(session.wrap(queue.topic))
        except ClientError as failure:
            logger.debug("route of topic %s not refreshed: %s", queue.topic, failure)
        if isinstance(error, BrokerError) and error.code in _UNKNOWN_GROUP_CODES:
            await session.beat()
