"""Reading topics at the reader's own pace, as a member of a group or on its own.

    async with LitePullConsumer("127.0.0.1:9876", group="billing") as consumer:
        await consumer.subscribe({"orders": "new || paid"})
        async for message in consumer:
            ...

`subscribe` joins the group, which divides the topics' queues among its members; without a
group it reads all of them and nothing is remembered. `assign` reads exactly the queues that
it is given, and makes no member: a group's members keep their shares (Java's consumer counts
as a member then, and takes queues from others that it never reads).

Messages come by `async for` (over the consumer, or over `batches()` for lists) or by `poll`.
What can be relied on:
1. A queue's messages come in its order; a list has messages of one queue.
2. A message counts as consumed when the next one is asked for (of a list: when the next list
   is), or when the `async with` block ends without an exception. Only consumed messages are
   committed (each 5 s, when a queue goes to another member, and at the end): a consumer that
   dies leaves its messages to be delivered again. With `auto_commit=False`, `commit` does it.
   A queue goes to another member when the reader is done with the messages it has of it (10 s
   at most) and their offset is committed, so members that come and go repeat nothing.
3. One pull is under way for each queue, ahead of the reader; pulling pauses while too much
   waits, of a queue or of all.
4. Whatever fails in the background is logged and tried again. What stays refused (no
   permission, an expression that no broker can read) is raised to the reader, each time.
5. `close` ends a waiting `async for`.

`membership` says which queues are ours, `queue_readers` pull them, `read_ahead` holds
what waits. On the event loop of its owner; one reader at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar, Unpack

from pyromq.client.arguments import (
    check_callable,
    check_offset,
    check_queue,
    check_queues,
    check_seconds,
    check_time,
    refusal,
)
from pyromq.client.client import Client
from pyromq.client.consumer.expressions import check_expressions
from pyromq.client.consumer.handover import MARGIN_SECONDS, Handover
from pyromq.client.consumer.lite_pull.options import LitePullOptions, LitePullSettings
from pyromq.client.consumer.lite_pull.read_ahead import Batch, ReadAhead, Reading
from pyromq.client.consumer.lite_pull.readers import QueueReaders, name_of
from pyromq.client.consumer.lite_pull.requests import AskedReader
from pyromq.client.consumer.membership import Membership
from pyromq.client.consumer.offsets import LocalOffsets
from pyromq.client.consumer.pull_request import ANONYMOUS_GROUP
from pyromq.client.consumer.queue_access import QueueAccess
from pyromq.client.consumer.start_from import StartFrom, consume_from_where, first_offset
from pyromq.client.consumer.subscription import Subscription, Subscriptions, Wanted, wanted_of
from pyromq.client.errors import BrokerError, ClientError, ClientStateError, OptionError
from pyromq.client.handler_threads import failure_of
from pyromq.client.hooks import Consuming, Hooks
from pyromq.client.message import check_group, check_topic
from pyromq.client.options import Settings
from pyromq.client.producer.producer import Producer
from pyromq.client.received import ReceivedMessage
from pyromq.client.session.client_requests import ClientRequests
from pyromq.client.session.session import Session
from pyromq.client.trace import TraceRole, message_trace
from pyromq.protocol.wire.bodies import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageQueue,
    SubscriptionData,
)
from pyromq.remoting.client import RemotingError

if TYPE_CHECKING:
    from pyromq.client.sync import SyncLitePullConsumer

logger = logging.getLogger(__name__)

T = TypeVar("T")
_Arguments = ParamSpec("_Arguments")

#: Told of queues, sorted; a plain function or a coroutine function.
AssignmentListener = Callable[[list[MessageQueue]], Awaitable[None] | None]

#: How long a listener may take before the queues change without it.
LISTENER_SECONDS = 30.0
#: How long a queue that goes to another member waits for the reader.
READER_SECONDS = 10.0


class LitePullConsumer(Client):
    """Reads topics in the cluster of the NameServers `namesrv`.

    `group` owns the committed offsets; without one nothing is committed. For options see
    `LitePullOptions`.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        group: str | None = None,
        **options: Unpack[LitePullOptions],
    ) -> None:
        if group is not None:
            check_group(group)
        settings, common = LitePullSettings.split(options, group)
        self.group = group
        self.settings = settings
        self._auto_commit = settings.auto_commit and group is not None
        self._readings: dict[MessageQueue, Reading] = {}
        asked = AskedReader(
            group or ANONYMOUS_GROUP,
            settings,
            self._readings,
            subscriptions=self._subscription_data,
            rebalance=self._members_changed,
            go_on_from=self._go_on_from,
        )
        requests = ClientRequests(asked)
        self._session = session = Session(
            Settings.of(namesrv, common, LitePullOptions),
            self._describe,
            handlers=requests.handlers(),
        )
        asked.session = requests.session = session
        self.hooks = Hooks(session.settings.hooks)
        self._trace = None
        if group is not None:
            self._trace = message_trace(session.settings, group, TraceRole.CONSUME, Producer)
        if self._trace is not None:
            self.hooks.add(self._trace)
        self._access = QueueAccess(session, group)
        directory = settings.offsets_directory
        self._local = (
            LocalOffsets(session, group, None if directory is None else Path(directory))
            if settings.is_broadcasting and group is not None
            else None
        )
        self._wanted: dict[str, Wanted] = {}
        self._membership: Membership | None = None
        #: Of a group that divides queues among its members.
        self._handover: Handover | None = None
        #: Queues that go to another member when the reader is done with what it has of them.
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._is_assigned = False
        self._on_assigned: AssignmentListener | None = None
        self._on_revoked: AssignmentListener | None = None
        #: When we began to read, topics of which we had queues, and queues that came later.
        self._known_topics: set[str] = set()
        self._late: set[MessageQueue] = set()
        #: Without a group: where queues go on that were away, as those of a broker at restart.
        self._left: dict[MessageQueue, int] = {}
        self._subscribed_at = datetime.now()
        self._changing = asyncio.Lock()
        self._committing = asyncio.Lock()
        self._ahead = ReadAhead(
            settings.limits,
            settings.max_cached_in_all,
            begin=self._consuming,
            end=self._consumed,
        )
        self._readers = QueueReaders(
            self._session,
            self._access,
            self._ahead,
            self._wanted,
            pull_batch_size=settings.pull_batch_size,
            find_start=self._find_start,
            arrived=self._wake_reader,
            refused=self._refused,
        )
        #: The reader that waits for messages, and what it must be told instead of one.
        self._arrival: asyncio.Future[None] | None = None
        self._failure: BrokerError | None = None
        self._hooked: Consuming | None = None
        self._commits: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    def sync(
        cls: Callable[_Arguments, LitePullConsumer],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> SyncLitePullConsumer:
        """The same for programs without an event loop."""
        from pyromq.client.sync import SyncLitePullConsumer

        return SyncLitePullConsumer(partial(cls, *args, **kwargs))

    # Life

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error_type is None:
            self._ahead.settle()
        else:
            self._ahead.discard()
        await self.close()

    async def start(self) -> None:
        """Make it ready; nothing is connected before the first question.

        Raises OptionError when another consumer in broadcasting has its `instance_name`.
        """
        self._session.start()
        if self._local is not None:
            try:
                await self._local.open()
            except BaseException:
                await self.close()
                raise
        if self._trace is not None:
            await self._trace.start()

    async def close(self) -> None:
        """Commit what was consumed, leave the group, close the connections.

        What was handed out last is not counted as consumed: ask for that with `commit`, or
        leave the `async with` block.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
            self._wake_reader()
        # Shielded: whoever gives up waiting must not leave it half closed.
        await asyncio.shield(self._closing)

    # What it reads

    async def subscribe(
        self,
        subscriptions: Subscriptions,
        *,
        on_assigned: AssignmentListener | None = None,
        on_revoked: AssignmentListener | None = None,
    ) -> None:
        """Read these topics, too: the share of their queues that the group leaves to us.

        A topic, several, or a table that says what is wanted of each: tags (`a || b`, `*`) or
        a `Subscription`. Raises TopicNotFoundError for a topic that does not exist, BrokerError
        for an expression that its brokers cannot read. When it comes back, it is known where our
        queues begin, unless a broker does not say so in `request_timeout`: what is sent from then
        on is read, also with `StartFrom.LAST`.

        `on_assigned` is told of new queues before the first message is pulled, `on_revoked` of
        queues that go to another member (or are given up by `close`) while they are still
        ours: `commit` in it counts what was handed out. A listener that raises is logged.
        """
        self._session.check_running()
        if self._is_assigned:
            raise ClientStateError("assign was called: a consumer either subscribes or assigns")
        for name, listener in (("on_assigned", on_assigned), ("on_revoked", on_revoked)):
            if listener is not None:
                check_callable(name, listener)
        wanted = wanted_of(subscriptions)
        if not wanted:
            raise OptionError("no topic: subscribe needs at least one")
        await self._check_expressions(wanted)
        self._on_assigned = on_assigned or self._on_assigned
        self._on_revoked = on_revoked or self._on_revoked
        if self._membership is not None:
            for topic in wanted:
                await self._session.routes.get(self._session.wrap(topic))
            self._want(wanted)
            await self._membership.set_topics(self._wanted)
            await self._readers.until_begun(self._session.request_timeout)
            return
        self._subscribed_at = datetime.now()
        self._wanted.update(wanted)
        self._membership = membership = Membership(
            self._session,
            self.group or ANONYMOUS_GROUP,
            wanted,
            self._take_share,
            strategy=self.settings.allocate,
            is_broadcasting=self._is_for_all,
        )
        if self.group is not None and not self._is_for_all:
            self._handover = Handover(
                self._session, self.group, membership, patience=READER_SECONDS + MARGIN_SECONDS
            )
        try:
            await membership.join()
        except BaseException:
            self._membership = None
            self._wanted.clear()
            await self._take([])
            if self._handover is not None:
                await self._handover.close()
                self._handover = None
            raise
        await self._readers.until_begun(self._session.request_timeout)

    async def unsubscribe(self, *topics: str) -> None:
        """Read these topics no more; what was consumed of them is committed."""
        self._session.check_running()
        if self._membership is None:
            raise ClientStateError("nothing was subscribed to")
        for topic in topics:
            check_topic(topic)
        for topic in topics:
            self._wanted.pop(topic, None)
            self._known_topics.discard(topic)
        await self._membership.set_topics(self._wanted)

    async def assign(
        self,
        queues: Collection[MessageQueue],
        subscriptions: Mapping[str, str | Subscription] | None = None,
    ) -> None:
        """Read exactly these queues from now on; queues given up are committed first.

        `subscriptions` says what is wanted of a topic; of others, everything is.
        """
        self._session.check_running()
        if self._membership is not None:
            raise ClientStateError("subscribe was called: a consumer either subscribes or assigns")
        queues = check_queues(queues)
        wanted = {queue.topic: Wanted(Subscription()) for queue in queues}
        wanted |= wanted_of({} if subscriptions is None else subscriptions)
        await self._check_expressions(wanted)
        self._is_assigned = True
        self._want(wanted)
        await self._take(queues)
        await self._readers.until_begun(self._session.request_timeout)

    def assignment(self) -> list[MessageQueue]:
        """The queues that are being read."""
        return sorted(self._readings)

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Hand out nothing more of these queues, or of all that are ours; they stay ours."""
        for reading in self._readings_of(queues):
            self._ahead.pause(reading)

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Go on with these queues, or with all."""
        for reading in self._readings_of(queues):
            self._ahead.resume(reading)
        self._readers.room()
        self._wake_reader()

    # Messages

    async def poll(self, timeout: float | None = 5.0) -> list[ReceivedMessage]:  # noqa: ASYNC109
        """The next messages of one queue, in order; empty when none came in time.

        Those of the call before count as consumed. `timeout=None` waits for ever, or until
        the consumer is closed. Nobody needs to call often: heartbeats and commits go on by
        themselves.
        """
        if timeout is not None:
            check_seconds("timeout", timeout, may_be_zero=True)
            timeout = min(timeout, threading.TIMEOUT_MAX)
        if self._closing is not None:
            raise ClientStateError("this client was closed: make a new one")
        return await self._next(self._ahead.next_batch, timeout) or []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message, as soon as there is one."""
        if self._session.running and self._failure is None and self._arrival is None:
            message = self._ahead.next_message()
            if message is not None:
                return message
        message = await self._next(self._ahead.next_message)
        if message is None:
            raise StopAsyncIteration
        return message

    def batches(self) -> Batches:
        """Messages as lists, each of one queue: `async for messages in consumer.batches()`."""
        return Batches(self)

    # Offsets

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on from `offset`; raises OptionError when the queue has no such offset."""
        check_offset(offset)
        self._reading_of(queue)
        first = max(0, await self._access.min_offset(queue))
        last = await self._access.max_offset(queue)
        if not first <= offset <= last:
            raise OptionError(f"offset={offset} of {name_of(queue)}: it has {first} to {last}")
        await self._go_on_from(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on from the oldest message that is still there."""
        self._reading_of(queue)
        await self._go_on_from(queue, max(0, await self._access.min_offset(queue)))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with what is sent from now on."""
        self._reading_of(queue)
        await self._go_on_from(queue, await self._access.max_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, when: datetime) -> None:
        """Go on with what was stored at that time or later (without a time zone: local)."""
        check_time("when", when)
        self._reading_of(queue)
        await self._go_on_from(queue, await self.offset_by_time(queue, when))

    def position(self, queue: MessageQueue) -> int | None:
        """The offset of the next message to be handed out; None when that is not known yet."""
        return self._reading_of(queue).position

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Let the group go on behind what was handed out, or from these offsets.

        Comes back when every broker has it; raises what the first failure was. With
        `auto_commit`, offsets of one's own last until the next commit.
        """
        self._session.check_running()
        self._required_group()
        if offsets is None:
            self._ahead.settle()
            failures = await self._commit(self._readings.values())
            if self._leaving:  # settled, so each commits by itself now
                await asyncio.wait(self._leaving.values())
        else:
            _check_offsets(offsets)
            failures = await self._store(dict(offsets))
            for queue, offset in offsets.items():
                if queue in self._readings and queue not in failures:
                    self._readings[queue].committed = offset
        for failure in failures.values():
            raise failure

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset from which the group goes on, None when it never consumed from `queue`."""
        check_queue(queue)
        self._session.check_running()
        self._required_group()
        return await self._load(queue)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read now."""
        check_topic(topic)
        self._session.check_running()
        return await self._access.queues(topic)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message that is still there."""
        check_queue(queue)
        return await self._access.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        check_queue(queue)
        return await self._access.max_offset(queue)

    async def offset_by_time(self, queue: MessageQueue, when: datetime) -> int:
        """The offset of the first message that was stored at that time or later.

        Brokers round to the nearest message, which may be an earlier one.
        """
        check_queue(queue)
        check_time("when", when)
        return max(0, await self._access.offset_by_time(queue, int(when.timestamp() * 1000)))

    # Queues come and go

    @property
    def _is_for_all(self) -> bool:
        """Whether we read every queue, whoever else is there."""
        return self.group is None or self._local is not None

    async def _check_expressions(self, wanted: Mapping[str, Wanted]) -> None:
        await check_expressions(
            self._session,
            self.group or ANONYMOUS_GROUP,
            {topic: new.subscription for topic, new in wanted.items()},
        )

    def _want(self, wanted: Mapping[str, Wanted]) -> None:
        """Take subscriptions; pulls that wait with another one begin anew."""
        for topic, new in wanted.items():
            old = self._wanted.get(topic)
            if old is not None and old.subscription == new.subscription:
                continue
            self._wanted[topic] = new
            for reading in self._readings.values():
                if old is not None and reading.queue.topic == topic:
                    self._readers.begin(reading)

    async def _take_share(self, queues: Collection[MessageQueue]) -> None:
        """The membership's word: these are ours, no others."""
        if self._is_for_all:
            self._late.update(queue for queue in queues if queue.topic in self._known_topics)
            self._late.difference_update(self._readings)
            self._known_topics.update(queue.topic for queue in queues)
        await self._take(queues)

    async def _take(self, queues: Collection[MessageQueue]) -> None:
        async with self._changing:
            wanted = dict.fromkeys(queues)
            # Dropped are those of a call that was cancelled half-way.
            await self._give_up(
                [r for q, r in self._readings.items() if q not in wanted or r.is_dropped]
            )
            new = [queue for queue in wanted if queue not in self._readings]
            self._readings |= {queue: Reading(queue) for queue in new}
            if new and self._on_assigned is not None:
                await self._tell(self._on_assigned, new)
            for reading in self._readings.values():
                if not self._readers.is_reading(reading):
                    self._readers.begin(reading)
            if self._commits is None and self._readings and self._auto_commit:
                self._commits = asyncio.create_task(self._commit_forever())

    async def _give_up(self, readings: list[Reading]) -> None:
        if not readings:
            return
        if self._on_revoked is not None:
            await self._tell(self._on_revoked, [reading.queue for reading in readings])
        # The listener may have gone on from another offset.
        readings = [self._readings[reading.queue] for reading in readings]
        busy: list[Reading] = []
        try:
            for reading in readings:
                position = reading.position
                if self.group is None and self._membership is not None and position is not None:
                    self._left[reading.queue] = position
                if self._handover is None or not self._auto_commit or self._closing is not None:
                    self._ahead.drop(reading)
                else:
                    self._ahead.pause(reading)
            await asyncio.gather(*map(self._readers.stop, readings))
            for reading in readings:
                if reading.is_free:
                    self._ahead.drop(reading)
                elif not reading.is_dropped:
                    busy.append(reading)
            if self._auto_commit and await self._commit(readings):
                # There is no next time: a broker that was slow gets another chance at once.
                await self._commit(readings)
        except BaseException:
            for reading in readings:
                self._ahead.drop(reading)
            raise
        for reading in readings:
            del self._readings[reading.queue]
            self._access.forget(reading.queue)
        for reading in busy:
            leaving = asyncio.create_task(self._leave(reading))
            self._leaving[reading.queue] = leaving
            leaving.add_done_callback(partial(self._has_left, reading.queue))
        if self._handover is not None:
            await self._handover.give(r.queue for r in readings if r.queue not in self._leaving)
        self._readers.room()

    async def _leave(self, reading: Reading) -> None:
        """Wait for the reader, commit, let others have the queue."""
        if not reading.is_free:
            free = asyncio.Event()
            reading.when_free = free.set
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READER_SECONDS):
                    await free.wait()
        self._ahead.drop(reading)
        await self._commit([reading])
        assert self._handover is not None
        await self._handover.give([reading.queue])

    def _has_left(self, queue: MessageQueue, task: asyncio.Task[None]) -> None:
        if self._leaving.get(queue) is task:
            del self._leaving[queue]

    async def _tell(self, listener: AssignmentListener, queues: list[MessageQueue]) -> None:
        try:
            async with asyncio.timeout(LISTENER_SECONDS):
                told = listener(sorted(queues))
                if told is not None:
                    await told
        except BaseException as error:
            logger.error(
                "listener %r failed: the queues change without it",
                listener,
                exc_info=failure_of(error),
            )

    async def _go_on_from(self, queue: MessageQueue, offset: int) -> None:
        """Forget what waits of a queue, begin anew; what is in hand does not count."""
        old = self._reading_of(queue)
        self._ahead.drop(old)
        new = self._readings[queue] = Reading(queue, offset)
        new.is_paused = old.is_paused
        self._readers.begin(new)
        await self._readers.stop(old)
        self._readers.room()

    # Handing out

    async def _next(self, take: Callable[[], T | None], timeout: float | None = None) -> T | None:  # noqa: ASYNC109
        """What `take` gives as soon as it gives something; None when time is up, or closed."""
        if self._arrival is not None:
            raise ClientStateError("somebody is waiting for messages already: one reader at a time")
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._closing is None:
            self._session.check_running()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                self._ahead.settle()
                raise failure
            item = take()
            if item is not None:
                return item
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                await asyncio.sleep(0)  # whoever asks in a loop must not stop the pulls
                return take() if self._closing is None else None
            await self._until_arrival(left)
        return None

    async def _until_arrival(self, seconds: float | None) -> None:
        loop = asyncio.get_running_loop()
        arrival = self._arrival = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _resolve, arrival)
        try:
            await arrival
        finally:
            self._arrival = None
            if timer is not None:
                timer.cancel()

    def _wake_reader(self) -> None:
        if self._arrival is not None:
            _resolve(self._arrival)

    def _refused(self, error: BrokerError) -> None:
        self._failure = error
        self._wake_reader()

    def _consuming(self, batch: Batch) -> None:
        self._readers.room()
        if self.hooks.consume:
            self._hooked = Consuming(
                self.group or ANONYMOUS_GROUP,
                self._session.settings.namespace,
                batch.messages,
                batch.reading.queue,
                began=time.monotonic(),
            )
            self.hooks.before_consume(self._hooked)

    def _consumed(self, _batch: Batch, is_consumed: bool) -> None:
        if self._hooked is not None:
            self._hooked.success = is_consumed
            self.hooks.after_consume(self._hooked)
            self._hooked = None

    # Offsets: loading and committing

    async def _find_start(self, reading: Reading) -> None:
        queue = reading.queue
        first: list[int] = []

        async def look_ahead() -> None:
            """Find out where to begin if the queue's owner dies before its first commit."""
            if await self._load(queue) is None:
                first.append(await first_offset(self._access, queue, self.settings.start_from))
            reading.begun.set()

        if queue in self._leaving:
            reading.begun.set()
            await asyncio.wait([self._leaving[queue]])
        if self._handover is not None:
            await self._handover.take(queue, look_ahead)
        committed = await self._load(queue) if self.group is not None else None
        offset = self._left.get(queue) if committed is None else committed
        if offset is None and first:
            offset = first[0]
        if offset is None:
            start = self.settings.start_from
            if start is StartFrom.LAST and queue in self._late:
                # It came while we were reading: what it got before we saw it is for us, too.
                start = self._subscribed_at
            offset = await first_offset(self._access, queue, start)
        if reading.next_offset is None:
            reading.next_offset = reading.consumed = offset
            reading.committed = committed

    async def _load(self, queue: MessageQueue) -> int | None:
        if self._local is not None:
            return await self._local.load(queue)
        return await self._access.committed(queue)

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.commit_interval)
            try:
                await self._commit(self._readings.values())
            except Exception:
                logger.exception("offsets not committed; next attempt later")

    async def _commit(self, readings: Iterable[Reading]) -> dict[MessageQueue, Exception]:
        """Commit what was consumed of these; failures are logged, the next time tries again.

        One at a time: brokers do not keep the order of commits that are under way together.
        """
        async with self._committing:
            changed: dict[MessageQueue, int] = {}
            committed: list[tuple[Reading, int]] = []
            for reading in readings:
                offset = reading.commit_offset
                if offset is not None and offset != reading.committed:
                    changed[reading.queue] = offset
                    committed.append((reading, offset))
            failures = await self._store(changed)
            for reading, offset in committed:
                if reading.queue not in failures:
                    reading.committed = offset
            return failures

    async def _store(self, offsets: dict[MessageQueue, int]) -> dict[MessageQueue, Exception]:
        failures: dict[MessageQueue, Exception] = {}
        if self._local is not None:
            await self._local.store(offsets)
            return failures

        async def store(queue: MessageQueue, offset: int) -> None:
            try:
                await self._access.commit(queue, offset)
            except (RemotingError, ClientError) as error:
                logger.warning("offset %d of %s not committed: %s", offset, name_of(queue), error)
                failures[queue] = error

        await asyncio.gather(*(store(queue, offset) for queue, offset in offsets.items()))
        return failures

    # Helpers, in call order.

    async def _close(self) -> None:
        if self._membership is not None:
            await self._membership.stop()
        if self._commits is not None:
            async with self._committing:  # not in the middle of one
                self._commits.cancel()
            await asyncio.gather(self._commits, return_exceptions=True)
        if self._session.running:
            async with self._changing:
                await self._give_up(list(self._readings.values()))
        self._ahead.discard()
        if self._leaving:
            await asyncio.wait(self._leaving.values(), timeout=self._session.request_timeout)
        if self._handover is not None and self._session.running:
            await self._handover.close()
        await self._session.close(
            consumer_group=(
                self._session.wrap(self.group)
                if self.group is not None and self._membership is not None
                else None
            )
        )
        if self._trace is not None:
            await self._trace.close()
        if self._local is not None:
            self._local.close()

    def _describe(self, client_id: str) -> HeartbeatData:
        if self.group is None or self._membership is None:
            return HeartbeatData(client_id)
        consumer = ConsumerData(
            self._session.wrap(self.group),
            consume_type=ConsumeType.CONSUME_ACTIVELY,
            message_model=self.settings.model,
            consume_from_where=consume_from_where(self.settings.start_from),
            subscription_data_set=self._subscription_data(),
        )
        return HeartbeatData(client_id, consumer_data_set=[consumer])

    def _subscription_data(self) -> list[SubscriptionData]:
        return [
            wanted.subscription.data(self._session.wrap(topic), wanted.version)
            for topic, wanted in self._wanted.items()
        ]

    def _members_changed(self) -> None:
        if self._membership is not None:
            self._membership.members_changed()

    def _required_group(self) -> None:
        if self.group is None:
            raise ClientStateError(
                "this consumer has no group: give one to LitePullConsumer(group=)"
            )

    def _reading_of(self, queue: MessageQueue) -> Reading:
        check_queue(queue)
        self._session.check_running()
        reading = self._readings.get(queue)
        if reading is None:
            raise ClientStateError(f"{name_of(queue)} is not ours now: see assignment()")
        return reading

    def _readings_of(self, queues: Iterable[MessageQueue] | None) -> list[Reading]:
        if queues is None:
            return list(self._readings.values())
        return [self._reading_of(queue) for queue in check_queues(queues)]


class Batches:
    """Messages of a consumer as lists, for `async for`."""

    def __init__(self, consumer: LitePullConsumer) -> None:
        self._consumer = consumer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[ReceivedMessage]:
        """The next messages of one queue, as soon as there are some."""
        consumer = self._consumer
        messages = await consumer._next(consumer._ahead.next_batch)
        if messages is None:
            raise StopAsyncIteration
        return messages


def _check_offsets(offsets: Mapping[MessageQueue, int]) -> None:
    if not isinstance(offsets, Mapping):
        raise refusal("offsets", offsets, "a table of offsets by queue is needed")
    for queue, offset in offsets.items():
        check_queue(queue)
        check_offset(offset)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
