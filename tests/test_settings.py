"""No setting is a trap: each works, or is declared ignored or refused, with the reason.

Every field of RocketMQ 4.9.7's configuration classes is a field of ours or listed as unsupported.
Every field of ours is read by the code, unless it is declared ignored. A read is an attribute of
something named `...config`, or of `self` in a property of the configuration class that is read.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

import pyromq
from pyromq.base.settings import Unsupported, setting, settings_of
from pyromq.base.unsupported_settings import BROKER, NAMESERVER, STORE, Table
from pyromq.broker.config import BrokerConfig
from pyromq.nameserver.config import NamesrvConfig
from pyromq.store.config import MessageStoreConfig

SOURCE = Path(pyromq.__file__).parent

#: The fields of RocketMQ 4.9.7's configuration classes.
BROKER_CONFIG = """
rocketmqHome namesrvAddr brokerIP1 brokerIP2 brokerName brokerClusterName brokerId
brokerPermission defaultTopicQueueNums autoCreateTopicEnable clusterTopicEnable brokerTopicEnable
autoCreateSubscriptionGroup messageStorePlugIn msgTraceTopicName traceTopicEnable
sendMessageThreadPoolNums putMessageFutureThreadPoolNums pullMessageThreadPoolNums
processReplyMessageThreadPoolNums queryMessageThreadPoolNums adminBrokerThreadPoolNums
clientManageThreadPoolNums consumerManageThreadPoolNums heartbeatThreadPoolNums
endTransactionThreadPoolNums flushConsumerOffsetInterval flushConsumerOffsetHistoryInterval
rejectTransactionMessage fetchNamesrvAddrByAddressServer sendThreadPoolQueueCapacity
putThreadPoolQueueCapacity pullThreadPoolQueueCapacity replyThreadPoolQueueCapacity
queryThreadPoolQueueCapacity clientManagerThreadPoolQueueCapacity
consumerManagerThreadPoolQueueCapacity heartbeatThreadPoolQueueCapacity
endTransactionPoolQueueCapacity filterServerNums longPollingEnable shortPollingTimeMills
notifyConsumerIdsChangedEnable highSpeedMode commercialEnable commercialTimerCount
commercialTransCount commercialBigCount commercialBaseCount transferMsgByHeap maxDelayTime
regionId registerBrokerTimeoutMills slaveReadEnable disableConsumeIfConsumerReadSlowly
consumerFallbehindThreshold brokerFastFailureEnable waitTimeMillsInSendQueue
waitTimeMillsInPullQueue waitTimeMillsInHeartbeatQueue waitTimeMillsInTransactionQueue
startAcceptSendRequestTimeStamp traceOn enableCalcFilterBitMap expectConsumerNumUseFilter
maxErrorRateOfBloomFilter filterDataCleanTimeSpan filterSupportRetry enablePropertyFilter
compressedRegister forceRegister registerNameServerPeriod transactionTimeOut transactionCheckMax
transactionCheckInterval aclEnable storeReplyMessageEnable enableDetailStat autoDeleteUnusedStats
isolateLogEnable
"""
MESSAGE_STORE_CONFIG = """
storePathRootDir storePathCommitLog storePathDLedgerCommitLog readOnlyCommitLogStorePaths
mappedFileSizeCommitLog mappedFileSizeConsumeQueue enableConsumeQueueExt
mappedFileSizeConsumeQueueExt bitMapLengthConsumeQueueExt flushIntervalCommitLog
commitIntervalCommitLog useReentrantLockWhenPutMessage flushCommitLogTimed
flushIntervalConsumeQueue cleanResourceInterval deleteCommitLogFilesInterval
deleteConsumeQueueFilesInterval destroyMapedFileIntervalForcibly redeleteHangedFileInterval
deleteWhen diskMaxUsedSpaceRatio fileReservedTime putMsgIndexHightWater maxMessageSize
checkCRCOnRecover flushCommitLogLeastPages commitCommitLogLeastPages
flushLeastPagesWhenWarmMapedFile flushConsumeQueueLeastPages flushCommitLogThoroughInterval
commitCommitLogThoroughInterval flushConsumeQueueThoroughInterval
maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInMemory
maxTransferBytesOnMessageInDisk maxTransferCountOnMessageInDisk accessMessageInMemoryMaxRatio
messageIndexEnable maxHashSlotNum maxIndexNum maxMsgsNumBatch messageIndexSafe haListenPort
haSendHeartbeatInterval haHousekeepingInterval haTransferBatchSize haMasterAddress
haSlaveFallbehindMax brokerRole flushDiskType syncFlushTimeout slaveTimeout messageDelayLevel
flushDelayOffsetInterval cleanFileForciblyEnable warmMapedFileEnable offsetCheckInSlave
debugLockEnable duplicationEnable diskFallRecorded osPageCacheBusyTimeOutMills defaultQueryMaxNum
transientStorePoolEnable transientStorePoolSize fastFailIfNoBufferInStorePool
enableDLegerCommitLog dLegerGroup dLegerPeers dLegerSelfId preferredLeaderId isEnableBatchPush
enableScheduleMessageStats enableLmq enableMultiDispatch maxLmqConsumeQueueNum
enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit
scheduleAsyncDeliverMaxResendNum2Blocked
"""
NAMESRV_CONFIG = """
rocketmqHome kvConfigPath configStorePath productEnvName clusterTest orderMessageEnable
"""
NETTY_SERVER_CONFIG = """
listenPort serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads
serverOnewaySemaphoreValue serverAsyncSemaphoreValue serverChannelMaxIdleTimeSeconds
serverSocketSndBufSize serverSocketRcvBufSize writeBufferHighWaterMark writeBufferLowWaterMark
serverSocketBacklog serverPooledByteBufAllocatorEnable useEpollNativeSelector
"""
NETTY_CLIENT_CONFIG = """
clientWorkerThreads clientCallbackExecutorThreads clientOnewaySemaphoreValue
clientAsyncSemaphoreValue connectTimeoutMillis channelNotActiveInterval
clientChannelMaxIdleTimeSeconds clientSocketSndBufSize clientSocketRcvBufSize
clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout useTLS writeBufferHighWaterMark
writeBufferLowWaterMark
"""
#: Keys that RocketMQ's broker reads from its file without a field, or under another name.
WITHOUT_FIELD = {"enableBatchPush", "rmqAddressServerDomain", "rmqAddressServerSubGroup"}


class Section(NamedTuple):
    """A configuration class, the folders that use it, and RocketMQ's keys."""

    config_class: type
    folders: tuple[str, ...]
    unsupported: Table
    java: str


SECTIONS = (
    Section(
        BrokerConfig,
        ("acl", "broker", "cli", "remoting", "tls"),
        BROKER,
        BROKER_CONFIG + NETTY_SERVER_CONFIG + NETTY_CLIENT_CONFIG,
    ),
    Section(
        MessageStoreConfig, ("store", "broker", "replication", "cli"), STORE, MESSAGE_STORE_CONFIG
    ),
    Section(
        NamesrvConfig,
        ("acl", "nameserver", "cli", "remoting", "tls"),
        NAMESERVER,
        # The broker's useTLS is the nearest to what a user may try here.
        NAMESRV_CONFIG + NETTY_SERVER_CONFIG + "useTLS",
    ),
)
every_section = pytest.mark.parametrize(
    "section", SECTIONS, ids=lambda section: section.config_class.__name__
)


@every_section
def test_every_setting_is_used_or_declared_ignored(section: Section) -> None:
    assert undeclared(section.config_class, section.folders) == []


@every_section
def test_no_setting_is_declared_ignored_and_used(section: Section) -> None:
    assert wrongly_ignored(section.config_class, section.folders) == []


@every_section
def test_every_setting_of_rocketmq_is_known(section: Section) -> None:
    assert unknown(section.java, section.config_class, section.unsupported) == set()


@every_section
def test_no_key_is_both_a_field_and_unsupported_and_all_are_rocketmq_s(section: Section) -> None:
    fields = {item.key for item in settings_of(section.config_class)}
    assert not fields & section.unsupported.keys()
    assert section.unsupported.keys() <= set(section.java.split()) | WITHOUT_FIELD


@every_section
def test_reasons_fit_into_a_sentence(section: Section) -> None:
    reasons = {item.reason for item in section.unsupported.values()}
    reasons |= {item.ignored for item in settings_of(section.config_class) if item.ignored}
    for reason in reasons:
        assert 10 < len(reason) < 160, reason
        assert not reason.endswith("."), reason


def test_a_setting_that_nothing_reads_is_found() -> None:
    @dataclass(frozen=True, slots=True)
    class Trap(MessageStoreConfig):
        shiny_new_size: int = setting("shinyNewSize", 1, "Make it shiny.")
        shiny_old_size: int = setting("shinyOldSize", 1, "Make it dull.", ignored="it is dull")
        max_index_num: int = setting("maxIndexNum", 1, "An index.", ignored="wrong: it is used")

    assert undeclared(Trap, ("store", "broker", "replication", "cli")) == ["shinyNewSize"]
    assert wrongly_ignored(Trap, ("store", "broker", "cli")) == ["maxIndexNum"]


def test_a_setting_of_rocketmq_that_is_forgotten_is_found() -> None:
    table = {"useTLS": Unsupported("useTLS", "false", "there is no TLS", refused=True)}
    assert unknown("useTLS listenPort brandNew", NamesrvConfig, table) == {"brandNew"}


def undeclared(config_class: type, folders: tuple[str, ...]) -> list[str]:
    """Return the keys that the code does not read and that are not declared ignored."""
    used = used_attributes(config_class, folders)
    return [
        item.key
        for item in settings_of(config_class)
        if item.attribute not in used and not item.ignored
    ]


def wrongly_ignored(config_class: type, folders: tuple[str, ...]) -> list[str]:
    """Return the keys that are declared ignored and that the code reads."""
    used = used_attributes(config_class, folders)
    return [
        item.key for item in settings_of(config_class) if item.ignored and item.attribute in used
    ]


def unknown(java: str, config_class: type, unsupported: Table) -> set[str]:
    """Return the names in `java` that are neither fields nor unsupported."""
    return set(java.split()) - {item.key for item in settings_of(config_class)} - set(unsupported)


def used_attributes(config_class: type, folders: tuple[str, ...]) -> set[str]:
    """Return the attributes of a configuration that the code reads, directly or by a property."""
    used: set[str] = set()
    for folder in folders:
        for path in (SOURCE / folder).rglob("*.py"):
            if path.name != "config.py":
                used |= {name for owner, name in reads(path.read_text()) if "config" in owner}
                if folder == "tls":
                    used |= {name for owner, name in reads(path.read_text()) if owner == "settings"}
    methods = [
        node
        for kind in config_class.__mro__[:-1]
        if kind.__module__.startswith("pyromq.")
        for node in ast.walk(ast.parse(inspect.getsource(kind)))
        if isinstance(node, ast.FunctionDef)
    ]
    while True:
        more = {
            name
            for method in methods
            if method.name in used
            for owner, name in reads(ast.unparse(method))
            if owner == "self"
        }
        if more <= used:
            return used
        used |= more


def reads(source: str) -> Iterator[tuple[str, str]]:
    """Yield the attributes that are read, each with the last name of its owner."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner = node.value
            if isinstance(owner, ast.Attribute):
                yield owner.attr, node.attr
            elif isinstance(owner, ast.Name):
                yield owner.id, node.attr
