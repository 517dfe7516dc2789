"""JSON bodies in which a consumer reports on itself, for admin requests that brokers forward."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Annotated

from pyromq.protocol.java.wire_types import Int32, Int64, Wire
from pyromq.protocol.wire.bodies import MessageQueue, SubscriptionData
from pyromq.protocol.wire.body_codec import Body, body_class


@body_class
class ProcessQueueInfo(Body):
    """One queue of a consumer: its cached messages, and the times of the last events.

    Times are in milliseconds since the epoch. `droped` is spelled as in RocketMQ.
    """

    commit_offset: Int64 = 0
    cached_msg_min_offset: Int64 = 0
    cached_msg_max_offset: Int64 = 0
    cached_msg_count: Int32 = 0
    cached_msg_size_in_mib: Annotated[Int32, Wire("cachedMsgSizeInMiB")] = 0
    transaction_msg_min_offset: Int64 = 0
    transaction_msg_max_offset: Int64 = 0
    transaction_msg_count: Int32 = 0
    locked: bool = False
    try_unlock_times: Int64 = 0
    last_lock_timestamp: Int64 = 0
    droped: bool = False
    last_pull_timestamp: Int64 = 0
    last_consume_timestamp: Int64 = 0


@body_class
class ConsumeStatus(Body):
    """Latencies (ms) and rates (per second) at which a consumer handles one topic."""

    pull_rt: Annotated[float, Wire("pullRT")] = 0.0
    pull_tps: Annotated[float, Wire("pullTPS")] = 0.0
    consume_rt: Annotated[float, Wire("consumeRT")] = 0.0
    consume_ok_tps: Annotated[float, Wire("consumeOKTPS")] = 0.0
    consume_failed_tps: Annotated[float, Wire("consumeFailedTPS")] = 0.0
    #: In the last hour.
    consume_failed_msgs: Int64 = 0


@body_class
class ConsumerRunningInfo(Body):
    """GET_CONSUMER_RUNNING_INFO: the settings, subscriptions, queues and rates of a consumer."""

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    jstack: str | None = None


class DirectResult(Enum):
    """How a handler processed a message that an administrator sent to it."""

    CR_SUCCESS = 0
    CR_LATER = 1
    CR_ROLLBACK = 2
    CR_COMMIT = 3
    CR_THROW_EXCEPTION = 4
    CR_RETURN_NULL = 5


@body_class
class ConsumeMessageDirectlyResult(Body):
    """CONSUME_MESSAGE_DIRECTLY: the outcome and the time spent."""

    consume_result: DirectResult
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: Int64 = 0
