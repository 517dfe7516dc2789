"""Check the consume queues: every entry against the record that it points at.

`load` checks the files on their own. Then `compare` gets the records of the log piece by piece and
marks the entries that are right. `finish` reports entries without a record, and records without an
entry. Used by `check`, on one thread.

Not violations:
1. Entries whose messages have expired from the log, and pre-blank ones.
2. Records of a deleted topic. If the topic was recreated: its earlier records, which are those
   before a record with offset 0, and those not newer than the broker's note of the deletion.
3. After an unclean shutdown: records after the last one that any queue had when the check started,
   and entries that point past the end of the log.
4. Addresses of an extension that the store does not have: they are never read.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyromq.protocol.message.bulk import Longs
from pyromq.protocol.message.record import RecordError, decode_record
from pyromq.protocol.message.unit_arrays import CONSUME_QUEUE_DTYPE
from pyromq.protocol.message.units import (
    CONSUME_QUEUE_ENTRY_SIZE,
    EXTENSION_BASE,
    MAX_EXTENSION_ADDRESS,
    PRE_BLANK_SIZE,
    Entry,
)
from pyromq.protocol.names import SCHEDULE_TOPIC
from pyromq.store.offline.check_extension import ExtensionCheck
from pyromq.store.offline.check_files import SegmentFiles
from pyromq.store.offline.check_log import CheckedPiece, LogCheck
from pyromq.store.offline.violation import Violation, ViolationKind
from pyromq.store.recovery.dispatch import QueueRun
from pyromq.store.recovery.queue_damage import Deletion

_QUEUE_ID: Final = re.compile("0|[1-9][0-9]{0,9}")
#: Violations that are reported individually per queue.
_MAX_NAMED: Final = 20


class _Queue:
    """One queue: the range of its entries, and which of them are right."""

    def __init__(self, topic: str, queue_id: int, files: SegmentFiles) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.files = files
        self.first = self.end = 0
        #: None if the store has no extensions.
        self.extension: ExtensionCheck | None = None
        self.right: NDArray[np.bool_] = np.zeros(0, np.bool_)
        #: Queue offset and physical offset of the first record without an entry, and their number.
        self.missing: tuple[int, int, int] | None = None

    def read(self, offset: int, count: int) -> NDArray[np.void]:
        """Read `count` entries from `offset` on, across segment borders."""
        buffers = []
        position = offset * CONSUME_QUEUE_ENTRY_SIZE
        end = position + count * CONSUME_QUEUE_ENTRY_SIZE
        while position < end:
            data = self.files.read(position, end - position)
            if not data:
                break
            buffers.append(data)
            position += len(data)
        joined = b"".join(buffers)
        return np.frombuffer(joined, CONSUME_QUEUE_DTYPE, len(joined) // CONSUME_QUEUE_ENTRY_SIZE)


class QueueCheck:
    """Checks all consume queues of a store."""

    def __init__(
        self,
        directory: Path,
        segment_size: int,
        topics: frozenset[str] | None,
        *,
        may_move: bool,
        knows_delays: bool = True,
        extensions: tuple[Path, int] | None = None,
        deletions: Mapping[str, Deletion] | None = None,
    ) -> None:
        """Prepare a check.

        `topics` are the existing ones, or None if unknown. `knows_delays` says whether the delay
        levels are those that the store was written with. `extensions` is the directory and the
        segment size of the extensions, or None if the store has none. `deletions` are the deleted
        topics.
        """
        self._deletions = deletions or {}
        self._extensions = extensions
        self._directory = directory
        self._segment_size = segment_size
        self._topics = topics
        self._may_move = may_move
        self._knows_delays = knows_delays
        self._queues: dict[tuple[str, int], _Queue] = {}
        #: The end of the last record that any queue had when the check started.
        self._known_end = 0

    def load(self) -> Iterator[Violation]:
        """Check the files on their own."""
        if not self._directory.is_dir():
            return
        if self._may_move:
            # Taken before any queue is read, so that each has all entries up to here.
            self._known_end = max(map(last_end, self._directory.glob("*/*")), default=0)
        for topic in sorted(self._directory.iterdir()):
            if not topic.is_dir():
                yield Violation(ViolationKind.FILE, topic, 0, "is not a topic's folder")
                continue
            for path in sorted(topic.iterdir()):
                if not _QUEUE_ID.fullmatch(path.name) or not path.is_dir():
                    yield Violation(ViolationKind.FILE, path, 0, "is not a queue's folder")
                    continue
                yield from self._load_queue(topic.name, int(path.name), path)

    def compare(self, run: QueueRun, piece: CheckedPiece | None = None) -> None:
        """Compare the expected entries of one queue with its files.

        `piece` holds the records, for their store times.
        """
        queue = self._queues.get((run.topic, run.queue_id))
        if queue is None:
            if self._topics is not None and run.topic not in self._topics:
                return
            path = self._directory / run.topic / str(run.queue_id)
            queue = _Queue(run.topic, run.queue_id, SegmentFiles(path, self._segment_size))
            self._queues[run.topic, run.queue_id] = queue
        offsets, entries = run.offsets, run.entries
        firsts = np.flatnonzero(offsets == 0)
        if firsts.size:
            # The topic was created here, perhaps not for the first time.
            queue.missing = None
            offsets, entries = offsets[firsts[-1] :], entries[firsts[-1] :]
        there = (offsets >= queue.first) & (offsets < queue.end)
        if not there.all():
            self._note_missing(queue, offsets[~there], entries[~there], piece)
            offsets, entries = offsets[there], entries[there]
        if offsets.size:
            low, high = int(offsets.min()), int(offsets.max())
            written = queue.read(low, high + 1 - low)
            offsets = offsets[offsets < low + written.size]
            same = self._same(queue, written[offsets - low], entries[: offsets.size], piece)
            queue.right[offsets[same] - queue.first] = True

    def finish(self, log: LogCheck, min_offset: int) -> Iterator[Violation]:
        """Report violations, after `compare` has seen all records."""
        for queue in self._queues.values():
            yield from self._wrong_entries(queue, log, min_offset)
            if queue.missing is not None:
                offset, place, count = queue.missing
                path, position = queue.files.place(offset * CONSUME_QUEUE_ENTRY_SIZE)
                yield Violation(
                    ViolationKind.MISSING_ENTRY,
                    path,
                    position,
                    f"{count} messages of {queue.topic} queue {queue.queue_id} have no entry, the "
                    f"first with offset {offset} at physical offset {place}",
                )

    def _load_queue(self, topic: str, queue_id: int, path: Path) -> Iterator[Violation]:
        files = SegmentFiles(path, self._segment_size)
        queue = self._queues[topic, queue_id] = _Queue(topic, queue_id, files)
        yield from files.load()
        if files.segment_size % CONSUME_QUEUE_ENTRY_SIZE:
            yield Violation(
                ViolationKind.FILE,
                path,
                0,
                f"has segments of {files.segment_size} bytes, not a multiple of an entry's size",
            )
            return
        queue.first = queue.end = files.first_offset // CONSUME_QUEUE_ENTRY_SIZE
        per_file = files.segment_size // CONSUME_QUEUE_ENTRY_SIZE
        is_open = True
        last_place = -1
        last_address: int | None = None
        for base in files.bases:
            first = base // CONSUME_QUEUE_ENTRY_SIZE
            entries = queue.read(first, per_file)
            written = (entries["size"] > 0) & (entries["physical_offset"] >= 0)
            count = entries.size if written.all() else int(written.argmin())
            if is_open:
                queue.end = first + count
            used = np.flatnonzero(entries.view(np.uint8).reshape(entries.size, -1).any(axis=1))
            behind = used[used >= count] if is_open else used
            if behind.size:
                yield _entry_violation(
                    queue,
                    first + int(behind[0]),
                    f"follows a hole: entry {queue.end} was never written",
                )
            is_open = is_open and count == entries.size
            entries = entries[:count]
            real = np.flatnonzero(entries["size"] != PRE_BLANK_SIZE)
            places = entries["physical_offset"][real].astype(np.int64)
            for row in np.flatnonzero(np.diff(places, prepend=last_place) <= 0)[:_MAX_NAMED]:
                yield _entry_violation(
                    queue, first + int(real[row]), f"points back to physical offset {places[row]}"
                )
            if real.size:
                last_place = int(places[-1])
            if self._extensions is not None:
                yield from _addresses_out_of_order(queue, first, entries, last_address)
            addresses = entries["tags_code"][entries["tags_code"] <= MAX_EXTENSION_ADDRESS]
            if addresses.size:
                last_address = int(addresses[-1])
        if self._extensions is not None:
            directory, segment_size = self._extensions
            units = SegmentFiles(directory / topic / str(queue_id), segment_size)
            queue.extension = ExtensionCheck(units, may_move=self._may_move)
            yield from queue.extension.load(last_address)
        queue.right = np.zeros(queue.end - queue.first, np.bool_)

    def _same(
        self,
        queue: _Queue,
        written: NDArray[np.void],
        expected: NDArray[np.void],
        piece: CheckedPiece | None,
    ) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = written["tags_code"] == expected["tags_code"]
        units = np.flatnonzero(written["tags_code"] <= MAX_EXTENSION_ADDRESS)
        if units.size:
            addresses = written["tags_code"][units].astype(np.int64)
            same[units] = queue.extension is None or queue.extension.fits(
                addresses,
                expected["tags_code"][units].astype(np.int64),
                None if piece is None else _store_times(piece, expected[units]),
            )
        if queue.topic == SCHEDULE_TOPIC and not self._knows_delays:
            same[:] = True
        same &= written["physical_offset"] == expected["physical_offset"]
        same &= written["size"] == expected["size"]
        return same

    def _note_missing(
        self,
        queue: _Queue,
        offsets: Longs,
        entries: NDArray[np.void],
        piece: CheckedPiece | None,
    ) -> None:
        deletion = self._deletions.get(queue.topic)
        if deletion is not None and piece is not None:
            # Compare offset and time: after a power cut, the log may resume before the noted end.
            old = entries["physical_offset"].astype(np.int64) < deletion.log_end
            old &= _store_times(piece, entries) <= deletion.timestamp
            offsets, entries = offsets[~old], entries[~old]
        places = entries["physical_offset"].astype(np.int64)
        if self._may_move:
            offsets, places = offsets[places < self._known_end], places[places < self._known_end]
        if offsets.size:
            offset, place, count = queue.missing or (int(offsets[0]), int(places[0]), 0)
            queue.missing = offset, place, count + offsets.size

    def _wrong_entries(self, queue: _Queue, log: LogCheck, min_offset: int) -> Iterator[Violation]:
        wrong = np.flatnonzero(~queue.right) + queue.first
        named = 0
        for offset in wrong.tolist():
            entry = queue.read(offset, 1)
            place, size, tags_code = entry[0].tolist() if entry.size else (0, 0, 0)
            if size == PRE_BLANK_SIZE or place < min_offset:
                continue
            if self._may_move and place >= log.end:
                continue
            named += 1
            if named > _MAX_NAMED:
                yield _entry_violation(queue, offset, "more entries are wrong, not listed")
                return
            reason = _why_wrong(queue, offset, place, size, tags_code, log)
            yield _entry_violation(queue, offset, reason)


def _addresses_out_of_order(
    queue: _Queue, first: int, entries: NDArray[np.void], last_address: int | None
) -> Iterator[Violation]:
    """Report entries of one file whose units are not after those of earlier entries."""
    rows = np.flatnonzero(entries["tags_code"] <= MAX_EXTENSION_ADDRESS)
    before = np.array([] if last_address is None else [last_address], np.int64)
    addresses = np.append(before, entries["tags_code"][rows].astype(np.int64))
    back = np.flatnonzero(addresses[1:] <= addresses[:-1]) + 1 - before.size
    for row in back[:_MAX_NAMED].tolist():
        unit = int(entries["tags_code"][rows[row]]) + EXTENSION_BASE
        yield _entry_violation(
            queue, first + int(rows[row]), f"points back to offset {unit} of the extension"
        )


def _store_times(piece: CheckedPiece, entries: NDArray[np.void]) -> Longs:
    """Return the store times of the records of these entries."""
    starts = entries["physical_offset"].astype(np.int64) - piece.base
    rows = np.searchsorted(piece.columns.starts, starts)
    return piece.columns.column("store_timestamp")[rows]


def last_end(directory: Path) -> int:
    """Return the end of a queue's last record; finds the last entry by bisection."""
    entry_size = CONSUME_QUEUE_ENTRY_SIZE
    for path in sorted(directory.glob("[0-9]" * 20), reverse=True):
        with path.open("rb") as file:

            def entry(number: int, descriptor: int = file.fileno()) -> Entry:
                data = os.pread(descriptor, entry_size, number * entry_size)
                return Entry.unpack(data.ljust(entry_size, b"\0"))

            numbers = range(path.stat().st_size // entry_size)
            count = bisect_left(numbers, True, key=lambda number: entry(number).size <= 0)
            if count and not (last := entry(count - 1)).is_pre_blank:
                return last.end
    return 0


def _why_wrong(
    queue: _Queue, offset: int, place: int, size: int, tags_code: int, log: LogCheck
) -> str:
    data = log.record_at(place) if place < log.end else None
    try:
        record = decode_record(data) if data is not None else None
    except RecordError:
        record = None
    if record is None:
        return f"points at physical offset {place}, where there is no record"
    if (record.topic, record.queue_id) != (queue.topic, queue.queue_id):
        return f"points at {place}, a message of {record.topic} queue {record.queue_id}"
    if record.queue_offset != offset:
        return f"points at {place}, the message with offset {record.queue_offset}"
    if record.size != size:
        return f"has size {size}, but the record at {place} has {record.size}"
    if tags_code <= MAX_EXTENSION_ADDRESS:
        unit = tags_code + EXTENSION_BASE
        return f"has no extension unit for the record at {place} (offset {unit} of the extension)"
    return f"has tags code {tags_code}, which is not that of the record at {place}"


def _entry_violation(queue: _Queue, offset: int, reason: str) -> Violation:
    path, position = queue.files.place(offset * CONSUME_QUEUE_ENTRY_SIZE)
    return Violation(
        ViolationKind.QUEUE_ENTRY,
        path,
        position,
        f"entry {offset} of {queue.topic} queue {queue.queue_id} {reason}",
    )
