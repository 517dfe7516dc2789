"""Delete expired segments, and keep the disk from filling up.

Every cleanResourceInterval (`clean`):
1. Delete segments of the log whose last write is fileReservedTime ago, oldest first: at the hours
   of deleteWhen, if a disk is fuller than diskMaxUsedSpaceRatio, or on request. At most ten per
   round, deleteCommitLogFilesInterval apart. If a disk is fuller than
   diskSpaceCleanForciblyRatio, and with cleanFileForciblyEnable, they need not be expired.
2. Delete segments of consume queues, and index files, that only point at deleted messages.
`check_disk` makes the store refuse messages while a disk is fuller than
diskSpaceWarningLevelRatio.

Invariants
1. The last segment of a stream is never deleted, and neither is an unflushed segment of the log.
2. Files of a stream are removed in order, so that the rest is always a stream without a gap.
3. The lists of files change on the loop's thread, before a worker thread removes the files.
   Nothing is unmapped under a reader: the mapping lives until the last reference is dropped.
4. Files in read-only directories leave the lists, but stay on disk.

Called by the broker on the loop; one `clean` at a time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from pyromq.protocol.message.units import Entry
from pyromq.protocol.names import TOPICS_WITH_PROGRESS
from pyromq.store.config import MessageStoreConfig
from pyromq.store.index.index import KeyIndex
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.queues.consume_queue import ConsumeQueue

logger = logging.getLogger(__name__)

#: Maximum number of segments of the log that one round deletes.
_MAX_DELETED: Final = 10
#: Number of rounds for which a manual request lasts.
_MANUAL_ROUNDS: Final = 20
#: Consume queues per loop iteration.
_QUEUES_PER_ITERATION: Final = 64


def used_percent(path: Path) -> int:
    """Return how full the disk under `path` is in percent, rounded up, as RocketMQ does.

    Blocks that only root may use count neither as used nor as free. A directory that does not
    exist yet is measured at its parent. Raises OSError. Blocks if the disk does not respond.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    disk = os.statvfs(path)
    used = disk.f_blocks - disk.f_bfree
    usable = used + disk.f_bavail
    return -(-used * 100 // usable) if usable else 0


class _Disk(NamedTuple):
    percent: int
    path: Path


class Retention:
    """Deletes expired data and keeps the disk from filling up."""

    def __init__(
        self,
        config: MessageStoreConfig,
        log: CommitLog,
        index: KeyIndex,
        queues: Callable[[], Iterable[ConsumeQueue]],
        refuse_puts: Callable[[str | None], None],
        *,
        now: Callable[[], float] = time.time,
        percent_of: Callable[[Path], int] = used_percent,
    ) -> None:
        """`refuse_puts` is called with the reason to refuse messages, or None to accept them."""
        self._config = config
        self._log = log
        self._index = index
        self._queues = queues
        self._refuse_puts = refuse_puts
        self._now = now
        self._percent_of = percent_of
        self._refusing = False
        self._fullest = _Disk(0, config.root)
        self._manual_rounds = 0
        self._trimmed_to = 0
        #: Detached files to remove, by the stream's directory.
        self._doomed: dict[Path, deque[MappedFile]] = {}
        #: The same for streams whose first file could not be removed.
        self._hanged: dict[Path, deque[MappedFile]] = {}
        self._retry_at = 0.0

    def execute_delete_files_manually(self) -> None:
        """Delete expired segments at any hour, for the next rounds."""
        self._manual_rounds = _MANUAL_ROUNDS
        logger.info("deleting expired segments on request, for %d rounds", _MANUAL_ROUNDS)

    async def check_disk(self) -> None:
        """Measure the disks, and refuse messages while one of them is nearly full."""
        config = self._config
        directories = self._log.segments.directories
        paths = (*directories, config.consume_queue_directory)
        percents = await asyncio.to_thread(lambda: list(map(self._percent_of, paths)))
        disks = [_Disk(*each) for each in zip(percents, paths, strict=True)]
        forcibly = config.disk_space_clean_forcibly_ratio
        self._log.segments.avoided = frozenset(
            disk.path for disk in disks[:-1] if disk.percent > forcibly
        )
        # One directory of the log with room is enough.
        self._fullest = max(min(disks[:-1]), disks[-1], key=lambda disk: disk.percent)
        percent, path = self._fullest
        if percent > config.disk_space_warning_level_ratio:
            reason = (
                f"disk of {path} is {percent}% full, limit "
                f"diskSpaceWarningLevelRatio={config.disk_space_warning_level_ratio}"
            )
            if not self._refusing:
                logger.error("%s: refusing messages until there is room", reason)
            self._refusing = True
            self._refuse_puts(reason)
        elif self._refusing:
            logger.info("disk of %s is %d%% full: accepting messages again", path, percent)
            self._refusing = False
            self._refuse_puts(None)

    async def clean(self) -> None:
        """Run one round: check the disks, delete due segments, trim queues and index."""
        await self.check_disk()
        if self._hanged and self._now() >= self._retry_at:
            self._doomed, self._hanged = self._hanged, {}
            await self._remove_doomed()
        if self._is_due():
            await self._delete_from_log()
        if self._log.min_offset > self._trimmed_to:
            self._trimmed_to = self._log.min_offset
            await self._trim(self._trimmed_to)

    async def clean_expired_queues(self) -> None:
        """Remove the files of consume queues whose messages have all expired.

        Such a queue restarts at offset 0, as in RocketMQ. Queues in which the broker itself keeps
        a position are exempt; in RocketMQ only those of delayed messages are.
        """
        min_offset = self._log.min_offset
        for number, queue in enumerate(self._queues(), 1):
            last = queue.read(queue.next_offset - 1, 1) if queue.next_offset else b""
            if (
                last
                and queue.topic not in TOPICS_WITH_PROGRESS
                and Entry.unpack(last).end <= min_offset
            ):
                logger.info(
                    "consume queue %s/%d removed: all its messages are before the log's start %d",
                    queue.topic,
                    queue.queue_id,
                    min_offset,
                )
                queue.delete()
            if number % _QUEUES_PER_ITERATION == 0:
                await asyncio.sleep(0)

    def _is_due(self) -> bool:
        """Whether this round deletes segments."""
        if self._manual_rounds:
            self._manual_rounds -= 1
            return True
        hour = datetime.fromtimestamp(self._now()).hour
        return hour in self._config.delete_hours or self._is_disk_full()

    def _is_disk_full(self) -> bool:
        return self._fullest.percent > self._config.disk_cleaning_percent

    async def _delete_from_log(self) -> None:
        config, segments = self._config, self._log.segments
        at_once = (
            config.clean_file_forcibly_enable
            and self._fullest.percent > config.disk_space_clean_forcibly_ratio
        )
        expired_before = self._now() - config.file_reserved_time * 3600
        deleted = 0
        # Not while an older file could not be removed (invariant 2).
        while deleted < _MAX_DELETED and segments.directory not in self._hanged:
            files = segments.files
            if len(files) < 2 or files[0].base + files[0].size > self._log.watermarks.flushed:
                break
            modified = await asyncio.to_thread(_modified, files[0].path)
            if modified > expired_before and not at_once:
                break
            if deleted:
                await asyncio.sleep(config.delete_commit_log_files_interval / 1000)
            first = self._log.take_first()
            logger.info(
                "deleting commit log segment %s: %s",
                first.path,
                "expired" if modified <= expired_before else "the disk is nearly full",
            )
            deleted += not first.read_only
            self._doom(segments.directory, [first])
            del files, first
            await self._remove_doomed()
        if not deleted and self._is_disk_full():
            percent, path = self._fullest
            logger.warning(
                "disk of %s is %d%% full, and no segment of the log can be deleted: remove other "
                "files, or move the store to a larger disk",
                path,
                percent,
            )

    async def _trim(self, min_offset: int) -> None:
        """Delete segments of queues, and index files, that point before `min_offset`."""
        for number, queue in enumerate(self._queues(), 1):
            self._doom(queue.segments.directory, queue.take_expired(min_offset))
            if queue.extension is not None:
                extension = queue.extension.segments.directory
                self._doom(extension, queue.take_expired_extension())
            if number % _QUEUES_PER_ITERATION == 0:
                await asyncio.sleep(0)
        await self._remove_doomed()
        await asyncio.to_thread(self._index.delete_before, min_offset)

    def _doom(self, directory: Path, files: list[MappedFile]) -> None:
        removable = [file for file in files if not file.read_only]
        if removable:
            waiting = self._hanged if directory in self._hanged else self._doomed
            waiting.setdefault(directory, deque()).extend(removable)

    async def _remove_doomed(self) -> None:
        """Remove detached files; keep those that cannot be removed for a retry."""
        interval = self._config.delete_consume_queue_files_interval / 1000
        retry = self._config.redelete_hanged_file_interval / 1000
        while self._doomed:
            directory, files = self._doomed.popitem()
            try:
                await asyncio.to_thread(_remove_all, files)
            except OSError as error:
                self._retry_at = self._now() + retry
                self._hanged[directory] = files
                logger.error("cannot delete %s, retrying in %g s: %s", files[0].path, retry, error)
            if self._doomed:
                await asyncio.sleep(interval)


def _modified(path: Path) -> float:
    """Return when a file was last written; 0 if another process removed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _remove_all(files: deque[MappedFile]) -> None:
    """Remove files, oldest first, and leave the rest in `files` on an error. Worker thread.

    The last references are dropped here, because unmapping a gigabyte is slow.
    """
    while files:
        file = files.popleft()
        try:
            file.unlink()
        except OSError:
            files.appendleft(file)
            raise
