"""How far each consumer group has come: an offset per topic, group and queue.

An offset is the queue offset of the next message that the group wants. Consumers report
it every few seconds and with pulls, so that commits only change memory; the broker saves
the table each `flushConsumerOffsetInterval` and at its stop (`config/consumerOffset.json`).
A crash costs the newest commits, and the group gets those messages again.

Invariants:
1. There are at most `maxConsumerOffsets` pairs of topic and group, but for those of a file.
2. A pair is found from its topic and from its group without a scan of all.
3. A save copies and encodes only the pairs that have changed since the last one: their JSON
   is kept, and joined in the thread that writes the file.

All methods are called on the event loop, but for what they say.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from pyromq.broker.state.capacity import Capacity
from pyromq.broker.state.persistence import TableFile
from pyromq.protocol.names import is_system_topic
from pyromq.protocol.wire.bodies import ConsumerOffsetSerializeWrapper

logger = logging.getLogger(__name__)

_SEPARATOR = "@"
#: Groups that the broker does not know may have this part of all pairs: their offsets can be
#: set before they first come, but cannot fill the table.
_SHARE_OF_UNKNOWN_GROUPS: Final = 10
#: What surrounds the pairs in the file.
_HEAD, _TAIL = b'{"offsetTable":{', b"}}"


class ConsumerOffsetTable:
    """Committed offsets by `topic@group` and queue id; persisted as `consumerOffset.json`."""

    def __init__(
        self, directory: Path, *, max_pairs: Callable[[], int] = lambda: sys.maxsize
    ) -> None:
        """`max_pairs` gives the setting `maxConsumerOffsets` as it is now."""
        self._offsets: dict[str, dict[int, int]] = {}
        self._topics_of: dict[str, set[str]] = {}
        self._groups_of: dict[str, set[str]] = {}
        self._saved_commits = 0
        self._commits = 0
        self._max_pairs = max_pairs
        self._capacity = Capacity("pairs of topic and group", "maxConsumerOffsets", max_pairs)
        #: Pairs that have changed since the last save began, and the JSON of all that have not.
        self._unsaved: set[str] = set()
        self._pieces: dict[str, bytes] = {}
        self.file = TableFile(directory / "consumerOffset.json", self._file_content)

    @property
    def version(self) -> int:
        """A number that every change of the table makes larger."""
        return self._commits

    def load(self) -> None:
        """Take the offsets of the file. Raises PersistenceError."""
        loaded = self.file.load(ConsumerOffsetSerializeWrapper.decode)
        if loaded is not None:
            for key, queues in loaded.offset_table.items():
                if _SEPARATOR in key:
                    self._add(key, queues)
            self._capacity.note(len(self._offsets))

    def forget_other_topics(self, topics: Container[str]) -> None:
        """Forget the offsets of all but these topics and the system's; called at the start."""
        gone = [
            name for name in self._groups_of if name not in topics and not is_system_topic(name)
        ]
        pairs = sum(self.remove_topic(topic) for topic in gone)
        if pairs:
            logger.warning(
                "offsets of %d pairs of topic and group removed: %d topics such as %s do not exist",
                pairs,
                len(gone),
                gone[0],
            )

    def room_fault(self, group: str, topic: str, *, is_known: bool) -> str | None:
        """Why the table takes no offsets of this pair; None when it does.

        `is_known` says whether the group exists here.
        """
        if topic + _SEPARATOR + group in self._offsets:
            return None
        count = len(self._offsets)
        fault = self._capacity.fault(count)
        if fault is None and not is_known:
            limit = self._max_pairs() // _SHARE_OF_UNKNOWN_GROUPS
            if count >= limit:
                fault = (
                    f"group {group} does not exist here, and the broker has {count} pairs of "
                    f"topic and group, limit {limit} for such groups (maxConsumerOffsets)"
                )
        return fault

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, *, remote_address: str = ""
    ) -> None:
        """Note that the group wants `offset` next; of a new pair, only if there is room."""
        key = topic + _SEPARATOR + group
        queues = self._offsets.get(key)
        if queues is None:
            if len(self._offsets) < self._max_pairs() or is_system_topic(topic):
                self._commits += 1
                self._add(key, {queue_id: offset})
                self._capacity.note(len(self._offsets))
            return
        self._commits += 1
        self._unsaved.add(key)
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
        return set(self._topics_of.get(group, ()))

    def groups_of(self, topic: str) -> set[str]:
        """The groups that have committed offsets of a topic."""
        return set(self._groups_of.get(topic, ()))

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Topic and group of all that is committed now; may be gone through in any thread."""
        return map(_split, list(self._offsets))

    def clone(self, source: str, destination: str, topic: str) -> None:
        """Give one group the offsets that another has in a topic."""
        queues = self._offsets.get(topic + _SEPARATOR + source)
        if queues is not None:
            self._commits += 1
            self._add(topic + _SEPARATOR + destination, dict(queues))

    def remove_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        for topic in self.topics_of(group):
            self._remove(topic, group)
            logger.warning("offsets of group %s in topic %s removed", group, topic)

    def remove_topic(self, topic: str) -> int:
        """Forget all offsets of a topic; of how many groups."""
        groups = self.groups_of(topic)
        for group in groups:
            self._remove(topic, group)
        return len(groups)

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

    def _add(self, key: str, queues: dict[int, int]) -> None:
        topic, group = _split(key)
        self._offsets[key] = queues
        self._unsaved.add(key)
        self._topics_of.setdefault(group, set()).add(topic)
        self._groups_of.setdefault(topic, set()).add(group)

    def _remove(self, topic: str, group: str) -> None:
        key = topic + _SEPARATOR + group
        self._commits += 1
        del self._offsets[key]
        self._unsaved.add(key)
        for table, name, other in (
            (self._topics_of, group, topic),
            (self._groups_of, topic, group),
        ):
            table[name].discard(other)
            if not table[name]:
                del table[name]
        self._capacity.note(len(self._offsets))

    def _file_content(self) -> _FileContent:
        changed, self._unsaved = self._unsaved, set()
        return _FileContent(
            self._pieces,
            {
                key: dict(queues) if (queues := self._offsets.get(key)) is not None else None
                for key in changed
            },
        )


class _FileContent(NamedTuple):
    """What has changed since the last save; saves follow one another, so that none is lost."""

    pieces: dict[str, bytes]
    #: None for a pair that is gone.
    changed: dict[str, dict[int, int] | None]

    def encode(self) -> bytes:
        """In the thread that saves: the whole file."""
        for key, queues in self.changed.items():
            if queues is None:
                self.pieces.pop(key, None)
            else:
                whole = ConsumerOffsetSerializeWrapper({key: queues}).encode()
                self.pieces[key] = whole[len(_HEAD) : -len(_TAIL)]
        return _HEAD + b",".join(self.pieces.values()) + _TAIL


def _split(key: str) -> tuple[str, str]:
    # Neither topic nor group may contain the separator.
    topic, _, group = key.partition(_SEPARATOR)
    return topic, group
