"""What leaves the store: expired segments, and messages that would fill the disk.

Every cleanResourceInterval (`clean`):
1. Segments of the log whose last write is fileReservedTime ago are deleted, oldest first,
   at the hours of deleteWhen, or when a disk is fuller than diskMaxUsedSpaceRatio, or
   when somebody asked for it; ten at most, deleteCommitLogFilesInterval apart. Fuller than
   diskSpaceCleanForciblyRatio, with cleanFileForciblyEnable, they need not be expired.
2. Consume queues lose the whole segments that point at nothing any more, index files go
   the same way.
`check_disk` refuses puts while a disk is fuller than diskSpaceWarningLevelRatio.

Invariants
1. The last segment of a stream is never deleted, nor one of the log that is not flushed.
2. Files of a stream are removed from the disk in their order: at any moment what is left
   is a stream without a gap.
3. The lists of files change on the loop's thread, before the files are removed on a worker
   thread. Nothing is unmapped under a reader: the mapping goes with the last reference.
4. Files in read-only directories leave the lists, never the disk.

Started by the broker on the loop; one `clean` at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from pyromq.protocol.names import TOPICS_WITH_PROGRESS
from pyromq.store.config import MessageStoreConfig
from pyromq.store.disk import used_percent
from pyromq.store.index.index import KeyIndex
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.queues.consume_queue import ConsumeQueue, span_of

logger = logging.getLogger(__name__)

#: So many segments of the log at most are deleted in one turn.
_BATCH: Final = 10
#: So many turns a request to delete by hand lasts.
_MANUAL_TURNS: Final = 20
#: So many consume queues are looked at before the loop gets its turn.
_QUEUES_AT_ONCE: Final = 64


class _Disk(NamedTuple):
    percent: int
    path: Path


class Retention:
    """Deletes what has expired and keeps the disk from running full."""

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
        """`refuse_puts` gets the reason why nothing can be put, None when it can again."""
        self._config = config
        self._log = log
        self._index = index
        self._queues = queues
        self._refuse_puts = refuse_puts
        self._now = now
        self._percent_of = percent_of
        self._refusing = False
        self._fullest = _Disk(0, config.root)
        self._manual_turns = 0
        self._trimmed_to = 0
        #: Files that left a stream and are to be removed, by the stream's directory.
        self._doomed: dict[Path, deque[MappedFile]] = {}
        #: The same, where the first one could not be removed.
        self._hanged: dict[Path, deque[MappedFile]] = {}
        self._retry_at = 0.0

    def execute_delete_files_manually(self) -> None:
        """Delete expired segments from now on at any hour, for the next turns."""
        self._manual_turns = _MANUAL_TURNS
        logger.info("expired segments are deleted on request, for %d turns", _MANUAL_TURNS)

    async def check_disk(self) -> None:
        """Measure the disks; refuse puts while one of them is nearly full."""
        config = self._config
        directories = self._log.segments.directories
        paths = (*directories, config.consume_queue_directory)
        percents = await asyncio.to_thread(lambda: list(map(self._percent_of, paths)))
        disks = [_Disk(*each) for each in zip(percents, paths, strict=True)]
        forcibly = config.disk_space_clean_forcibly_ratio
        self._log.segments.avoided = frozenset(
            disk.path for disk in disks[:-1] if disk.percent > forcibly
        )
        # Of the log's directories one that has room is enough.
        self._fullest = max(min(disks[:-1]), disks[-1], key=lambda disk: disk.percent)
        percent, path = self._fullest
        if percent > config.disk_space_warning_level_ratio:
            reason = (
                f"the disk of {path} is {percent}% full, more than "
                f"diskSpaceWarningLevelRatio={config.disk_space_warning_level_ratio}"
            )
            if not self._refusing:
                logger.error("%s: nothing is stored until there is room", reason)
            self._refusing = True
            self._refuse_puts(reason)
        elif self._refusing:
            logger.info("the disk of %s is %d%% full: messages are stored again", path, percent)
            self._refusing = False
            self._refuse_puts(None)

    async def clean(self) -> None:
        """One turn: look at the disks, delete what is due, trim what pointed at it."""
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
        """Remove the files of consume queues all of whose messages have left the log.

        Such a queue begins anew with offset 0, as in RocketMQ; but for those in which the
        broker itself has its place (in RocketMQ only those of delayed messages).
        """
        min_offset = self._log.min_offset
        for number, queue in enumerate(self._queues(), 1):
            last = queue.read(queue.next_offset - 1, 1) if queue.next_offset else b""
            if last and queue.topic not in TOPICS_WITH_PROGRESS and span_of(last)[1] <= min_offset:
                logger.info(
                    "%s queue %d: its messages are before %d, where the log begins: removed",
                    queue.topic,
                    queue.queue_id,
                    min_offset,
                )
                queue.delete()
            if number % _QUEUES_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _is_due(self) -> bool:
        """Whether this is a turn in which segments are deleted."""
        if self._manual_turns:
            self._manual_turns -= 1
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
        # What could not be removed yet must go first.
        while deleted < _BATCH and segments.directory not in self._hanged:
            files = segments.files
            if len(files) < 2 or files[0].base + files[0].size > self._log.watermarks.flushed:
                break
            modified = await asyncio.to_thread(_modified, files[0].path)
            if modified > expired_before and not at_once:
                break
            if deleted:
                await asyncio.sleep(config.delete_commit_log_files_interval / 1000)
            first = segments.take_first()
            logger.info(
                "segment %s of the log leaves the store: %s",
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
                "the disk of %s is %d%% full, and no segment of the log can be deleted",
                path,
                percent,
            )

    async def _trim(self, min_offset: int) -> None:
        """Take away what points at messages before `min_offset`."""
        for number, queue in enumerate(self._queues(), 1):
            self._doom(queue.segments.directory, queue.take_expired(min_offset))
            if queue.extension is not None:
                extension = queue.extension.segments.directory
                self._doom(extension, queue.take_expired_extension())
            if number % _QUEUES_AT_ONCE == 0:
                await asyncio.sleep(0)
        await self._remove_doomed()
        await asyncio.to_thread(self._index.delete_before, min_offset)

    def _doom(self, directory: Path, files: list[MappedFile]) -> None:
        removable = [file for file in files if not file.read_only]
        if removable:
            waiting = self._hanged if directory in self._hanged else self._doomed
            waiting.setdefault(directory, deque()).extend(removable)

    async def _remove_doomed(self) -> None:
        """Remove the files that left their streams; those that cannot be are tried again."""
        interval = self._config.delete_consume_queue_files_interval / 1000
        retry = self._config.redelete_hanged_file_interval / 1000
        while self._doomed:
            directory, files = self._doomed.popitem()
            try:
                await asyncio.to_thread(_remove_all, files)
            except OSError as error:
                self._retry_at = self._now() + retry
                self._hanged[directory] = files
                logger.error(
                    "%s cannot be deleted, tried again in %g s: %s", files[0].path, retry, error
                )
            if self._doomed:
                await asyncio.sleep(interval)


def _modified(path: Path) -> float:
    """When a file was last written to; long ago for one that somebody removed."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _remove_all(files: deque[MappedFile]) -> None:
    """Remove files, oldest first; those that are left are still in `files`. On a worker thread.

    The last references are meant to go here: to unmap and free a gigabyte takes long.
    """
    while files:
        file = files.popleft()
        try:
            file.unlink()
        except OSError:
            files.appendleft(file)
            raise
