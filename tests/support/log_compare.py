"""Compares the stores of a pair: commit logs byte for byte, consume queues entry by entry.

    assert_same_logs(master.store, replica.store)

Compared is the range that both logs have: a Java replica that was empty lacks the segments before
the newest one of that time. The brokers must have stopped, or at least rest: a log is read while
nothing appends to it. Called by tests, on any thread.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from pyromq.protocol.message.record import (
    BLANK,
    BLANK_MAGIC,
    BLANK_SIZE,
    MESSAGE_MAGIC,
    MessageRecord,
    RecordError,
    decode_record,
)
from pyromq.store.offline.check_files import SegmentFiles
from pyromq.store.offline.compare import Difference, Span, compare_queues

_PIECE_SIZE: Final = 1 << 20
_MAX_DIFFERENCES: Final = 10


@dataclass
class Comparison:
    """Where two logs begin and end, and how they differ."""

    begins: tuple[int, int]
    ends: tuple[int, int]
    #: Records in the range that both have.
    records: int = 0
    #: Differences as text, the first of the log and the first ones of the queues.
    differences: list[str] = field(default_factory=list)


def assert_same_logs(first: Path, second: Path) -> Comparison:
    """Fail with the first differences unless two stores agree; return what was compared."""
    found = compare_logs(first, second)
    assert not found.differences, (
        f"{first} and {second} differ: logs {found.begins} to {found.ends}\n"
        + "\n".join(found.differences)
    )
    return found


def read_records(store: Path) -> Iterator[MessageRecord]:
    """Yield the messages of a store's log, in its order."""
    log = _Log(store / "commitlog")
    for offset in log.records:
        if (record := log.read(offset)) is not None:
            yield record


def compare_logs(first: Path, second: Path) -> Comparison:
    """Compare two store directories."""
    logs = [_Log(directory / "commitlog") for directory in (first, second)]
    found = Comparison((logs[0].begin, logs[1].begin), (logs[0].end, logs[1].end))
    for log in logs:
        found.differences += log.problems
    if len({log.files.segment_size for log in logs} - {0}) > 1:
        sizes = [log.files.segment_size for log in logs]
        found.differences.append(f"segments have {sizes[0]} and {sizes[1]} bytes")
        return found
    begin, end = max(found.begins), min(found.ends)
    found.records = sum(begin <= offset < end for offset in logs[0].records)
    if (place := _first_difference(logs[0].files, logs[1].files, begin, end)) is not None:
        found.differences.append(
            f"the logs differ at offset {place}:\n  {logs[0].describe(place)}\n"
            f"  {logs[1].describe(place)}"
        )
    if found.ends[0] != found.ends[1]:
        longer = logs[0] if found.ends[0] > found.ends[1] else logs[1]
        found.differences.append(
            f"the logs end at {found.ends[0]} and {found.ends[1]}; more: {longer.describe(end)}"
        )
    found.differences += [str(each) for each in islice(_queues(logs, end), _MAX_DIFFERENCES)]
    return found


def _queues(logs: list[_Log], end: int) -> Iterator[Difference]:
    """Compare the queues; what the log that begins later has, both must have."""
    later, earlier = sorted(logs, key=lambda log: log.begin, reverse=True)
    span = Span(later.begin, end, end, may_move=False)
    return compare_queues(
        later.directory.with_name("consumequeue"), earlier.directory.with_name("consumequeue"), span
    )


def _first_difference(
    first: SegmentFiles, second: SegmentFiles, begin: int, end: int
) -> int | None:
    while begin < end:
        size = min(_PIECE_SIZE, end - begin)
        # Neither crosses the end of a segment, and segments have the same size.
        ours, theirs = first.read(begin, size), second.read(begin, size)
        if ours != theirs:
            for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
                if one != other:
                    return begin + place
            return begin + min(len(ours), len(theirs))
        if not ours:
            return begin
        begin += len(ours)
    return None


class _Log:
    """The files of a log, and where its records are."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = SegmentFiles(directory, 0)
        self.problems = [str(violation) for violation in self.files.load()]
        self.begin = self.files.first_offset
        #: Offsets of all records, also of those that fill up a segment.
        self.records = list(self._walk())

    def _walk(self) -> Iterator[int]:
        self.end = self.begin
        for base in self.files.bases:
            if self.end != base:
                return
            with (
                self.files.path(base).open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            ):
                for position in _records(content):
                    yield base + position
                    self.end = base + position + BLANK.unpack_from(content, position)[0]

    def read(self, offset: int) -> MessageRecord | None:
        """Return the message of the record at an offset, None for one that fills up a segment."""
        size, magic = BLANK.unpack(self.files.read(offset, BLANK_SIZE))
        if magic == BLANK_MAGIC:
            return None
        return decode_record(self.files.read(offset, size))

    def describe(self, offset: int) -> str:
        """Return the record at an offset of the log, or around it."""
        start = max((place for place in self.records if place <= offset), default=None)
        if start is None or offset >= self.end:
            return f"{self.directory}: nothing"
        try:
            record = self.read(start)
        except RecordError as error:
            return f"{self.directory}: record at {start}, damaged: {error}"
        if record is None:
            return f"{self.directory}: blank record at {start}"
        return (
            f"{self.directory}: record at {start}, {record.size} bytes, {record.topic} queue "
            f"{record.queue_id} offset {record.queue_offset}, byte {offset - start} of it"
        )


def _records(segment: mmap.mmap) -> Iterator[int]:
    """Yield the positions of a segment's records."""
    position = 0
    while position + BLANK_SIZE <= len(segment):
        size, magic = BLANK.unpack_from(segment, position)
        if magic not in (MESSAGE_MAGIC, BLANK_MAGIC):
            return
        if not BLANK_SIZE <= size <= len(segment) - position:
            return
        yield position
        position += size
