"""Committed offsets of consumer groups, by topic, group and queue.

An offset is the queue offset of the next message that the group will read. Consumers commit every
few seconds and with pulls, so a commit only changes memory. The broker saves the table every
`flushConsumerOffsetInterval` and at its stop (`config/consumerOffset.json`). A crash loses the
newest commits, and the group gets those messages again. A replica takes over its master's offsets.

Invariants
1. The table has at most `maxConsumerOffsets` pairs of topic and group; those of the file are
   exempt.
2. A pair is found from its topic and from its group without a scan.
3. A save, and an answer with the whole table, copy and encode only the pairs that changed since the
   last one: their JSON is cached and joined in the thread that needs it.

Called on the loop, unless a method says otherwise.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from pathlib import Path
from typing import Final

from pyromq.broker.state.capacity import Capacity
from pyromq.broker.state.copied_tables import SEPARATOR, CopyError
from pyromq.broker.state.persistence import TableFile
from pyromq.protocol.names import is_system_topic
from pyromq.protocol.wire.bodies import ConsumerOffsetSerializeWrapper

logger = logging.getLogger(__name__)

#: Unknown groups may have one in this many pairs: their offsets can be set before they first
#: connect, but cannot fill the table.
_UNKNOWN_GROUPS_DIVISOR: Final = 10
#: Surround the pairs in the file.
_HEAD, _TAIL = b'{"offsetTable":{', b"}}"


class ConsumerOffsetTable:
    """Committed offsets by `topic@group` and queue id; persisted as `consumerOffset.json`."""

    def __init__(
        self, directory: Path, *, max_pairs: Callable[[], int] = lambda: sys.maxsize
    ) -> None:
        """`max_pairs` returns the current `maxConsumerOffsets`."""
        self._offsets: dict[str, dict[int, int]] = {}
        self._topics_of: dict[str, set[str]] = {}
        self._groups_of: dict[str, set[str]] = {}
        self._saved_commits = 0
        self._commits = 0
        self._max_pairs = max_pairs
        self._capacity = Capacity("pairs of topic and group", "maxConsumerOffsets", max_pairs)
        #: Pairs that changed since the last snapshot, and the JSON of all others.
        self._changed: set[str] = set()
        self._json = _OffsetJson()
        self.file = TableFile(directory / "consumerOffset.json", self.snapshot)

    @property
    def version(self) -> int:
        """Return a number that grows with every change."""
        return self._commits

    def load(self) -> None:
        """Load the file. Raises PersistenceError."""
        loaded = self.file.load(ConsumerOffsetSerializeWrapper.decode)
        if loaded is not None:
            for key, queues in loaded.offset_table.items():
                if SEPARATOR in key:
                    self._add(key, queues)
            self._capacity.note(len(self._offsets))

    def forget_other_topics(self, topics: Container[str]) -> None:
        """Remove the offsets of all but these topics and system topics. Called at the start."""
        gone = [
            name for name in self._groups_of if name not in topics and not is_system_topic(name)
        ]
        pairs = sum(self.remove_topic(topic) for topic in gone)
        if pairs:
            logger.warning(
                "offsets of %d topic and group pairs removed: %d topics do not exist, such as %s",
                pairs,
                len(gone),
                gone[0],
            )

    def room_fault(self, group: str, topic: str, *, is_known: bool) -> str | None:
        """Return why the table takes no offsets of a new pair, or None.

        `is_known` says whether the group exists here.
        """
        if topic + SEPARATOR + group in self._offsets:
            return None
        count = len(self._offsets)
        fault = self._capacity.fault(count)
        if fault is None and not is_known:
            limit = self._max_pairs() // _UNKNOWN_GROUPS_DIVISOR
            if count >= limit:
                fault = (
                    f"group {group} does not exist here, and the broker has {count} pairs of "
                    f"topic and group, limit {limit} for unknown groups (maxConsumerOffsets)"
                )
        return fault

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, *, remote_address: str = ""
    ) -> None:
        """Commit an offset; that of a new pair only if there is room."""
        key = topic + SEPARATOR + group
        queues = self._offsets.get(key)
        if queues is None:
            if len(self._offsets) < self._max_pairs() or is_system_topic(topic):
                self._commits += 1
                self._add(key, {queue_id: offset})
                self._capacity.note(len(self._offsets))
            return
        self._commits += 1
        self._changed.add(key)
        before = queues.get(queue_id)
        queues[queue_id] = offset
        if before is not None and offset < before:
            logger.warning(
                "offset of %s queue %d moved back from %d to %d by %s",
                key,
                queue_id,
                before,
                offset,
                remote_address,
            )

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset, or None."""
        queues = self._offsets.get(topic + SEPARATOR + group)
        return None if queues is None else queues.get(queue_id)

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Return the offsets of a group in all queues of a topic."""
        return dict(self._offsets.get(topic + SEPARATOR + group, {}))

    def topics_of(self, group: str) -> set[str]:
        """Return the topics in which a group has committed offsets."""
        return set(self._topics_of.get(group, ()))

    def groups_of(self, topic: str) -> set[str]:
        """Return the groups that have committed offsets in a topic."""
        return set(self._groups_of.get(topic, ()))

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Return all pairs of topic and group; any thread may iterate over them."""
        return map(_split, list(self._offsets))

    def clone(self, source: str, destination: str, topic: str) -> None:
        """Copy the offsets of one group in a topic to another group."""
        queues = self._offsets.get(topic + SEPARATOR + source)
        if queues is not None:
            self._commits += 1
            self._add(topic + SEPARATOR + destination, dict(queues))

    def remove_group(self, group: str) -> None:
        """Remove all offsets of a group."""
        for topic in self.topics_of(group):
            self._remove(topic, group)
            logger.warning("offsets of group %s in topic %s removed", group, topic)

    def remove_topic(self, topic: str) -> int:
        """Remove all offsets of a topic; return how many groups had some."""
        groups = self.groups_of(topic)
        for group in groups:
            self._remove(topic, group)
        return len(groups)

    def take_over(self, copy: Mapping[str, dict[int, int]]) -> None:
        """Replace the offsets of these pairs by those of the master; other pairs stay."""
        for key, queues in copy.items():
            if self._offsets.get(key) != queues:
                self._commits += 1
                self._add(key, dict(queues))
        self._capacity.note(len(self._offsets))

    def refuse_too_many(self, keys: Collection[str]) -> None:
        """Raise CopyError if the table would exceed its limit with these pairs of the master."""
        count = len(self._offsets) + sum(key not in self._offsets for key in keys)
        limit = self._max_pairs()
        if count > limit:
            raise CopyError(
                f"{count} pairs of topic and group, limit {limit}: raise maxConsumerOffsets of "
                "this replica"
            )

    def snapshot(self) -> _OffsetJson:
        """Return the table for a thread that encodes it; it may contain later changes."""
        changed, self._changed = self._changed, set()
        self._json.update(
            {
                key: dict(queues) if (queues := self._offsets.get(key)) is not None else None
                for key in changed
            }
        )
        return self._json

    def save_if_changed(self) -> None:
        """Schedule a save, unless nothing was committed since the last one."""
        if self._commits != self._saved_commits:
            self._saved_commits = self._commits
            self.file.save_soon()

    def _add(self, key: str, queues: dict[int, int]) -> None:
        topic, group = _split(key)
        self._offsets[key] = queues
        self._changed.add(key)
        self._topics_of.setdefault(group, set()).add(topic)
        self._groups_of.setdefault(topic, set()).add(group)

    def _remove(self, topic: str, group: str) -> None:
        key = topic + SEPARATOR + group
        self._commits += 1
        del self._offsets[key]
        self._changed.add(key)
        for table, name, other in (
            (self._topics_of, group, topic),
            (self._groups_of, topic, group),
        ):
            table[name].discard(other)
            if not table[name]:
                del table[name]
        self._capacity.note(len(self._offsets))


class _OffsetJson:
    """The JSON of the whole table, from cached JSON of each pair.

    Snapshots may be encoded in any order and by several threads: each encoding first applies all
    changes that were taken so far, in their order.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cached: dict[str, bytes] = {}
        #: Pairs and their offsets; None for a removed pair.
        self._changes: deque[dict[str, dict[int, int] | None]] = deque()

    def update(self, changes: dict[str, dict[int, int] | None]) -> None:
        """Note changes, on the loop; the next encoding applies them."""
        if changes:
            self._changes.append(changes)

    def encode(self) -> bytes:
        """Return the content of the file. Any thread."""
        with self._lock:
            while self._changes:
                self._apply(self._changes.popleft())
            return _HEAD + b",".join(self._cached.values()) + _TAIL

    def _apply(self, changes: Mapping[str, dict[int, int] | None]) -> None:
        for key, queues in changes.items():
            if queues is None:
                self._cached.pop(key, None)
            else:
                whole = ConsumerOffsetSerializeWrapper({key: queues}).encode()
                self._cached[key] = whole[len(_HEAD) : -len(_TAIL)]


def _split(key: str) -> tuple[str, str]:
    # Neither topic nor group contains the separator.
    topic, _, group = key.partition(SEPARATOR)
    return topic, group
