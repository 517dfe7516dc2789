"""Make a backup of a store, while a broker writes to it or not: `back_up`.

1. Read tables, queue ends and the end of the log, in an order that makes them fit (`source`).
2. For each segment of the log: link the file of an earlier backup, if it is the same, or copy it.
   The last segment is always copied, up to the log's end.
3. Write the tables, fsync everything, write the manifest, and give the backup its name.
4. Remove what killed runs left, and old backups beyond `keep`.

A full segment is the same as an earlier copy if the last bytes of both are equal: a log changes
only by being cut somewhere and continuing differently, which changes the end of every segment from
there on. A segment that expires before it is copied is left out, with those before it: the log of
the backup begins later, as the broker's does.

A failure or a kill leaves earlier backups alone; the next run reuses the segments that were copied.
On a full disk the incomplete backup is removed.

Called by `pyromq store backup`, on one thread.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from pyromq import __version__
from pyromq.store.backup.copying import Copied, Meter, copy_file, hash_file
from pyromq.store.backup.manifest import (
    ENTRY_DIRECTORY,
    LOG_DIRECTORY,
    QUEUES_NAME,
    TABLE_DIRECTORY,
    FileFacts,
    Manifest,
    RaftFacts,
)
from pyromq.store.backup.repository import Backup, PartialBackup, Repository
from pyromq.store.backup.source import StoreSource, list_segments, valid_end
from pyromq.store.config import MessageStoreConfig
from pyromq.store.offline.check_files import SegmentFiles
from pyromq.store.results import StoreError

#: Bytes at the end of a segment that tell whether it is the same as another one.
_COMPARED_SIZE: Final = 64 * 1024
#: Bytes after the data that must be zeros in both.
_EMPTY_SIZE: Final = 4096
#: Room that must be left on the disk of the backups, for tables and the manifest.
_SPARE_BYTES: Final = 1024 * 1024
#: The log may expire as a whole while it is copied.
_ATTEMPTS: Final = 5
#: Links are not possible here, or no more of them.
_NO_LINK: Final = (
    errno.EPERM,
    errno.EOPNOTSUPP,
    errno.EMLINK,
    errno.EXDEV,
    errno.ENOSYS,
    errno.ENOENT,  # the earlier backup was removed meanwhile
)


@dataclass(frozen=True, slots=True)
class RaftNode:
    """What the files of a raft node say; `raft.offline.backup` reads it."""

    node_id: str
    term: int
    #: The end of the entries that are known to be committed.
    committed: int


@dataclass(frozen=True, slots=True)
class Made:
    """A new backup."""

    backup: Backup
    #: Bytes that were copied, and bytes that earlier backups had already.
    copied: int
    linked: int
    #: Names of old backups that were removed.
    removed: tuple[str, ...]


def back_up(
    config: MessageStoreConfig,
    repository: Repository,
    *,
    raft_node: RaftNode | None = None,
    identity: dict[str, str] | None = None,
    keep: int | None = None,
    full: bool = False,
    meter: Meter | None = None,
) -> Made:
    """Make a backup. Raises StoreError or OSError.

    `identity` are the broker's names, for the manifest. With `keep`, only that many backups stay,
    the new one included. With `full`, everything is copied: links to a file share its damage.
    """
    source = StoreSource(config)
    if repository.directory.resolve().is_relative_to(config.root.resolve()):
        raise StoreError(f"the backup cannot be inside the store: {repository.directory}")
    with repository.locked():
        earlier = repository.backups()
        made = None
        for attempt in range(_ATTEMPTS):
            run = _Run(source, repository, earlier, meter or Meter(), full=full)
            try:
                made = run.make(raft_node, identity or {})
                break
            except _ExpiredError as error:
                if attempt == _ATTEMPTS - 1:
                    raise StoreError(
                        f"{error}: messages expire faster than they are copied. Raise "
                        "fileReservedTime, or the limit of the rate"
                    ) from error
        assert made is not None
        for leftover in repository.leftovers():
            repository.remove(leftover)
        removed = earlier[: max(0, len(earlier) + 1 - keep)] if keep is not None else []
        for backup in removed:
            repository.remove(backup.directory)
    return replace(made, removed=tuple(backup.directory.name for backup in removed))


class _ExpiredError(Exception):
    """The last segment of the log has expired before it was copied."""


class _Segment(NamedTuple):
    base: int
    path: Path
    #: Where it goes in the backup.
    name: str
    size: int


class _Run:
    """One backup in progress."""

    def __init__(
        self,
        source: StoreSource,
        repository: Repository,
        earlier: list[Backup],
        meter: Meter,
        *,
        full: bool,
    ) -> None:
        self._source = source
        self._full = full
        self._repository = repository
        self._earlier = earlier
        self._meter = meter
        self._linked = 0
        self._copied = 0

    def make(self, raft_node: RaftNode | None, identity: dict[str, str]) -> Made:
        source, config = self._source, self._source.config
        started = _now_ms()
        tables = source.offset_tables()
        ends = source.queue_ends()
        end = source.log_end(ends, None if raft_node is None else raft_node.committed)
        running = source.is_running
        tables |= source.other_tables()
        files = source.files()
        segments = self._segments(files, end)
        refuse_other_log(self._earlier, files, end)
        self._meter.total = sum(segment.size for segment in segments)
        reusable = [] if self._full else list(self._repository.reusable(self._earlier))
        name, partial = self._repository.begin()
        try:
            facts = self._write_log(partial, files, segments, reusable, ends.log_end)
            begin = facts[0].base if facts else end
            queues = orjson.dumps(
                ends.next_offsets, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS
            )
            facts += self._write_small(partial, {QUEUES_NAME: queues})
            facts += self._write_small(
                partial, {f"{TABLE_DIRECTORY}/{each}": tables[each] for each in sorted(tables)}
            )
            manifest = Manifest(
                name=name,
                version=__version__,
                started=started,
                finished=_now_ms(),
                source={
                    "host": socket.gethostname(),
                    "root": str(config.root.resolve()),
                    "running": running,
                    **identity,
                },
                log_begin=begin,
                log_end=end,
                segment_size=files.segment_size,
                raft=None
                if raft_node is None
                else RaftFacts(raft_node.node_id, raft_node.term, _entries_begin(facts, end)),
                settings=_settings(config),
                files=tuple(facts),
            )
            directory = partial.complete(manifest)
        except OSError as error:
            partial.close()
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            shutil.rmtree(partial.directory, ignore_errors=True)
            raise StoreError(
                f"no room for the backup in {self._repository.directory}: {error.strerror}; "
                "earlier backups are complete. Remove some, or choose a directory on another disk"
            ) from error
        except BaseException:
            partial.close()
            raise
        return Made(Backup(directory, manifest), self._copied, self._linked, ())

    def _segments(self, files: SegmentFiles, end: int) -> list[_Segment]:
        found = []
        for base, path, is_entries in list_segments(files, end):
            directory = ENTRY_DIRECTORY if is_entries else LOG_DIRECTORY
            size = min(files.segment_size, end - base)
            found.append(_Segment(base, path, f"{directory}/{path.name}", size))
        return found

    def _write_log(
        self,
        partial: PartialBackup,
        files: SegmentFiles,
        segments: list[_Segment],
        reusable: list[tuple[Path, dict[str, FileFacts]]],
        known_end: int,
    ) -> list[FileFacts]:
        self._require_room(segments, files, reusable)
        written: list[FileFacts] = []
        for segment in segments:
            target = partial.directory / segment.name
            target.parent.mkdir(exist_ok=True)
            try:
                facts = self._write_segment(target, segment, files, reusable)
            except FileNotFoundError as error:
                if segment is segments[-1]:
                    raise _ExpiredError(f"{segment.path} has expired") from error
                # All segments before have expired as well.
                for file in written:
                    (partial.directory / file.path).unlink()
                written.clear()
                continue
            partial.note(facts)
            written.append(facts)
        if segments:
            self._check_tail(partial, files.segment_size, segments[-1], known_end)
        return written

    def _write_segment(
        self,
        target: Path,
        segment: _Segment,
        files: SegmentFiles,
        reusable: list[tuple[Path, dict[str, FileFacts]]],
    ) -> FileFacts:
        same = self._find_same(segment, files, reusable)
        if same is not None:
            path, facts = same
            try:
                os.link(path, target)
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
            else:
                self._linked += segment.size
                self._meter.skip(segment.size)
                return facts
        copied = copy_file(segment.path, target, segment.size, self._meter)
        if copied.size != segment.size:
            raise StoreError(
                f"{segment.path} has become shorter while it was copied: run the backup again"
            )
        self._copied += copied.size
        return _facts(segment.name, copied)

    def _find_same(
        self,
        segment: _Segment,
        files: SegmentFiles,
        reusable: list[tuple[Path, dict[str, FileFacts]]],
    ) -> tuple[Path, FileFacts] | None:
        """Return an earlier copy of a full segment, and what is known about it."""
        if segment.size < files.segment_size:
            return None
        for directory, known in reusable:
            facts = known.get(segment.name)
            if facts is None or facts.size != segment.size:
                continue
            path = directory / segment.name
            start = max(0, facts.data_end - _COMPARED_SIZE)
            size = facts.data_end + _EMPTY_SIZE - start
            try:
                if _read_at(path, start, size) == _read_at(segment.path, start, size):
                    return path, facts
            except FileNotFoundError:
                if not segment.path.exists():
                    raise
        return None

    def _require_room(
        self,
        segments: list[_Segment],
        files: SegmentFiles,
        reusable: list[tuple[Path, dict[str, FileFacts]]],
    ) -> None:
        """Raise StoreError if the disk has no room for what must be copied."""
        needed = _SPARE_BYTES
        for segment in segments:
            try:
                if self._find_same(segment, files, reusable) is None:
                    allocated = segment.path.stat().st_blocks * 512
                    needed += min(segment.size, allocated)
            except FileNotFoundError:
                continue
        free = shutil.disk_usage(self._repository.directory).free
        if free < needed:
            raise OSError(errno.ENOSPC, f"{needed} bytes are needed, and {free} are free")

    def _check_tail(
        self, partial: PartialBackup, segment_size: int, tail: _Segment, known_end: int
    ) -> None:
        """Check that the copy of the last segment ends with a whole record. Raises StoreError."""
        end = tail.base + tail.size
        start = known_end if tail.base <= known_end <= end else tail.base
        copy = SegmentFiles(
            partial.directory / LOG_DIRECTORY,
            segment_size,
            entries=partial.directory / ENTRY_DIRECTORY,
        )
        if tail.name.startswith(ENTRY_DIRECTORY):
            return  # committed entries never change
        copy.add(tail.base, partial.directory / tail.name)
        if valid_end(copy, start, end) < end:
            raise StoreError(
                f"{tail.path} was changed before {end} while it was copied, for example by a "
                "truncation: run the backup again"
            )

    def _write_small(self, partial: PartialBackup, contents: dict[str, bytes]) -> list[FileFacts]:
        written = []
        for name, content in contents.items():
            path = partial.directory / name
            path.parent.mkdir(exist_ok=True)
            with path.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            written.append(_facts(name, hash_file(path, len(content), Meter())))
            self._copied += len(content)
        return written


def refuse_other_log(earlier: list[Backup], files: SegmentFiles, end: int) -> None:
    """Raise StoreError if the newest backup with common segments is of another log.

    Of the same log, at least one common segment begins with the same bytes. Others may be damaged,
    or be from before a truncation.
    """
    for backup in reversed(earlier):
        differing = None
        for file in backup.manifest.segments:
            if file.base not in files.bases or file.base >= end or not file.data_end:
                continue
            size = min(_COMPARED_SIZE, file.data_end, end - file.base)
            data = files.read(file.base, size)
            if not data:
                continue  # it has expired just now
            is_entries = bool(files.framing(file.base).prefix)
            if (
                is_entries == (file.directory == ENTRY_DIRECTORY)
                and _read_at(backup.directory / file.path, 0, size) == data
            ):
                return
            differing = differing or file
        if differing is not None:
            raise StoreError(
                f"{backup.directory} is a backup of another log: segment {differing.name} begins "
                "differently. Choose another directory for the backups of this store"
            )


def _read_at(path: Path, start: int, size: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), size, start)


def _facts(name: str, copied: Copied) -> FileFacts:
    return FileFacts(name, copied.size, copied.data_end, copied.sha256)


def _entries_begin(facts: list[FileFacts], end: int) -> int:
    return next((file.base for file in facts if file.directory == ENTRY_DIRECTORY), end)


def _settings(config: MessageStoreConfig) -> dict[str, str]:
    """Return the settings that a restore needs to rebuild queues and index alike."""
    return {
        "mappedFileSizeCommitLog": str(config.mapped_file_size_commit_log),
        "mappedFileSizeConsumeQueue": str(config.mapped_file_size_consume_queue),
        "enableConsumeQueueExt": str(config.enable_consume_queue_ext).lower(),
        "mappedFileSizeConsumeQueueExt": str(config.mapped_file_size_consume_queue_ext),
        "messageIndexEnable": str(config.message_index_enable).lower(),
        "maxHashSlotNum": str(config.max_hash_slot_num),
        "maxIndexNum": str(config.max_index_num),
        "messageDelayLevel": config.message_delay_level,
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
