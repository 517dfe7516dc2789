from __future__ import annotations

import re
import socket

import pytest

from pyromq.base.settings import ConfigError, format_settings, settings_of
from pyromq.broker import config as broker_config
from pyromq.broker.config import (
    UNSUPPORTED,
    BrokerConfig,
    format_broker_properties,
    known_keys,
    load_broker_properties,
)
from pyromq.protocol.java.properties import parse_properties
from pyromq.store.config import BrokerRole, MessageStoreConfig

#: Key and default of RocketMQ 4.9.7's fields that are fields here; bindAddress is RocketMQ 5's.
JAVA_DEFAULTS = """
bindAddress=0.0.0.0 listenPort=10911 namesrvAddr= brokerIP1=10.0.0.1 brokerIP2=10.0.0.1
brokerName=host brokerClusterName=DefaultCluster brokerId=0 brokerPermission=6
defaultTopicQueueNums=8
autoCreateTopicEnable=true clusterTopicEnable=true brokerTopicEnable=true
autoCreateSubscriptionGroup=true msgTraceTopicName=RMQ_SYS_TRACE_TOPIC traceTopicEnable=false
flushConsumerOffsetInterval=5000 rejectTransactionMessage=false sendThreadPoolQueueCapacity=10000
pullThreadPoolQueueCapacity=100000 replyThreadPoolQueueCapacity=10000
queryThreadPoolQueueCapacity=20000 clientManagerThreadPoolQueueCapacity=1000000
consumerManagerThreadPoolQueueCapacity=1000000 heartbeatThreadPoolQueueCapacity=50000
endTransactionPoolQueueCapacity=100000
longPollingEnable=true shortPollingTimeMills=1000
notifyConsumerIdsChangedEnable=true regionId=DefaultRegion registerBrokerTimeoutMills=6000
slaveReadEnable=false brokerFastFailureEnable=true waitTimeMillsInSendQueue=200
waitTimeMillsInPullQueue=5000 waitTimeMillsInHeartbeatQueue=31000
waitTimeMillsInTransactionQueue=3000 startAcceptSendRequestTimeStamp=0 traceOn=true
enableCalcFilterBitMap=false expectConsumerNumUseFilter=32 maxErrorRateOfBloomFilter=20
filterDataCleanTimeSpan=86400000 filterSupportRetry=false enablePropertyFilter=false
compressedRegister=false forceRegister=true registerNameServerPeriod=30000
transactionTimeOut=6000 transactionCheckMax=15 transactionCheckInterval=60000
storeReplyMessageEnable=true autoDeleteUnusedStats=false connectTimeoutMillis=3000
serverChannelMaxIdleTimeSeconds=120
serverSocketSndBufSize=0
serverSocketRcvBufSize=0 writeBufferHighWaterMark=0 writeBufferLowWaterMark=0
serverSocketBacklog=1024
fetchNamesrvAddrByAddressServer=false rmqAddressServerDomain=jmenv.tbsite.net
rmqAddressServerSubGroup=nsaddr messageStorePlugIn= filterServerNums=0
disableConsumeIfConsumerReadSlowly=false consumerFallbehindThreshold=17179869184
aclEnable=false rocketmqHome=
"""

#: The important keys of RocketMQ 4.9.7's broker (BrokerConfig), in its order, without the
#: ones that have no effect here.
JAVA_IMPORTANT = """
namesrvAddr brokerIP1 brokerName brokerClusterName brokerId autoCreateTopicEnable
autoCreateSubscriptionGroup msgTraceTopicName traceTopicEnable rejectTransactionMessage
transactionTimeOut transactionCheckMax transactionCheckInterval aclEnable
"""

#: A file as RocketMQ's users have it.
REAL_FILE = """
# a broker of ours
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
deleteWhen=04
fileReservedTime=48
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
namesrvAddr=10.0.0.8:9876;10.0.0.9:9876
sendMessageThreadPoolNums=128
adminBrokerThreadPoolNums=16
pullMessageThreadPoolNums=64
useReentrantLockWhenPutMessage=true
listenPort=30911
storePathRootDir=/data/rocketmq
transferMsgByHeap=false
"""


def test_defaults_are_those_of_rocketmq(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    config = BrokerConfig(broker_ip1="10.0.0.1", broker_ip2="10.0.0.1", broker_name="host")
    java = {pair.split("=")[0] for pair in JAVA_DEFAULTS.split()}
    lines = [line for line in format_settings(config).split() if line.split("=")[0] in java]
    assert lines == JAVA_DEFAULTS.split()
    # Every setting that RocketMQ does not have is a limit, or about one of these subjects.
    ours = [item for item in settings_of(BrokerConfig) if item.key not in java]
    about = (
        "replication",
        "acl",
        "auditLog",
        "metrics",
        "tls.",
        "useTLS",
        "brokerHooks",
        "loopHang",
        "logLevel",
    )
    assert all(item.limit or item.key.startswith(about) for item in ours)
    important = format_settings(config, only_important=True)
    assert [line.split("=")[0] for line in important.split()] == JAVA_IMPORTANT.split()


def test_attributes_follow_from_keys_and_each_has_a_doc() -> None:
    for item in settings_of(BrokerConfig):
        plain = item.key.replace("IP", "Ip").replace("TLS", "Tls").replace(".", "_")
        assert item.attribute == re.sub(r"[A-Z]", lambda m: "_" + m[0].lower(), plain)
        assert item.doc.endswith(".")
        assert item.key not in UNSUPPORTED


def test_environment_and_machine_give_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:9876")
    config = BrokerConfig()
    assert config.name_servers == ["10.0.0.1:9876"]
    assert config.broker_name == socket.gethostname()
    assert config.broker_ip1


def test_machine_without_network_uses_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object) -> socket.socket:
        raise OSError("no network")

    monkeypatch.setattr(socket, "socket", no_network)
    assert broker_config.local_address() == "127.0.0.1"


def test_a_real_file_loads_with_a_warning_per_reason() -> None:
    broker, store, warnings = load_broker_properties(parse_properties(REAL_FILE))
    assert warnings == [
        (
            "sendMessageThreadPoolNums=128, pullMessageThreadPoolNums=64 have no effect: "
            "requests run on one event loop; there are no thread pools to size"
        ),
        "transferMsgByHeap=false has no effect: pulled messages are always copied to memory first",
    ]
    assert broker.broker_name == "broker-a"
    assert broker.name_servers == ["10.0.0.8:9876", "10.0.0.9:9876"]
    assert store.file_reserved_time == 48
    assert store.store_path_root_dir == "/data/rocketmq"


def test_replication_port_follows_listen_port() -> None:
    loaded = load_broker_properties({"listenPort": "30911", "haListenPort": "40000"})
    assert loaded.store.ha_listen_port == 30912
    assert loaded.warnings == [
        "haListenPort=40000 has no effect: the replication port is listenPort + 1, 30912"
    ]
    fitting = load_broker_properties({"listenPort": "30911", "haListenPort": "30912"})
    assert fitting.warnings == []


def test_unknown_keys_are_named_with_the_nearest_known_one() -> None:
    warnings = load_broker_properties(
        {"maxmessagesize": "1", "brokername": "x", "colour": "red"}
    ).warnings
    assert warnings == [
        "unknown setting maxmessagesize (did you mean maxMessageSize?) is ignored",
        "unknown setting brokername (did you mean brokerName?) is ignored",
        "unknown setting colour is ignored",
    ]


def test_the_id_of_a_master_is_0() -> None:
    master = load_broker_properties({"brokerId": "7"})
    assert master.broker.broker_id == 0
    assert master.warnings == ["brokerId=7 has no effect: the brokerId of a master is 0"]


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_masters_start_without_a_warning(role: str) -> None:
    master = load_broker_properties({"brokerId": "0", "brokerRole": role})
    assert master.store.broker_role is BrokerRole[role]
    assert master.warnings == []


def test_a_replica_keeps_its_id() -> None:
    replica = load_broker_properties({"brokerRole": "SLAVE", "brokerId": "2"})
    assert replica.store.broker_role is BrokerRole.SLAVE
    assert replica.broker.broker_id == 2
    assert replica.warnings == []


@pytest.mark.parametrize("properties", [{}, {"brokerId": "0"}, {"brokerId": "-1"}])
def test_a_replica_needs_an_id_above_0(properties: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"^brokerId=-?\d: expected a number above 0 with"):
        load_broker_properties({"brokerRole": "SLAVE", **properties})


@pytest.mark.parametrize(
    "ignored",
    [
        {},
        {"brokerRole": "SLAVE", "brokerId": "7"},
        {"brokerRole": "SLAVE"},
        {"brokerRole": "SYNC_MASTER", "brokerId": "3"},
        {"brokerId": "-1"},
    ],
)
def test_a_raft_group_decides_on_role_and_id(ignored: dict[str, str]) -> None:
    loaded = load_broker_properties(
        {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": "group",
            "dLegerPeers": "n0-10.0.0.1:40911;n4-10.0.0.2:40911",
            "dLegerSelfId": "n4",
            **ignored,
        }
    )
    assert loaded.broker.broker_id == 5
    assert loaded.warnings == []


@pytest.mark.parametrize("address", ["10.0.0.1", "10.0.0.1:", ":10912", "10.0.0.1:99999"])
def test_the_address_of_the_master_has_a_port(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^haMasterAddress=.*expected the host and the repl"):
        load_broker_properties({"haMasterAddress": address})
    assert load_broker_properties({"haMasterAddress": "a.example:10912"}).warnings == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listenPort", "99999"),
        ("namesrvAddr", "10.0.0.1"),
        ("namesrvAddr", "10.0.0.1:9876;:1"),
        ("brokerName", ""),
        ("brokerPermission", "rw"),
        ("aclEnable", "true"),
        ("useTLS", "yes"),
        ("tls.server.mode", "on"),
        ("enableLmq", "true"),
        ("autoCreateTopicEnable", "1"),
    ],
)
def test_bad_values_are_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}={value}"):
        load_broker_properties({key: value})


def test_printed_settings_load_to_the_same_settings() -> None:
    loaded = load_broker_properties(parse_properties(REAL_FILE))
    printed = format_broker_properties(loaded.broker, loaded.store)
    assert load_broker_properties(parse_properties(printed)) == loaded._replace(warnings=[])
    important = format_broker_properties(loaded.broker, loaded.store, only_important=True)
    assert set(important.split("\n")) < set(printed.split("\n"))


def test_no_key_is_listed_twice() -> None:
    assert len(known_keys()) == (
        len(list(settings_of(BrokerConfig)))
        + len(list(settings_of(MessageStoreConfig)))
        + len(UNSUPPORTED)
    )


@pytest.mark.parametrize("key", ["brokerIP1", "brokerIP2"])
def test_a_host_may_be_an_address_or_a_name(key: str) -> None:
    for host in ("10.0.0.1", "2001:db8::1", "fe80::1%eth0", "broker-a", "host.example.org", "my_h"):
        config, _ = BrokerConfig.load({key: host})
        assert host in (config.broker_ip1, config.broker_ip2)
    for host in ("10.0.0.1:10911", "a b", "http://a", "-a", "a;b", "a..b/", "ä", "a" * 254):
        with pytest.raises(ConfigError, match=f"{key}=.*without a port"):
            BrokerConfig.load({key: host})


def test_a_listen_port_leaves_room_for_the_one_below_it() -> None:
    for port in ("1", "2"):
        with pytest.raises(ConfigError, match=f"listenPort={port}: expected 0 or a number above 2"):
            BrokerConfig.load({"listenPort": port})
    for port in ("0", "3", "65534"):
        assert BrokerConfig.load({"listenPort": port})[0].listen_port == int(port)


def test_a_listen_port_leaves_room_for_the_one_above_it() -> None:
    with pytest.raises(ConfigError, match=r"listenPort=65535: expected .* to 65534"):
        BrokerConfig.load({"listenPort": "65535"})


@pytest.mark.parametrize("key", ["brokerName", "brokerClusterName"])
def test_names_of_brokers_and_clusters_are_safe_as_folders(key: str) -> None:
    for name in ("broker-a", "host.example.org", "DefaultCluster", "a", "a@b:1", "n" * 115):
        assert BrokerConfig.load({key: name})
    bad = ("../../x", "..", ".a", "a/b", "a\\b", "a b", "ä", "a" * 128)
    for name in bad:
        with pytest.raises(ConfigError, match=f"{key}=.*visible ASCII characters"):
            BrokerConfig.load({key: name})
    for name in ("a\0", "a\nb", "a\r"):
        with pytest.raises(ConfigError, match=f"{key}=.*control character"):
            BrokerConfig.load({key: name})


def test_a_cluster_leaves_room_for_the_name_of_its_reply_topic() -> None:
    with pytest.raises(ConfigError, match=r"brokerClusterName=.*at most 115"):
        BrokerConfig.load({"brokerClusterName": "c" * 116})


def test_the_topic_of_traces_has_a_legal_name() -> None:
    with pytest.raises(ConfigError, match=r"msgTraceTopicName='\.\./x': topic"):
        BrokerConfig.load({"msgTraceTopicName": "../x"})


def test_topics_are_not_created_with_more_queues_than_anybody_can_handle() -> None:
    assert BrokerConfig.load({"defaultTopicQueueNums": "65536"})
    with pytest.raises(ConfigError, match=r"defaultTopicQueueNums=65537: expected .* to 65536"):
        BrokerConfig.load({"defaultTopicQueueNums": "65537"})
