"""JSON bodies of admin requests: connections, consume statistics, broker statistics, offsets,
queue entries.

The rules of `bodies` apply. Pure. Used by brokers and admin tools.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from pyromq.protocol.java.fastjson import dump_json
from pyromq.protocol.java.wire_types import INT64, Int32, Int64, Wire
from pyromq.protocol.wire.bodies import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    MessageQueue,
    SubscriptionData,
)
from pyromq.protocol.wire.body_codec import Body, body_class
from pyromq.protocol.wire.codes import LanguageCode

# Clients


@body_class
class Connection(Body):
    """A connected client."""

    client_id: str
    client_addr: str
    language: LanguageCode = LanguageCode.OTHER
    version: Int32 = 0


@body_class
class ConsumerConnection(Body):
    """The members of a consumer group and its subscriptions."""

    connection_set: list[Connection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None


@body_class
class ProducerConnection(Body):
    """The members of a producer group."""

    connection_set: list[Connection] = field(default_factory=list)


@body_class
class ProducerInfo(Body):
    """A producer and the time of its last heartbeat."""

    client_id: str
    remote_ip: Annotated[str, Wire("remoteIP")]
    language: LanguageCode = LanguageCode.OTHER
    version: Int32 = 0
    last_update_timestamp: Int64 = 0


@body_class
class ProducerTableInfo(Body):
    """All producers, by group."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


@body_class
class GroupList(Body):
    """Names of consumer groups."""

    group_list: set[str] = field(default_factory=set)


# Offsets of queues and groups


@body_class
class TopicOffset(Body):
    """The first and the next offset of a queue, and when its last message was stored."""

    min_offset: Int64 = 0
    max_offset: Int64 = 0
    last_update_timestamp: Int64 = 0


@body_class
class TopicStatsTable(Body):
    """The offsets of a topic's queues."""

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)


@body_class
class OffsetWrapper(Body):
    """The offset of a group in a queue, and when the last message it consumed was stored."""

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    last_timestamp: Int64 = 0


@body_class
class ConsumeStats(Body):
    """The offsets of a group, and how many messages per second it consumes."""

    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0

    def total_diff(self) -> int:
        """Return the lag: the number of messages that the group has not consumed.

        A group may have committed any offset. One past the end counts as no lag, and the sum stays
        within a Java long.
        """
        total = sum(
            max(0, each.broker_offset - each.consumer_offset) for each in self.offset_table.values()
        )
        return min(total, INT64.high)


@body_class
class ConsumeStatsList(Body):
    """The consume statistics of all groups of a broker: per group, one for each topic."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    broker_addr: str | None = None
    total_diff: Int64 = 0

    def encode(self, *, standard_json: bool = False) -> bytes:
        """Encode group by group: one call for all groups would hold the GIL for too long."""
        head = ConsumeStatsList([], self.broker_addr, self.total_diff)
        pieces = [
            b"{%b:[%b]}"
            % (
                dump_json(group),
                b",".join(each.encode(standard_json=standard_json) for each in stats),
            )
            for by_group in self.consume_stats_list
            for group, stats in by_group.items()
        ]
        whole = Body.encode(head, standard_json=standard_json)
        return whole.replace(
            b'"consumeStatsList":[]', b'"consumeStatsList":[%b]' % b",".join(pieces)
        )


@body_class
class QueueTimeSpan(Body):
    """When messages of a queue were stored: the first, the last, the last consumed one."""

    message_queue: MessageQueue
    min_time_stamp: Int64 = 0
    max_time_stamp: Int64 = 0
    consume_time_stamp: Int64 = 0
    #: The age of the next message to consume, in milliseconds.
    delay_time: Int64 = 0


@body_class
class QueryConsumeTimeSpanBody(Body):
    """The time spans of all queues of a topic."""

    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


# Broker statistics


@body_class
class BrokerStatsItem(Body):
    """A statistic over a period: the sum, the rate per second, and the average per call."""

    sum: Int64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


@body_class
class BrokerStatsData(Body):
    """A statistic over the last minute, hour and day: the response to VIEW_BROKER_STATS_DATA."""

    stats_minute: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = field(default_factory=BrokerStatsItem)


# Setting and querying offsets


@body_class
class ResetOffsetBody(Body):
    """The offset from which a group resumes in each queue."""

    offset_table: dict[MessageQueue, Int64] = field(default_factory=dict)


@body_class
class MessageQueueForC(Body):
    """A queue and an offset, for clients that cannot parse object keys."""

    topic: str
    broker_name: str
    queue_id: Int32
    offset: Int64


@body_class
class ResetOffsetBodyForC(Body):
    """The offsets of a `ResetOffsetBody` as a list."""

    offset_table: list[MessageQueueForC] = field(default_factory=list)


@body_class
class GetConsumerStatusBody(Body):
    """The offsets that clients report: one client's own, or by client."""

    message_queue_table: dict[MessageQueue, Int64] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, Int64]] = field(default_factory=dict)


@body_class
class QueryCorrectionOffsetBody(Body):
    """Offsets by queue id."""

    correction_offsets: dict[Int32, Int64] = field(default_factory=dict)


# Consume-queue entries


@body_class
class ConsumeQueueData(Body):
    """One entry and its data in the extension."""

    physic_offset: Int64 = 0
    physic_size: Int32 = 0
    tags_code: Int64 = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


@body_class
class QueryConsumeQueueResponseBody(Body):
    """Entries of a queue, and whether a group's filter accepts each."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] = field(default_factory=list)
    max_queue_index: Int64 = 0
    min_queue_index: Int64 = 0
