"""Handing a queue from one member of a group to the next, so that nothing is handled twice.

Members work out their shares on their own, at different times. Without a word between them,
the new owner of a queue starts from the last commit while the old one still has messages in
flight. So a member takes the queue's lock before it asks for the offset, and unlocks when it
has stopped pulling, its handlers have returned and the offset is committed. These are the
broker's locks for groups that consume in order (LOCK_BATCH_MQ), so any broker will do; Java's
concurrent consumers neither take nor respect them, and share a group with ours as before.

Unlike in order (`queue_locks`), the lock is advice; a queue never waits for it for long:
1. A member that left without unlocking is unlocked by those that saw it leave; at pyromq's
   brokers its locks end with its connection.
2. A member that is alone in its group needs no lock.
3. A queue that stays locked is taken anyway after `patience` seconds.
4. A broker without locks, or without a master, is no reason to wait.
Messages may be handled twice then; none is lost, since the offset is still the broker's.

Used by the push consumer (unless in order) and the lite pull consumer, on their event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable

from pyromq.client.consumer.locks import RENEW_SECONDS, QueueLocks
from pyromq.client.consumer.membership import Membership
from pyromq.client.errors import ClientError
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.remoting.client import RemotingError

logger = logging.getLogger(__name__)

#: How long a new owner waits beyond the time that the old one gives its handlers.
MARGIN_SECONDS = 5.0
#: Between attempts to lock a queue: the first pause, then twice as long each time.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.02, 0.5
#: Members that leave properly unlock sooner; after that, those that left are unlocked for them.
_CLEAN_SECONDS = 1.0


class Handover:
    """The queues that a member has taken and not given up yet.

    Queues that are wanted at the same time are asked for together: a member may have thousands.
    """

    def __init__(
        self, session: Session, group: str, membership: Membership, *, patience: float
    ) -> None:
        self._group = group
        self._membership = membership
        self._patience = patience
        self._locks = QueueLocks(session, group, end_with_connection=True)
        #: Ours, or asked for: the broker may have locked it although the answer was not awaited.
        self._held: set[MessageQueue] = set()
        self._wanted: set[MessageQueue] = set()
        self._asking: asyncio.Task[set[MessageQueue]] | None = None
        #: Queues that are locked for longer than a proper leave takes, and those that were
        #: unlocked for members that left.
        self._overdue: set[MessageQueue] = set()
        self._unlocked: dict[str, set[MessageQueue]] = {}
        self._renewals: asyncio.Task[None] | None = None

    async def take(self, queue: MessageQueue, waiting: Callable[[], Awaitable[None]]) -> None:
        """Return when the last owner has given the queue up, or need not be waited for.

        Awaits `waiting` once if the queue is not free at once.
        """
        if self._renewals is None:
            self._renewals = asyncio.create_task(self._renew_forever())
        began = time.monotonic()
        pause = _FIRST_PAUSE_SECONDS
        try:
            while not await self._is_free(queue):
                waited = time.monotonic() - began
                if waited > self._patience:
                    logger.warning(
                        "group %s: %s is still locked after %g s, taken anyway: messages in flight "
                        "at its last owner come again",
                        self._group,
                        queue,
                        self._patience,
                    )
                    break
                if pause == _FIRST_PAUSE_SECONDS:
                    await waiting()
                if waited > _CLEAN_SECONDS:
                    self._overdue.add(queue)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        finally:
            self._overdue.discard(queue)
        # Also without the lock: renewals get it when the last owner's lease is over.
        self._held.add(queue)

    async def give(self, queues: Iterable[MessageQueue]) -> None:
        """Let others have these queues; their offsets are committed."""
        given = self._held.intersection(queues)
        self._held -= given
        if given:
            await self._locks.unlock(given)

    async def close(self) -> None:
        """Give up all queues."""
        tasks = [task for task in (self._renewals, self._asking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.give(set(self._held))

    async def _is_free(self, queue: MessageQueue) -> bool:
        self._wanted.add(queue)
        self._held.add(queue)
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        # Shielded: others wait for the same answer.
        if queue in await asyncio.shield(self._asking):
            return True
        self._held.discard(queue)
        return False

    async def _ask(self) -> set[MessageQueue]:
        """Lock all queues that are wanted now; return those that need not be waited for."""
        await asyncio.sleep(0)  # those that begin in this turn of the loop have asked now
        self._asking = None
        queues, self._wanted = self._wanted & self._held, set()
        await self._unlock_departed(queues & self._overdue)
        outcomes = await self._locks.renew(queues)
        locked = {queue for queue, is_ours in outcomes.items() if not is_ours}
        if locked:
            try:
                if await self._membership.is_alone(next(iter(locked)).topic):
                    # Locked all the same if that can be had: the next one who joins must wait.
                    await self._unlock_departed(locked)
                    await self._locks.renew(locked)
                    return queues
            except (ClientError, RemotingError) as error:
                logger.debug("group %s: its members are not known: %s", self._group, error)
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

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self._locks.renew(self._held.copy())
            except (ClientError, RemotingError) as error:
                logger.warning("group %s: locks not renewed: %s", self._group, error)
