"""Topics that were deleted while the log still holds their messages.

A start makes consume queues from the log, as far as they may lack something: also those of a
topic that was deleted since. Without a note of that, such a topic would look like one that was
made in the instant before the broker was killed, and come back with all its messages.

A note says up to where the log had been written, and when, as the topic was deleted. At a start
queues all of whose messages are older by both measures are removed again. Both, because after a
cut of the power the log may end before that place, and go on with new messages there.

Notes are in the order of the deletions, so that those of which the log holds nothing any more
are found at the beginning, and dropped. RocketMQ does not know the file
(`config/deletedTopics.json`) and leaves it alone. All methods are called on the event loop.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pyromq.base.clock import Clock, now_ms
from pyromq.broker.state.persistence import TableFile
from pyromq.protocol.java.wire_types import Int64
from pyromq.protocol.wire.body_codec import Body

logger = logging.getLogger(__name__)


class Log(Protocol):
    """What this table asks the store."""

    @property
    def min_physical_offset(self) -> int:
        """Where the log begins."""

    @property
    def max_physical_offset(self) -> int:
        """Where the log ends."""

    def remove_old_queues(self, topic: str, end: int, timestamp: int) -> int:
        """Remove the queues of a topic whose messages end, and were stored, before that."""


@dataclass(slots=True)
class Deletion(Body):
    """When a topic was deleted, and where the log ended then."""

    log_end: Int64
    #: Milliseconds since 1970.
    timestamp: Int64


@dataclass(slots=True)
class DeletedTopics(Body):
    """The content of config/deletedTopics.json."""

    topics: dict[str, Deletion] = field(default_factory=dict)


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
        self.file = TableFile(directory / "deletedTopics.json", self._snapshot)

    def load(self) -> None:
        """Take the notes of the file. Raises PersistenceError."""
        loaded = self.file.load(DeletedTopics.decode)
        if loaded is not None:
            in_order = sorted(loaded.topics.items(), key=lambda item: item[1].log_end)
            self._deletions = dict(in_order)

    def __contains__(self, topic: object) -> bool:
        return topic in self._deletions

    def begin(self, log: Log) -> None:
        """The store has started: remove what recovery made of messages of deleted topics."""
        self._forget(log)
        for topic, deletion in self._deletions.items():
            removed = log.remove_old_queues(topic, deletion.log_end, deletion.timestamp)
            if removed:
                logger.info("%d queues of topic %s, which was deleted, are removed", removed, topic)

    def note(self, topic: str, log: Log) -> None:
        """A topic is deleted now."""
        self._forget(log)
        self._deletions.pop(topic, None)
        self._deletions[topic] = Deletion(log.max_physical_offset, self._now())
        self.file.save_soon()

    def _forget(self, log: Log) -> None:
        first = log.min_physical_offset
        oldest = itertools.takewhile(lambda item: item[1].log_end <= first, self._deletions.items())
        gone = [name for name, _ in oldest]
        for name in gone:
            del self._deletions[name]
        if gone:
            self.file.save_soon()

    def _snapshot(self) -> DeletedTopics:
        return DeletedTopics(dict(self._deletions))
