"""Collect the records of a pull from a consume queue's entries.

Most pulls want every message and find them all in one segment: one pass reads them. Filters,
segment ends and deleted segments take the general path, record by record. RocketMQ's limits
apply: a pull returns fewer messages if they come from the disk, and always at least one.

Reading a page that is not in memory would stop the whole broker until the disk responds, since
a page fault holds the GIL. With `may_wait` the reader returns NOT_IN_MEMORY instead; the caller
has a thread bring the pages in and retries. Recently written data is assumed to be in memory
without asking the kernel.

Called by `message_store` on the loop's thread.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sized
from typing import Final, NamedTuple, Protocol

from pyromq.base.sizes import MIB
from pyromq.protocol.message.record import BLANK_SIZE, peek
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY_SIZE
from pyromq.store.config import MessageStoreConfig
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.log.segments import Segments
from pyromq.store.log.watermarks import Watermarks
from pyromq.store.queues.consume_queue import (
    ConsumeQueue,
    first_physical_offset,
    iter_entries,
    span_of,
    split_entries,
)
from pyromq.store.queues.extension import ConsumeQueueExt
from pyromq.store.results import GetResult, GetStatus

#: A file, and the begin and end of a range in it.
Pages = tuple[MappedFile, int, int]

#: Data this close to the end of the log, or of a queue, is assumed to be in memory.
_WARM_BYTES: Final = 64 * MIB
_WARM_ENTRIES: Final = 100_000
#: Granularity at which the kernel is asked whether data is in memory.
_EXTENT: Final = MIB
#: How long a positive answer is trusted, and for how many extents and files.
_TRUST_SECONDS: Final = 1.0
_MAX_TRUSTED: Final = 4096
#: Records spread over more bytes are checked one by one.
_MAX_SPAN: Final = 8 * _EXTENT
#: Entries that a filtered pull examines at least ...
_FILTER_ENTRIES: Final = 800
#: ... or, if the filter reads records, at most, within this time. The next pull continues.
_RECORD_FILTER_ENTRIES: Final = 200
_RECORD_FILTER_SECONDS: Final = 0.002


class MessageFilter(Protocol):
    """Selects the messages of a pull."""

    @property
    def reads_records(self) -> bool:
        """Whether the tags code is not enough to decide."""

    def rules_out(self, store_timestamp: int, bit_map: bytes) -> bool:
        """Whether a message's unit in the consume-queue extension rules it out."""

    def matches(
        self,
        tags_code: int,
        physical_offset: int,
        size: int,
        read: Callable[[int, int], bytes],
    ) -> bool:
        """Whether the pull wants a message. `read` returns its record if the tags do not decide."""


class Unsealed(Protocol):
    """The chunk whose entries are not in their queues yet."""

    @property
    def touched(self) -> Sized:
        """The queues of these entries."""

    def seal(self) -> None:
        """Write the entries to their queues."""


class PullLimits(NamedTuple):
    """How the compiled kernel tells the pulls that it may serve from all others."""

    #: Bytes of a pull.
    max_bytes: int
    #: Messages that are farther from the log's end are cold.
    max_warm: int
    #: Data this close to the end of the log, or of a queue, is in memory without asking.
    warm_bytes: int
    warm_entries: int
    #: Bytes over which the records of a pull may be spread if `is_in_memory` is asked.
    max_span: int


class PullParts(NamedTuple):
    """The parts of a store that the compiled kernel reads."""

    queues: dict[tuple[str, int], ConsumeQueue]
    log: Segments
    watermarks: Watermarks
    unsealed: Unsealed
    reader: Reader


class Reader:
    """Reads the messages of consume queues from the log."""

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
        #: Extents that were in memory, by file id and number, and until when that is trusted.
        self._trusted: dict[tuple[int, int], float] = {}
        #: The range that was in memory last, by file: the next pull most likely reads there.
        self._last_trusted: dict[MappedFile, tuple[int, int, float]] = {}

    @property
    def pull_limits(self) -> PullLimits:
        """Return the limits for the compiled kernel."""
        return PullLimits(self._warm_limits[1], self._memory, _WARM_BYTES, _WARM_ENTRIES, _MAX_SPAN)

    def counts(self, wanted: int, message_filter: MessageFilter | None) -> tuple[int, int]:
        """Return how many messages a pull gets at most, and how many entries it examines."""
        count = max(1, min(wanted, self._warm_limits[0]))
        return count, max(count, _entries_to_examine(message_filter))

    def is_cold(self, physical_offset: int) -> bool:
        """Whether a message is too far from the log's end to be in memory."""
        return self._log.watermarks.written - physical_offset > self._memory

    def would_wait(self, physical_offset: int) -> bool:
        """Whether reading the record at an offset would wait for the disk."""
        log = self._log
        if log.watermarks.written - physical_offset <= _WARM_BYTES:
            return False
        file = log.segments.find(physical_offset)
        if file is None or not log.holds(physical_offset, BLANK_SIZE):
            return False
        start = physical_offset - file.base
        if not self.is_in_memory(file, start, start + BLANK_SIZE):
            return True
        size, _ = peek(file.read(start, start + BLANK_SIZE))
        return 0 < size <= _MAX_SPAN and not self.is_in_memory(file, start, start + size)

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
        """Fill `result` with the messages from `offset` on. The queue must have that offset.

        `max_bytes` and `max_count` replace the configured limits if `max_bytes` is not 0.
        """
        if max_bytes:
            warm_limits = cold_limits = (max_count, max_bytes)
        else:
            warm_limits, cold_limits = self._warm_limits, self._cold_limits
        max_count = max(1, min(max_count, warm_limits[0]))
        if message_filter is None and self._read_all(result, queue, offset, max_count, may_wait):
            return
        examined = max(max_count, _entries_to_examine(message_filter))
        if may_wait and queue.next_offset - offset > _WARM_ENTRIES:
            place = queue.place(offset, examined)
            if place is not None and not self.is_in_memory(*place):
                _report_missing(result, [place])
                return
        entries = queue.read(offset, examined)
        if not entries:
            result.status = GetStatus.OFFSET_FOUND_NULL
            result.next_offset = queue.segment_after(offset)
            return
        if message_filter is not None and queue.extension is not None:
            message_filter = _ByUnit(message_filter, queue.extension)
        if may_wait and self._log.watermarks.written - first_physical_offset(entries) > _WARM_BYTES:
            missing = self._missing_records(entries, max_count, message_filter)
            if missing:
                _report_missing(result, missing)
                return
        max_bytes = warm_limits[1]
        if self.is_cold(first_physical_offset(entries)):
            max_count = min(max_count, max(1, cold_limits[0]))
            max_bytes = cold_limits[1]
        self._read_each(result, entries, max_count, max_bytes, message_filter)

    def _read_all(
        self, result: GetResult, queue: ConsumeQueue, offset: int, max_count: int, may_wait: bool
    ) -> bool:
        """Read all messages in one pass, or return False for the general path.

        Handles the common case: everything is in memory as far as is known, and in one segment
        of the queue and of the log.
        """
        position = offset * CONSUME_QUEUE_ENTRY_SIZE
        file = queue.segments.find(position)
        if file is None:
            return False
        behind = queue.next_offset - offset
        start = position - file.base
        stop = start + min(max_count, behind) * CONSUME_QUEUE_ENTRY_SIZE
        if may_wait and behind > _WARM_ENTRIES and not self.is_in_memory(file, start, stop):
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
        is_contiguous = stop - start == size
        may_be_on_disk = may_wait and written - first > _WARM_BYTES
        if may_be_on_disk and (
            (stop - start > _MAX_SPAN and not is_contiguous)
            or not self.is_in_memory(file, start, stop)
        ):
            return False
        if is_contiguous:
            result.pieces = [file.read(start, stop)]
        else:
            records = file.read_many(places, sizes)
            if min(places) < first or sum(map(len, records)) != size:
                return False  # entries out of order: check them one by one
            result.pieces = records
        result.status = GetStatus.FOUND
        result.count = len(places)
        result.size = size
        result.next_offset += len(places)
        return True

    def _missing_records(
        self, entries: bytes, max_count: int, message_filter: MessageFilter | None
    ) -> list[Pages]:
        """Return the ranges that are not in memory and that the pull will probably read."""
        log = self._log
        if message_filter is None:
            first, end = span_of(entries[: max_count * CONSUME_QUEUE_ENTRY_SIZE])
            whole = log.segments.find(first)
            if whole is not None and first <= end <= min(
                whole.base + whole.size, first + _MAX_SPAN
            ):
                start, stop = first - whole.base, end - whole.base
                if self.is_in_memory(whole, start, stop):
                    return []
                if stop - start <= _EXTENT:
                    # Everything in between, up to the extent's end: the next pulls need it.
                    return [(whole, start, min(-(-stop // _EXTENT) * _EXTENT, whole.size))]
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
            if not self.is_in_memory(file, start, start + size):
                missing.append((file, start, start + size))
        return missing

    def is_in_memory(self, file: MappedFile, start: int, end: int) -> bool:
        """Return `file.is_in_memory`, which is cached per extent while the answer is positive."""
        now = time.monotonic()
        trusted = self._last_trusted.get(file)
        if trusted is not None and trusted[0] <= start and end <= trusted[1] and now < trusted[2]:
            return True
        first, last = start // _EXTENT, (end - 1) // _EXTENT
        until = now + _TRUST_SECONDS
        for extent in range(first, last + 1):
            key = (id(file), extent)
            known_until = self._trusted.get(key, 0.0)
            if known_until < now:
                if not file.is_in_memory(extent * _EXTENT, (extent + 1) * _EXTENT):
                    return file.is_in_memory(start, end)
                if len(self._trusted) >= _MAX_TRUSTED:
                    self._trusted.clear()
                self._trusted[key] = known_until = now + _TRUST_SECONDS
            until = min(until, known_until)
        if len(self._last_trusted) >= _MAX_TRUSTED:
            self._last_trusted.clear()
        self._last_trusted[file] = (first * _EXTENT, (last + 1) * _EXTENT, until)
        return True

    def _read_each(
        self,
        result: GetResult,
        entries: bytes,
        max_count: int,
        max_bytes: int,
        message_filter: MessageFilter | None,
    ) -> None:
        """Examine entry after entry until the pull is full."""
        log = self._log
        result.pieces = []
        count = size = seen = last = 0
        skip_below = -1
        may_take_long = message_filter is not None and message_filter.reads_records
        deadline = time.perf_counter() + _RECORD_FILTER_SECONDS
        for physical, record_size, tags_code in iter_entries(entries):
            last = physical
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
                    # Its segment was deleted: skip to the next one.
                    skip_below = log.segment_after(physical)
                continue
            result.pieces.append(log.read(physical, record_size))
            result.status = GetStatus.FOUND
            count += 1
            size += record_size
        result.count = count
        result.size = size
        result.next_offset += seen
        # As in RocketMQ, the last entry examined decides, even if it did not fit.
        result.suggest_replica = self.is_cold(last)


class _ByUnit:
    """A filter for entries that hold addresses of units instead of tags codes."""

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


def _entries_to_examine(message_filter: MessageFilter | None) -> int:
    if message_filter is None:
        return 1
    return _RECORD_FILTER_ENTRIES if message_filter.reads_records else _FILTER_ENTRIES


def _report_missing(result: GetResult, missing: list[Pages]) -> None:
    def bring_in() -> None:
        for file, start, end in missing:
            with contextlib.suppress(FileNotFoundError):  # expired meanwhile
                file.bring_in(start, end)

    result.status = GetStatus.NOT_IN_MEMORY
    result.bring_in = bring_in


def _unread(offset: int, size: int) -> bytes:  # noqa: ARG001 - as CommitLog.read
    """Return nothing in place of a record, so that a filter that needs it accepts it."""
    return b""


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
