"""The broker's configuration: RocketMQ's BrokerConfig and the server part of its network keys.

Defaults are those of RocketMQ 4.9.7, in its units. Keys that RocketMQ knows and that
mean nothing here are in `KNOWN_WITHOUT_EFFECT`: files of running brokers load without
noise. One file holds the keys of broker and store: `load_broker_properties` reads it
into both and applies the rules that tie them together.

Read at start-up by the command line. While the broker runs only its live settings change, and
only by `services.live_config`, on the loop.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

from pyromq.base.settings import (
    ConfigError,
    format_settings,
    load_settings,
    setting,
    settings_of,
    unknown_key_hint,
)
from pyromq.protocol.names import MAX_TOPIC_LENGTH, REPLY_TOPIC_SUFFIX, topic_fault
from pyromq.remoting.address import AddressError, parse_addresses
from pyromq.remoting.limits import PeerSettings
from pyromq.store import config as store_config
from pyromq.store.config import BrokerRole, MessageStoreConfig

#: brokerId of a master; replicas have greater numbers.
MASTER_ID = 0

#: Queues of a topic: clients and tools, which look at each of them, cannot cope with more.
MAX_QUEUES = 65_536
#: How far below listenPort the second port is.
_FAST_PORT_DISTANCE = 2
_MAX_HOST_NAME = 253
#: It is in the answer to every send.
_MAX_REGION_LENGTH = 255
#: Names of brokers and clusters are topics, too: folders of the store.
_NAME = re.compile(r"(?!\.)[!-.0-\[\]-~]+")
_HOST_NAME = re.compile(r"[a-zA-Z0-9_]([a-zA-Z0-9_.-]*[a-zA-Z0-9_])?\.?")

_PEERS = PeerSettings(received=256 << 20, unsent=512 << 20)


class BrokerProperties(NamedTuple):
    """A broker's file as values, and one line for each key in it that nothing knows."""

    broker: BrokerConfig
    store: MessageStoreConfig
    warnings: list[str]


def load_broker_properties(properties: Mapping[str, str]) -> BrokerProperties:
    """Read the keys of broker and store from one table, as a broker's start does.

    A master's brokerId is always 0, a replica's must be greater; the replication port is
    always the one after listenPort.
    """
    broker, _ = BrokerConfig.load(properties)
    store, _ = MessageStoreConfig.load(properties)
    if store.broker_role is not BrokerRole.SLAVE:
        broker = dataclasses.replace(broker, broker_id=MASTER_ID)
    elif broker.broker_id <= MASTER_ID:
        raise ConfigError(
            f"brokerId={broker.broker_id}: expected a number above 0, as brokerRole is SLAVE"
        )
    if broker.listen_port:
        store = dataclasses.replace(store, ha_listen_port=min(broker.listen_port + 1, 65535))
    known = known_keys()
    warnings = [
        f"unknown setting {key}{unknown_key_hint(key, known)}: it is ignored"
        for key in properties
        if key not in known
    ]
    return BrokerProperties(broker, store, warnings)


def format_broker_properties(
    broker: BrokerConfig, store: MessageStoreConfig, *, only_important: bool = False
) -> str:
    """All settings (or the important ones) as `key=value` lines: the output of `-p` and `-m`."""
    return format_settings(broker, only_important=only_important) + format_settings(
        store, only_important=only_important
    )


def known_keys() -> set[str]:
    """Every key that a broker's file may hold without a warning."""
    own = {item.key for kind in (BrokerConfig, MessageStoreConfig) for item in settings_of(kind)}
    return own | KNOWN_WITHOUT_EFFECT | store_config.KNOWN_WITHOUT_EFFECT


def local_address() -> str:
    """The address under which other machines most likely reach this one."""
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        # Connecting a datagram socket sends nothing: it only asks for the outgoing interface.
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((elsewhere, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Settings of the broker around its store."""

    bind_address: str = setting(
        "bindAddress",
        "0.0.0.0",  # noqa: S104 clients are on other machines
        "Local address to listen on.",
    )
    listen_port: int = setting(
        "listenPort",
        10911,
        "Port for clients. listenPort - 2 serves them too, listenPort + 1 serves replicas.",
        minimum=0,
        maximum=65535,
    )
    namesrv_addr: str | None = setting(
        "namesrvAddr",
        doc="NameServers as host:port, separated by semicolons; by default NAMESRV_ADDR "
        "of the environment.",
        default_factory=lambda: os.environ.get("NAMESRV_ADDR"),
        important=True,
    )
    broker_ip1: str = setting(
        "brokerIP1",
        doc="Address under which clients reach the broker; by default that of the machine.",
        default_factory=local_address,
        important=True,
    )
    broker_ip2: str = setting(
        "brokerIP2",
        doc="Address under which replicas reach the broker; by default that of the machine.",
        default_factory=local_address,
    )
    broker_name: str = setting(
        "brokerName",
        doc="Name of the master and its replicas together; by default the host name.",
        default_factory=lambda: socket.gethostname() or "DEFAULT_BROKER",
        important=True,
    )
    broker_cluster_name: str = setting(
        "brokerClusterName",
        "DefaultCluster",
        "Name of the cluster that the broker belongs to.",
        important=True,
    )
    broker_id: int = setting(
        "brokerId",
        MASTER_ID,
        "0 for a master; each replica of a broker has its own number above 0.",
        important=True,
        bits=64,
    )
    broker_permission: int = setting(
        "brokerPermission",
        6,
        "What clients may do here: 4 read, 2 write, 6 both.",
        minimum=0,
        maximum=7,
        live=True,
    )
    default_topic_queue_nums: int = setting(
        "defaultTopicQueueNums",
        8,
        "Most queues of a topic that is created by sending to it.",
        minimum=1,
        maximum=MAX_QUEUES,
    )
    auto_create_topic_enable: bool = setting(
        "autoCreateTopicEnable",
        True,
        "Create a topic when it is first sent to.",
        important=True,
        live=True,
    )
    cluster_topic_enable: bool = setting(
        "clusterTopicEnable", True, "Let clients use the topic named after the cluster."
    )
    broker_topic_enable: bool = setting(
        "brokerTopicEnable", True, "Let clients use the topic named after the broker."
    )
    auto_create_subscription_group: bool = setting(
        "autoCreateSubscriptionGroup",
        True,
        "Create a consumer group when it first appears.",
        important=True,
        live=True,
    )
    msg_trace_topic_name: str = setting(
        "msgTraceTopicName",
        "RMQ_SYS_TRACE_TOPIC",
        "Topic of the message traces.",
        important=True,
    )
    trace_topic_enable: bool = setting(
        "traceTopicEnable", False, "Create the topic of the message traces.", important=True
    )
    flush_consumer_offset_interval: int = setting(
        "flushConsumerOffsetInterval",
        5000,
        "Milliseconds between writes of the consumer offsets to disk.",
        minimum=1,
    )
    reject_transaction_message: bool = setting(
        "rejectTransactionMessage",
        False,
        "Refuse transactional messages.",
        important=True,
        live=True,
    )
    send_thread_pool_queue_capacity: int = setting(
        "sendThreadPoolQueueCapacity",
        10_000,
        "Messages to send back, read from the disk, that may wait before [OVERLOAD].",
        minimum=1,
        limit="SYSTEM_BUSY with [OVERLOAD] in the remark; clients try another broker or ask again.",
    )
    pull_thread_pool_queue_capacity: int = setting(
        "pullThreadPoolQueueCapacity",
        100_000,
        "Pulls, of messages on the disk, that may wait before [OVERLOAD].",
        minimum=1,
        limit="SYSTEM_BUSY with [OVERLOAD] in the remark; clients try another broker or ask again.",
    )
    reply_thread_pool_queue_capacity: int = setting(
        "replyThreadPoolQueueCapacity",
        10_000,
        "Replies that may wait for their requesters before [OVERLOAD].",
        minimum=1,
        limit="SYSTEM_BUSY with [OVERLOAD] in the remark; clients try another broker or ask again.",
    )
    query_thread_pool_queue_capacity: int = setting(
        "queryThreadPoolQueueCapacity",
        20_000,
        "Queries that may wait before more are answered [OVERLOAD].",
        minimum=1,
        limit="SYSTEM_BUSY with [OVERLOAD] in the remark; clients try another broker or ask again.",
    )
    client_manager_thread_pool_queue_capacity: int = setting(
        "clientManagerThreadPoolQueueCapacity",
        1_000_000,
        "Client requests other than heartbeats that may wait before [OVERLOAD].",
        minimum=1,
    )
    consumer_manager_thread_pool_queue_capacity: int = setting(
        "consumerManagerThreadPoolQueueCapacity",
        1_000_000,
        "Offset requests that may wait before more are answered [OVERLOAD].",
        minimum=1,
    )
    heartbeat_thread_pool_queue_capacity: int = setting(
        "heartbeatThreadPoolQueueCapacity",
        50_000,
        "Very large heartbeats that may wait before more are answered [OVERLOAD].",
        minimum=1,
        limit="SYSTEM_BUSY with [OVERLOAD] in the remark; clients try another broker or ask again.",
    )
    end_transaction_pool_queue_capacity: int = setting(
        "endTransactionPoolQueueCapacity",
        100_000,
        "Ends of transactions, with halves on the disk, that may wait before [OVERLOAD].",
        minimum=1,
        limit="SYSTEM_BUSY with [OVERLOAD] in the remark; clients try another broker or ask again.",
    )
    bulk_pull_max_bytes: int = setting(
        "bulkPullMaxBytes",
        4 * 1024 * 1024,
        "Bytes that a pull may carry when it asks for more than usual (maxMsgBytes); 0: never.",
        minimum=0,
        maximum=15 * 1024 * 1024,
        live=True,
        limit="The answer carries fewer messages than were asked for.",
    )
    long_polling_enable: bool = setting(
        "longPollingEnable",
        True,
        "Hold a pull that finds nothing until messages arrive.",
        live=True,
    )
    short_polling_time_mills: int = setting(
        "shortPollingTimeMills",
        1000,
        "Milliseconds for which a pull is held when long polling is off.",
        bits=64,
        minimum=1,
        live=True,
    )
    max_suspend_timeout_millis: int = setting(
        "maxSuspendTimeoutMillis",
        300_000,
        "Milliseconds for which a pull is held at most, whatever its client asks for.",
        minimum=1,
        live=True,
        limit="The pull is answered PULL_NOT_FOUND when this time is over.",
    )
    max_parked_pulls: int = setting(
        "maxParkedPulls",
        400_000,
        "Pulls that may wait for messages at the same time.",
        minimum=1,
        live=True,
        limit="The pull is answered SYSTEM_BUSY; clients ask again some seconds later.",
    )
    max_parked_pulls_per_connection: int = setting(
        "maxParkedPullsPerConnection",
        100_000,
        "Pulls of one connection that may wait for messages at the same time.",
        minimum=1,
        live=True,
        limit="The pull is answered SYSTEM_BUSY; clients ask again some seconds later.",
    )
    max_parked_expression_size: int = setting(
        "maxParkedExpressionSize",
        64 * 1024 * 1024,
        "Characters of all expressions that waiting pulls bring along.",
        minimum=0,
        live=True,
        limit="A pull that brings an expression is answered SYSTEM_BUSY.",
    )
    notify_consumer_ids_changed_enable: bool = setting(
        "notifyConsumerIdsChangedEnable",
        True,
        "Tell the members of a group when its membership changes.",
        live=True,
    )
    region_id: str = setting(
        "regionId",
        "DefaultRegion",
        "Region that answers to sends name, for message traces.",
        live=True,
    )
    register_broker_timeout_mills: int = setting(
        "registerBrokerTimeoutMills",
        6000,
        "Milliseconds for a NameServer to answer a registration.",
        minimum=1,
        live=True,
    )
    slave_read_enable: bool = setting(
        "slaveReadEnable", False, "Send consumers that lag far behind to a replica.", live=True
    )
    broker_fast_failure_enable: bool = setting(
        "brokerFastFailureEnable", True, "Refuse requests that waited too long.", live=True
    )
    wait_time_mills_in_send_queue: int = setting(
        "waitTimeMillsInSendQueue",
        200,
        "Milliseconds a send may wait before it is refused.",
        bits=64,
        minimum=1,
        live=True,
        limit="SYSTEM_BUSY with [TIMEOUT_CLEAN_QUEUE] in the remark.",
    )
    wait_time_mills_in_pull_queue: int = setting(
        "waitTimeMillsInPullQueue",
        5000,
        "Milliseconds a pull may wait for its turn before it is refused.",
        bits=64,
        minimum=1,
        live=True,
        limit="SYSTEM_BUSY with [TIMEOUT_CLEAN_QUEUE] in the remark.",
    )
    wait_time_mills_in_heartbeat_queue: int = setting(
        "waitTimeMillsInHeartbeatQueue",
        31_000,
        "Milliseconds a heartbeat may wait before it is refused.",
        bits=64,
        minimum=1,
        live=True,
        limit="SYSTEM_BUSY with [TIMEOUT_CLEAN_QUEUE] in the remark.",
    )
    wait_time_mills_in_transaction_queue: int = setting(
        "waitTimeMillsInTransactionQueue",
        3000,
        "Milliseconds the end of a transaction may wait before it is refused.",
        bits=64,
        minimum=1,
        live=True,
        limit="SYSTEM_BUSY with [TIMEOUT_CLEAN_QUEUE] in the remark.",
    )
    start_accept_send_request_time_stamp: int = setting(
        "startAcceptSendRequestTimeStamp",
        0,
        "Milliseconds since 1970 before which sends are refused.",
        bits=64,
        minimum=0,
        live=True,
    )
    trace_on: bool = setting(
        "traceOn", True, "Tell producers that message traces are wanted.", live=True
    )
    enable_calc_filter_bit_map: bool = setting(
        "enableCalcFilterBitMap",
        False,
        "Evaluate filters when a message is stored and keep the result as a bit map "
        "(with enableConsumeQueueExt).",
    )
    expect_consumer_num_use_filter: int = setting(
        "expectConsumerNumUseFilter",
        32,
        "Consumer groups with filters that the bit map is sized for.",
        minimum=1,
    )
    max_error_rate_of_bloom_filter: int = setting(
        "maxErrorRateOfBloomFilter",
        20,
        "Percent of wrong hits that the bit map may have.",
        minimum=1,
        maximum=99,
    )
    filter_data_clean_time_span: int = setting(
        "filterDataCleanTimeSpan",
        24 * 3600 * 1000,
        "Milliseconds for which the filter of a vanished consumer is kept.",
        bits=64,
        minimum=0,
        live=True,
    )
    filter_support_retry: bool = setting(
        "filterSupportRetry", False, "Apply property filters to retried messages too.", live=True
    )
    enable_property_filter: bool = setting(
        "enablePropertyFilter", False, "Let consumers filter by SQL92 over properties.", live=True
    )
    compressed_register: bool = setting(
        "compressedRegister", False, "Compress the topics in a registration."
    )
    force_register: bool = setting(
        "forceRegister",
        True,
        "Register each time; otherwise only at NameServers that have another data version.",
        live=True,
    )
    register_name_server_period: int = setting(
        "registerNameServerPeriod",
        30_000,
        "Milliseconds between registrations; used from 10,000 to 60,000.",
    )
    transaction_time_out: int = setting(
        "transactionTimeOut",
        6000,
        "Milliseconds after which an unresolved transaction is first checked.",
        important=True,
        bits=64,
        minimum=0,
        live=True,
    )
    transaction_check_max: int = setting(
        "transactionCheckMax",
        15,
        "Checks after which an unresolved transaction is given up.",
        important=True,
        minimum=0,
        live=True,
    )
    transaction_check_interval: int = setting(
        "transactionCheckInterval",
        60_000,
        "Milliseconds between checks of unresolved transactions.",
        important=True,
        bits=64,
        minimum=1,
        live=True,
    )
    store_reply_message_enable: bool = setting(
        "storeReplyMessageEnable",
        True,
        "Store the replies of request-reply messages too.",
        live=True,
    )
    auto_delete_unused_stats: bool = setting(
        "autoDeleteUnusedStats",
        False,
        "Forget the statistics of a topic or group when it is deleted.",
        live=True,
    )
    max_topics: int = setting(
        "maxTopics",
        # Below what a NameServer takes of one broker: topics of the system are exempt here.
        90_000,
        "Topics that the broker may have, retry and dead-letter topics included.",
        minimum=0,
        live=True,
        limit="A request that needs a new topic gets SYSTEM_ERROR; topics that exist work on.",
    )
    max_subscription_groups: int = setting(
        "maxSubscriptionGroups",
        100_000,
        "Consumer groups that the broker may know.",
        minimum=0,
        live=True,
        limit="A request that needs a new group gets SUBSCRIPTION_GROUP_NOT_EXIST with the reason.",
    )
    max_groups_per_heartbeat: int = setting(
        "maxGroupsPerHeartbeat",
        5_000,
        "Consumer and producer groups that one heartbeat may name.",
        minimum=1,
        live=True,
        limit="The heartbeat gets SYSTEM_ERROR, and nothing of it counts.",
    )
    max_groups_per_connection: int = setting(
        "maxGroupsPerConnection",
        10_000,
        "Consumer and producer groups, and so client ids, of one connection.",
        minimum=1,
        live=True,
        limit="A heartbeat with more gets SYSTEM_ERROR, and nothing of it counts.",
    )
    max_subscriptions_per_heartbeat: int = setting(
        "maxSubscriptionsPerHeartbeat",
        20_000,
        "Subscriptions that the groups of one heartbeat may have together.",
        minimum=1,
        live=True,
        limit="The heartbeat gets SYSTEM_ERROR, and nothing of it counts.",
    )
    max_subscription_bytes: int = setting(
        "maxSubscriptionBytes",
        256 * 1024 * 1024,
        "Bytes of memory that the subscriptions of all connected groups may take.",
        bits=64,
        minimum=0,
        live=True,
        limit="A heartbeat with larger subscriptions gets SYSTEM_ERROR; its group does not join.",
    )
    max_consumer_filters: int = setting(
        "maxConsumerFilters",
        10_000,
        "Subscriptions by SQL92 that the broker remembers.",
        minimum=0,
        live=True,
        limit="A subscription more has no filter: its pulls get FILTER_DATA_NOT_EXIST.",
    )
    max_consumer_filter_bytes: int = setting(
        "maxConsumerFilterBytes",
        16 * 1024 * 1024,
        "Bytes that the SQL92 expressions of all subscriptions may have together.",
        bits=64,
        minimum=0,
        live=True,
        limit="A subscription more has no filter: its pulls get FILTER_DATA_NOT_EXIST.",
    )
    max_queues_per_lock_request: int = setting(
        "maxQueuesPerLockRequest",
        65_536,
        "Queues that one request may lock or unlock for orderly consumption.",
        minimum=1,
        live=True,
        limit="The request gets SYSTEM_ERROR, and no queue is locked or unlocked.",
    )
    max_queue_locks: int = setting(
        "maxQueueLocks",
        500_000,
        "Locks of queues that the broker keeps: for orderly consumers, and for pyromq's others, "
        "which hand queues over by them.",
        minimum=1,
        live=True,
        limit="The queues that are over the limit are not locked; the client asks again.",
    )
    max_consumer_offsets: int = setting(
        "maxConsumerOffsets",
        200_000,
        "Pairs of topic and group whose offsets the broker keeps; groups that it does not know "
        "may take a tenth of them.",
        minimum=1,
        live=True,
        limit="The first commit of another pair gets SYSTEM_ERROR.",
    )
    max_request_body_size: int = setting(
        "maxRequestBodySize",
        1024 * 1024,
        "Bytes of the body of a request that is no message, heartbeat or lock, and of a client's "
        "answer about its status.",
        minimum=0,
        live=True,
        limit="The request gets SYSTEM_ERROR before its body is parsed; the answer is ignored.",
    )
    max_heartbeat_body_size: int = setting(
        "maxHeartbeatBodySize",
        8 * 1024 * 1024,
        "Bytes of the body of a heartbeat, or of a request to lock or unlock queues.",
        minimum=0,
        live=True,
        limit="The request gets SYSTEM_ERROR before its body is parsed.",
    )
    server_channel_max_idle_time_seconds: int = setting(
        "serverChannelMaxIdleTimeSeconds",
        120,
        "Seconds of silence after which a connection is closed.",
        minimum=1,
        limit="The connection is closed.",
    )
    server_socket_snd_buf_size: int = setting(
        "serverSocketSndBufSize",
        0,
        "Bytes of a connection's send buffer; 0 leaves it to the system.",
        minimum=0,
    )
    server_socket_rcv_buf_size: int = setting(
        "serverSocketRcvBufSize",
        0,
        "Bytes of a connection's receive buffer; 0 leaves it to the system.",
        minimum=0,
    )
    write_buffer_high_water_mark: int = setting(
        "writeBufferHighWaterMark",
        0,
        "Unsent bytes above which a connection is not read from; 0 takes the default.",
        minimum=0,
    )
    write_buffer_low_water_mark: int = setting(
        "writeBufferLowWaterMark",
        0,
        "Unsent bytes below which a connection is read from again; 0 takes the default.",
        minimum=0,
    )
    max_connections: int = _PEERS.max_connections
    max_connections_per_address: int = _PEERS.max_connections_per_address
    max_received_bytes: int = _PEERS.max_received_bytes
    max_unsent_bytes: int = _PEERS.max_unsent_bytes
    max_frame_seconds: int = _PEERS.max_frame_seconds
    server_socket_backlog: int = setting(
        "serverSocketBacklog", 1024, "Connections that may wait to be accepted.", minimum=1
    )

    def __post_init__(self) -> None:
        if self.namesrv_addr:
            try:
                parse_addresses(self.namesrv_addr)
            except AddressError as error:
                raise ConfigError(
                    f"namesrvAddr={self.namesrv_addr}: expected host:port, separated by "
                    f"semicolons; {error}"
                ) from None
        for key, value in (
            ("brokerName", self.broker_name),
            ("brokerClusterName", self.broker_cluster_name),
            ("brokerIP1", self.broker_ip1),
            ("brokerIP2", self.broker_ip2),
        ):
            if not value.strip():
                raise ConfigError(f"{key}={value}: expected a value")
        for key, value, length in (
            ("brokerName", self.broker_name, MAX_TOPIC_LENGTH),
            (
                "brokerClusterName",
                self.broker_cluster_name,
                MAX_TOPIC_LENGTH - len(REPLY_TOPIC_SUFFIX),
            ),
        ):
            if len(value) > length or not _NAME.fullmatch(value):
                raise ConfigError(
                    f"{key}={value!r:.100}: expected at most {length} visible ASCII characters "
                    "without / and \\, the first one not a dot"
                )
        fault = topic_fault(self.msg_trace_topic_name)
        if fault is not None:
            raise ConfigError(f"msgTraceTopicName={self.msg_trace_topic_name!r:.100}: {fault}")
        if len(self.region_id) > _MAX_REGION_LENGTH:
            raise ConfigError(
                f"regionId={self.region_id:.100}...: expected at most {_MAX_REGION_LENGTH} "
                "characters"
            )
        for key, value in (("brokerIP1", self.broker_ip1), ("brokerIP2", self.broker_ip2)):
            if not _is_host(value):
                raise ConfigError(
                    f"{key}={value}: expected an IP address or a host name, without a port"
                )
        if 0 < self.listen_port <= _FAST_PORT_DISTANCE:
            raise ConfigError(
                f"listenPort={self.listen_port}: expected 0 or a number above "
                f"{_FAST_PORT_DISTANCE}, as listenPort - {_FAST_PORT_DISTANCE} is a port too"
            )

    @classmethod
    def load(cls, properties: Mapping[str, str]) -> tuple[Self, list[str]]:
        """Build from a properties table; also returns the keys that are not the broker's."""
        config, others = load_settings(cls, properties)
        if properties.get("aclEnable", "false").strip().lower() == "true":
            # Ignoring this key would leave open a broker that its owner believes closed.
            raise ConfigError(
                "aclEnable=true: expected false; this broker cannot check access keys, so it "
                "must be protected by the network"
            )
        return config, [key for key in others if key not in KNOWN_WITHOUT_EFFECT]

    @property
    def name_servers(self) -> list[str]:
        """The NameServers' addresses; empty when none is set."""
        return parse_addresses(self.namesrv_addr) if self.namesrv_addr else []


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return len(text) <= _MAX_HOST_NAME and _HOST_NAME.fullmatch(text) is not None
    return True


#: Keys of RocketMQ's broker and its network layer that mean nothing here: sizes of thread
#: pools that this broker does not have, knobs of Netty, and parts of RocketMQ's own
#: surroundings (address server, filter server, commercial statistics, log directories).
KNOWN_WITHOUT_EFFECT = frozenset(
    {
        "aclEnable",
        "adminBrokerThreadPoolNums",
        "channelNotActiveInterval",
        "clientAsyncSemaphoreValue",
        "clientCallbackExecutorThreads",
        "clientChannelMaxIdleTimeSeconds",
        "clientCloseSocketIfTimeout",
        "clientManageThreadPoolNums",
        "clientOnewaySemaphoreValue",
        "clientPooledByteBufAllocatorEnable",
        "clientSocketRcvBufSize",
        "clientSocketSndBufSize",
        "clientWorkerThreads",
        "commercialBaseCount",
        "commercialBigCount",
        "commercialEnable",
        "commercialTimerCount",
        "commercialTransCount",
        "connectTimeoutMillis",
        "consumerFallbehindThreshold",
        "consumerManageThreadPoolNums",
        "disableConsumeIfConsumerReadSlowly",
        "enableDetailStat",
        "endTransactionThreadPoolNums",
        "fetchNamesrvAddrByAddressServer",
        "filterServerNums",
        "flushConsumerOffsetHistoryInterval",
        "heartbeatThreadPoolNums",
        "highSpeedMode",
        "isolateLogEnable",
        "maxDelayTime",
        "messageStorePlugIn",
        "processReplyMessageThreadPoolNums",
        "pullMessageThreadPoolNums",
        "putMessageFutureThreadPoolNums",
        "putThreadPoolQueueCapacity",
        "queryMessageThreadPoolNums",
        "rmqAddressServerDomain",
        "rmqAddressServerSubGroup",
        "rocketmqHome",
        "sendMessageThreadPoolNums",
        "serverAsyncSemaphoreValue",
        "serverCallbackExecutorThreads",
        "serverOnewaySemaphoreValue",
        "serverPooledByteBufAllocatorEnable",
        "serverSelectorThreads",
        "serverWorkerThreads",
        "transferMsgByHeap",
        "useEpollNativeSelector",
        "useTLS",
    }
)
