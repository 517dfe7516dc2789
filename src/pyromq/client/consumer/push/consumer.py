"""Consuming with a handler: the consumer pulls, hands out, retries and commits by itself.

    async def handle(message):
        ...

    async with PushConsumer(
        "127.0.0.1:9876", group="billing", handler=handle, subscriptions={"orders": "new || paid"}
    ) as consumer:
        await consumer.closed()

What can be relied on:
1. Every message is handled at least once by the group. It counts as consumed when its handler
   returns; until then it is delivered again, whatever happens to this consumer.
2. Offsets are committed each 5 s, with pulls, when a queue goes to another member and at
   `close`: never beyond the first message that was not handled. A queue goes to another member
   when its handlers have returned (`close_grace`) and its offset is committed, so members that
   come and go repeat nothing (see `handover`).
3. A handler that raises or returns `Retry` gets the message again, later each time, from the
   topic `%RETRY%group` (the message shows its own topic); after `max_reconsume_times` it is a
   dead letter. In order (`Order.ORDERLY`) the queue waits instead.
4. One pull is under way for each queue; pulling pauses while too much of it waits.
5. Whatever fails in the background is logged and tried again; nothing stops silently.

`membership` says which queues are ours, a task for each of them pulls (`_read`), `concurrent`
or `orderly` hands out. Everything on the event loop of its owner, but plain functions as
handlers run in threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ParamSpec, Unpack

from pyromq.client.arguments import check_queues
from pyromq.client.consumer.expressions import check_expressions
from pyromq.client.consumer.handover import MARGIN_SECONDS, Handover
from pyromq.client.consumer.locks import RENEW_SECONDS, VALID_SECONDS, QueueLocks
from pyromq.client.consumer.membership import Membership
from pyromq.client.consumer.offsets import ConsumerOffsets, LocalOffsets, RemoteOffsets
from pyromq.client.consumer.process_queue import ProcessQueue
from pyromq.client.consumer.push.concurrent import ConcurrentHandling
from pyromq.client.consumer.push.handling import Handler, HandlerCaller, check_handler
from pyromq.client.consumer.push.info import running_info
from pyromq.client.consumer.push.options import PushOptions, PushSettings
from pyromq.client.consumer.push.orderly import OrderlyHandling
from pyromq.client.consumer.push.send_back import SendBack
from pyromq.client.consumer.push.stats import TopicStats
from pyromq.client.consumer.queue_access import PullStatus, QueueAccess
from pyromq.client.consumer.start_from import consume_from_where, first_offset
from pyromq.client.consumer.subscription import Subscription, Subscriptions, Wanted, wanted_of
from pyromq.client.consumer.sync import SyncPushConsumer
from pyromq.client.errors import BrokerError, ClientError
from pyromq.client.hooks import Hooks
from pyromq.client.message import check_group, check_topic
from pyromq.client.options import Settings
from pyromq.client.producer.producer import Producer
from pyromq.client.received import ReceivedMessage
from pyromq.client.session.client_requests import ClientRequests
from pyromq.client.session.session import Client, Session
from pyromq.client.trace import TraceRole, message_trace
from pyromq.protocol.message.properties import RETRY_TOPIC
from pyromq.protocol.names import retry_topic
from pyromq.protocol.wire.bodies import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageQueue,
    SubscriptionData,
)
from pyromq.protocol.wire.bodies_consumer import ConsumerRunningInfo
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.remoting.client import RemotingError

_Arguments = ParamSpec("_Arguments")
logger = logging.getLogger(__name__)

#: How long a broker may hold a pull that finds nothing.
LONG_POLL_SECONDS = 15.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 5.0
#: Between pulls that find nothing: a broker that does not hold them must not be flooded.
_EMPTY_PAUSE_SECONDS = 0.05
#: Between attempts to lock a queue that its last owner has not given free yet.
_LOCK_PAUSE_SECONDS = 0.5
#: Between looks at handlers that may hang, at most.
_HUNG_LOOK_SECONDS = 10.0

#: Answers of a broker that has not heard of the group, or not of its subscription.
_UNKNOWN_GROUP_CODES = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    }
)


class PushConsumer(Client):
    """Consumes topics in a group, in the cluster of the NameServers `namesrv`.

    `handler` gets each message; see `handling` for what it can be and return.
    `subscriptions` says what is wanted of each topic: tags (`a || b`, `*`) or a
    `Subscription`; a list of topics wants all of each. For options see `PushOptions`.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        group: str,
        handler: Handler,
        subscriptions: Subscriptions,
        **options: Unpack[PushOptions],
    ) -> None:
        check_group(group)
        settings, common = PushSettings.split(options)
        check_handler(handler, takes_lists=settings.hands_out_lists)
        self.group = group
        self.settings = settings
        self.is_orderly = settings.is_orderly
        self._requests = ClientRequests(self)
        self._session = session = Session(
            Settings.of(namesrv, common, PushOptions),
            self._describe,
            handlers=self._requests.handlers(),
        )
        self._requests.session = session
        self.hooks = Hooks(session.settings.hooks)
        self._trace = message_trace(
            session.settings,
            group,
            TraceRole.CONSUME,
            Producer,
            consume_timeout=settings.consume_timeout,
        )
        if self._trace is not None:
            self.hooks.add(self._trace)
        self._retry_topic = retry_topic(group)
        self._subscriptions = wanted_of(subscriptions)
        if not settings.is_broadcasting:
            self._subscriptions[self._retry_topic] = Wanted(Subscription())
        self._access = QueueAccess(session, group)
        self._offsets: ConsumerOffsets = (
            LocalOffsets(
                session,
                group,
                None if settings.offsets_directory is None else Path(settings.offsets_directory),
            )
            if settings.is_broadcasting
            else RemoteOffsets(self._access)
        )
        self._locks = (
            QueueLocks(session, group)
            if settings.is_orderly and not settings.is_broadcasting
            else None
        )
        self._call = HandlerCaller(
            handler,
            group=group,
            namespace=session.settings.namespace,
            takes_lists=settings.hands_out_lists,
            max_handlers=settings.max_handlers,
            hooks=self.hooks,
        )
        self._handling = self._make_handling()
        self._membership = Membership(
            session,
            group,
            self._subscriptions,
            self._assign,
            strategy=settings.allocate,
            is_broadcasting=settings.is_broadcasting,
        )
        self._handover = (
            None
            if settings.is_orderly or settings.is_broadcasting
            else Handover(
                session,
                group,
                self._membership,
                patience=settings.close_grace + MARGIN_SECONDS,
            )
        )
        self._readings: dict[MessageQueue, _Reading] = {}
        #: Queues that go to another member when their handlers have returned.
        self._leaving: dict[MessageQueue, _Reading] = {}
        self._changes = asyncio.Lock()
        self._change: asyncio.Task[None] | None = None
        self._stats: dict[str, TopicStats] = {}
        self._paused: set[MessageQueue] = set()
        self._is_paused = False
        self._resumed = asyncio.Event()
        self._background: list[asyncio.Task[None]] = []
        self._closing: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()
        self._started_at = 0.0

    @classmethod
    def sync(
        cls: Callable[_Arguments, PushConsumer],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> SyncPushConsumer:
        """The same for programs without an event loop."""
        return SyncPushConsumer(partial(cls, *args, **kwargs))

    # Life

    async def start(self) -> None:
        """Join the group and begin to consume.

        When it comes back, it is known where each queue of ours begins: whatever is sent from
        then on is consumed, also by a new group with `StartFrom.LAST` (unlike with Java's
        clients). A broker that does not say so in `request_timeout` is not waited for, neither
        are a queue that another member has locked and a topic that does not exist yet. Raises
        NameServerError, BrokerError or RemotingError when nobody can be asked, OptionError when
        another consumer in broadcasting has its `instance_name`; the consumer is closed then.
        """
        self._session.start()
        if self._background:
            return
        self._started_at = time.time()
        if self._trace is not None:
            await self._trace.start()
        try:
            await self._offsets.open()
            await self._check_expressions(self._subscriptions)
            await self._membership.join(optional=self._subscriptions.keys())
            await self._begin()
        except BaseException:
            await self.close()
            raise
        timeout = self.settings.consume_timeout
        self._repeat(self.settings.commit_interval, self._commit)
        self._repeat(min(timeout / 4, _HUNG_LOOK_SECONDS), self._look_for_hung)
        if self._locks is not None:
            self._repeat(RENEW_SECONDS, self._renew_locks)

    async def close(self) -> None:
        """Stop pulling, let handlers end (`close_grace`), commit, leave the group.

        Messages that no handler has begun with go to other members, or come after the next
        start. Called by a handler, it comes back at once, and goes on when the handler ends.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        if self._handling.is_worker(asyncio.current_task()):
            return
        # Shielded: whoever gives up waiting must not leave it half closed.
        await asyncio.shield(self._closing)

    async def closed(self) -> None:
        """Come back when the consumer was closed."""
        await self._closed.wait()

    # What it consumes

    async def subscribe(self, topic: str, wanted: str | Subscription = "*") -> None:
        """Consume this topic, too, or something else of it from now on (see `start`).

        All members of a group must have the same subscriptions.
        """
        self._session.check_running()
        check_topic(topic)
        subscribed = Wanted(Subscription.of(wanted))
        await self._check_expressions({topic: subscribed})
        self._subscriptions[topic] = subscribed
        await self._membership.set_topics(self._subscriptions)
        await self._begin()

    async def unsubscribe(self, topic: str) -> None:
        """Consume this topic no more."""
        check_topic(topic)
        self._session.check_running()
        if topic != self._retry_topic and self._subscriptions.pop(topic, None) is not None:
            await self._membership.set_topics(self._subscriptions)

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Pull no more, from these queues or at all; what was pulled is still handled."""
        if queues is None:
            self._is_paused = True
        else:
            self._paused.update(check_queues(queues))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Pull again, from these queues or from all."""
        if queues is None:
            self._is_paused = False
            self._paused.clear()
        else:
            self._paused.difference_update(check_queues(queues))
        resumed, self._resumed = self._resumed, asyncio.Event()
        resumed.set()

    def assignment(self) -> list[MessageQueue]:
        """The queues that are ours now."""
        return sorted(self._readings)

    # What brokers ask (see `client_requests`)

    def members_changed(self) -> None:
        """A broker has said that members came or went."""
        self._membership.members_changed()

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on from these offsets, in queues that are ours; what was pulled is forgotten."""
        async with self._changes:
            ours = {queue: offset for queue, offset in offsets.items() if queue in self._readings}
            for queue in ours:
                reading = self._readings.pop(queue)
                if reading.process_queue is not None:
                    # In order: what a handler ends later must not set the old offset again.
                    reading.process_queue.last_locked = None
                await self._stop_reading(reading, grace=0.0)
            await self._offsets.store(ours)
            for queue, offset in ours.items():
                self._begin_reading(queue, offset)

    def offsets(self) -> dict[MessageQueue, int]:
        """Up to where each queue was consumed."""
        return {
            queue: process_queue.commit_offset for queue, process_queue in self._process_queues()
        }

    def running_info(self) -> ConsumerRunningInfo:
        """Settings, subscriptions, queues and rates."""
        return running_info(
            self._session,
            self.group,
            self.settings,
            started_at=self._started_at,
            subscriptions=self._subscription_data(),
            process_queues={
                queue: reading.process_queue for queue, reading in self._readings.items()
            },
            stats={topic: self._stats_of(topic) for topic in self._subscriptions},
        )

    async def consume_directly(self, message: ReceivedMessage) -> bool:
        """Give a message to the handler: whether it was consumed. Raises what it raises."""
        self._restore_topic(message)
        return await self._call.call_raising(message.queue, message) is None

    async def _check_expressions(self, subscriptions: Mapping[str, Wanted]) -> None:
        await check_expressions(
            self._session,
            self.group,
            {topic: subscribed.subscription for topic, subscribed in subscriptions.items()},
            may_be_missing=True,
        )

    # Queues come and go

    async def _assign(self, queues: Collection[MessageQueue]) -> None:
        """The membership's word: these are ours, no others."""
        self._change = asyncio.create_task(self._take(queues))
        # Shielded: whoever gives up waiting must not leave queues half given up.
        await asyncio.shield(self._change)

    async def _take(self, queues: Collection[MessageQueue]) -> None:
        async with self._changes:
            await self._exchange(queues)

    async def _exchange(self, queues: Collection[MessageQueue]) -> None:
        wanted = set(queues)
        given_up = [reading for queue, reading in self._readings.items() if queue not in wanted]
        for reading in given_up:
            del self._readings[reading.queue]
        grace = self.settings.close_grace
        await asyncio.gather(*(self._stop_reading(reading, grace) for reading in given_up))
        for queue in queues:
            if queue not in self._readings:
                self._begin_reading(queue)
        counts = Counter(queue.topic for queue in self._readings)
        for reading in self._readings.values():
            if reading.process_queue is not None:
                reading.process_queue.limits = self.settings.limits(counts[reading.queue.topic])

    def _begin_reading(self, queue: MessageQueue, offset: int | None = None) -> None:
        reading = self._readings[queue] = _Reading(queue)
        reading.task = asyncio.create_task(self._read(reading, offset))
        reading.task.add_done_callback(lambda _: reading.begun.set())

    async def _begin(self) -> None:
        """Wait until it is known where our queues begin, or until that has failed once."""
        try:
            async with asyncio.timeout(self._session.request_timeout):
                for reading in list(self._readings.values()):
                    await reading.begun.wait()
        except TimeoutError:
            logger.warning("group %s: brokers have not said where to begin yet", self.group)

    async def _stop_reading(self, reading: _Reading, grace: float) -> None:
        """Commit what was consumed of a queue, and let others have it.

        Its handlers have `grace` seconds to return, in the background: our other queues do not
        wait. In order they have all the time they take, since nobody else may begin before.
        """
        reading.task.cancel()
        await asyncio.gather(reading.task, return_exceptions=True)
        process_queue = reading.process_queue
        if process_queue is None:
            if reading.queue not in self._leaving:  # otherwise the lock is still needed
                await self._unlock([reading.queue])
        elif process_queue.handlers and (grace > 0 or self.is_orderly):
            self._leaving[reading.queue] = reading
            reading.task = asyncio.create_task(self._leave(process_queue, grace))
            reading.task.add_done_callback(lambda _: self._left(reading))
        else:
            await self._leave(process_queue, grace)

    async def _leave(self, process_queue: ProcessQueue, grace: float) -> None:
        queue = process_queue.queue
        await self._handling.leave(process_queue, grace)
        # A lock that was lost means that others set the offset now.
        if self._locks is None or self._has_lock(process_queue):
            await self._offsets.store({queue: process_queue.commit_offset})
        self._offsets.forget(queue)
        self._access.forget(queue)
        await self._unlock([queue])

    async def _unlock(self, queues: Collection[MessageQueue]) -> None:
        if self._locks is not None:
            await self._locks.unlock(queues)
        elif self._handover is not None:
            await self._handover.give(queues)

    def _left(self, reading: _Reading) -> None:
        if self._leaving.get(reading.queue) is reading:
            del self._leaving[reading.queue]

    # Pulling

    async def _read(self, reading: _Reading, offset: int | None) -> None:
        """Pull one queue for as long as it is ours; in a task of its own."""
        queue = reading.queue
        if queue in self._leaving:
            reading.begun.set()
            await asyncio.wait([self._leaving[queue].task])
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                if reading.process_queue is None:
                    reading.process_queue = await self._first_look(reading, offset)
                    reading.begun.set()
                    if reading.process_queue is None:
                        await asyncio.sleep(_LOCK_PAUSE_SECONDS)
                        continue
                await self._pull(reading, reading.process_queue)
            except (RemotingError, ClientError) as error:
                logger.warning("%s: %s; next attempt in %g s", _name(queue), error, pause)
                reading.begun.set()
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                await self._recover(queue, error)
            except Exception:
                # A mistake of ours must not end the consumption of a queue silently.
                logger.exception("%s: next attempt in %g s", _name(queue), pause)
                reading.begun.set()
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                pause = _FIRST_PAUSE_SECONDS

    async def _first_look(self, reading: _Reading, offset: int | None) -> ProcessQueue | None:
        """Where to begin; None while another member has the queue's lock."""
        queue = reading.queue
        locked_at = None
        if self._handover is not None:
            await self._handover.take(queue, partial(self._look_ahead, reading, offset))
        elif self._locks is not None:
            locked_at = time.monotonic()
            if not await self._locks.lock(queue):
                return None
        if offset is None:
            offset = await self._offsets.load(queue)
        if offset is None:
            offset = reading.first_offset
        if offset is None:
            offset = await first_offset(self._access, queue, self.settings.start_from)
        count = sum(other.topic == queue.topic for other in self._readings)
        process_queue = ProcessQueue(queue, offset, self.settings.limits(count))
        process_queue.last_locked = locked_at
        return process_queue

    async def _look_ahead(self, reading: _Reading, offset: int | None) -> None:
        """Find out where to begin if the queue's owner dies before it commits for the first time.

        Without that, a group that starts from the end would lose what is sent meanwhile.
        """
        queue = reading.queue
        if offset is None and await self._offsets.load(queue) is None:
            reading.first_offset = await first_offset(self._access, queue, self.settings.start_from)
        reading.begun.set()

    async def _pull(self, reading: _Reading, process_queue: ProcessQueue) -> None:
        """One pull, and what it brings to the handlers; waits while there is no room."""
        queue = process_queue.queue
        while self._is_paused or queue in self._paused:
            await self._resumed.wait()
        while process_queue.is_full():
            room = asyncio.Event()
            process_queue.when_room = room.set
            await room.wait()
        subscribed = self._subscriptions.get(queue.topic)
        if subscribed is None:  # not wanted any more: the queue is about to go
            await asyncio.sleep(_EMPTY_PAUSE_SECONDS)
            return
        began = process_queue.last_pulled = time.monotonic()
        asked = process_queue.next_offset
        result = await self._access.pull(
            queue,
            asked,
            subscribed.subscription,
            version=subscribed.version,
            max_messages=self.settings.pull_batch_size,
            wait=LONG_POLL_SECONDS,
            commit_offset=process_queue.commit_offset if self._may_commit(process_queue) else None,
        )
        if self._is_paused or queue in self._paused:
            return  # pulled again when it goes on
        messages = result.messages
        if not messages:
            if result.status is PullStatus.OFFSET_ILLEGAL:
                logger.warning(
                    "%s: offset %d is outside of %d..%d, goes on at %d",
                    _name(queue),
                    asked,
                    result.min_offset,
                    result.max_offset,
                    result.next_offset,
                )
            if result.next_offset < asked and process_queue.count:
                # The broker has lost messages that we have: what follows counts anew.
                await self._handling.leave(process_queue)
                anew = ProcessQueue(queue, result.next_offset, process_queue.limits)
                anew.last_locked = process_queue.last_locked
                reading.process_queue = anew
                return
            process_queue.put([], result.next_offset)
            if result.next_offset == asked or result.status is PullStatus.OFFSET_ILLEGAL:
                await asyncio.sleep(_EMPTY_PAUSE_SECONDS)
            return
        stats = self._stats_of(queue.topic)
        stats.pulls += 1
        stats.pulled += len(messages)
        stats.pull_seconds += time.monotonic() - began
        if subscribed.tags:
            # Brokers select by the tags' hashes; only the text decides.
            tags = subscribed.tags
            messages = [message for message in messages if message.tags in tags]
        elif queue.topic == self._retry_topic:
            for message in messages:
                self._restore_topic(message)
        # Whatever a broker says: on, and behind what it gave.
        following = max(result.next_offset, result.messages[-1].queue_offset + 1)
        messages = process_queue.put(messages, following)
        if messages:
            self._handling.submit(process_queue, stats, messages)
        if self.settings.pull_interval:
            await asyncio.sleep(self.settings.pull_interval)

    async def _recover(self, queue: MessageQueue, error: Exception) -> None:
        """After a failure: routes may be others, or the broker has forgotten us."""
        session = self._session
        try:
            await session.routes.refresh(session.wrap(queue.topic))
        except ClientError as failure:
            logger.debug("route of %s could not be refreshed: %s", queue.topic, failure)
        if isinstance(error, BrokerError) and error.code in _UNKNOWN_GROUP_CODES:
            await session.beat()

    def _restore_topic(self, message: ReceivedMessage) -> None:
        """A message from the retry topic shows the topic that it was sent to."""
        if message.topic == self._retry_topic:
            topic = message.all_properties.get(RETRY_TOPIC)
            if topic:
                message.topic = self._session.unwrap(topic)

    # In the background

    def _repeat(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        async def forever() -> None:
            while True:
                await asyncio.sleep(seconds)
                try:
                    await work()
                except Exception:
                    logger.exception("group %s: tried again in %g s", self.group, seconds)

        self._background.append(asyncio.create_task(forever()))

    async def _commit(self) -> None:
        now = time.monotonic()
        for stats in self._stats.values():
            stats.look(now)
        # Whoever has taken a queue's lock from us may be further on.
        await self._offsets.store(
            {
                queue: process_queue.commit_offset
                for queue, process_queue in self._process_queues()
                if self._locks is None or self._has_lock(process_queue)
            }
        )

    async def _look_for_hung(self) -> None:
        self._handling.look_for_hung(self.settings.consume_timeout)

    async def _renew_locks(self) -> None:
        assert self._locks is not None
        async with self._changes:
            await self._renew_held(self._locks)

    async def _renew_held(self, locks: QueueLocks) -> None:
        asked_at = time.monotonic()
        held = {
            queue: reading.process_queue
            for queue, reading in [*self._readings.items(), *self._leaving.items()]
            if reading.process_queue is not None
        }
        for queue, is_ours in (await locks.renew(held)).items():
            process_queue = held[queue]
            if is_ours and self._has_lock(process_queue):
                process_queue.last_locked = asked_at
                continue
            # Somebody else had it, or may have had it: only the broker knows how far the
            # group is now.
            process_queue.last_locked = None
            reading = self._readings.get(queue)
            if reading is not None and reading.process_queue is process_queue:
                logger.warning("%s: the lock was lost, begins anew", _name(queue))
                await self._stop_reading(self._readings.pop(queue), grace=0.0)
                self._begin_reading(queue)

    def _process_queues(self) -> Iterator[tuple[MessageQueue, ProcessQueue]]:
        for queue, reading in self._readings.items():
            if reading.process_queue is not None:
                yield queue, reading.process_queue

    def _may_commit(self, process_queue: ProcessQueue) -> bool:
        """Whether a pull may set the group's offset."""
        if self._locks is not None:
            return self._has_lock(process_queue)
        return not self.settings.is_broadcasting

    def _has_lock(self, process_queue: ProcessQueue) -> bool:
        locked = process_queue.last_locked
        return locked is not None and time.monotonic() - locked < VALID_SECONDS

    # Helpers

    async def _close(self) -> None:
        try:
            await self._end_handling()
        finally:
            await self._session.close(consumer_group=self._session.wrap(self.group))
            if self._trace is not None:
                await self._trace.close()
            self._offsets.close()
            self._closed.set()

    async def _end_handling(self) -> None:
        await self._membership.stop()
        if self._change is not None:
            await asyncio.wait([self._change])
        await self._offsets.idle()  # a commit that is cancelled may reach its broker after the last
        for task in self._background:
            task.cancel()
        for reading in self._readings.values():
            reading.task.cancel()
        await asyncio.gather(
            *self._background,
            *(reading.task for reading in self._readings.values()),
            return_exceptions=True,
        )
        await self._handling.stop(self.settings.close_grace)
        if self._session.running:
            await self._commit()
            if self._leaving:
                tasks = [reading.task for reading in self._leaving.values()]
                await asyncio.wait(tasks, timeout=self._session.request_timeout)
            if self._handover is not None:
                await self._handover.close()
            elif self._readings:
                await self._unlock(self._readings)
        for reading in self._leaving.values():
            reading.task.cancel()
        self._readings.clear()

    def _make_handling(self) -> ConcurrentHandling | OrderlyHandling:
        settings = self.settings
        send_back = (
            None
            if settings.is_broadcasting
            else SendBack(
                self._session,
                self.group,
                settings.reconsume_limit,
                unit_mode=settings.unit_mode,
            )
        )
        if not settings.is_orderly:
            return ConcurrentHandling(
                self._call,
                send_back,
                max_handlers=settings.max_handlers,
                batch_size=settings.messages_per_call,
            )
        return OrderlyHandling(
            self._call,
            send_back,
            None if settings.is_broadcasting else self._has_lock,
            max_handlers=settings.max_handlers,
            batch_size=settings.messages_per_call,
            suspend=settings.suspend,
            max_reconsume_times=settings.reconsume_limit,
        )

    def _stats_of(self, topic: str) -> TopicStats:
        stats = self._stats.get(topic)
        if stats is None:
            stats = self._stats[topic] = TopicStats()
            stats.look(time.monotonic())
        return stats

    def _describe(self, client_id: str) -> HeartbeatData:
        consumer = ConsumerData(
            self._session.wrap(self.group),
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=self.settings.model,
            consume_from_where=consume_from_where(self.settings.start_from),
            subscription_data_set=self._subscription_data(),
            unit_mode=self.settings.unit_mode,
        )
        return HeartbeatData(client_id, consumer_data_set=[consumer])

    def _subscription_data(self) -> list[SubscriptionData]:
        return [
            subscribed.subscription.data(self._session.wrap(topic), subscribed.version)
            for topic, subscribed in self._subscriptions.items()
        ]


class _Reading:
    """A queue that is ours."""

    __slots__ = ("begun", "first_offset", "process_queue", "queue", "task")

    task: asyncio.Task[None]

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        #: None until it is known where to begin.
        self.process_queue: ProcessQueue | None = None
        #: Where to begin if the group has no offset, if that was found out already.
        self.first_offset: int | None = None
        #: Set when that was tried for the first time.
        self.begun = asyncio.Event()


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic}:{queue.broker_name}:{queue.queue_id}"
