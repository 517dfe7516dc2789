"""Consume topics with a handler: the consumer pulls, dispatches, retries and commits by itself.

    async def handle(message):
        ...

    async with PushConsumer(
        "127.0.0.1:9876", group="billing", handler=handle, subscriptions={"orders": "new || paid"}
    ) as consumer:
        await consumer.closed()

Guarantees:
1. The group handles every message at least once. A message counts as consumed when its handler
   returns; until then it is delivered again, whatever happens to this consumer.
2. Offsets are committed every 5 s, with pulls, when a queue goes to another member, and on
   `close`, never beyond the first unfinished message. A queue goes to another member after its
   handlers have returned (within `close_grace`) and its offset is committed, so members can join
   and leave without duplicates (see `handover`).
3. If a handler raises or returns `Retry`, the message is delivered again from the topic
   `%RETRY%group`, with a delay that grows each time; it shows its original topic. After
   `max_reconsume_times` it becomes a dead letter. With `Order.ORDERLY` the queue waits instead.
4. One pull per queue is in flight; pulling pauses while too many messages are cached.
5. Failures in the background are logged and retried; nothing stops silently.

This module holds the public class and its lifecycle. `membership` decides which queues are ours,
`assigned_queues` starts and hands over queues, `puller` pulls them, `concurrent` or `orderly`
calls the handler. Everything runs on the owner's event loop, except handlers that are plain
functions: these run in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, Unpack

from pyromq.base.clock import now_ms
from pyromq.base.periodic import PeriodicTasks
from pyromq.client.arguments import check_queues
from pyromq.client.consumer.lifecycle import Lifecycle
from pyromq.client.consumer.locks import RENEW_SECONDS, RETRY_SECONDS
from pyromq.client.consumer.membership import Membership
from pyromq.client.consumer.offsets import ConsumerOffsets, LocalOffsets, RemoteOffsets
from pyromq.client.consumer.push.assigned_queues import AssignedQueues
from pyromq.client.consumer.push.concurrent import ConcurrentHandling
from pyromq.client.consumer.push.handling import Handler, HandlerCaller, check_handler
from pyromq.client.consumer.push.info import running_info
from pyromq.client.consumer.push.options import PushOptions, PushSettings
from pyromq.client.consumer.push.orderly import OrderlyHandling
from pyromq.client.consumer.push.ownership import Ownership, ownership_of
from pyromq.client.consumer.push.puller import Puller
from pyromq.client.consumer.push.send_back import SendBack
from pyromq.client.consumer.push.stats import ConsumerStats
from pyromq.client.consumer.queue_access import QueueAccess
from pyromq.client.consumer.start_from import consume_from_where
from pyromq.client.consumer.subscription import (
    Subscription,
    Subscriptions,
    TopicSubscription,
    check_expressions,
    parse_subscriptions,
    subscription_data,
)
from pyromq.client.consumer.sync import SyncPushConsumer
from pyromq.client.hooks import Hooks
from pyromq.client.message import check_group, check_topic
from pyromq.client.options import Settings
from pyromq.client.producer.producer import Producer
from pyromq.client.received import ReceivedMessage
from pyromq.client.session.client_requests import ClientRequests
from pyromq.client.session.session import Client, Session
from pyromq.client.trace import TraceRole, message_trace
from pyromq.protocol.names import retry_topic
from pyromq.protocol.wire.bodies import ConsumerData, ConsumeType, HeartbeatData, MessageQueue
from pyromq.protocol.wire.bodies_consumer import ConsumerRunningInfo

_Arguments = ParamSpec("_Arguments")

#: Maximum interval between checks for handlers that exceed `consume_timeout`.
_MAX_OVERDUE_CHECK_SECONDS: Final = 10.0


class PushConsumer(Client):
    """Consumes topics as a member of a group and passes each message to a handler.

    `namesrv` lists the NameServers as `host:port`. `handler` is a function or coroutine function;
    returning means that the message is consumed, raising means that it is delivered again later
    (see `Handler`, `ConsumeResult` and `Retry`). `subscriptions` is a topic, a list of topics, or
    a mapping from topics to tags (`a || b`, `*`) or a `Subscription`; all members of a group must
    have the same. For options see `PushOptions`.

        async with PushConsumer(
            "127.0.0.1:9876", group="billing", handler=handle, subscriptions={"orders": "paid"}
        ) as consumer:
            await consumer.closed()

    Every message is delivered at least once. A handler that is a coroutine function runs on the
    event loop, a plain function in a thread; up to `max_handlers` calls run at once.
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
        client_settings = Settings.of(namesrv, common, PushOptions)
        self.group = group
        self.settings = settings
        self.is_orderly = settings.is_orderly
        self._retry_topic = retry_topic(group)
        self._subscriptions = parse_subscriptions(subscriptions)
        if not settings.is_broadcasting:
            self._subscriptions[self._retry_topic] = TopicSubscription(Subscription())
        requests = ClientRequests(self, client_settings.namespace)
        self._session = session = Session(
            client_settings,
            self._describe,
            handlers=requests.handlers(),
            on_return=lambda address: access.broker_returned(address),
        )
        self.hooks = Hooks(client_settings.hooks)
        self._trace = message_trace(
            client_settings,
            group,
            TraceRole.CONSUME,
            Producer,
            consume_timeout=settings.consume_timeout,
        )
        if self._trace is not None:
            self.hooks.add(self._trace)
        self._call = HandlerCaller(
            handler,
            group=group,
            namespace=client_settings.namespace,
            takes_lists=settings.hands_out_lists,
            max_handlers=settings.max_handlers,
            hooks=self.hooks,
        )
        self._membership = Membership(
            session,
            group,
            self._subscriptions,
            self._assign,
            strategy=settings.allocate,
            is_broadcasting=settings.is_broadcasting,
        )
        access = QueueAccess(session, group)
        self._stats = ConsumerStats()
        self._offsets = _offsets_of(settings, session, group, access)
        ownership = ownership_of(settings, session, group, self._membership)
        self._handling = _handling_of(settings, session, group, self._call, ownership)
        self._puller = Puller(
            session,
            group,
            settings,
            self._subscriptions,
            access=access,
            offsets=self._offsets,
            ownership=ownership,
            handling=self._handling,
            stats=self._stats,
        )
        self._queues = AssignedQueues(
            group,
            settings,
            access=access,
            offsets=self._offsets,
            ownership=ownership,
            handling=self._handling,
            puller=self._puller,
        )
        self._lifecycle = Lifecycle()
        self._periodic = PeriodicTasks()
        self._started_at = 0

    @classmethod
    def sync(
        cls: Callable[_Arguments, PushConsumer],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> SyncPushConsumer:
        """Return a synchronous consumer for programs without an event loop."""
        return SyncPushConsumer(partial(cls, *args, **kwargs))

    # Lifecycle

    async def start(self) -> None:
        """Join the group and start consuming.

        When it returns, the offset to start from is known for each of our queues: every message
        sent from then on is consumed, even by a new group with `StartFrom.LAST` (unlike with
        Java's clients). It does not wait longer than `request_timeout` for a broker, nor for a
        queue that another member has locked or a topic that does not exist yet.

        Raises NameServerError, BrokerError or RemotingError if the cluster cannot be reached, and
        OptionError if another broadcasting consumer uses the same `instance_name`. The consumer is
        closed then.
        """
        if not self._lifecycle.begin_start():
            return
        self._session.start()
        self._started_at = now_ms()
        try:
            if self._trace is not None:
                await self._trace.start()
            await self._offsets.open()
            await self._check_expressions(self._subscriptions)
            await self._membership.join(optional=self._subscriptions.keys())
            await self._queues.until_started(self._session.request_timeout)
        except BaseException:
            await self.close()
            raise
        if not self._lifecycle.end_start():
            return
        settings = self.settings
        name = f"group {self.group}"
        self._periodic.start(settings.commit_interval, self._commit, name=f"{name}: commit")
        self._periodic.start(
            min(settings.consume_timeout / 4, _MAX_OVERDUE_CHECK_SECONDS),
            lambda: self._handling.cancel_overdue(settings.consume_timeout),
            name=f"{name}: check for overdue handlers",
        )
        if settings.is_orderly:
            self._periodic.start(
                self._seconds_to_renewal, self._queues.renew_locks, name=f"{name}: lock renewal"
            )

    async def close(self) -> None:
        """Stop pulling, wait for handlers (up to `close_grace`), commit, and leave the group.

        Messages that no handler has started on go to other members, or are delivered after the
        next start. A call from a handler returns at once; the consumer closes after the handler
        has returned. Idempotent.
        """
        closing = self._lifecycle.close(self._close)
        if not self._handling.is_worker(asyncio.current_task()):
            await asyncio.shield(closing)

    async def closed(self) -> None:
        """Wait until the consumer is closed."""
        await self._lifecycle.until_closed()

    # Subscriptions and queues

    async def subscribe(self, topic: str, wanted: str | Subscription = "*") -> None:
        """Add a topic, or change the subscription to it; waits as `start` does.

        All members of a group must have the same subscriptions. Raises BrokerError for an SQL
        expression that the broker cannot parse.
        """
        self._session.check_running()
        check_topic(topic)
        subscribed = TopicSubscription(Subscription.of(wanted))
        await self._check_expressions({topic: subscribed})
        self._subscriptions[topic] = subscribed
        await self._membership.set_topics(self._subscriptions)
        await self._queues.until_started(self._session.request_timeout)

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic."""
        check_topic(topic)
        self._session.check_running()
        if topic != self._retry_topic and self._subscriptions.pop(topic, None) is not None:
            await self._membership.set_topics(self._subscriptions)

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Stop pulling from these queues, or from all; cached messages are still handled."""
        self._puller.pause(None if queues is None else check_queues(queues))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Resume pulling from these queues, or from all."""
        self._puller.resume(None if queues is None else check_queues(queues))

    def assignment(self) -> list[MessageQueue]:
        """Return the queues assigned to this consumer now."""
        return sorted(self._queues)

    # Requests of brokers (see `client_requests`)

    def members_changed(self) -> None:
        """Rebalance soon: a broker notified us that members joined or left."""
        self._membership.members_changed()

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue our queues among these from the given offsets; cached messages are dropped."""
        await self._queues.reset(offsets)

    def offsets(self) -> dict[MessageQueue, int]:
        """Return the offset up to which each queue was consumed."""
        return self._queues.offsets()

    def running_info(self) -> ConsumerRunningInfo:
        """Return settings, subscriptions, queues and rates, as `mqadmin consumerStatus` shows."""
        return running_info(
            self._session,
            self.group,
            self.settings,
            started_at=self._started_at,
            subscriptions=subscription_data(self._session, self._subscriptions),
            process_queues=self._queues.process_queues(),
            stats={topic: self._stats.of(topic) for topic in self._subscriptions},
        )

    async def consume_directly(self, message: ReceivedMessage) -> bool:
        """Call the handler with a message; return whether it was consumed.

        Raises the handler's exception.
        """
        self._puller.restore_topic(message)
        return await self._call.call_raising(message.queue, message) is None

    # Helpers

    def _describe(self, client_id: str) -> HeartbeatData:
        consumer = ConsumerData(
            self._session.wrap(self.group),
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=self.settings.model,
            consume_from_where=consume_from_where(self.settings.start_from),
            subscription_data_set=subscription_data(self._session, self._subscriptions),
            unit_mode=self.settings.unit_mode,
        )
        return HeartbeatData(client_id, consumer_data_set=[consumer])

    async def _assign(self, queues: Collection[MessageQueue]) -> None:
        await self._queues.assign(queues)

    async def _check_expressions(self, subscriptions: Mapping[str, TopicSubscription]) -> None:
        await check_expressions(
            self._session,
            self.group,
            {topic: subscribed.subscription for topic, subscribed in subscriptions.items()},
            may_be_missing=True,
        )

    def _seconds_to_renewal(self) -> float:
        return min(RENEW_SECONDS, RETRY_SECONDS) if self._queues.lacks_locks else RENEW_SECONDS

    async def _commit(self) -> None:
        self._stats.sample()
        await self._queues.commit()

    async def _close(self) -> None:
        try:
            await self._stop_consuming()
        finally:
            await self._session.close(consumer_group=self._session.wrap(self.group))
            if self._trace is not None:
                await self._trace.close()
            self._offsets.close()

    async def _stop_consuming(self) -> None:
        await self._membership.stop()
        await self._queues.until_assigned()
        # A commit that is cancelled in flight could reach its broker after the final one.
        await self._offsets.idle()
        await self._periodic.stop()
        await self._queues.stop_pulling()
        await self._handling.stop(self.settings.close_grace)
        if self._session.running:
            await self._queues.release_all(self._session.request_timeout)
        self._queues.clear()


def _offsets_of(
    settings: PushSettings, session: Session, group: str, access: QueueAccess
) -> ConsumerOffsets:
    if not settings.is_broadcasting:
        return RemoteOffsets(access)
    directory = settings.offsets_directory
    return LocalOffsets(session, group, None if directory is None else Path(directory))


def _handling_of(
    settings: PushSettings, session: Session, group: str, call: HandlerCaller, ownership: Ownership
) -> ConcurrentHandling | OrderlyHandling:
    send_back = (
        None
        if settings.is_broadcasting
        else SendBack(session, group, settings.reconsume_limit, unit_mode=settings.unit_mode)
    )
    if not settings.is_orderly:
        return ConcurrentHandling(
            call,
            send_back,
            max_handlers=settings.max_handlers,
            batch_size=settings.messages_per_call,
        )
    return OrderlyHandling(
        call,
        send_back,
        None if settings.is_broadcasting else ownership.is_valid,
        max_handlers=settings.max_handlers,
        batch_size=settings.messages_per_call,
        suspend=settings.suspend,
        max_reconsume_times=settings.reconsume_limit,
    )
