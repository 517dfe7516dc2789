"""Truncate the log of a stopped store to an offset: `truncate_store`.

Repairs a replica, or an old master that returns as one, whose log is longer than that of its master
or differs from it: everything from the last common record on is cut, and the replica follows from
there. The log then ends exactly at the offset, also if a segment starts there.

Steps, each fsynced before the next one
1. Plan (`truncate_plan`). A dry run ends here; so does one that is refused.
2. Copy everything that will be cut, and the tables (`truncate_backup`).
3. Mark the store as unclean (`abort`), and reduce the times of the checkpoint to that of the last
   remaining message. From here on a start recovers as after a crash.
4. Truncate the log: zero the rest of the offset's segment, then remove the later ones, last one
   first. The zeros decide: before them the log is the old one, after them it ends at the offset.
5. Truncate the consume queues and their extensions.
6. Correct the tables (`truncate_tables`).
7. Remove the mark, if the store was clean.
8. Start the store and stop it. Recovery drops key index files that point past the end, indexes
   their remaining messages again, and completes a store that was unclean.

If the command is killed before step 4, the store has all its messages, and a backup that may be
incomplete. Later on, the next start of a broker completes everything but the tables, and another
run of the command completes everything: it plans from what it finds, and cuts what is left.

Called by `pyromq store truncate`, on one thread. Holds the store's lock up to step 8, which takes
it again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyromq.base.atomic_file import sync_directory
from pyromq.base.descriptors import mapped_files_allowed
from pyromq.store.config import MessageStoreConfig
from pyromq.store.lock import lock_store, mark_running, unlock_store
from pyromq.store.log.checkpoint import Checkpoint
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.open_files import OpenFiles
from pyromq.store.log.segments import remove_if_empty
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.check_files import usual_size
from pyromq.store.offline.raft_store import refuse_raft_store
from pyromq.store.offline.rebuild import Targets, open_queue, require_log
from pyromq.store.offline.truncate_backup import require_room, write_backup
from pyromq.store.offline.truncate_plan import Truncation, plan_truncation
from pyromq.store.offline.truncate_tables import PROGRESS_NOTE
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.results import StoreError

_QUEUE_ID: Final = re.compile("0|[1-9][0-9]{0,9}")
#: Of the store that completes a truncation: it accepts no message.
_NO_HOST: Final = bytes(8)


def truncate_store(
    config: MessageStoreConfig,
    offset: int,
    *,
    apply: bool = False,
    backup_directory: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Truncation:
    """Return what truncating the log to `offset` cuts, and do it if `apply` is set.

    The backup becomes a new directory in `backup_directory`, by default beside the store.
    `on_progress` receives the number of log bytes examined so far and the total. Raises StoreError
    or OSError; before step 4 nothing of the log was changed.
    """
    refuse_raft_store(
        config,
        "the group decides where its log ends. To give up what this node has, remove its dledger "
        "directory, consumequeue and index, and let the group fill it again",
    )
    require_log(config)
    config = _with_extensions(config)
    parent = (backup_directory or config.root.resolve().parent).resolve()
    if parent.is_relative_to(config.root.resolve()):
        raise StoreError(f"the backup cannot be inside the store: {parent}")
    lock = lock_store(config.root)
    try:
        with _open_log(config) as log:
            plan = plan_truncation(config, log, offset, parent, on_progress)
            if plan.needs_backup:
                require_room(parent, plan.data_end - offset)
            if not apply or not plan.is_needed:
                return plan
            has_index = plan.is_unclean or any(config.index_directory.glob("*"))
            if plan.needs_backup:
                files = log.segments.between(offset, log.segments.end_offset)
                facts = _facts(config, plan)
                plan = replace(plan, backup=write_backup(parent, config, files, offset, facts))
            _mark(config, plan)
            _cut_log(log, offset)
            _cut_queues(config, log, offset)
            _write_tables(config, plan)
            if not plan.is_unclean:
                _unmark(config)
    finally:
        unlock_store(lock)
    _complete(replace(config, message_index_enable=config.message_index_enable and has_index), plan)
    return plan


def _with_extensions(config: MessageStoreConfig) -> MessageStoreConfig:
    """Return settings that truncate the extensions as well, if the store has any."""
    size = usual_size(config.consume_queue_ext_directory.glob("*/*/" + "[0-9]" * 20))
    if config.enable_consume_queue_ext or not size:
        return config
    return replace(config, enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=size)


@contextlib.contextmanager
def _open_log(config: MessageStoreConfig) -> Iterator[CommitLog]:
    log = CommitLog(
        config.commit_log_directory,
        config.mapped_file_size_commit_log,
        more=config.more_commit_log_directories,
        read_only=config.read_only_commit_log_directories,
        open_files=OpenFiles(mapped_files_allowed(config.max_mapped_files)),
    )
    try:
        log.segments.load()
        log.watermarks.assume_written(log.segments.end_offset)
        yield log
    finally:
        log.segments.close()


def _facts(config: MessageStoreConfig, plan: Truncation) -> dict[str, object]:
    """Return the content of truncated.json."""
    return {
        "store": str(config.root.resolve()),
        "offset": plan.offset,
        "endOffset": plan.log_end,
        "dataEndOffset": plan.data_end,
        "segmentSize": config.mapped_file_size_commit_log,
        "messages": plan.messages,
        "firstStoreTimestamp": plan.first_timestamp,
        "lastStoreTimestamp": plan.last_timestamp,
        "queues": [
            {"topic": cut.topic, "queueId": cut.queue_id, "entries": cut.entries, "end": cut.end}
            for cut in plan.queues
        ],
        "tables": {
            edit.path.name: [change._asdict() for change in edit.changes] for edit in plan.tables
        },
    }


# Steps 3 to 8


def _mark(config: MessageStoreConfig, plan: Truncation) -> None:
    """Have the next start recover as after a crash (step 3)."""
    mark_running(config.root)
    path = config.root / "checkpoint"
    if path.exists():
        checkpoint = Checkpoint(path)
        checkpoint.load()
        limit = plan.kept_timestamp
        checkpoint.log_timestamp = min(checkpoint.log_timestamp, limit)
        checkpoint.queue_timestamp = min(checkpoint.queue_timestamp, limit)
        checkpoint.index_timestamp = min(checkpoint.index_timestamp, limit)
        checkpoint.save()


def _cut_log(log: CommitLog, offset: int) -> None:
    segments = log.segments
    file = segments.find(offset)
    if file is not None:
        file.empty_from(offset - file.base)
        file.sync()
    # A segment that starts at the offset stays: from a full last segment Java would conclude that
    # the log ends before the blank record.
    changed = set()
    while segments.files[-1].base > offset:
        later = segments.files.pop()
        later.delete()
        changed.add(later.path.parent)
    for directory in changed:
        sync_directory(directory)


def _cut_queues(config: MessageStoreConfig, log: CommitLog, offset: int) -> None:
    extensions = config.consume_queue_ext_directory if config.enable_consume_queue_ext else None
    places = Targets(config.consume_queue_directory, extensions, None)
    open_files = OpenFiles(mapped_files_allowed(config.max_mapped_files))
    for directory in sorted(config.consume_queue_directory.glob("*/*")):
        if not _QUEUE_ID.fullmatch(directory.name) or not directory.is_dir():
            continue  # a start ignores it
        topic, queue_id = directory.parent.name, int(directory.name)
        queue = open_queue(config, log, places, topic, queue_id, open_files)
        try:
            queue.load()
        except StoreError:
            pass  # its files are damaged: a start rebuilds it
        else:
            queue.recover()
            if queue.last_physical_offset() > offset:
                _cut_queue(queue, offset)
        finally:
            queue.close()


def _cut_queue(queue: ConsumeQueue, offset: int) -> None:
    queue.truncate(offset)
    parts = [queue.segments, *([] if queue.extension is None else [queue.extension.segments])]
    if queue.next_offset:
        queue.drop_unused()
        queue.sync()
    else:
        queue.delete()
    for part in parts:
        topic = part.directory.parent
        if part.directory.is_dir():
            sync_directory(part.directory)
        elif topic.is_dir():
            remove_if_empty(topic)
            sync_directory(topic if topic.is_dir() else topic.parent)


def _write_tables(config: MessageStoreConfig, plan: Truncation) -> None:
    for edit in plan.tables:
        edit.write()
    note = config.config_directory / PROGRESS_NOTE
    if note.exists():
        note.unlink()
        sync_directory(note.parent)


def _unmark(config: MessageStoreConfig) -> None:
    (config.root / "abort").unlink()
    sync_directory(config.root)


def _complete(config: MessageStoreConfig, plan: Truncation) -> None:
    """Start the store and stop it (step 8). Raises StoreError if its log ends elsewhere."""
    settings = replace(config, transient_store_pool_enable=False, warm_maped_file_enable=False)
    store = MessageStore(settings, _NO_HOST)
    try:
        store.start()
    except (StoreError, OSError) as error:
        raise StoreError(
            f"the log is truncated to {plan.offset}, but the store does not start: {error}"
        ) from error
    end = store.max_physical_offset
    store.stop()
    if end != plan.offset:
        raise StoreError(
            f"the log is damaged before offset {plan.offset} and now ends at {end}: what was cut "
            f"is in {plan.backup}"
        )
