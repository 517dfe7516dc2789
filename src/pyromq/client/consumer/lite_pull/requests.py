"""Serve the requests that brokers send to a lite pull consumer, for themselves or an administrator.

`client_requests` decodes the requests; this module applies them to a consumer that has a
reader instead of a handler. Unlike Java's lite consumer, it applies offsets that an administrator
resets instead of overwriting them with its own. Runs on the consumer's event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from pyromq import __version__
from pyromq.base.clock import now_ms
from pyromq.base.sizes import MIB
from pyromq.client.consumer.lite_pull.options import LitePullSettings
from pyromq.client.consumer.lite_pull.read_ahead import Reading
from pyromq.client.consumer.start_from import consume_from_where
from pyromq.client.errors import ClientStateError
from pyromq.client.options import Settings
from pyromq.client.received import ReceivedMessage
from pyromq.protocol.namespace import with_namespace, without_namespace
from pyromq.protocol.wire.bodies import ConsumeType, MessageQueue, SubscriptionData
from pyromq.protocol.wire.bodies_consumer import (
    ConsumerRunningInfo,
    ConsumeStatus,
    ProcessQueueInfo,
)


class LitePullRequests:
    """An `AskedConsumer` for `client_requests`.

    `readings` is the consumer's own table. `subscriptions` returns its subscriptions,
    `rebalance` recomputes its share, `restart` continues a queue from another offset.
    """

    is_orderly = False

    def __init__(
        self,
        group: str,
        settings: LitePullSettings,
        client_settings: Settings,
        readings: Mapping[MessageQueue, Reading],
        *,
        subscriptions: Callable[[], list[SubscriptionData]],
        rebalance: Callable[[], None],
        restart: Callable[[MessageQueue, int], Awaitable[None]],
    ) -> None:
        self.group = group
        self._settings = settings
        self._client_settings = client_settings
        self._readings = readings
        self._subscriptions = subscriptions
        self._rebalance = rebalance
        self._restart = restart
        self._created_at = now_ms()

    def members_changed(self) -> None:
        """Rebalance soon: a broker notified us that members joined or left."""
        self._rebalance()

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue our queues among these from the given offsets."""
        for queue, offset in offsets.items():
            if queue in self._readings:
                await self._restart(queue, offset)

    def offsets(self) -> dict[MessageQueue, int]:
        """Return the offset up to which each queue was consumed."""
        return {
            queue: offset
            for queue, reading in self._readings.items()
            if (offset := reading.commit_offset) is not None
        }

    def running_info(self) -> ConsumerRunningInfo:
        """Return settings under Java's names, subscriptions, and the cached messages per queue."""
        subscriptions = self._subscriptions()
        namespace = self._client_settings.namespace
        return ConsumerRunningInfo(
            properties=self._properties(),
            subscription_set=subscriptions,
            mq_table={queue: _info(reading) for queue, reading in self._readings.items()},
            status_table={
                without_namespace(namespace, subscription.topic): ConsumeStatus()
                for subscription in subscriptions
            },
        )

    async def consume_directly(self, message: ReceivedMessage) -> bool:
        """Raise ClientStateError: without a handler, messages cannot be pushed to the program."""
        raise ClientStateError(f"{message!r} not consumed: a lite pull consumer has no handler")

    def _properties(self) -> dict[str, str]:
        settings, client_settings = self._settings, self._client_settings
        values: dict[str, object] = {
            "PROP_NAMESERVER_ADDR": ";".join(client_settings.name_servers),
            "PROP_CONSUME_TYPE": ConsumeType.CONSUME_ACTIVELY.name,
            "PROP_CLIENT_VERSION": f"pyromq {__version__}",
            "PROP_CONSUMER_START_TIMESTAMP": self._created_at,
            "consumerGroup": with_namespace(client_settings.namespace, self.group),
            "messageModel": settings.model.name,
            "consumeFromWhere": consume_from_where(settings.start_from).name,
            "autoCommit": str(settings.auto_commit).lower(),
            "autoCommitIntervalMillis": int(settings.commit_interval * 1000),
            "pullBatchSize": settings.pull_batch_size,
            "pullThresholdForAll": settings.max_cached_in_all,
            "pullThresholdForQueue": settings.max_cached_messages,
            "pullThresholdSizeForQueue": settings.max_cached_bytes // MIB,
            "consumeMaxSpan": settings.max_span,
        }
        return {name: str(value) for name, value in values.items()}


def _info(reading: Reading) -> ProcessQueueInfo:
    batches = reading.batches
    return ProcessQueueInfo(
        commit_offset=reading.commit_offset or 0,
        cached_msg_min_offset=batches[0].messages[0].queue_offset if batches else 0,
        cached_msg_max_offset=batches[-1].messages[-1].queue_offset if batches else 0,
        cached_msg_count=reading.count,
        cached_msg_size_in_mib=reading.size // MIB,
    )
