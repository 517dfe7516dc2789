"""Rebuild consume queues and key index in parallel: decode parts of the log, then assemble files.

    parts = plan_parts(config)
    decoded = [decode_part(config, part, scratch) for part in parts]      # in any order, anywhere
    log_end, used = join_parts(config, parts, decoded, scratch)
    assemble_queues(config, targets, used, group, groups, log_begin)      # each group anywhere
    assemble_index_file(config, targets, used, span)                      # each file anywhere

The result equals that of `rebuild.rebuild_store` on one core, byte for byte: the same functions
build entries, find keys and write files. Decoded parts are kept in files of the scratch directory,
about 20 bytes per message and per key.

Invariants
1. A part is used only if it starts where the previous one ended; `join_parts` ensures that. A part
   may thus start anywhere in a segment: `decode_part` searches for the first record after that
   position. If other bytes look like a record, the part is decoded again.
2. A part file is named after its range and created atomically, so decoding is idempotent: a task
   may run twice, even concurrently.
3. Memory: the entries and keys of one part, or the entries of one queue in one part.

Called by Spark tasks and their driver, each on its own thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
import orjson
from numpy.typing import NDArray

from pyromq.base.sizes import KIB, MIB
from pyromq.protocol.message.bulk import Longs
from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.unit_arrays import CONSUME_QUEUE_DTYPE
from pyromq.store.config import MessageStoreConfig
from pyromq.store.index.file import IndexEnd, IndexFile
from pyromq.store.index.index import join_properties, keys_in
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.offline.check_files import SegmentFiles
from pyromq.store.offline.check_log import LogCheck
from pyromq.store.offline.rebuild import Targets, finish_queue, open_queue, require_log
from pyromq.store.recovery.dispatch import QueueRun, append_run, queue_runs
from pyromq.store.recovery.piece import LogPiece
from pyromq.store.recovery.walk import LogWalk
from pyromq.store.results import StoreError

#: The size of a part: large enough for a task, small enough for its memory.
PART_SIZE: Final = 64 * MIB
#: Bytes after a part that are mapped first, for a record that crosses its end.
_OVERLAP_SIZE: Final = 64 * KIB
#: Keys that are put into an index file at once.
_MAX_KEYS_PER_APPEND: Final = 1 << 20
_KEY: Final = np.dtype([("hash", "<i4"), ("offset", "<i8"), ("timestamp", "<i8")])
_OFFSET: Final = np.dtype("<i8")
_LENGTH_SIZE: Final = 8

QueueName = tuple[str, int]


class LogPart(NamedTuple):
    """Part of a segment: the records that start between `start` and `end`."""

    path: str
    start: int
    end: int
    #: Whether `start` is known to be the start of a record or the end of the log.
    is_exact: bool

    @property
    def segment_base(self) -> int:
        """The offset of the segment's first byte."""
        return int(Path(self.path).name)


class DecodedPart(NamedTuple):
    """A decoded part."""

    #: The start of its first record.
    start: int
    #: The end of its last record, or of the blank record after it.
    end: int
    records: int
    keys: int
    #: Whether the last record has no key.
    is_last_without: bool
    #: The file with entries and keys.
    path: str


class IndexSpan(NamedTuple):
    """The keys of one index file, by their numbers in the whole log; `end` is exclusive."""

    name: str
    start: int
    end: int


def plan_parts(config: MessageStoreConfig, part_size: int = PART_SIZE) -> list[LogPart]:
    """Divide the log into parts, in order. Raises StoreError if its files do not fit together."""
    files = _log_files(config)
    size = files.segment_size
    return [
        LogPart(str(files.path(base)), start, min(start + part_size, base + size), start == base)
        for base in files.bases
        for start in range(base, base + _written_end(files.path(base), size), part_size)
    ]


def decode_part(config: MessageStoreConfig, part: LogPart, scratch: Path) -> DecodedPart:
    """Save the entries and keys of a part, up to the first bytes that are not a record."""
    log = _open_segments(config, [part.path])
    try:
        start = part.start if part.is_exact else _next_record(config, part)
        content = _PartContent(config)
        end = part.end if start is None else _walk(config, log, part, start, content)
        start = part.end if start is None else start
        path = content.save(scratch, f"{start:020d}-{end:020d}.part")
        return DecodedPart(
            start, end, content.records, content.keys, content.is_last_without, str(path)
        )
    finally:
        log.segments.close()


def join_parts(
    config: MessageStoreConfig,
    parts: Sequence[LogPart],
    decoded: Sequence[DecodedPart],
    scratch: Path,
) -> tuple[int, list[DecodedPart]]:
    """Return the end of the log, and the parts up to there, which follow each other exactly."""
    position = parts[0].segment_base if parts else 0
    used: list[DecodedPart] = []
    for part, found in zip(parts, decoded, strict=True):
        if position >= part.end:
            continue  # a record of the previous part covers it
        if position < part.segment_base:
            break  # the rest of the previous segment was never written
        if found.start != position:
            exact = part._replace(start=position, is_exact=True)
            found = decode_part(config, exact, scratch)
        if found.records:
            used.append(found)
        position = found.end
        if position < part.end:
            break
    return position, used


def assemble_queues(
    config: MessageStoreConfig,
    targets: Targets,
    parts: Sequence[DecodedPart],
    group: int,
    groups: int,
    log_begin: int,
) -> tuple[int, int]:
    """Build the queues of one group out of `groups`; return their number and that of entries."""
    assert targets.queues is not None
    runs: dict[QueueName, list[tuple[str, _RunPlace]]] = {}
    for part in parts:
        for place in _read_contents(part.path).runs:
            if _group_of(place.topic, place.queue_id, groups) == group:
                runs.setdefault((place.topic, place.queue_id), []).append((part.path, place))
    # Each attempt of a task has its own directory, from which complete queues are moved.
    attempt = targets.queues.with_name(f"{targets.queues.name}.{uuid.uuid4().hex}")
    made = Targets(attempt, targets.extensions and attempt / "extensions", None)
    log = _open_segments(config, _log_paths(config) if targets.extensions else [])
    entries = 0
    try:
        for (topic, queue_id), places in sorted(runs.items()):
            queue = open_queue(config, log, made, topic, queue_id)
            for path, place in places:
                append_run(queue, _read_run(path, place))
                queue.write_pending()
            entries += finish_queue(queue, log_begin)
            name = Path(topic) / str(queue_id)
            _move(attempt / name, targets.queues / name)
            if made.extensions is not None and targets.extensions is not None:
                _move(made.extensions / name, targets.extensions / name)
    finally:
        log.segments.close()
        shutil.rmtree(attempt, ignore_errors=True)
    return len(runs), entries


def index_spans(
    config: MessageStoreConfig, parts: Sequence[DecodedPart], now: datetime
) -> list[IndexSpan]:
    """Return the index files to build, each on its own; their names are times from `now` on."""
    if not parts:
        return []
    total = sum(part.keys for part in parts)
    room = config.max_index_num - 1
    starts = list(range(0, total, room)) or [0]
    if total and total % room == 0 and _ends_without_key(parts):
        starts.append(total)  # a record after the last key starts a new file
    first = int(f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}")
    return [
        IndexSpan(f"{first + number:017d}", start, min(start + room, total))
        for number, start in enumerate(starts)
    ]


def assemble_index_file(
    config: MessageStoreConfig, targets: Targets, parts: Sequence[DecodedPart], span: IndexSpan
) -> int:
    """Build one index file; return its number of keys."""
    assert targets.index is not None
    attempt = targets.index.with_name(f"{targets.index.name}.{uuid.uuid4().hex}")
    try:
        file = IndexFile(attempt, config.max_hash_slot_num, config.max_index_num)
        file.reserve()
        if span.start:
            [before] = _read_keys_between(parts, span.start - 1, span.start)
            last = before[-1]
            file.continue_from(IndexEnd(int(last["offset"]), int(last["timestamp"])))
        for keys in _read_keys_between(parts, span.start, span.end):
            file.append(
                keys["hash"].astype(np.int32),
                keys["offset"].astype(np.int64),
                keys["timestamp"].astype(np.int64),
            )
        file.sync()
        file.close()
        attempt.replace(targets.index / span.name)
    finally:
        attempt.unlink(missing_ok=True)
    return span.end - span.start


def _log_files(config: MessageStoreConfig) -> SegmentFiles:
    require_log(config)
    files = SegmentFiles(
        config.commit_log_directory,
        config.mapped_file_size_commit_log,
        more=config.more_commit_log_directories,
        read_only=config.read_only_commit_log_directories,
    )
    for violation in files.load():
        raise StoreError(
            f"{violation.file} {violation.message}: pass the settings that the store was written "
            "with, or restore the missing files"
        )
    return files


def _written_end(path: Path, size: int) -> int:
    """Return where the data of a segment ends, as far as the file system knows.

    The last segment is preallocated; tasks need not read the part that was never written.
    """
    with path.open("rb") as file:
        end = 0
        while end < size:
            try:
                data = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                # Either no data after `end`, or the file system does not know.
                return max(end, 1) if error.errno == errno.ENXIO else size
            end = os.lseek(file.fileno(), data, os.SEEK_HOLE)
    return size


def _log_paths(config: MessageStoreConfig) -> list[str]:
    files = _log_files(config)
    return [str(files.path(base)) for base in files.bases]


def _open_segments(config: MessageStoreConfig, paths: Sequence[str]) -> CommitLog:
    """Open a read-only log of these segments."""
    log = CommitLog(config.commit_log_directory, config.mapped_file_size_commit_log)
    for path in paths:
        log.segments.add(MappedFile.open(Path(path), read_only=True))
    log.watermarks.reset(log.segments.end_offset)
    return log


def _next_record(config: MessageStoreConfig, part: LogPart) -> int | None:
    """Return the offset of a part's first record, or None."""
    files = SegmentFiles(Path(part.path).parent, config.mapped_file_size_commit_log)
    return LogCheck(files, may_move=False).next_record(part.start, part.end)


def _walk(
    config: MessageStoreConfig, log: CommitLog, part: LogPart, start: int, content: _PartContent
) -> int:
    """Add the records of a part to `content`; return where they end."""
    segment_end = log.segments.end_offset
    position = start
    delay_levels = DelayLevels(config.message_delay_level)
    for limit in (min(part.end + _OVERLAP_SIZE, segment_end), segment_end):
        log.watermarks.reset(limit)
        walk = LogWalk(
            log,
            position,
            delay_levels=delay_levels,
            check_crc=config.check_crc_on_recover,
            alone=True,
        )
        with contextlib.closing(iter(walk)) as pieces:
            for piece in pieces:
                starts = piece.starts
                count = int(np.searchsorted(starts, part.end - piece.base))
                if count < starts.size:
                    content.add(piece.rows(slice(0, count)))
                    return piece.base + int(starts[count])
                content.add(piece)
                if walk.end >= part.end:
                    return walk.end
        position = walk.end
        if position >= part.end or limit == segment_end:
            break
    return position


@dataclass(slots=True)
class _RunPlace:
    """The position of one queue's entries in a part file."""

    topic: str
    queue_id: int
    position: int
    count: int
    #: The queue offset of the first entry; -1 if offsets have gaps and are stored after the
    #: entries.
    first: int


class _Contents(NamedTuple):
    runs: list[_RunPlace]
    keys_at: int


class _PartContent:
    """Collects the entries and keys of a part."""

    def __init__(self, config: MessageStoreConfig) -> None:
        self._delay_levels = DelayLevels(config.message_delay_level)
        self._runs: dict[QueueName, list[QueueRun]] = {}
        self._keys: list[NDArray[np.void]] = []
        self.records = 0
        self.keys = 0
        self.is_last_without = True

    def add(self, piece: LogPiece) -> None:
        """Add the next records."""
        if not piece.starts.size:
            return
        self.records += piece.starts.size
        data, columns = piece.data, piece.columns
        properties = join_properties(data, columns)
        for run in queue_runs(data, piece.base, columns, self._delay_levels, properties):
            self._runs.setdefault((run.topic, run.queue_id), []).append(run)
        for found in keys_in(data, columns, properties):
            keys = np.empty(found.hashes.size, _KEY)
            keys["hash"] = found.hashes
            keys["offset"] = found.offsets
            keys["timestamp"] = found.timestamps
            self._keys.append(keys)
            self.keys += keys.size
            self.is_last_without = found.is_last_without

    def save(self, scratch: Path, name: str) -> Path:
        """Write a part file: entries queue by queue, keys, and a table of their positions."""
        scratch.mkdir(parents=True, exist_ok=True)
        partial = scratch / f"{uuid.uuid4().hex}.partial"
        contents: list[tuple[str, int, int, int, int]] = []
        with partial.open("wb") as file:
            for (topic, queue_id), runs in self._runs.items():
                offsets = np.concatenate([run.offsets for run in runs])
                follows = bool((offsets[1:] == offsets[:-1] + 1).all())
                first = int(offsets[0]) if follows else -1
                contents.append((topic, queue_id, file.tell(), offsets.size, first))
                file.writelines(run.entries.tobytes() for run in runs)
                if not follows:
                    file.write(offsets.astype(_OFFSET).tobytes())
            keys_at = file.tell()
            for keys in self._keys:
                file.write(keys.tobytes())
            index = orjson.dumps([keys_at, contents])
            file.write(index)
            file.write(len(index).to_bytes(_LENGTH_SIZE, "little"))
        return partial.replace(scratch / name)


def _read_contents(path: str) -> _Contents:
    with Path(path).open("rb") as file:
        file.seek(-_LENGTH_SIZE, os.SEEK_END)
        size = int.from_bytes(file.read(_LENGTH_SIZE), "little")
        file.seek(-_LENGTH_SIZE - size, os.SEEK_END)
        keys_at, contents = orjson.loads(file.read(size))
    return _Contents([_RunPlace(*place) for place in contents], keys_at)


def _read_run(path: str, place: _RunPlace) -> QueueRun:
    entries = np.fromfile(path, CONSUME_QUEUE_DTYPE, place.count, offset=place.position)
    offsets: Longs
    if place.first >= 0:
        offsets = np.arange(place.first, place.first + place.count, dtype=np.int64)
    else:
        after = place.position + entries.nbytes
        offsets = np.fromfile(path, _OFFSET, place.count, offset=after).astype(np.int64)
    return QueueRun(place.topic, place.queue_id, offsets, entries, place.first >= 0)


def _read_keys_between(
    parts: Sequence[DecodedPart], start: int, end: int
) -> Iterator[NDArray[np.void]]:
    """Yield the keys with these numbers, a bounded number at a time."""
    first = 0
    for part in parts:
        low, high = max(start, first), min(end, first + part.keys)
        if low < high:
            keys_at = _read_contents(part.path).keys_at
            for number in range(low, high, _MAX_KEYS_PER_APPEND):
                count = min(_MAX_KEYS_PER_APPEND, high - number)
                position = keys_at + (number - first) * _KEY.itemsize
                yield np.fromfile(part.path, _KEY, count, offset=position)
        first += part.keys


def _ends_without_key(parts: Sequence[DecodedPart]) -> bool:
    """Return whether a record follows the last one with a key."""
    return parts[-1].is_last_without


def _group_of(topic: str, queue_id: int, groups: int) -> int:
    return crc32(f"{topic}/{queue_id}".encode()) % groups


def _move(made: Path, target: Path) -> None:
    """Move a directory to its target, unless another attempt already did."""
    if not made.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        made.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(made)
