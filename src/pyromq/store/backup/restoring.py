"""Turn a backup into a store: `restore_backup`.

1. Create the file `restoring` in an empty directory. No broker and no tool accepts the store while
   it exists.
2. Copy the log's segments and compare their checksums. A file gets its name when it is complete.
3. Write the tables.
4. Complete the log of a raft node (`complete_raft`).
5. Rebuild consume queues and key index from the log. Queues whose messages had all expired are not
   in the log: they get blank entries up to the end that the backup noted, so that their offsets
   continue.
6. Reduce offsets that are after the end of their queue, which a backup has only if it was damaged.
7. Remove the file `restoring`.

Each step is fsynced before the next one. After a kill, the same call resumes: complete segments are
kept, the rest is done again.

Called by `pyromq store restore`, on one thread. Holds the store's lock, except while queues and
index are rebuilt, which takes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import orjson

from pyromq.base.atomic_file import read_file, sync_directory, write_file
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY_SIZE, PRE_BLANK_ENTRY
from pyromq.store.backup.copying import ChecksumError, Meter, copy_file
from pyromq.store.backup.manifest import (
    ENTRY_DIRECTORY,
    MANIFEST_NAME,
    QUEUES_NAME,
    TABLE_DIRECTORY,
    FileFacts,
    Manifest,
)
from pyromq.store.backup.repository import Backup
from pyromq.store.backup.source import StoreSource
from pyromq.store.config import MessageStoreConfig
from pyromq.store.lock import RESTORE_MARK, lock_store, unlock_store
from pyromq.store.log.mapped_file import make_file
from pyromq.store.log.segments import Segments
from pyromq.store.offline.raft_store import entry_directory
from pyromq.store.offline.rebuild import Rebuilt, rebuild_store
from pyromq.store.offline.truncate_tables import Change, plan_tables
from pyromq.store.results import StoreError

#: Files that may be in a directory before a restore: a file system's own, and the store's lock.
_HARMLESS: Final = frozenset({"lost+found", "lock"})


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored store."""

    rebuilt: Rebuilt
    #: Queues that have no message, but an end.
    empty_queues: int
    #: Offsets that had to be reduced.
    changes: tuple[Change, ...]


def settings_for(
    backup: Backup, root: Path, properties: dict[str, str] | None = None
) -> MessageStoreConfig:
    """Return the settings of the restored store: those of the backup, changed by `properties`.

    Raises StoreError if the log would not fit, or ConfigError.
    """
    manifest = backup.manifest
    own = properties or {}
    config = MessageStoreConfig.load(
        {**manifest.settings, **own, "storePathRootDir": str(root)},
    )[0]
    if config.mapped_file_size_commit_log != manifest.segment_size:
        raise StoreError(
            f"mappedFileSizeCommitLog={config.mapped_file_size_commit_log} does not fit the "
            f"backup, whose segments have {manifest.segment_size} bytes: set that"
        )
    return config


def restore_backup(
    backup: Backup,
    config: MessageStoreConfig,
    *,
    complete_raft: Callable[[], None] | None = None,
    meter: Meter | None = None,
    on_rebuild: Callable[[int, int], None] | None = None,
) -> Restored:
    """Restore a backup into `config.root`. Raises StoreError or OSError.

    `complete_raft` writes the index and the small files of a raft node; `config` must be of one
    then. The directories must be empty, or hold an interrupted restore of the same backup.
    """
    manifest = backup.manifest
    if (manifest.raft is None) == config.enable_dleger_commit_log:
        raise StoreError(
            "the backup is of a node of a raft group, but the settings are not"
            if manifest.raft
            else "the settings are of a node of a raft group, but the backup is not: restore it "
            "without them, and let the store join a group afterwards"
        )
    meter = meter or Meter()
    root = config.root
    root.mkdir(parents=True, exist_ok=True)
    _mark(config, manifest)
    lock = lock_store(root, restoring=True)
    try:
        _copy_log(backup, config, meter)
        _write_tables(backup, config)
    finally:
        unlock_store(lock)
    if complete_raft is not None:
        complete_raft()
    rebuilt = _rebuild(config, manifest, on_rebuild)
    lock = lock_store(root, restoring=True)
    try:
        empty = _add_empty_queues(backup, config)
        changes = _clamp(config, manifest)
        (root / RESTORE_MARK).unlink()
        sync_directory(root)
    finally:
        unlock_store(lock)
    return Restored(rebuilt, empty, changes)


def _mark(config: MessageStoreConfig, manifest: Manifest) -> None:
    """Create the mark (step 1). Raises StoreError unless everything is empty."""
    mark = config.root / RESTORE_MARK
    name = orjson.dumps({"backup": manifest.name, "logEnd": manifest.log_end})
    found = read_file(mark)
    if found is not None:
        if found == name:
            return
        raise StoreError(
            f"{config.root} has an interrupted restore of another backup: empty the directory"
        )
    for directory in _all_directories(config):
        taken = _taken(directory)
        if taken is not None:
            raise StoreError(f"{directory} is not empty ({taken}): restore into an empty directory")
    write_file(mark, name)


def _all_directories(config: MessageStoreConfig) -> list[Path]:
    found = [config.root, config.commit_log_directory, *config.more_commit_log_directories]
    entries = entry_directory(config)
    return [*found, *([] if entries is None else [entries])]


def _taken(directory: Path) -> str | None:
    """Return the name of something in a directory, except for empty directories."""
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        is_empty = path.is_dir() and path.name not in _HARMLESS and not any(path.iterdir())
        if path.name not in _HARMLESS and not is_empty:
            return path.name
    return None


def _copy_log(backup: Backup, config: MessageStoreConfig, meter: Meter) -> None:
    """Copy the segments (step 2). Raises StoreError if one is damaged."""
    manifest = backup.manifest
    size = manifest.segment_size
    places = Segments(
        config.commit_log_directory, size, more=tuple(config.more_commit_log_directories)
    )
    entries = entry_directory(config)
    # A broker without messages has the directory as well.
    for directory in _all_directories(config):
        directory.mkdir(parents=True, exist_ok=True)
    _require_room(config.root, manifest)
    meter.total += sum(file.size for file in manifest.segments)
    for file in manifest.segments:
        if file.directory == ENTRY_DIRECTORY:
            assert entries is not None
            directory = entries
        else:
            directory = places.directory_for(file.base)
        target = directory / file.name
        if target.exists():
            meter.skip(file.size)  # complete: an interrupted run renamed it
            continue
        source = backup.directory / file.path
        try:
            copy_file(source, target, file.size, meter, extend=size, sha256=file.sha256)
        except ChecksumError as error:
            raise _damaged(backup, file) from error
    for directory in _all_directories(config):
        sync_directory(directory)


def _require_room(root: Path, manifest: Manifest) -> None:
    """Raise StoreError if the disk has no room, unless a part is restored already."""
    needed = sum(file.data_end for file in manifest.files)
    free = shutil.disk_usage(root).free
    present = sum(
        path.stat().st_blocks * 512 for path in root.glob("**/" + "[0-9]" * 20) if path.is_file()
    )
    if free + present < needed:
        raise StoreError(f"no room in {root}: the backup takes {needed} bytes, and {free} are free")


def _write_tables(backup: Backup, config: MessageStoreConfig) -> None:
    """Write the tables (step 3)."""
    for file in backup.manifest.files:
        if file.directory == TABLE_DIRECTORY:
            write_file(config.config_directory / file.name, _content(backup, file))


def _content(backup: Backup, file: FileFacts) -> bytes:
    """Return a small file's content. Raises StoreError if it is damaged."""
    content = (backup.directory / file.path).read_bytes()
    if sha256(content).hexdigest() != file.sha256:
        raise _damaged(backup, file)
    return content


def _damaged(backup: Backup, file: FileFacts) -> StoreError:
    return StoreError(
        f"{backup.directory / file.path} does not have the checksum of {MANIFEST_NAME}: the "
        "backup is damaged. Restore another one, or this file from a copy of it"
    )


def _rebuild(
    config: MessageStoreConfig,
    manifest: Manifest,
    on_rebuild: Callable[[int, int], None] | None,
) -> Rebuilt:
    """Rebuild queues and index (step 5)."""
    rebuilt = rebuild_store(
        config,
        index=config.message_index_enable,
        committed=manifest.log_end if manifest.raft is not None else None,
        restoring=True,
        on_progress=on_rebuild,
    )
    if manifest.segments and rebuilt.log_end < manifest.log_end:
        raise StoreError(
            f"the log in the backup is damaged at {rebuilt.log_end}, before its end at "
            f"{manifest.log_end}: the broker's own log was, run pyromq store check on it. To "
            f"start with the messages before that offset, remove {config.root / RESTORE_MARK}"
        )
    return rebuilt


def _add_empty_queues(backup: Backup, config: MessageStoreConfig) -> int:
    """Give queues without messages the ends that they had; return their number."""
    (facts,) = (file for file in backup.manifest.files if file.path == QUEUES_NAME)
    noted: dict[str, dict[str, int]] = orjson.loads(_content(backup, facts))
    count = 0
    for topic, queues in noted.items():
        for queue_id, end in queues.items():
            directory = config.consume_queue_directory / topic / queue_id
            if end > 0 and not any(directory.glob("[0-9]" * 20)):
                _make_blank_queue(directory, end, config.consume_queue_file_size)
                count += 1
    return count


def _make_blank_queue(directory: Path, end: int, file_size: int) -> None:
    """Create the last file of a queue, with blank entries before the queue offset `end`."""
    position = end * CONSUME_QUEUE_ENTRY_SIZE
    base = (position - 1) // file_size * file_size
    path = make_file(directory, base, file_size)
    with path.open("r+b") as file:
        file.write(PRE_BLANK_ENTRY * ((position - base) // CONSUME_QUEUE_ENTRY_SIZE))
        file.flush()
        os.fsync(file.fileno())
    for each in (directory, directory.parent, directory.parent.parent):
        sync_directory(each)


def _clamp(config: MessageStoreConfig, manifest: Manifest) -> tuple[Change, ...]:
    """Reduce offsets after the ends of their queues (step 6)."""
    ends = StoreSource(config).queue_ends().next_offsets
    edits = plan_tables(
        config.config_directory,
        manifest.log_end,
        lambda topic, queue_id: ends.get(topic, {}).get(queue_id, 0),
    )
    for edit in edits:
        edit.write()
    return tuple(change for edit in edits for change in edit.changes)
