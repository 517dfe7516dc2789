"""A store's door for a raft group: lead, learn what is committed, wait for the quorum.

While this broker leads, the chunk appends entries to the group's log, and the responses of a chunk
wait until the group has committed its last entry. What is committed becomes visible to readers, on
leader and followers alike: `advance` moves the `written` watermark and dispatches the records.

Messages get their queue offsets from tails (`queues.tail`), because the queues end at the last
committed message.

Owned by `message_store`; used by the broker's member of the group. Runs on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from pyromq.store.acknowledgement import AckOutcome, OffsetWaiters
from pyromq.store.chunk import Chunk
from pyromq.store.dispatching import LogDispatch
from pyromq.store.log.agreed_log import AgreedLog, EntryLog
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.queues.tail import QueueTail
from pyromq.store.results import PutError, PutStatus

#: As DLedger: what a send waits for the quorum.
QUORUM_SECONDS: Final = 2.5


class StoreAgreement:
    """Everything that a raft group needs of a store."""

    def __init__(
        self,
        log: AgreedLog,
        chunk: Chunk,
        dispatch: LogDispatch,
        queue_of: Callable[[str, int], ConsumeQueue],
    ) -> None:
        self._log = log
        self._chunk = chunk
        self._dispatch = dispatch
        self._queue_of = queue_of
        self._tails: dict[tuple[str, int], QueueTail] = {}
        self._waiters = OffsetWaiters(lambda: log.watermarks.written, AckOutcome.QUORUM_TIMED_OUT)
        self._is_leading = False
        #: Returns why the group takes no entry now, or None.
        self.refusal_of_group: Callable[[], str | None] = lambda: "the node is not running"

    def start(self, end: int) -> None:
        """Continue at `end`, up to where the queues have their entries."""
        self._dispatch.position = end
        self._chunk.set_gate(self._wait)

    @property
    def entries(self) -> EntryLog:
        """Return the group's log."""
        return self._log.entries

    @property
    def committed(self) -> int:
        """Return the offset below which everything is committed."""
        return self._log.watermarks.written

    @property
    def is_leading(self) -> bool:
        """Whether this store takes messages."""
        return self._is_leading

    def refusal(self) -> PutError | None:
        """Return why no message is accepted, or None."""
        if not self._is_leading:
            return PutError(
                PutStatus.SERVICE_NOT_AVAILABLE, "the broker does not lead its raft group"
            )
        reason = self.refusal_of_group()
        return None if reason is None else PutError(PutStatus.OS_PAGECACHE_BUSY, reason)

    # Leading

    def lead(self, term: int, on_append: Callable[[], None]) -> None:
        """Accept messages as the leader of `term`; everything before is committed.

        `on_append` is called after each append of entries.
        """
        entries = self._log.entries
        assert entries.written == self.committed, (entries.written, self.committed)
        for tail in self._tails.values():
            tail.restart()
        self._chunk.lead(entries.written, entries.next_index, term)
        self._chunk.set_on_append(on_append)
        self._is_leading = True

    def step_down(self) -> None:
        """Refuse messages from now on; sends that wait get no acknowledgement."""
        self._chunk.seal()
        self._is_leading = False
        self._chunk.withdraw_room()
        self._chunk.set_on_append(None)
        self._waiters.abandon(AckOutcome.LEADERSHIP_LOST)

    def advance(self) -> None:
        """Make everything visible that is committed. Raises PutError or StoreError.

        After PutError, for want of disk space, call it again later.
        """
        entries, dispatch = self._log.entries, self._dispatch
        # A leader fills an empty log from its own first entry on.
        dispatch.position = max(dispatch.position, entries.begin_position)
        end = max(entries.committed_position, self.committed)
        self._log.agree(end, self._log.watermarks.written_timestamp)
        try:
            dispatch.catch_up(end)
        finally:
            if dispatch.timestamp:
                self._log.agree(end, dispatch.timestamp)
            self._waiters.notify()

    def listen(self, on_delayed: Callable[[int], None] | None) -> None:
        """Call `on_delayed` with the level of each delayed message that is committed."""
        self._dispatch.on_delayed = on_delayed

    def _wait(self, offset: int) -> asyncio.Future[AckOutcome]:
        return self._waiters.wait(offset, QUORUM_SECONDS)

    # Queues

    def tail(self, topic: str, queue_id: int) -> QueueTail:
        """Return where the next message of a queue goes."""
        tail = self._tails.get((topic, queue_id))
        if tail is None:
            tail = self._tails[topic, queue_id] = QueueTail(self._queue_of(topic, queue_id))
        return tail

    def close_tails(self, topic: str) -> None:
        """Refuse messages of a topic that is being deleted, and forget its tails."""
        for key in [key for key in self._tails if key[0] == topic]:
            self._tails.pop(key).refuse_puts()
