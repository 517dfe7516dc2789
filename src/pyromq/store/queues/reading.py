"""Gathers the records that a pull gets, from a consume queue's entries.

Most pulls want everything and find it in one segment: they are read in one pass.
Filters, segment ends and deleted segments take the general way, record by record.
RocketMQ's limits apply: a pull carries fewer messages when they come from the disk,
and always at least one.

Reading a page that is not in memory would stop the whole broker until the disk has
answered, since a page fault keeps the interpreter's lock. A caller that says so
(`may_wait`) is told instead (NOT_IN_MEMORY), has the pages brought in by a thread, and
asks again. Nobody asks the kernel about what was written a moment ago.

Called by `message_store` on the loop's thread.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Final, Protocol

from pyromq.protocol.message.record import BLANK_SIZE, peek
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY_SIZE
from pyromq.store.config import MessageStoreConfig
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.queues.consume_queue import (
    ConsumeQueue,
    first_physical_offset,
    iter_entries,
    span_of,
    split_entries,
)
from pyromq.store.queues.extension import ConsumeQueueExt
from pyromq.store.results import GetResult, GetStatus

#: A file and where in it something begins and ends.
Pages = tuple[MappedFile, int, int]

#: What lies so near to the end of the log, or of a queue, is in memory.
_WARM_BYTES: Final = 64 * 1024 * 1024
_WARM_ENTRIES: Final = 100_000
#: The kernel is asked about blocks of this size, and believed for so long.
_BLOCK: Final = 1024 * 1024
_BELIEVED_SECONDS: Final = 1.0
_MAX_BLOCKS: Final = 4096
#: Records that lie farther apart are looked at one by one.
_MAX_SPAN: Final = 8 * _BLOCK
#: At least so many entries are looked at for a pull that filters ...
_FILTER_ENTRIES: Final = 800
#: ... and so many when their records must be read for it, but not for longer than this: the
#: rest is for the next pull.
_RECORD_FILTER_ENTRIES: Final = 200
_RECORD_FILTER_SECONDS: Final = 0.002


class MessageFilter(Protocol):
    """Which messages a pull wants."""

    @property
    def reads_records(self) -> bool:
        """Whether the tags do not tell."""

    def rules_out(self, store_timestamp: int, bit_map: bytes) -> bool:
        """Whether a message's unit in the consume-queue extension tells that it is not wanted."""

    def matches(
        self,
        tags_code: int,
        physical_offset: int,
        size: int,
        read: Callable[[int, int], bytes],
    ) -> bool:
        """Whether a message is wanted; `read` gets its record where the tags do not tell."""


class Reader:
    """Reads messages of consume queues out of the log."""

    def __init__(self, log: CommitLog, config: MessageStoreConfig) -> None:
        self._log = log
        self._memory = _physical_memory() * config.access_message_in_memory_max_ratio // 100
        self._warm_limits = (
            config.max_transfer_count_on_message_in_memory,
            config.max_transfer_bytes_on_message_in_memory,
        )
        self._cold_limits = (
            config.max_transfer_count_on_message_in_disk,
            config.max_transfer_bytes_on_message_in_disk,
        )

        #: Blocks of files that were in memory, and until when that is believed.
        self._warm_until: dict[tuple[int, int], float] = {}
        #: The last such blocks of each file, side by side: where the next pull most likely reads.
        self._believed: dict[MappedFile, tuple[int, int, float]] = {}

    def is_cold(self, physical_offset: int) -> bool:
        """Whether a message is so far behind the log's end that it is not in memory."""
        return self._log.watermarks.written - physical_offset > self._memory

    def would_wait(self, physical_offset: int) -> bool:
        """Whether the disk would have to be waited for to read the record at an offset."""
        log = self._log
        if log.watermarks.written - physical_offset <= _WARM_BYTES:
            return False
        file = log.segments.find(physical_offset)
        if file is None or not log.holds(physical_offset, BLANK_SIZE):
            return False
        start = physical_offset - file.base
        if not self._is_in_memory(file, start, start + BLANK_SIZE):
            return True
        size, _ = peek(file.read(start, start + BLANK_SIZE))
        return 0 < size <= _MAX_SPAN and not self._is_in_memory(file, start, start + size)

    def collect(
        self,
        result: GetResult,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        message_filter: MessageFilter | None,
        may_wait: bool = False,
        max_bytes: int = 0,
    ) -> None:
        """Fill `result` with the messages from `offset` on, which the queue has.

        With `max_bytes` that is the limit, and `max_count` counts as it is.
        """
        if max_bytes:
            warm_limits = cold_limits = (max_count, max_bytes)
        else:
            warm_limits, cold_limits = self._warm_limits, self._cold_limits
        max_count = max(1, min(max_count, warm_limits[0]))
        if message_filter is None and self._read_all(result, queue, offset, max_count, may_wait):
            return
        look_at = max(max_count, _entries_to_look_at(message_filter))
        if may_wait and queue.next_offset - offset > _WARM_ENTRIES:
            place = queue.place(offset, look_at)
            if place is not None and not self._is_in_memory(*place):
                _ask_for(result, [place])
                return
        entries = queue.read(offset, look_at)
        if not entries:
            result.status = GetStatus.OFFSET_FOUND_NULL
            result.next_offset = queue.segment_after(offset)
            return
        if message_filter is not None and queue.extension is not None:
            message_filter = _ByUnit(message_filter, queue.extension)
        if may_wait and self._log.watermarks.written - first_physical_offset(entries) > _WARM_BYTES:
            missing = self._missing_records(entries, max_count, message_filter)
            if missing:
                _ask_for(result, missing)
                return
        max_bytes = warm_limits[1]
        if self.is_cold(first_physical_offset(entries)):
            max_count = min(max_count, max(1, cold_limits[0]))
            max_bytes = cold_limits[1]
            result.suggest_replica = True
        self._read_each(result, entries, max_count, max_bytes, message_filter)

    def _read_all(
        self, result: GetResult, queue: ConsumeQueue, offset: int, max_count: int, may_wait: bool
    ) -> bool:
        """Read everything at once; False for all but the most common case, which is left to
        others: in memory as far as is known, and in one segment of queue and log each.
        """
        position = offset * CONSUME_QUEUE_ENTRY_SIZE
        file = queue.segments.find(position)
        if file is None:
            return False
        behind = queue.next_offset - offset
        start = position - file.base
        stop = start + min(max_count, behind) * CONSUME_QUEUE_ENTRY_SIZE
        if may_wait and behind > _WARM_ENTRIES and not self._is_in_memory(file, start, stop):
            return False
        places, sizes = split_entries(file.read(start, stop))
        if not places:
            return False
        log = self._log
        first = places[0]
        end = places[-1] + sizes[-1]
        size = sum(sizes)
        file = log.segments.find(first)
        written = log.watermarks.written
        if (
            file is None
            or size > self._warm_limits[1]
            or not first <= end <= file.base + file.size
            or end > written
            or written - first > self._memory
        ):
            return False
        start, stop = first - file.base, end - file.base
        if stop - start == size:
            if (
                may_wait
                and written - first > _WARM_BYTES
                and not self._is_in_memory(file, start, stop)
            ):
                return False
            result.pieces = [file.read(start, stop)]
        else:
            if (
                may_wait
                and written - first > _WARM_BYTES
                and (stop - start > _MAX_SPAN or not self._is_in_memory(file, start, stop))
            ):
                return False
            pieces = file.read_many(places, sizes)
            if min(places) < first or sum(map(len, pieces)) != size:
                return False  # entries that are not in order: each must be looked at
            result.pieces = pieces
        result.status = GetStatus.FOUND
        result.count = len(places)
        result.size = size
        result.next_offset += len(places)
        return True

    def _missing_records(
        self, entries: bytes, max_count: int, message_filter: MessageFilter | None
    ) -> list[Pages]:
        """Where records that the pull will most likely carry are not in memory."""
        log = self._log
        if message_filter is None:
            first, end = span_of(entries[: max_count * CONSUME_QUEUE_ENTRY_SIZE])
            whole = log.segments.find(first)
            if whole is not None and first <= end <= min(
                whole.base + whole.size, first + _MAX_SPAN
            ):
                start, stop = first - whole.base, end - whole.base
                if self._is_in_memory(whole, start, stop):
                    return []
                if stop - start <= _BLOCK:
                    # All that stands between, and to the block's end: the next pulls want it.
                    return [(whole, start, min(-(-stop // _BLOCK) * _BLOCK, whole.size))]
        missing: list[Pages] = []
        count = 0
        for physical, size, tags_code in iter_entries(entries):
            if count >= max_count and not (message_filter and message_filter.reads_records):
                break
            if message_filter is not None and not message_filter.matches(
                tags_code, physical, size, _unread
            ):
                continue
            count += 1
            file = log.segments.find(physical)
            if file is None or not log.holds(physical, size):
                continue
            start = physical - file.base
            if not self._is_in_memory(file, start, start + size):
                missing.append((file, start, start + size))
        return missing

    def _is_in_memory(self, file: MappedFile, start: int, end: int) -> bool:
        """What `file.is_in_memory` says; of whole blocks that were, it is believed for a while."""
        now = time.monotonic()
        believed = self._believed.get(file)
        if (
            believed is not None
            and believed[0] <= start
            and end <= believed[1]
            and now < believed[2]
        ):
            return True
        first, last = start // _BLOCK, (end - 1) // _BLOCK
        until = now + _BELIEVED_SECONDS
        for block in range(first, last + 1):
            key = (id(file), block)
            known_until = self._warm_until.get(key, 0.0)
            if known_until < now:
                if not file.is_in_memory(block * _BLOCK, (block + 1) * _BLOCK):
                    return file.is_in_memory(start, end)
                if len(self._warm_until) >= _MAX_BLOCKS:
                    self._warm_until.clear()
                self._warm_until[key] = known_until = now + _BELIEVED_SECONDS
            until = min(until, known_until)
        if len(self._believed) >= _MAX_BLOCKS:
            self._believed.clear()
        self._believed[file] = (first * _BLOCK, (last + 1) * _BLOCK, until)
        return True

    def _read_each(
        self,
        result: GetResult,
        entries: bytes,
        max_count: int,
        max_bytes: int,
        message_filter: MessageFilter | None,
    ) -> None:
        """Look at entry after entry until the pull is full."""
        log = self._log
        result.pieces = []
        count = size = seen = 0
        skip_below = -1
        may_take_long = message_filter is not None and message_filter.reads_records
        deadline = time.perf_counter() + _RECORD_FILTER_SECONDS
        for physical, record_size, tags_code in iter_entries(entries):
            if physical < skip_below:
                seen += 1
                continue
            if may_take_long and seen and time.perf_counter() > deadline:
                break
            if count and (count >= max_count or size + record_size > max_bytes):
                break
            seen += 1
            if message_filter is not None and not message_filter.matches(
                tags_code, physical, record_size, log.read
            ):
                continue
            if not log.holds(physical, record_size):
                if not count:
                    result.status = GetStatus.MESSAGE_WAS_REMOVING
                if physical < log.min_offset:
                    # Its segment was deleted: go on with the next one that is there.
                    skip_below = log.segment_after(physical)
                continue
            result.pieces.append(log.read(physical, record_size))
            result.status = GetStatus.FOUND
            count += 1
            size += record_size
        result.count = count
        result.size = size
        result.next_offset += seen


class _ByUnit:
    """A filter where entries hold addresses of units instead of tags."""

    __slots__ = ("_extension", "_inner", "reads_records")

    def __init__(self, inner: MessageFilter, extension: ConsumeQueueExt) -> None:
        self._inner = inner
        self._extension = extension
        self.reads_records = inner.reads_records

    def rules_out(self, store_timestamp: int, bit_map: bytes) -> bool:
        return self._inner.rules_out(store_timestamp, bit_map)

    def matches(
        self,
        tags_code: int,
        physical_offset: int,
        size: int,
        read: Callable[[int, int], bytes],
    ) -> bool:
        unit = self._extension.get(tags_code)
        if unit is not None:
            if self._inner.rules_out(unit.store_timestamp, unit.bit_map):
                return False
            tags_code = unit.tags_code
        return self._inner.matches(tags_code, physical_offset, size, read)


def _entries_to_look_at(message_filter: MessageFilter | None) -> int:
    if message_filter is None:
        return 1
    return _RECORD_FILTER_ENTRIES if message_filter.reads_records else _FILTER_ENTRIES


def _ask_for(result: GetResult, missing: list[Pages]) -> None:
    def bring_in() -> None:
        for file, start, end in missing:
            with contextlib.suppress(FileNotFoundError):  # it has expired meanwhile
                file.bring_in(start, end)

    result.status = GetStatus.NOT_IN_MEMORY
    result.bring_in = bring_in


def _unread(offset: int, size: int) -> bytes:  # noqa: ARG001 - as CommitLog.read
    """Stands for a record that is not to be read yet: a filter that needs it keeps it."""
    return b""


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
