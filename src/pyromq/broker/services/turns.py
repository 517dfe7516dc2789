"""A time budget per loop iteration, shared by work that is cheap alone and expensive together.

Pulls that a message wakes and pulls that filter by SQL92 share TURN_SECONDS of each iteration.
Queued work (`add`) runs in FIFO order. A handler that works immediately reports the time it took
(`charge`) and queues the rest once the budget `is_over`.

Runs on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final

logger = logging.getLogger(__name__)

#: The budget of one loop iteration.
TURN_SECONDS: Final = 0.004

#: Does a small unit of work; returns whether there is more.
Work = Callable[[], bool]


class Turns:
    """Queued work and the rest of the current budget."""

    def __init__(self) -> None:
        #: Whether the budget is used up: work that can wait must be queued.
        self.is_over = False
        self._left = TURN_SECONDS
        self._work: deque[Work] = deque()
        self._is_planned = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self._work)

    def add(self, work: Work) -> None:
        """Run `work` from the next iteration on, until it has no more to do."""
        self._work.append(work)
        self._plan()

    def charge(self, begun: float) -> None:
        """Charge the time since `begun`, a value of perf_counter, to the current budget."""
        self._left -= perf_counter() - begun
        self.is_over = self._left <= 0
        self._plan()

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        end = perf_counter() + TURN_SECONDS
        self.is_over = self._is_planned = False
        self._left = TURN_SECONDS
        work = self._work
        while work:
            some = work.popleft()
            try:
                if some():
                    work.append(some)
            except Exception:
                logger.exception("work on pulls failed and is dropped: %s", some)
            if perf_counter() >= end:
                self.is_over = True
                break
        if work or self.is_over:
            self._plan()
