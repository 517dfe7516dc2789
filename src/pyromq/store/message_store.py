"""The entry point of a live store: start, put, get, query, delete, stop.

`chunk` implements the puts; the store exposes its methods as its own. Every read seals the
chunk first, so that a pull sees the messages sent before it in the same chunk.

Invariants
1. The state moves as `store.state` says. Messages are accepted only in RUNNING.
2. The abort file exists, fsynced, from before the first put to the end of a clean stop.
3. Everything runs on the loop's thread, except `query`, `read_record`, `fetch_record` and
   `store_time`, which read sealed data only and may be called from any thread, and the searches
   that `earliest_search` and `time_search` return.

Owned by the broker, which calls `retention` periodically.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO

from pyromq.base.descriptors import hold_spares, mapped_files_allowed, release_spares
from pyromq.protocol.message.record import HEAD_SIZE_V4, head_size
from pyromq.store.agreement import StoreAgreement
from pyromq.store.chunk import Chunk, host_flag
from pyromq.store.config import BrokerRole, FlushDiskType, MessageStoreConfig
from pyromq.store.dispatching import LogDispatch
from pyromq.store.flush import FlushService
from pyromq.store.growth import Growth
from pyromq.store.index.index import KeyIndex
from pyromq.store.index.lane import IndexLane
from pyromq.store.lock import lock_store, mark_running, unlock_store
from pyromq.store.log import self_check
from pyromq.store.log.agreed_log import AgreedLog, EntryLog
from pyromq.store.log.checkpoint import Checkpoint
from pyromq.store.log.commit import CommitService
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.open_files import OpenFiles
from pyromq.store.log.segments import remove_if_empty
from pyromq.store.log.transient_store_pool import TransientStorePool
from pyromq.store.opening import StoreOpening
from pyromq.store.queues import lookup
from pyromq.store.queues.bulk_reading import BulkRead, plan_bulk
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.queues.extension import BitMapOf, ConsumeQueueExt
from pyromq.store.queues.reading import MessageFilter, PullParts, Reader
from pyromq.store.recovery import recovery
from pyromq.store.replicated import ReplicatedLog
from pyromq.store.replication import StoreReplication
from pyromq.store.results import GetResult, GetStatus, PutError, PutStatus
from pyromq.store.retention import Retention
from pyromq.store.state import StoreState

logger = logging.getLogger(__name__)


class MessageStore:
    """Commit log, consume queues and key index of one broker."""

    def __init__(
        self,
        config: MessageStoreConfig,
        store_host: bytes,
        on_arrival: Callable[[ConsumeQueue], None] | None = None,
        bit_map_of: BitMapOf | None = None,
        open_entries: Callable[[int], EntryLog] | None = None,
    ) -> None:
        """`on_arrival` is called for watched queues; `bit_map_of` evaluates filters for the
        consume queues' extension. In a raft group, `open_entries` returns the group's log, which
        is not started, and begins at the given offset if it is new.
        """
        self.config = config
        self._state = StoreState.NEW
        self._on_arrival = on_arrival
        self._bit_map_of = bit_map_of
        self._head_size = head_size(host_flag(store_host))
        self._open_files = OpenFiles(mapped_files_allowed(config.max_mapped_files))
        self._open_entries = open_entries
        self._log = _log_of(config, self._open_files, is_agreed=open_entries is not None)
        self._commit = CommitService(config, self._log)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        #: Topics that are being deleted.
        self._closed_topics: set[str] = set()
        self._checkpoint = Checkpoint(config.root / "checkpoint")
        self._index = KeyIndex(
            config.index_directory,
            hash_slot_count=config.max_hash_slot_num,
            entry_count=config.max_index_num,
            max_results=config.max_msgs_num_batch,
        )
        self._index_lane = IndexLane(
            self._log, self._index if config.message_index_enable else None
        )
        self._flush = FlushService(config, self._log, self._index, self._checkpoint, self._fail)
        #: Growth of the queues, for statistics.
        self.growth = Growth(config.os_page_cache_busy_time_out_mills)
        self._chunk = Chunk(
            config, self._log, store_host, self._flush, self.growth, self._refusal, on_arrival
        )
        # Bound methods, because forwarding a put would cost a call per message.
        self.put = self._chunk.put
        self.put_batch = self._chunk.put_batch
        self.encode_batch = self._chunk.encode_batch
        self.put_encoded = self._chunk.put_encoded
        self.put_records = self._chunk.put_records
        self.record_room = self._chunk.record_room
        self.chunk_time = self._chunk.chunk_time
        self.seal = self._chunk.seal
        self.end_chunk = self._chunk.end_chunk
        dispatch = LogDispatch(config, self._log, self._flush, self.growth, self.queue, on_arrival)
        #: For a member of a raft group; None in any other broker.
        self.agreement: StoreAgreement | None = None
        #: Returns where the next message of a queue goes: what `put` takes.
        self.tail: Callable[[str, int], ConsumeQueue] = self.queue
        if isinstance(self._log, AgreedLog):
            self.agreement = StoreAgreement(self._log, self._chunk, dispatch, self.queue)
            self.tail = self.agreement.tail
        #: For `pyromq.replication`.
        self.replication = StoreReplication(
            self._log,
            self._chunk,
            self._flush,
            ReplicatedLog(self._log, self._chunk, dispatch),
            waits_for_flush=config.flush_disk_type is FlushDiskType.SYNC_FLUSH,
        )
        self._is_replica = config.broker_role is BrokerRole.SLAVE
        self._reader = Reader(self._log, config)
        #: Deletes expired data; the owner calls it periodically.
        self.retention = Retention(
            config, self._log, self._index, self._sealed_queues, self._set_disk_full
        )
        #: Why a running store refuses messages until a disk has room again.
        self._full_disk: str | None = None
        #: Why a running store refuses messages until it is restarted.
        self._failure: str | None = None
        self._lock_file: IO[bytes] | None = None

    # Lifecycle

    def start(self) -> None:
        """Lock the directory, recover its files, and start to accept messages.

        Raises StoreError or OSError, and then holds nothing and does not mark the store as
        cleanly stopped. A store can be started once.
        """
        self._move_to(StoreState.LOADING)
        root = self.config.root
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._lock_file = lock_store(root)
            self._open_files.adopt()
            hold_spares()
            clean = not (root / "abort").exists()
            end, dispatched_from = self._recover(clean=clean)
            mark_running(root)
        except BaseException:
            self._close_files()
            self._move_to(StoreState.CLOSED)
            raise
        self._log.start(end)
        self._chunk.start(end)
        self.replication.start(end)
        if self.agreement is not None:
            self.agreement.start(end)
        self._index_lane.start(
            recovery.index_from(self._log, self._index, dispatched_from, clean=clean)
        )
        for queue in self._queues.values():
            if queue.dirty:  # recovery wrote to it
                self._flush.add(queue)
                self.growth.add(queue)
        self.growth.skip_all(self._queues.values())
        self._flush.start()
        if self.config.uses_transient_store_pool:
            self._commit.start()
        self._move_to(StoreState.RUNNING)

    def stop(self) -> None:
        """Flush everything and mark the stop as clean. Does nothing unless the store runs."""
        if self._state is not StoreState.RUNNING:
            return
        self.seal()
        self._move_to(StoreState.CLOSING)
        self._chunk.withdraw_room()
        self._index_lane.stop()
        self._commit.stop()
        self._flush.stop()
        self._log.stop()
        for queue in self._queues.values():
            queue.drop_unused()
        (self.config.root / "abort").unlink(missing_ok=True)
        self._close_files()
        self._move_to(StoreState.CLOSED)

    def _move_to(self, state: StoreState) -> None:
        self._state = self._state.moved_to(state, self.config.root)

    def _refusal(self) -> PutError | None:
        """Return why no message is accepted, or None."""
        reason = self.fault
        if self._is_replica and self._state is StoreState.RUNNING:
            reason = "the broker is a replica: only its master takes messages"
        if reason is not None:
            return PutError(PutStatus.SERVICE_NOT_AVAILABLE, reason)
        return None if self.agreement is None else self.agreement.refusal()

    def _recover(self, *, clean: bool) -> tuple[int, int]:
        opening = StoreOpening(
            self.config, self._log, self._queues, self.queue, self._index, self._checkpoint
        )
        return opening.recover(clean=clean, open_entries=self._open_entries)

    def _close_files(self) -> None:
        self._log.segments.close()
        for queue in self._queues.values():
            queue.close()
        self._index.close()
        if self._lock_file is not None:
            unlock_store(self._lock_file)
            self._lock_file = None
            release_spares()

    # Queues

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the consume queue, and create it if it does not exist."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._queues[topic, queue_id] = ConsumeQueue(
                self.config.consume_queue_directory,
                self.config.consume_queue_file_size,
                topic,
                queue_id,
                self._head_size,
                self._extension(topic, queue_id),
                self._open_files,
            )
            if topic in self._closed_topics:
                queue.refuse_puts()
        return queue

    def _extension(self, topic: str, queue_id: int) -> ConsumeQueueExt | None:
        config = self.config
        if not config.enable_consume_queue_ext:
            return None
        return ConsumeQueueExt(
            config.consume_queue_ext_directory,
            config.mapped_file_size_consume_queue_ext,
            topic,
            queue_id,
            self._log.read,
            self._bit_map_of,
            self._open_files,
        )

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the consume queue, or None if it does not exist."""
        return self._queues.get((topic, queue_id))

    def queues(self) -> Iterator[ConsumeQueue]:
        """Iterate over a snapshot of all consume queues."""
        return iter(list(self._queues.values()))

    def self_check(self) -> Callable[[], list[str]]:
        """Return a function that finds faults of the store's files, for any thread."""
        streams = [self._log.segments, *(queue.segments for queue in self._queues.values())]
        return partial(self_check.faults, streams)

    @property
    def queue_count(self) -> int:
        """Return the number of consume queues."""
        return len(self._queues)

    def queue_counts(self) -> dict[str, int]:
        """Return the number of queues per topic with messages: its highest queue id + 1."""
        counts: dict[str, int] = {}
        for topic, queue_id in self._queues:
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        return counts

    # Reads

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        message_filter: MessageFilter | None = None,
        *,
        may_wait: bool = False,
        max_bytes: int = 0,
    ) -> GetResult:
        """Return messages of a queue from `offset` on, within `max_count` and a pull's limits.

        With `may_wait` the status may be NOT_IN_MEMORY. `max_bytes` replaces the limits of a
        pull. See `reading`.
        """
        if self._chunk.touched:
            self.seal()
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        first, end = queue.min_offset, queue.next_offset
        if end == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, first, end)
        if offset < first:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, first, first, end)
        if offset == end:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, first, end)
        if offset > end:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, end, first, end)
        result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, first, end)
        self._reader.collect(result, queue, offset, max_count, message_filter, may_wait, max_bytes)
        return result

    @property
    def pull_parts(self) -> PullParts:
        """Return what the compiled kernel needs to do the same as `get`."""
        log = self._log
        return PullParts(self._queues, log.segments, log.watermarks, self._chunk, self._reader)

    def plan_bulk(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int
    ) -> BulkRead | None:
        """Plan a bulk read for a worker thread, or return None: `get` then tells why."""
        if self._chunk.touched:
            self.seal()
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= offset < queue.next_offset:
            return None
        return plan_bulk(queue, self._log, offset, max_count, max_bytes)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the next message; 0 for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        return queue.next_offset if queue else 0

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        """Return the queue offset of the oldest message, or None for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        return queue.min_offset if queue else None

    def earliest_time(self, topic: str, queue_id: int) -> int | None:
        """Return the store timestamp of a queue's oldest message, or None if it has none."""
        return self.earliest_search(topic, queue_id)()

    def earliest_search(self, topic: str, queue_id: int) -> Callable[[], int | None]:
        """Return a function that finds `earliest_time` on any thread, as it may read the disk."""
        if self._chunk.touched:
            self.seal()
        queue = self._queues.get((topic, queue_id))
        entry = queue.entry(queue.min_offset) if queue else None
        return partial(self.store_time, entry.physical_offset) if entry else lambda: None

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        """Return the offset of the message stored nearest to `timestamp`, rounded as in Java."""
        return self.time_search(topic, queue_id, timestamp)()

    def time_search(self, topic: str, queue_id: int, timestamp: int) -> Callable[[], int]:
        """Return a function that finds `offset_by_time` on any thread, as it reads the disk."""
        if self._chunk.touched:
            self.seal()
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return lambda: 0
        return partial(lookup.offset_by_time, queue, self._log, timestamp, queue.next_offset)

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a message is close enough to the log's end to be in memory."""
        queue = self._queues.get((topic, queue_id))
        entry = queue.entry(offset) if queue else None
        return entry is not None and not self._reader.is_cold(entry.physical_offset)

    def is_cold(self, physical_offset: int) -> bool:
        """Whether reading a record would wait for the disk; use `fetch_record` on a thread."""
        return self._reader.would_wait(physical_offset)

    def read_record(self, physical_offset: int) -> bytes | None:
        """Return the sealed record that starts at this offset, or None. Any thread."""
        return lookup.record_at(self._log, physical_offset)

    def fetch_record(self, physical_offset: int) -> bytes | None:
        """Return the same as `read_record`, and read the disk without holding the GIL."""
        return lookup.fetch_record(self._log, physical_offset)

    def store_time(self, physical_offset: int) -> int | None:
        """Return the store timestamp of the record that starts there, or None. Any thread."""
        return lookup.store_timestamp(self._log, physical_offset, HEAD_SIZE_V4)

    def query(self, topic: str, key: str, max_count: int, begin: int, end: int) -> list[int]:
        """Return physical offsets of the messages with a key, newest first.

        Slow: call it on a worker thread.
        """
        return self._index.query(topic, key, max_count, begin, end)

    # Deletion

    def close_topic(self, topic: str) -> None:
        """Refuse messages of a topic until `remove_topic`; stored ones can still be read."""
        self.seal()
        self._closed_topics.add(topic)
        for key in self._keys_of(topic):
            self._queues[key].refuse_puts()
        self._close_tails(topic)

    def has_messages(self, topic: str) -> bool:
        """Whether any queue of the topic has entries, even if their messages have expired."""
        return any(self._queues[key].next_offset for key in self._keys_of(topic))

    def remove_topic(self, topic: str) -> None:
        """Delete all consume queues of a topic. Its records stay in the log until they expire.

        Logs and leaves files that it cannot remove: the queues are gone in any case.
        """
        self.seal()
        self._closed_topics.discard(topic)
        self._remove_queues(topic, self._keys_of(topic))

    def remove_old_queues(self, topic: str, end: int, timestamp: int) -> int:
        """Delete a topic's queues whose messages all end at or below physical offset `end` and
        were stored no later than `timestamp`. Return how many.
        """
        self.seal()
        old = []
        for key in self._keys_of(topic):
            queue = self._queues[key]
            last = queue.entry(queue.next_offset - 1)
            if last is None or (
                last.end <= end and (self.store_time(last.physical_offset) or 0) <= timestamp
            ):
                old.append(key)
        self._remove_queues(topic, old)
        return len(old)

    def _keys_of(self, topic: str) -> list[tuple[str, int]]:
        return [key for key in self._queues if key[0] == topic]

    def _close_tails(self, topic: str) -> None:
        if self.agreement is not None:
            self.agreement.close_tails(topic)

    def _remove_queues(self, topic: str, keys: list[tuple[str, int]]) -> None:
        self._close_tails(topic)
        for queue in [self._queues.pop(key) for key in keys]:
            # Callers may still hold this queue, and a new one may get files of the same name.
            queue.refuse_puts()
            try:
                queue.delete()
            except OSError as error:
                logger.error(
                    "files of consume queue %s/%d not removed: %s; remove them when the broker is "
                    "stopped",
                    topic,
                    queue.queue_id,
                    error,
                )
            if queue.watched and self._on_arrival is not None:
                self._on_arrival(queue)  # long polls find out that the topic is gone
        config = self.config
        for parent in (config.consume_queue_directory, config.consume_queue_ext_directory):
            with contextlib.suppress(OSError):  # an empty directory is harmless
                remove_if_empty(parent / topic)

    # How far the store is

    @property
    def indexed_to(self) -> tuple[int, int]:
        """Return store time and physical offset of the last message in the key index."""
        return self._index.end_timestamp, self._index.end_offset

    @property
    def max_physical_offset(self) -> int:
        """Return the offset after the last record."""
        return self._chunk.position if self.agreement is None else self.agreement.committed

    @property
    def put_end(self) -> int:
        """Return the offset after the last message that was put, committed or not."""
        return self._chunk.position

    @property
    def flushed_offset(self) -> int:
        """Return the offset below which everything is on disk."""
        return self._log.watermarks.flushed

    @property
    def min_physical_offset(self) -> int:
        """Return the offset of the first record that is still stored."""
        return self._log.min_offset

    @property
    def has_gate(self) -> bool:
        """Whether responses to sends wait, unless the sender does not want that.

        They wait for an fsync, a replica, or both; in a raft group they always wait.
        """
        return self._chunk.has_gate and self.agreement is None

    @property
    def free_buffers(self) -> int | None:
        """Return how many buffers of the transient store pool are free; None without a pool."""
        return self._log.free_buffers

    def time_flushes(self, observe: Callable[[float], None]) -> None:
        """Call `observe` with the seconds of each fsync of the log, on the flush thread."""
        self._flush.time_flushes(observe)

    @property
    def fault(self) -> str | None:
        """Return why the store takes messages from nobody; None if it does."""
        if self._state is not StoreState.RUNNING:
            return "the store is not running"
        return self._failure or self._full_disk

    @property
    def uncommitted(self) -> int:
        """Return how many bytes are only in the transient store pool."""
        return max(0, self._log.watermarks.written - self._log.committed[0])

    @property
    def dispatch_behind(self) -> int:
        """Return how many bytes of the log are not indexed yet."""
        return self._index_lane.behind

    # Replication

    def set_replica(self, is_replica: bool) -> None:
        """Refuse all messages except the master's (`replication.log`), or accept them again."""
        self.seal()
        self._is_replica = is_replica
        self._chunk.withdraw_room()
        if not is_replica:
            self.replication.log.finish()

    # Callbacks

    def _sealed_queues(self) -> Iterator[ConsumeQueue]:
        for queue in self.queues():
            self.seal()
            yield queue

    def _set_disk_full(self, reason: str | None) -> None:
        """Refuse messages for this reason, or accept them again if it is None."""
        self._full_disk = reason
        self._chunk.withdraw_room()

    def _fail(self, reason: str) -> None:
        """Refuse messages until a restart. Called by the flush thread; the next seal acts on it."""
        self._failure = f"{reason}; repair the disk and restart the broker"


def _log_of(config: MessageStoreConfig, open_files: OpenFiles, *, is_agreed: bool) -> CommitLog:
    if is_agreed:
        return AgreedLog(
            config.commit_log_directory,
            config.mapped_file_size_commit_log,
            more=config.more_commit_log_directories,
            read_only=config.read_only_commit_log_directories,
            open_files=open_files,
        )
    return CommitLog(
        config.commit_log_directory,
        config.mapped_file_size_commit_log,
        more=config.more_commit_log_directories,
        read_only=config.read_only_commit_log_directories,
        warm=config.warm_maped_file_enable,
        pool=_pool_of(config),
        open_files=open_files,
    )


def _pool_of(config: MessageStoreConfig) -> TransientStorePool | None:
    if not config.uses_transient_store_pool:
        return None
    return TransientStorePool(
        config.transient_store_pool_size,
        config.mapped_file_size_commit_log,
        fast_fail=config.fast_fail_if_no_buffer_in_store_pool,
    )
