"""Single pulls: messages of any queue from any offset, nothing is remembered.

    async with PullConsumer("127.0.0.1:9876", "orders") as consumer:
        for queue in await consumer.queues():
            result = await consumer.pull(queue, await consumer.min_offset(queue))

For programs that keep their own offsets: exports, repairs, engines that plan what is read
where. It is no member of its group, so it takes no queue from one; `LitePullConsumer` is for
those who want messages as they come. On the event loop of its owner, any number of pulls at
once; `PullConsumer.sync` is for everyone without one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, Unpack

from pyromq.client.arguments import (
    check_count,
    check_offset,
    check_queue,
    check_seconds,
    check_time,
)
from pyromq.client.client import Client
from pyromq.client.consumer.expressions import check_expressions
from pyromq.client.consumer.pull_request import ANONYMOUS_GROUP
from pyromq.client.consumer.queue_access import PullResult, QueueAccess
from pyromq.client.consumer.subscription import Subscription
from pyromq.client.errors import ClientStateError
from pyromq.client.message import check_group, check_topic
from pyromq.client.options import ClientOptions, Settings
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import HeartbeatData, MessageQueue

if TYPE_CHECKING:
    from pyromq.client.sync import SyncPullConsumer

_Arguments = ParamSpec("_Arguments")


class PullConsumer(Client):
    """Reads `topic` in the cluster of the NameServers `namesrv`.

    `group` owns the committed offsets; without one, nothing is committed. `subscription`
    selects messages: tags (`a || b`, `*`) or a `Subscription`.
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
        self._version = time.time_ns() // 1_000_000
        self._session = Session(Settings.of(namesrv, options), HeartbeatData)
        self._access = QueueAccess(self._session, group)

    @classmethod
    def sync(
        cls: Callable[_Arguments, PullConsumer],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> SyncPullConsumer:
        """The same for programs without an event loop."""
        from pyromq.client.sync import SyncPullConsumer

        return SyncPullConsumer(partial(cls, *args, **kwargs))

    async def start(self) -> None:
        """Make it ready; nothing is connected before the first question."""
        self._session.start()

    async def close(self) -> None:
        """Close the connections; pulls that are under way fail."""
        await self._session.close()

    async def queues(self) -> list[MessageQueue]:
        """The topic's queues that can be read now; raises TopicNotFoundError."""
        self._session.check_running()
        return await self._access.queues(self.topic)

    async def pull(
        self, queue: MessageQueue, offset: int, max_messages: int = 32, *, wait: float = 0.0
    ) -> PullResult:
        """Messages of `queue` from `offset` on.

        When there is none yet, the broker waits up to `wait` seconds for one. A broker gives
        no more than its own limit, mostly 32. Raises BrokerError, also when it cannot read an
        SQL expression, AnswerError, TopicNotFoundError and RemotingError.
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
        result = await self._access.pull(
            queue,
            offset,
            self._subscription,
            version=self._version,
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
        check_queue(queue)
        return await self._access.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        check_queue(queue)
        return await self._access.max_offset(queue)

    async def offset_by_time(self, queue: MessageQueue, when: datetime) -> int:
        """The offset of the first message that was stored at that time or later.

        Brokers round to the nearest message, which may be an earlier one. A time without a
        time zone is local.
        """
        check_queue(queue)
        check_time("when", when)
        return await self._access.offset_by_time(queue, int(when.timestamp() * 1000))

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset from which the group goes on, None when it never consumed from `queue`."""
        self._check_group()
        check_queue(queue)
        return await self._access.committed(queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Let the group go on from `offset`, whatever happens to this consumer."""
        self._check_group()
        check_queue(queue)
        check_offset(offset)
        await self._access.commit(queue, offset)

    def _check_group(self) -> None:
        if self.group is None:
            raise ClientStateError("this consumer has no group: give one to PullConsumer(group=)")
