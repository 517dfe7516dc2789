"""Check that a store directory obeys every rule of the store: `check_store`.

Reads the log once, front to back, and compares the records of each piece with the consume queues
and the key index, which are read alongside. Never writes. If a broker is running on the store, or
the last shutdown was unclean, the tail may be incomplete: damage that the next start truncates or
rebuilds is not a violation.

Called by `pyromq store check` and by tests, on their own thread. Memory: one byte per consume-queue
entry, and pieces of a few MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from pyromq.protocol.java.fastjson import BodyError, parse_json
from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.units import CHECKPOINT
from pyromq.store.config import MessageStoreConfig
from pyromq.store.offline.check_files import SegmentFiles, usual_size
from pyromq.store.offline.check_index import IndexCheck, guess_index_settings
from pyromq.store.offline.check_log import LogCheck
from pyromq.store.offline.check_queues import QueueCheck
from pyromq.store.offline.raft_store import entry_directory
from pyromq.store.offline.violation import Violation, ViolationKind
from pyromq.store.recovery.dispatch import queue_runs
from pyromq.store.recovery.queue_damage import known_deletions, known_topics

__all__ = ["Violation", "ViolationKind", "check_store", "guess_config", "is_unclean"]

#: Later times (after the year 2248) come from damaged bytes.
_LAST_TIMESTAMP = 1 << 43


def check_store(
    path: Path,
    config: MessageStoreConfig | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Iterator[Violation]:
    """Yield all violations in the store at `path`.

    Without `config`, sizes are derived from the files. `on_progress` receives the number of log
    bytes checked so far and the total.
    """
    sizes_known = config is not None
    settings = config or MessageStoreConfig()
    if settings.root != path:
        settings = replace(
            settings,
            store_path_root_dir=str(path),
            store_path_commit_log=None,
            read_only_commit_log_store_paths=None,
        )
    may_move = is_unclean(path)
    entries = entry_directory(settings)
    may_lag = may_move or entries is not None
    yield from _check_checkpoint(path / "checkpoint")
    yield from _check_tables(settings.config_directory)
    log_files = SegmentFiles(
        settings.commit_log_directory,
        settings.mapped_file_size_commit_log if sizes_known else 0,
        more=settings.more_commit_log_directories,
        read_only=settings.read_only_commit_log_directories,
        entries=entries,
    )
    extensions = settings.consume_queue_ext_directory
    has_extensions = settings.enable_consume_queue_ext or extensions.is_dir()
    queues = QueueCheck(
        settings.consume_queue_directory,
        settings.consume_queue_file_size if sizes_known else 0,
        known_topics(settings.config_directory),
        may_move=may_lag,
        knows_delays=sizes_known,
        extensions=(
            extensions,
            settings.mapped_file_size_consume_queue_ext if sizes_known else 0,
        )
        if has_extensions
        else None,
        deletions=known_deletions(settings.config_directory),
    )
    index = IndexCheck(
        settings.index_directory,
        settings.max_hash_slot_num if sizes_known else 0,
        settings.max_index_num if sizes_known else 0,
        is_kept=settings.message_index_enable,
        may_move=may_lag,
    )
    # Load these before reading the log, so that the log has every record they refer to.
    yield from queues.load()
    yield from index.load()
    yield from log_files.load()
    levels = DelayLevels(settings.message_delay_level)
    log = LogCheck(log_files, may_move=may_move)
    first, total = log_files.first_offset, log_files.end_offset
    for piece in log.pieces():
        for run in queue_runs(piece.data, piece.base, piece.columns, levels):
            queues.compare(run, piece)
        yield from index.compare(piece)
        yield from log.violations
        log.violations.clear()
        if on_progress is not None:
            on_progress(log.end - first, total - first)
    yield from log.violations
    yield from queues.finish(log, first)
    yield from index.finish(log.end)


def guess_config(path: Path) -> MessageStoreConfig:
    """Return settings with the sizes of a store's files, or defaults where there are none."""
    settings = MessageStoreConfig(store_path_root_dir=str(path))
    guessed: dict[str, int] = {}
    raft = entry_directory(settings)
    directories = [settings.commit_log_directory, *([] if raft is None else [raft])]
    if size := usual_size(path for each in directories for path in each.glob("[0-9]" * 20)):
        guessed["mapped_file_size_commit_log"] = size
    if size := usual_size(settings.consume_queue_directory.glob("*/*/" + "[0-9]" * 20)):
        guessed["mapped_file_size_consume_queue"] = size
    if size := usual_size(settings.consume_queue_ext_directory.glob("*/*/" + "[0-9]" * 20)):
        guessed["mapped_file_size_consume_queue_ext"] = size
        guessed["enable_consume_queue_ext"] = True
    slots, entries = guess_index_settings(sorted(settings.index_directory.glob("[0-9]" * 17)))
    if slots:
        guessed |= {"max_hash_slot_num": slots, "max_index_num": entries}
    return replace(settings, **guessed)  # type: ignore[arg-type]


def is_unclean(path: Path) -> bool:
    """Return whether a broker is running on the store, or its last shutdown was unclean."""
    return (path / "abort").exists()


def _check_checkpoint(path: Path) -> Iterator[Violation]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        yield Violation(ViolationKind.CHECKPOINT, path, 0, f"cannot be read: {error.strerror}")
        return
    if len(data) < CHECKPOINT.size:
        yield Violation(
            ViolationKind.CHECKPOINT,
            path,
            0,
            f"has {len(data)} bytes, expected at least {CHECKPOINT.size}",
        )
        return
    names = ("physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp")
    for number, (name, value) in enumerate(zip(names, CHECKPOINT.unpack_from(data), strict=True)):
        if not 0 <= value < _LAST_TIMESTAMP:
            yield Violation(ViolationKind.CHECKPOINT, path, number * 8, f"{name} is {value}")


def _check_tables(directory: Path) -> Iterator[Violation]:
    for path in sorted(directory.glob("*.json")) if directory.is_dir() else ():
        try:
            value = parse_json(path.read_bytes())
        except (BodyError, OSError) as error:
            yield Violation(ViolationKind.TABLE, path, 0, f"cannot be read: {error}")
            continue
        if not isinstance(value, dict):
            yield Violation(ViolationKind.TABLE, path, 0, "is not a JSON object")
