"""THE table: which handler serves which request code.

`hot` handlers take runs of raw frames (see `remoting.server`); `plain` ones take one
command each. A code that is in neither is answered REQUEST_CODE_NOT_SUPPORTED. The
sends are in both: their hot handler hands over what is out of the ordinary.

`with_body_limits` puts a limit on the bodies of all that are not messages, so that no peer
makes a handler parse megabytes.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers.admin.clients import ClientAdminHandlers
from pyromq.broker.handlers.admin.config import ConfigAdminHandlers
from pyromq.broker.handlers.admin.consume_stats import ConsumeStatsHandlers
from pyromq.broker.handlers.admin.delay import DelayAdminHandlers
from pyromq.broker.handlers.admin.maintenance import MaintenanceHandlers
from pyromq.broker.handlers.admin.offsets import OffsetAdminHandlers
from pyromq.broker.handlers.admin.queue_entries import QueueEntryHandlers
from pyromq.broker.handlers.admin.queue_offsets import QueueOffsetHandlers
from pyromq.broker.handlers.admin.stats import StatsAdminHandlers
from pyromq.broker.handlers.admin.topic import TopicAdminHandlers
from pyromq.broker.handlers.heartbeat import HeartbeatHandlers
from pyromq.broker.handlers.locks import LockHandlers
from pyromq.broker.handlers.offsets import OffsetHandlers
from pyromq.broker.handlers.pull import PullHandlers
from pyromq.broker.handlers.query import QueryHandlers
from pyromq.broker.handlers.reply import ReplyHandlers
from pyromq.broker.handlers.send import SendHandlers
from pyromq.broker.handlers.send_back import SendBackHandlers
from pyromq.broker.handlers.transaction import TransactionHandlers
from pyromq.broker.services.flow_control import Admission
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.remoting.server import Connection, Handler, HotHandler

#: Requests whose body is a message or a batch of them: `maxMessageSize` limits those.
_WITH_MESSAGES: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
#: Requests of clients with thousands of groups or queues, whose bodies are large.
_WITH_LARGE_BODIES: Final = frozenset(
    {RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ}
)

#: Requests that change nothing and may take long: dropped when their connection is lost.
QUERIES: Final = frozenset(
    {
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.VIEW_BROKER_STATS_DATA,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.QUERY_CONSUME_QUEUE,
    }
)


class Routes(NamedTuple):
    """What a broker's servers are given."""

    hot: dict[int, HotHandler]
    plain: dict[int, Handler]


@dataclass(slots=True)
class Handlers:
    """The handler families, each with what it needs already."""

    send: SendHandlers
    send_back: SendBackHandlers
    reply: ReplyHandlers
    transaction: TransactionHandlers
    pull: PullHandlers
    heartbeat: HeartbeatHandlers
    locks: LockHandlers
    offsets: OffsetHandlers
    query: QueryHandlers
    topic_admin: TopicAdminHandlers
    stats_admin: StatsAdminHandlers
    config_admin: ConfigAdminHandlers
    maintenance: MaintenanceHandlers
    queue_offsets: QueueOffsetHandlers
    client_admin: ClientAdminHandlers
    offset_admin: OffsetAdminHandlers
    consume_stats: ConsumeStatsHandlers
    queue_entries: QueueEntryHandlers
    delay_admin: DelayAdminHandlers


def build_routes(handlers: Handlers) -> Routes:
    """Every request that the broker serves."""
    scans, lists = Admission(), Admission()
    return Routes(
        hot={
            RequestCode.SEND_MESSAGE: handlers.send.send,
            RequestCode.SEND_MESSAGE_V2: handlers.send.send_v2,
            RequestCode.SEND_BATCH_MESSAGE: handlers.send.send_batch,
            RequestCode.PULL_MESSAGE: handlers.pull.pull,
            RequestCode.LITE_PULL_MESSAGE: handlers.pull.pull,
        },
        plain={
            RequestCode.SEND_MESSAGE: handlers.send.send_one,
            RequestCode.SEND_MESSAGE_V2: handlers.send.send_one,
            RequestCode.SEND_BATCH_MESSAGE: handlers.send.send_one,
            RequestCode.CONSUMER_SEND_MSG_BACK: handlers.send_back.send_back,
            RequestCode.SEND_REPLY_MESSAGE: handlers.reply.send_reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: handlers.reply.send_reply,
            RequestCode.END_TRANSACTION: handlers.transaction.end_transaction,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: handlers.transaction.resume_check,
            RequestCode.QUERY_MESSAGE: handlers.query.query_message,
            RequestCode.VIEW_MESSAGE_BY_ID: handlers.query.view_message,
            RequestCode.HEART_BEAT: handlers.heartbeat.heart_beat,
            RequestCode.UNREGISTER_CLIENT: handlers.heartbeat.unregister_client,
            RequestCode.CHECK_CLIENT_CONFIG: handlers.heartbeat.check_client_config,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: handlers.heartbeat.consumer_list,
            RequestCode.LOCK_BATCH_MQ: handlers.locks.lock_queues,
            RequestCode.UNLOCK_BATCH_MQ: handlers.locks.unlock_queues,
            RequestCode.QUERY_CONSUMER_OFFSET: handlers.offsets.query_consumer_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: handlers.offsets.update_consumer_offset,
            RequestCode.UPDATE_AND_CREATE_TOPIC: handlers.topic_admin.update_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: handlers.topic_admin.delete_topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: handlers.topic_admin.all_topics,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: handlers.topic_admin.update_group,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: handlers.topic_admin.all_groups,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: handlers.topic_admin.delete_group,
            RequestCode.GET_ALL_CONSUMER_OFFSET: handlers.topic_admin.all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: handlers.delay_admin.all_delay_offsets,
            RequestCode.VIEW_BROKER_STATS_DATA: handlers.stats_admin.view_stats,
            RequestCode.GET_BROKER_RUNTIME_INFO: handlers.stats_admin.runtime_info,
            RequestCode.GET_BROKER_CONFIG: handlers.config_admin.get_config,
            RequestCode.UPDATE_BROKER_CONFIG: handlers.config_admin.update_config,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: handlers.maintenance.clean_expired_queues,
            RequestCode.DELETE_EXPIRED_COMMITLOG: handlers.maintenance.delete_expired_log,
            RequestCode.CLEAN_UNUSED_TOPIC: handlers.maintenance.clean_unused_topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: handlers.maintenance.system_topics,
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: handlers.maintenance.access_control,
            RequestCode.DELETE_ACL_CONFIG: handlers.maintenance.access_control,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: handlers.maintenance.access_control,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: handlers.maintenance.access_control,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: handlers.maintenance.access_control,
            RequestCode.GET_MAX_OFFSET: handlers.queue_offsets.max_offset,
            RequestCode.GET_MIN_OFFSET: handlers.queue_offsets.min_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: handlers.queue_offsets.offset_by_time,
            RequestCode.GET_EARLIEST_MSG_STORETIME: handlers.queue_offsets.earliest_time,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: lists.of(
                handlers.client_admin.consumer_connections
            ),
            RequestCode.GET_PRODUCER_CONNECTION_LIST: lists.of(
                handlers.client_admin.producer_connections
            ),
            RequestCode.GET_ALL_PRODUCER_INFO: handlers.client_admin.all_producers,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: handlers.client_admin.consumed_by_who,
            RequestCode.GET_CONSUMER_RUNNING_INFO: handlers.client_admin.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: handlers.client_admin.consume_directly,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: handlers.client_admin.consumer_status,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: handlers.offset_admin.reset_offset,
            RequestCode.CLONE_GROUP_OFFSET: handlers.offset_admin.clone_offsets,
            RequestCode.QUERY_CORRECTION_OFFSET: handlers.offset_admin.correction_offsets,
            RequestCode.GET_CONSUME_STATS: scans.of(handlers.consume_stats.consume_stats),
            RequestCode.GET_BROKER_CONSUME_STATS: scans.of(
                handlers.consume_stats.broker_consume_stats
            ),
            RequestCode.QUERY_CONSUME_TIME_SPAN: scans.of(handlers.consume_stats.consume_time_span),
            RequestCode.GET_TOPIC_STATS_INFO: scans.of(handlers.consume_stats.topic_stats),
            RequestCode.QUERY_CONSUME_QUEUE: handlers.queue_entries.query_consume_queue,
        },
    )


def with_body_limits(routes: Routes, config: BrokerConfig) -> Routes:
    """The table with a check of the body's size before each handler that takes no message."""
    plain = {
        code: handler if code in _WITH_MESSAGES else _limited(code, handler, config)
        for code, handler in routes.plain.items()
    }
    return Routes(routes.hot, plain)


def _limited(code: int, handler: Handler, config: BrokerConfig) -> Handler:
    is_large = code in _WITH_LARGE_BODIES

    def check_and_handle(
        connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        limit = config.max_heartbeat_body_size if is_large else config.max_request_body_size
        if len(request.body) > limit:
            key = "maxHeartbeatBodySize" if is_large else "maxRequestBodySize"
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the body of request {code} has {len(request.body)} bytes, limit {limit} ({key})",
            )
        return handler(connection, request)

    return check_and_handle
