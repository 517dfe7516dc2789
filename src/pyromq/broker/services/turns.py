"""Work that may take long together, in slices: so much of it in each turn of the loop.

Pulls that a message wakes, and pulls that filter by SQL92, cost little each and much together.
They share one budget, TURN_SECONDS of each turn. Work is queued with `add` and runs in the
order in which it came. A handler that works at once tells how long that took (`charge`) and,
once the turn `is_over`, queues the rest.

Everything on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final

logger = logging.getLogger(__name__)

#: A turn of the loop has so much time for all work of this kind.
TURN_SECONDS: Final = 0.004

#: Does a small piece of work; returns whether there is more to do.
Work = Callable[[], bool]


class Turns:
    """Queued work, and how much of the present turn is left for it."""

    def __init__(self) -> None:
        #: Whether this turn has no time left: what can wait is to be queued.
        self.is_over = False
        self._left = TURN_SECONDS
        self._work: deque[Work] = deque()
        self._is_planned = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self._work)

    def add(self, work: Work) -> None:
        """Do a piece of work in the next turn, and again as long as it has more to do."""
        self._work.append(work)
        self._plan()

    def charge(self, begun: float) -> None:
        """Count what was done since `begun`, as perf_counter told it, as part of this turn."""
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
                logger.exception("%s failed", some)
            if perf_counter() >= end:
                self.is_over = True
                break
        if work or self.is_over:
            self._plan()
