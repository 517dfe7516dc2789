"""What brokers may ask of a lite pull consumer, on their own or for an administrator.

The requests are those of `client_requests`; here is what stands behind them when there is no
handler but a reader. Java's lite consumer overlooks offsets that are reset, and overwrites
them with its own. On the consumer's event loop.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping

from pyromq import __version__
from pyromq.client.consumer.lite_pull.options import LitePullSettings
from pyromq.client.consumer.lite_pull.read_ahead import Reading
from pyromq.client.consumer.start_from import consume_from_where
from pyromq.client.errors import ClientStateError
from pyromq.client.received import ReceivedMessage
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import ConsumeType, MessageQueue, SubscriptionData
from pyromq.protocol.wire.bodies_consumer import (
    ConsumerRunningInfo,
    ConsumeStatus,
    ProcessQueueInfo,
)

_MEBIBYTE = 1024 * 1024


class AskedReader:
    """An `AskedConsumer` for `client_requests`.

    `readings` is the consumer's own table; `subscriptions` gives what its heartbeats say,
    `rebalance` looks at the shares again, `go_on_from` begins a queue anew.
    """

    session: Session
    is_orderly = False

    def __init__(
        self,
        group: str,
        settings: LitePullSettings,
        readings: Mapping[MessageQueue, Reading],
        *,
        subscriptions: Callable[[], list[SubscriptionData]],
        rebalance: Callable[[], None],
        go_on_from: Callable[[MessageQueue, int], Awaitable[None]],
    ) -> None:
        self.group = group
        self._settings = settings
        self._readings = readings
        self._subscriptions = subscriptions
        self._rebalance = rebalance
        self._go_on_from = go_on_from
        self._made_at = time.time()

    def members_changed(self) -> None:
        """Look at the shares again."""
        self._rebalance()

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on from these offsets, in queues that are ours."""
        for queue, offset in offsets.items():
            if queue in self._readings:
                await self._go_on_from(queue, offset)

    def offsets(self) -> dict[MessageQueue, int]:
        """Up to where each queue was consumed."""
        return {
            queue: offset
            for queue, reading in self._readings.items()
            if (offset := reading.commit_offset) is not None
        }

    def running_info(self) -> ConsumerRunningInfo:
        """Settings under Java's names, subscriptions, and what waits of each queue."""
        subscriptions = self._subscriptions()
        return ConsumerRunningInfo(
            properties=self._properties(),
            subscription_set=subscriptions,
            mq_table={queue: _info(reading) for queue, reading in self._readings.items()},
            status_table={
                self.session.unwrap(subscription.topic): ConsumeStatus()
                for subscription in subscriptions
            },
        )

    async def consume_directly(self, message: ReceivedMessage) -> bool:
        """Impossible: the program asks for messages, nobody can ask the program."""
        raise ClientStateError(
            f"{message!r} was not consumed: a lite pull consumer has no handler for it"
        )

    def _properties(self) -> dict[str, str]:
        settings = self._settings
        values: dict[str, object] = {
            "PROP_NAMESERVER_ADDR": ";".join(self.session.settings.name_servers),
            "PROP_CONSUME_TYPE": ConsumeType.CONSUME_ACTIVELY.name,
            "PROP_CLIENT_VERSION": f"pyromq {__version__}",
            "PROP_CONSUMER_START_TIMESTAMP": int(self._made_at * 1000),
            "consumerGroup": self.session.wrap(self.group),
            "messageModel": settings.model.name,
            "consumeFromWhere": consume_from_where(settings.start_from).name,
            "autoCommit": str(settings.auto_commit).lower(),
            "autoCommitIntervalMillis": int(settings.commit_interval * 1000),
            "pullBatchSize": settings.pull_batch_size,
            "pullThresholdForAll": settings.max_cached_in_all,
            "pullThresholdForQueue": settings.max_cached_messages,
            "pullThresholdSizeForQueue": settings.max_cached_bytes // _MEBIBYTE,
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
        cached_msg_size_in_mib=reading.size // _MEBIBYTE,
    )
