"""Who may consume which queue: groups that consume in order, and pyromq's others.

A member of a group asks for its queues every 20 seconds. A lock belongs to one client
and ends when the client gives it back, or was silent for 60 seconds. A client that
loses its connection keeps its locks that long: it may still be busy with messages of the
queue, and another one that began meanwhile would break their order. Locks that are mere
advice end with the connection, if the client says so: nobody need wait for the dead.

Invariants:
1. A queue of a group has at most one owner at any time.
2. A lock that has ended is as good as none; `expire` forgets those, so that groups that
   are no more cost nothing. (RocketMQ keeps them for ever.)
3. There are at most `maxQueueLocks`: a queue more is not locked. A lock costs little: the queues
   of a request share one lease, and equal names are one string.

Nothing is persisted: after a restart the first one who asks gets the queue, as in
RocketMQ. All methods are called on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from pyromq.base.log_lines import first_few
from pyromq.broker.state.connections import ClientConnection
from pyromq.protocol.wire.bodies import MessageQueue

logger = logging.getLogger(__name__)

#: Seconds after its last request for which a client keeps a queue.
LEASE_SECONDS: Final = 60.0
#: Locks that `expire` looks at before the loop gets a turn.
_LOCKS_AT_ONCE: Final = 5000


class _Lease(NamedTuple):
    """Who holds queues since when: the same object for all queues of one request."""

    client_id: str
    touched: float
    #: Whose end is the lease's; None: it outlives its connection.
    connection: ClientConnection | None


class QueueLockTable:
    """The locks of all groups."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        lease: float = LEASE_SECONDS,
        max_locks: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        """`max_locks` gives the setting `maxQueueLocks` as it is now."""
        self._now = now
        self._lease = lease
        self._max_locks = max_locks
        self._count = 0
        self._groups: dict[str, dict[MessageQueue, _Lease]] = {}

    def lock(
        self,
        group: str,
        queues: Collection[MessageQueue],
        client_id: str,
        connection: ClientConnection | None = None,
    ) -> set[MessageQueue]:
        """Lock queues for a client, or renew its locks; those that are its own now.

        With `connection` the locks end when it is closed.
        """
        locks = self._groups.setdefault(group, {})
        now = self._now()
        limit = self._max_locks()
        lease = _Lease(client_id, now, connection)
        mine: set[MessageQueue] = set()
        locked: list[_Outcome] = []
        held: list[_Outcome] = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                locks[queue] = lease
            elif lock is None and self._count >= limit:
                reason = f"the broker has {self._count} locks, limit {limit} (maxQueueLocks)"
                held.append(_Outcome(queue, reason))
                continue
            elif lock is None or self._has_ended(lock, now):
                locks[queue if lock is not None else _with_shared_names(queue)] = lease
                self._count += lock is None
                locked.append(_Outcome(queue, "" if lock is None else f"after {lock.client_id}"))
            else:
                held.append(_Outcome(queue, f"{lock.client_id} holds it"))
                continue
            mine.add(queue)
        if locked:
            logger.info("group %s: locked for %s: %s", group, client_id, first_few(locked))
        if held:
            logger.info("group %s: not locked for %s: %s", group, client_id, first_few(held))
        if not locks:
            del self._groups[group]
        return mine

    def unlock(self, group: str, queues: Collection[MessageQueue], client_id: str) -> None:
        """Give queues back; those of others stay as they are."""
        locks = self._groups.get(group, {})
        unlocked: list[_Outcome] = []
        held: list[_Outcome] = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
                self._count -= 1
                unlocked.append(_Outcome(queue))
            else:
                holder = "nobody" if lock is None else lock.client_id
                held.append(_Outcome(queue, f"{holder} holds it"))
        if unlocked:
            logger.info("group %s: unlocked by %s: %s", group, client_id, first_few(unlocked))
        if held:
            logger.warning("group %s: not unlocked by %s: %s", group, client_id, first_few(held))
        if not locks:
            self._groups.pop(group, None)

    def owner(self, group: str, queue: MessageQueue) -> str | None:
        """The client that holds a queue of a group now."""
        lock = self._groups.get(group, {}).get(queue)
        return None if lock is None or self._has_ended(lock, self._now()) else lock.client_id

    def __len__(self) -> int:
        """How many locks are remembered."""
        return self._count

    async def expire(self) -> None:
        """Forget locks that have ended, a few thousand in one turn; called every 10 seconds."""
        now = self._now()
        looked_at = 0
        for group, locks in list(self._groups.items()):
            for queue in list(locks):
                lock = locks.get(queue)
                if lock is not None and self._has_ended(lock, now):
                    del locks[queue]
                    self._count -= 1
                looked_at += 1
                if looked_at % _LOCKS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            # Another task may have replaced it, while others had their turn.
            if not locks and self._groups.get(group) is locks:
                del self._groups[group]

    def _has_ended(self, lock: _Lease, now: float) -> bool:
        is_lost = lock.connection is not None and lock.connection.closed
        return is_lost or now - lock.touched > self._lease


def _with_shared_names(queue: MessageQueue) -> MessageQueue:
    """The same queue for the table: a request's own strings would take half of its memory."""
    return MessageQueue(sys.intern(queue.topic), sys.intern(queue.broker_name), queue.queue_id)


class _Outcome(NamedTuple):
    """A queue of a request and why it was locked or not, for the log."""

    queue: MessageQueue
    reason: str = ""

    def __str__(self) -> str:
        name = f"queue {self.queue.queue_id} of topic {self.queue.topic}"
        return f"{name} ({self.reason})" if self.reason else name
