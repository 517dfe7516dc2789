"""Describe a running push consumer for `mqadmin consumerStatus`, under Java's names.

The push consumer calls this when a broker requests it, on its event loop.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from pyromq import __version__
from pyromq.base.clock import now_ms
from pyromq.base.sizes import MIB
from pyromq.client.consumer.process_queue import ProcessQueue
from pyromq.client.consumer.push.options import PushSettings
from pyromq.client.consumer.push.stats import TopicStats
from pyromq.client.consumer.start_from import consume_from_where
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import ConsumeType, MessageQueue, SubscriptionData
from pyromq.protocol.wire.bodies_consumer import ConsumerRunningInfo, ProcessQueueInfo


def running_info(
    session: Session,
    group: str,
    settings: PushSettings,
    *,
    started_at: int,
    subscriptions: list[SubscriptionData],
    process_queues: Mapping[MessageQueue, ProcessQueue | None],
    stats: Mapping[str, TopicStats],
) -> ConsumerRunningInfo:
    """Return settings, subscriptions, queues and rates. `started_at` is in milliseconds."""
    now = time.monotonic()
    return ConsumerRunningInfo(
        properties=_properties(session, group, settings, started_at),
        subscription_set=subscriptions,
        mq_table={
            queue: ProcessQueueInfo() if process_queue is None else _info(process_queue, now)
            for queue, process_queue in process_queues.items()
        },
        status_table={topic: topic_stats.status(now) for topic, topic_stats in stats.items()},
    )


def _properties(
    session: Session, group: str, settings: PushSettings, started_at: int
) -> dict[str, str]:
    values: dict[str, object] = {
        "PROP_NAMESERVER_ADDR": ";".join(session.settings.name_servers),
        "PROP_CONSUME_TYPE": ConsumeType.CONSUME_PASSIVELY.name,
        "PROP_CLIENT_VERSION": f"pyromq {__version__}",
        "PROP_CONSUMEORDERLY": settings.is_orderly,
        "PROP_THREADPOOL_CORE_SIZE": settings.max_handlers,
        "PROP_CONSUMER_START_TIMESTAMP": started_at,
        "consumerGroup": session.wrap(group),
        "messageModel": settings.model.name,
        "consumeFromWhere": consume_from_where(settings.start_from).name,
        "consumeThreadMax": settings.max_handlers,
        "consumeMessageBatchMaxSize": settings.messages_per_call,
        "consumeTimeout": int(settings.consume_timeout / 60),
        "consumeConcurrentlyMaxSpan": settings.max_span,
        "maxReconsumeTimes": settings.max_reconsume_times,
        "pullBatchSize": settings.pull_batch_size,
        "pullInterval": int(settings.pull_interval * 1000),
        "pullThresholdForQueue": settings.max_cached_messages,
        "pullThresholdSizeForQueue": settings.max_cached_bytes // MIB,
        "suspendCurrentQueueTimeMillis": int(settings.suspend * 1000),
        "unitMode": settings.unit_mode,
    }
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
    }


def _info(process_queue: ProcessQueue, now: float) -> ProcessQueueInfo:
    first, last = process_queue.cached_offsets
    return ProcessQueueInfo(
        commit_offset=process_queue.commit_offset,
        cached_msg_min_offset=first,
        cached_msg_max_offset=last,
        cached_msg_count=process_queue.count,
        cached_msg_size_in_mib=process_queue.size // MIB,
        locked=process_queue.last_locked is not None,
        last_lock_timestamp=_wall_clock(process_queue.last_locked, now),
        droped=process_queue.dropped,
        last_pull_timestamp=_wall_clock(process_queue.last_pulled, now),
        last_consume_timestamp=_wall_clock(process_queue.last_consumed, now),
    )


def _wall_clock(moment: float | None, now: float) -> int:
    return 0 if moment is None else now_ms() - int((now - moment) * 1000)
