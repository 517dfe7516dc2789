"""THE table: which handler serves which request code.

`hot` handlers take runs of raw frames (see `remoting.server`); `plain` ones take one
command each. A code that is in neither is answered REQUEST_CODE_NOT_SUPPORTED. The
sends are in both: their hot handler hands over what is out of the ordinary.
"""

from __future__ import annotations

from typing import NamedTuple

from pyromq.broker.handlers.admin.queue_offsets import QueueOffsetHandlers
from pyromq.broker.handlers.admin.topic import TopicAdminHandlers
from pyromq.broker.handlers.heartbeat import HeartbeatHandlers
from pyromq.broker.handlers.offsets import OffsetHandlers
from pyromq.broker.handlers.pull import PullHandlers
from pyromq.broker.handlers.query import QueryHandlers
from pyromq.broker.handlers.send import SendHandlers
from pyromq.protocol.codes import RequestCode
from pyromq.remoting.server import Handler, HotHandler


class Routes(NamedTuple):
    """What a broker's servers are given."""

    hot: dict[int, HotHandler]
    plain: dict[int, Handler]


def build_routes(
    send: SendHandlers,
    pull: PullHandlers,
    heartbeat: HeartbeatHandlers,
    offsets: OffsetHandlers,
    query: QueryHandlers,
    topic_admin: TopicAdminHandlers,
    queue_offsets: QueueOffsetHandlers,
) -> Routes:
    """Every request that the broker serves."""
    return Routes(
        hot={
            RequestCode.SEND_MESSAGE: send.send,
            RequestCode.SEND_MESSAGE_V2: send.send_v2,
            RequestCode.SEND_BATCH_MESSAGE: send.send_batch,
            RequestCode.PULL_MESSAGE: pull.pull,
        },
        plain={
            RequestCode.SEND_MESSAGE: send.send_one,
            RequestCode.SEND_MESSAGE_V2: send.send_one,
            RequestCode.SEND_BATCH_MESSAGE: send.send_one,
            RequestCode.QUERY_MESSAGE: query.query_message,
            RequestCode.VIEW_MESSAGE_BY_ID: query.view_message,
            RequestCode.HEART_BEAT: heartbeat.heart_beat,
            RequestCode.UNREGISTER_CLIENT: heartbeat.unregister_client,
            RequestCode.CHECK_CLIENT_CONFIG: heartbeat.check_client_config,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: heartbeat.consumer_list,
            RequestCode.QUERY_CONSUMER_OFFSET: offsets.query_consumer_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update_consumer_offset,
            RequestCode.UPDATE_AND_CREATE_TOPIC: topic_admin.update_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: topic_admin.delete_topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: topic_admin.all_topics,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: topic_admin.update_group,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: topic_admin.all_groups,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: topic_admin.delete_group,
            RequestCode.GET_ALL_CONSUMER_OFFSET: topic_admin.all_offsets,
            RequestCode.GET_MAX_OFFSET: queue_offsets.max_offset,
            RequestCode.GET_MIN_OFFSET: queue_offsets.min_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: queue_offsets.offset_by_time,
            RequestCode.GET_EARLIEST_MSG_STORETIME: queue_offsets.earliest_time,
        },
    )
