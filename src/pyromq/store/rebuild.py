"""Consume queues and key index of a stopped store, made again from its log.

The files come out as Java makes them from the same log, byte for byte; index files are
named by the time at which they are made. They are made beside the old ones and put in their
place when they are whole and on the disk. While that happens the store counts as not
stopped cleanly and has no checkpoint: whatever interrupts it, the next start makes from the
log what is missing.

The queues of a topic that was deleted come back as long as the log has its messages. Called
by `pyromq store rebuild`, on one thread; holds the store's lock.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyromq.protocol.delay import DelayLevels
from pyromq.store.commit_log import CommitLog
from pyromq.store.config import MessageStoreConfig
from pyromq.store.consume_queue import ConsumeQueue
from pyromq.store.consume_queue_ext import ConsumeQueueExt
from pyromq.store.dispatch import dispatch_records
from pyromq.store.index import KeyIndex
from pyromq.store.lock import lock_store, unlock_store
from pyromq.store.log_walk import LogPiece, LogWalk
from pyromq.store.results import StoreError


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild made."""

    log_begin: int
    #: Where the records end; more may be in the files when those are damaged.
    log_end: int
    queues: int
    entries: int
    keys: int


def rebuild_store(
    config: MessageStoreConfig,
    *,
    queues: bool = True,
    index: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
) -> Rebuilt:
    """Make the consume queues, the key index or both again; raises StoreError or OSError.

    `on_progress` hears the bytes of the log that are done, and how many there are in all.
    """
    root = config.root
    if not config.commit_log_directory.is_dir():
        raise StoreError(f"{config.commit_log_directory} is no directory: there is no log here")
    lock = lock_store(root)
    log = CommitLog(
        config.commit_log_directory,
        config.mapped_file_size_commit_log,
        more=config.more_commit_log_directories,
        read_only=config.read_only_commit_log_directories,
    )
    try:
        log.segments.load()
        log.watermarks.written = log.segments.end_offset
        builder = _Builder(config, log, queues=queues, index=index)
        walk = LogWalk(
            log,
            log.min_offset,
            check_crc=config.check_crc_on_recover,
            on_progress=_progress(log, on_progress),
        )
        for piece in walk:
            builder.add(piece)
        made = builder.finish(log.min_offset, walk.end)
        _put_in_place(root, builder.replaced)
        return made
    finally:
        log.segments.close()
        unlock_store(lock)


def _progress(
    log: CommitLog, on_progress: Callable[[int, int], None] | None
) -> Callable[[int], None] | None:
    if on_progress is None:
        return None
    begin, end = log.min_offset, log.watermarks.written
    return lambda position: on_progress(position - begin, end - begin)


class _Builder:
    """Makes the new files, in directories beside the old ones."""

    def __init__(
        self, config: MessageStoreConfig, log: CommitLog, *, queues: bool, index: bool
    ) -> None:
        self._config = config
        self._log = log
        self._delay_levels = DelayLevels(config.message_delay_level)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._queue_directory = _fresh(config.consume_queue_directory) if queues else None
        self._index: KeyIndex | None = None
        self._keys_at_end = 0
        #: The new directories, and the old ones whose place they take.
        self.replaced: dict[Path, Path] = {}
        if self._queue_directory is not None:
            self.replaced[self._queue_directory] = config.consume_queue_directory
        self._extension_directory: Path | None = None
        if queues and config.enable_consume_queue_ext:
            self._extension_directory = _fresh(config.consume_queue_ext_directory)
            self.replaced[self._extension_directory] = config.consume_queue_ext_directory
        if index:
            directory = _fresh(config.index_directory)
            self.replaced[directory] = config.index_directory
            self._index = KeyIndex(
                directory,
                hash_slot_count=config.max_hash_slot_num,
                entry_count=config.max_index_num,
            )
            self._index.load()

    def add(self, piece: LogPiece) -> None:
        """Take the next records of the log."""
        if self._queue_directory is not None:
            dispatch_records(piece.data, piece.base, piece.columns, self._queue, self._delay_levels)
            for queue in self._queues.values():
                if queue.pending:
                    queue.write_pending()
        if self._index is not None:
            self._index.put(piece.data, piece.columns.starts)

    def finish(self, log_begin: int, log_end: int) -> Rebuilt:
        """Bring everything to the disk."""
        entries = 0
        for queue in self._queues.values():
            queue.correct_min_offset(log_begin)
            entries += queue.next_offset - queue.min_offset
            queue.sync()
            queue.close()
        keys = 0
        if self._index is not None:
            keys = self._index.entry_count
            self._index.flush()
            self._index.close()
        return Rebuilt(log_begin, log_end, len(self._queues), entries, keys)

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            assert self._queue_directory is not None
            queue = self._queues[topic, queue_id] = ConsumeQueue(
                self._queue_directory,
                self._config.consume_queue_file_size,
                topic,
                queue_id,
                extension=self._extension(topic, queue_id),
            )
        return queue

    def _extension(self, topic: str, queue_id: int) -> ConsumeQueueExt | None:
        """Without bit maps: which consumers there were, the log does not know."""
        if self._extension_directory is None:
            return None
        size = self._config.mapped_file_size_consume_queue_ext
        return ConsumeQueueExt(self._extension_directory, size, topic, queue_id, self._log.read)


def _fresh(directory: Path) -> Path:
    """An empty directory beside this one; what an interrupted rebuild left there goes."""
    fresh = directory.with_name(directory.name + ".rebuilt")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    return fresh


def _put_in_place(root: Path, replaced: dict[Path, Path]) -> None:
    """Swap the new directories in; a start in between makes everything from the log."""
    abort, checkpoint = root / "abort", root / "checkpoint"
    was_clean = not abort.exists()
    saved = checkpoint.read_bytes() if checkpoint.is_file() else None
    abort.touch()
    checkpoint.unlink(missing_ok=True)
    _sync_directory(root)
    for new, old in replaced.items():
        if old.is_dir():
            shutil.rmtree(old)
        new.rename(old)
    _sync_directory(root)
    if saved is not None:
        checkpoint.write_bytes(saved)
        _sync_directory(checkpoint)
    if was_clean:
        abort.unlink()
    _sync_directory(root)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
