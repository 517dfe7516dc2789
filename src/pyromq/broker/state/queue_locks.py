"""Locks of queues: each belongs to one client of a group.

Ordered consumers, and pyromq's other consumers, renew the locks of their queues every 20 seconds. A
lock ends when the client releases it or has not renewed it for 60 seconds. A client that loses its
connection keeps its locks until then: it may still process messages of the queue, and another
client would break their order. Advisory locks end with the connection, if the client says so.

Invariants
1. A queue of a group has at most one owner at any time.
2. `expire` drops locks that have ended, so abandoned groups cost nothing. (RocketMQ keeps them
   forever.)
3. The table has at most `maxQueueLocks`; further queues are not locked. A lock is small: the queues
   of a request share one lease, and equal names are one string.

Nothing is persisted: after a restart the first client to request a queue gets it, as in RocketMQ.
Called on the loop.
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

#: Seconds for which a client keeps a queue after its last renewal.
LEASE_SECONDS: Final = 60.0
#: Locks that `expire` inspects per loop iteration.
_MAX_LOCKS_PER_ITERATION: Final = 5000


class _Lease(NamedTuple):
    """The owner of locks and the time of its last renewal; shared by the queues of a request."""

    client_id: str
    renewed: float
    #: The lease ends with this connection; None if it outlives it.
    connection: ClientConnection | None


class QueueLockTable:
    """The locks of all groups."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        lease: float = LEASE_SECONDS,
        max_locks: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        """`max_locks` returns the current `maxQueueLocks`."""
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
        """Lock queues for a client or renew its locks; return the queues that it holds now.

        With `connection`, the locks end when it closes.
        """
        locks = self._groups.setdefault(group, {})
        now = self._now()
        limit = self._max_locks()
        lease = _Lease(client_id, now, connection)
        mine: set[MessageQueue] = set()
        locked: list[_Named] = []
        refused: list[_Named] = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                locks[queue] = lease
            elif lock is None and self._count >= limit:
                full = f"the broker has {self._count} locks, limit {limit} (maxQueueLocks)"
                refused.append(_Named(queue, full))
                continue
            elif lock is None or self._has_ended(lock, now):
                locks[queue if lock is not None else _with_shared_names(queue)] = lease
                self._count += lock is None
                locked.append(_Named(queue, f"after {lock.client_id}" if lock is not None else ""))
            else:
                refused.append(_Named(queue, f"{lock.client_id} holds it"))
                continue
            mine.add(queue)
        if locked:
            logger.info("group %s: locked for %s: %s", group, client_id, first_few(locked))
        if refused:
            logger.info("group %s: not locked for %s: %s", group, client_id, first_few(refused))
        if not locks:
            del self._groups[group]
        return mine

    def unlock(self, group: str, queues: Collection[MessageQueue], client_id: str) -> None:
        """Release queues of a client; locks of others stay."""
        locks = self._groups.get(group, {})
        unlocked: list[_Named] = []
        refused: list[_Named] = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
                self._count -= 1
                unlocked.append(_Named(queue))
            else:
                owner = "not locked" if lock is None else f"{lock.client_id} holds it"
                refused.append(_Named(queue, owner))
        if unlocked:
            logger.info("group %s: unlocked by %s: %s", group, client_id, first_few(unlocked))
        if refused:
            logger.warning("group %s: not unlocked by %s: %s", group, client_id, first_few(refused))
        if not locks:
            self._groups.pop(group, None)

    def owner(self, group: str, queue: MessageQueue) -> str | None:
        """Return the client that holds a queue of a group, or None."""
        lock = self._groups.get(group, {}).get(queue)
        return None if lock is None or self._has_ended(lock, self._now()) else lock.client_id

    def __len__(self) -> int:
        return self._count

    async def expire(self) -> None:
        """Drop locks that have ended. Called every 10 seconds."""
        now = self._now()
        inspected = 0
        for group, locks in list(self._groups.items()):
            for queue in list(locks):
                lock = locks.get(queue)
                if lock is not None and self._has_ended(lock, now):
                    del locks[queue]
                    self._count -= 1
                inspected += 1
                if inspected % _MAX_LOCKS_PER_ITERATION == 0:
                    await asyncio.sleep(0)
            # A request may have replaced it meanwhile.
            if not locks and self._groups.get(group) is locks:
                del self._groups[group]

    def _has_ended(self, lock: _Lease, now: float) -> bool:
        is_lost = lock.connection is not None and lock.connection.closed
        return is_lost or now - lock.renewed > self._lease


def _with_shared_names(queue: MessageQueue) -> MessageQueue:
    """Return the queue with interned names, which halves the memory of the table."""
    return MessageQueue(sys.intern(queue.topic), sys.intern(queue.broker_name), queue.queue_id)


class _Named(NamedTuple):
    """A queue in a log line, which names the first few."""

    queue: MessageQueue
    note: str = ""

    def __str__(self) -> str:
        name = f"queue {self.queue.queue_id} of topic {self.queue.topic}"
        return f"{name} ({self.note})" if self.note else name
