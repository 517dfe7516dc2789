"""The store's configuration: RocketMQ's MessageStoreConfig, key for key.

Defaults are those of RocketMQ 4.9.7, in its units (milliseconds, bytes, hours). Keys
that RocketMQ knows and that mean nothing here are in `KNOWN_WITHOUT_EFFECT`: files of
running brokers load without noise. Values are checked when an instance is made, so a
`MessageStoreConfig` that exists is usable.

Paths may begin with `~`, `$HOME`, `${HOME}` or `${user.home}`, which stand for the home
directory of the user who runs the broker.

Read at start-up by the broker and by tools that open a store. While a broker runs only its
live settings change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Self

from pyromq.base.settings import ConfigError, load_settings, setting

#: Bytes of one consume-queue entry; a consume-queue file holds whole entries.
_CONSUME_QUEUE_ENTRY = 20


class BrokerRole(Enum):
    """How a broker takes part in replication."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class FlushDiskType(Enum):
    """Whether a send waits until its bytes are on the disk."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


@dataclass(frozen=True, slots=True)
class MessageStoreConfig:
    """Settings of the message store."""

    # ruff: noqa: RUF009 - `setting` returns a dataclass field
    store_path_root_dir: str = setting(
        "storePathRootDir",
        doc="Directory of the whole store; by default `store` in the user's home directory.",
        default_factory=lambda: str(Path.home() / "store"),
        important=True,
    )
    store_path_commit_log: str | None = setting(
        "storePathCommitLog",
        None,
        "Directory of the commit log; by default `commitlog` under storePathRootDir. Of several, "
        "separated by commas, each new segment goes to the next one.",
        important=True,
    )
    read_only_commit_log_store_paths: str | None = setting(
        "readOnlyCommitLogStorePaths",
        None,
        "Comma-separated commit-log directories whose segments are read, and never written to "
        "or deleted.",
    )
    mapped_file_size_commit_log: int = setting(
        "mappedFileSizeCommitLog",
        1024 * 1024 * 1024,
        "Bytes of one commit-log segment. A store keeps the size it was made with.",
        minimum=4096,
    )
    max_mapped_files: int = setting(
        "maxMappedFiles",
        0,
        "Files of the store that are mapped at a time, each with a descriptor: those used last. "
        "0: a quarter of the process's limit of open files, 16384 at most.",
        minimum=0,
    )
    mapped_file_size_consume_queue: int = setting(
        "mappedFileSizeConsumeQueue",
        300_000 * _CONSUME_QUEUE_ENTRY,
        "Bytes of one consume-queue segment, rounded up to whole entries of 20 bytes.",
        minimum=_CONSUME_QUEUE_ENTRY,
    )
    enable_consume_queue_ext: bool = setting(
        "enableConsumeQueueExt",
        False,
        "Keep an extension file beside each consume queue for the filter bit map.",
    )
    mapped_file_size_consume_queue_ext: int = setting(
        "mappedFileSizeConsumeQueueExt",
        48 * 1024 * 1024,
        "Bytes of one segment of the consume-queue extension.",
        minimum=4096,
    )
    bit_map_length_consume_queue_ext: int = setting(
        "bitMapLengthConsumeQueueExt",
        64,
        "Bits of the filter bit map in a consume-queue extension entry.",
        minimum=0,
    )
    flush_interval_commit_log: int = setting(
        "flushIntervalCommitLog",
        500,
        "Milliseconds between flushes of the commit log with ASYNC_FLUSH.",
        important=True,
        minimum=1,
        live=True,
    )
    commit_interval_commit_log: int = setting(
        "commitIntervalCommitLog",
        200,
        "Milliseconds between commits of the transient store pool to the file.",
        important=True,
        minimum=1,
    )
    flush_commit_log_timed: bool = setting(
        "flushCommitLogTimed",
        True,
        "Flush strictly by the interval instead of being woken by appends.",
        important=True,
    )
    flush_interval_consume_queue: int = setting(
        "flushIntervalConsumeQueue",
        1000,
        "Milliseconds between flushes of the consume queues.",
        minimum=1,
        live=True,
    )
    clean_resource_interval: int = setting(
        "cleanResourceInterval",
        10_000,
        "Milliseconds between looks for files to delete.",
        minimum=1,
    )
    delete_commit_log_files_interval: int = setting(
        "deleteCommitLogFilesInterval",
        100,
        "Milliseconds between the deletions of two commit-log segments.",
        minimum=0,
        live=True,
    )
    delete_consume_queue_files_interval: int = setting(
        "deleteConsumeQueueFilesInterval",
        100,
        "Milliseconds between the deletions of two consume-queue segments.",
        minimum=0,
        live=True,
    )
    destroy_maped_file_interval_forcibly: int = setting(
        "destroyMapedFileIntervalForcibly",
        120_000,
        "Milliseconds after which a deleted segment that is still in use is let go anyway.",
        minimum=0,
    )
    redelete_hanged_file_interval: int = setting(
        "redeleteHangedFileInterval",
        120_000,
        "Milliseconds between attempts to delete a segment that could not be deleted.",
        minimum=0,
        live=True,
    )
    delete_when: str = setting(
        "deleteWhen",
        "04",
        "Hours of the day at which expired segments are deleted, separated by semicolons.",
        important=True,
        live=True,
    )
    disk_max_used_space_ratio: int = setting(
        "diskMaxUsedSpaceRatio",
        75,
        "Percent of the disk above which segments are deleted at any hour; used from 10 to 95.",
        live=True,
    )
    disk_space_clean_forcibly_ratio: int = setting(
        "diskSpaceCleanForciblyRatio",
        85,
        "Percent of the disk above which cleanFileForciblyEnable deletes segments before their "
        "time; in RocketMQ the system property of that name, a share of 1.",
        minimum=1,
        maximum=100,
        live=True,
    )
    disk_space_warning_level_ratio: int = setting(
        "diskSpaceWarningLevelRatio",
        90,
        "Percent of the disk above which sends are refused; in RocketMQ the system property of "
        "that name, a share of 1.",
        minimum=1,
        maximum=100,
        live=True,
        limit="SERVICE_NOT_AVAILABLE to sends until there is room again; pulls go on.",
    )
    file_reserved_time: int = setting(
        "fileReservedTime",
        72,
        "Hours for which a segment is kept after its last write.",
        important=True,
        minimum=0,
        live=True,
    )
    max_message_size: int = setting(
        "maxMessageSize",
        4 * 1024 * 1024,
        "Largest body of a message in bytes.",
        minimum=1,
        limit="The send is refused with MESSAGE_ILLEGAL.",
    )
    max_batch_messages: int = setting(
        "maxBatchMessages",
        65_536,
        "Messages that one batch request may hold.",
        minimum=1,
        limit="The batch is refused as a whole with MESSAGE_ILLEGAL.",
    )
    max_batch_records_size: int = setting(
        "maxBatchRecordsSize",
        16 * 1024 * 1024,
        "Bytes that the records of one batch request may take in the log: each message gets the "
        "batch's properties.",
        minimum=1,
        limit="The batch is refused as a whole with MESSAGE_ILLEGAL.",
    )
    check_crc_on_recover: bool = setting(
        "checkCRCOnRecover",
        True,
        "Check the CRC of every body when records are checked at start-up.",
    )
    flush_commit_log_least_pages: int = setting(
        "flushCommitLogLeastPages",
        4,
        "Dirty pages of 4 KiB that make a timed flush of the commit log worth while.",
        minimum=0,
        live=True,
    )
    commit_commit_log_least_pages: int = setting(
        "commitCommitLogLeastPages",
        4,
        "Dirty pages that make a commit of the transient store pool worth while.",
        minimum=0,
    )
    flush_consume_queue_least_pages: int = setting(
        "flushConsumeQueueLeastPages",
        2,
        "Dirty pages that make a timed flush of a consume queue worth while.",
        minimum=0,
    )
    flush_commit_log_thorough_interval: int = setting(
        "flushCommitLogThoroughInterval",
        10_000,
        "Milliseconds after which the commit log is flushed whatever is dirty.",
        minimum=0,
        live=True,
    )
    commit_commit_log_thorough_interval: int = setting(
        "commitCommitLogThoroughInterval",
        200,
        "Milliseconds after which the transient store pool is committed whatever it holds.",
        minimum=0,
    )
    flush_consume_queue_thorough_interval: int = setting(
        "flushConsumeQueueThoroughInterval",
        60_000,
        "Milliseconds after which consume queues are flushed whatever is dirty.",
        minimum=0,
    )
    max_transfer_bytes_on_message_in_memory: int = setting(
        "maxTransferBytesOnMessageInMemory",
        256 * 1024,
        "Bytes that end the batch of one pull when the messages are in memory.",
        important=True,
        minimum=1,
        limit="The answer carries fewer messages than were asked for.",
    )
    max_transfer_count_on_message_in_memory: int = setting(
        "maxTransferCountOnMessageInMemory",
        32,
        "Messages that end the batch of one pull when they are in memory.",
        important=True,
        minimum=1,
        limit="The answer carries fewer messages than were asked for.",
    )
    max_transfer_bytes_on_message_in_disk: int = setting(
        "maxTransferBytesOnMessageInDisk",
        64 * 1024,
        "Bytes that end the batch of one pull when the messages are on disk.",
        important=True,
        minimum=1,
        limit="The answer carries fewer messages than were asked for.",
    )
    max_transfer_count_on_message_in_disk: int = setting(
        "maxTransferCountOnMessageInDisk",
        8,
        "Messages that end the batch of one pull when they are on disk.",
        important=True,
        minimum=1,
        limit="The answer carries fewer messages than were asked for.",
    )
    access_message_in_memory_max_ratio: int = setting(
        "accessMessageInMemoryMaxRatio",
        40,
        "Percent of the machine's memory within which the newest messages count as in memory.",
        important=True,
        minimum=0,
        maximum=100,
    )
    message_index_enable: bool = setting(
        "messageIndexEnable", True, "Build the index of message keys.", important=True
    )
    max_hash_slot_num: int = setting(
        "maxHashSlotNum", 5_000_000, "Hash slots of one index file.", minimum=1
    )
    max_index_num: int = setting("maxIndexNum", 20_000_000, "Entries of one index file.", minimum=2)
    max_msgs_num_batch: int = setting(
        "maxMsgsNumBatch",
        64,
        "Most messages that one query by key returns.",
        minimum=1,
        limit="The answer carries fewer messages than were asked for.",
    )
    message_index_safe: bool = setting(
        "messageIndexSafe",
        False,
        "Take the index into account when recovery chooses where to begin.",
        important=True,
    )
    ha_listen_port: int = setting(
        "haListenPort",
        10912,
        "Port for replicas. A broker always uses its listenPort + 1, whatever the file says.",
        minimum=0,
        maximum=65535,
    )
    ha_send_heartbeat_interval: int = setting(
        "haSendHeartbeatInterval",
        5000,
        "Milliseconds of silence after which replication sends a heartbeat.",
        minimum=1,
    )
    ha_housekeeping_interval: int = setting(
        "haHousekeepingInterval",
        20_000,
        "Milliseconds of silence after which a replication connection is closed.",
        minimum=1,
    )
    ha_transfer_batch_size: int = setting(
        "haTransferBatchSize",
        32 * 1024,
        "Most bytes of the log in one transfer to a replica.",
        minimum=1,
    )
    ha_master_address: str | None = setting(
        "haMasterAddress",
        None,
        "host:port of the master's replication port; by default the NameServer tells it.",
        important=True,
    )
    ha_slave_fallbehind_max: int = setting(
        "haSlaveFallbehindMax",
        256 * 1024 * 1024,
        "Bytes by which a replica may lag and still count for SYNC_MASTER.",
        minimum=0,
    )
    broker_role: BrokerRole = setting(
        "brokerRole",
        BrokerRole.ASYNC_MASTER,
        "ASYNC_MASTER, SYNC_MASTER (a send waits for a replica) or SLAVE.",
        important=True,
    )
    flush_disk_type: FlushDiskType = setting(
        "flushDiskType",
        FlushDiskType.ASYNC_FLUSH,
        "SYNC_FLUSH (a send waits for the disk) or ASYNC_FLUSH.",
        important=True,
    )
    sync_flush_timeout: int = setting(
        "syncFlushTimeout",
        5000,
        "Milliseconds a send waits for the disk before it answers FLUSH_DISK_TIMEOUT.",
        minimum=1,
        live=True,
    )
    slave_timeout: int = setting(
        "slaveTimeout",
        3000,
        "Milliseconds a send waits for a replica before it answers FLUSH_SLAVE_TIMEOUT.",
        minimum=1,
    )
    message_delay_level: str = setting(
        "messageDelayLevel",
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "Delays of the delay levels 1, 2, ..., each a number and ms, s, m, h or d. "
        "Apache's brokers know no ms: it is for tests.",
    )
    flush_delay_offset_interval: int = setting(
        "flushDelayOffsetInterval",
        10_000,
        "Milliseconds between writes of the delay progress to disk.",
        bits=64,
        minimum=1,
    )
    clean_file_forcibly_enable: bool = setting(
        "cleanFileForciblyEnable",
        True,
        "Delete segments before their time when the disk is nearly full.",
        important=True,
        live=True,
    )
    offset_check_in_slave: bool = setting(
        "offsetCheckInSlave",
        False,
        "Let a replica correct a consumer's offset that lies outside its own queue.",
    )
    os_page_cache_busy_time_out_mills: int = setting(
        "osPageCacheBusyTimeOutMills",
        1000,
        "Milliseconds of one append above which the page cache counts as busy.",
        bits=64,
        minimum=1,
    )
    default_query_max_num: int = setting(
        "defaultQueryMaxNum",
        32,
        "Messages that a query by unique key returns at most.",
        minimum=1,
        live=True,
        limit="The answer carries fewer messages than were asked for.",
    )
    transient_store_pool_enable: bool = setting(
        "transientStorePoolEnable",
        False,
        "Put messages into locked buffers, and from there to the log's file every "
        "commitIntervalCommitLog; only with ASYNC_FLUSH on a master. A kill of the process then "
        "loses what was acknowledged since.",
        important=True,
    )
    transient_store_pool_size: int = setting(
        "transientStorePoolSize",
        5,
        "Buffers of the transient store pool, at least two, each as long as a segment of the log. "
        "They take memory as they are filled, and keep it.",
        minimum=1,
    )
    warm_maped_file_enable: bool = setting(
        "warmMapedFileEnable",
        False,
        "Map all pages of the commit-log segments in use ahead and lock them in memory.",
    )
    fast_fail_if_no_buffer_in_store_pool: bool = setting(
        "fastFailIfNoBufferInStorePool",
        False,
        "Refuse a send that needs a new segment when the transient store pool has no free buffer; "
        "else it waits for a commit.",
    )

    def __post_init__(self) -> None:
        if not self.store_path_root_dir:
            raise ConfigError("storePathRootDir=: expected a directory")
        hours = self.delete_when.split(";")
        if not all(re.fullmatch(r"\s*(\d|[01]\d|2[0-3])\s*", hour, re.ASCII) for hour in hours):
            raise ConfigError(
                f"deleteWhen={self.delete_when}: expected hours from 00 to 23, such as 04 or 04;16"
            )
        if not self._writable_directories():
            raise ConfigError(
                f"storePathCommitLog={self.store_path_commit_log}: expected a directory that is "
                "not among readOnlyCommitLogStorePaths"
            )
        levels = self.message_delay_level.split(" ")
        if not all(re.fullmatch(r"\d{1,9}(ms|[smhd])", level, re.ASCII) for level in levels):
            raise ConfigError(
                f"messageDelayLevel={self.message_delay_level}: "
                "expected delays separated by one space, such as 1s 5m 2h 1d"
            )

    @classmethod
    def load(cls, properties: Mapping[str, str]) -> tuple[Self, list[str]]:
        """Build from a properties table; also returns the keys that are not the store's."""
        expanded = {
            key: _expand_home(value) if key in _PATH_KEYS else value
            for key, value in properties.items()
        }
        config, others = load_settings(cls, expanded)
        if properties.get("enableDLegerCommitLog", "false").strip().lower() == "true":
            raise ConfigError(
                "enableDLegerCommitLog=true: expected false; DLedger's log has another format on "
                "disk, which this store cannot read or write"
            )
        return config, [key for key in others if key not in KNOWN_WITHOUT_EFFECT]

    @property
    def root(self) -> Path:
        """Directory of the whole store."""
        return Path(self.store_path_root_dir)

    @property
    def commit_log_directory(self) -> Path:
        """Directory of the commit-log segments; the first one where there are several."""
        return self._writable_directories()[0]

    @property
    def more_commit_log_directories(self) -> tuple[Path, ...]:
        """Further directories for commit-log segments."""
        return self._writable_directories()[1:]

    @property
    def read_only_commit_log_directories(self) -> tuple[Path, ...]:
        """Directories of segments that are never written to."""
        return _split_paths(self.read_only_commit_log_store_paths or "")

    def _writable_directories(self) -> tuple[Path, ...]:
        configured = _split_paths(self.store_path_commit_log or "")
        read_only = self.read_only_commit_log_directories
        paths = configured or (self.root / "commitlog",)
        return tuple(path for path in paths if path not in read_only)

    @property
    def consume_queue_directory(self) -> Path:
        """Directory that holds a folder per topic, with a folder per queue."""
        return self.root / "consumequeue"

    @property
    def consume_queue_ext_directory(self) -> Path:
        """Directory of the consume queues' extensions, with folders as theirs."""
        return self.root / "consumequeue_ext"

    @property
    def index_directory(self) -> Path:
        """Directory of the key index files."""
        return self.root / "index"

    @property
    def config_directory(self) -> Path:
        """Directory of the JSON tables: topics, groups, offsets."""
        return self.root / "config"

    @property
    def consume_queue_file_size(self) -> int:
        """Bytes of a consume-queue segment: mappedFileSizeConsumeQueue in whole entries."""
        entries = -(-self.mapped_file_size_consume_queue // _CONSUME_QUEUE_ENTRY)
        return entries * _CONSUME_QUEUE_ENTRY

    @property
    def disk_cleaning_percent(self) -> int:
        """Percent of the disk above which segments are deleted at any hour."""
        return min(max(self.disk_max_used_space_ratio, 10), 95)

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours of deleteWhen."""
        return frozenset(int(hour) for hour in self.delete_when.split(";"))

    @property
    def uses_transient_store_pool(self) -> bool:
        """Whether the pool is on: asked for, and neither SYNC_FLUSH nor a replica."""
        return (
            self.transient_store_pool_enable
            and self.flush_disk_type is FlushDiskType.ASYNC_FLUSH
            and self.broker_role is not BrokerRole.SLAVE
        )

    @property
    def refuses_without_buffer(self) -> bool:
        """Whether sends are refused as long as the pool has no free buffer.

        The segment that is written and the next one have two of them at any time: a pool of
        no more would never have a free one.
        """
        return (
            self.uses_transient_store_pool
            and self.fast_fail_if_no_buffer_in_store_pool
            and self.transient_store_pool_size > 2
        )


#: Keys of RocketMQ's MessageStoreConfig that mean nothing here: they tune locks, warm-up
#: and queues of threads that this store does not have, or belong to DLedger.
KNOWN_WITHOUT_EFFECT = frozenset(
    {
        "dLegerGroup",
        "dLegerPeers",
        "dLegerSelfId",
        "debugLockEnable",
        "diskFallRecorded",
        "duplicationEnable",
        "enableBatchPush",
        "enableDLegerCommitLog",
        "enableLmq",
        "enableMultiDispatch",
        "enableScheduleAsyncDeliver",
        "enableScheduleMessageStats",
        "flushLeastPagesWhenWarmMapedFile",
        # The same key as RocketMQ writes it when it saves its settings.
        "isEnableBatchPush",
        "maxLmqConsumeQueueNum",
        "preferredLeaderId",
        "putMsgIndexHightWater",
        "scheduleAsyncDeliverMaxPendingLimit",
        "scheduleAsyncDeliverMaxResendNum2Blocked",
        "storePathDLedgerCommitLog",
        "useReentrantLockWhenPutMessage",
    }
)

_PATH_KEYS = frozenset({"storePathRootDir", "storePathCommitLog", "readOnlyCommitLogStorePaths"})
_HOME = re.compile(r"(?:^|(?<=,))\s*(?:~|\$\{user\.home\}|\$\{HOME\}|\$HOME)(?=/|,|$)")


def _expand_home(value: str) -> str:
    """Put the home directory in the place of its abbreviations, at the start of each path."""
    return _HOME.sub(lambda _: str(Path.home()), value)


def _split_paths(paths: str) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(Path(path.strip()) for path in paths.split(",") if path.strip()))
