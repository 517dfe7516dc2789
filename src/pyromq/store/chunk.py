"""The chunk: gather the puts of one loop iteration, then write them together.

`put`, `put_batch` and `put_encoded` gather records here and entries in the consume queues. `seal`
copies them to the mapped files, one copy for the log and one per touched queue, and wakes long
polls. A caller puts, seals, and only then sends responses.

The chunk keeps the gathered records itself and hands them to the log in one call: a call to the
log per message would cost 60 ns, in a put of 1 µs.

`put` encodes a single message, `BatchEncoder` a batch. They repeat a few lines, because a call per
message is too expensive. The compiled kernel encodes most messages of both kinds, and `put_records`
gathers them.

Invariants
1. A put either raises PutError and gathers nothing, or its record is in the log after the seal,
   at the physical offset it returned.
2. The gathered bytes are exactly those from the log's `written` mark to `position`, all in one
   segment, where the log has reserved room for them.
3. All records of a chunk have one store timestamp.
4. The log is written before the queues: no entry points at bytes that are not there.

Owned by `message_store`, which exposes these methods as its own. Runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Callable, Iterable
from time import monotonic_ns
from typing import Final

from pyromq.base.clock import now_ms
from pyromq.base.sizes import KIB
from pyromq.protocol.filter.tags import raw_tags_codes
from pyromq.protocol.message.crc import CRC_MASK, crc32
from pyromq.protocol.message.entry import ENTRY_HEADER_SIZE, MAX_ENTRY_SIZE, entry_header
from pyromq.protocol.message.message_id import HOST_SIZE_V4, HOST_SIZE_V6
from pyromq.protocol.message.properties import MAX_PROPERTIES
from pyromq.protocol.message.record import (
    INNER_FIXED_SIZE,
    MESSAGE_MAGIC,
    PROPERTIES_LENGTH,
    head_packer,
    inner_count,
    shared_packer,
    with_physical_offset,
)
from pyromq.protocol.message.sysflag import BORN_HOST_V6, STORE_HOST_V6
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY
from pyromq.store.acknowledgement import AckOutcome
from pyromq.store.batch_encoder import BatchEncoder, BatchPlace
from pyromq.store.config import MessageStoreConfig
from pyromq.store.flush import FlushService
from pyromq.store.growth import SLOW_SEAL_NS, Growth
from pyromq.store.log.agreed_log import AgreedLog
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.results import LargeBatchError, PutError, PutStatus

_pack_entry = CONSUME_QUEUE_ENTRY.pack
_pack_length = PROPERTIES_LENGTH.pack

#: The header, the topic and the record's other fields take less than 1 KiB.
_MAX_IN_ENTRY: Final = MAX_ENTRY_SIZE - KIB


class Chunk:
    """The records and entries gathered since the last seal."""

    __slots__ = (
        "_awaited",
        "_buffers",
        "_config",
        "_entry_index",
        "_entry_term",
        "_flush",
        "_gate",
        "_growth",
        "_host_flag",
        "_limit",
        "_log",
        "_max_body",
        "_on_append",
        "_on_arrival",
        "_pack_head",
        "_pack_head_v6",
        "_prefix",
        "_refusal",
        "_store_host",
        "_store_timestamp",
        "_tags",
        "_unchecked_size",
        "position",
        "touched",
    )

    def __init__(
        self,
        config: MessageStoreConfig,
        log: CommitLog,
        store_host: bytes,
        flush: FlushService,
        growth: Growth,
        refusal: Callable[[], PutError | None],
        on_arrival: Callable[[ConsumeQueue], None] | None,
    ) -> None:
        """`refusal` returns why the store takes no messages, or None if it does."""
        self._config = config
        self._log = log
        self._store_host = store_host
        self._host_flag = host_flag(store_host)
        self._pack_head = head_packer(self._host_flag)
        self._pack_head_v6 = head_packer(self._host_flag | BORN_HOST_V6)
        self._flush = flush
        self._growth = growth
        self._refusal = refusal
        self._on_arrival = on_arrival
        self._tags = raw_tags_codes()
        self._max_body = config.max_message_size
        self._unchecked_size = max_unchecked_record(config)
        #: Called with the end of a chunk whose responses must wait; None if none does.
        self._gate: Callable[[int], asyncio.Future[AckOutcome]] | None = None
        #: Called after each append to the log.
        self._on_append: Callable[[], None] | None = None
        #: Everything below this offset has passed the gate, or waits there.
        self._awaited = 0
        #: Gathered buffers of records, in log order.
        self._buffers: list[bytes | memoryview] = []
        #: The offset after the last gathered record.
        self.position = 0
        #: A record that would end above this offset needs `_make_room` first.
        self._limit = 0
        #: Bytes before each record: in a raft group's log it is the body of an entry, of which
        #: these are the index of the next one and the leader's term.
        self._prefix = 0
        self._entry_index = self._entry_term = -1
        #: Of all records of the chunk (ms since the epoch).
        self._store_timestamp = 0
        #: Queues with pending entries. Empty outside a chunk.
        self.touched: list[ConsumeQueue] = []

    def start(self, end: int) -> None:
        """Continue the log at `end`."""
        self.position = end

    def follow(self, end: int) -> None:
        """Continue at `end` after bytes that others appended to the log. Nothing is gathered."""
        assert not self.touched
        assert not self._buffers
        self.position = self._awaited = end
        self._limit = 0

    def lead(self, position: int, index: int, term: int) -> None:
        """Continue a raft group's log at `position`, with entries from `index` on, of a term."""
        self.follow(position)
        self._prefix = ENTRY_HEADER_SIZE
        self._entry_index, self._entry_term = index, term

    def set_gate(self, gate: Callable[[int], asyncio.Future[AckOutcome]] | None) -> None:
        """Let the responses of the next chunks wait at `gate`; None lets them leave at once."""
        self._gate = gate
        self._awaited = max(self._awaited, self.position)

    @property
    def has_gate(self) -> bool:
        """Whether the responses of chunks wait for something."""
        return self._gate is not None

    def set_on_append(self, on_append: Callable[[], None] | None) -> None:
        """Call `on_append` after each append to the log."""
        self._on_append = on_append

    def _take_back_room(self) -> None:
        """Let the next record go where it belongs, if the last one was to open a file and failed.

        Only the log of a raft group cares: a commit log has ended the file.
        """
        if self._prefix and not self._buffers:
            self.position, self._limit = self._log.append_position, 0

    def withdraw_room(self) -> None:
        """Make the next put call `_make_room` first, where it may be refused."""
        self._limit = 0

    # One message

    def put(  # noqa: PLR0913 - the hot path: an object per message costs more than arguments
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
        """Gather one message and return its physical offset.

        Its queue offset is `queue.next_offset` before the call. The properties come in two
        buffers, because most messages share the second. `tags_code` is Java's hash of TAGS, 0
        without tags. A caller that needs the store timestamp in advance gets it from
        `chunk_time` and passes it on. Raises PutError, or struct.error for a number that does
        not fit its field.
        """
        prefix = self._prefix
        physical = self.position + prefix
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
        offset = queue.next_offset
        if offset >= queue.room:
            queue.extend()
        if size > self._unchecked_size or physical + size > self._limit:
            physical = prefix + self._make_room(prefix + size, body_length, properties_length)
        touched = self.touched
        if not touched:
            self._store_timestamp = store_timestamp or now_ms()
        try:
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
                self._store_timestamp,
                self._store_host,
                reconsume_times,
                prepared_offset,
                body_length,
            )
        except struct.error:
            self._take_back_room()
            raise
        buffers = self._buffers
        if prefix:
            buffers.append(self._entry_header(size, physical - prefix))
        buffers += (
            head,
            body,
            queue.topic_part,
            _pack_length(properties_length),
            properties,
            more_properties,
        )
        self.position = physical + size
        if not queue.pending:
            touched.append(queue)
        queue.append(_pack_entry(physical, size, tags_code))
        return physical

    def chunk_time(self) -> int:
        """Return the store timestamp of this chunk, for a put that passes it on."""
        return self._store_timestamp if self.touched else now_ms()

    # Batches

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
        """Gather all messages of a batch request and return their physical offsets.

        The first queue offset is `queue.next_offset` before the call. `properties` belong to the
        batch and follow each message's own. Raises PutError and gathers nothing if any message is
        refused, LargeBatchError if there are more than `max_count`.
        """
        self._make_room_for_batch(queue, batch, properties, born_host)
        place = self._place(queue, properties, sys_flag, born_timestamp, born_host, reconsume_times)
        # If TAGS appears twice, the last one counts: the batch's own tags win.
        shared_tags_code = self._tags.find(properties)
        limit = min(max_count or sys.maxsize, self._config.max_batch_messages)
        encoder = BatchEncoder(batch, place, self._tags, shared_tags_code)
        if encoder.encode(limit):
            raise LargeBatchError() if max_count else self._too_many_messages()
        return self._append_encoded(queue, encoder)

    def encode_batch(
        self, queue: ConsumeQueue, batch: bytes, properties: bytes, born_host: bytes
    ) -> BatchEncoder:
        """Check a large batch and return an encoder that works in slices. Raises PutError.

        `put_encoded` accepts the result for any queue of the same topic and queue id.
        """
        limit = self._config.max_batch_messages
        if inner_count(batch, limit + 1) > limit:
            raise self._too_many_messages()
        self._make_room_for_batch(queue, batch, properties, born_host)
        place = self._place(queue, properties, 0, 0, born_host, 0)
        place = place._replace(queue_offset=0, physical_offset=0)
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
        """Gather a batch that was encoded in slices; see `put_batch`."""
        if self.position + encoder.size > self._limit and not self._prefix:
            self._make_room(encoder.size, 0, 0)
        encoder.move_to(
            self._place(queue, b"", sys_flag, born_timestamp, born_host, reconsume_times)
        )
        return self._append_encoded(queue, encoder)

    def _place(
        self,
        queue: ConsumeQueue,
        properties: bytes,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
    ) -> BatchPlace:
        """Return the fields that a batch's records share, and the offsets of the first one."""
        if not self.touched:
            self._store_timestamp = now_ms()
        flag = self._host_flag
        fixed = queue.fixed_size
        if len(born_host) != HOST_SIZE_V4:
            flag |= BORN_HOST_V6
            fixed += HOST_SIZE_V6 - HOST_SIZE_V4
        shared = shared_packer(flag)(
            sys_flag | flag,
            born_timestamp,
            born_host,
            self._store_timestamp,
            self._store_host,
            reconsume_times,
            0,
        )
        return BatchPlace(
            fixed,
            shared,
            queue.topic_part,
            b"\x02" + properties if properties else b"",
            queue.queue_id,
            queue.next_offset,
            self.position + self._prefix,
            self._prefix,
        )

    def _append_encoded(self, queue: ConsumeQueue, encoder: BatchEncoder) -> list[int]:
        if self._prefix:
            return self._append_entries(queue, encoder)
        entries = b"".join(encoder.entries)
        self._append(queue, encoder.buffers, encoder.size, entries, encoder.offsets)
        return encoder.offsets

    def _append_entries(self, queue: ConsumeQueue, encoder: BatchEncoder) -> list[int]:
        """Gather a batch as entries of a raft group's log. Raises PutError.

        Each entry is where it would be if it came alone: a file is full when the next one does not
        fit, and Java's followers refuse an entry anywhere else. So a batch may cross files.
        """
        prefix, records, offsets = self._prefix, encoder.records(), encoder.offsets
        sizes = [prefix + len(record) for record in records]
        if max(sizes) > MAX_ENTRY_SIZE:
            raise self._too_large()
        if queue.next_offset + len(records) > queue.room:
            queue.extend(len(records))
        refusal = self._refusal()
        if refusal is not None:
            raise refusal
        if self.position + encoder.size > self._limit:
            self._write()
            assert isinstance(self._log, AgreedLog)
            offsets = [prefix + position for position in self._log.reserve(sizes)]
            records = [with_physical_offset(*each) for each in zip(records, offsets, strict=True)]
            self.withdraw_room()
        for physical, record in zip(offsets, records, strict=True):
            self._buffers += (self._entry_header(len(record), physical - prefix), record)
        self.position = offsets[-1] + len(records[-1])
        if not queue.pending:
            self.touched.append(queue)
        queue.append(b"".join(encoder.entries), len(records))
        return offsets

    def _entry_header(self, size: int, position: int) -> bytes:
        """Return the header of the next entry, and count it."""
        index = self._entry_index
        self._entry_index += 1
        return entry_header(index, self._entry_term, position, size)

    def _append(
        self,
        queue: ConsumeQueue,
        buffers: Iterable[bytes],
        size: int,
        entries: bytes,
        offsets: list[int],
    ) -> None:
        """Gather the records of a batch. Raises PutError if the queue cannot be extended."""
        count = len(offsets)
        if queue.next_offset + count > queue.room:
            queue.extend(count)
        self._buffers += buffers
        self.position += size
        if not queue.pending:
            self.touched.append(queue)
        queue.append(entries, count)

    # Records of the compiled kernel

    def record_room(self) -> tuple[int, int, bool, int, int]:
        """Return where the next record goes, and the offset above which no record may end.

        Also whether the log has all records so far, so that their buffers can be reused; and the
        index and term of the next entry, -1 if the log has no entries.
        """
        return (
            self.position,
            self._limit,
            not self._buffers,
            self._entry_index,
            self._entry_term,
        )

    def put_records(
        self,
        records: memoryview,
        queues: Iterable[tuple[ConsumeQueue, bytes, int]],
        store_timestamp: int,
    ) -> None:
        """Gather complete records for `record_room`, and each queue's entries with their number.

        The caller keeps the records unchanged until they are in the log.
        """
        touched = self.touched
        if not touched:
            self._store_timestamp = store_timestamp
        self._buffers.append(records)
        self.position += len(records)
        for queue, entries, count in queues:
            self._entry_index += count
            if not queue.pending:
                touched.append(queue)
            queue.append(entries, count)

    # The end

    def seal(self) -> None:
        """Write the gathered records, then the entries that point at them."""
        # Not the gathered records: `_make_room` may have written them already.
        if not self.touched:
            return
        begun = monotonic_ns()
        self._write()
        if self._refusal() is not None:
            self.withdraw_room()
        touched, self.touched = self.touched, []
        for queue in touched:
            if queue.write_pending():
                self._flush.add(queue)
                self._growth.add(queue)
            if queue.watched and self._on_arrival is not None:
                self._on_arrival(queue)
        took = monotonic_ns() - begun
        growth = self._growth
        if growth.on_seal is not None:
            growth.on_seal(took)
        if took >= SLOW_SEAL_NS:
            growth.slow_seal(took)

    def _write(self) -> None:
        """Append the gathered records to the log."""
        buffers = self._buffers
        if buffers:
            records = buffers[0] if len(buffers) == 1 else b"".join(buffers)
            self._log.append(records, self._store_timestamp)
            buffers.clear()
            if self._on_append is not None:
                self._on_append()

    def end_chunk(self) -> asyncio.Future[AckOutcome] | None:
        """Seal. With SYNC_FLUSH or SYNC_MASTER, return what the chunk's responses must wait for."""
        if self.touched:
            self.seal()
        position, gate = self.position, self._gate
        if gate is None or position <= self._awaited:
            return None
        self._awaited = position
        return gate(position)

    # Room and limits

    def _make_room(self, size: int, body_length: int, properties_length: int) -> int:
        """Check a record against all limits and return its offset. Raises PutError.

        The slow path of a put: a large record, the end of the reserved room or of the segment,
        or a store that refuses messages.
        """
        try:
            self._check(body_length, properties_length)
            if self._prefix and body_length + properties_length > _MAX_IN_ENTRY:
                raise self._too_large()
            if self.position + size > self._limit:
                begun = monotonic_ns()
                self._write()  # the log may roll to the next segment
                self.position, self._limit = self._log.make_room(size)
                self._growth.room_made(monotonic_ns() - begun)
            return self.position
        except PutError:
            self._growth.refused_puts += 1
            raise

    def _check(self, body_length: int, properties_length: int) -> None:
        refusal = self._refusal()
        if refusal is not None:
            raise refusal
        if body_length > self._max_body:
            raise PutError(
                PutStatus.MESSAGE_ILLEGAL, f"body of {body_length} bytes, at most {self._max_body}"
            )
        if properties_length > MAX_PROPERTIES:
            raise PutError(
                PutStatus.PROPERTIES_SIZE_EXCEEDED,
                f"properties of {properties_length} bytes, at most {MAX_PROPERTIES}",
            )

    def _make_room_for_batch(
        self, queue: ConsumeQueue, batch: bytes, properties: bytes, born_host: bytes
    ) -> None:
        """Make the whole batch fit into one segment. Raises PutError."""
        length = len(batch)
        # The extra byte separates a message's own properties from the batch's.
        per_message = queue.fixed_size + len(born_host) - HOST_SIZE_V4 + len(properties) + 1
        per_message += self._prefix
        max_size = self._config.max_batch_records_size
        # An upper bound: as many messages as fit if all were empty.
        size = length + length // INNER_FIXED_SIZE * per_message
        if size <= max_size and length <= self._max_body and self.position + size <= self._limit:
            return
        # That bound is far too high for real batches: count the messages.
        count = inner_count(batch, max_size // per_message + 1)
        size = length + count * (per_message - INNER_FIXED_SIZE)
        if size > max_size and length <= self._max_body:
            self._growth.refused_puts += 1
            raise PutError(
                PutStatus.MESSAGE_ILLEGAL,
                f"the batch needs at least {size} bytes of the log, limit {max_size} "
                "(maxBatchRecordsSize)",
            )
        if self._prefix:
            self._check(length, 0)  # `_append_entries` makes room for each entry
        else:
            self._make_room(size, length, 0)

    def _too_large(self) -> PutError:
        return PutError(
            PutStatus.MESSAGE_ILLEGAL,
            f"a raft group stores messages of at most {_MAX_IN_ENTRY} bytes with their properties",
        )

    def _too_many_messages(self) -> PutError:
        self._growth.refused_puts += 1
        limit = self._config.max_batch_messages
        return PutError(
            PutStatus.MESSAGE_ILLEGAL,
            f"the batch has more than {limit} messages (maxBatchMessages)",
        )


def max_unchecked_record(config: MessageStoreConfig) -> int:
    """Return the size up to which a record needs no check of its body or properties."""
    return min(config.max_message_size, MAX_PROPERTIES)


def host_flag(store_host: bytes) -> int:
    """Return the sysFlag bit for this store host."""
    return 0 if len(store_host) == HOST_SIZE_V4 else STORE_HOST_V6
