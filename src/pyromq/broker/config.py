"""The broker's configuration: RocketMQ's BrokerConfig and the server part of its network keys.

Defaults and units are RocketMQ 4.9.7's. Settings that RocketMQ does not have are inherited from
`limit_settings`, `access_settings`, `replication_settings`, `upkeep_settings` and
`metrics_settings`; RocketMQ's keys
without a field are listed in `base.unsupported_settings`. One file holds the keys of broker and
store: `load_broker_properties` reads both and applies the rules that tie them together.

Loaded at start-up by the command line. At run time only `services.live_config` changes a
configuration, only its live settings, and only on the loop.
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

from pyromq.base.log_levels import parse_levels
from pyromq.base.settings import (
    ConfigError,
    format_settings,
    load_settings,
    refuse_unsupported,
    setting,
    setting_warnings,
    settings_of,
    shown,
)
from pyromq.base.unsupported_settings import BROKER, STORE
from pyromq.broker.metrics_settings import BrokerMetricsSettings
from pyromq.protocol.names import MAX_TOPIC_LENGTH, REPLY_TOPIC_SUFFIX, topic_fault
from pyromq.remoting.address import AddressError, parse_address, parse_addresses
from pyromq.remoting.socket_options import SocketSettings, check_water_marks
from pyromq.store.config import BrokerRole, MessageStoreConfig
from pyromq.tls.settings import with_tls_file

#: brokerId of a master; replicas have greater numbers.
MASTER_ID = 0

#: RocketMQ's keys that the file may hold and that have no field.
UNSUPPORTED = {**BROKER, **STORE}

#: Maximum queues of a topic: clients and tools visit each queue, and cannot handle more.
MAX_QUEUES = 65_536
#: Distance from listenPort down to the second client port.
FAST_PORT_DISTANCE = 2
_MAX_HOST_NAME = 253
#: Maximum characters of regionId, which is part of every send response.
_MAX_REGION_LENGTH = 255
#: Names of brokers and clusters double as topics, and thus as directories of the store.
_NAME = re.compile(r"(?!\.)[!-.0-\[\]-~]+")
_HOST_NAME = re.compile(r"[a-zA-Z0-9_]([a-zA-Z0-9_.-]*[a-zA-Z0-9_])?\.?")

_SOCKETS = SocketSettings()

_OVERLOAD = "The broker answers SYSTEM_BUSY with [OVERLOAD]; clients retry or use another broker."
_TIMEOUT = "The broker answers SYSTEM_BUSY with [TIMEOUT_CLEAN_QUEUE]."
_NOTHING_QUEUES = "such requests are handled at once on the event loop and never queue up"


class BrokerProperties(NamedTuple):
    """A loaded broker file, with a warning for each key in it that has no effect."""

    broker: BrokerConfig
    store: MessageStoreConfig
    warnings: list[str]


def load_broker_properties(properties: Mapping[str, str]) -> BrokerProperties:
    """Read the keys of broker and store from one table.

    Raise ConfigError for an invalid value and for a setting that must not be ignored. As in
    RocketMQ, the brokerId of a master is 0 and the replication port is listenPort + 1.
    """
    properties = with_tls_file(properties)
    warnings = setting_warnings(properties, (BrokerConfig, MessageStoreConfig), UNSUPPORTED)
    broker, _ = BrokerConfig.load(properties)
    store, _ = MessageStoreConfig.load(properties)
    _check_master_address(store)
    if store.enable_dleger_commit_log:
        # The group decides who is the master.
        store = dataclasses.replace(store, broker_role=BrokerRole.ASYNC_MASTER)
        broker = dataclasses.replace(broker, broker_id=store.raft_broker_id)
    elif store.broker_role is BrokerRole.SLAVE:
        if broker.broker_id <= MASTER_ID:
            raise ConfigError(
                f"brokerId={broker.broker_id}: expected a number above {MASTER_ID} with "
                f"brokerRole=SLAVE; {MASTER_ID} is the id of the master"
            )
    elif broker.broker_id != MASTER_ID:
        warnings.append(
            f"brokerId={broker.broker_id} has no effect: the brokerId of a master is {MASTER_ID}"
        )
        broker = dataclasses.replace(broker, broker_id=MASTER_ID)
    if broker.listen_port:
        port = broker.listen_port + 1
        if "haListenPort" in properties and store.ha_listen_port != port:
            warnings.append(
                f"haListenPort={store.ha_listen_port} has no effect: the replication port is "
                f"listenPort + 1, {port}"
            )
        store = dataclasses.replace(store, ha_listen_port=port)
    return BrokerProperties(broker, store, warnings)


def _check_master_address(store: MessageStoreConfig) -> None:
    if store.ha_master_address is None:
        return
    try:
        parse_address(store.ha_master_address)
    except AddressError as error:
        raise ConfigError(
            f"haMasterAddress={shown(store.ha_master_address)}: expected the host and the "
            f"replication port of the master; {error}"
        ) from None


def format_broker_properties(
    broker: BrokerConfig, store: MessageStoreConfig, *, only_important: bool = False
) -> str:
    """Return all settings (or the important ones) as `key=value` lines, for `-p` and `-m`."""
    return format_settings(broker, only_important=only_important) + format_settings(
        store, only_important=only_important
    )


def known_keys() -> set[str]:
    """Return every key that is not reported as unknown in a broker's file."""
    own = {item.key for kind in (BrokerConfig, MessageStoreConfig) for item in settings_of(kind)}
    return own | UNSUPPORTED.keys()


def local_address() -> str:
    """Return the address under which other machines most likely reach this one."""
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        # Connecting a datagram socket sends nothing; it only selects the outgoing interface.
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((elsewhere, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


@dataclass(frozen=True, slots=True)
class BrokerConfig(BrokerMetricsSettings):
    """Settings of the broker around its store."""

    bind_address: str = setting(
        "bindAddress",
        "0.0.0.0",  # noqa: S104 clients are on other machines
        "Listen on this local address.",
    )
    listen_port: int = setting(
        "listenPort",
        10911,
        "Serve clients on this port and on listenPort - 2; listenPort + 1 is the replication port. "
        "0 takes any free port.",
        minimum=0,
        maximum=65534,
    )
    namesrv_addr: str | None = setting(
        "namesrvAddr",
        doc="Register with these NameServers, given as host:port and separated by semicolons. The "
        "default comes from the NAMESRV_ADDR environment variable.",
        default_factory=lambda: os.environ.get("NAMESRV_ADDR"),
        important=True,
    )
    broker_ip1: str = setting(
        "brokerIP1",
        doc="Announce this address or host name to clients. The default is the address of the "
        "machine.",
        default_factory=local_address,
        important=True,
    )
    broker_ip2: str = setting(
        "brokerIP2",
        doc="Announce this address or host name to replicas. The default is the address of the "
        "machine.",
        default_factory=local_address,
    )
    broker_name: str = setting(
        "brokerName",
        doc="Register under this name, which a master shares with its replicas. The default is the "
        "host name.",
        default_factory=lambda: socket.gethostname() or "DEFAULT_BROKER",
        important=True,
    )
    broker_cluster_name: str = setting(
        "brokerClusterName",
        "DefaultCluster",
        "Join the cluster of this name.",
        important=True,
    )
    broker_id: int = setting(
        "brokerId",
        MASTER_ID,
        "Tell the brokers of one name apart: 0 is the master, which always has this id; replicas "
        "have greater numbers.",
        important=True,
        bits=64,
    )
    broker_permission: int = setting(
        "brokerPermission",
        6,
        "Allow clients to read (4), to write (2) or both (6).",
        minimum=0,
        maximum=7,
        live=True,
    )
    default_topic_queue_nums: int = setting(
        "defaultTopicQueueNums",
        8,
        "Give an automatically created topic at most this many queues.",
        minimum=1,
        maximum=MAX_QUEUES,
    )
    auto_create_topic_enable: bool = setting(
        "autoCreateTopicEnable",
        True,
        "Create a topic on the first send to it.",
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
        "Create a consumer group when it first connects.",
        important=True,
        live=True,
    )
    msg_trace_topic_name: str = setting(
        "msgTraceTopicName",
        "RMQ_SYS_TRACE_TOPIC",
        "Store message traces in this topic.",
        important=True,
    )
    trace_topic_enable: bool = setting(
        "traceTopicEnable", False, "Create the topic of the message traces.", important=True
    )
    flush_consumer_offset_interval: int = setting(
        "flushConsumerOffsetInterval",
        5000,
        "Save consumer offsets at this interval, in milliseconds.",
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
        "Queue at most this many messages that consumers sent back and that must be read from "
        "disk.",
        minimum=1,
        limit=_OVERLOAD,
    )
    pull_thread_pool_queue_capacity: int = setting(
        "pullThreadPoolQueueCapacity",
        100_000,
        "Queue at most this many pulls of messages that must be read from disk.",
        minimum=1,
        limit=_OVERLOAD,
    )
    reply_thread_pool_queue_capacity: int = setting(
        "replyThreadPoolQueueCapacity",
        10_000,
        "Queue at most this many replies for their requesters.",
        minimum=1,
        limit=_OVERLOAD,
    )
    query_thread_pool_queue_capacity: int = setting(
        "queryThreadPoolQueueCapacity",
        20_000,
        "Queue at most this many queries.",
        minimum=1,
        limit=_OVERLOAD,
    )
    client_manager_thread_pool_queue_capacity: int = setting(
        "clientManagerThreadPoolQueueCapacity",
        1_000_000,
        "Queue at most this many client requests other than heartbeats.",
        minimum=1,
        ignored=_NOTHING_QUEUES,
    )
    consumer_manager_thread_pool_queue_capacity: int = setting(
        "consumerManagerThreadPoolQueueCapacity",
        1_000_000,
        "Queue at most this many offset requests.",
        minimum=1,
        ignored=_NOTHING_QUEUES,
    )
    heartbeat_thread_pool_queue_capacity: int = setting(
        "heartbeatThreadPoolQueueCapacity",
        50_000,
        "Queue at most this many very large heartbeats.",
        minimum=1,
        limit=_OVERLOAD,
    )
    end_transaction_pool_queue_capacity: int = setting(
        "endTransactionPoolQueueCapacity",
        100_000,
        "Queue at most this many commits and rollbacks whose half message must be read from disk.",
        minimum=1,
        limit=_OVERLOAD,
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
        "Hold a pull for this many milliseconds if long polling is off.",
        bits=64,
        minimum=1,
        live=True,
    )
    notify_consumer_ids_changed_enable: bool = setting(
        "notifyConsumerIdsChangedEnable",
        True,
        "Notify the members of a group when its membership changes.",
        live=True,
    )
    region_id: str = setting(
        "regionId",
        "DefaultRegion",
        "Name this region in send responses, for message traces.",
        live=True,
    )
    register_broker_timeout_mills: int = setting(
        "registerBrokerTimeoutMills",
        6000,
        "Wait this many milliseconds for a NameServer to answer a registration.",
        minimum=1,
        live=True,
    )
    slave_read_enable: bool = setting(
        "slaveReadEnable",
        False,
        "Redirect consumers that lag far behind to a replica, and let a replica keep them.",
        live=True,
    )
    broker_fast_failure_enable: bool = setting(
        "brokerFastFailureEnable",
        True,
        "Refuse requests that waited longer than the waitTimeMillsIn... settings allow.",
        live=True,
    )
    wait_time_mills_in_send_queue: int = setting(
        "waitTimeMillsInSendQueue",
        200,
        "Let a send wait for at most this many milliseconds.",
        bits=64,
        minimum=1,
        live=True,
        limit=_TIMEOUT,
    )
    wait_time_mills_in_pull_queue: int = setting(
        "waitTimeMillsInPullQueue",
        5000,
        "Let a pull wait for at most this many milliseconds.",
        bits=64,
        minimum=1,
        live=True,
        limit=_TIMEOUT,
    )
    wait_time_mills_in_heartbeat_queue: int = setting(
        "waitTimeMillsInHeartbeatQueue",
        31_000,
        "Let a heartbeat wait for at most this many milliseconds.",
        bits=64,
        minimum=1,
        live=True,
        limit=_TIMEOUT,
    )
    wait_time_mills_in_transaction_queue: int = setting(
        "waitTimeMillsInTransactionQueue",
        3000,
        "Let a commit or rollback wait for at most this many milliseconds.",
        bits=64,
        minimum=1,
        live=True,
        limit=_TIMEOUT,
    )
    start_accept_send_request_time_stamp: int = setting(
        "startAcceptSendRequestTimeStamp",
        0,
        "Refuse sends until this time, in milliseconds since 1970.",
        bits=64,
        minimum=0,
        live=True,
    )
    trace_on: bool = setting(
        "traceOn", True, "Ask producers in send responses for message traces.", live=True
    )
    enable_calc_filter_bit_map: bool = setting(
        "enableCalcFilterBitMap",
        False,
        "Evaluate SQL92 filters when a message is stored and save the result as a bit map; needs "
        "enableConsumeQueueExt.",
    )
    expect_consumer_num_use_filter: int = setting(
        "expectConsumerNumUseFilter",
        32,
        "Size the bit map for this many consumer groups with SQL92 filters.",
        minimum=1,
    )
    max_error_rate_of_bloom_filter: int = setting(
        "maxErrorRateOfBloomFilter",
        20,
        "Size the bit map for at most this percentage of false positives.",
        minimum=1,
        maximum=99,
    )
    filter_data_clean_time_span: int = setting(
        "filterDataCleanTimeSpan",
        24 * 3600 * 1000,
        "Keep the SQL92 filter of a disconnected group for this many milliseconds.",
        bits=64,
        minimum=0,
        live=True,
    )
    filter_support_retry: bool = setting(
        "filterSupportRetry", False, "Apply SQL92 filters to retried messages too.", live=True
    )
    enable_property_filter: bool = setting(
        "enablePropertyFilter", False, "Let consumers filter by SQL92 expressions.", live=True
    )
    compressed_register: bool = setting(
        "compressedRegister", False, "Compress the topics in a registration."
    )
    force_register: bool = setting(
        "forceRegister",
        True,
        "Register in every period; false registers only with NameServers whose data version "
        "differs.",
        live=True,
    )
    register_name_server_period: int = setting(
        "registerNameServerPeriod",
        30_000,
        "Register at this interval, in milliseconds, clamped to 10,000 to 60,000.",
    )
    transaction_time_out: int = setting(
        "transactionTimeOut",
        6000,
        "Check an open transaction after this many milliseconds for the first time.",
        important=True,
        bits=64,
        minimum=0,
        live=True,
    )
    transaction_check_max: int = setting(
        "transactionCheckMax",
        15,
        "Abandon an open transaction after this many checks.",
        important=True,
        minimum=0,
        live=True,
    )
    transaction_check_interval: int = setting(
        "transactionCheckInterval",
        60_000,
        "Check open transactions at this interval, in milliseconds.",
        important=True,
        bits=64,
        minimum=1,
        live=True,
    )
    store_reply_message_enable: bool = setting(
        "storeReplyMessageEnable",
        True,
        "Store the replies of request-reply messages.",
        live=True,
    )
    auto_delete_unused_stats: bool = setting(
        "autoDeleteUnusedStats",
        False,
        "Drop the statistics of a topic or group when it is deleted.",
        live=True,
    )
    connect_timeout_millis: int = setting(
        "connectTimeoutMillis",
        3000,
        "Wait this many milliseconds for a connection to a NameServer.",
        minimum=1,
    )
    server_channel_max_idle_time_seconds: int = setting(
        "serverChannelMaxIdleTimeSeconds",
        120,
        "Close a connection after this many seconds without traffic.",
        minimum=1,
        limit="The broker closes the connection.",
    )
    server_socket_snd_buf_size: int = _SOCKETS.server_socket_snd_buf_size
    server_socket_rcv_buf_size: int = _SOCKETS.server_socket_rcv_buf_size
    write_buffer_high_water_mark: int = _SOCKETS.write_buffer_high_water_mark
    write_buffer_low_water_mark: int = _SOCKETS.write_buffer_low_water_mark
    server_socket_backlog: int = _SOCKETS.server_socket_backlog

    def __post_init__(self) -> None:
        parse_levels(self.log_level)
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
                    "without / and \\, not starting with a dot"
                )
        fault = topic_fault(self.msg_trace_topic_name)
        if fault:
            raise ConfigError(f"msgTraceTopicName={self.msg_trace_topic_name!r:.100}: {fault}")
        if len(self.region_id) > _MAX_REGION_LENGTH:
            text = f"regionId={self.region_id:.100}"
            raise ConfigError(f"{text}...: expected at most {_MAX_REGION_LENGTH} characters")
        for key, value in (("brokerIP1", self.broker_ip1), ("brokerIP2", self.broker_ip2)):
            if not _is_host(value):
                expected = "an IP address or a host name, without a port"
                raise ConfigError(f"{key}={value}: expected {expected}")
        if 0 < self.listen_port <= FAST_PORT_DISTANCE:
            raise ConfigError(
                f"listenPort={self.listen_port}: expected 0 or a number above "
                f"{FAST_PORT_DISTANCE}, since the broker also listens on listenPort - "
                f"{FAST_PORT_DISTANCE}"
            )
        check_water_marks(self)
        self.check_inherited()

    @classmethod
    def load(cls, properties: Mapping[str, str]) -> tuple[Self, list[str]]:
        """Build from a properties table; also return the keys that are not the broker's."""
        refuse_unsupported(properties, BROKER)
        config, others = load_settings(cls, properties)
        return config, [key for key in others if key not in BROKER]

    @property
    def name_servers(self) -> list[str]:
        """The addresses of the NameServers; empty if none is set."""
        return parse_addresses(self.namesrv_addr) if self.namesrv_addr else []


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return len(text) <= _MAX_HOST_NAME and _HOST_NAME.fullmatch(text) is not None
    return True
