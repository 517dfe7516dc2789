"""The store's configuration: RocketMQ's MessageStoreConfig, key for key.

Defaults and units (milliseconds, bytes, hours) are RocketMQ 4.9.7's. The settings of replication
and raft groups are inherited from `replication_settings` and `raft_settings`; RocketMQ's keys
without a field are listed in `base.unsupported_settings`. Values are checked on construction, so
every `MessageStoreConfig` is usable.

Loaded at start-up by the broker and by tools that open a store. At run time only the live
settings of a broker's store change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Self

from pyromq.base.settings import ConfigError, load_settings, refuse_unsupported, setting
from pyromq.base.unsupported_settings import STORE
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY_SIZE
from pyromq.store.raft_settings import RaftSettings
from pyromq.store.replication_settings import BrokerRole as BrokerRole

_FEWER = "The answer carries fewer messages than requested."


class FlushDiskType(Enum):
    """Whether a send waits for the fsync of its bytes."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


@dataclass(frozen=True, slots=True)
class MessageStoreConfig(RaftSettings):
    """Settings of the message store."""

    # ruff: noqa: RUF009 - `setting` returns a dataclass field
    store_path_root_dir: str = setting(
        "storePathRootDir",
        doc="Keep the store in this directory. The default is `store` in the home directory.",
        default_factory=lambda: str(Path.home() / "store"),
        important=True,
        path=True,
    )
    store_path_commit_log: str | None = setting(
        "storePathCommitLog",
        None,
        "Keep the commit log in this directory, or spread its segments over several directories, "
        "separated by commas. The default is `commitlog` under storePathRootDir.",
        important=True,
        path=True,
    )
    read_only_commit_log_store_paths: str | None = setting(
        "readOnlyCommitLogStorePaths",
        None,
        "Read, but never write or delete, the segments in these commit-log directories, separated "
        "by commas.",
        path=True,
    )
    mapped_file_size_commit_log: int = setting(
        "mappedFileSizeCommitLog",
        1024 * 1024 * 1024,
        "Make commit-log segments this many bytes long. An existing store keeps its size.",
        minimum=4096,
    )
    max_mapped_files: int = setting(
        "maxMappedFiles",
        0,
        "Keep at most this many files of the store mapped, each with a descriptor. 0 takes a "
        "quarter of the process's open-file limit, at most 16384.",
        minimum=0,
    )
    mapped_file_size_consume_queue: int = setting(
        "mappedFileSizeConsumeQueue",
        300_000 * CONSUME_QUEUE_ENTRY_SIZE,
        "Make consume-queue segments this many bytes long, rounded up to whole 20-byte entries.",
        minimum=CONSUME_QUEUE_ENTRY_SIZE,
    )
    enable_consume_queue_ext: bool = setting(
        "enableConsumeQueueExt",
        False,
        "Keep the filter bit maps in an extension file next to each consume queue.",
    )
    mapped_file_size_consume_queue_ext: int = setting(
        "mappedFileSizeConsumeQueueExt",
        48 * 1024 * 1024,
        "Make segments of the consume-queue extension this many bytes long.",
        minimum=4096,
    )
    bit_map_length_consume_queue_ext: int = setting(
        "bitMapLengthConsumeQueueExt",
        64,
        "Make the filter bit map this many bits long.",
        minimum=0,
        ignored="the length follows from expectConsumerNumUseFilter and maxErrorRateOfBloomFilter, "
        "as in RocketMQ",
    )
    flush_interval_commit_log: int = setting(
        "flushIntervalCommitLog",
        500,
        "With ASYNC_FLUSH, flush the commit log at this interval, in milliseconds.",
        important=True,
        minimum=1,
        live=True,
    )
    commit_interval_commit_log: int = setting(
        "commitIntervalCommitLog",
        200,
        "Commit the transient store pool to the log's file at this interval, in milliseconds.",
        important=True,
        minimum=1,
    )
    flush_commit_log_timed: bool = setting(
        "flushCommitLogTimed",
        True,
        "Flush the commit log only at flushIntervalCommitLog. false also flushes, within 10 ms, as "
        "soon as flushCommitLogLeastPages are dirty.",
        important=True,
        live=True,
    )
    flush_interval_consume_queue: int = setting(
        "flushIntervalConsumeQueue",
        1000,
        "Flush the consume queues at this interval, in milliseconds.",
        minimum=1,
        live=True,
    )
    clean_resource_interval: int = setting(
        "cleanResourceInterval",
        10_000,
        "Look for expired segments at this interval, in milliseconds.",
        minimum=1,
    )
    delete_commit_log_files_interval: int = setting(
        "deleteCommitLogFilesInterval",
        100,
        "Pause for this many milliseconds between deletions of commit-log segments.",
        minimum=0,
        live=True,
    )
    delete_consume_queue_files_interval: int = setting(
        "deleteConsumeQueueFilesInterval",
        100,
        "Pause for this many milliseconds between deletions of consume-queue segments.",
        minimum=0,
        live=True,
    )
    destroy_maped_file_interval_forcibly: int = setting(
        "destroyMapedFileIntervalForcibly",
        120_000,
        "Unmap a deleted segment after this many milliseconds even if it is in use.",
        minimum=0,
        ignored="the space of a deleted segment is freed when its last reader is done; nothing is "
        "forced",
    )
    redelete_hanged_file_interval: int = setting(
        "redeleteHangedFileInterval",
        120_000,
        "Retry at this interval, in milliseconds, to delete a segment that could not be deleted.",
        minimum=0,
        live=True,
    )
    delete_when: str = setting(
        "deleteWhen",
        "04",
        "Delete expired segments at these hours of the day, separated by semicolons.",
        important=True,
        live=True,
    )
    disk_max_used_space_ratio: int = setting(
        "diskMaxUsedSpaceRatio",
        75,
        "Delete expired segments at any hour while the disk is fuller than this percentage, "
        "clamped to 10 to 95.",
        live=True,
    )
    disk_space_clean_forcibly_ratio: int = setting(
        "diskSpaceCleanForciblyRatio",
        85,
        "Delete even unexpired segments while the disk is fuller than this percentage "
        "(cleanFileForciblyEnable). RocketMQ has a system property of this name, a fraction of 1.",
        minimum=1,
        maximum=100,
        live=True,
    )
    disk_space_warning_level_ratio: int = setting(
        "diskSpaceWarningLevelRatio",
        90,
        "Refuse sends while the disk is fuller than this percentage. RocketMQ has a system "
        "property of this name, a fraction of 1.",
        minimum=1,
        maximum=100,
        live=True,
        limit="Sends fail with SERVICE_NOT_AVAILABLE until there is room; pulls keep working.",
    )
    file_reserved_time: int = setting(
        "fileReservedTime",
        72,
        "Keep a segment for this many hours after its last write.",
        important=True,
        minimum=0,
        live=True,
    )
    max_message_size: int = setting(
        "maxMessageSize",
        4 * 1024 * 1024,
        "Accept message bodies of at most this many bytes.",
        minimum=1,
        limit="The send fails with MESSAGE_ILLEGAL.",
    )
    max_batch_messages: int = setting(
        "maxBatchMessages",
        65_536,
        "Accept at most this many messages in one batch.",
        minimum=1,
        limit="The whole batch fails with MESSAGE_ILLEGAL.",
    )
    max_batch_records_size: int = setting(
        "maxBatchRecordsSize",
        16 * 1024 * 1024,
        "Accept a batch whose records take at most this many bytes in the log. Each message gets "
        "the properties of the batch.",
        minimum=1,
        limit="The whole batch fails with MESSAGE_ILLEGAL.",
    )
    check_crc_on_recover: bool = setting(
        "checkCRCOnRecover",
        True,
        "Verify the CRC of each body that recovery reads.",
    )
    flush_commit_log_least_pages: int = setting(
        "flushCommitLogLeastPages",
        4,
        "Skip a flush of the commit log with fewer dirty pages (4 KiB) than this.",
        minimum=0,
        live=True,
    )
    commit_commit_log_least_pages: int = setting(
        "commitCommitLogLeastPages",
        4,
        "Skip a commit of the transient store pool with fewer dirty pages (4 KiB) than this.",
        minimum=0,
    )
    flush_consume_queue_least_pages: int = setting(
        "flushConsumeQueueLeastPages",
        2,
        "Skip a flush of a consume queue with fewer dirty pages (4 KiB) than this.",
        minimum=0,
        live=True,
    )
    flush_commit_log_thorough_interval: int = setting(
        "flushCommitLogThoroughInterval",
        10_000,
        "Flush the commit log after this many milliseconds, however few pages are dirty.",
        minimum=0,
        live=True,
    )
    commit_commit_log_thorough_interval: int = setting(
        "commitCommitLogThoroughInterval",
        200,
        "Commit the transient store pool after this many milliseconds, however little it holds.",
        minimum=0,
    )
    flush_consume_queue_thorough_interval: int = setting(
        "flushConsumeQueueThoroughInterval",
        60_000,
        "Flush a consume queue after this many milliseconds, however few pages are dirty. Recovery "
        "after a crash reads at least as much of the log again.",
        minimum=0,
        live=True,
    )
    max_transfer_bytes_on_message_in_memory: int = setting(
        "maxTransferBytesOnMessageInMemory",
        256 * 1024,
        "Return at most this many bytes, but one message at least, to a pull from memory.",
        important=True,
        minimum=1,
        limit=_FEWER,
    )
    max_transfer_count_on_message_in_memory: int = setting(
        "maxTransferCountOnMessageInMemory",
        32,
        "Return at most this many messages to a pull from memory.",
        important=True,
        minimum=1,
        limit=_FEWER,
    )
    max_transfer_bytes_on_message_in_disk: int = setting(
        "maxTransferBytesOnMessageInDisk",
        64 * 1024,
        "Return at most this many bytes, but one message at least, to a pull from disk.",
        important=True,
        minimum=1,
        limit=_FEWER,
    )
    max_transfer_count_on_message_in_disk: int = setting(
        "maxTransferCountOnMessageInDisk",
        8,
        "Return at most this many messages to a pull from disk.",
        important=True,
        minimum=1,
        limit=_FEWER,
    )
    access_message_in_memory_max_ratio: int = setting(
        "accessMessageInMemoryMaxRatio",
        40,
        "Assume that the newest messages are in memory, up to this percentage of the machine's "
        "memory.",
        important=True,
        minimum=0,
        maximum=100,
    )
    message_index_enable: bool = setting(
        "messageIndexEnable", True, "Build the key index.", important=True
    )
    max_hash_slot_num: int = setting(
        "maxHashSlotNum", 5_000_000, "Give an index file this many hash slots.", minimum=1
    )
    max_index_num: int = setting(
        "maxIndexNum", 20_000_000, "Give an index file this many entries.", minimum=2
    )
    max_msgs_num_batch: int = setting(
        "maxMsgsNumBatch",
        64,
        "Return at most this many messages to a query by key.",
        minimum=1,
        limit=_FEWER,
    )
    message_index_safe: bool = setting(
        "messageIndexSafe",
        False,
        "Let recovery start early enough to complete the key index too.",
        important=True,
    )
    flush_disk_type: FlushDiskType = setting(
        "flushDiskType",
        FlushDiskType.ASYNC_FLUSH,
        "SYNC_FLUSH makes a send wait for the fsync of its message, ASYNC_FLUSH does not.",
        important=True,
    )
    sync_flush_timeout: int = setting(
        "syncFlushTimeout",
        5000,
        "With SYNC_FLUSH, answer FLUSH_DISK_TIMEOUT to a send after this many milliseconds.",
        minimum=1,
        live=True,
    )
    message_delay_level: str = setting(
        "messageDelayLevel",
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "Set the delays of levels 1, 2, ...: each is a number with the unit ms, s, m, h or d, "
        "separated by spaces. RocketMQ does not know ms, which is for tests.",
    )
    flush_delay_offset_interval: int = setting(
        "flushDelayOffsetInterval",
        10_000,
        "Save the progress of delayed messages at this interval, in milliseconds.",
        bits=64,
        minimum=1,
    )
    clean_file_forcibly_enable: bool = setting(
        "cleanFileForciblyEnable",
        True,
        "Delete unexpired segments while the disk is nearly full.",
        important=True,
        live=True,
    )
    os_page_cache_busy_time_out_mills: int = setting(
        "osPageCacheBusyTimeOutMills",
        1000,
        "Treat the page cache as busy after an append of more than this many milliseconds.",
        bits=64,
        minimum=1,
    )
    debug_lock_enable: bool = setting(
        "debugLockEnable",
        False,
        "Write the stacks of all threads to `debug` in the store's directory if an append, or "
        "anything else, holds the event loop for more than a second.",
        live=True,
    )
    disk_fall_recorded: bool = setting(
        "diskFallRecorded",
        True,
        "Record how far the pulls of each group are behind the end of the log "
        "(GROUP_GET_FALL_SIZE, GROUP_GET_FALL_TIME).",
        live=True,
    )
    default_query_max_num: int = setting(
        "defaultQueryMaxNum",
        32,
        "Return at most this many messages to a query by unique key.",
        minimum=1,
        live=True,
        limit=_FEWER,
    )
    transient_store_pool_enable: bool = setting(
        "transientStorePoolEnable",
        False,
        "Write messages to buffers in locked memory first, and commit them to the log's file every "
        "commitIntervalCommitLog; only with ASYNC_FLUSH. A killed process loses the acknowledged "
        "messages that are not committed.",
        important=True,
    )
    transient_store_pool_size: int = setting(
        "transientStorePoolSize",
        5,
        "Use this many buffers, at least two, each as long as a commit-log segment. A buffer takes "
        "memory as it fills up, and keeps it.",
        minimum=1,
    )
    warm_maped_file_enable: bool = setting(
        "warmMapedFileEnable",
        False,
        "Map all pages of the current and the next commit-log segment ahead and lock them in "
        "memory.",
    )
    fast_fail_if_no_buffer_in_store_pool: bool = setting(
        "fastFailIfNoBufferInStorePool",
        False,
        "Refuse sends while the transient store pool has no free buffer, instead of letting them "
        "wait for a commit.",
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
        self.check_replication()
        self.check_raft()

    @classmethod
    def load(cls, properties: Mapping[str, str]) -> tuple[Self, list[str]]:
        """Build from a properties table; also return the keys that are not the store's."""
        refuse_unsupported(properties, STORE)
        config, others = load_settings(cls, properties, str(Path.home()))
        return config, [key for key in others if key not in STORE]

    @property
    def root(self) -> Path:
        """Directory of the whole store."""
        return Path(self.store_path_root_dir)

    @property
    def commit_log_directory(self) -> Path:
        """Directory of the commit-log segments; the first one of several."""
        return self._writable_directories()[0]

    @property
    def more_commit_log_directories(self) -> tuple[Path, ...]:
        """The other directories for commit-log segments."""
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
        """Directory of the consume queues: one folder per topic, with one folder per queue."""
        return self.root / "consumequeue"

    @property
    def consume_queue_ext_directory(self) -> Path:
        """Directory of the consume-queue extensions, with the same folders."""
        return self.root / "consumequeue_ext"

    @property
    def raft_directory(self) -> Path:
        """Directory of the raft node: its entries, unless they are elsewhere, term and vote."""
        return self.root / f"dledger-{self.raft_id}"

    @property
    def raft_data_directory(self) -> Path | None:
        """Directory of the entries, if it is not below `raft_directory`."""
        path = self.store_path_dledger_commit_log
        return Path(path) if path else None

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
        entries = -(-self.mapped_file_size_consume_queue // CONSUME_QUEUE_ENTRY_SIZE)
        return entries * CONSUME_QUEUE_ENTRY_SIZE

    @property
    def disk_cleaning_percent(self) -> int:
        """diskMaxUsedSpaceRatio, clamped to 10 to 95."""
        return min(max(self.disk_max_used_space_ratio, 10), 95)

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours of deleteWhen."""
        return frozenset(int(hour) for hour in self.delete_when.split(";"))

    @property
    def uses_transient_store_pool(self) -> bool:
        """Whether the pool is enabled, and allowed: not with SYNC_FLUSH, not on a replica."""
        return (
            self.transient_store_pool_enable
            and not self.enable_dleger_commit_log
            and self.flush_disk_type is FlushDiskType.ASYNC_FLUSH
            and self.broker_role is not BrokerRole.SLAVE
        )

    @property
    def refuses_without_buffer(self) -> bool:
        """Whether sends are refused while the pool has no free buffer.

        The current segment and the next one always occupy two buffers, so a pool of two would
        never have a free one.
        """
        return (
            self.uses_transient_store_pool
            and self.fast_fail_if_no_buffer_in_store_pool
            and self.transient_store_pool_size > 2
        )


def _split_paths(paths: str) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(Path(path.strip()) for path in paths.split(",") if path.strip()))
