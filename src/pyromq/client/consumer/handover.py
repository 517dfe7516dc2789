"""Hand a queue from one member of a group to the next without delivering messages twice.

Members compute their shares independently, at different times. Without coordination, the new
owner of a queue starts from the last commit while the old owner still has messages in flight. So
a member locks a queue before it queries the offset, and unlocks it after it has stopped pulling,
its handlers have returned and the offset is committed. The locks are those that brokers keep for
orderly groups (LOCK_BATCH_MQ), so any broker will do. Java's concurrent consumers neither take
nor respect them and can share a group with ours as before.

Unlike orderly locks, these are advisory; nothing waits for one for long:
1. If a member left without unlocking, the members that saw it leave unlock for it. At pyromq's
   brokers its locks end with its connection.
2. A member that is alone in its group does not wait for a lock.
3. A queue that stays locked is taken anyway after `patience` seconds.
4. A broker without locks, or without a master, is not waited for.
In cases 1 to 4 messages may be delivered twice. None is lost: the offset comes from the broker.

Used by the concurrent push consumer and the lite pull consumer, on their event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from pyromq.base.periodic import PeriodicTasks
from pyromq.client.consumer.locks import RENEW_SECONDS, QueueLocks
from pyromq.client.consumer.membership import Membership
from pyromq.client.consumer.queue_access import name_of
from pyromq.client.errors import ClientError
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.remoting.client import RemotingError

logger = logging.getLogger(__name__)

#: How much longer a new owner waits than the old one gives its handlers.
MARGIN_SECONDS: Final = 5.0
#: Exponential backoff between attempts to lock a queue.
_FIRST_PAUSE_SECONDS: Final = 0.02
_MAX_PAUSE_SECONDS: Final = 0.5
#: A member that leaves cleanly unlocks within this time; then others unlock for it.
_CLEAN_LEAVE_SECONDS: Final = 1.0


class Handover:
    """The queues that a member has taken and not released yet.

    Queues that are taken at the same time share one request: a member may have thousands.
    """

    def __init__(
        self, session: Session, group: str, membership: Membership, *, patience: float
    ) -> None:
        self._group = group
        self._membership = membership
        self._patience = patience
        self._locks = QueueLocks(session, group, end_with_connection=True)
        #: Includes queues whose lock request is in flight: the broker may have granted it although
        #: the caller was cancelled.
        self._held: set[MessageQueue] = set()
        self._wanted: set[MessageQueue] = set()
        self._locking: asyncio.Task[set[MessageQueue]] | None = None
        #: Queues locked for longer than a clean leave takes.
        self._overdue: set[MessageQueue] = set()
        #: Queues already unlocked on behalf of members that left.
        self._unlocked: dict[str, set[MessageQueue]] = {}
        self._renewals: PeriodicTasks | None = None

    async def take(self, queue: MessageQueue, waiting: Callable[[], Awaitable[None]]) -> None:
        """Return when the last owner has released the queue, or is not worth waiting for.

        Awaits `waiting` once if the queue is not free immediately.
        """
        if self._renewals is None:
            self._renewals = PeriodicTasks()
            self._renewals.start(RENEW_SECONDS, self._renew)
        began = time.monotonic()
        pause = _FIRST_PAUSE_SECONDS
        try:
            while not await self._try_lock(queue):
                waited = time.monotonic() - began
                if waited > self._patience:
                    logger.warning(
                        "group %s takes over %s, still locked after %g s: messages in flight at "
                        "its last owner will be redelivered",
                        self._group,
                        name_of(queue),
                        self._patience,
                    )
                    break
                if pause == _FIRST_PAUSE_SECONDS:
                    await waiting()
                if waited > _CLEAN_LEAVE_SECONDS:
                    self._overdue.add(queue)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
        finally:
            self._overdue.discard(queue)
        # Held even without the lock: a renewal gets it when the last owner's lease expires.
        self._held.add(queue)

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Unlock queues whose offsets are committed."""
        released = self._held.intersection(queues)
        self._held -= released
        if released:
            await self._locks.unlock(released)

    async def close(self) -> None:
        """Release all queues."""
        if self._renewals is not None:
            await self._renewals.stop()
        if self._locking is not None:
            self._locking.cancel()
            await asyncio.gather(self._locking, return_exceptions=True)
        await self.release(set(self._held))

    async def _try_lock(self, queue: MessageQueue) -> bool:
        self._wanted.add(queue)
        self._held.add(queue)
        if self._locking is None:
            self._locking = asyncio.create_task(self._lock_wanted())
        # Shielded: other queues wait for the same request.
        if queue in await asyncio.shield(self._locking):
            return True
        self._held.discard(queue)
        return False

    async def _lock_wanted(self) -> set[MessageQueue]:
        """Lock all wanted queues; return those that need no more waiting."""
        await asyncio.sleep(0)  # collect the queues that are taken in this loop iteration
        self._locking = None
        queues, self._wanted = self._wanted & self._held, set()
        await self._unlock_departed(queues & self._overdue)
        outcomes = await self._locks.renew(queues)
        locked = {queue for queue, is_ours in outcomes.items() if not is_ours}
        if locked:
            try:
                if await self._membership.is_alone(next(iter(locked)).topic):
                    # Try to get the locks all the same, so that the next member to join waits.
                    await self._unlock_departed(locked)
                    await self._locks.renew(locked)
                    return queues
            except (ClientError, RemotingError) as error:
                logger.debug("members of group %s are unknown: %s", self._group, error)
        return queues - locked

    async def _unlock_departed(self, queues: set[MessageQueue]) -> None:
        departed = self._membership.departed()
        for member in self._unlocked.keys() - departed:
            del self._unlocked[member]
        for member in departed:
            unlocked = self._unlocked.setdefault(member, set())
            if queues - unlocked:
                await self._locks.unlock(queues - unlocked, member)
                unlocked |= queues

    async def _renew(self) -> None:
        await self._locks.renew(self._held.copy())
