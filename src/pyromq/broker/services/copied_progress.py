"""A master's progress in delayed messages and transactions, held back until a replica may use it.

Progress says which messages need no more work: their copies or successors were put at the end of
the master's log. A replica that lacks those, and is promoted, would lose the messages. So progress
is noted together with the end of the master's log, asked for after it, and takes effect when the
replica's own log is fsynced up to there. Before that, older progress counts: a promoted replica
delivers some delayed messages twice and asks producers twice, but loses nothing.

Progress beyond the end of the replica's queue is refused. It is garbled: the replica has every
message that the master had at that time.

Used by `services.metadata_sync`, on the loop.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple, Protocol

from pyromq.broker.state.copied_tables import SEPARATOR, CopyError
from pyromq.broker.state.delay_offsets import DelayOffsetTable
from pyromq.broker.state.offsets import ConsumerOffsetTable
from pyromq.protocol.names import SCHEDULE_TOPIC

#: Progress of more rounds than a replica is usually behind. Later rounds are not noted.
_MAX_NOTED: Final = 360


class ProgressStore(Protocol):
    """The part of the store that progress depends on."""

    @property
    def flushed_offset(self) -> int:
        """Return the offset below which the log is fsynced."""

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue's next message; 0 for an unknown queue."""


class _Noted(NamedTuple):
    """Progress of the master when its log ended at `log_end` or before."""

    log_end: int
    #: Next queue offsets by delay level.
    delay: dict[int, int]
    #: Offsets of the broker's own group, by key of the offset table.
    transactions: dict[str, dict[int, int]]


class CopiedProgress:
    """The progress that waits for the log."""

    def __init__(
        self,
        delay_offsets: DelayOffsetTable,
        offsets: ConsumerOffsetTable,
        store: ProgressStore,
    ) -> None:
        self._delay_offsets = delay_offsets
        self._offsets = offsets
        self._store = store
        self._noted: deque[_Noted] = deque()
        #: The newest progress that was noted.
        self._last: _Noted | None = None

    def is_new(self, delay: dict[int, int], transactions: dict[str, dict[int, int]]) -> bool:
        """Return whether this differs from the progress that was noted last."""
        last = self._last
        return last is None or (last.delay, last.transactions) != (delay, transactions)

    def note(
        self, delay: dict[int, int], transactions: dict[str, dict[int, int]], log_end: int
    ) -> None:
        """Note progress that the master had made before its log ended at `log_end`."""
        if len(self._noted) < _MAX_NOTED:
            self._last = _Noted(log_end, delay, transactions)
            self._noted.append(self._last)

    def settle(self) -> None:
        """Take over the newest progress that the log has reached. Raises CopyError."""
        reached = None
        while self._noted and self._noted[0].log_end <= self._store.flushed_offset:
            reached = self._noted.popleft()
        if reached is None:
            return
        delay = {
            level: self._checked(SCHEDULE_TOPIC, level - 1, offset)
            for level, offset in reached.delay.items()
        }
        transactions = {
            key: {
                queue_id: self._checked(key.partition(SEPARATOR)[0], queue_id, offset)
                for queue_id, offset in queues.items()
            }
            for key, queues in reached.transactions.items()
        }
        self._delay_offsets.take_over(delay, reached.log_end)
        self._offsets.take_over(transactions)
        self._offsets.save_if_changed()

    def forget(self) -> None:
        """Drop what is noted: another master has another log."""
        self._noted.clear()
        self._last = None

    def _checked(self, topic: str, queue_id: int, offset: int) -> int:
        end = self._store.max_offset(topic, queue_id)
        if end and offset > end:
            raise CopyError(
                f"progress in {topic} queue {queue_id} is {offset}, but its queue ends at {end}"
            )
        # The messages of an unknown queue have expired, or were never copied.
        return min(offset, end)
