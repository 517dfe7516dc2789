from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from pyromq.base.settings import ConfigError, format_settings, settings_of
from pyromq.base.unsupported_settings import STORE
from pyromq.store.config import (
    BrokerRole,
    FlushDiskType,
    MessageStoreConfig,
)

#: Key and default of the fields of RocketMQ 4.9.7's MessageStoreConfig that are fields here.
JAVA_DEFAULTS = """
storePathCommitLog= readOnlyCommitLogStorePaths= mappedFileSizeCommitLog=1073741824
mappedFileSizeConsumeQueue=6000000 enableConsumeQueueExt=false
mappedFileSizeConsumeQueueExt=50331648 bitMapLengthConsumeQueueExt=64 flushIntervalCommitLog=500
commitIntervalCommitLog=200 flushCommitLogTimed=true flushIntervalConsumeQueue=1000
cleanResourceInterval=10000 deleteCommitLogFilesInterval=100 deleteConsumeQueueFilesInterval=100
destroyMapedFileIntervalForcibly=120000 redeleteHangedFileInterval=120000 deleteWhen=04
diskMaxUsedSpaceRatio=75 fileReservedTime=72 maxMessageSize=4194304
maxBatchMessages=65536 maxBatchRecordsSize=16777216 checkCRCOnRecover=true
flushCommitLogLeastPages=4 commitCommitLogLeastPages=4 flushConsumeQueueLeastPages=2
flushCommitLogThoroughInterval=10000 commitCommitLogThoroughInterval=200
flushConsumeQueueThoroughInterval=60000 maxTransferBytesOnMessageInMemory=262144
maxTransferCountOnMessageInMemory=32 maxTransferBytesOnMessageInDisk=65536
maxTransferCountOnMessageInDisk=8 accessMessageInMemoryMaxRatio=40 messageIndexEnable=true
maxHashSlotNum=5000000 maxIndexNum=20000000 maxMsgsNumBatch=64 messageIndexSafe=false
haListenPort=10912 haSendHeartbeatInterval=5000 haHousekeepingInterval=20000
haTransferBatchSize=32768 haMasterAddress= haSlaveFallbehindMax=268435456
brokerRole=ASYNC_MASTER flushDiskType=ASYNC_FLUSH syncFlushTimeout=5000 slaveTimeout=3000
flushDelayOffsetInterval=10000 cleanFileForciblyEnable=true offsetCheckInSlave=false
osPageCacheBusyTimeOutMills=1000 debugLockEnable=false diskFallRecorded=true
defaultQueryMaxNum=32 transientStorePoolEnable=false
transientStorePoolSize=5 fastFailIfNoBufferInStorePool=false warmMapedFileEnable=false
enableDLegerCommitLog=false dLegerGroup= dLegerPeers= dLegerSelfId= preferredLeaderId=
isEnableBatchPush=false storePathDLedgerCommitLog=
"""

#: Settings of ours, system properties of RocketMQ, and its other spelling of isEnableBatchPush.
OWN_DEFAULTS = {
    "dLegerAllowedPeers": "",
    "dLegerFlushBeforeAck": "false",
    "enableBatchPush": "false",
    "haAllowedReplicas": "",
    "haReportFlushed": "false",
    "diskSpaceCleanForciblyRatio": "85",
    "diskSpaceWarningLevelRatio": "90",
    "maxMappedFiles": "0",
}

#: The keys that RocketMQ marks as important.
JAVA_IMPORTANT = """
storePathRootDir storePathCommitLog flushIntervalCommitLog commitIntervalCommitLog
flushCommitLogTimed deleteWhen fileReservedTime maxTransferBytesOnMessageInMemory
maxTransferCountOnMessageInMemory maxTransferBytesOnMessageInDisk maxTransferCountOnMessageInDisk
accessMessageInMemoryMaxRatio messageIndexEnable messageIndexSafe haMasterAddress brokerRole
flushDiskType cleanFileForciblyEnable transientStorePoolEnable
"""


def test_defaults_are_those_of_rocketmq() -> None:
    printed = dict(
        line.split("=", 1) for line in format_settings(MessageStoreConfig()).split("\n")[:-1]
    )
    expected = dict(pair.split("=") for pair in JAVA_DEFAULTS.split())
    expected["storePathRootDir"] = str(Path.home() / "store")
    expected["messageDelayLevel"] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    assert printed == expected | OWN_DEFAULTS


def test_attributes_follow_from_keys_and_each_has_a_doc() -> None:
    for item in settings_of(MessageStoreConfig):
        plain = re.sub(r"CRC", "Crc", item.key)
        plain = re.sub(r"([dD])L(ed?ger)", r"\1l\2", plain)  # one word, however it is spelled
        assert item.attribute == re.sub(r"[A-Z]", lambda m: "_" + m[0].lower(), plain)
        assert item.doc.endswith(".")
        assert item.key not in STORE


def test_important_keys_are_printed_alone() -> None:
    printed = format_settings(MessageStoreConfig(), only_important=True)
    # Those of replication come last.
    assert sorted(line.split("=")[0] for line in printed.split()) == sorted(JAVA_IMPORTANT.split())


def test_load_takes_its_own_keys_and_ignores_those_without_effect() -> None:
    config, others = MessageStoreConfig.load(
        {
            "brokerRole": "SYNC_MASTER",
            "flushDiskType": "SYNC_FLUSH",
            "warmMapedFileEnable": "true",
            "debugLockEnable": "true",
            "listenPort": "1",
            "mapedFileSizeCommitLog": "1",
        }
    )
    assert config.broker_role is BrokerRole.SYNC_MASTER
    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert others == ["listenPort", "mapedFileSizeCommitLog"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("brokerRole", "MASTER"),
        ("flushDiskType", "async_flush"),
        ("mappedFileSizeCommitLog", "1G"),
        ("mappedFileSizeCommitLog", "2147483648"),
        ("mappedFileSizeCommitLog", "0"),
        ("deleteWhen", "24"),
        ("deleteWhen", "04,16"),
        ("deleteWhen", ""),
        ("messageDelayLevel", "1s 5x"),
        ("messageDelayLevel", "1s  5s"),
        ("messageDelayLevel", "1s 5sm"),
        ("storePathRootDir", ""),
        ("enableLmq", "true"),
        ("enableMultiDispatch", "true"),
    ],
)
def test_bad_values_are_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}={value}"):
        MessageStoreConfig.load({key: value})


def test_paths() -> None:
    config = MessageStoreConfig(store_path_root_dir="/data")
    assert config.commit_log_directory == Path("/data/commitlog")
    assert config.consume_queue_directory == Path("/data/consumequeue")
    assert config.index_directory == Path("/data/index")
    assert config.config_directory == Path("/data/config")
    elsewhere = dataclasses.replace(config, store_path_commit_log="/log")
    assert elsewhere.commit_log_directory == Path("/log")


def test_several_directories_of_the_commit_log() -> None:
    config = MessageStoreConfig(
        store_path_commit_log="/b, /a,/old,/b",
        read_only_commit_log_store_paths="/old, /older",
    )
    assert config.commit_log_directory == Path("/b")
    assert config.more_commit_log_directories == (Path("/a"),)
    assert config.read_only_commit_log_directories == (Path("/old"), Path("/older"))
    one = MessageStoreConfig(store_path_root_dir="/with,comma")
    assert one.commit_log_directory == Path("/with,comma/commitlog")
    assert one.more_commit_log_directories == one.read_only_commit_log_directories == ()


def test_a_commit_log_that_could_not_be_written_to_is_refused() -> None:
    with pytest.raises(ConfigError, match="storePathCommitLog=/a,/b: expected a directory"):
        MessageStoreConfig(store_path_commit_log="/a,/b", read_only_commit_log_store_paths="/a,/b")


@pytest.mark.parametrize("home", ["~", "$HOME", "${HOME}", "${user.home}"])
def test_home_directory_in_paths(home: str) -> None:
    config, _ = MessageStoreConfig.load(
        {"storePathRootDir": f"{home}/store", "readOnlyCommitLogStorePaths": f"/a,{home}/b"}
    )
    assert config.root == Path.home() / "store"
    assert config.read_only_commit_log_store_paths == f"/a,{Path.home()}/b"


def test_names_that_only_look_like_home_stay() -> None:
    config, _ = MessageStoreConfig.load({"storePathRootDir": "/data/~/$HOMER"})
    assert config.store_path_root_dir == "/data/~/$HOMER"


def test_derived_values() -> None:
    config = MessageStoreConfig(mapped_file_size_consume_queue=41, disk_max_used_space_ratio=3)
    assert config.consume_queue_file_size == 60
    assert config.disk_cleaning_percent == 10
    assert dataclasses.replace(config, disk_max_used_space_ratio=99).disk_cleaning_percent == 95
    assert config.delete_hours == {4}
    assert dataclasses.replace(config, delete_when="4; 16 ;23").delete_hours == {4, 16, 23}
    pooled = MessageStoreConfig(transient_store_pool_enable=True)
    assert pooled.uses_transient_store_pool
    assert not dataclasses.replace(
        pooled, flush_disk_type=FlushDiskType.SYNC_FLUSH
    ).uses_transient_store_pool
    assert not dataclasses.replace(pooled, broker_role=BrokerRole.SLAVE).uses_transient_store_pool


@pytest.mark.parametrize(
    ("settings", "refuses"),
    [
        ({}, False),
        ({"transient_store_pool_enable": True}, False),
        ({"fast_fail_if_no_buffer_in_store_pool": True}, False),
        (
            {"transient_store_pool_enable": True, "fast_fail_if_no_buffer_in_store_pool": True},
            True,
        ),
        (
            {
                "transient_store_pool_enable": True,
                "fast_fail_if_no_buffer_in_store_pool": True,
                "transient_store_pool_size": 2,
            },
            False,
        ),
    ],
)
def test_when_sends_wait_for_a_buffer(settings: dict[str, Any], refuses: bool) -> None:
    assert MessageStoreConfig(**settings).refuses_without_buffer is refuses
