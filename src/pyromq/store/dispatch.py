"""From the log to what is made of it: consume queues and the key index.

On the hot path consume-queue entries are made from values in hand (`message_store`).
Here they are made from the log's bytes, for recovery and replicas, by the decoder that
reads many records at once. The key index is always made from the log, by its own
thread: what an answer does not need is not done on the loop.

Prepared and rolled-back transaction records get no entry; the entry of a delayed message
holds its time of delivery.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from pyromq.protocol import bulk
from pyromq.protocol.delay import DelayLevels
from pyromq.protocol.java_hash import java_hash_bytes
from pyromq.protocol.names import SCHEDULE_TOPIC
from pyromq.protocol.properties import DELAY
from pyromq.protocol.record import MESSAGE_MAGIC, QueueOffset, decode_record, peek
from pyromq.protocol.sysflag import is_consumable
from pyromq.store.commit_log import CommitLog
from pyromq.store.consume_queue import ConsumeQueue
from pyromq.store.index import KeyIndex

logger = logging.getLogger(__name__)

#: The log is read in pieces of about this size.
PIECE: Final = 4 * 1024 * 1024
#: How long the index lane lets records gather: many at once cost less each.
_GATHER_SECONDS: Final = 0.02
#: How long it waits after an error, such as a full disk.
_RETRY_SECONDS: Final = 1.0
_TAGS: Final = b"TAGS"


class MissingEntriesError(Exception):
    """A queue lacks entries before the one that a record wants to have."""


def dispatch_to_queues(
    log_bytes: bytes,
    base: int,
    queue_of: Callable[[str, int], ConsumeQueue],
    delay_levels: DelayLevels,
    *,
    allow_missing: bool = True,
) -> int:
    """Make the entries of the records at the head of `log_bytes`; returns the bytes taken.

    `base` is the physical offset of the first byte; the queues have nothing pending. A
    record that its queue has already is passed over. One that wants to be the first of a
    queue which has messages belongs to a topic that was deleted and made anew: what the
    queue has then goes. Where entries are missing they are left blank, or MissingEntriesError
    is raised when that is not allowed.
    """
    starts, end = bulk.record_starts(log_bytes)
    if not starts.size:
        return 0
    columns = bulk.read_columns(log_bytes, starts)
    tags = bulk.find_property(log_bytes, columns.properties, _TAGS)
    #: Where each queue's last record ends: physical offsets only grow along a queue.
    ends: dict[ConsumeQueue, int] = {}
    rows = zip(
        starts.tolist(),
        columns.valid.tolist(),
        columns.column("total_size").tolist(),
        columns.column("queue_id").tolist(),
        columns.column("queue_offset").tolist(),
        columns.column("sys_flag").tolist(),
        columns.topics.starts.tolist(),
        columns.topics.lengths.tolist(),
        tags.starts.tolist(),
        tags.lengths.tolist(),
        strict=True,
    )
    for (
        start,
        valid,
        size,
        queue_id,
        offset,
        sys_flag,
        topic_at,
        topic_len,
        tag_at,
        tag_len,
    ) in rows:
        if not valid or not is_consumable(sys_flag):
            continue
        topic = log_bytes[topic_at : topic_at + topic_len].decode(errors="replace")
        queue = queue_of(topic, queue_id)
        last_end = ends.get(queue)
        if last_end is None:
            last_end = queue.last_physical_offset()
        if base + start < last_end:
            continue
        if offset < queue.next_offset:
            if offset:
                logger.warning(
                    "record at %d has offset %d of %s queue %d, which is at %d: passed over",
                    base + start,
                    offset,
                    topic,
                    queue_id,
                    queue.next_offset,
                )
                continue
            queue.delete()
        elif offset > queue.next_offset:
            if not allow_missing:
                raise MissingEntriesError(
                    f"{topic} queue {queue_id} ends at {queue.next_offset}, "
                    f"the record at {base + start} has offset {offset}"
                )
            queue.skip_to(QueueOffset(offset))
        ends[queue] = base + start + size
        tags_code = java_hash_bytes(log_bytes[tag_at : tag_at + tag_len]) if tag_len > 0 else 0
        if topic == SCHEDULE_TOPIC:
            tags_code = _time_of_delivery(log_bytes[start : start + size], delay_levels, tags_code)
        queue.append(base + start, size, tags_code)
    return end


def _time_of_delivery(data: bytes, delay_levels: DelayLevels, tags_code: int) -> int:
    """What the entry of a delayed message holds instead of its tags."""
    record = decode_record(data)
    level = record.properties.get(DELAY, "")
    if not level.isdecimal() or int(level) == 0:
        return tags_code
    return delay_levels.due(int(level), record.store_timestamp)


class IndexLane:
    """The thread that keeps the key index up with the log."""

    def __init__(self, log: CommitLog, index: KeyIndex | None) -> None:
        self._log = log
        self._index = index
        self._indexed_to = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, offset: int) -> None:
        """Index what is in the log from `offset` on, and all that comes."""
        self._indexed_to = offset
        if self._index is not None:
            self._thread = threading.Thread(target=self._run, name="pyromq-index", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Index what is left, then end the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @property
    def behind(self) -> int:
        """Bytes of the log that are not indexed yet."""
        return self._log.watermarks.written - self._indexed_to if self._index is not None else 0

    def _run(self) -> None:
        assert self._index is not None
        failing = False
        while True:
            stopping = self._stop.wait(_RETRY_SECONDS if failing else _GATHER_SECONDS)
            try:
                while self._indexed_to < self._log.watermarks.written:
                    self._index_piece(self._index)
                failing = False
            except OSError as error:
                if not failing:
                    logger.error("the key index cannot be written, tried again: %s", error)
                failing = True
            except Exception:
                logger.exception(
                    "indexing ends at offset %d; queries miss later messages", self._indexed_to
                )
                return
            if stopping:
                return

    def _index_piece(self, index: KeyIndex) -> None:
        log = self._log
        offset = self._indexed_to
        data = log.read(offset, min(PIECE, log.segment_after(offset) - offset))
        starts, end = bulk.record_starts(data)
        if starts.size:
            index.put(data, starts)
            self._indexed_to = offset + end
            return
        # No record here: the blank one at a segment's end, or a record longer than a piece.
        size, magic = peek(data)
        if magic != MESSAGE_MAGIC or offset + size > log.watermarks.written:
            self._indexed_to = log.segment_after(offset)
            return
        record = log.read(offset, size)
        index.put(record, bulk.record_starts(record)[0])
        self._indexed_to = offset + size
