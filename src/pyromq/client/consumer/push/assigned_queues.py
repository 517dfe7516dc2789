"""The queues assigned to a push consumer: start pulling them, hand them over, commit them.

`membership` calls `assign` with our share. For each new queue a task pulls (`puller`). A queue
that goes to another member is stopped, its handlers finish, its offset is committed, and only then
is it released (`ownership`); meanwhile it is in `_leaving`, and our other queues continue.

Invariants:
1. Assignments, resets and lock renewals change the table one at a time (`_changes`).
2. An assignment runs to its end even if its caller is cancelled: no queue is half given up.
3. A queue that comes back while its old messages are being handled waits for them.
4. Without a valid claim, no offset is committed: another member may be further ahead.

Created by the push consumer; runs on its event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from pyromq.client.consumer.offsets import ConsumerOffsets
from pyromq.client.consumer.process_queue import ProcessQueue
from pyromq.client.consumer.push.options import PushSettings
from pyromq.client.consumer.push.ownership import Ownership
from pyromq.client.consumer.push.puller import AssignedQueue, Handling, Puller
from pyromq.client.consumer.queue_access import QueueAccess, name_of
from pyromq.protocol.wire.bodies import MessageQueue

logger = logging.getLogger(__name__)


class AssignedQueues:
    """The queues of one consumer."""

    def __init__(
        self,
        group: str,
        settings: PushSettings,
        *,
        access: QueueAccess,
        offsets: ConsumerOffsets,
        ownership: Ownership,
        handling: Handling,
        puller: Puller,
    ) -> None:
        self._group = group
        self._settings = settings
        self._access = access
        self._offsets = offsets
        self._ownership = ownership
        self._handling = handling
        self._puller = puller
        self._assigned: dict[MessageQueue, AssignedQueue] = {}
        #: Queues that are released once their handlers have returned.
        self._leaving: dict[MessageQueue, AssignedQueue] = {}
        #: Whether the last renewal left queues without a renewed lock: their broker is away.
        self.lacks_locks = False
        self._changes = asyncio.Lock()
        self._assigning: asyncio.Task[None] | None = None

    def __iter__(self) -> Iterator[MessageQueue]:
        return iter(self._assigned)

    def process_queues(self) -> dict[MessageQueue, ProcessQueue | None]:
        """Return the state of each queue; None until its start is known."""
        return {queue: assigned.process_queue for queue, assigned in self._assigned.items()}

    def offsets(self) -> dict[MessageQueue, int]:
        """Return the offset up to which each queue was consumed."""
        return {
            queue: process_queue.commit_offset
            for queue, process_queue in self.process_queues().items()
            if process_queue is not None
        }

    async def assign(self, queues: Collection[MessageQueue]) -> None:
        """Take exactly these queues: start new ones, give up the others."""
        self._assigning = asyncio.create_task(self._assign(queues))
        # Shielded: a cancelled caller must not leave queues half given up.
        await asyncio.shield(self._assigning)

    async def until_started(self, seconds: float) -> None:
        """Wait until every queue has tried to find its start, for at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                for assigned in list(self._assigned.values()):
                    await assigned.start_attempted.wait()
        except TimeoutError:
            logger.warning(
                "group %s: offsets to start from still unknown after %g s", self._group, seconds
            )

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Restart our queues among these from the given offsets and commit those."""
        async with self._changes:
            ours = {queue: offset for queue, offset in offsets.items() if queue in self._assigned}
            for queue in ours:
                assigned = self._assigned.pop(queue)
                if assigned.process_queue is not None:
                    # Orderly: a handler that returns later must not commit the old offset.
                    assigned.process_queue.last_locked = None
                await self._stop(assigned, grace=0.0)
            await self._offsets.store(ours)
            for queue, offset in ours.items():
                self._start(queue, offset)
            self._update_limits()

    async def commit(self) -> None:
        """Commit the offsets of all queues that we have a valid claim on."""
        await self._offsets.store(
            {
                queue: process_queue.commit_offset
                for queue, process_queue in self.process_queues().items()
                if process_queue is not None and self._ownership.is_valid(process_queue)
            }
        )

    async def renew_locks(self) -> None:
        """Renew all locks; restart the queues whose locks were lost.

        The member that had the queue meanwhile may be further ahead than we are, or less far, as
        when there was none and the lock expired because the master was away.
        """
        async with self._changes:
            began = time.monotonic()
            held = {
                queue: assigned.process_queue
                for queue, assigned in [*self._assigned.items(), *self._leaving.items()]
                if assigned.process_queue is not None
            }
            for queue in await self._ownership.renew(held):
                assigned = self._assigned.get(queue)
                if assigned is not None and assigned.process_queue is held[queue]:
                    logger.warning("lock of %s lost, restarting the queue", name_of(queue))
                    await self._stop(self._assigned.pop(queue), grace=0.0)
                    self._start(queue, resumed=held[queue])
            self.lacks_locks = any(
                process_queue.last_locked is None or process_queue.last_locked < began
                for process_queue in held.values()
            )
            self._update_limits()

    async def until_assigned(self) -> None:
        """Wait for an assignment in flight."""
        if self._assigning is not None:
            await asyncio.wait([self._assigning])

    async def stop_pulling(self) -> None:
        """Cancel all pulls."""
        tasks = [assigned.task for assigned in self._assigned.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def release_all(self, seconds: float) -> None:
        """Commit and release all queues; wait at most `seconds` for those that are leaving."""
        await self.commit()
        if self._leaving:
            tasks = [assigned.task for assigned in self._leaving.values()]
            await asyncio.wait(tasks, timeout=seconds)
        await self._ownership.close(self._assigned.keys())

    def clear(self) -> None:
        """Forget all queues, also those that are still leaving."""
        for assigned in self._leaving.values():
            assigned.task.cancel()
        self._assigned.clear()

    # Helpers, in call order.

    async def _assign(self, queues: Collection[MessageQueue]) -> None:
        async with self._changes:
            ours = set(queues)
            given_up = [each for queue, each in self._assigned.items() if queue not in ours]
            for assigned in given_up:
                del self._assigned[assigned.queue]
            grace = self._settings.close_grace
            await asyncio.gather(*(self._stop(assigned, grace) for assigned in given_up))
            for queue in queues:
                if queue not in self._assigned:
                    self._start(queue)
            self._update_limits()

    def _start(
        self,
        queue: MessageQueue,
        offset: int | None = None,
        *,
        resumed: ProcessQueue | None = None,
    ) -> None:
        limits = self._settings.limits(1)
        assigned = self._assigned[queue] = AssignedQueue(queue, limits, resumed)
        leaving = self._leaving.get(queue)
        assigned.task = asyncio.create_task(
            self._puller.run(assigned, offset, None if leaving is None else leaving.task)
        )
        assigned.task.add_done_callback(lambda _: assigned.start_attempted.set())

    def _update_limits(self) -> None:
        """Divide the limits of each topic among our queues of it."""
        counts = Counter(queue.topic for queue in self._assigned)
        for assigned in self._assigned.values():
            assigned.limits = self._settings.limits(counts[assigned.queue.topic])
            if assigned.process_queue is not None:
                assigned.process_queue.limits = assigned.limits

    async def _stop(self, assigned: AssignedQueue, grace: float) -> None:
        """Stop pulling a queue, commit its offset, and release it.

        Its handlers have `grace` seconds to return, in the background. Orderly handlers have as
        long as they need: no other member may start before they return.
        """
        assigned.task.cancel()
        await asyncio.gather(assigned.task, return_exceptions=True)
        process_queue = assigned.process_queue
        if process_queue is None:
            if assigned.queue not in self._leaving:  # which still needs the lock
                await self._ownership.release([assigned.queue])
        elif process_queue.handlers and (grace > 0 or self._settings.is_orderly):
            self._leaving[assigned.queue] = assigned
            assigned.task = asyncio.create_task(self._leave(process_queue, grace))
            assigned.task.add_done_callback(lambda _: self._has_left(assigned))
        else:
            await self._leave(process_queue, grace)

    async def _leave(self, process_queue: ProcessQueue, grace: float) -> None:
        queue = process_queue.queue
        await self._handling.leave(process_queue, grace)
        if self._ownership.is_valid(process_queue):
            await self._offsets.store({queue: process_queue.commit_offset})
        self._offsets.forget(queue)
        self._access.forget(queue)
        await self._ownership.release([queue])

    def _has_left(self, assigned: AssignedQueue) -> None:
        if self._leaving.get(assigned.queue) is assigned:
            del self._leaving[assigned.queue]
