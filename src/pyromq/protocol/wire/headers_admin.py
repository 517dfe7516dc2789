"""Headers of admin requests: permissions, KV configuration, statistics, resets, access control.

The other headers of RocketMQ 4.9.7; the rules of `headers` apply. Pure. Used by servers and admin
tools.
"""

from __future__ import annotations

from typing import Annotated

from pyromq.protocol.java.wire_types import Int32, Int64, Wire
from pyromq.protocol.wire.header_codec import Header, header_class


@header_class
class WipeWritePermOfBrokerRequestHeader(Header):
    """WIPE_WRITE_PERM_OF_BROKER."""

    broker_name: str


@header_class
class WipeWritePermOfBrokerResponseHeader(Header):
    """The number of topics that lost write permission."""

    wipe_topic_count: Int32


@header_class
class AddWritePermOfBrokerRequestHeader(Header):
    """ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str


@header_class
class AddWritePermOfBrokerResponseHeader(Header):
    """The number of topics that regained write permission."""

    add_topic_count: Int32


@header_class
class DeleteTopicFromNamesrvRequestHeader(Header):
    """DELETE_TOPIC_IN_NAMESRV."""

    topic: str
    cluster_name: str | None = None


@header_class
class GetTopicsByClusterRequestHeader(Header):
    """GET_TOPICS_BY_CLUSTER."""

    cluster: str


@header_class
class RegisterOrderTopicRequestHeader(Header):
    """The order configuration of a topic."""

    topic: str
    order_topic_string: str


@header_class
class PutKVConfigRequestHeader(Header):
    """PUT_KV_CONFIG."""

    namespace: str
    key: str
    value: str


@header_class
class GetKVConfigRequestHeader(Header):
    """GET_KV_CONFIG."""

    namespace: str
    key: str


@header_class
class GetKVConfigResponseHeader(Header):
    """The value of a key."""

    value: str | None = None


@header_class
class DeleteKVConfigRequestHeader(Header):
    """DELETE_KV_CONFIG."""

    namespace: str
    key: str


@header_class
class GetKVListByNamespaceRequestHeader(Header):
    """GET_KVLIST_BY_NAMESPACE."""

    namespace: str


@header_class
class CloneGroupOffsetRequestHeader(Header):
    """CLONE_GROUP_OFFSET."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@header_class
class ConsumeMessageDirectlyResultRequestHeader(Header):
    """CONSUME_MESSAGE_DIRECTLY: have one client consume one message, and return the result."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


@header_class
class GetConsumerRunningInfoRequestHeader(Header):
    """GET_CONSUMER_RUNNING_INFO."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@header_class
class GetConsumerStatusRequestHeader(Header):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS and GET_CONSUMER_STATUS_FROM_CLIENT."""

    topic: str
    group: str
    client_addr: str | None = None


@header_class
class ResetOffsetRequestHeader(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET and RESET_CONSUMER_CLIENT_OFFSET."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool


@header_class
class QueryCorrectionOffsetHeader(Header):
    """QUERY_CORRECTION_OFFSET."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


@header_class
class QueryConsumeTimeSpanRequestHeader(Header):
    """QUERY_CONSUME_TIME_SPAN."""

    topic: str
    group: str


@header_class
class QueryTopicConsumeByWhoRequestHeader(Header):
    """QUERY_TOPIC_CONSUME_BY_WHO."""

    topic: str


@header_class
class GetConsumeStatsRequestHeader(Header):
    """GET_CONSUME_STATS."""

    consumer_group: str
    topic: str | None = None


@header_class
class GetConsumeStatsInBrokerHeader(Header):
    """GET_BROKER_CONSUME_STATS."""

    is_order: bool


@header_class
class GetTopicStatsInfoRequestHeader(Header):
    """GET_TOPIC_STATS_INFO."""

    topic: str


@header_class
class GetConsumerConnectionListRequestHeader(Header):
    """GET_CONSUMER_CONNECTION_LIST."""

    consumer_group: str


@header_class
class GetProducerConnectionListRequestHeader(Header):
    """GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str


@header_class
class GetAllProducerInfoRequestHeader(Header):
    """GET_ALL_PRODUCER_INFO."""


@header_class
class QueryConsumeQueueRequestHeader(Header):
    """QUERY_CONSUME_QUEUE."""

    topic: str | None = None
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None


@header_class
class ResumeCheckHalfMessageRequestHeader(Header):
    """RESUME_CHECK_HALF_MESSAGE."""

    msg_id: str | None = None


@header_class
class ViewBrokerStatsDataRequestHeader(Header):
    """VIEW_BROKER_STATS_DATA."""

    stats_name: str
    stats_key: str


@header_class
class GetBrokerConfigResponseHeader(Header):
    """The version of the configuration; its text is in the body."""

    version: str


@header_class
class RegisterFilterServerRequestHeader(Header):
    """REGISTER_FILTER_SERVER."""

    filter_server_addr: str


@header_class
class RegisterFilterServerResponseHeader(Header):
    """The broker that accepted the filter server."""

    broker_name: str
    broker_id: Int64


@header_class
class RegisterMessageFilterClassRequestHeader(Header):
    """REGISTER_MESSAGE_FILTER_CLASS."""

    consumer_group: str
    topic: str
    class_name: str
    class_crc: Annotated[Int32, Wire("classCRC")]


@header_class
class CreateAccessConfigRequestHeader(Header):
    """UPDATE_AND_CREATE_ACL_CONFIG."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


@header_class
class DeleteAccessConfigRequestHeader(Header):
    """DELETE_ACL_CONFIG."""

    access_key: str


@header_class
class UpdateGlobalWhiteAddrsConfigRequestHeader(Header):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG."""

    global_white_addrs: str
    acl_file_full_path: str


@header_class
class GetBrokerAclConfigResponseHeader(Header):
    """The versions of a broker's access control files."""

    version: str
    broker_name: str
    broker_addr: str
    cluster_name: str
    all_acl_file_version: str | None = None


@header_class
class GetBrokerClusterAclConfigResponseHeader(Header):
    """Access configurations as text; the usable form is in the body."""

    plain_access_configs: str
