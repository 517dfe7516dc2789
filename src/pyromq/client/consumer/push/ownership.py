"""Decide when a member may consume a queue, and when it may commit the queue's offset.

    orderly        The queue's lock at its broker (`locks`). Nothing is handled or committed
                   without a valid lock.
    concurrent     A handover from the last owner (`handover`). The lock is advisory, so commits
                   need none.
    broadcasting   Every member consumes every queue, without coordination.

Used by the push consumer, on its event loop.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from pyromq.client.consumer.handover import MARGIN_SECONDS, Handover
from pyromq.client.consumer.locks import VALID_SECONDS, QueueLocks
from pyromq.client.consumer.membership import Membership
from pyromq.client.consumer.process_queue import ProcessQueue
from pyromq.client.consumer.push.options import PushSettings
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import MessageQueue


class Claim(NamedTuple):
    """Permission to consume a queue."""

    #: `time.monotonic()` of the lock, for `ProcessQueue.last_locked`; None without locks.
    locked_at: float | None = None


class Ownership(Protocol):
    """The rules of one consumer."""

    async def claim(
        self, queue: MessageQueue, waiting: Callable[[], Awaitable[None]]
    ) -> Claim | None:
        """Return a claim, or None if another member holds the queue.

        Awaits `waiting` once if the last owner has to be waited for. Raises ClientError or
        RemotingError.
        """

    def is_valid(self, process_queue: ProcessQueue) -> bool:
        """Return whether we may commit the queue's offset."""

    async def renew(self, held: Mapping[MessageQueue, ProcessQueue]) -> list[MessageQueue]:
        """Renew the locks of all queues; return the queues whose locks are lost."""

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """Let other members have queues."""

    async def close(self, queues: Collection[MessageQueue]) -> None:
        """Release everything: `queues`, and whatever is still being claimed."""


def ownership_of(
    settings: PushSettings, session: Session, group: str, membership: Membership
) -> Ownership:
    """Return the rules that a consumer's settings ask for."""
    if settings.is_broadcasting:
        return BroadcastingOwnership()
    if settings.is_orderly:
        return OrderlyOwnership(QueueLocks(session, group))
    patience = settings.close_grace + MARGIN_SECONDS
    return ConcurrentOwnership(Handover(session, group, membership, patience=patience))


class OrderlyOwnership:
    """Requires a valid lock. A lock that may have expired meanwhile counts as lost."""

    def __init__(self, locks: QueueLocks) -> None:
        self._locks = locks

    async def claim(
        self,
        queue: MessageQueue,
        waiting: Callable[[], Awaitable[None]],  # noqa: ARG002
    ) -> Claim | None:
        """Lock the queue."""
        asked_at = time.monotonic()
        return Claim(asked_at) if await self._locks.lock(queue) else None

    def is_valid(self, process_queue: ProcessQueue) -> bool:
        """Return whether the lock was renewed recently enough."""
        locked = process_queue.last_locked
        return locked is not None and time.monotonic() - locked < VALID_SECONDS

    async def renew(self, held: Mapping[MessageQueue, ProcessQueue]) -> list[MessageQueue]:
        """Renew all locks; the lock of each returned queue is no longer valid."""
        asked_at = time.monotonic()
        lost: list[MessageQueue] = []
        for queue, is_ours in (await self._locks.renew(held)).items():
            process_queue = held[queue]
            if is_ours and self.is_valid(process_queue):
                process_queue.last_locked = asked_at
            else:
                # Another member had it, or may have had it: only the broker knows the offset.
                process_queue.last_locked = None
                lost.append(queue)
        return lost

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """Unlock queues."""
        await self._locks.unlock(queues)

    async def close(self, queues: Collection[MessageQueue]) -> None:
        """Unlock queues."""
        if queues:
            await self._locks.unlock(queues)


class ConcurrentOwnership:
    """Waits for the last owner to finish. `handover` renews its locks itself."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover

    async def claim(
        self, queue: MessageQueue, waiting: Callable[[], Awaitable[None]]
    ) -> Claim | None:
        """Wait for the handover."""
        await self._handover.take(queue, waiting)
        return Claim()

    def is_valid(self, process_queue: ProcessQueue) -> bool:  # noqa: ARG002
        """Return True: the locks are advisory."""
        return True

    async def renew(self, held: Mapping[MessageQueue, ProcessQueue]) -> list[MessageQueue]:  # noqa: ARG002
        """Return no lost queues."""
        return []

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """Hand queues over to their next owners."""
        await self._handover.release(queues)

    async def close(self, queues: Collection[MessageQueue]) -> None:  # noqa: ARG002
        """Hand all queues over."""
        await self._handover.close()


class BroadcastingOwnership:
    """Always grants a claim."""

    async def claim(
        self,
        queue: MessageQueue,  # noqa: ARG002
        waiting: Callable[[], Awaitable[None]],  # noqa: ARG002
    ) -> Claim | None:
        """Return a claim at once."""
        return Claim()

    def is_valid(self, process_queue: ProcessQueue) -> bool:  # noqa: ARG002
        """Return True: the offsets are our own."""
        return True

    async def renew(self, held: Mapping[MessageQueue, ProcessQueue]) -> list[MessageQueue]:  # noqa: ARG002
        """Return no lost queues."""
        return []

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """Do nothing."""

    async def close(self, queues: Collection[MessageQueue]) -> None:
        """Do nothing."""
