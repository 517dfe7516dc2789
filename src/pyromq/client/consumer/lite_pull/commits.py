"""Load and commit the offsets of a lite pull consumer, at the brokers or in a local file.

Commits run one at a time, because brokers may apply commits of one queue out of order if several
are in flight. Runs on the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from pyromq.client.consumer.lite_pull.read_ahead import Reading
from pyromq.client.consumer.offsets import LocalOffsets
from pyromq.client.consumer.queue_access import QueueAccess, name_of
from pyromq.client.errors import ClientError
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.remoting.client import RemotingError

logger = logging.getLogger(__name__)


class Commits:
    """The offsets of one consumer; with `local`, they are stored in its file."""

    def __init__(self, access: QueueAccess, local: LocalOffsets | None) -> None:
        self._access = access
        self._local = local
        self._one_at_a_time = asyncio.Lock()

    async def load(self, queue: MessageQueue) -> int | None:
        """Return the committed offset, or None if the queue was never consumed."""
        if self._local is not None:
            return await self._local.load(queue)
        return await self._access.committed(queue)

    async def commit(self, readings: Iterable[Reading]) -> dict[MessageQueue, Exception]:
        """Commit the consumed offsets that changed; return the failures, which are also logged."""
        async with self._one_at_a_time:
            return await self.store(
                {
                    reading.queue: offset
                    for reading in readings
                    if (offset := reading.commit_offset) is not None
                    and (
                        self._local is not None or not self._access.is_stored(reading.queue, offset)
                    )
                }
            )

    async def store(self, offsets: dict[MessageQueue, int]) -> dict[MessageQueue, Exception]:
        """Commit the given offsets; return the failures, which are also logged."""
        failures: dict[MessageQueue, Exception] = {}
        if self._local is not None:
            await self._local.store(offsets)
            return failures

        async def store_one(queue: MessageQueue, offset: int) -> None:
            try:
                await self._access.commit(queue, offset)
            except (RemotingError, ClientError) as error:
                logger.warning("commit failed: offset %d of %s: %s", offset, name_of(queue), error)
                failures[queue] = error

        await asyncio.gather(*(store_one(queue, offset) for queue, offset in offsets.items()))
        return failures

    async def idle(self) -> None:
        """Wait until no `commit` is in flight."""
        async with self._one_at_a_time:
            pass
