"""Read topics at the program's own pace, as a member of a group or alone.

    async with LitePullConsumer("127.0.0.1:9876", group="billing") as consumer:
        await consumer.subscribe({"orders": "new || paid"})
        async for message in consumer:
            ...

`subscribe` joins the group, which divides the topics' queues among its members; without a group
the consumer reads all queues and commits nothing. `assign` reads exactly the given queues and does
not join: the group's members keep their shares. (Java's consumer then counts as a member and takes
queues from the others that it never reads.)

Messages come from `async for` (over the consumer, or over `batches()` for lists) or from `poll`.
Guarantees:
1. Messages of a queue arrive in order; a list holds messages of one queue.
2. A message counts as consumed when the program asks for the next one (a list: for the next list),
   or when the `async with` block ends without an exception. Only consumed messages are committed:
   every 5 s, when a queue goes to another member, and on `close`. Messages of a consumer that dies
   are delivered again. With `auto_commit=False` only `commit` commits. A queue goes to another
   member after the program is done with the messages it has of it (within 10 s) and their offset
   is committed, so members can join and leave without duplicates.
3. One pull per queue is in flight, ahead of the reader; pulling pauses while too many messages of
   the queue, or of all queues, are cached.
4. Failures in the background are logged and retried. Permanent refusals (no permission, an
   expression that no broker can parse) are raised to the reader, each time.
5. `close` ends an `async for` that is waiting.

This module holds the public class and its lifecycle. `subscriber` and `membership` decide which
queues are ours, `assigned_queues` takes them and gives them up, `readers` pull them, `read_ahead`
caches the messages, `delivery` hands them to the reader, `commits` stores offsets. Everything runs
on the owner's event loop, with one reader at a time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, ParamSpec, Self, Unpack

from pyromq.base.periodic import PeriodicTasks
from pyromq.client.arguments import (
    check_callable,
    check_offset,
    check_queue,
    check_queues,
    check_seconds,
    check_time,
    refusal,
)
from pyromq.client.consumer.lifecycle import Lifecycle
from pyromq.client.consumer.lite_pull.assigned_queues import AssignedQueues, AssignmentListener
from pyromq.client.consumer.lite_pull.commits import Commits
from pyromq.client.consumer.lite_pull.delivery import Batches, BatchHooks, Delivery
from pyromq.client.consumer.lite_pull.options import LitePullOptions, LitePullSettings
from pyromq.client.consumer.lite_pull.read_ahead import ReadAhead, Reading
from pyromq.client.consumer.lite_pull.readers import QueueReaders
from pyromq.client.consumer.lite_pull.requests import LitePullRequests
from pyromq.client.consumer.lite_pull.subscriber import Mode, Subscriber
from pyromq.client.consumer.offsets import LocalOffsets
from pyromq.client.consumer.pull_request import ANONYMOUS_GROUP
from pyromq.client.consumer.queue_access import QueueAccess, name_of
from pyromq.client.consumer.start_from import consume_from_where
from pyromq.client.consumer.subscription import (
    Subscription,
    Subscriptions,
    TopicSubscription,
    parse_subscriptions,
    subscription_data,
)
from pyromq.client.consumer.sync import SyncLitePullConsumer
from pyromq.client.errors import ClientStateError, OptionError
from pyromq.client.hooks import Hooks
from pyromq.client.message import check_group, check_topic
from pyromq.client.options import Settings
from pyromq.client.producer.producer import Producer
from pyromq.client.received import ReceivedMessage
from pyromq.client.session.client_requests import ClientRequests
from pyromq.client.session.session import Client, Session, SessionState
from pyromq.client.trace import TraceRole, message_trace
from pyromq.protocol.wire.bodies import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageQueue,
    SubscriptionData,
)

_Arguments = ParamSpec("_Arguments")
_RUNNING: Final = SessionState.RUNNING


class LitePullConsumer(Client):
    """Reads topics at the program's own pace, with `async for`, `batches()` or `poll`.

    `namesrv` lists the NameServers as `host:port`. With a `group`, the consumer shares the queues
    with the other members and commits offsets; without one, it reads all queues and commits
    nothing. For options see `LitePullOptions`.

        async with LitePullConsumer("127.0.0.1:9876", group="billing") as consumer:
            await consumer.subscribe({"orders": "new || paid"})
            async for message in consumer:
                ...

    A message counts as consumed when the program asks for the next one, or when the `async with`
    block ends without an exception.
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
        client_settings = Settings.of(namesrv, common, LitePullOptions)
        self.group = group
        self.settings = settings
        self._group_name = group or ANONYMOUS_GROUP
        self._auto_commit = settings.auto_commit and group is not None
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._readings: dict[MessageQueue, Reading] = {}
        requests = LitePullRequests(
            self._group_name,
            settings,
            client_settings,
            self._readings,
            subscriptions=self._subscription_data,
            rebalance=lambda: self._subscriber.members_changed(),
            restart=self._restart,
        )
        self._session = session = Session(
            client_settings,
            self._describe,
            handlers=ClientRequests(requests, client_settings.namespace).handlers(),
            on_return=lambda address: self._access.broker_returned(address),
        )
        self.hooks = Hooks(client_settings.hooks)
        self._trace = None
        if group is not None:
            self._trace = message_trace(client_settings, group, TraceRole.CONSUME, Producer)
        if self._trace is not None:
            self.hooks.add(self._trace)
        self._access = QueueAccess(session, group)
        self._local = _local_offsets(settings, session, group)
        self._commits = Commits(self._access, self._local)
        self._lifecycle = Lifecycle()
        self._periodic = PeriodicTasks()
        batch_hooks = BatchHooks(
            self.hooks,
            self._group_name,
            client_settings.namespace,
            asked=lambda: self._delivery.asked,
        )
        self._ahead = ReadAhead(
            settings.limits,
            settings.max_cached_in_all,
            begin=batch_hooks.begin,
            end=batch_hooks.end,
        )
        self._delivery = Delivery(session, self._lifecycle, self._ahead)
        self._readers = QueueReaders(
            session,
            self._access,
            self._ahead,
            self._subscriptions,
            pull_batch_size=settings.pull_batch_size,
            arrived=self._delivery.wake,
            refused=self._delivery.fail,
        )
        takes_all = group is None or self._local is not None
        self._queues = AssignedQueues(
            group,
            settings.start_from,
            self._readings,
            self._lifecycle,
            access=self._access,
            ahead=self._ahead,
            readers=self._readers,
            commits=self._commits,
            auto_commit=self._auto_commit,
            takes_all=takes_all,
        )
        self._subscriber = Subscriber(
            session,
            self._group_name,
            settings,
            self._subscriptions,
            self._queues,
            takes_all=takes_all,
        )

    @classmethod
    def sync(
        cls: Callable[_Arguments, LitePullConsumer],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> SyncLitePullConsumer:
        """Return a synchronous consumer for programs without an event loop."""
        return SyncLitePullConsumer(partial(cls, *args, **kwargs))

    # Lifecycle

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
        """Start the consumer. Connections are opened by the first request. Idempotent.

        Raises OptionError if another broadcasting consumer uses the same `instance_name`; the
        consumer is closed then.
        """
        if not self._lifecycle.begin_start():
            return
        self._session.start()
        try:
            if self._local is not None:
                await self._local.open()
            if self._trace is not None:
                await self._trace.start()
        except BaseException:
            await self.close()
            raise
        if self._lifecycle.end_start() and self._auto_commit:
            self._periodic.start(
                self.settings.commit_interval, self._commit_all, name=f"group {self.group}: commit"
            )

    async def close(self) -> None:
        """Commit consumed messages, leave the group, and close the connections. Idempotent.

        The messages handed out last do not count as consumed; to commit them, call `commit` first
        or leave the `async with` block without an exception.
        """
        closing = self._lifecycle.close(self._close)
        self._delivery.wake()
        await asyncio.shield(closing)

    # Subscriptions and queues

    async def subscribe(
        self,
        subscriptions: Subscriptions,
        *,
        on_assigned: AssignmentListener | None = None,
        on_revoked: AssignmentListener | None = None,
    ) -> None:
        """Add topics: read our share of their queues.

        `subscriptions` is a topic, a list of topics, or a mapping from topics to tags (`a || b`,
        `*`) or a `Subscription`. Raises TopicNotFoundError if a topic does not exist, BrokerError
        for an SQL expression that the broker cannot parse, ClientStateError after `assign`.

        When it returns, the offset to start from is known for each of our queues, unless a broker
        takes longer than `request_timeout`: every message sent from then on is read, even with
        `StartFrom.LAST`.

        `on_assigned` is called with new queues before their first pull; `on_revoked` with queues
        that go to another member or are given up by `close`, while they are still ours. `commit`
        in it includes the messages handed out last. A listener that raises is logged.
        """
        self._session.check_running()
        self._subscriber.check(Mode.SUBSCRIBED)
        for name, listener in (("on_assigned", on_assigned), ("on_revoked", on_revoked)):
            if listener is not None:
                check_callable(name, listener)
        added = parse_subscriptions(subscriptions)
        if not added:
            raise OptionError("subscriptions is empty: name at least one topic")
        await self._subscriber.subscribe(added, on_assigned, on_revoked)
        await self._readers.until_started(self._session.request_timeout)

    async def unsubscribe(self, *topics: str) -> None:
        """Stop reading these topics and commit the messages consumed from them."""
        self._session.check_running()
        for topic in topics:
            check_topic(topic)
        await self._subscriber.unsubscribe(topics)

    async def assign(
        self,
        queues: Collection[MessageQueue],
        subscriptions: Mapping[str, str | Subscription] | None = None,
    ) -> None:
        """Read exactly these queues from now on, without joining the group.

        Queues that are given up are committed first. `subscriptions` selects messages by topic;
        of other topics, every message is read. Raises ClientStateError after `subscribe`.
        """
        self._session.check_running()
        self._subscriber.check(Mode.ASSIGNED)
        queues = check_queues(queues)
        added = {queue.topic: TopicSubscription(Subscription()) for queue in queues}
        added |= parse_subscriptions({} if subscriptions is None else subscriptions)
        await self._subscriber.assign(queues, added)
        await self._readers.until_started(self._session.request_timeout)

    def assignment(self) -> list[MessageQueue]:
        """Return the queues this consumer reads now."""
        return sorted(self._readings)

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Return no messages from these queues, or from any; they stay assigned."""
        for reading in self._readings_of(queues):
            self._ahead.pause(reading)

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Resume these queues, or all."""
        for reading in self._readings_of(queues):
            self._ahead.resume(reading)
        self._ahead.notify_room()
        self._delivery.wake()

    # Messages

    async def poll(self, timeout: float | None = 5.0) -> list[ReceivedMessage]:  # noqa: ASYNC109
        """Return the next messages of one queue in order, or an empty list after `timeout` seconds.

        The messages of the previous call now count as consumed. `timeout=None` waits until
        messages arrive or the consumer is closed. There is no need to poll often: heartbeats and
        commits run in the background.
        """
        if timeout is not None:
            check_seconds("timeout", timeout, may_be_zero=True)
            timeout = min(timeout, threading.TIMEOUT_MAX)
        if self._lifecycle.is_closing:
            raise ClientStateError("this client is closed: create a new one")
        return await self._delivery.next(self._ahead.next_batch, timeout) or []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Wait for the next message; the previous one now counts as consumed."""
        delivery = self._delivery
        # Runs once per message: `state` spares the call of the property `running`.
        is_running = self._session.state is _RUNNING
        if is_running and delivery.refusal is None and delivery.waiter is None:
            message = self._ahead.next_message()
            if message is not None:
                return message
        message = await delivery.next(self._ahead.next_message)
        if message is None:
            raise StopAsyncIteration
        return message

    def batches(self) -> Batches:
        """Return lists of messages, each of one queue: `async for messages in consumer.batches()`.

        The messages of a list count as consumed when the next list is asked for.
        """
        return Batches(self._delivery, self._ahead)

    # Offsets

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue from `offset`. Raises OptionError if the queue has no such offset."""
        check_offset(offset)
        self._reading_of(queue)
        first = max(0, await self._access.min_offset(queue))
        last = await self._access.max_offset(queue)
        if not first <= offset <= last:
            raise OptionError(f"offset={offset}: {name_of(queue)} has offsets {first} to {last}")
        await self._restart(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue a queue from its oldest message."""
        self._reading_of(queue)
        await self._restart(queue, max(0, await self._access.min_offset(queue)))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue a queue with messages sent from now on."""
        self._reading_of(queue)
        await self._restart(queue, await self._access.max_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, when: datetime) -> None:
        """Continue a queue with messages stored at a time or later.

        Brokers round to the nearest message, which may be an earlier one. A time without a time
        zone is local.
        """
        check_time("when", when)
        self._reading_of(queue)
        await self._restart(queue, await self.offset_by_time(queue, when))

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset of the next message to be handed out, or None while it is unknown."""
        return self._reading_of(queue).position

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit all messages handed out so far, or the given offsets.

        Returns when every broker has acknowledged; raises the first failure. With `auto_commit`,
        given offsets last until the next automatic commit.
        """
        self._session.check_running()
        self._check_group()
        if offsets is None:
            self._ahead.settle()
            failures = await self._commits.commit(self._readings.values())
            # Queues being handed over commit by themselves, now that their messages are settled.
            await self._queues.until_left()
        else:
            _check_offsets(offsets)
            failures = await self._commits.store(dict(offsets))
        for failure in failures.values():
            raise failure

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, or None if it has never consumed `queue`."""
        check_queue(queue)
        self._session.check_running()
        self._check_group()
        return await self._commits.load(queue)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic."""
        check_topic(topic)
        self._session.check_running()
        return await self._access.queues(topic)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message."""
        check_queue(queue)
        return await self._access.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        check_queue(queue)
        return await self._access.max_offset(queue)

    async def offset_by_time(self, queue: MessageQueue, when: datetime) -> int:
        """Return the offset of the first message stored at a time or later.

        Brokers round to the nearest message, which may be an earlier one. A time without a time
        zone is local.
        """
        check_queue(queue)
        check_time("when", when)
        return max(0, await self._access.offset_by_time(queue, int(when.timestamp() * 1000)))

    # Helpers

    async def _restart(self, queue: MessageQueue, offset: int) -> None:
        self._reading_of(queue)
        await self._queues.restart(queue, offset)

    def _reading_of(self, queue: MessageQueue) -> Reading:
        check_queue(queue)
        self._session.check_running()
        reading = self._readings.get(queue)
        if reading is None:
            raise ClientStateError(f"{name_of(queue)} is not assigned to us: see assignment()")
        return reading

    def _readings_of(self, queues: Iterable[MessageQueue] | None) -> list[Reading]:
        if queues is None:
            return list(self._readings.values())
        return [self._reading_of(queue) for queue in check_queues(queues)]

    def _check_group(self) -> None:
        if self.group is None:
            raise ClientStateError(
                "this consumer has no group: pass one as LitePullConsumer(group=...)"
            )

    def _describe(self, client_id: str) -> HeartbeatData:
        if self.group is None or self._subscriber.mode is not Mode.SUBSCRIBED:
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
        return subscription_data(self._session, self._subscriptions)

    async def _commit_all(self) -> None:
        await self._commits.commit(self._readings.values())

    async def _close(self) -> None:
        await self._subscriber.stop()
        await self._commits.idle()  # a cancelled commit could reach its broker after the final one
        await self._periodic.stop()
        if self._session.running:
            await self._queues.give_up_all()
        self._ahead.discard()
        await self._queues.until_left(self._session.request_timeout)
        if self._session.running:
            await self._queues.release_all()
        is_member = self.group is not None and self._subscriber.mode is Mode.SUBSCRIBED
        await self._session.close(
            consumer_group=self._session.wrap(self._group_name) if is_member else None
        )
        if self._trace is not None:
            await self._trace.close()
        if self._local is not None:
            self._local.close()


def _local_offsets(
    settings: LitePullSettings, session: Session, group: str | None
) -> LocalOffsets | None:
    """Return the offset file of a broadcasting consumer."""
    if group is None or not settings.is_broadcasting:
        return None
    directory = settings.offsets_directory
    return LocalOffsets(session, group, None if directory is None else Path(directory))


def _check_offsets(offsets: Mapping[MessageQueue, int]) -> None:
    if not isinstance(offsets, Mapping):
        raise refusal("offsets", offsets, "expected a mapping from queues to offsets")
    for queue, offset in offsets.items():
        check_queue(queue)
        check_offset(offset)
