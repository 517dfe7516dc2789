"""Pull messages of any queue from any offset, without keeping state.

    async with PullConsumer("127.0.0.1:9876", "orders") as consumer:
        for queue in await consumer.queues():
            result = await consumer.pull(queue, await consumer.min_offset(queue))

For programs that keep their own offsets: exports, repairs, engines that plan their reads. The
consumer does not join its group, so it takes no queues from the members; to receive messages as
they arrive, use `LitePullConsumer`. Runs on its owner's event loop, with any number of pulls in
flight. Programs without an event loop use `PullConsumer.sync`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import ParamSpec, Unpack

from pyromq.base.clock import now_ms
from pyromq.client.arguments import (
    check_count,
    check_offset,
    check_queue,
    check_seconds,
    check_time,
)
from pyromq.client.consumer.pull_request import ANONYMOUS_GROUP
from pyromq.client.consumer.queue_access import PullResult, QueueAccess
from pyromq.client.consumer.subscription import Subscription, check_expressions
from pyromq.client.consumer.sync import SyncPullConsumer
from pyromq.client.errors import ClientStateError
from pyromq.client.hooks import Hooks, Receiving
from pyromq.client.message import check_group, check_topic
from pyromq.client.options import ClientOptions, Settings
from pyromq.client.session.session import Client, Session
from pyromq.protocol.wire.bodies import HeartbeatData, MessageQueue

_Arguments = ParamSpec("_Arguments")


class PullConsumer(Client):
    """Pulls messages of `topic` from any queue and offset.

    `namesrv` lists the NameServers as `host:port`. `group` owns the committed offsets; without
    one, `commit` and `committed` are not available. `subscription` selects messages: tags
    (`a || b`, `*`) or a `Subscription`. For options see `ClientOptions`.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        topic: str,
        *,
        group: str | None = None,
        subscription: str | Subscription = "*",
        **options: Unpack[ClientOptions],
    ) -> None:
        check_topic(topic)
        if group is not None:
            check_group(group)
        self.topic = topic
        self.group = group
        self._subscription = Subscription.of(subscription)
        self._wanted_tags = self._subscription.wanted_tags()
        self._is_checked = False
        self._version = now_ms()
        settings = Settings.of(namesrv, options)
        self.hooks = Hooks(settings.hooks)
        self._session = Session(
            settings,
            HeartbeatData,
            on_return=lambda address: self._access.broker_returned(address),
        )
        self._access = QueueAccess(self._session, group)

    @classmethod
    def sync(
        cls: Callable[_Arguments, PullConsumer],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> SyncPullConsumer:
        """Return a synchronous consumer for programs without an event loop."""
        return SyncPullConsumer(partial(cls, *args, **kwargs))

    async def start(self) -> None:
        """Start the consumer. Connections are opened by the first request."""
        self._session.start()

    async def close(self) -> None:
        """Close the connections. Pulls in flight fail."""
        await self._session.close()

    async def queues(self) -> list[MessageQueue]:
        """Return the readable queues of the topic. Raises TopicNotFoundError."""
        self._session.check_running()
        return await self._access.queues(self.topic)

    async def pull(
        self, queue: MessageQueue, offset: int, max_messages: int = 32, *, wait: float = 0.0
    ) -> PullResult:
        """Pull up to `max_messages` messages of `queue`, starting at `offset`.

        If there is none yet, the broker holds the request for up to `wait` seconds. Brokers cap
        the number of messages, usually at 32. Raises BrokerError (also for an SQL expression
        that the broker cannot parse), AnswerError, TopicNotFoundError or RemotingError.
        """
        check_queue(queue)
        check_offset(offset)
        check_count("max_messages", max_messages)
        check_seconds("wait", wait, may_be_zero=True)
        self._session.check_running()
        if not self._is_checked:
            await check_expressions(
                self._session, self.group or ANONYMOUS_GROUP, {self.topic: self._subscription}
            )
            self._is_checked = True
        began = time.monotonic()
        result = await self._access.pull(
            queue,
            offset,
            self._subscription,
            version=self._version,
            max_messages=max_messages,
            wait=wait,
        )
        wanted = self._wanted_tags
        if wanted:
            # Brokers compare hashes of tags; drop collisions.
            messages = [message for message in result.messages if message.tags in wanted]
            result = result._replace(messages=messages)
        if self.hooks.receive and result.messages:
            group, namespace = self.group or ANONYMOUS_GROUP, self._session.settings.namespace
            self.hooks.after_receive(Receiving(group, namespace, result.messages, queue, began))
        return result

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
        return await self._access.offset_by_time(queue, int(when.timestamp() * 1000))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, or None if it has never consumed `queue`."""
        self._check_group()
        check_queue(queue)
        return await self._access.committed(queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit `offset` at the broker: the group resumes from it."""
        self._check_group()
        check_queue(queue)
        check_offset(offset)
        await self._access.commit(queue, offset)

    def _check_group(self) -> None:
        if self.group is None:
            raise ClientStateError(
                "this consumer has no group: pass one as PullConsumer(group=...)"
            )
