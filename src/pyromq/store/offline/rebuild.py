"""Rebuild the consume queues and the key index of a stopped store from its log.

The files equal those that Java builds from the same log, byte for byte, except that the names of
index files are the times of their creation. They are built next to the old ones, fsynced, and then
moved into place. During the move the store is marked as unclean and has no checkpoint: if the move
is interrupted, the next start rebuilds the missing files from the log.

Queues of deleted topics reappear while the log has their messages. Called by `pyromq store
rebuild`, on one thread; holds the store's lock.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pyromq.base.descriptors import mapped_files_allowed
from pyromq.protocol.message.delay import DelayLevels
from pyromq.store.config import MessageStoreConfig
from pyromq.store.index.index import KeyIndex
from pyromq.store.lock import lock_store, unlock_store
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.open_files import OpenFiles
from pyromq.store.offline.raft_store import StoreLog, refuse_raft_store
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.queues.extension import ConsumeQueueExt
from pyromq.store.recovery.dispatch import append_runs
from pyromq.store.recovery.piece import LogPiece
from pyromq.store.recovery.walk import LogWalk
from pyromq.store.results import StoreError


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result of a rebuild."""

    log_begin: int
    #: The end of the valid records; damaged files may contain more bytes.
    log_end: int
    queues: int
    entries: int
    keys: int


def rebuild_store(
    config: MessageStoreConfig,
    *,
    queues: bool = True,
    index: bool = True,
    committed: int | None = None,
    restoring: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Rebuilt:
    """Rebuild the consume queues, the key index or both. Raises StoreError or OSError.

    `committed` is the end of the committed entries, for the store of a raft node: the files must
    have no others. `restoring` is for the restore of a backup. `on_progress` receives the number of
    log bytes processed so far and the total.
    """
    if committed is None:
        require_log(config)
    lock = lock_store(config.root, restoring=restoring)
    log = StoreLog(config)
    try:
        log.load()
        if committed is not None:
            log.watermarks.assume_written(min(committed, log.segments.end_offset))
        targets = Targets.beside(config, queues=queues, index=index)
        targets.make()
        builder = Builder(config, log, targets)
        walk = LogWalk(
            log,
            log.min_offset,
            delay_levels=DelayLevels(config.message_delay_level),
            check_crc=config.check_crc_on_recover,
            on_progress=_progress(log, on_progress),
        )
        with contextlib.closing(iter(walk)) as pieces:
            for piece in pieces:
                builder.add(piece)
        made = builder.finish(log.min_offset, walk.end)
        put_in_place(config, targets)
        return made
    finally:
        log.segments.close()
        unlock_store(lock)


def require_log(config: MessageStoreConfig) -> None:
    """Raise StoreError if the store has no commit log, or is one of a raft node."""
    refuse_raft_store(config, "use pyromq store check and pyromq store rebuild")
    if not config.commit_log_directory.is_dir():
        raise StoreError(f"no log found: {config.commit_log_directory} is not a directory")


def _progress(
    log: CommitLog, on_progress: Callable[[int, int], None] | None
) -> Callable[[int], None] | None:
    if on_progress is None:
        return None
    begin, end = log.min_offset, log.watermarks.written
    return lambda position: on_progress(position - begin, end - begin)


@dataclass(frozen=True, slots=True)
class Targets:
    """The directories for the new files; None for kinds of files that are not rebuilt."""

    queues: Path | None
    extensions: Path | None
    index: Path | None

    @classmethod
    def beside(cls, config: MessageStoreConfig, *, queues: bool = True, index: bool = True) -> Self:
        """Return directories next to the old ones, which they can replace."""
        return cls(
            _beside(config.consume_queue_directory) if queues else None,
            _beside(config.consume_queue_ext_directory)
            if queues and config.enable_consume_queue_ext
            else None,
            _beside(config.index_directory) if index else None,
        )

    @classmethod
    def below(cls, directory: Path, config: MessageStoreConfig) -> Self:
        """Return directories below another one, for all kinds of files."""
        extensions = directory / config.consume_queue_ext_directory.name
        return cls(
            directory / config.consume_queue_directory.name,
            extensions if config.enable_consume_queue_ext else None,
            directory / config.index_directory.name,
        )

    def make(self) -> None:
        """Create the directories; remove leftovers of an interrupted rebuild."""
        for directory in self.wanted():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)

    def wanted(self) -> list[Path]:
        """Return the directories that are not None."""
        return [path for path in (self.queues, self.extensions, self.index) if path is not None]


class Builder:
    """Builds the new files in existing directories."""

    def __init__(self, config: MessageStoreConfig, log: CommitLog, targets: Targets) -> None:
        self._config = config
        self._log = log
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._open_files = OpenFiles(mapped_files_allowed(config.max_mapped_files))
        self._targets = targets
        self._index = None if targets.index is None else open_index(config, targets.index)

    def add(self, piece: LogPiece) -> None:
        """Add the next records of the log."""
        if self._targets.queues is not None:
            append_runs(piece.runs(), self._queue)
        if self._index is not None:
            self._index.put_span(piece.data, self._log.framing_at(piece.base).prefix)

    def finish(self, log_begin: int, log_end: int) -> Rebuilt:
        """Fsync and close all files."""
        entries = sum(finish_queue(queue, log_begin) for queue in self._queues.values())
        keys = 0 if self._index is None else finish_index(self._index)
        return Rebuilt(log_begin, log_end, len(self._queues), entries, keys)

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = open_queue(
                self._config, self._log, self._targets, topic, queue_id, self._open_files
            )
            self._queues[topic, queue_id] = queue
        return queue


def open_queue(
    config: MessageStoreConfig,
    log: CommitLog,
    targets: Targets,
    topic: str,
    queue_id: int,
    open_files: OpenFiles | None = None,
) -> ConsumeQueue:
    """Open a new queue. Its extension has no bit maps, because the log knows no consumers."""
    assert targets.queues is not None
    extension = None
    if targets.extensions is not None:
        size = config.mapped_file_size_consume_queue_ext
        extension = ConsumeQueueExt(
            targets.extensions, size, topic, queue_id, log.read, open_files=open_files
        )
    return ConsumeQueue(
        targets.queues,
        config.consume_queue_file_size,
        topic,
        queue_id,
        extension=extension,
        open_files=open_files,
    )


def finish_queue(queue: ConsumeQueue, log_begin: int) -> int:
    """Fsync and close a queue; return its number of entries."""
    queue.correct_min_offset(log_begin)
    queue.sync()
    queue.close()
    return queue.next_offset - queue.min_offset


def open_index(config: MessageStoreConfig, directory: Path) -> KeyIndex:
    """Open a new index."""
    index = KeyIndex(
        directory, hash_slot_count=config.max_hash_slot_num, entry_count=config.max_index_num
    )
    index.load()
    return index


def finish_index(index: KeyIndex) -> int:
    """Fsync and close an index; return its number of keys."""
    keys = index.entry_count
    index.flush()
    index.close()
    return keys


def _beside(directory: Path) -> Path:
    return directory.with_name(directory.name + ".rebuilt")


def put_in_place(config: MessageStoreConfig, targets: Targets) -> None:
    """Replace the old directories by the new ones.

    If this is interrupted, the next start rebuilds everything from the log.
    """
    root = config.root
    replaced = {
        new: old
        for new, old in (
            (targets.queues, config.consume_queue_directory),
            (targets.extensions, config.consume_queue_ext_directory),
            (targets.index, config.index_directory),
        )
        if new is not None
    }
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
