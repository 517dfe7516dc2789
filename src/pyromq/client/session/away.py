"""Remember brokers that cannot be reached, until they answer again.

A broker is away from the failure of a request (`add`) until it answers a heartbeat. Reads then go
to another broker with the same data (`TopicRoute.place_of`), long before the NameServers drop the
broker from its routes. A task for each broker sends the heartbeats, so no caller waits for one that
does not answer, and a consumer's group is known to a broker that returns before the first pull. The
task also ends when no route has the address any more.

Owned by a session; runs on its event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

logger = logging.getLogger(__name__)

#: Exponential backoff between heartbeats.
FIRST_PAUSE_SECONDS: Final = 0.5
MAX_PAUSE_SECONDS: Final = 5.0


class AwayBrokers:
    """The addresses of brokers that are away; empty, and false, nearly always.

    `answers` sends a heartbeat and returns whether the broker answered; `is_listed` returns
    whether a route still has an address.
    """

    def __init__(
        self, answers: Callable[[str], Awaitable[bool]], is_listed: Callable[[str], bool]
    ) -> None:
        self._answers = answers
        self._is_listed = is_listed
        self._waiting: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False

    def __contains__(self, address: object) -> bool:
        return address in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, address: str, reason: Exception) -> None:
        """Avoid a broker from now on. Idempotent."""
        if address not in self._waiting and not self._is_closed:
            logger.warning("broker %s is away, reading from another replica: %s", address, reason)
            task = self._waiting[address] = asyncio.create_task(self._until_back(address))
            task.add_done_callback(lambda done: self._ended(address, done))

    def remove(self, address: str) -> None:
        """Use a broker again that has answered another heartbeat. Idempotent."""
        task = self._waiting.pop(address, None)
        if task is not None:
            logger.info("broker %s is back", address)
            task.cancel()

    async def close(self) -> None:
        """Stop waiting for all brokers."""
        self._is_closed = True
        tasks = list(self._waiting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, address: str, task: asyncio.Task[None]) -> None:
        if self._waiting.get(address) is task:
            del self._waiting[address]

    async def _until_back(self, address: str) -> None:
        pause = FIRST_PAUSE_SECONDS
        while self._is_listed(address):
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)
            if await self._answers(address):
                logger.info("broker %s is back", address)
                return
        logger.info("broker %s left the routes", address)
