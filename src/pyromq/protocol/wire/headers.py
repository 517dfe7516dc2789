"""Headers of requests about messages, offsets, clients, topics and broker registration.

One class per header of RocketMQ 4.9.7, named as in Java; `headers_admin` has those of the rarer
admin requests. Attributes are snake_case, wire names camelCase unless a field says otherwise.
Required fields come first. `X.decode(ext_fields)` reads and `x.encode()` writes, see
`header_codec`.

Pure. Used by servers, clients and admin tools.
"""

from __future__ import annotations

from typing import Annotated

from pyromq.protocol.java.wire_types import Int32, Int64, Wire
from pyromq.protocol.wire.header_codec import Header as Header
from pyromq.protocol.wire.header_codec import HeaderError as HeaderError
from pyromq.protocol.wire.header_codec import header_class


@header_class
class SendMessageRequestHeader(Header):
    """SEND_MESSAGE and SEND_REPLY_MESSAGE."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    batch: bool = False
    max_reconsume_times: Int32 | None = None


@header_class
class SendMessageRequestHeaderV2(Header):
    """SEND_MESSAGE_V2, SEND_BATCH_MESSAGE, SEND_REPLY_MESSAGE_V2: the same with short names."""

    producer_group: Annotated[str, Wire("a")]
    topic: Annotated[str, Wire("b")]
    default_topic: Annotated[str, Wire("c")]
    default_topic_queue_nums: Annotated[Int32, Wire("d")]
    queue_id: Annotated[Int32, Wire("e")]
    sys_flag: Annotated[Int32, Wire("f")]
    born_timestamp: Annotated[Int64, Wire("g")]
    flag: Annotated[Int32, Wire("h")]
    properties: Annotated[str | None, Wire("i")] = None
    reconsume_times: Annotated[Int32 | None, Wire("j")] = None
    unit_mode: Annotated[bool, Wire("k")] = False
    max_reconsume_times: Annotated[Int32 | None, Wire("l")] = None
    batch: Annotated[bool, Wire("m")] = False
    broker_name: Annotated[str | None, Wire("n")] = None


@header_class
class SendMessageResponseHeader(Header):
    """The queue and offset at which a message was stored."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None


@header_class
class ReplyMessageRequestHeader(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT: a reply that the broker forwards to the requester."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False


@header_class
class ConsumerSendMsgBackRequestHeader(Header):
    """CONSUMER_SEND_MSG_BACK: a message to retry later."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


@header_class
class EndTransactionRequestHeader(Header):
    """END_TRANSACTION: commit or roll back a half message."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None


@header_class
class EndTransactionResponseHeader(Header):
    """Response to END_TRANSACTION."""


@header_class
class CheckTransactionStateRequestHeader(Header):
    """CHECK_TRANSACTION_STATE: the broker asks a producer how a transaction ended."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


@header_class
class CheckTransactionStateResponseHeader(Header):
    """How a transaction ended."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32


@header_class
class PullMessageRequestHeader(Header):
    """PULL_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    #: Sent by 5.x clients; 4.9 brokers apply only their own limits.
    max_msg_bytes: Int32 | None = None


@header_class
class PullMessageResponseHeader(Header):
    """The range of the queue and the next offset to pull."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64


@header_class
class QueryConsumerOffsetRequestHeader(Header):
    """QUERY_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Int32


@header_class
class QueryConsumerOffsetResponseHeader(Header):
    """A group's offset in a queue."""

    offset: Int64


@header_class
class UpdateConsumerOffsetRequestHeader(Header):
    """UPDATE_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


@header_class
class UpdateConsumerOffsetResponseHeader(Header):
    """Response to UPDATE_CONSUMER_OFFSET."""


@header_class
class GetMaxOffsetRequestHeader(Header):
    """GET_MAX_OFFSET."""

    topic: str
    queue_id: Int32


@header_class
class GetMaxOffsetResponseHeader(Header):
    """The offset that the next message of the queue will get."""

    offset: Int64


@header_class
class GetMinOffsetRequestHeader(Header):
    """GET_MIN_OFFSET."""

    topic: str
    queue_id: Int32


@header_class
class GetMinOffsetResponseHeader(Header):
    """The first offset that the queue still has."""

    offset: Int64


@header_class
class SearchOffsetRequestHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP."""

    topic: str
    queue_id: Int32
    timestamp: Int64


@header_class
class SearchOffsetResponseHeader(Header):
    """The offset found for a time."""

    offset: Int64


@header_class
class GetEarliestMsgStoretimeRequestHeader(Header):
    """GET_EARLIEST_MSG_STORETIME."""

    topic: str
    queue_id: Int32


@header_class
class GetEarliestMsgStoretimeResponseHeader(Header):
    """When the first message of the queue was stored."""

    timestamp: Int64


@header_class
class UnregisterClientRequestHeader(Header):
    """UNREGISTER_CLIENT."""

    client_id: Annotated[str, Wire("clientID")]
    producer_group: str | None = None
    consumer_group: str | None = None


@header_class
class UnregisterClientResponseHeader(Header):
    """Response to UNREGISTER_CLIENT."""


@header_class
class GetConsumerListByGroupRequestHeader(Header):
    """GET_CONSUMER_LIST_BY_GROUP."""

    consumer_group: str


@header_class
class GetConsumerListByGroupResponseHeader(Header):
    """Response to GET_CONSUMER_LIST_BY_GROUP; the list is in the body."""


@header_class
class NotifyConsumerIdsChangedRequestHeader(Header):
    """NOTIFY_CONSUMER_IDS_CHANGED: the members of a group have changed."""

    consumer_group: str


@header_class
class QueryMessageRequestHeader(Header):
    """QUERY_MESSAGE: messages by key."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64


@header_class
class QueryMessageResponseHeader(Header):
    """The newest message in the key index."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


@header_class
class ViewMessageRequestHeader(Header):
    """VIEW_MESSAGE_BY_ID: one message by its physical offset."""

    offset: Int64


@header_class
class ViewMessageResponseHeader(Header):
    """Response to VIEW_MESSAGE_BY_ID; the record is in the body."""


@header_class
class CreateTopicRequestHeader(Header):
    """UPDATE_AND_CREATE_TOPIC."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool = False


@header_class
class DeleteTopicRequestHeader(Header):
    """DELETE_TOPIC_IN_BROKER."""

    topic: str


@header_class
class GetAllTopicConfigResponseHeader(Header):
    """Response to GET_ALL_TOPIC_CONFIG; the table is in the body."""


@header_class
class DeleteSubscriptionGroupRequestHeader(Header):
    """DELETE_SUBSCRIPTIONGROUP."""

    group_name: str
    remove_offset: bool = False


@header_class
class RegisterBrokerRequestHeader(Header):
    """REGISTER_BROKER."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int32 = 0


@header_class
class RegisterBrokerResponseHeader(Header):
    """The master's addresses, for a replica."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@header_class
class UnRegisterBrokerRequestHeader(Header):
    """UNREGISTER_BROKER."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


@header_class
class QueryDataVersionRequestHeader(Header):
    """QUERY_DATA_VERSION: asks whether the NameServer has this version of the topics."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


@header_class
class QueryDataVersionResponseHeader(Header):
    """Whether the NameServer has another version."""

    changed: bool


@header_class
class GetRouteInfoRequestHeader(Header):
    """GET_ROUTEINFO_BY_TOPIC."""

    topic: str
    accept_standard_json_only: bool | None = None
