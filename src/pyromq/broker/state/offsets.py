"""How far each consumer group has come: an offset per topic, group and queue.

An offset is the queue offset of the next message that the group wants. Consumers report
it every few seconds and with pulls, so that commits only change memory; the broker saves
the table each `flushConsumerOffsetInterval` and at its stop (`config/consumerOffset.json`).
A crash costs the newest commits, and the group gets those messages again.

All methods are called on the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from pyromq.broker.state.persistence import TableFile
from pyromq.protocol.bodies import ConsumerOffsetSerializeWrapper

logger = logging.getLogger(__name__)

_SEPARATOR = "@"


class ConsumerOffsetTable:
    """Committed offsets by `topic@group` and queue id; persisted as `consumerOffset.json`."""

    def __init__(self, directory: Path) -> None:
        self._offsets: dict[str, dict[int, int]] = {}
        self._saved_commits = 0
        self._commits = 0
        self.file = TableFile(directory / "consumerOffset.json", self.snapshot)

    @property
    def version(self) -> int:
        """A number that every change of the table makes larger."""
        return self._commits

    def load(self) -> None:
        """Take the offsets of the file. Raises PersistenceError."""
        loaded = self.file.load(ConsumerOffsetSerializeWrapper.decode)
        if loaded is not None:
            self._offsets = loaded.offset_table

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, *, remote_address: str = ""
    ) -> None:
        """Note that the group wants `offset` next."""
        self._commits += 1
        key = topic + _SEPARATOR + group
        queues = self._offsets.get(key)
        if queues is None:
            self._offsets[key] = {queue_id: offset}
            return
        before = queues.get(queue_id)
        queues[queue_id] = offset
        if before is not None and offset < before:
            logger.warning(
                "%s queue %d: offset goes back from %d to %d, by %s",
                key,
                queue_id,
                before,
                offset,
                remote_address,
            )

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset that the group wants next; None when it never committed one."""
        queues = self._offsets.get(topic + _SEPARATOR + group)
        return None if queues is None else queues.get(queue_id)

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """The group's offsets in all queues of a topic."""
        return dict(self._offsets.get(topic + _SEPARATOR + group, {}))

    def topics_of(self, group: str) -> set[str]:
        """The topics of which a group has committed offsets."""
        ending = _SEPARATOR + group
        keys = (key for key in self._offsets if key.endswith(ending))
        return {topic for topic, other in map(_split, keys) if other == group}

    def groups_of(self, topic: str) -> set[str]:
        """The groups that have committed offsets of a topic."""
        beginning = topic + _SEPARATOR
        return {_split(key)[1] for key in self._offsets if key.startswith(beginning)}

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Topic and group of all that is committed now; may be gone through in any thread."""
        return map(_split, list(self._offsets))

    def clone(self, source: str, destination: str, topic: str) -> None:
        """Give one group the offsets that another has in a topic."""
        queues = self._offsets.get(topic + _SEPARATOR + source)
        if queues is not None:
            self._commits += 1
            self._offsets[topic + _SEPARATOR + destination] = dict(queues)

    def remove_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        for topic in self.topics_of(group):
            self._commits += 1
            del self._offsets[topic + _SEPARATOR + group]
            logger.warning("offsets of group %s in topic %s removed", group, topic)

    def snapshot(self) -> ConsumerOffsetSerializeWrapper:
        """The table as it is now, not shared with later commits."""
        return ConsumerOffsetSerializeWrapper(
            {key: dict(queues) for key, queues in self._offsets.items()}
        )

    def save_if_changed(self) -> None:
        """Save soon, unless nothing was committed since the last time."""
        if self._commits != self._saved_commits:
            self._saved_commits = self._commits
            self.file.save_soon()


def _split(key: str) -> tuple[str, str]:
    # Neither topic nor group may contain the separator.
    topic, _, group = key.partition(_SEPARATOR)
    return topic, group
