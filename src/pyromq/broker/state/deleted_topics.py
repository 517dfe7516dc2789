"""Deleted topics whose messages are still in the log.

Recovery rebuilds consume queues from the end of the log, including those of topics that were
deleted since. Without a note such a topic would look as if it had been created just before the
broker was killed, and would reappear with all its messages.

A note holds the end of the log and the time at the deletion. At the start, queues are removed whose
messages are all older by both measures. Both, because after a power cut the log may end before that
offset and continue there with new messages.

Notes are in the order of the deletions. The oldest are dropped once the log no longer reaches back
to them. RocketMQ ignores the file (`config/deletedTopics.json`).

A replica takes over its master's notes, since both logs have the same offsets: `take_over`. Its log
may still lack records of a deleted topic, and its dispatch knows nothing of deletions. So a note is
applied once more when the log has reached it (`apply`); until then such a topic may reappear. The
queues of a recreated topic stay, since their records are younger than the note.

Called on the loop.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pyromq.base.clock import Clock, now_ms
from pyromq.broker.state.copied_tables import CopyError, is_usable, parsed
from pyromq.broker.state.persistence import TableFile
from pyromq.protocol.java.wire_types import Int64
from pyromq.protocol.names import TOPICS_WITH_PROGRESS
from pyromq.protocol.wire.body_codec import Body

logger = logging.getLogger(__name__)


class Log(Protocol):
    """The part of the store that this table uses."""

    @property
    def min_physical_offset(self) -> int:
        """Return the start of the log."""

    @property
    def max_physical_offset(self) -> int:
        """Return the end of the log."""

    def remove_old_queues(self, topic: str, end: int, timestamp: int) -> int:
        """Remove queues whose messages all end before `end` and are older than `timestamp`.

        Return how many.
        """


@dataclass(slots=True)
class Deletion(Body):
    """The time of a deletion, and the end of the log at that time."""

    log_end: Int64
    #: Milliseconds since the epoch.
    timestamp: Int64


@dataclass(slots=True)
class DeletedTopics(Body):
    """The content of config/deletedTopics.json."""

    topics: dict[str, Deletion] = field(default_factory=dict)


def copied_deletions(body: bytes) -> dict[str, Deletion]:
    """Decode a master's table. Raises ValueError."""
    deletions = DeletedTopics.from_value(parsed(body, "topics")).topics
    for topic, deletion in deletions.items():
        if not is_usable(topic) or topic in TOPICS_WITH_PROGRESS:
            raise CopyError(f"topic {topic!r:.100} cannot have been deleted")
        if deletion.log_end < 0 or deletion.timestamp < 0:
            raise CopyError(f"topic {topic}: {deletion}")
    return deletions


class DeletedTopicTable:
    """Deletions by topic; persisted as `deletedTopics.json`."""

    def __init__(
        self,
        directory: Path,
        *,
        now: Clock = now_ms,
    ) -> None:
        self._now = now
        self._deletions: dict[str, Deletion] = {}
        #: Deletions of a master that this log has not reached yet.
        self._ahead: set[str] = set()
        self.file = TableFile(directory / "deletedTopics.json", self.snapshot)

    def load(self) -> None:
        """Load the file. Raises PersistenceError."""
        loaded = self.file.load(DeletedTopics.decode)
        if loaded is not None:
            in_order = sorted(loaded.topics.items(), key=lambda item: item[1].log_end)
            self._deletions = dict(in_order)

    def __contains__(self, topic: object) -> bool:
        return topic in self._deletions

    def begin(self, log: Log) -> None:
        """Remove the queues of deleted topics that recovery rebuilt."""
        self._drop_expired(log)
        self._remove_queues(self._deletions, log)

    def note(self, topic: str, log: Log) -> None:
        """Note that a topic is deleted now."""
        self._drop_expired(log)
        self._deletions.pop(topic, None)
        self._deletions[topic] = Deletion(log.max_physical_offset, self._now())
        self.file.save_soon()

    def take_over(self, deletions: Mapping[str, Deletion], log: Log) -> list[str]:
        """Add the notes of the master and apply them; return the topics with a new one.

        Notes that only this table has stay: the master may have dropped them earlier.
        """
        new = []
        for topic, deletion in deletions.items():
            known = self._deletions.get(topic)
            if deletion.log_end > log.min_physical_offset and (
                known is None or known.log_end < deletion.log_end
            ):
                self._deletions[topic] = deletion
                new.append(topic)
        if new:
            in_order = sorted(self._deletions.items(), key=lambda item: item[1].log_end)
            self._deletions = dict(in_order)
            self._ahead.update(new)
            self.file.save_soon()
        self.apply(log)
        return new

    def apply(self, log: Log) -> None:
        """Remove the queues of topics whose deletion the log has not reached before."""
        self._ahead.intersection_update(self._deletions)
        self._remove_queues(list(self._ahead), log)

    def snapshot(self) -> DeletedTopics:
        """Return a copy of the table."""
        return DeletedTopics(dict(self._deletions))

    def _remove_queues(self, topics: Iterable[str], log: Log) -> None:
        for topic in topics:
            deletion = self._deletions[topic]
            removed = log.remove_old_queues(topic, deletion.log_end, deletion.timestamp)
            if removed:
                logger.info("%d queues of deleted topic %s removed", removed, topic)
            if deletion.log_end <= log.max_physical_offset:
                self._ahead.discard(topic)
            else:
                self._ahead.add(topic)

    def _drop_expired(self, log: Log) -> None:
        first = log.min_physical_offset
        oldest = itertools.takewhile(lambda item: item[1].log_end <= first, self._deletions.items())
        gone = [name for name, _ in oldest]
        for name in gone:
            del self._deletions[name]
        if gone:
            self.file.save_soon()
