"""The store's only door: put, get, query.

One chunk at a time. `put` and `put_batch` gather records for the log and entries for
the consume queues; `seal` copies them in, one copy for the log and one for each
touched queue, and tells who waits for messages. A caller makes its puts, seals, and
only then lets the answers go. `get` seals first when something is gathered, so a pull
in the same chunk sees what was sent before it. A batch of very many messages is encoded over
several chunks (`encode_batch`) and then gathered as a whole (`put_encoded`).

Invariants
1. A put either raises PutError and leaves nothing behind, or is in the log when the
   chunk is sealed, at the offset that it returned.
2. Queue offsets are consecutive; an entry is written right after its record.
3. Everything runs on the loop's thread, but `query`, `read_record` and `store_time`, which
   read only what is sealed and may be called from any.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic_ns, time_ns
from typing import IO

from pyromq.base.descriptors import hold_spares, mapped_files_allowed, release_spares
from pyromq.protocol.filter.tags import raw_tags_codes
from pyromq.protocol.message.crc import CRC_MASK, crc32
from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.message_id import HOST_SIZE_V4, HOST_SIZE_V6
from pyromq.protocol.message.properties import MAX_PROPERTIES
from pyromq.protocol.message.record import (
    HEAD_SIZE_V4,
    INNER_FIXED_SIZE,
    MESSAGE_MAGIC,
    head_packer,
    head_size,
    inner_count,
    shared_packer,
)
from pyromq.protocol.message.sysflag import BORN_HOST_V6, STORE_HOST_V6
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY
from pyromq.store.batches import BatchEncoder
from pyromq.store.config import FlushDiskType, MessageStoreConfig
from pyromq.store.even_batch import EvenRecords, Place, even_records
from pyromq.store.flush import FlushOutcome, FlushService
from pyromq.store.growth import SLOW_SEAL_NS, Growth
from pyromq.store.index.index import KeyIndex
from pyromq.store.index.lane import IndexLane
from pyromq.store.lock import lock_store, mark_running, unlock_store
from pyromq.store.log.checkpoint import Checkpoint
from pyromq.store.log.commit import CommitService
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.open_files import OpenFiles
from pyromq.store.log.segments import remove_if_empty
from pyromq.store.log.transient_store_pool import TransientStorePool
from pyromq.store.queues import lookup
from pyromq.store.queues.bulk_reading import BulkRead, plan_bulk
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.queues.extension import BitMapOf, ConsumeQueueExt, refuse_other_size
from pyromq.store.queues.reading import MessageFilter, Reader
from pyromq.store.recovery import queue_damage, recovery
from pyromq.store.results import (
    GetResult,
    GetStatus,
    LargeBatchError,
    PutError,
    PutStatus,
    StoreError,
)
from pyromq.store.retention import Retention

logger = logging.getLogger(__name__)

_pack_entry = CONSUME_QUEUE_ENTRY.pack

_QUEUE_ID = re.compile("0|[1-9][0-9]{0,9}")


class MessageStore:
    """Commit log, consume queues and key index of one broker."""

    def __init__(
        self,
        config: MessageStoreConfig,
        store_host: bytes,
        on_arrival: Callable[[ConsumeQueue], None] | None = None,
        bit_map_of: BitMapOf | None = None,
    ) -> None:
        """`bit_map_of` evaluates filters for the consume queues' extension."""
        self._bit_map_of = bit_map_of
        self.config = config
        self._open_files = OpenFiles(mapped_files_allowed(config.max_mapped_files))
        self._log = CommitLog(
            config.commit_log_directory,
            config.mapped_file_size_commit_log,
            more=config.more_commit_log_directories,
            read_only=config.read_only_commit_log_directories,
            warm=config.warm_maped_file_enable,
            pool=_pool_of(config),
            open_files=self._open_files,
        )
        self._commit = CommitService(config, self._log)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        #: Topics that are being deleted.
        self._closed_topics: set[str] = set()
        self._touched: list[ConsumeQueue] = []
        self._tags = raw_tags_codes()
        self._on_arrival = on_arrival
        self._set_host(store_host)
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
        self._waits_for_flush = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        #: What the queues get, for statistics.
        self.growth = Growth()
        #: Everything below this offset is on the disk, or somebody waits for it.
        self._awaited = 0
        self._reader = Reader(self._log, config)
        #: Deletes what has expired; whoever runs the store calls it now and then.
        self.retention = Retention(
            config, self._log, self._index, self._sealed_queues, self._set_disk_full
        )
        #: Which disk is so full that nothing is taken.
        self._full_disk: str | None = None
        self._lock_file: IO[bytes] | None = None
        self._writable = False
        #: Why nothing is taken until the store is opened anew, although it runs.
        self._failure: str | None = None

    # Life

    def start(self) -> None:
        """Lock the directory, recover what is there, begin to take messages.

        Raises StoreError or OSError; nothing is held then, and nothing marked as clean.
        """
        root = self.config.root
        root.mkdir(parents=True, exist_ok=True)
        self._lock_file = lock_store(root)
        self._open_files.adopt()
        hold_spares()
        try:
            clean = not (root / "abort").exists()
            end, dispatched_from = self._recover(clean=clean)
            mark_running(root)
        except BaseException:
            self._close_files()
            raise
        self._log.start(end)
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
        self._writable = True

    def stop(self) -> None:
        """Flush everything and mark the stop as clean. Nothing when it is not started."""
        if not self._writable:
            return
        self.seal()
        self._writable = False
        self._index_lane.stop()
        self._commit.stop()
        self._flush.stop()
        self._log.stop()
        for queue in self._queues.values():
            queue.drop_unused()
        (self.config.root / "abort").unlink(missing_ok=True)
        self._close_files()

    def _recover(self, *, clean: bool) -> tuple[int, int]:
        self._checkpoint.load()
        self._log.segments.load()
        damaged = self._load_queues()
        self._index.load(drop_later_than=None if clean else self._checkpoint.index_timestamp)
        return recovery.recover(
            self._log,
            self._queues,
            self.queue,
            crash_checkpoint=None if clean else self._safe_timestamp(),
            check_crc=self.config.check_crc_on_recover,
            delay_levels=DelayLevels(self.config.message_delay_level),
            damaged=damaged,
            topics=queue_damage.known_topics(self.config.config_directory),
        )

    def _safe_timestamp(self) -> int:
        """Up to which store time everything that counts is on the disk."""
        safe = self._checkpoint.safe_timestamp
        if self.config.message_index_enable and self.config.message_index_safe:
            return min(safe, self._checkpoint.index_timestamp)
        return safe

    def _close_files(self) -> None:
        self._log.segments.close()
        for queue in self._queues.values():
            queue.close()
        self._index.close()
        if self._lock_file is not None:
            unlock_store(self._lock_file)
            self._lock_file = None
            release_spares()

    # Putting

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The consume queue of that name; it is made when it is not there."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._queues[topic, queue_id] = ConsumeQueue(
                self.config.consume_queue_directory,
                self.config.consume_queue_file_size,
                topic,
                queue_id,
                head_size(self._host_flag),
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

    def put(
        self,
        queue: ConsumeQueue,
        body: bytes,
        properties: bytes,
        tags_code: int,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
        more_properties: bytes = b"",
        prepared_offset: int = 0,
        store_timestamp: int = 0,
    ) -> int:
        """Gather one message; its queue offset is `queue.next_offset` of before.

        The properties come in two pieces, since most of them end alike. `tags_code` is
        Java's hash of the TAGS in them, 0 without: callers have them at hand, and remember
        the hashes of the few that there are. `store_timestamp` is for those who must know it
        before: what `chunk_time` has told.
        Raises PutError, or struct.error for a number that its field cannot hold.
        """
        log = self._log
        physical = log.position
        body_length = len(body)
        properties_length = len(properties) + len(more_properties)
        size = queue.fixed_size + body_length + properties_length
        if len(born_host) == HOST_SIZE_V4:
            pack = self._pack_head
            sys_flag |= self._host_flag
        else:
            pack = self._pack_head_v6
            sys_flag |= self._host_flag | BORN_HOST_V6
            size += HOST_SIZE_V6 - HOST_SIZE_V4
        if size > self._surely_allowed or physical + size > log.limit:
            physical = self._make_room(size, body_length, properties_length)
        offset = queue.next_offset
        if offset >= queue.room:
            queue.extend()
        if not log.parts:
            log.now = store_timestamp or time_ns() // 1_000_000
        head = pack(
            size,
            MESSAGE_MAGIC,
            crc32(body) & CRC_MASK,
            queue.queue_id,
            flag,
            offset,
            physical,
            sys_flag,
            born_timestamp,
            born_host,
            log.now,
            self._store_host,
            reconsume_times,
            prepared_offset,
            body_length,
        )
        log.add(
            (
                head,
                body,
                queue.topic_part,
                properties_length.to_bytes(2, "big"),
                properties,
                more_properties,
            )
        )
        pending = queue.pending
        if not pending:
            self._touched.append(queue)
        pending += _pack_entry(physical, size, tags_code)
        queue.next_offset = offset + 1
        log.position = physical + size
        return physical

    def chunk_time(self) -> int:
        """The store timestamp that the next put gets when it is told this one."""
        return self._log.now if self._log.parts else time_ns() // 1_000_000

    def put_batch(
        self,
        queue: ConsumeQueue,
        batch: bytes,
        properties: bytes,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
        max_count: int = 0,
    ) -> list[int]:
        """Gather the messages of a batch request; all of them, or none and PutError.

        `properties` are the batch's own; each message gets them behind its own ones.
        Returns the physical offsets; the first queue offset is `queue.next_offset` of
        before. A batch of more than `max_count` messages raises LargeBatchError.
        """
        log = self._log
        self._make_room_for_batch(queue, batch, properties, born_host)
        if not log.parts:
            log.now = time_ns() // 1_000_000
        place = self._place(
            queue,
            properties,
            sys_flag,
            born_timestamp,
            born_host,
            reconsume_times,
            queue.next_offset,
            log.position,
        )
        # Of tags that stand twice, the last ones count: the batch's before a message's own.
        shared_tags_code = self._tags.find(properties)
        limit = min(max_count or sys.maxsize, self.config.max_batch_messages)
        if not shared_tags_code:
            even = even_records(batch, place, self._tags.find, limit)
            if even is not None:
                self._add_even(queue, even)
                return even.offsets
        encoder = BatchEncoder(batch, place, self._tags, shared_tags_code)
        if encoder.encode(limit):
            raise LargeBatchError() if max_count else self._too_many_messages()
        self._add_encoded(queue, encoder)
        return encoder.offsets

    def encode_batch(
        self, queue: ConsumeQueue, batch: bytes, properties: bytes, born_host: bytes
    ) -> BatchEncoder:
        """Check a large batch, and return what encodes it in slices. Raises PutError.

        Another queue of the same name will do for `put_encoded`.
        """
        limit = self.config.max_batch_messages
        if inner_count(batch, limit + 1) > limit:
            raise self._too_many_messages()
        self._make_room_for_batch(queue, batch, properties, born_host)
        place = self._place(queue, properties, 0, 0, born_host, 0, 0, 0)
        return BatchEncoder(batch, place, self._tags, self._tags.find(properties))

    def put_encoded(
        self,
        queue: ConsumeQueue,
        encoder: BatchEncoder,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
    ) -> list[int]:
        """Gather a batch that was encoded in slices; else as `put_batch`."""
        log = self._log
        if not self._writable or log.position + encoder.size > log.limit:
            self._make_room(encoder.size, 0, 0)
        if not log.parts:
            log.now = time_ns() // 1_000_000
        encoder.move_to(
            self._place(
                queue,
                b"",
                sys_flag,
                born_timestamp,
                born_host,
                reconsume_times,
                queue.next_offset,
                log.position,
            )
        )
        self._add_encoded(queue, encoder)
        return encoder.offsets

    def _place(
        self,
        queue: ConsumeQueue,
        properties: bytes,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
        queue_offset: int,
        physical: int,
    ) -> Place:
        """Where the records of a batch stand, and what they have in common."""
        host_flag = self._host_flag
        fixed = queue.fixed_size
        if len(born_host) != HOST_SIZE_V4:
            host_flag |= BORN_HOST_V6
            fixed += HOST_SIZE_V6 - HOST_SIZE_V4
        shared = shared_packer(host_flag)(
            sys_flag | host_flag,
            born_timestamp,
            born_host,
            self._log.now,
            self._store_host,
            reconsume_times,
            0,
        )
        return Place(
            fixed,
            shared,
            queue.topic_part,
            b"\x02" + properties if properties else b"",
            queue.queue_id,
            queue_offset,
            physical,
        )

    def _add_encoded(self, queue: ConsumeQueue, encoder: BatchEncoder) -> None:
        """Gather the records of a batch that were made one by one."""
        if encoder.queue_offset > queue.room:
            queue.extend(len(encoder.offsets))
        self._log.add(encoder.parts)
        if not queue.pending:
            self._touched.append(queue)
        queue.pending += b"".join(encoder.entries)
        queue.next_offset = encoder.queue_offset
        self._log.position = encoder.physical

    def _add_even(self, queue: ConsumeQueue, even: EvenRecords) -> None:
        """Gather the records of a batch that were made at once."""
        count = len(even.offsets)
        if queue.next_offset + count > queue.room:
            queue.extend(count)
        self._log.add([even.records])
        if not queue.pending:
            self._touched.append(queue)
        queue.pending += even.entries
        queue.next_offset += count
        self._log.position += len(even.records)

    def seal(self) -> None:
        """Write what was gathered: the log first, then the consume queues."""
        # Not the log's parts: a roll within the chunk has written those already.
        if not self._touched:
            return
        begun = monotonic_ns()
        self._log.seal()
        if self._failure is not None:
            self._log.limit = 0  # the next put asks for room, and is refused
        touched, self._touched = self._touched, []
        for queue in touched:
            queue.write_pending()
            if not queue.dirty:
                queue.dirty = True
                self._flush.add(queue)
                self.growth.add(queue)
            if queue.watched and self._on_arrival is not None:
                self._on_arrival(queue)
        took = monotonic_ns() - begun
        if took >= SLOW_SEAL_NS:
            self.growth.slow_seals.append(took // 1_000_000)

    def end_chunk(self) -> asyncio.Future[FlushOutcome] | None:
        """Seal; with SYNC_FLUSH, what to wait for before the chunk's answers may leave."""
        if self._touched:
            self.seal()
        position = self._log.position
        if not self._waits_for_flush or position <= self._awaited:
            return None
        self._awaited = position
        return self._flush.wait(position)

    # Getting

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
        """Messages of a queue from `offset` on, at most `max_count` and what a pull may carry.

        With `may_wait` the answer may be NOT_IN_MEMORY, with `max_bytes` the usual limits of a
        pull do not count: see `reading`.
        """
        if self._touched:
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

    def plan_bulk(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int
    ) -> BulkRead | None:
        """How a thread reads megabytes of a queue from `offset` on; None: `get` tells why not."""
        if self._touched:
            self.seal()
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= offset < queue.next_offset:
            return None
        return plan_bulk(queue, self._log, offset, max_count, max_bytes)

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The consume queue of that name, if there is one."""
        return self._queues.get((topic, queue_id))

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next message gets; 0 for a queue that is not there."""
        queue = self._queues.get((topic, queue_id))
        return queue.next_offset if queue else 0

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset of the first message; -1 for a queue that is not there, as in Java."""
        queue = self._queues.get((topic, queue_id))
        return queue.min_offset if queue else -1

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """The store timestamp of a queue's first message; -1 when it has none."""
        return self.earliest_search(topic, queue_id)()

    def earliest_search(self, topic: str, queue_id: int) -> Callable[[], int]:
        """What finds `earliest_time`, in any thread: the message may be on the disk."""
        if self._touched:
            self.seal()
        queue = self._queues.get((topic, queue_id))
        entry = queue.entry(queue.min_offset) if queue else None
        return partial(self.store_time, entry[0]) if entry else lambda: -1

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        """The queue offset whose message was stored nearest to `timestamp`, as Java rounds it."""
        return self.time_search(topic, queue_id, timestamp)()

    def time_search(self, topic: str, queue_id: int, timestamp: int) -> Callable[[], int]:
        """What finds `offset_by_time`, in any thread: it reads messages all over the queue."""
        if self._touched:
            self.seal()
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return lambda: 0
        return partial(lookup.offset_by_time, queue, self._log, timestamp, queue.next_offset)

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a message is near enough to the log's end to be in memory."""
        queue = self._queues.get((topic, queue_id))
        entry = queue.entry(offset) if queue else None
        return entry is not None and not self._reader.is_cold(entry[0])

    def is_cold(self, physical_offset: int) -> bool:
        """Whether a record is not in memory: `fetch_record` gets it, in a thread."""
        return self._reader.would_wait(physical_offset)

    def read_record(self, physical_offset: int) -> bytes | None:
        """The record that begins at that offset; None when none does, or not yet sealed.

        May be called from any thread.
        """
        return lookup.record_at(self._log, physical_offset)

    def fetch_record(self, physical_offset: int) -> bytes | None:
        """What `read_record` says, from a thread, wherever the record is."""
        return lookup.fetch_record(self._log, physical_offset)

    def store_time(self, physical_offset: int) -> int:
        """The store timestamp of the record that begins there; -1 when it is not there.

        May be called from any thread.
        """
        return lookup.store_timestamp(self._log, physical_offset, HEAD_SIZE_V4)

    def query(self, topic: str, key: str, max_count: int, begin: int, end: int) -> list[int]:
        """Physical offsets of the messages with a key, newest first. Slow: not on the loop."""
        return self._index.query(topic, key, max_count, begin, end)

    def close_topic(self, topic: str) -> None:
        """Take no message of a topic until `remove_topic`; those it has can be read."""
        self.seal()
        self._closed_topics.add(topic)
        for key in self._keys_of(topic):
            self._queues[key].refuse_puts()

    def has_messages(self, topic: str) -> bool:
        """Whether a queue of the topic has entries."""
        return any(self._queues[key].next_offset for key in self._keys_of(topic))

    def remove_topic(self, topic: str) -> None:
        """Delete all consume queues of a topic; its records stay until they expire.

        A file that cannot be removed is logged and left: the queues are gone in any case.
        """
        self.seal()
        self._closed_topics.discard(topic)
        self._remove_queues(topic, self._keys_of(topic))

    def remove_old_queues(self, topic: str, end: int, timestamp: int) -> int:
        """Delete the queues of a topic whose messages all end before `end` of the log, and were
        stored at `timestamp` or before; how many those were.
        """
        self.seal()
        old = []
        for key in self._keys_of(topic):
            queue = self._queues[key]
            last = queue.entry(queue.next_offset - 1)
            if last is not None and (
                last[0] + last[1] > end or self.store_time(last[0]) > timestamp
            ):
                continue
            old.append(key)
        self._remove_queues(topic, old)
        return len(old)

    def _keys_of(self, topic: str) -> list[tuple[str, int]]:
        return [key for key in self._queues if key[0] == topic]

    def _remove_queues(self, topic: str, keys: list[tuple[str, int]]) -> None:
        for queue in [self._queues.pop(key) for key in keys]:
            queue.refuse_puts()  # by whoever still holds it: its files' names may be another's
            try:
                queue.delete()
            except OSError as error:
                logger.error(
                    "queue %d of topic %s: its files cannot be removed: %s",
                    queue.queue_id,
                    topic,
                    error,
                )
            if queue.watched and self._on_arrival is not None:
                self._on_arrival(queue)  # whoever waits is told that the topic is gone
        config = self.config
        for parent in (config.consume_queue_directory, config.consume_queue_ext_directory):
            with contextlib.suppress(OSError):  # an empty directory does no harm
                remove_if_empty(parent / topic)

    def queues(self) -> Iterator[ConsumeQueue]:
        """All consume queues."""
        return iter(list(self._queues.values()))

    def queue_counts(self) -> dict[str, int]:
        """How many queues each topic with messages has, counted up to its highest one."""
        counts: dict[str, int] = {}
        for topic, queue_id in self._queues:
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        return counts

    @property
    def indexed_to(self) -> tuple[int, int]:
        """Store time and physical offset of the last message in the key index."""
        return self._index.end_timestamp, self._index.end_offset

    @property
    def max_physical_offset(self) -> int:
        """The offset behind the last record."""
        return self._log.position

    @property
    def flushed_offset(self) -> int:
        """Everything below is on the disk."""
        return self._log.watermarks.flushed

    @property
    def min_physical_offset(self) -> int:
        """The offset of the first record that is still there."""
        return self._log.min_offset

    @property
    def free_buffers(self) -> int | None:
        """How many buffers the transient store pool has left; None when there is no pool."""
        return self._log.free_buffers

    @property
    def dispatch_behind(self) -> int:
        """Bytes of the log that the key index does not know yet."""
        return self._index_lane.behind

    # Inside

    def _sealed_queues(self) -> Iterator[ConsumeQueue]:
        for queue in self.queues():
            self.seal()
            yield queue

    def _set_disk_full(self, reason: str | None) -> None:
        """Take nothing, for that reason, until it is None."""
        self._full_disk = reason
        # The next put asks for room: there it is refused, or gets its limit back.
        self._log.limit = 0

    def _fail(self, reason: str) -> None:
        """Take nothing until the store is opened anew. Called by the flush thread."""
        self._failure = f"{reason}; restart the broker when the disk is well"

    def _set_host(self, store_host: bytes) -> None:
        self._store_host = store_host
        self._host_flag = 0 if len(store_host) == HOST_SIZE_V4 else STORE_HOST_V6
        self._pack_head = head_packer(self._host_flag)
        self._pack_head_v6 = head_packer(self._host_flag | BORN_HOST_V6)
        self._max_body = self.config.max_message_size
        #: A record up to this size breaks no limit of its body or its properties.
        self._surely_allowed = min(self._max_body, MAX_PROPERTIES)

    def _make_room(self, size: int, body_length: int, properties_length: int) -> int:
        """The slow side of a put: limits, the segment's end, a store that takes nothing."""
        try:
            return self._find_room(size, body_length, properties_length)
        except PutError:
            self.growth.refused_puts += 1
            raise

    def _find_room(self, size: int, body_length: int, properties_length: int) -> int:
        if not self._writable:
            raise PutError(PutStatus.SERVICE_NOT_AVAILABLE, "the store is not running")
        refusal = self._failure or self._full_disk
        if refusal is not None:
            raise PutError(PutStatus.SERVICE_NOT_AVAILABLE, refusal)
        if body_length > self._max_body:
            raise PutError(
                PutStatus.MESSAGE_ILLEGAL, f"body of {body_length} bytes, at most {self._max_body}"
            )
        if properties_length > MAX_PROPERTIES:
            raise PutError(
                PutStatus.PROPERTIES_SIZE_EXCEEDED,
                f"properties of {properties_length} bytes, at most {MAX_PROPERTIES}",
            )
        log = self._log
        if log.position + size > log.limit:
            return log.make_room(size)
        return log.position

    def _make_room_for_batch(
        self, queue: ConsumeQueue, batch: bytes, properties: bytes, born_host: bytes
    ) -> None:
        """Let a batch fit as a whole, in one segment. Raises PutError."""
        length = len(batch)
        # With a separator between a message's own properties and the batch's.
        per_message = queue.fixed_size + len(born_host) - HOST_SIZE_V4 + len(properties) + 1
        max_size = self.config.max_batch_records_size
        size = length + length // INNER_FIXED_SIZE * per_message
        if (
            size > max_size
            or length > self._max_body
            or self._log.position + size > self._log.limit
        ):
            # The estimate, that all messages are empty, is far too high: count them.
            count = inner_count(batch, max_size // per_message + 1)
            size = length + count * (per_message - INNER_FIXED_SIZE)
            if size > max_size and length <= self._max_body:
                self.growth.refused_puts += 1
                raise PutError(
                    PutStatus.MESSAGE_ILLEGAL,
                    f"the batch would take {size} bytes of the log or more, limit {max_size} "
                    "(maxBatchRecordsSize)",
                )
            self._make_room(size, length, 0)

    def _too_many_messages(self) -> PutError:
        self.growth.refused_puts += 1
        limit = self.config.max_batch_messages
        return PutError(
            PutStatus.MESSAGE_ILLEGAL,
            f"the batch has more than {limit} messages, limit {limit} (maxBatchMessages)",
        )

    def _load_queues(self) -> dict[ConsumeQueue, str]:
        """Map the queues' files; returns those that do not fit together, with the reason."""
        config = self.config
        directory = config.consume_queue_directory
        damaged: dict[ConsumeQueue, str] = {}
        if config.enable_consume_queue_ext:
            refuse_other_size(
                config.consume_queue_ext_directory, config.mapped_file_size_consume_queue_ext
            )
        for topic in sorted(directory.iterdir()) if directory.is_dir() else ():
            for path in sorted(topic.iterdir()) if topic.is_dir() else ():
                if not _QUEUE_ID.fullmatch(path.name) or not path.is_dir():
                    logger.warning("%s is no consume queue: left alone", path)
                    continue
                queue = self.queue(topic.name, int(path.name))
                try:
                    queue.load()
                except StoreError as error:
                    if queue_damage.is_other_size(directory, config.consume_queue_file_size):
                        raise
                    damaged[queue] = str(error)
        return damaged


def _pool_of(config: MessageStoreConfig) -> TransientStorePool | None:
    if not config.uses_transient_store_pool:
        return None
    return TransientStorePool(
        config.transient_store_pool_size,
        config.mapped_file_size_commit_log,
        fast_fail=config.fast_fail_if_no_buffer_in_store_pool,
    )
