"""Load the files of a store and make them consistent, before its first put.

`recovery` does the work; here is the order in which the parts of a store are loaded, and the two
kinds of log: a commit log, and that of a raft group, perhaps with a commit log from before the
broker joined it (mixed mode).

Called by `message_store` at its start, on the thread that starts the store.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Final

from pyromq.protocol.message.delay import DelayLevels
from pyromq.store.config import MessageStoreConfig
from pyromq.store.index.index import KeyIndex
from pyromq.store.log.agreed_log import AgreedLog, EntryLog
from pyromq.store.log.checkpoint import Checkpoint
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.queues.extension import refuse_other_size
from pyromq.store.recovery import mixed_mode, queue_damage, recovery
from pyromq.store.results import StoreError

logger = logging.getLogger(__name__)

_QUEUE_ID: Final = re.compile("0|[1-9][0-9]{0,9}")


class StoreOpening:
    """One start of a store."""

    def __init__(
        self,
        config: MessageStoreConfig,
        log: CommitLog,
        queues: dict[tuple[str, int], ConsumeQueue],
        queue_of: Callable[[str, int], ConsumeQueue],
        index: KeyIndex,
        checkpoint: Checkpoint,
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._queue_of = queue_of
        self._index = index
        self._checkpoint = checkpoint

    def recover(
        self, *, clean: bool, open_entries: Callable[[int], EntryLog] | None
    ) -> tuple[int, int]:
        """Return the end of the log and where dispatching started. Raises StoreError or OSError."""
        self._checkpoint.load()
        log = self._log
        log.segments.load()
        damaged = self._load_queues()
        self._index.load(drop_later_than=None if clean else self._checkpoint.index_timestamp)
        if not isinstance(log, AgreedLog):
            return self._recover_records(damaged, clean=clean)
        assert open_entries is not None
        self._adopt_entries(log, open_entries, damaged, clean=clean)
        return recovery.recover_agreed(
            log,
            self._queues,
            self._queue_of,
            crash_checkpoint=None if clean else self._safe_timestamp(),
            delay_levels=DelayLevels(self._config.message_delay_level),
            damaged=damaged,
            topics=queue_damage.known_topics(self._config.config_directory),
        )

    def _recover_records(self, damaged: dict[ConsumeQueue, str], *, clean: bool) -> tuple[int, int]:
        config = self._config
        return recovery.recover(
            self._log,
            self._queues,
            self._queue_of,
            crash_checkpoint=None if clean else self._safe_timestamp(),
            check_crc=config.check_crc_on_recover,
            delay_levels=DelayLevels(config.message_delay_level),
            damaged=damaged,
            topics=queue_damage.known_topics(config.config_directory),
        )

    def _adopt_entries(
        self,
        log: AgreedLog,
        open_entries: Callable[[int], EntryLog],
        damaged: dict[ConsumeQueue, str],
        *,
        clean: bool,
    ) -> None:
        """Open the group's log, and close a commit log from before it."""
        old = log.segments
        divided = old.end_offset
        if not open_entries(divided).exists() and old.files:
            end, _ = self._recover_records(damaged, clean=clean)
            divided = mixed_mode.close_old_log(old, end)
        entries = open_entries(divided)
        entries.start()
        if old.files and entries.begin_position != divided:
            begin = entries.begin_position
            entries.stop()
            raise StoreError(
                f"{old.directory} ends at {divided}, but the raft group's log begins at {begin}: "
                "restore the missing segments, or move the old ones away"
            )
        log.adopt(entries)

    def _load_queues(self) -> dict[ConsumeQueue, str]:
        """Find the queues' files; return damaged queues with the reason."""
        config = self._config
        directory = config.consume_queue_directory
        damaged: dict[ConsumeQueue, str] = {}
        if config.enable_consume_queue_ext:
            refuse_other_size(
                config.consume_queue_ext_directory, config.mapped_file_size_consume_queue_ext
            )
        for topic in sorted(directory.iterdir()) if directory.is_dir() else ():
            for path in sorted(topic.iterdir()) if topic.is_dir() else ():
                if not _QUEUE_ID.fullmatch(path.name) or not path.is_dir():
                    logger.warning("ignoring %s: not a consume queue", path)
                    continue
                queue = self._queue_of(topic.name, int(path.name))
                try:
                    queue.load()
                except StoreError as error:
                    if queue_damage.is_other_size(directory, config.consume_queue_file_size):
                        raise
                    damaged[queue] = str(error)
        return damaged

    def _safe_timestamp(self) -> int:
        """Return the store time up to which all files that matter are on disk."""
        safe = self._checkpoint.safe_timestamp
        if self._config.message_index_enable and self._config.message_index_safe:
            return min(safe, self._checkpoint.index_timestamp)
        return safe
