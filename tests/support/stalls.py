"""How long an event loop was kept from turning."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Stalls:
    """Watches the running loop."""

    def __init__(self) -> None:
        #: The longest time between two turns, in seconds.
        self.longest = 0.0

    async def watch(self) -> None:
        """Turn with the loop, for ever."""
        before = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            self.longest = max(self.longest, now - before)
            before = now


@asynccontextmanager
async def watched_loop() -> AsyncIterator[Stalls]:
    """Watch the loop while the block runs."""
    stalls = Stalls()
    watching = asyncio.create_task(stalls.watch())
    try:
        await asyncio.sleep(0)
        yield stalls
        await asyncio.sleep(0)
    finally:
        watching.cancel()
